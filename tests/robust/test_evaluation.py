import dataclasses

import numpy as np
import pytest
import torch
from robust_cases import blobs, points, small_mlp
from scipy.stats import binom

from overt._intervals import clopper_pearson
from overt.robust import (
    L1,
    L2,
    PGD,
    Linf,
    Targeted,
    adversarial_train,
    exact,
    robust_error,
    strongest,
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
    assert np.mean(curve.smallest <= 0.25) == curve.errors[1]
    own = robust_error(model, x, y, L2(0.5), attack=PGD(L2(9.0), steps=20), warn=False)
    assert own.value <= one.value + 0.01


def test_intervals_cover():
    counts = np.arange(41)
    low, high = clopper_pearson(counts, 40, 0.9)
    for p in (0.0, 0.03, 0.5, 1.0):
        assert binom.pmf(counts, 40, p)[(low <= p) & (p <= high)].sum() >= 0.9


def results():
    """One of each kind of result, with tensors, arrays, NaN and infinity."""
    model, x = small_mlp(dtype=torch.float32), points(30, 6, dtype=torch.float32)
    y = model(x).argmax(1)
    weight = model[0].weight.detach()[:3]
    return {
        "attack": PGD(L2(0.6), steps=9)(model, x, y),
        "strongest": strongest(model, x, y, L2(0.6), budget=30),
        "evaluation": robust_error(model, x, y, L2(0.5), radii=[0.1], budget=30),
        "exact": exact.linear(weight, None, x, y, L2(0.1)),
        "training": adversarial_train(
            small_mlp(2, dtype=torch.float32), blobs(), None, epochs=2
        ),
    }


@pytest.mark.parametrize(("name", "result"), results().items())
def test_results_are_compared_saved_and_loaded(name, result, tmp_path):
    again = dataclasses.replace(result)
    assert again == result
    assert result != dataclasses.replace(result, **{next(iter(vars(result))): 7.5})
    assert result != name
    loaded = type(result).load(result.save(tmp_path / "result.npz"))
    assert loaded == result
    assert not any(isinstance(value, torch.Tensor) for value in vars(loaded).values())
    loaded = type(result).load(result.save(tmp_path / "result.json"))
    assert loaded == result


def test_a_loaded_attack_still_answers(tmp_path):
    model, x = small_mlp(), points(30, 6)
    found = PGD(L2(0.6), steps=9)(model, x, model(x).argmax(1))
    for suffix in ("npz", "json"):
        loaded = type(found).load(found.save(tmp_path / f"found.{suffix}"))
        assert isinstance(loaded.x, np.ndarray)
        assert loaded.robust_accuracy == found.robust_accuracy
        assert repr(loaded) == repr(found)


def test_threats_and_attacks_that_hold_arrays_are_compared_by_value():
    low, high = torch.zeros(3), torch.ones(3)
    for kind in (L1, L2, Linf):
        assert kind(1.0, (low, high)) == kind(1.0, (low.numpy().copy(), high.clone()))
        assert kind(1.0, (low, high)) != kind(1.0, (low, 2 * high))
        assert kind(1.0, (low, high)) != kind(1.0)
        assert hash(kind(1.0, (low, high))) == hash(kind(1.0, (low.clone(), high)))
    assert L1(1.0) != L2(1.0)
    targets = torch.tensor([0, 1, 2])
    one, same, other = (
        PGD(L2(1.0), criterion=Targeted(t)) for t in (targets, targets + 0, 1)
    )
    assert one == same
    assert one != other
