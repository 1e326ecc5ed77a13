import copy
import dataclasses
from itertools import combinations

import numpy as np
import pytest
import torch
from helpers import assert_mean_within_standard_errors
from robust_cases import points, quadratic_program

from overt import InputError
from overt.robust import (
    L0,
    L1,
    L2,
    PGD,
    Linf,
    minimum_distance,
    robust_error,
    strongest,
)
from overt.robust.keyed_random import keys_of, normal, uniform

NORMS = {L1: 1, L2: 2, Linf: "inf"}


def boxes(n, width, seed):
    rng = np.random.default_rng(seed)
    low, high = -rng.uniform(0, 1, (n, width)), rng.uniform(0, 1, (n, width))
    low[:, :2] = 0  # inputs that lie on their bounds
    high[:, 2:4] = 0
    return torch.from_numpy(low), torch.from_numpy(high)


@pytest.mark.parametrize("boxed", [False, True])
@pytest.mark.parametrize("radius", [0.05, 0.7, 2.5, 50.0])
@pytest.mark.parametrize("threat", [L1, L2, Linf])
def test_projection_equals_a_quadratic_program(threat, radius, boxed):
    v = points(6, 7, seed=3) * torch.tensor([0.1, 0.5, 1.0, 2.0, 5.0, 9.0])[:, None]
    box = boxes(6, 7, seed=4) if boxed else None
    d = threat(radius).project(v, box)
    for i in range(len(v)):
        limits = None if box is None else (box[0][i].numpy(), box[1][i].numpy())
        oracle = quadratic_program(v[i].numpy(), NORMS[threat], radius, limits)
        assert np.abs(d[i].numpy() - oracle).max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_projection_leaves_the_ball_by_no_more_than_rounding(dtype):
    """Newton's last step may end outside by more: what is returned is brought back."""
    v = points(2000, 5, seed=0).to(dtype) * 3
    low, high = (
        -points(2000, 5, seed=1).to(dtype).abs(),
        points(2000, 5, seed=2).to(dtype).abs(),
    )
    d = L2(0.1).project(v, (low, high))
    norm = np.sqrt(np.sum(d.numpy().astype(np.longdouble) ** 2, axis=1))
    assert norm.max() <= 0.1 * (1 + 4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("threat", [L1, L2, Linf])
def test_steps_along_gradients_of_any_size(threat):
    """A step neither overflows nor vanishes with the gradient; without one a point stays."""
    x = points(5, 9, seed=1).float().clamp(-1, 1)
    region = threat(0.7, (-2.0, 2.0)).region(x)
    g = points(5, 9, seed=2).float()
    g[0], g[1], g[2], g[3, 3] = 0, g[1] * 1e-30, g[2] * 1e30, torch.nan
    delta, moved = torch.zeros_like(x), torch.empty_like(x)
    region.steepest_step(delta, g.clone(), 0.5, moved)
    sizes = region.threat.size(delta)
    assert sizes[0] == 0
    assert torch.isfinite(delta).all()
    assert sizes[[1, 2, 4]].tolist() == pytest.approx([0.5] * 3, rel=1e-5)
    assert torch.equal(moved, x + delta)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threat", [L1(0.8), L2(0.8), Linf(0.8)])
def test_projection_is_feasible_idempotent_and_keeps_what_is_allowed(threat, dtype):
    v = points(300, 40, seed=1).to(dtype) * 3
    low, high = (b.to(dtype) for b in boxes(300, 40, seed=2))
    slack = 10 * torch.finfo(dtype).eps
    assert bool((threat.project(torch.zeros_like(v), (low, high)) == 0).all())
    for box in (None, (low, high)):
        d = threat.project(v, box)
        assert float(threat.size(d).max()) <= threat.radius * (1 + slack)
        assert torch.allclose(threat.project(d, box), d, atol=20 * slack)
        if box is not None:
            assert bool(((d >= low) & (d <= high)).all())
            tiny = d * 0.5  # strictly inside everything
            assert torch.allclose(threat.project(tiny, box), tiny, atol=slack)


@pytest.mark.parametrize("boxed", [False, True])
@pytest.mark.parametrize("threat", [L1(1.3), L2(1.3), Linf(1.3)])
def test_steepest_direction_and_dual_norm(threat, boxed):
    g = points(50, 9, seed=5)
    box = boxes(50, 9, seed=6) if boxed else None
    step = threat.ascent(g.clone(), box)
    assert float(threat.size(step).max()) <= 1 + 1e-12
    best = threat.linear_argmax(g, box)
    gain = (g * best).sum(1)
    if not boxed:
        assert torch.allclose(gain, threat.radius * threat.dual(g))
        assert torch.allclose((g * step).sum(1), threat.dual(g))
    rng = np.random.default_rng(7)
    for _ in range(200):
        other = threat.project(torch.from_numpy(rng.normal(size=g.shape)) * 3, box)
        assert bool(((g * other).sum(1) <= gain + 1e-9).all())


@pytest.mark.parametrize("size", [0.0, 1e-300, 1e-161, 1e-30, 1.0, 1e30, 1e200])
def test_direction_survives_tiny_and_huge_gradients(size):
    g = points(4, 5, seed=8) * size
    step = L2(1.0).ascent(g.clone(), None)
    assert torch.allclose(
        L2(1.0).size(step), torch.full((4,), float(size > 0)).double()
    )


@pytest.mark.parametrize("threat", [L1(1.0), L2(1.0), Linf(1.0)])
def test_direction_is_finite_where_the_gradient_is_not(threat):
    g = points(4, 5, seed=8)
    g[1], g[2, 0], g[3, 1] = torch.nan, torch.nan, torch.inf
    step = threat.ascent(g, None)
    assert bool(torch.isfinite(step).all())
    assert float(threat.size(step[:1])) == pytest.approx(1)


@pytest.mark.parametrize("threat", [L1(2.0), L2(2.0), Linf(2.0)])
def test_random_starts_are_uniform_in_the_ball(threat):
    n, width = 4000, 5
    keys = keys_of(points(n, width, seed=9), seed=1)
    d = threat.draw(keys, width, torch.zeros(1, dtype=torch.float64))
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


@pytest.mark.parametrize("radius", [1, 2, 4])
def test_few_changed_coordinates_against_all_choices_of_them(radius):
    v, g = points(5, 4, seed=3), points(5, 4, seed=5)
    low, high = boxes(5, 4, seed=4)
    threat = L0(radius, bounds=(-2.0, 2.0))
    d, step = threat.project(v, (low, high)), threat.ascent(g.clone(), (low, high))
    chosen = torch.zeros(0, 4).double()
    for kept in combinations(range(4), radius):
        row = torch.zeros(1, 4).double()
        row[0, list(kept)] = 1
        chosen = torch.cat([chosen, row])
    nearest = v.clamp(low, high)[None] * chosen[:, None]
    assert torch.allclose(((d - v) ** 2).sum(1), ((nearest - v) ** 2).sum(2).amin(0))
    ends = torch.where(g > 0, high, low)[None] * chosen[:, None]
    assert torch.allclose((g * step).sum(1) * radius, (g * ends).sum(2).amax(0))
    for found in (d, step * radius):
        assert bool(((found >= low) & (found <= high)).all())
        assert int((found != 0).sum(1).max()) <= radius


def test_few_coordinates_are_drawn_uniformly_at_the_ends_of_the_box():
    x = torch.rand(3000, 5, dtype=torch.float64)
    d = L0(2, bounds=(0.0, 1.0)).region(x).draw(seed=3)
    moved = x + d
    changed = (d != 0).double()
    assert bool((changed.sum(1) == 2).all())
    assert bool(
        (((moved - 0).abs() < 1e-12) | ((moved - 1).abs() < 1e-12))[d != 0].all()
    )
    assert_mean_within_standard_errors(changed.numpy(), np.full(5, 0.4))
    assert_mean_within_standard_errors((d > 0).double().numpy(), np.full(5, 0.2))


@pytest.mark.parametrize("threat", [L1(2.0), L2(2.0), Linf(2.0)])
def test_extreme_points_have_the_radius_and_no_preference(threat):
    region = threat.region(points(2000, 4, seed=9))
    d = region.draw(seed=1, extreme=True)
    assert torch.allclose(threat.size(d), torch.full((2000,), 2.0).double())
    assert_mean_within_standard_errors(d.numpy(), np.zeros(4))
    assert_mean_within_standard_errors((d**2).numpy(), np.full(4, float((d**2).mean())))
    corners = {"l1": 1, "linf": 4}.get(threat.name)
    assert corners is None or bool(
        (((d.abs() - 2).abs() < 1e-9).sum(1) == corners).all()
    )


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
    assert region.coarse == (size > 1)


def test_draws_belong_to_the_point_and_have_the_right_moments():
    x = points(3000, 4, seed=10)
    like = torch.zeros(1, dtype=torch.float64)
    keys = keys_of(x, seed=0)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    assert torch.equal(
        uniform(keys, 6, like)[order], uniform(keys_of(x[order], 0), 6, like)
    )
    assert not torch.equal(uniform(keys, 6, like), uniform(keys_of(x, 1), 6, like))
    z = normal(keys, 7, like)
    error = 1 / np.sqrt(z.numel())
    assert abs(float(z.mean())) <= 5 * error
    assert abs(float((z**2).mean()) - 1) <= 5 * np.sqrt(2) * error
    assert abs(float((z**4).mean()) - 3) <= 5 * np.sqrt(96) * error


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: L2(-1.0), "radius"),
        (lambda: L2(1.0, (1.0, 0.0)), "low below high"),
        (lambda: L2(1.0, "unit"), "bounds must be None"),
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
            "must be numbers or arrays",
        ),
        (
            lambda: L2(1.0, (0.0, [[1, 1]] * 3)).input_bounds(torch.ones(2, 2)),
            "must be numbers or arrays",
        ),
        (lambda: L0(1.0).input_bounds(torch.ones(2, 2)), "L0 must have bounds"),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_bounds_from_the_data_and_bounds_for_each_feature():
    x = torch.tensor([[0.0, 2.0], [1.0, 5.0]])
    assert [part.item() for part in L2(1.0, "data").input_bounds(x)] == [0.0, 5.0]
    low, high = torch.tensor([0.0, 2.0]), torch.tensor([1.0, 5.0])
    box = Linf(9.0, (low, high)).region(x).delta_bounds
    each = Linf(9.0, (low.expand(2, 2), high.expand(2, 2))).region(x).delta_bounds
    assert all(torch.equal(a, b) for a, b in zip(box, each, strict=True))
    assert torch.equal(box[0], torch.tensor([[0.0, 0.0], [-1.0, -3.0]]))
    assert torch.equal(box[1], torch.tensor([[1.0, 3.0], [0.0, 0.0]]))


def test_moved_points_are_stored_no_farther_than_their_moves():
    x = torch.tensor([[1.0, 1.0, 1.0, -2.0]])
    eps = torch.finfo(torch.float32).eps
    delta = torch.tensor([[0.5, 0.6 * eps, -0.25, 3.0]])
    region = Linf(5.0, (-2.0, 1.25)).region(x)
    assert region.store(delta).tolist() == [[1.25, 1.0, 0.75, 1.0]]
    free = Linf(5.0).region(x)
    assert free.store(delta).tolist() == [[1.5, 1.0, 0.75, 1.0]]  # what is exact stays
    assert free.perturbed(delta).tolist() == (x + delta).tolist()
    for kind, spread in ((L1, 4.0), (L2, 2.0), (Linf, 1.0)):
        edge = spread * 2.0 * eps / 1e-4
        assert kind(0.99 * edge).region(x).coarse
        assert not kind(1.01 * edge).region(x).coarse
    tight = Linf(4 * eps).region(x)
    assert tight.coarse
    assert torch.equal(tight.perturbed(delta * eps), tight.store(delta * eps))
    assert not L0(1, (-2e30, 2e30)).region(1e30 * x).coarse
    some = region.take(torch.tensor([0]))
    assert torch.equal(some.x, x)
    assert region.with_radius(3.0).threat.radius == 3.0


@pytest.mark.parametrize("kind", [L1, L2, Linf])
def test_settled_points_are_inside_in_exact_numbers(kind):
    x = points(50, 7, seed=8).float() * 100
    region = kind(1e-3).region(x)
    delta = region.project(points(50, 7, seed=9).float())
    moved = region.store_exactly(delta)
    size = kind(1.0).size(moved.double() - x.double())
    assert float(size.max()) <= 1e-3
    inside = region.store_exactly(0.5 * delta)
    assert torch.equal(inside, region.store(0.5 * delta))


@pytest.mark.parametrize("radius", [0.0, 0.9, 1.9])
def test_part_of_a_coordinate_is_none(radius):
    v, count = points(4, 3, seed=1), int(radius)
    for box in (None, (-torch.ones(4, 3).double(), torch.ones(4, 3).double())):
        threat = L0(radius, (-9.0, 9.0))
        for found in (threat.project(v, box), threat.ascent(v.clone(), box)):
            assert ((found != 0).sum(1) == count).all()
    assert ((L0(radius, (-9.0, 9.0)).region(v).draw(1) != 0).sum(1) == count).all()


THREATS = [
    L0(2, (0.0, 1.0)),
    L1(0.8, (0.0, 1.0)),
    L2(0.5),
    L2(0.5, (0.0, 1.0)),
    Linf(0.3),
]


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


@pytest.mark.parametrize("threat", THREATS[1:], ids=str)
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
