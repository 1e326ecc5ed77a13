"""The stochastic algorithm: same numbers as the readable reference, and it reaches the optimum."""

import numpy as np
import pytest

import overt
from overt.linear import inverse_decay, kernels, reference, runs
from overt.linear.masks import mask_of

NOISES = {
    "dropout": overt.Dropout(0.4),
    "per unit": overt.Dropout([0.0, 0.2, 0.4, 0.6]),
    "grid": overt.DropBlock(0.4, 2),
    "sliding": overt.DropBlock(0.4, 3, "sliding"),
    "covariance": overt.CovarianceNoise([1.0, 0.5, 2.0, 1.0], np.diag([0.1, 0.2, 0.3, 0.1]) + 0.05),
}
EMPTY = np.empty((0, 0))


def sources():
    rng = np.random.default_rng(0)
    M, L = rng.standard_normal((5, 3)), rng.standard_normal((3, 2))
    X, Y = rng.standard_normal((7, 3)), rng.standard_normal((7, 5))
    return {
        "isotropic": (M, EMPTY, EMPTY, EMPTY),
        "correlated": (M, L, EMPTY, EMPTY),
        "data": (EMPTY, EMPTY, X, Y),
    }


def factors(seed=1, outputs=5):
    rng = np.random.default_rng(seed)
    return 0.5 * rng.standard_normal((4, outputs)), 0.5 * rng.standard_normal((4, 3))


@pytest.mark.parametrize("source", sources())
@pytest.mark.parametrize("name", NOISES)
def test_compiled_steps_equal_the_reference(name, source):
    rates, mask, pair = np.full(300, 0.01), mask_of(NOISES[name], 4), sources()[source]
    fast, plain = factors(), factors()
    assert kernels.unit_steps(*fast, *pair, rates, np.random.default_rng(2), *mask) == 300
    assert reference.unit_steps(*plain, *pair, rates, np.random.default_rng(2), *mask) == 300
    for a, b in zip(fast, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("source", sources())
def test_compiled_dropconnect_equals_the_reference(source):
    rates, pair = np.full(300, 0.01), sources()[source]
    fast, plain = factors(), factors()
    kernels.weight_steps(*fast, *pair, rates, np.random.default_rng(2), 0.3)
    reference.weight_steps(*plain, *pair, rates, np.random.default_rng(2), 0.3)
    for a, b in zip(fast, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", NOISES)
def test_compiled_tied_steps_equal_the_reference(name):
    M = np.random.default_rng(0).standard_normal((3, 3))
    pair, rates, mask = (M, EMPTY, EMPTY, EMPTY), np.full(300, 0.01), mask_of(NOISES[name], 4)
    fast, plain = factors()[1], factors()[1]
    kernels.tied_steps(fast, *pair, rates, np.random.default_rng(2), *mask)
    reference.tied_steps(plain, *pair, rates, np.random.default_rng(2), *mask)
    np.testing.assert_allclose(fast, plain, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", [*NOISES, "dropconnect"])
def test_the_mean_step_is_the_gradient_of_half_the_objective(name):
    # Algorithm 1 descends the exact objective: 5,000 single steps from one point.
    noise = NOISES.get(name, overt.DropConnect(0.4))
    M = np.random.default_rng(0).standard_normal((5, 3))
    net = overt.LinearNetwork(M, 4, noise)
    Ut, Vt = factors()
    _, gradients = net._value_in_V(Ut.T, Vt.T)
    rng, steps = np.random.default_rng(3), 5_000
    moves = np.empty((steps, Ut.size + Vt.size))
    for i in range(steps):
        u, v = Ut.copy(), Vt.copy()
        if name == "dropconnect":
            kernels.weight_steps(u, v, M, EMPTY, EMPTY, EMPTY, np.ones(1), rng, 0.4)
        else:
            kernels.unit_steps(u, v, M, EMPTY, EMPTY, EMPTY, np.ones(1), rng, *mask_of(noise, 4))
        moves[i] = np.concatenate([(Ut - u).T.ravel(), (Vt - v).T.ravel()])
    half = np.concatenate([g.ravel() for g in gradients]) / 2
    error = moves.std(axis=0) / np.sqrt(steps)
    assert np.abs((moves.mean(axis=0) - half) / error).max() <= 5


def test_seeds_end_at_the_exact_optimum():
    M = np.diag([2.0, 1.5, 0.5])
    net = overt.LinearNetwork(M, 4, overt.Dropout(0.3))
    run = net.train(60_000, inverse_decay(0.03, 3000), 6)
    assert run.status == "finished"
    assert run.objective[:, -1].mean() <= 1.02 * run.optimum
    assert run.imbalance[:, -1].mean() <= 0.05 * run.imbalance.max()


@pytest.mark.parametrize("noise", [overt.Dropout(0.3), overt.DropConnect(0.3)], ids=str)
@pytest.mark.parametrize("inputs", ["isotropic", "correlated"])
def test_expected_descent_reaches_the_optimum_without_sampling(noise, inputs):
    C = None if inputs == "isotropic" else np.array([[1.0, 0.5, 0], [0.5, 1, 0], [0, 0, 0.5]])
    net = overt.LinearNetwork(np.diag([2.0, 1.5, 0.5]), 4, noise, second_moment=C)
    run = net.train(6000, 0.05, 2, noise="expected")
    assert run.objective[:, -1].max() <= (1 + 1e-4) * run.optimum
    assert np.all(np.diff(run.objective, axis=1) <= 1e-9)


def test_a_run_depends_on_its_seed_only():
    net = overt.LinearNetwork(np.diag([2.0, 1.0]), 3, overt.Dropout(0.5))
    together = net.train(500, 0.01, 4, workers=2)
    alone = net.train(500, 0.01, [2], workers=1)
    np.testing.assert_array_equal(together.U[2], alone.U[0])
    assert not np.array_equal(together.U[0], together.U[1])


def test_divergence_is_reported_not_raised():
    net = overt.LinearNetwork(10 * np.eye(3), 3, overt.Dropout(0.5))
    run = net.train(5000, 5.0, 3)
    assert run.status == "diverged"
    assert run.diverged.all()
    assert "learning rate" in run.status.explanation
    assert np.isnan(run.objective[:, -1]).all()


def test_an_interrupt_keeps_what_was_computed(monkeypatch):
    net = overt.LinearNetwork(np.eye(2), 2, overt.Dropout(0.5))
    calls = []

    def steps(*args):
        calls.append(1)
        if len(calls) > 12:
            raise KeyboardInterrupt
        return kernels_unit_steps(*args)

    kernels_unit_steps = kernels.unit_steps
    monkeypatch.setattr(kernels, "unit_steps", steps)
    run = net.train(1000, 0.01, 1, checkpoints=30, workers=1)
    assert run.status == "interrupted"
    reached = np.isfinite(run.objective[0])
    assert 5 < reached.sum() < len(run.steps)
    assert reached[: reached.sum()].all()


def test_checkpoints_cover_the_run_from_start_to_end():
    for steps in (1, 2, 7, 1000):
        grid = runs._log_grid(steps, 10)
        assert grid[0] == 0
        assert grid[-1] == steps
        assert grid == sorted(set(grid))


def test_training_continues_from_given_weights():
    net = overt.LinearNetwork(np.eye(2), 2, overt.Dropout(0.5))
    best = net.solve()
    run = net.train(10, 1e-6, 2, init=(best.U, best.V))
    assert run.objective[0, 0] == pytest.approx(best.objective)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps"),
        ({"learning_rate": -1}, "learning_rate"),
        ({"learning_rate": lambda t: np.ones(3)}, "one rate"),
        ({"seeds": 0}, "seeds"),
        ({"noise": "none"}, "noise must be one of"),
        ({"init": (np.ones((2, 3)), np.ones((2, 3)))}, "U must be 2 x 2"),
        ({"workers": 0}, "workers"),
    ],
)
def test_bad_training_arguments_are_refused(arguments, message):
    net = overt.LinearNetwork(np.eye(2), 2, overt.Dropout(0.5))
    with pytest.raises(overt.InputError, match=message):
        net.train(**{"steps": 10, **arguments})


def test_sparse_targets_are_not_trained_on():
    from scipy import sparse

    net = overt.LinearNetwork(sparse.eye_array(4), 2, overt.Dropout(0.5))
    with pytest.raises(overt.InputError, match="dense"):
        net.train(10)


def test_tied_training_reaches_its_optimum():
    net = overt.TiedAutoencoder(np.diag([2.0, 1.0]), 3, overt.Dropout(0.3))
    run = net.train(40_000, inverse_decay(0.02, 2000), 4)
    assert run.objective[:, -1].mean() <= 1.02 * net.solve().objective
    assert run.objective.min() >= run.optimum * (1 - 1e-12)
