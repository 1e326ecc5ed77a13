"""Deep linear networks with weight decay: the simulator, the jumps, and completion."""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks._baselines import nuclear_norm, small_initialization
from benchmarks.harness import Table, seconds, verdict
from overt import Entries
from overt.decay import (
    DeepLinearCompletion,
    Schedule,
    initial_weights,
    jumps,
    simulate,
    test_error,
    two_by_two,
)
from overt.decay.simulation import EntrySampler

NOISY = Schedule.of([(500, 0.03, 0.1), (49_500, 0.2, 0.1)], convention="pytorch")


def run() -> list[Table]:
    return [simulator(), figure_one(), no_return(), sample_efficiency(), recovery()]


def simulator() -> Table:
    import torch

    torch.set_num_threads(1)
    problem, steps = two_by_two(0.25), 1500
    table = Table(
        "SGD of a deep linear network against PyTorch (width 100, 2 x 2 problem, one thread)",
        (
            "depth",
            "PyTorch us/step",
            "overt us/step",
            "ratio",
            "largest difference",
            "bar",
            "met",
        ),
    )
    schedule = Schedule.of([(500, 0.03, 0.1), (1000, 0.2, 0.1)], convention="pytorch")
    long = Schedule.of([(500, 0.03, 0.1), (29_500, 0.2, 0.1)], convention="pytorch")
    for depth in (3, 4):
        start = initial_weights(problem, depth, 100)
        ours = simulate(problem, depth, 100, schedule, records=[steps])
        theirs = torch_sgd(
            problem, start, EntrySampler(len(problem), 0, 0, "replacement").take(steps)
        )
        difference = max(
            float(np.abs(a[0] - b).max())
            for a, b in zip(ours.weights, theirs, strict=True)
        )
        short = EntrySampler(len(problem), 0, 0, "replacement").take(300)
        slow, fast = seconds(
            lambda start=start, short=short: torch_sgd(problem, start, short),
            lambda depth=depth: simulate(
                problem, depth, 100, long, records=[long.steps], n_jobs=1
            ),
            repeat=5,
        )
        ratio = (slow / 300) / (fast / long.steps)
        table.rows.append(
            (
                depth,
                slow / 300 * 1e6,
                fast / long.steps * 1e6,
                ratio,
                f"{difference:.1e} after {steps} steps",
                ">= 50 and <= 1e-10" if depth == 3 else "",
                verdict(ratio >= 50 and difference <= 1e-10),
            )
        )
    return table


def torch_sgd(problem: Entries, weights: Any, draws: Any) -> list[Any]:
    """The paper's algorithm as one would write it in PyTorch: 500 steps at .03, then .2."""
    import torch

    layers = [torch.tensor(W, requires_grad=True) for W in weights]
    optimizer = torch.optim.SGD(layers, lr=0.03, weight_decay=0.1)
    entries = [
        (int(problem.rows[n]), int(problem.cols[n]), float(problem.values[n]))
        for n in draws
    ]
    for step, (i, j, value) in enumerate(entries):
        if step == 500:
            optimizer.param_groups[0]["lr"] = 0.2
        A = layers[0]
        for W in layers[1:]:
            A = W @ A
        optimizer.zero_grad()
        ((value - A[i, j]) ** 2).backward()
        optimizer.step()
    return [W.detach().numpy() for W in layers]


def figure_one() -> Table:
    start = time.perf_counter()
    found = jumps(two_by_two(0.25), 3, 100, NOISY, 100, records=501)
    elapsed = time.perf_counter() - start
    table = Table(
        "Figure 1 at scale: 100 seeds x 50,000 steps, all cores",
        ("seconds", "jumped by 2000", "5000", "10000", "20000", "50000", "bar", "met"),
    )
    last = np.searchsorted(found.steps, (2000, 5000, 10_000, 20_000, 50_000), "right")
    shares = (1 - found.surviving[last - 1]).tolist()
    table.rows.append((elapsed, *shares, "minutes (< 300 s)", verdict(elapsed < 300)))
    table.notes.append(
        f"{found.returned} of {found.below} runs that had fallen below s2/s1 = .02 came back "
        "above .05."
    )
    return table


def no_return() -> Table:
    problem = two_by_two(0.25)
    first = simulate(
        problem,
        3,
        100,
        NOISY.until(20_000),
        200,
        records=[20_000],
        seed=1,
    )
    low = np.flatnonzero(first.ratio[:, -1] < 0.02)
    more = Schedule.constant(20_000, 0.2, 0.1, convention="pytorch")
    after = simulate(
        problem,
        3,
        100,
        more,
        len(low),
        [W[low] for W in first.weights],
        201,
        seed=2,
    )
    back = int(np.sum(after.ratio.max(axis=1) >= 0.05))
    table = Table(
        "No way back: 200 runs, 20,000 noisy steps, then 20,000 more from s2/s1 < .02",
        (
            "below .02 after 20,000",
            "back above .05 later",
            "largest s2/s1 later",
            "bar",
            "met",
        ),
    )
    table.rows.append(
        (len(low), back, float(after.ratio.max()), "0", verdict(back == 0))
    )
    return table


def sample_efficiency(draws: int = 10) -> Table:
    """Smallest number of entries (in steps of 50) from which a method recovers, by bisection."""
    table = Table(
        "Entries needed to recover a rank-2 100 x 100 matrix (test error < 1% of the variance)",
        (
            "draw",
            "DeepLinearCompletion",
            "nuclear norm",
            "small initialization",
            "fewer",
        ),
    )
    wins = 0
    for number in range(draws):
        rng = np.random.default_rng([7, number])
        truth = rng.standard_normal((100, 2)) @ rng.standard_normal((2, 100))
        order = rng.permutation(truth.size)
        deep, nuclear, small = (
            least_entries(truth, order, method)
            for method in (fit_deep, nuclear_norm, fit_small)
        )
        wins += deep < nuclear
        table.rows.append((number, deep, nuclear, small, verdict(deep < nuclear)))
    table.notes.append(
        f"Fewer than the nuclear norm in {wins} of {draws} draws; bar: 8 of 10."
    )
    return table


def least_entries(truth: Any, order: Any, method: Any) -> int:
    counts = list(range(450, 2450, 50))
    low, high = -1, len(counts) - 1
    while high - low > 1:
        middle = (low + high) // 2
        rows, cols = np.divmod(np.sort(order[: counts[middle]]), truth.shape[1])
        problem = Entries(rows, cols, truth[rows, cols], truth.shape, truth=truth)
        low, high = (
            (low, middle)
            if test_error(problem, method(problem)) < 0.01
            else (middle, high)
        )
    return counts[high]


def recovery() -> Table:
    """Relative test error at three times the degrees of freedom, rank 1 to 10."""
    methods = {
        "DeepLinearCompletion": fit_deep,
        "nuclear norm": nuclear_norm,
        "small initialization": fit_small,
    }
    if find_spec("overt.completion") is not None and dropout_available():
        methods["DropoutCompletion"] = fit_dropout
    table = Table(
        "Test error / variance at 3 x rank (200 - rank) entries of a 100 x 100 matrix "
        "(median of 3 draws; seconds)",
        ("rank", "entries", *methods),
    )
    for rank in (1, 2, 4, 7, 10):
        count = 3 * rank * (200 - rank)
        cells = []
        for method in methods.values():
            errors, start = [], time.perf_counter()
            for number in range(3):
                rng = np.random.default_rng([11, rank, number])
                truth = rng.standard_normal((100, rank)) @ rng.standard_normal(
                    (rank, 100)
                )
                problem = Entries.sample(truth, count, seed=rng)
                errors.append(test_error(problem, method(problem)))
            cells.append(
                f"{np.median(errors):.1e} ({(time.perf_counter() - start) / 3:.1f} s)"
            )
        table.rows.append((rank, count, *cells))
    return table


def fit_deep(problem: Entries) -> Any:
    return DeepLinearCompletion().fit(problem).complete()


def fit_small(problem: Entries) -> Any:
    return small_initialization(problem)


def dropout_available() -> bool:
    try:
        from overt.completion import DropoutCompletion  # noqa: F401
    except ImportError:
        return False
    return True


def fit_dropout(problem: Entries) -> Any:
    from overt.completion import DropoutCompletion

    return (
        DropoutCompletion(n_factors=10, drop_prob="learn", seed=0)
        .fit(problem)
        .complete()
    )
