"""One-way jumps, Figure 3: the smaller epsilon, the longer the noisy phase must be."""

from __future__ import annotations

from typing import Any

import numpy as np

from overt._figures import canvas
from overt.decay import simulate, two_by_two
from overt.experiments._jumps import WARM_UP, WIDTH, schedule
from overt.experiments.base import Findings, Params, Row
from overt.experiments.verdicts import Finding, above, below, mean_interval, together

DEPTH = 4
QUIET = (4000, 0.05, 0.001)
RECOVERED = 0.1
"""Relative test error below which the missing entry counts as recovered."""


def run(params: Params, seed: int) -> dict[str, Any]:
    """Run t0 noisy steps (the warm-up included) and then the quiet phase."""
    noisy = params["noisy_steps"]
    start = [WARM_UP, (noisy - WARM_UP[0], 0.25, 0.1)] if noisy else []
    path = schedule(*start, QUIET)
    problem = two_by_two(params["epsilon"])
    runs = simulate(
        problem, DEPTH, WIDTH, path, params["seeds"], records=[path.steps], balance=False, seed=seed
    )
    error = runs.test_error[:, -1]
    return {
        "test_error": error.tolist(),
        "mean": float(error.mean()),
        "standard_error": float(error.std(ddof=1) / np.sqrt(len(error))),
    }


def check(rows: list[Row]) -> Findings:
    """Check that no noise fails, that some noise suffices for large epsilon, more for small."""
    table = {(row["epsilon"], row["noisy_steps"]): row["test_error"] for row in rows}
    epsilons, lengths = (sorted({key[i] for key in table}) for i in (0, 1))
    first = next(t for t in lengths if t)
    still = {e: table[e, 0] for e in epsilons}
    easy = {e: table[e, first] for e in epsilons if e >= 0.25}
    hard = [table[0.1, t] for t in lengths]
    gain = mean_interval(np.subtract(hard[0], hard[-1]))
    yield Finding(f"without a noisy phase the missing entry is not recovered (error above "
                  f"{RECOVERED:g})",
                  together(*(above(mean_interval(e), RECOVERED) for e in still.values())),
                  _means(still), "fails even for epsilon = 1")  # fmt: skip
    yield Finding(f"{first} noisy steps are enough for epsilon >= .25",
                  together(*(below(mean_interval(e), RECOVERED) for e in easy.values())),
                  _means(easy), "recovered")  # fmt: skip
    yield Finding("epsilon = .1 needs a longer noisy phase",
                  together(above(gain, 0), above(mean_interval(table[0.1, first]), RECOVERED)),
                  "error by noisy steps "
                  + ", ".join(f"{t}: {np.mean(e):.2f}" for t, e in zip(lengths, hard, strict=True)),
                  "larger t0 recovers smaller epsilon")  # fmt: skip


def _means(errors: dict[float, list[float]]) -> str:
    return "mean relative error " + ", ".join(f"{e:g}: {np.mean(v):.3f}" for e, v in errors.items())


def plot(rows: list[Row]) -> Any:
    """Draw the relative test error against epsilon, one curve for each length."""
    figure, axes = canvas(6.4, 4.2)
    for noisy in sorted({row["noisy_steps"] for row in rows}):
        line = sorted((r for r in rows if r["noisy_steps"] == noisy), key=lambda r: r["epsilon"])
        x, mean, se = ([r[key] for r in line] for key in ("epsilon", "mean", "standard_error"))
        style = {"marker": "o", "ms": 3, "capsize": 2, "label": f"$t_0$ = {noisy}"}
        axes.errorbar(x, mean, yerr=[2 * s for s in se], **style)
    axes.set(xlabel=r"$\epsilon$", ylabel="test error / that of zeros", ylim=(-0.03, 1.05))
    axes.legend(title=f"{rows[0]['seeds']} seeds, 2 s.e.")
    return figure
