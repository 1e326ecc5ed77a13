"""`import overt` is quick and brings nothing that only some users need."""

import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import overt

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())[
    "project"
]
EXTRAS = [
    re.match(r"[\w-]+", requirement)[0]
    for name, requirements in PROJECT["optional-dependencies"].items()
    if name not in ("dev", "docs")
    for requirement in requirements
]
# Needed, but not yet by `import overt`: each takes longer than NumPy.
LATE = ["dask", "numba", "pandas", "scipy", "sklearn"]
TRIES, REPEATS, LIMIT = 3, 5, 2.5


def python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_import_loads_nothing_heavy():
    assert "torch" in EXTRAS
    heavy = EXTRAS + LATE
    loaded = python(
        f"import sys, overt; print([m for m in {heavy} if m in sys.modules])"
    )
    assert loaded.strip() == "[]"


def best_times(*statements):
    """Shortest of several interpreter runs of each statement, taken in turn."""
    best = dict.fromkeys(statements, float("inf"))
    for _ in range(REPEATS):
        for statement in statements:
            start = time.perf_counter()
            python(statement)
            best[statement] = min(best[statement], time.perf_counter() - start)
    return best.values()


def test_import_costs_little_more_than_numpy():
    ratios = []
    for _ in range(TRIES):
        bare, numpy, ours = best_times("pass", "import numpy", "import overt")
        ratios.append((ours - bare) / (numpy - bare))
        if ratios[-1] <= LIMIT:
            return
    pytest.fail(f"import overt takes {min(ratios):.2f} times as long as import numpy")


def test_public_names_are_sorted_and_unique():
    assert overt.__all__ == sorted(set(overt.__all__))
    assert dir(overt) == overt.__all__


@pytest.mark.parametrize("name", overt.__all__)
def test_public_name_resolves(name):
    value = getattr(overt, name)
    assert getattr(value, "__name__", name).rpartition(".")[2] == name


def test_lazy_names_are_public_or_packages():
    packages = overt._LAZY.keys() - set(overt.__all__)
    assert all(overt._LAZY[name] == f"overt.{name}" for name in packages)
    assert overt.decay.__name__ == "overt.decay"


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(
        AttributeError, match="module 'overt' has no attribute 'nothing'"
    ):
        overt.nothing  # noqa: B018
