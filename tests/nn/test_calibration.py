"""The calibration curve, and the message without PyTorch."""

from importlib import import_module

import numpy as np
import pytest

from overt import InputError, MissingExtraError
from overt.nn import calibration


def test_calibration_of_a_normal_sample():
    rng = np.random.default_rng(0)
    mean, sd = rng.standard_normal(20_000), rng.uniform(0.5, 2, 20_000)
    target = mean + sd * rng.standard_normal(20_000)
    good = calibration(mean, sd**2, target)
    error = np.sqrt(good.nominal * (1 - good.nominal) / 20_000)
    assert np.all(np.abs(good.observed - good.nominal) <= 5 * error)
    narrow = calibration(mean, sd**2 / 4, target)
    assert np.all(narrow.observed < narrow.nominal)
    widened = calibration(
        mean, np.zeros(20_000), mean + rng.standard_normal(20_000), noise_variance=1.0
    )
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

    for name in [
        n for n in sys.modules if n == "overt.nn" or n.startswith("overt.nn.")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"overt\[torch\]"):
        import_module("overt.nn")
