"""What users hand over: arrays of every kind, models that are constant, broken or squeezed."""

import numpy as np
import pytest
import torch
from robust_cases import points, small_mlp
from torch import nn

from overt import InputError
from overt.robust import (
    FGSM,
    L1,
    L2,
    PGD,
    Effective,
    Linf,
    RobustnessWarning,
    Targeted,
    robust_error,
    strongest,
)
from overt.robust.losses import LOSSES

ATTACK = PGD(L2(0.8), steps=8)


class Frame:
    """Like a data frame: not an array, but ready to become one."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return self.values


class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def forward(self, x):
        return self.logits.expand(len(x), -1)


def case(n=30):
    model, x = small_mlp(), points(n, 6)
    return model, x, model(x).argmax(1)


def test_arrays_of_every_kind_give_the_same():
    model, x, y = case()
    wanted = ATTACK(model, x, y)
    frozen = x.numpy().copy()
    frozen.flags.writeable = False
    backwards = np.ascontiguousarray(x.numpy()[::-1])[::-1]
    foreign = x.numpy().astype(">f8"), y.numpy().astype(">i4")
    for inputs, classes in (
        (frozen, y.numpy()),
        (backwards, np.ascontiguousarray(y.numpy()[::-1])[::-1]),
        foreign,
        (x.numpy().astype(np.longdouble), y.double()),
        (Frame(x.numpy()), Frame(y.numpy())),
        (x.tolist(), y.tolist()),
    ):
        found = ATTACK(model, inputs, classes)
        assert torch.equal(found.x, wanted.x)
        assert torch.equal(found.success, wanted.success)
    with torch.inference_mode():
        assert torch.equal(ATTACK(model, x, y).x, wanted.x)


@pytest.mark.parametrize(
    "attack", [ATTACK, FGSM(Linf(0.1)), PGD(L1(1.0, "data"), steps=3)]
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


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_what_is_not_a_number_is_no_success(loss):
    model, x, y = case()

    def fragile(v):
        moved = (v - x[: len(v)]).abs().amax(1, keepdim=True) > 0
        return torch.where(moved, torch.nan, model(v))

    with pytest.warns(
        RobustnessWarning, match="NaN or infinity at perturbations of 100.0%"
    ):
        found = PGD(L2(0.8), steps=3, loss=loss, restarts=2, early_exit=False)(
            fragile, x, y
        )
    assert not found.success.any()
    assert found.broken.all()
    assert torch.equal(found.x, x)


def test_models_that_squeeze_may_end_with_a_single_point():
    x = points(12, 6)
    for classes in (1, 3):
        model = small_mlp(classes=classes)
        y = (model(x)[:, 0] > 0).long() if classes == 1 else model(x).argmax(1)
        wanted = ATTACK(model, x, y)
        one_by_one = PGD(L2(0.8), steps=8, batch_size=1)
        found = one_by_one(lambda v, model=model: model(v).squeeze(), x, y)
        assert torch.equal(found.success, wanted.success)


def test_logits_may_have_another_number_format():
    model, x, y = case()
    half = PGD(L2(0.8), steps=8)(lambda v: model(v).bfloat16(), x, y)
    assert half.x.dtype == x.dtype
    assert half.success.sum() >= 0.8 * ATTACK(model, x, y).success.sum()


def test_targets_of_single_points_follow_them():
    model, x, y = case(40)
    target = (y + 1) % 3
    found = strongest(model, x, y, L2(0.8), criterion=Targeted(target), budget=120)
    assert torch.equal(found.success, model(found.x).argmax(1) == target)
    alone = PGD(L2(0.8), steps=30, criterion=Targeted(target))
    assert found.success.sum() >= 0.9 * alone(model, x, y).success.sum()
    curve = robust_error(model, x, y, L2(0.8), radii=[0.2, 0.5], attack=alone)
    assert curve.value == pytest.approx(
        float(alone(model, x, y).success.double().mean()), abs=0.05
    )


def test_all_losses_of_the_ensemble_are_of_one_kind():
    model, x, y = case()
    for criterion, loss in (
        (None, "away"),
        (Targeted(1), "toward"),
        (Effective(0.1), "away"),
    ):
        given = {} if criterion is None else {"criterion": criterion}
        found = strongest(model, x, y, L2(0.6), budget=60, **given)
        aim = torch.ones_like(y) if loss == "toward" else y
        wanted = getattr(LOSSES["reflected"], loss)(model(found.x), aim)
        assert torch.allclose(found.loss, wanted)


def test_no_gradient_is_spent_at_radius_zero():
    model, x, y = case()
    y = torch.where(torch.arange(30) < 6, (y + 1) % 3, y)
    found = robust_error(model, x, y, L2(0.0), radii=np.zeros(2))
    assert (found.value, found.clean, found.gradients) == (0.2, 0.2, 0)
    found = robust_error(model, x, y, L2(0.5), radii=np.array([0.0, 0.1]), budget=30)
    assert found.gradients <= 2 * 30 * 24
    assert found.errors[0] == found.clean == 0.2
    assert np.array_equal(found.radii, [0.0, 0.1, 0.5])


def test_a_given_start_comes_before_a_random_one():
    model, x, y = case()
    attack = PGD(L2(0.8), steps=1, random_start=True, early_exit=False)
    plain = PGD(L2(0.8), steps=1, early_exit=False)
    start = x + 0.1
    assert torch.equal(
        attack(model, x, y, start=start).x, plain(model, x, y, start=start).x
    )


@pytest.mark.parametrize("kind", [L1, L2, Linf])
def test_bounds_may_be_open_on_a_side_or_fix_a_feature(kind):
    model, x, y = case(60)
    wide = PGD(kind(0.7, (-1e3, 1e3)), steps=10)(model, x, y)
    for bounds in ((-np.inf, np.inf), (-1e3, np.inf), (-np.inf, 1e3)):
        found = PGD(kind(0.7, bounds), steps=10)(model, x, y)
        assert torch.equal(found.success, wide.success)
    x[:, 2] = 0.5
    found = PGD(kind(0.7, (x.amin(0), x.amax(0))), steps=10)(
        model, x, model(x).argmax(1)
    )
    assert torch.equal(found.x[:, 2], x[:, 2])
    assert found.success.any()


@pytest.mark.parametrize("kind", [L1, L2, Linf])
@pytest.mark.parametrize("bounds", [None, (-5.0, 5.0)])
def test_radii_of_every_size(kind, bounds):
    model = small_mlp(dtype=torch.float32)
    x = points(20, 6, dtype=torch.float32).clamp_(-5, 5)
    y = model(x).argmax(1)
    assert not PGD(kind(0.0, bounds), steps=3)(model, x, y).success.any()
    with pytest.warns(RobustnessWarning, match="less than the spacing of the numbers"):
        assert not PGD(kind(1e-12, bounds), steps=3)(model, x, y).success.any()
    for radius in (1e6, 1e30):
        assert PGD(kind(radius, bounds), steps=10)(model, x, y).success.all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": torch.zeros(31)}, "one class for each of the 30 points"),
        ({"y": torch.zeros(3)}, "one class for each of the 30 points"),
        ({"y": ["cat"] * 30}, "y must be a tensor or an array of numbers"),
        ({"y": None}, "y must hold the classes of x"),
        ({"x": [[1.0, 2.0], [1.0]]}, "x must be an array"),
        ({"x": torch.zeros(30, 5)}, r"model must take inputs shaped \(.*, 5\)"),
        ({"threat": 2.0}, "threat must be"),
        ({"model": nn.Linear}, "model must be a torch module or a function"),
        ({"model": "net"}, "model must be a torch module or a function"),
        ({"threat": L2(1.0, (torch.zeros(5), torch.ones(5)))}, "fit one input"),
        ({"threat": L2(1.0, (points(29, 6) - 1, points(29, 6) + 1))}, "fit one input"),
    ],
)
def test_mistakes_are_named(change, message):
    model, x, y = case()
    given = {"model": model, "x": x, "y": y, "threat": L2(1.0)} | change
    for run in (strongest, robust_error):
        with pytest.raises(InputError, match=message):
            run(*given.values(), budget=24)


def test_more_mistakes_are_named():
    model, x, y = case()
    with pytest.raises(InputError, match="attack must be"):
        robust_error(model, x, y, L2(1.0), attack=PGD)
    with pytest.raises(InputError, match="start must be shaped like x"):
        strongest(model, x, y, L2(1.0), start=x[:3])
    with pytest.raises(InputError, match=r"target must hold class numbers, got 1\.5"):
        PGD(L2(1.0), criterion=Targeted(1.5))(model, x, y)
    with pytest.raises(InputError, match="bounds must be"):
        L2(1.0, (None, 1.0))


def test_saturation_depends_on_the_number_format():
    margins = torch.stack([torch.full((3,), 20.0), torch.zeros(3)], 1)
    zero = torch.zeros(3, dtype=torch.long)
    assert LOSSES["cross_entropy"].saturated(margins, zero).all()
    assert not LOSSES["cross_entropy"].saturated(margins.double(), zero).any()
