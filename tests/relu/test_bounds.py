"""Flows, capacity and bounds of two-layer ReLU networks."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from overt import CovarianceNoise, DropBlock, Dropout, InputError
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


def test_an_infinite_norm_makes_bounds_infinite_whatever_alpha():
    for alpha in (0.0, 1.0):
        assert rademacher_upper(alpha, math.inf, 5, 0.5) == math.inf
        assert rademacher_lower(alpha, math.inf, 5) == math.inf
        assert symmetrized_bound(0.0, alpha, math.inf, 5).value == math.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rademacher_upper(1.0, 1.0, 10, 0.6), "retentivity must lie in"),
        (lambda: risk_bound(0.1, 1.0, 1.0, 10, 0.5, delta=1.0), "delta must lie in"),
        (lambda: flows(np.ones((1, 3)), np.ones((4, 2))), "same number of columns"),
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
