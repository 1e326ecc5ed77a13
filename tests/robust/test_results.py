"""What attacks return, save, and warn of."""

import dataclasses

import numpy as np
import pytest
import torch
from robust_cases import blobs, points, small_mlp
from torch import nn

from overt.robust import (
    FGSM,
    L1,
    L2,
    PGD,
    Linf,
    RobustnessWarning,
    adversarial_train,
    exact_error,
    robust_error,
    strongest,
)


class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def forward(self, x):
        return self.logits.expand(len(x), -1)


def case(n=30):
    model, x = small_mlp(), points(n, 6)
    return model, x, model(x).argmax(1)


@pytest.mark.parametrize(
    "attack", [PGD(L2(0.8), steps=8), FGSM(Linf(0.1)), PGD(L1(1.0), steps=3)]
)
def test_constant_models_are_reported_with_the_share(attack):
    y = (
        torch.arange(40) % 4 % 3
    )  # half of the points are of class 0, which the model predicts
    with pytest.warns(
        RobustnessWarning, match=r"zero or not a number at 50\.0% of the points"
    ):
        found = attack(Constant(), points(40, 6), y)
    assert torch.equal(found.success, y != 0)
    assert torch.equal(found.flat, y == 0)


def test_the_ensemble_reports_shares_of_all_points():
    y, x = torch.arange(40) % 4 % 3, points(40, 6)
    for run in (strongest, robust_error):
        with pytest.warns(RobustnessWarning, match=r"at 50\.0% of the points") as seen:
            run(lambda v: torch.zeros(len(v), 3), x, y, L2(0.5), budget=24)
        assert [warning.filename for warning in seen] == [__file__]


def test_warnings_name_the_line_that_called():
    model = nn.Linear(2, 2).double()
    with pytest.warns(RobustnessWarning) as seen:
        PGD(Linf(0.1), steps=1)(lambda v: 0 * model(v), points(3, 2), [0, 0, 0])
    assert {w.filename for w in seen} == {__file__}


@pytest.mark.parametrize(
    "attack", [PGD(L2(0.5), steps=2), PGD(L2(0.5), steps=2, normalize=False)]
)
def test_models_without_any_gradient_are_flat(attack):
    """What leaves torch on its way has no gradient at all, and random starts may still fool it."""
    x = torch.tensor([[1.0, 0.0], [0.1, 0.0]]).double()

    def model(v):
        first = v.detach().numpy()[:, 0]
        return torch.from_numpy(np.stack([first, 0 * first], 1))

    found = attack(model, x, [0, 0], warn=False)
    assert found.flat[0].item() is True
    assert (found.success[0].item(), found.gradients) == (False, 4)
    assert torch.equal(model(found.x).argmax(1) != 0, found.success)


def results():
    """One of each kind of result, with tensors, arrays, NaN and infinity."""
    model, x = small_mlp(dtype=torch.float32), points(30, 6, dtype=torch.float32)
    y = model(x).argmax(1)
    return {
        "attack": PGD(L2(0.6), steps=9)(model, x, y),
        "strongest": strongest(model, x, y, L2(0.6), budget=30),
        "evaluation": robust_error(model, x, y, L2(0.5), radii=[0.1], budget=30),
        "exact": exact_error(model, x[:4], y[:4], L2(0.1)),
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
