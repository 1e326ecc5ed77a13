"""Folders that a cluster's workers read: what they find is what one machine finds."""

import numpy as np
import pytest

from overt import InputError
from overt.completion import DropoutCompletion, read_ratings

pytest.importorskip("distributed", reason="needs the dask extra")
pytest.importorskip("duckdb", reason="needs the files extra")

SETTINGS = {"n_factors": 3, "max_sweeps": 4, "tol": 0}


@pytest.fixture(scope="module")
def client():
    from distributed import Client

    with Client(
        processes=False, n_workers=3, threads_per_worker=1, dashboard_address=None
    ) as client:
        yield client


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr("overt.completion.reading.SMALL", 1)


def write(folder, n_files, words=False, more=()):
    """Write ratings of which some come twice, in so many files; the last has a bad line."""
    rng = np.random.default_rng(0)
    rows, cols = rng.integers(0, 40, 700), (rng.random(700) ** 2 * 30).astype(int)
    values, times = (rows + cols) % 5 + rng.integers(1, 3, 700), rng.permutation(700)
    name = "u{}".format if words else str
    lines = [
        f"{name(a)},{b},{y},{t}" for a, b, y, t in zip(rows, cols, values, times, strict=True)
    ]
    folder.mkdir()
    for number, part in enumerate(np.array_split(lines, n_files)):
        text = "\n".join(["user,item,rating,time", *part, *more, ""])
        (folder / f"{number:02d}.csv").write_text(text)
    return folder


FORMS = {
    "learned": {},
    "drawn": {"average": 3},
    "fixed": {"drop_prob": 0.2},
    "plain": {"signals": False, "biases": False},
}


@pytest.mark.parametrize("n_files", [1, 5])
@pytest.mark.parametrize("form", FORMS)
def test_workers_find_what_one_machine_finds(form, n_files, client, tmp_path):
    folder = write(tmp_path / "r", n_files, words=form == "drawn", more=["1,2,much,3"])
    here = DropoutCompletion(**SETTINGS | FORMS[form]).fit(folder)
    there = DropoutCompletion(engine="dask", **SETTINGS | FORMS[form]).fit(folder)
    np.testing.assert_allclose(there.objective_, here.objective_, rtol=1e-9)
    np.testing.assert_allclose(there.U_, here.U_, atol=1e-7)
    np.testing.assert_allclose(there.V_, here.V_, atol=1e-7)
    np.testing.assert_array_equal(there.row_ids_, here.row_ids_)
    for mine, theirs in zip(
        there.predict(here.entries_, return_std=True),
        here.predict(here.entries_, return_std=True),
        strict=True,
    ):
        np.testing.assert_allclose(mine, theirs, atol=1e-7)
