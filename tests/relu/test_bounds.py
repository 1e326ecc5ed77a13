"""Flows, capacity, retentivity and Rademacher complexity of two-layer ReLU networks."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from overt import CovarianceNoise, DropBlock, Dropout, InputError
from overt.papers.relu_complexity import rademacher
from overt.papers.relu_plane import largest_correlation
from overt.papers.relu_retention import retained_share, retentivity, symmetrize, whiten
from overt.relu import (
    TwoLayer,
    capacity,
    coadaptation,
    escaping_weights,
    flows,
    positive_norm,
    rademacher_lower,
    rademacher_upper,
    risk_bound,
    symmetrized_bound,
)

UNIT = TwoLayer([[1.0]], [[1.0]])


def net_of(rng, inputs=3, width=6, outputs=2):
    return TwoLayer(rng.normal(size=(outputs, width)), rng.normal(size=(inputs, width)))


@pytest.mark.parametrize(
    "noise",
    [
        Dropout(0.4),
        DropBlock(0.4, 2, placement="grid"),
        CovarianceNoise(np.full(6, 0.5), 0.1 * np.eye(6)),
    ],
)
def test_objective_is_the_mean_over_masks(noise):
    rng = np.random.default_rng(0)
    net, X, Y = net_of(rng), rng.normal(size=(5, 3)), rng.normal(size=(5, 2))
    masks = noise.sample(6, 40_000, seed=1) / noise.mean(6)
    hidden = net.activations(X)
    errors = np.mean(
        np.sum((Y - np.einsum("mw,nw,ow->mno", masks, hidden, net.U)) ** 2, axis=2),
        axis=1,
    )
    error = errors.std() / math.sqrt(len(errors))
    assert abs(errors.mean() - net.objective(X, Y, noise)) <= 5 * error


def test_capacity_and_coadaptation():
    rng = np.random.default_rng(1)
    net, X = net_of(rng), rng.normal(size=(50, 3))
    psi = net.flows(X)
    by_hand = [
        np.linalg.norm(net.U[:, i])
        * np.sqrt(np.mean(np.maximum(X @ net.V[:, i], 0) ** 2))
        for i in range(net.width)
    ]
    assert np.allclose(psi, by_hand)
    R = net.penalty(X, Dropout(0.5))
    assert np.sum(psi**2) == pytest.approx(R)
    assert net.capacity(X) <= math.sqrt(net.width * R)
    assert net.coadaptation(X) == pytest.approx(
        net.capacity(X) / math.sqrt(net.width * R)
    )
    assert 1 / math.sqrt(net.width) <= net.coadaptation(X) <= 1
    assert coadaptation(np.ones(9)) == pytest.approx(1)
    assert coadaptation(np.array([0.0, 1e-200, 0.0, 0.0])) == pytest.approx(0.5)
    assert coadaptation(np.zeros(4)) is None
    both = np.concatenate([X, -X])
    assert np.allclose(net.flows(X, symmetrized=True), net.flows(both))


def test_flows_of_tensors_have_gradients():
    U, A = torch.randn(2, 4, requires_grad=True), torch.rand(7, 4)
    psi = flows(U, A)
    psi.sum().backward()
    assert torch.allclose(
        psi.detach(), torch.tensor(flows(U.detach().numpy(), A.numpy()))
    )
    assert U.grad.abs().sum() > 0
    assert capacity(psi.detach()) == pytest.approx(float(psi.detach().sum()))


def test_gradients_of_flows_are_finite_at_dead_units():
    U = torch.ones(1, 3, requires_grad=True)
    V = torch.tensor([[2.0, 0.0, -1.0]], requires_grad=True)
    psi = flows(U, torch.relu(torch.ones(4, 1) @ V))
    psi.sum().backward()
    assert U.grad.tolist() == [[2.0, 0.0, 0.0]]
    assert V.grad.tolist() == [[1.0, 0.0, 0.0]]
    assert capacity(psi) == 2.0  # and no warning for a tensor with a gradient
    assert coadaptation(psi) == pytest.approx(1 / math.sqrt(3))


def test_clipped_error_is_that_of_clipped_predictions():
    net = TwoLayer([[1.0, -1.0]], [[2.0, -3.0]])
    X, y = np.array([[0.1], [3.0], [-0.2], [-4.0]]), np.array([0.5, 1.0, -0.5, 0.0])
    expected = np.mean([(0.2 - 0.5) ** 2, 0.0, (-0.6 + 0.5) ** 2, 1.0])
    assert net.clipped_error(X, y) == pytest.approx(expected)


def test_networks_of_lists_and_tensors():
    from_lists = TwoLayer([[1.0, 2.0]], [[1.0, -1.0]])
    from_tensors = TwoLayer(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, -1.0]]))
    for net in (from_lists, from_tensors):
        assert net.predict(np.array([[3.0], [-3.0]])).tolist() == [[3.0], [6.0]]


def test_positive_norm():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(30, 4)) @ np.diag([1, 2, 3, 0])
    C = X.T @ X / 30
    assert positive_norm(X) == pytest.approx(math.sqrt(30 * 3))
    assert positive_norm(X, C) == pytest.approx(positive_norm(X))
    fresh = rng.normal(size=(5, 4)) @ np.diag([1, 2, 3, 0])
    expected = math.sqrt(np.trace(fresh @ np.linalg.pinv(C) @ fresh.T))
    assert positive_norm(fresh, C) == pytest.approx(expected)
    assert positive_norm(rng.normal(size=(2, 4)), C) == math.inf


def test_bounds_follow_the_printed_formulas():
    upper = rademacher_upper(3.0, 20.0, 100, 0.25)
    assert upper == pytest.approx(2 * 3 * 20 / (100 * 0.5))
    assert rademacher_upper(3.0, 20.0, 100, 0.0) == math.inf
    assert rademacher_lower(3.0, 20.0, 100) == pytest.approx(0.3)
    bound = risk_bound(0.1, 3.0, 20.0, 100, 0.25, delta=0.1)
    assert bound.value == pytest.approx(
        0.1 + 8 * upper + 12 * math.sqrt(math.log(20) / 200)
    )
    assert (bound.factor, bound.empirical, bound.n, bound.delta) == (1.0, 0.1, 100, 0.1)
    assert bound.complexity == pytest.approx(8 * upper)
    assert bound.value == pytest.approx(
        bound.empirical + bound.complexity + bound.confidence
    )
    assert bound.vacuous
    assert not risk_bound(0.0, 0.01, 20.0, 10**8, 0.5).vacuous
    paired = symmetrized_bound(0.1, 3.0, 20.0, 100, delta=0.1)
    assert paired.value == pytest.approx(
        0.2 + 46 * 0.6 + 24 * math.sqrt(math.log(20) / 200)
    )
    # Corollary 3 doubles Corollary 2 at beta = 1/2 and rounds 32 sqrt(2) up.
    half = risk_bound(0.1, 3.0, 20.0, 100, 0.5, delta=0.1)
    assert 2 * half.value <= paired.value <= 2.04 * half.value


@pytest.mark.parametrize("size", [0.5, 4.0, 100.0])
def test_the_penalty_bounds_no_norm_of_the_weights(size):
    net, points, p = escaping_weights(size)
    assert p.sum() == pytest.approx(1)
    assert p[0] == pytest.approx(0.5 / max(size**2, 2.0))
    assert np.allclose(np.linalg.norm(points, axis=1), 1)
    assert np.allclose(p @ points, 0)
    assert p @ net.activations(points)[:, 0] ** 2 == pytest.approx(1)
    assert np.linalg.norm(net.V) > size
    assert (
        retentivity(points, p).upper <= retained_share(points, net.V[:, 0], p) + 1e-12
    )


@pytest.mark.parametrize("seed", range(6))
def test_retentivity_in_the_plane_is_exact(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(9, 2)) @ rng.normal(size=(2, 2)) + rng.normal(size=2)
    weights = rng.random(9)
    found = retentivity(X, weights)
    angles = np.linspace(0, 2 * np.pi, 20_001)
    S = X @ np.stack([np.cos(angles), np.sin(angles)])
    p = weights / weights.sum()
    grid = (p @ np.maximum(S, 0) ** 2) / (p @ S**2)
    assert found.status == "exact"
    assert found.lower == found.upper
    assert found.upper <= grid.min() + 1e-12
    assert grid.min() - found.upper < 1e-5
    assert retained_share(X, found.direction, weights) == pytest.approx(
        found.upper, abs=1e-9
    )


@pytest.mark.parametrize(("rank", "n"), [(3, 40), (4, 60)])
def test_retentivity_interval_closes_in_three_and_four_dimensions(rank, n):
    rng = np.random.default_rng(rank)
    X = rng.normal(size=(n, rank)) @ rng.normal(
        size=(rank, rank + 1)
    )  # degenerate in one more
    found = retentivity(X)
    assert found.method == "branch and bound"
    assert 0 <= found.upper - found.lower <= 2e-6
    shares = [retained_share(X, v) for v in rng.normal(size=(3000, rank + 1))]
    assert min(shares) >= found.lower

    def value(v):
        return retained_share(X, v)

    polished = min(minimize(value, rng.normal(size=rank + 1)).fun for _ in range(8))
    assert polished >= found.lower - 1e-9
    assert polished == pytest.approx(found.upper, abs=1e-4)


def test_retentivity_in_many_dimensions_is_an_interval():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(100, 8))
    found = retentivity(X)
    assert found.status == "interval"
    assert found.lower <= found.upper < 0.5
    assert retained_share(X, found.direction) == pytest.approx(found.upper, abs=1e-9)
    both = retentivity(np.concatenate([X, -X]))
    assert both.lower == pytest.approx(0.5)
    # Almost symmetric data: the coupling proves a positive retentivity.
    near = retentivity(np.concatenate([X, -X + 0.02 * rng.normal(size=X.shape)]))
    assert 0.4 < near.lower <= near.upper
    assert retentivity(np.abs(X)).upper == pytest.approx(0, abs=1e-9)
    line = retentivity(np.array([[1.0, 2.0], [-2.0, -4.0]]))
    assert (line.lower, line.upper) == pytest.approx((0.2, 0.2))


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_retentivity_and_complexity_do_not_depend_on_the_scale(scale):
    rng = np.random.default_rng(8)
    for d in (1, 2, 3):
        X = rng.normal(size=(12, d)) - 9 * (d == 1)  # none positive
        one, other = retentivity(X), retentivity(scale * X)
        assert other.upper == pytest.approx(one.upper, rel=1e-9)
        assert retained_share(scale * X, scale * other.direction) == pytest.approx(
            one.upper, rel=1e-6
        )
    assert rademacher(scale * X, draws=5).value == pytest.approx(
        rademacher(X, draws=5).value
    )


def test_retentivity_of_many_non_negative_inputs_is_seen_at_once():
    X = np.maximum(np.random.default_rng(9).normal(size=(3000, 40)) + 0.5, 0)
    found = retentivity(X)
    assert (found.lower, found.upper, found.status) == (0.0, 0.0, "exact")
    assert retained_share(X, found.direction) == 0


def test_an_infinite_norm_makes_bounds_infinite_whatever_alpha():
    for alpha in (0.0, 1.0):
        assert rademacher_upper(alpha, math.inf, 5, 0.5) == math.inf
        assert rademacher_lower(alpha, math.inf, 5) == math.inf
        assert symmetrized_bound(0.0, alpha, math.inf, 5).value == math.inf


def test_symmetrize_only_flips_signs():
    X = np.abs(np.random.default_rng(4).normal(size=(400, 3)))
    Z = symmetrize(X, seed=0)
    assert np.array_equal(np.abs(Z), X)
    assert 150 < np.sum(Z[:, 0] > 0) < 250


@pytest.mark.parametrize("skew", [0.0, 0.5])
def test_rademacher_in_the_plane_against_a_grid(skew):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(8, 2)) + skew
    found = rademacher(X, draws=40, seed=7)
    angles = np.linspace(0, 2 * np.pi, 40_001)
    S = np.maximum(X @ np.stack([np.cos(angles), np.sin(angles)]), 0)
    scaled = S / np.sqrt(np.mean(S**2, axis=0) + 1e-300)
    signs = np.random.default_rng(7).choice((-1.0, 1.0), size=(40, 8))
    grid = np.abs(signs @ scaled).max(1).mean() / 8
    assert found.exact
    assert grid <= found.value + 1e-12
    assert found.value == pytest.approx(grid, rel=1e-3)
    error = np.abs(signs @ scaled).max(1).std(ddof=1) / math.sqrt(40) / 8
    assert found.standard_error == pytest.approx(error, rel=1e-2)
    norm = positive_norm(X, X.T @ X / 8)
    assert found.lower == pytest.approx(rademacher_lower(1.0, norm, 8))
    beta = retentivity(X).lower
    assert found.upper == pytest.approx(rademacher_upper(1.0, norm, 8, beta))
    assert (found.retentivity, found.n, found.draws) == (beta, 8, 40)


def test_search_in_the_plane_finds_the_exact_supremum():
    rng = np.random.default_rng(6)
    X = rng.normal(size=(12, 2))
    lifted = np.pad(X, ((0, 0), (0, 1)))
    lifted[-1, 2] = 1e-3  # a third dimension, so that local search is used
    exact, searched = (
        rademacher(X, draws=30, seed=1),
        rademacher(lifted, draws=30, seed=1),
    )
    assert not searched.exact
    assert searched.value >= exact.value * (1 - 1e-3)


@pytest.mark.parametrize("case", ["plane", "sample", "space"])
def test_monte_carlo_lies_between_the_two_bounds(case):
    rng = np.random.default_rng(8)
    X = rng.normal(size=(20, 3 if case == "space" else 2)) + 0.2
    sample = rng.integers(0, 20, 12) if case == "sample" else None
    found = rademacher(X, 2.5, sample=sample, draws=100)
    assert found.lower <= found.value + 5 * found.standard_error
    assert found.value - 5 * found.standard_error <= found.upper < math.inf
    assert found.value == pytest.approx(
        2.5 * rademacher(X, sample=sample, draws=100).value
    )


def test_one_unit_attains_the_supremum_over_wide_networks():
    """H_r of an odd width has the complexity of F_alpha at alpha = sqrt(width r)."""
    rng = np.random.default_rng(9)
    X, r, width, p = rng.normal(size=(4, 2)), 0.7, 3, np.full(4, 0.25)
    zeta = np.array([[1.0, 1.0, -1.0, 1.0], [1.0, -1.0, -1.0, 1.0]])
    exact = math.sqrt(r) * largest_correlation(whiten(X, p), p, zeta)

    def negative(w, signs):
        """-sum_i zeta_i f(x_i) for the network with parameters (u, V), scaled to R = r."""
        u, V = np.split(w, [len(w) // 3])
        A = np.maximum(X @ V.reshape(2, -1), 0)
        R = np.sum(u**2 * np.mean(A**2, axis=0))
        return -(signs @ A @ u) * math.sqrt(r / R) if R > 1e-12 else 0.0

    for signs, supremum in zip(zeta, exact, strict=True):
        units = [minimize(negative, w, args=(signs,)) for w in rng.normal(size=(10, 3))]
        unit = min(units, key=lambda found: found.fun)
        assert -unit.fun == pytest.approx(supremum, rel=1e-4)
        wide = math.sqrt(width) * supremum
        assert -negative(np.repeat(unit.x, width), signs) == pytest.approx(
            wide, rel=1e-4
        )
        starts = rng.normal(size=(10, 3 * width))
        assert max(
            -minimize(negative, w, args=(signs,)).fun for w in starts
        ) <= wide * (1 + 1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rademacher_upper(1.0, 1.0, 10, 0.6), "retentivity must lie in"),
        (lambda: risk_bound(0.1, 1.0, 1.0, 10, 0.5, delta=1.0), "delta must lie in"),
        (lambda: flows(np.ones((1, 3)), np.ones((4, 2))), "same number of columns"),
        (lambda: retentivity(np.zeros((3, 2))), "not zero"),
        (lambda: retentivity(np.ones((3, 2)), [1.0, -1.0, 1.0]), "weights must be"),
        (lambda: retentivity(np.ones((3, 2)), [1.0, 1.0]), "weights must be"),
        (lambda: retentivity(np.ones((3, 2)), [0.0, 0.0, 0.0]), "weights must be"),
        (lambda: rademacher(np.eye(2), sample=[2]), "sample must hold"),
        (lambda: rademacher(np.eye(2), sample=[-1]), "sample must hold"),
        (
            lambda: rademacher(np.eye(2), sample=[1], weights=[1.0, 0.0]),
            "sample must hold",
        ),
        (lambda: rademacher(np.eye(2), sample=[[0]]), "sample must be"),
        (lambda: rademacher(np.eye(2), sample=np.array([], int)), "sample must be"),
        (lambda: rademacher(np.eye(2), sample=[0.5]), "sample must be"),
        (lambda: TwoLayer(np.ones((1, 2)), np.ones((2, 3))), "same number of columns"),
        (
            lambda: TwoLayer(np.ones((1, 2)), np.ones((3, 2))).predict(np.ones((4, 2))),
            "3 columns",
        ),
        (lambda: escaping_weights(0.0), "size must be"),
        (lambda: escaping_weights(1e200), "at most 1e100"),
        (lambda: flows(np.ones((1, 3)), torch.ones(4, 3)), "one library"),
        (lambda: capacity(np.array([1.0, np.nan])), "psi must be finite"),
        (lambda: coadaptation(np.array([1.0, -1.0])), "none negative"),
        (lambda: coadaptation(np.array([])), "not be empty"),
        (lambda: positive_norm(np.eye(2), np.diag([1.0, -1.0])), "negative eigenvalue"),
        (lambda: retentivity(np.ones((3, 2)), "equal"), "weights must be"),
        (lambda: retentivity(np.eye(2), starts=0), "starts must be"),
        (lambda: rademacher(np.eye(2), starts=0), "starts must be"),
        (lambda: retained_share(np.eye(2), np.ones(3)), "v must have 2 entries"),
        (
            lambda: UNIT.clipped_error(np.ones((3, 1)), np.ones((3, 1))),
            "y must have 1 dimension",
        ),
        (
            lambda: UNIT.clipped_error(np.ones((3, 1)), np.ones(2)),
            "y must have 3 entries",
        ),
        (lambda: UNIT.clipped_error(np.ones((1, 1)), [np.nan]), "y must be finite"),
        (
            lambda: UNIT.flows(np.ones((3, 2)), symmetrized=True),
            "X must have 1 columns",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_import_is_light():
    code = "import sys, overt.relu; print([m for m in ('torch', 'numba') if m in sys.modules])"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "[]"
