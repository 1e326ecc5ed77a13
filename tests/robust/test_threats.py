"""Geometry of threats, against convex programs and exact numbers."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from helpers import assert_mean_within_standard_errors
from robust_cases import (
    points,
    quadratic_program,
)
from torch import nn

from overt import InputError
from overt.robust import (
    L1,
    L2,
    PGD,
    Linf,
    minimum_distance,
    robust_error,
    strongest,
)

NORMS = {L1: 1, L2: 2, Linf: "inf"}


def boxes(n, width, seed):
    rng = np.random.default_rng(seed)
    low, high = -rng.uniform(0, 1, (n, width)), rng.uniform(0, 1, (n, width))
    low[:, :2] = 0  # inputs that lie on their bounds
    high[:, 2:4] = 0
    return torch.from_numpy(low), torch.from_numpy(high)


def regions(threat, x, box):
    """The region of points at 0 with the limits of a box."""
    if box is None:
        return threat.region(torch.zeros_like(x))
    return dataclasses.replace(threat, bounds=box).region(torch.zeros_like(x))


@pytest.mark.parametrize("boxed", [False, True])
@pytest.mark.parametrize("radius", [0.05, 0.7, 2.5, 50.0])
@pytest.mark.parametrize("threat", [L1, L2, Linf])
def test_projection_equals_a_quadratic_program(threat, radius, boxed):
    v = points(6, 7, seed=3) * torch.tensor([0.1, 0.5, 1.0, 2.0, 5.0, 9.0])[:, None]
    box = boxes(6, 7, seed=4) if boxed else None
    region = regions(threat(radius), v, box)
    d = region.project(v)
    for i in range(len(v)):
        limits = None if box is None else (box[0][i].numpy(), box[1][i].numpy())
        oracle = quadratic_program(v[i].numpy(), NORMS[threat], radius, limits)
        assert np.abs(d[i].numpy() - oracle).max() < 1e-6
    radii = radius * torch.linspace(0.5, 2, 6).double()[:, None]
    each = region.with_radius(radii).project(v)
    for i in range(len(v)):
        own = regions(threat(float(radii[i])), v, box).project(v)[i]
        assert torch.allclose(each[i], own, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threat", [L1(0.8), L2(0.8), L2(0.1), Linf(0.8)], ids=str)
def test_projection_is_feasible_idempotent_and_keeps_what_is_allowed(threat, dtype):
    v = points(2000, 12, seed=1).to(dtype) * 3
    low, high = (b.to(dtype) for b in boxes(2000, 12, seed=2))
    slack = 10 * torch.finfo(dtype).eps
    for box in (None, (low, high)):
        region = regions(threat, v, box)
        assert bool((region.project(torch.zeros_like(v)) == 0).all())
        d = region.project(v)
        assert float(threat.size(d).max()) <= threat.radius * (1 + slack)
        assert torch.allclose(region.project(d), d, atol=20 * slack)
        if box is not None:
            assert bool(((d >= low) & (d <= high)).all())
            tiny = d * 0.5  # strictly inside everything
            assert torch.allclose(region.project(tiny), tiny, atol=slack)


@pytest.mark.parametrize("boxed", [False, True])
@pytest.mark.parametrize("threat", [L1(1.3), L2(1.3), Linf(1.3)], ids=str)
def test_steepest_direction_and_dual_norm(threat, boxed):
    g = points(50, 9, seed=5)
    region = regions(threat, g, boxes(50, 9, seed=6) if boxed else None)
    step = region.ascent(g)
    assert float(threat.size(step).max()) <= 1 + 1e-12
    gain = (g * region.linear_argmax(g)).sum(1)
    if not boxed:
        assert torch.allclose(gain, threat.radius * threat.dual(g))
        assert torch.allclose((g * step).sum(1), threat.dual(g))
    rng = np.random.default_rng(7)
    for _ in range(200):
        other = region.project(torch.from_numpy(rng.normal(size=g.shape)) * 3)
        assert bool(((g * other).sum(1) <= gain + 1e-9).all())


@pytest.mark.parametrize("threat", [L1(1.0), L2(1.0), Linf(1.0)], ids=str)
@pytest.mark.parametrize("size", [0.0, 1e-300, 1e-161, 1e-30, 1.0, 1e30, 1e200])
def test_directions_survive_gradients_of_any_size(threat, size):
    g = points(4, 5, seed=8) * size
    step = threat.region(torch.zeros_like(g)).ascent(g)
    assert torch.allclose(threat.size(step), torch.full((4,), float(size > 0)).double())
    g[1], g[2, 0], g[3, 1] = torch.nan, torch.nan, torch.inf
    assert bool(torch.isfinite(threat.region(torch.zeros_like(g)).ascent(g)).all())


@pytest.mark.parametrize("threat", [L1(2.0), L2(2.0), Linf(2.0)], ids=str)
def test_random_starts_are_uniform_in_the_ball(threat):
    n, width = 4000, 5
    d = threat.region(points(n, width, seed=9)).draw(1, shared=False)
    size = threat.size(d)
    assert float(size.max()) <= 2
    # P(|d| <= r) = (r / radius)^width in every norm; mean direction is zero.
    share = (size / 2) ** width
    assert abs(float(share.mean()) - 0.5) <= 5 * np.sqrt(1 / 12 / n)
    assert bool((d.mean(0).abs() <= 5 * d.std(0) / np.sqrt(n)).all())
    # E[d_i d_j] of a uniform point: the same for all coordinates, which are uncorrelated.
    second = {
        "l1": 2 / ((width + 1) * (width + 2)),
        "l2": 1 / (width + 2),
        "linf": 1 / 3,
    }
    products = (d[:, :, None] * d[:, None, :]).numpy()
    expected = 4 * second[threat.name] * np.eye(width)
    assert_mean_within_standard_errors(products, expected)


@pytest.mark.parametrize("threat", [L1(2.0), L2(2.0), Linf(2.0)], ids=str)
def test_extreme_points_have_the_radius_and_no_preference(threat):
    region = threat.region(points(2000, 4, seed=9))
    d = region.draw(seed=1, extreme=True, shared=False)
    assert torch.allclose(threat.size(d), torch.full((2000,), 2.0).double())
    assert_mean_within_standard_errors(d.numpy(), np.zeros(4))
    shared = region.draw(seed=1, extreme=True)
    assert torch.equal(shared, shared[:1].expand_as(shared))
    assert torch.equal(shared[:7], region.take(torch.arange(7)).draw(1, extreme=True))


@pytest.mark.parametrize("size", [1.0, 300.0, 1e5])
@pytest.mark.parametrize("threat", [L1, L2, Linf])
def test_what_is_stored_is_within_the_radius_in_exact_numbers(threat, size):
    """Single precision: x + delta is rounded, and the distance of what is stored counts."""
    x = (size * torch.rand(200, 7, generator=torch.Generator().manual_seed(1))).float()
    given = threat(0.3, bounds=(0.0, size))
    region = given.region(x)
    delta = region.project(
        torch.randn(200, 7, generator=torch.Generator().manual_seed(2))
    )
    stored = region.store_exactly(delta)
    away = stored.double() - x.double()
    assert float(given.size(away).max()) <= 0.3
    assert bool(((stored >= 0) & (stored <= size)).all())
    slack = 8 * size * torch.finfo(torch.float32).eps
    assert float((away - delta).abs().max()) <= slack + 1e-5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: L2(-1.0), "radius"),
        (lambda: L2(1.0, (1.0, 0.0)), "low below high"),
        (lambda: L2(1.0, "unit"), "bounds must be None"),
        (lambda: L2(1e30).region(torch.ones(2, 2)), "radius must fit"),
        (lambda: L2(1.0, (0.0, 1.0, 2.0)), "pair"),
        (
            lambda: L2(1.0, (0.0, 1.0)).input_bounds(torch.tensor([[2.0]])),
            "must contain the inputs",
        ),
        (
            lambda: L2(1.0, (0.0, 1.0)).input_bounds(torch.tensor([[-0.1]])),
            "must contain the inputs",
        ),
        (
            lambda: L2(1.0, (0.0, [1.0, 2.0])).input_bounds(torch.tensor([[0.5, 3.0]])),
            "contain the inp",
        ),
        (
            lambda: L2(1.0, ([0.0, 1.0], 9.0)).input_bounds(torch.tensor([[0.5, 0.5]])),
            "contain the inp",
        ),
        (
            lambda: L2(1.0, (0.0, 1.0)).input_bounds(torch.tensor([[0.5], [2.0]])),
            "contain the inputs",
        ),
        (lambda: L2(1.0, (0.5, 0.5)), "low below high"),
        (
            lambda: L2(1.0, ([0, 0, 0], 1.0)).input_bounds(torch.ones(2, 2)),
            "must be a number or an array",
        ),
        (
            lambda: L2(1.0, (0.0, [[1, 1]] * 3)).input_bounds(torch.ones(2, 2)),
            "must be a number or an array",
        ),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


THREATS = [L1(0.8, (0.0, 1.0)), L2(0.5), L2(0.5, (0.0, 1.0)), Linf(0.3)]


@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_immutable_features_stay_and_the_rest_is_attacked_as_before(threat):
    """Fixing features is the same as attacking the model of the others."""
    torch.manual_seed(0)
    weight = torch.randn(3, 6).double()
    x = torch.rand(30, 6).double()
    y = (x @ weight.T).argmax(1)
    free = torch.tensor([True, False, True, True, False, True])
    masked = dataclasses.replace(threat, mutable=free)
    found = strongest(
        lambda v: v @ weight.T, x, y, masked, budget=60, queries=20, warn=False
    )
    assert torch.equal(found.x[:, ~free], x[:, ~free])

    single = [
        strongest(
            lambda v, i=i: v @ weight[:, free].T + x[i, ~free] @ weight[:, ~free].T,
            x[[i]][:, free],
            y[[i]],
            threat,
            budget=60,
            queries=20,
            warn=False,
        ).success.item()
        for i in range(30)
    ]
    assert abs(sum(single) - int(found.success.sum())) <= 1
    assert 0 < sum(single) < 30


@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_bounds_and_masks_of_single_points_hold(threat):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    )
    x = torch.rand(40, 6)
    width = 0.2 * torch.rand(40, 6)
    low, high = x - width, x + width
    free = torch.rand(40, 6) > 0.3
    given = dataclasses.replace(threat, bounds=(low, high), mutable=free)
    y = model(x).argmax(1)
    for batch_size in (7, 1024):
        found = PGD(given, steps=10, batch_size=batch_size)(model, x, y, warn=False)
        assert bool(((found.x >= low) & (found.x <= high)).all())
        assert torch.equal(found.x[~free], x[~free])
        assert bool((found.x != x).any())
    near = minimum_distance(model, x, y, given, steps=20, warn=False)
    assert bool(((near.x >= low) & (near.x <= high)).all())
    proved = robust_error(
        model, x, y, given, certify=True, budget=24, queries=0, warn=False
    )
    assert proved.upper == proved.value  # all points are decided
    with pytest.raises(InputError, match="mutable must be"):
        dataclasses.replace(threat, mutable=free[:, :5]).region(x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("threat", [L1(0.5), L2(0.2), Linf(0.02)], ids=str)
def test_half_precision_points_are_stored_inside_and_counted_as_stored(threat, dtype):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(20, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)
    )
    x = torch.rand(60, 20).to(dtype)
    half = copy.deepcopy(model).to(dtype)
    y = half(x).argmax(1)
    found = strongest(half, x, y, threat, budget=60, queries=50, warn=False)
    assert found.x.dtype == dtype
    assert bool((threat.size((found.x.double() - x.double())) <= threat.radius).all())
    assert torch.equal(half(found.x).argmax(1) != y, found.success)
    assert not any("rounding takes out" in text for text in found.warnings)


@pytest.mark.parametrize(("kind", "radius"), [(L1, 0.1), (L2, 0.05), (Linf, 0.02)])
def test_inputs_far_from_zero_are_no_safer(kind, radius):
    torch.manual_seed(0)
    model = nn.Linear(10, 2)
    x = 1000 + torch.rand(200, 10)
    with torch.no_grad():
        model.bias -= model(x).mean(0)  # so that the boundary passes through the points
    y = model(x).argmax(1)
    single = PGD(kind(radius), steps=20)(model, x, y)
    twin = nn.Linear(10, 2).double()
    twin.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
    double = PGD(kind(radius), steps=20)(twin, x.double(), twin(x.double()).argmax(1))
    assert 0.2 < double.robust_accuracy < 0.9
    assert abs(single.robust_accuracy - double.robust_accuracy) <= 0.05
    size = kind(radius).size(single.x.double() - x.double())
    assert float(size.max()) <= radius  # as stored, in exact numbers


def test_threats_and_attacks_that_hold_arrays_are_compared_by_value():
    low, high = torch.zeros(3), torch.ones(3)
    for kind in (L1, L2, Linf):
        assert kind(1.0, (low, high)) == kind(1.0, (low.numpy().copy(), high.clone()))
        assert kind(1.0, (low, high)) != kind(1.0, (low, 2 * high))
        assert kind(1.0, (low, high)) != kind(1.0)
        assert hash(kind(1.0, (low, high))) == hash(kind(1.0, (low.clone(), high)))
    assert L1(1.0) != L2(1.0)
    targets = torch.tensor([0, 1, 2])
    one, same, other = (PGD(L2(1.0), target=t) for t in (targets, targets + 0, 1))
    assert one == same
    assert one != other
