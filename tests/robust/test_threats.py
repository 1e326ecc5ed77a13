import numpy as np
import pytest
import torch
from robust_cases import points, quadratic_program

from overt import InputError
from overt.robust import L1, L2, Linf
from overt.robust.certificates.exact import farthest
from overt.robust.threats.balls import l2_in_box
from overt.robust.threats.kernels import l2_in_box as compiled
from overt.robust.threats.keyed_random import keys_of, normal, uniform

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
@pytest.mark.parametrize("size", [0.1, 1.0, 30.0, 1e6])
def test_the_compiled_projection_equals_its_reference(dtype, size):
    v = points(50, 30, seed=6).to(dtype) * size
    low, high = (b.to(dtype) for b in boxes(50, 30, seed=7))
    v[0] = 0
    low[1:5], high[1:5] = 0, 0  # no room at all
    for radius in (0.0, 0.4, 2.0, 9.0):
        fast, slow = torch.empty_like(v), torch.empty_like(v)
        compiled(v.numpy(), radius, low.numpy(), high.numpy(), fast.numpy())
        l2_in_box(v, radius, low, high, slow)
        assert torch.allclose(fast, slow, atol=50 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("project", [compiled, l2_in_box], ids=["compiled", "torch"])
def test_a_projection_leaves_the_ball_by_no_more_than_rounding(project, dtype):
    """Newton's last step may end outside by more: what is returned is brought back."""
    v = points(2000, 5, seed=0).to(dtype) * 3
    low, high = -points(2000, 5, seed=1).to(dtype).abs(), points(2000, 5, seed=2).to(dtype).abs()
    out = torch.empty_like(v)
    v, low, high, d = (a if project is l2_in_box else a.numpy() for a in (v, low, high, out))
    project(v, 0.1, low, high, d)
    norm = np.sqrt(np.sum(out.numpy().astype(np.longdouble) ** 2, axis=1))
    assert norm.max() <= 0.1 * (1 + 4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [0.01, 0.5, 40.0])
def test_the_compiled_step_equals_its_reference(dtype, length):
    x = points(40, 9, seed=1).to(dtype).clamp(-1, 1)
    low, high = -torch.linspace(1, 2, 9), torch.linspace(1, 2, 9)
    region = L2(0.7, (low, high)).region(x)
    g = points(40, 9, seed=2).to(dtype)
    g[0], g[1, 3], g[2], g[3], g[4] = 0, torch.nan, g[2] * 1e-30, g[3] * 1e30, torch.inf
    start = region.project(points(40, 9, seed=3).to(dtype))
    for size in (length, length * torch.rand(40, 1, dtype=dtype)):
        fast, slow = start.clone(), start.clone()
        moved_fast, moved_slow = torch.empty_like(x), torch.empty_like(x)
        region.advance(fast, g.clone(), size, moved_fast)
        region.climb(slow, region.threat.ascent(g.clone(), region.box), size, moved_slow)
        slack = 50 * torch.finfo(dtype).eps
        assert torch.allclose(fast, slow, atol=slack)
        assert torch.allclose(moved_fast, moved_slow, atol=slack)
        assert torch.allclose(fast[[0, 1, 4]], start[[0, 1, 4]], atol=slack)
        assert float((fast - start)[2:4].abs().amax(1).min()) > 1e-4


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
    best = farthest(g, threat, box)
    gain = (g * best).sum(1)
    if not boxed:
        assert torch.allclose(gain, threat.radius * threat.dual(g))
        assert torch.allclose((g * step).sum(1), threat.dual(g))
    rng = np.random.default_rng(7)
    for _ in range(200):
        other = threat.project(torch.from_numpy(rng.normal(size=g.shape)) * 3, box)
        assert bool(((g * other).sum(1) <= gain + 1e-9).all())


@pytest.mark.parametrize("size", [0.0, 1e-300, 1e-30, 1.0, 1e30])
def test_direction_survives_tiny_and_huge_gradients(size):
    g = points(4, 5, seed=8) * size
    step = L2(1.0).ascent(g.clone(), None)
    assert torch.allclose(L2(1.0).size(step), torch.full((4,), float(size > 0)).double())


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


def test_draws_belong_to_the_point_and_have_the_right_moments():
    x = points(3000, 4, seed=10)
    like = torch.zeros(1, dtype=torch.float64)
    keys = keys_of(x, seed=0)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    assert torch.equal(uniform(keys, 6, like)[order], uniform(keys_of(x[order], 0), 6, like))
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
        (lambda: L2(1.0, (0.0, 1.0)).within(torch.tensor([[2.0]])), "must contain the inputs"),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_bounds_from_the_data_and_bounds_for_each_feature():
    x = torch.tensor([[0.0, 2.0], [1.0, 5.0]])
    assert L2(1.0, "data").within(x).bounds == (0.0, 5.0)
    low, high = torch.tensor([0.0, 2.0]), torch.tensor([1.0, 5.0])
    box = Linf(9.0, (low, high)).region(x).box
    assert torch.equal(box[0], torch.tensor([[0.0, 0.0], [-1.0, -3.0]]))
    assert torch.equal(box[1], torch.tensor([[1.0, 3.0], [0.0, 0.0]]))
