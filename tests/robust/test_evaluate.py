"""Robust error and its curve."""

import json
from functools import cache

import numpy as np
import pytest
import torch
from robust_cases import blobs, points, small_mlp
from scipy.stats import binom
from torch import nn

from overt import InputError
from overt._intervals import clopper_pearson
from overt.robust import (
    L2,
    PGD,
    Linf,
    RobustnessWarning,
    adversarial_train,
    robust_error,
)


def test_robust_error_and_its_curve():
    model, x = small_mlp(seed=4), points(120, 6, seed=2)
    y = model(x).argmax(1)
    y[:6] = (y[:6] + 1) % 3
    one = robust_error(model, x, y, L2(0.5), budget=100, warn=False)
    curve = robust_error(
        model, x, y, L2(0.5), radii=[0.1, 0.25, 1.0], budget=100, warn=False
    )
    assert curve.radii.tolist() == [0.1, 0.25, 0.5, 1.0]
    assert (np.diff(curve.errors) >= 0).all()
    assert curve.clean == 0.05
    assert curve.value == curve.errors[2]
    assert curve.value >= one.value - 0.01
    assert one.interval[0] < one.value < one.interval[1]
    assert curve.success.mean() == curve.value
    wrong = model(curve.x).argmax(1) != y
    assert torch.equal(wrong, torch.as_tensor(curve.success))
    own = robust_error(model, x, y, L2(0.5), attack=PGD(L2(9.0), steps=20), warn=False)
    assert own.value <= one.value + 0.01


def test_intervals_cover():
    counts = np.arange(41)
    low, high = clopper_pearson(counts, 40, 0.9)
    for p in (0.0, 0.03, 0.5, 1.0):
        assert binom.pmf(counts, 40, p)[(low <= p) & (p <= high)].sum() >= 0.9


def case(n=30):
    model, x = small_mlp(), points(n, 6)
    return model, x, model(x).argmax(1)


def test_no_gradient_is_spent_at_radius_zero():
    model, x, y = case()
    y = torch.where(torch.arange(30) < 6, (y + 1) % 3, y)
    found = robust_error(model, x, y, L2(0.0), radii=np.zeros(2))
    assert (found.value, found.clean, found.gradients) == (0.2, 0.2, 0)
    found = robust_error(model, x, y, L2(0.5), radii=np.array([0.0, 0.1]), budget=30)
    assert found.gradients <= 2 * 30 * 24
    assert found.errors[0] == found.clean == 0.2
    assert np.array_equal(found.radii, [0.0, 0.1, 0.5])


@cache
def weights():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 3))
    adam = torch.optim.Adam(model.parameters(), 0.02)
    adversarial_train(model, blobs(300), None, epochs=12, optimizer=adam)
    return model.state_dict()


def trained(dtype=torch.float32):
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 3))
    model.load_state_dict(weights())
    x, y = blobs(80)
    return model.to(dtype), x, y


def test_warnings_of_every_radius_are_kept(tmp_path):
    model, x, y = trained()

    def fragile(v):  # breaks down far from the points that were given
        far = (v[:, None] - x).abs().amax(2).amin(1, keepdim=True) > 0.05
        return torch.where(far, torch.nan, model(v))

    with pytest.warns(RobustnessWarning, match="NaN or infinity") as seen:
        found = robust_error(
            fragile, x, y, Linf(0.2), radii=[0.001, 0.01], budget=24, queries=20
        )
    assert [str(w.message) for w in seen] == list(found.warnings)
    stored = json.loads(found.save(tmp_path / "attack.json").read_text())
    assert any("NaN or infinity" in text for text in stored["warnings"])
    quiet = robust_error(fragile, x, y, Linf(0.2), budget=24, queries=20, warn=False)
    assert any("NaN or infinity" in text for text in quiet.warnings)


def test_points_of_the_target_class_are_no_errors():
    model, x, y = trained()
    attack = PGD(Linf(0.01), steps=5, target=1)
    found = robust_error(model, x, y, Linf(0.01), attack=attack)
    assert found.clean == 0
    assert found.value <= float((y != 1).double().mean())
    assert (
        robust_error(model, x[y == 1], y[y == 1], Linf(0.5), attack=attack).value == 0
    )


def test_mistakes_are_named():
    model, x, y = case()
    with pytest.raises(InputError, match="attack must be"):
        robust_error(model, x, y, L2(1.0), attack=PGD)
    with pytest.raises(InputError, match="confidence must lie"):
        robust_error(model, x, y, L2(1.0), confidence=1.0)
