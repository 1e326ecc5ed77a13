"""The stochastic algorithm: same numbers as the readable reference, and it reaches the optimum."""

from contextlib import contextmanager

import numpy as np
import pytest

import overt
from overt.linear import descent, inverse_decay
from overt.linear.regression import Samples


class OneOfTwo(overt.noise.Noise):
    """At most one unit of each pair is on, each with probability .4: known to no kernel."""

    def mean(self, width):
        return np.full(width, 0.4)

    def characteristic(self, width):
        return np.kron(np.eye(width // 2), [[1.5, -1.0], [-1.0, 1.5]])

    def sample(self, width, size=1, seed=None):
        draw = np.random.default_rng(seed).random((size, width // 2))
        masks = np.stack([draw < 0.4, (draw >= 0.4) & (draw < 0.8)], axis=-1)
        return masks.reshape(size, width).astype(float)


class MyDropout(overt.noise.Noise):
    """Dropout, under a name that no kernel knows."""

    def __init__(self, drop_prob):
        self.known = overt.Dropout(drop_prob)

    def mean(self, width):
        return self.known.mean(width)

    def characteristic(self, width):
        return self.known.characteristic(width)

    def sample(self, width, size=1, seed=None):
        return self.known.sample(width, size, seed)


NOISES = {
    "dropout": overt.Dropout(0.4),
    "per unit": overt.Dropout([0.0, 0.2, 0.4, 0.6]),
    "grid": overt.DropBlock(0.4, 2),
    "sliding": overt.DropBlock(0.4, 3, "sliding"),
    "keep exactly": overt.KeepExactly(3),
    "covariance": overt.CovarianceNoise(
        [1.0, 0.5, 2.0, 1.0], np.diag([0.1, 0.2, 0.3, 0.1]) + 0.05
    ),
    "a user's own": OneOfTwo(),
}


def factors(seed=1, outputs=5):
    rng = np.random.default_rng(seed)
    return 0.5 * rng.standard_normal((4, outputs)), 0.5 * rng.standard_normal((4, 3))


def masked_steps(Ut, Vt, x, y, z, rates):
    """The compiled steps in readable NumPy."""
    for step, rate in enumerate(rates):
        seen = z[step][:, :, None] * x[step]  # (batch, width, inputs)
        h = np.sum(seen * Vt, axis=2)
        e = h @ Ut - y[step]
        if not np.sum(e * e) < descent.LIMIT:
            return step
        g = e @ Ut.T
        Ut -= rate * h.T @ e / len(e)
        Vt -= rate * np.sum(g[:, :, None] * seen, axis=0) / len(e)
    return len(rates)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", ["units", "weights", "tied"])
def test_compiled_steps_equal_the_reference(name, batch):
    rng, ends = np.random.default_rng(2), []
    rows = 4 if name == "weights" else 1
    x = rng.standard_normal((300, batch, rows, 3))
    outputs = rng.standard_normal((300, batch, 3 if name == "tied" else 5))
    mask = rng.choice([0.0, 1.0, 1.5], (300, batch, 4))
    for steps_of in (descent.compiled_steps(), masked_steps):
        Ut, Vt = factors()
        if name == "tied":
            Ut = Vt
        rates = np.linspace(0.02, 0.001, 300)
        assert steps_of(Ut, Vt, x, outputs, mask, rates) == 300
        ends.append((Ut, Vt))
        far = outputs.copy()  # the squares of errors of a step must stay below 1e40
        for far[7, 0, 0] in (1.1e20, 1e20):
            assert steps_of(Ut.copy(), Vt.copy(), x, far, mask, 0 * rates) == 7
        far[7, 0, 0] = 0.9e20
        assert steps_of(Ut.copy(), Vt.copy(), x, far, mask, 0 * rates) == 300
    for a, b in zip(*ends, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_dropconnect_trains_where_inputs_are_dependent():
    """A second moment of low rank ended in an error about shapes."""
    A = np.random.default_rng(0).standard_normal((3, 2))
    noise = overt.DropConnect(0.5)
    net = overt.LinearNetwork(np.eye(3), 2, noise, second_moment=A @ A.T)
    least = net.solve().certificate.lower_bound
    run = net.train(5000, 0.01, 2, batch_size=10)
    assert run.status == "finished"
    assert (run.objective[:, -1] >= least).all()
    assert (run.objective[:, -1] <= 1.1 * least).all()


@pytest.mark.parametrize("inputs", ["isotropic", "correlated", "data"])
def test_samples_have_the_moments_of_the_regression(inputs):
    rng = np.random.default_rng(0)
    M, L, size = rng.standard_normal((5, 3)), rng.standard_normal((3, 2)), 200_000
    samples = Samples(None if inputs == "isotropic" else L, M)
    if inputs == "data":
        samples = Samples(
            rng.standard_normal((7, 3)), rng.standard_normal((7, 5)), data=True
        )
    x, y = samples.batch(size, rng)
    if inputs == "data":
        C, cross = (
            samples.inputs.T @ samples.inputs / 7,
            samples.outputs.T @ samples.inputs / 7,
        )
    else:
        C = np.eye(3) if inputs == "isotropic" else L @ L.T
        cross = M @ C
    for exact, a, b in ((C, x, x), (cross, y, x)):
        products = a[:, :, None] * b[:, None, :]
        error = products.std(axis=0) / np.sqrt(size) + 1e-12
        assert np.abs((products.mean(axis=0) - exact) / error).max() <= 5


def test_a_first_run_says_that_it_compiles(monkeypatch):
    said = []

    @contextmanager
    def working(title):
        said.append(title)
        yield

    monkeypatch.setattr(descent, "working", working)
    overt.LinearNetwork(np.eye(2), 2, overt.Dropout(0.5)).train(5)
    assert len(said) == 1
    assert "compiling" in said[0]


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("name", [*NOISES, "dropconnect"])
def test_the_mean_step_is_the_gradient_of_half_the_objective(name, batch_size):
    # Algorithm 1 descends the exact objective: single steps from one point.
    noise = NOISES.get(name, overt.DropConnect(0.4))
    M = np.random.default_rng(0).standard_normal((5, 3))
    net = overt.LinearNetwork(M, 4, noise)
    Ut, Vt = factors()
    _, gradients = net.effect.value(Ut.T, Vt.T)
    steps, advance = 2_500, net.effect.steps(np.random.default_rng(3), batch_size)
    moves = np.empty((steps, Ut.size + Vt.size))
    for i in range(steps):
        U, V = Ut.T.copy(), Vt.T.copy()
        assert advance([U, V], np.ones(1)) == 1
        moves[i] = np.concatenate([(Ut.T - U).ravel(), (Vt.T - V).ravel()])
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
    C = (
        None
        if inputs == "isotropic"
        else np.array([[1.0, 0.5, 0], [0.5, 1, 0], [0, 0, 0.5]])
    )
    net = overt.LinearNetwork(np.diag([2.0, 1.5, 0.5]), 4, noise, second_moment=C)
    run = net.train(6000, 0.05, 2, gradient="expected")
    assert run.objective[:, -1].max() <= (1 + 1e-4) * run.optimum
    assert np.all(np.diff(run.objective, axis=1) <= 1e-9)


def test_a_run_depends_on_its_seed_only():
    net = overt.LinearNetwork(np.diag([2.0, 1.0]), 3, overt.Dropout(0.5))
    together = net.train(500, 0.01, 4, n_jobs=2)
    alone = net.train(500, 0.01, [2], n_jobs=1)
    np.testing.assert_array_equal(together.U[2], alone.U[0])
    assert not np.array_equal(together.U[0], together.U[1])


def test_divergence_is_reported_not_raised():
    net = overt.LinearNetwork(10 * np.eye(3), 3, overt.Dropout(0.5))
    run = net.train(5000, 5.0, 3)
    assert run.status == "diverged"
    assert run.diverged.all()
    assert "learning rate" in run.status.explanation
    assert np.isnan(run.objective[:, -1]).all()


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
@pytest.mark.parametrize("rate", [1e60, 1e100, 1e200])
@pytest.mark.parametrize("gradient", ["sampled", "expected"])
def test_weights_whose_products_are_not_finite_have_diverged(rate, gradient):
    """At these rates a step ends at finite weights, of which not even the penalty is finite."""
    M, unlike = np.eye(2), np.array([[1.0, -0.5], [-0.5, 0.7]])
    for net in (
        overt.LinearNetwork(M, 2, overt.Dropout(0.5)),
        overt.LinearNetwork(M, 2, overt.CovarianceNoise(np.ones(2), unlike)),
        overt.LinearNetwork(M, 2, overt.DropConnect(0.5)),
        overt.TiedAutoencoder(M, 2, overt.Dropout(0.5)),
        overt.DeepLinearNetwork(M, (2, 2), 0.5),
    ):
        run = net.train(2, rate, 2, gradient=gradient, records=2)
        assert run.status == "diverged"
        assert run.diverged.tolist() == [True, True]
        assert np.isnan(run.objective[:, -1]).all()


@pytest.mark.parametrize("which", [0, 1])
def test_weights_of_which_some_are_not_finite_are_not_measured(which):
    def advance(weights, rates):
        weights[which][0] = np.inf if len(rates) else 0.0
        return len(rates)

    def measure(weights):
        assert all(np.isfinite(W).all() for W in weights)
        return 1.0, 2.0, 3

    found = descent.run_seeds(
        lambda rng: [np.zeros(2), np.zeros(3)],
        lambda rng: advance,
        measure,
        steps=5,
        learning_rate=0.1,
        seeds=2,
        records=[2],
        n_jobs=1,
        optimum=0.5,
    )
    assert found.diverged.tolist() == [True, True]
    assert found.objective[:, 0].tolist() == [1.0, 1.0]
    assert np.isnan(found.objective[:, 1:]).all()
    assert found.rank[:, 1:].max() == -1


def test_an_interrupt_keeps_what_was_computed(monkeypatch):
    net = overt.LinearNetwork(np.eye(2), 2, overt.Dropout(0.5))
    calls = []

    def steps(*args):
        calls.append(1)
        if len(calls) > 12:
            raise KeyboardInterrupt
        return compiled(*args)

    compiled = descent.compiled_steps()
    monkeypatch.setattr(descent, "compiled_steps", lambda: steps)
    run = net.train(1000, 0.01, 1, records=30, n_jobs=1)
    assert run.status == "interrupted"
    reached = np.isfinite(run.objective[0])
    assert 5 < reached.sum() < len(run.steps)
    assert reached[: reached.sum()].all()


def test_an_interrupt_is_told_beside_seeds_that_diverged():
    def interrupted(weights, rates):
        raise KeyboardInterrupt

    steps = iter([lambda weights, rates: 0, interrupted])
    found = descent.run_seeds(
        lambda rng: [np.zeros(1)],
        lambda rng: next(steps),
        lambda weights: (1.0, 2.0, 3),
        steps=5,
        learning_rate=0.1,
        seeds=2,
        records=[2],
        n_jobs=1,
        optimum=0.5,
    )
    assert found.status == "interrupted"
    assert found.diverged.tolist() == [True, False]


def test_records_cover_the_run_from_start_to_end():
    for steps in (1, 2, 7, 1000):
        grid = descent._grid(steps, 10)
        assert grid[0] == 0
        assert grid[-1] == steps
        assert grid == sorted(set(grid))


def test_each_step_is_taken_once_in_chunks(monkeypatch):
    asked, taken = [], []

    def advance(weights, rates):
        taken.extend(rates)
        return len(rates)

    def rate(steps):
        asked.extend(steps)
        return 0.5 * steps

    monkeypatch.setattr(descent, "CHUNK", 3)
    found = descent.run_seeds(
        lambda rng: [np.zeros(1)],
        lambda rng: advance,
        lambda weights: (1.0, 2.0, 3),
        steps=17,
        learning_rate=rate,
        seeds=1,
        records=[4],
        n_jobs=1,
        optimum=0.5,
    )
    assert asked == list(range(17))
    assert taken == [0.5 * t for t in asked]
    assert (found.status, found.steps.tolist()) == ("finished", [0, 4, 17])


def test_records_can_be_the_steps_themselves():
    net = overt.LinearNetwork(np.diag([2.0, 1.0]), 3, overt.Dropout(0.5))
    run, other = (
        net.train(500, 0.01, 2, records=[7, 100]),
        net.train(500, 0.01, 2, records=4),
    )
    assert run.steps.tolist() == [0, 7, 100, 500]
    np.testing.assert_array_equal(run.U, other.U)


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
        ({"gradient": "none"}, "gradient must be one of"),
        ({"records": 1}, "records must be at least 2"),
        ({"records": [3, 11]}, r"records must lie in 0\.\.10, the steps, got 11"),
        ({"records": 2.5}, "records must be a whole number"),
        ({"init": (np.ones((2, 3)), np.ones((2, 3)))}, "weights must have the shapes"),
        ({"n_jobs": 0}, "n_jobs"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_bad_training_arguments_are_refused(arguments, message):
    net = overt.LinearNetwork(np.eye(2), 2, overt.Dropout(0.5))
    with pytest.raises(overt.InputError, match=message):
        net.train(**{"steps": 10, **arguments})


def test_tied_training_reaches_its_optimum():
    net = overt.TiedAutoencoder(np.diag([2.0, 1.0]), 3, overt.Dropout(0.3))
    run = net.train(40_000, inverse_decay(0.02, 2000), 4)
    assert run.objective[:, -1].mean() <= 1.02 * net.solve().objective
    assert run.objective.min() >= run.optimum * (1 - 1e-12)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_noise_of_ones_own_trains_as_the_library_would(tied):
    # The same masks: a run by hand that takes the sample from one stream and the mask from another.
    M, own, steps, rate = np.diag([2.0, 1.0, 0.5]), MyDropout(0.4), 2500, 0.01
    network = overt.TiedAutoencoder if tied else overt.LinearNetwork
    run = network(M, 4, own).train(steps, rate, [7], records=9)
    rng = np.random.default_rng(7)
    weights = [0.5 * rng.standard_normal((3, 4)) for _ in range(1 if tied else 2)]
    again = network(M, 4, own).train(steps, rate, [7], init_scale=0.5, records=3)
    z = own.known.multipliers(4, steps, rng.spawn(2)[0])
    for mask in z:
        x = rng.standard_normal(3)
        U, V = weights[0], weights[-1]
        h = mask * (V.T @ x)
        e = U @ h - M @ x
        moves = np.outer(e, h), np.outer(x, mask * (U.T @ e))
        for W, move in zip(weights, [sum(moves)] if tied else moves, strict=True):
            W -= rate * move
    for W, expected in zip(again.weights, weights, strict=True):
        np.testing.assert_allclose(W[0], expected, rtol=1e-9)
    assert run.objective.min() >= run.optimum * (1 - 1e-12)


def test_a_noise_of_ones_own_draws_what_the_library_draws():
    M = np.diag([2.0, 1.0, 0.5])
    ends = [
        overt.LinearNetwork(M, 4, noise).train(800, 0.01, 3, records=2).U
        for noise in (overt.Dropout(0.4), MyDropout(0.4))
    ]
    np.testing.assert_array_equal(*ends)


@pytest.mark.parametrize("network", [overt.LinearNetwork, overt.TiedAutoencoder])
def test_a_noise_of_ones_own_works_everywhere(network):
    net = network(np.diag([3.0, 2.0, 1.0]), 6, OneOfTwo())
    best = net.solve()
    run = net.train(40_000, inverse_decay(0.01, 4000), 3, n_jobs=2)
    assert run.objective[:, -1].mean() <= 1.05 * best.objective
    assert run.objective.min() >= run.optimum * (1 - 1e-12)
    exact = net.train(2000, 0.02, 1, gradient="expected")
    assert exact.objective[0, -1] == pytest.approx(best.objective, rel=1e-3)
    again = net.train(3000, 0.01, [1], n_jobs=1, records=5)
    both = net.train(3000, 0.01, 2, n_jobs=2, records=31)
    np.testing.assert_array_equal(both.weights[0][1], again.weights[0][0])


def test_noises_over_weights_that_nobody_knows_are_refused():
    class OverWeights(MyDropout):
        masks = "weights"

    with pytest.raises(overt.InputError, match="only DropConnect"):
        overt.LinearNetwork(np.eye(3), 4, OverWeights(0.4))
    with pytest.raises(overt.InputError, match="must mask units"):
        overt.TiedAutoencoder(np.eye(3), 4, OverWeights(0.4))
