"""The tour's chapter on weight decay: minima by rank, one-way jumps, and what they are good for."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from overt import decay
from overt._html import Page
from overt.decay.baselines import nuclear_norm
from overt.entries import Entries
from overt.papers.one_way_jumps.jumps import EPSILONS, plot_depths, summary

EPSILON, WIDTH, SEEDS = EPSILONS["depths"], 60, 12


def chapter(page: Page, folder: Path, seed: int) -> bool:
    """Show the minima of a 2 x 2 problem, watch SGD jump between them, complete a matrix."""
    page.section("Weight decay: SGD jumps to lower rank, and never back")
    problem = decay.two_by_two(EPSILON)
    page.text(
        "Complete [[1, *], [0.1, 1]] with a deep linear network and weight decay. There is a local "
        "minimum for each rank: 0, 1 (which fills in 10, more or less, and is what one wants) and "
        "2 (which fills in something small). Gradient descent ends in the last one. SGD's noise "
        "kicks it over into rank 1, sooner if the network is deeper, and it stays there."
    )
    rows = []
    for depth in (3, 4):
        limits = {r: decay.existence(problem, depth, r) for r in (1, 2)}
        rows += [
            (depth, m.rank, m.kind, float(m.matrix[0, 1]), m.loss, limits.get(m.rank), m.verified)
            for m in decay.minima(problem, depth, 0.00025, starts=1, seed=seed)
        ]
    page.table(
        ("depth", "rank", "kind", "fills in", "loss", "exists below decay", "verified minimum"),
        rows,
    )
    phases = [(500, 0.03, 0.1), (4500, 0.25, 0.1), (2500, 0.05, 0.001)]
    schedule = decay.Schedule.of(phases, convention="pytorch")
    given = (WIDTH, schedule, SEEDS)
    found = {d: decay.jumps(problem, d, *given, records=151, seed=seed) for d in (3, 4)}
    page.figure(
        plot_depths([{"depth": d, **summary(f, SEEDS)} for d, f in found.items()]),
        f"The missing entry in {SEEDS} runs for each depth. Shaded: the noisy phase. Jumped: "
        + ", ".join(f"{f.jumped} at depth {depth}" for depth, f in found.items())
        + ".",
    )
    page.text(
        "The same trick completes larger matrices: noise sheds rank while the decay grows, quiet "
        "phases fit what is left, held-out entries say where to stop. The nuclear norm, "
        "its convex rival, needs more entries."
    )
    held = _recovery(page, seed)
    shallow, deep = found[3].jumped, found[4].jumped
    back = sum(f.returned for f in found.values())
    return bool(held and all(r[-1] for r in rows) and shallow < deep and back == 0)


def _recovery(page: Page, seed: int) -> bool:
    rng = np.random.default_rng([seed, 5])
    truth = rng.standard_normal((60, 2)) @ rng.standard_normal((2, 60))
    problem = Entries.sample(truth, 720, seed=rng)
    model = decay.DeepLinearCompletion(seed=seed).fit(problem)
    page.table(
        ("decay", "rank", "error on the fitted entries", "error on the held-out entries"),
        [(c.weight_decay, c.rank, c.train_error, c.holdout_error) for c in model.path_],
    )
    deep, convex = (decay.test_error(problem, A) for A in (model.complete(), nuclear_norm(problem)))
    page.text(
        f"A 60 x 60 matrix of rank 2, one fifth of it seen: found rank {model.rank_}, relative "
        f"error on the rest {deep:.1e}; nuclear norm {convex:.1e}."
    )
    return bool(model.rank_ == 2 and deep < 0.01 and deep < convex)
