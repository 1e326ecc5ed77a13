"""How high above the optimum SGD stays: against traces and enumerated steps."""

import numpy as np
import pytest

import overt
from overt.papers.stationary_excess import half_hessian, stationary_excess

M = np.random.default_rng(0).standard_normal((4, 3))
ROOT = np.random.default_rng(1).standard_normal((3, 3))
X = np.random.default_rng(2).standard_normal((12, 3)) @ ROOT
Y = np.random.default_rng(3).standard_normal((12, 2))


@pytest.mark.parametrize(
    ("name", "batch_size"),
    [
        ("target", 1),
        ("target", 4),
        ("data, all noises", 1),
        ("tied", 1),
        ("weights", 2),
    ],
)
def test_the_excess_is_where_traces_rest(name, batch_size):
    drop, rate = overt.Dropout(0.3), 0.005
    net = {
        "target": lambda: overt.LinearNetwork(np.diag([2.0, 1.0, 0.5]), 4, drop),
        "data, all noises": lambda: overt.LinearNetwork(
            X=X / 3, Y=Y, width=3, noise=drop, input_noise=drop
        ),
        "tied": lambda: overt.TiedAutoencoder(np.diag([2.0, 1.0]), 3, drop),
        "weights": lambda: overt.LinearNetwork(
            np.diag([2.0, 1.0]), 3, overt.DropConnect(0.3)
        ),
    }[name]()
    predicted = stationary_excess(net, rate, batch_size=batch_size, samples=1500)
    best = net.solve()
    init = best.U if name == "tied" else (best.U, best.V)
    run = net.train(
        5000, rate, 12, init=init, batch_size=batch_size, records=range(2000, 5000, 100)
    )
    rested = (run.objective[:, 1:] - predicted.optimum).mean(axis=1)
    error = np.hypot(rested.std(ddof=1) / np.sqrt(12), predicted.standard_error)
    # First order in the learning rate: what is left is a share of rate * curvature.
    share = 1.5 * rate * predicted.curvature
    assert abs(rested.mean() - predicted.excess) <= 5 * error + share * predicted.excess


def test_the_excess_is_the_lyapunov_equation_of_enumerated_steps():
    """Every sample under every mask: the exact covariance of steps, S by the equation itself."""
    rng, keep, eta, batch = np.random.default_rng(5), 0.7, 0.05, 3
    X, Y = rng.standard_normal((4, 2)), rng.standard_normal((4, 2))
    net = overt.LinearNetwork(X=X, Y=Y, width=2, noise=overt.Dropout(1 - keep))
    best = net.solve()
    steps, chances = [], []
    for x, y in zip(X, Y, strict=True):
        for mask in ((0, 0), (0, 1), (1, 0), (1, 1)):
            z = np.array(mask) / keep
            error = best.U @ (z * (best.V.T @ x)) - y
            gradients = (
                np.outer(error, z * (best.V.T @ x)),
                np.outer(x, z * (best.U.T @ error)),
            )
            steps.append(np.concatenate([g.ravel() for g in gradients]))
            chances.append(np.prod([keep if m else 1 - keep for m in mask]) / 4)
    steps, chances = np.array(steps), np.array(chances)
    np.testing.assert_allclose(chances @ steps, 0, atol=1e-6)
    Sigma = (steps.T * chances) @ steps
    H = half_hessian(net.effect, (best.U, best.V))
    values, Q = np.linalg.eigh(H)
    stiff = values > 1e-6 * values[-1]
    h, noise = values[stiff], (Q.T @ Sigma @ Q)[np.ix_(stiff, stiff)]
    S = eta * noise / batch / (h[:, None] + h - eta * np.outer(h, h))
    found = stationary_excess(net, eta, batch_size=batch, samples=4000)
    assert found.optimum == pytest.approx(best.objective, rel=1e-9)
    assert found.flat == np.sum(~stiff)
    assert found.curvature == pytest.approx(values[-1])
    assert found.objective == pytest.approx(found.optimum + found.excess)
    assert abs(found.excess - np.trace(np.diag(h) @ S)) <= 5 * found.standard_error
    costs = (steps @ Q[:, stiff]) ** 2 @ (eta / (batch * (2 - eta * h)))
    spread = np.sqrt(chances @ (costs - chances @ costs) ** 2 / 4000)
    assert found.standard_error == pytest.approx(spread, rel=0.2)


def test_an_excess_that_cannot_be_is_refused():
    net = overt.LinearNetwork(np.diag([2.0, 1.0]), 3, overt.Dropout(0.3))
    with pytest.raises(overt.InputError, match=r"learning_rate must be below 0\."):
        stationary_excess(net, 10.0)
    with pytest.raises(overt.InputError, match="at most 3000 weights"):
        stationary_excess(overt.LinearNetwork(np.eye(60), 30, overt.Dropout(0.3)), 0.01)


def test_the_half_hessian_is_that_of_the_objective():
    net = overt.LinearNetwork(M, 2, overt.Dropout(0.3))
    weights = net.effect.best_weights()
    H = half_hessian(net.effect, weights)
    rng = np.random.default_rng(0)
    moves = [rng.standard_normal(W.shape) for W in weights]
    flat = np.concatenate([D.ravel() for D in moves])
    near = [
        net.objective(*(W + t * D for W, D in zip(weights, moves, strict=True)))
        for t in (-1e-4, 0, 1e-4)
    ]
    assert flat @ H @ flat == pytest.approx(
        (near[0] - 2 * near[1] + near[2]) / 2e-8, rel=1e-5
    )
