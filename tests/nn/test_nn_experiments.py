"""The experiments at toy size, the theorems and the calibration curve."""

from importlib import import_module

import numpy as np
import pytest

import overt.theorems.nn
from overt import InputError, MissingExtraError, experiments
from overt.experiments.runner import run
from overt.nn import calibration
from overt.theorems.base import registered, verify


def test_realized_fractions_of_the_popular_algorithms_are_not_mistaken_for_ours():
    experiment = experiments.find("nn-realized")
    rows = run(experiment, size="toy")
    for row in rows:
        ours = row["implementations"]["overt"]
        row["implementations"]["overt"] = {**ours, "realized": ours["realized"] * 1.3}
    assert not any(f.holds for f in experiment.check(rows))


def test_theorems_hold():
    assert overt.theorems.nn is not None
    names = [name for name in registered() if name.startswith("nn-")]
    assert len(names) == 6
    verdicts = list(verify(names))
    assert [v.id for v in verdicts if v.verdict != "holds"] == []
    assert sum(v.correction is not None for v in verdicts) == 4


def test_calibration_of_a_normal_sample():
    rng = np.random.default_rng(0)
    mean, sd = rng.standard_normal(20_000), rng.uniform(0.5, 2, 20_000)
    target = mean + sd * rng.standard_normal(20_000)
    good = calibration(mean, sd**2, target)
    error = np.sqrt(good.nominal * (1 - good.nominal) / 20_000)
    assert np.all(np.abs(good.observed - good.nominal) <= 5 * error)
    narrow = calibration(mean, sd**2 / 4, target)
    assert np.all(narrow.observed < narrow.nominal)
    widened = calibration(mean, np.zeros(20_000), mean + rng.standard_normal(20_000),
                          noise_variance=1.0)  # fmt: skip
    assert widened.error < 0.02
    assert widened.to_dict()["noise_variance"] == 1.0
    with pytest.raises(InputError, match="shape"):
        calibration(mean, sd[:5], target)
    for bad in ([np.nan, 0.0], [0.0, np.inf]):  # not outside of every interval: refused
        with pytest.raises(InputError, match="must be finite, got 1"):
            calibration(bad, [1.0, 1.0], [0.0, 0.0])
        with pytest.raises(InputError, match="target must be finite"):
            calibration([0.0, 0.0], [1.0, 1.0], bad)


def test_missing_torch_is_named(monkeypatch):
    import sys

    for name in [n for n in sys.modules if n == "overt.nn" or n.startswith("overt.nn.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"overt\[torch\]"):
        import_module("overt.nn")
