"""The simulator against PyTorch, against plain NumPy, and its bookkeeping."""

import os
import signal
import threading
import tracemalloc

import numpy as np
import pytest
import torch

from overt import Entries, InputError
from overt.decay import (
    Schedule,
    initial_weights,
    kernels,
    layers,
    simulate,
    two_by_two,
)
from overt.decay.simulation import EntrySampler, Weights
from overt.results import Status


def torch_sgd(problem, weights, draws, phases):
    """SGD(lr, weight_decay) on the squared error without the half, as the paper's figures."""
    layers = [torch.tensor(W, requires_grad=True) for W in weights]
    step = 0
    for count, rate, decay in phases:
        optimizer = torch.optim.SGD(layers, lr=rate, weight_decay=decay)
        for n in draws[step : step + count]:
            A = layers[0]
            for W in layers[1:]:
                A = W @ A
            optimizer.zero_grad()
            (
                (float(problem.values[n]) - A[problem.rows[n], problem.cols[n]]) ** 2
            ).backward()
            optimizer.step()
        step += count
    return [W.detach().numpy() for W in layers]


def plain_descend(
    F, M, G, scale, rows, cols, values, draws, learning_rate, weight_decay
):
    """Step theta <- (1 - 2 eta lam) theta - (eta/2) grad (A_ij - y)^2 for each entry, in place.

    A_ij = G[i] M[-1] ... M[0] F[j]': F (inputs x width) is the first layer transposed, M (layers x
    width x width) the middle layers, G (outputs x width) the last one; F and G are stored divided
    by scale[0], so that weight decay need not touch all their rows (here it does, and leaves 1).
    The gradient of each layer is the outer product of what comes back to it and what goes into
    it. Returns the number of steps taken before |A_ij - y| exceeded 1e8.
    """
    F *= scale[0]
    G *= scale[0]
    scale[0] = 1.0
    decay = 1 - 2 * learning_rate * weight_decay
    for taken, n in enumerate(draws):
        i, j = rows[n], cols[n]
        forward = [F[j].copy()]
        for W in M:
            forward.append(W @ forward[-1])
        backward = [G[i].copy()]
        for W in M[::-1]:
            backward.append(backward[-1] @ W)
        backward.reverse()
        error = backward[-1] @ forward[-1] - values[n]
        if not abs(error) < 1e8:
            return taken
        for layer in (F, M, G):
            layer *= decay
        F[j] -= learning_rate * error * backward[0]
        for W, h, g in zip(M, forward, backward[1:], strict=False):
            W -= learning_rate * error * np.outer(g, h)
        G[i] -= learning_rate * error * forward[-1]
    return len(draws)


@pytest.mark.parametrize("sampling", ["replacement", "shuffled"])
@pytest.mark.parametrize("depth", [2, 3, 4])
def test_equals_pytorch_step_for_step(depth, sampling):
    problem = two_by_two(0.25)
    phases = [(500, 0.03, 0.1), (1000, 0.2, 0.1)]
    schedule = Schedule.of(phases, convention="pytorch")
    runs = simulate(
        problem, depth, 30, schedule, records=[1500], seed=5, sampling=sampling
    )
    start = initial_weights(problem, depth, 30, seed=5)
    order = EntrySampler(len(problem), 5, 0, sampling).take(1500)
    expected = torch_sgd(problem, start, order, phases)
    for ours, theirs in zip(runs.weights, expected, strict=True):
        np.testing.assert_allclose(ours[0], theirs, atol=1e-10, rtol=0)


@pytest.mark.parametrize("depth", [2, 3, 5])
@pytest.mark.parametrize("width", [1, 7, 12])
def test_kernel_equals_reference(depth, width):
    rng = np.random.default_rng(depth * width)
    problem = Entries.sample(rng.standard_normal((5, 4)), 11, seed=rng)
    state = [
        0.9 / np.sqrt(width) * rng.standard_normal(shape)
        for shape in ((4, width), (depth - 2, width, width), (5, width))
    ]
    draws = rng.integers(len(problem), size=400)
    results = []
    for descend in (kernels.descend, plain_descend):
        parts, scale = [part.copy() for part in state], np.array([0.5])
        taken = descend(
            *parts, scale, problem.rows, problem.cols, problem.values, draws, 0.02, 0.05
        )
        results.append((taken, [scale * parts[0], parts[1], scale * parts[2]]))
    assert results[0][0] == results[1][0] == 400
    for ours, expected in zip(results[0][1], results[1][1], strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-12)


def test_scales_are_folded_in_before_they_underflow():
    rng = np.random.default_rng(0)
    problem = two_by_two(0.5)
    state = [rng.standard_normal(s) for s in ((2, 3), (1, 3, 3), (2, 3))]
    draws = rng.integers(3, size=3000)
    results = []
    for descend in (kernels.descend, plain_descend):
        F, M, G = (part.copy() for part in state)
        entries, scale = (problem.rows, problem.cols, problem.values), np.ones(1)
        descend(F, M, G, scale, *entries, draws, 0.1, 0.2)
        assert 1e-7 < scale[0] <= 1
        results.append([scale * F, M, scale * G])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-13)


def test_result_does_not_depend_on_workers_records_or_other_seeds():
    problem, schedule = two_by_two(0.3), Schedule.constant(600, 0.1, 0.01)
    base = simulate(problem, 3, 8, schedule, seeds=5, records=7, n_jobs=1)
    other = simulate(problem, 3, 8, schedule, seeds=[4, 2], records=[600], n_jobs=2)
    for k, number in enumerate((4, 2)):
        for a, b in zip(base.weights, other.weights, strict=True):
            np.testing.assert_array_equal(a[number], b[k])
    longer = simulate(
        problem, 3, 8, Schedule.constant(900, 0.1, 0.01), seeds=5, records=[600]
    )
    np.testing.assert_array_equal(
        longer.singular_values[:, 0],
        base.singular_values[:, list(base.steps).index(600)],
    )


@pytest.mark.parametrize("sampling", ["replacement", "shuffled"])
def test_samples_do_not_depend_on_records(sampling):
    problem = two_by_two(0.3)
    schedule = Schedule.constant(100, 0.1, 0.01)
    few = simulate(problem, 3, 8, schedule, records=[100], sampling=sampling)
    many = simulate(problem, 3, 8, schedule, records=101, sampling=sampling)
    for a, b in zip(few.weights, many.weights, strict=True):
        np.testing.assert_array_equal(a, b)


def test_shuffled_runs_use_every_entry_once_per_pass():
    problem = Entries.sample(np.ones((4, 4)), 11)
    order = EntrySampler(11, 0, 0, "shuffled").take(10 * 11 + 5)
    passes = order[:110].reshape(10, 11)
    np.testing.assert_array_equal(
        np.sort(passes, axis=1), np.tile(np.arange(11), (10, 1))
    )
    assert len(set(order[110:].tolist())) == 5
    assert len(set(map(tuple, passes.tolist()))) == 10
    few = EntrySampler(11, 0, 0, "shuffled")
    parts = [few.take(count) for count in (1, 7, 22)]
    np.testing.assert_array_equal(np.concatenate(parts), order[:30])
    other = EntrySampler(11, 0, 1, "shuffled").take(30)
    assert not np.array_equal(other, order[:30])
    with pytest.raises(InputError, match="sampling"):
        simulate(problem, 3, 8, sampling="shufled")


def test_records_match_the_weights():
    rng = np.random.default_rng(3)
    problem = Entries.sample(rng.standard_normal((4, 3)), 8, seed=rng)
    runs = simulate(
        problem, 3, 6, Schedule.constant(200, 0.05, 0.01), seeds=2, records=5
    )
    assert runs.steps.tolist() == [0, 50, 100, 150, 200]
    assert runs.singular_values.shape == (2, 5, 3)
    assert runs.missing.shape == (2, 5, 4)
    for k in range(2):
        W1, W2, W3 = (W[k] for W in runs.weights)
        A = W3 @ W2 @ W1
        np.testing.assert_allclose(
            runs.singular_values[k, -1], np.linalg.svd(A, compute_uv=False), atol=1e-12
        )
        np.testing.assert_allclose(runs.missing[k, -1], A[problem.missing], atol=1e-12)
        seen = np.mean((A[problem.rows, problem.cols] - problem.values) ** 2)
        assert runs.train_error[k, -1] == pytest.approx(seen)
        unseen = A[problem.missing] - problem.truth[problem.missing]
        zeros = np.sum(problem.truth[problem.missing] ** 2)
        assert runs.test_error[k, -1] == pytest.approx(np.sum(unseen**2) / zeros)


def test_init_continues_a_run():
    problem, schedule = two_by_two(0.3), Schedule.constant(100, 0.1, 0.01)
    first = simulate(problem, 3, 5, schedule, seeds=3)
    more = simulate(problem, 3, 5, schedule, 3, first.weights, records=[0, 100])
    np.testing.assert_array_equal(
        more.singular_values[:, 0], first.singular_values[:, -1]
    )


def test_divergence_is_a_result():
    problem = two_by_two(0.1)
    runs = simulate(
        problem, 3, 20, Schedule.constant(500, 5.0, 0.01), seeds=3, records=6
    )
    assert runs.status == Status.DIVERGED
    assert runs.diverged.all()
    assert np.isnan(runs.train_error[:, -1]).all()
    assert (runs.jump_step == -1).all()
    assert all(np.isfinite(W).all() for W in runs.weights)


def test_interrupt_keeps_what_was_done():
    simulate(two_by_two(0.3), 3, 60, Schedule.constant(10, 0.01, 0.001))  # compiles
    ctrl_c = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    ctrl_c.start()
    schedule = Schedule.constant(10**8, 0.01, 0.001)
    runs = simulate(two_by_two(0.3), 3, 60, schedule, seeds=2, records=51)
    assert runs.status == Status.INTERRUPTED
    assert np.isfinite(runs.train_error[:, 0]).all()
    assert np.isnan(runs.train_error[:, -1]).all()
    assert threading.active_count() < 10


def test_saves_loads_and_compares(tmp_path):
    runs = simulate(two_by_two(0.3), 3, 4, Schedule.constant(50, 0.1, 0.01), seeds=2)
    with np.load(runs.save(tmp_path / "runs.npz")) as stored:
        np.testing.assert_array_equal(stored["singular_values"], runs.singular_values)
        np.testing.assert_array_equal(stored["weights_2"], runs.weights[1])
    assert runs.to_dict()["status"] == "finished"
    assert type(runs).load(tmp_path / "runs.npz") == runs
    assert runs != simulate(
        two_by_two(0.3), 3, 4, Schedule.constant(50, 0.1, 0.01), seed=1
    )


def test_problem_derivatives_and_errors():
    rng = np.random.default_rng(1)
    truth = rng.standard_normal((2, 3))
    problem = Entries([0, 0, 1], [0, 0, 1], [1.0, 2.0, 3.0], (2, 3), truth=truth)
    A, B, t = rng.standard_normal((2, 3)), rng.standard_normal((2, 3)), 1e-6
    slope = (layers.cost(problem, A + t * B) - layers.cost(problem, A - t * B)) / (
        2 * t
    )
    assert np.sum(layers.cost_gradient(problem, A) * B) == pytest.approx(
        slope, rel=1e-6
    )
    assert layers.test_error(problem, np.zeros((2, 3))) == pytest.approx(1)
    assert layers.test_error(problem, problem.truth) == 0
    full = np.where(rng.random((3, 3)) < 0.5, np.nan, 1.0)
    full[0, 0] = 1.0
    assert len(Entries.from_matrix(full)) == np.sum(~np.isnan(full))


@pytest.mark.parametrize("value", [1e9, -1e9])
def test_kernel_stops_at_a_residual_of_either_sign_that_is_too_large(value):
    problem = Entries([0, 1], [0, 1], [1.0, value], (2, 2))
    start = [np.eye(2), np.eye(2), np.eye(2)]
    state = Weights(start)
    assert state.descend(problem, np.array([0, 0, 1, 0]), 0.1, 0.0) == 2
    np.testing.assert_allclose(state.layers(), start)  # which fitted the first entry
    parts = np.eye(2), np.eye(2)[None].copy(), np.eye(2)
    entries = problem.rows, problem.cols, problem.values, np.array([0, 0, 1, 0])
    assert plain_descend(*parts, np.ones(1), *entries, 0.1, 0.0) == 2
    for part in parts:
        np.testing.assert_allclose(np.squeeze(part), np.eye(2))


def test_memory_does_not_grow_with_steps_and_seeds():
    """The samples of all seeds and steps were held at once: 40 seeds x 1e7 steps took 3.2 GB."""
    problem = two_by_two(0.25)
    simulate(problem, 2, 1, Schedule.constant(10, 0.01, 0.01), records=2)  # compiles
    tracemalloc.start()
    simulate(
        problem,
        2,
        1,
        Schedule.constant(100_000, 0.01, 0.01),
        seeds=20,
        records=2,
        n_jobs=1,
    )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * 100_000 * 8 / 4


def test_seeds_are_whole_numbers_generators_or_nothing():
    schedule = Schedule.constant(4, 0.01, 0.1)

    def short_run(**options):
        return simulate(two_by_two(0.5), 3, 2, schedule, 2, **options)

    first, again, other = (
        short_run(seed=np.random.default_rng(state)) for state in (3, 3, 4)
    )
    np.testing.assert_array_equal(first.singular_values, again.singular_values)
    assert (first.singular_values != other.singular_values).all()
    assert (
        short_run(seed=None).singular_values != short_run(seed=None).singular_values
    ).all()
