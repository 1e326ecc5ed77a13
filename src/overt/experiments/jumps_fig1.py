"""One-way jumps, Figure 1: noise makes SGD jump to rank 1; only offshoots after the jump fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from overt._figures import GRAY, ORANGE, canvas
from overt.decay import jumps, minima, simulate, two_by_two
from overt.experiments import _jumps
from overt.experiments.base import Findings, Params, Row
from overt.experiments.verdicts import Finding, above, share_interval

DEPTH, EPSILON = 3, 0.25
QUIET = (10_000, 0.02, 0.001)


def run(params: Params, seed: int) -> dict[str, Any]:
    """Run the noisy path for many seeds, and quiet offshoots from some of its points."""
    problem, steps = two_by_two(EPSILON), params["steps"]
    path = _jumps.schedule(_jumps.WARM_UP, (steps - _jumps.WARM_UP[0], 0.2, 0.1))
    found = jumps(
        problem, DEPTH, _jumps.WIDTH, path, params["seeds"], records=steps // 50 + 1, seed=seed
    )
    offshoots = []
    for start in params["offshoots"]:
        count = 6
        prefix = _jumps.schedule(_jumps.WARM_UP, (start - _jumps.WARM_UP[0], 0.2, 0.1))
        at = simulate(problem, DEPTH, _jumps.WIDTH, prefix, count, records=[start], seed=seed)
        path = _jumps.schedule(QUIET)
        quiet = simulate(problem, DEPTH, _jumps.WIDTH, path, count, at.weights, 21, seed=seed + 1)
        offshoots += [
            {"start": start, "run": k, "ratio": float(at.ratio[k, -1]),
             "steps": (start + quiet.steps).tolist(), "missing": quiet.missing[k, :, 0].tolist()}
            for k in range(count)
        ]  # fmt: skip
    lowest = {m.rank: float(m.matrix[0, 1]) for m in minima(problem, DEPTH, 0.00025)}
    return {**_jumps.summary(found, shown=6), "branches": offshoots, "minimum": lowest[1]}


def check(rows: list[Row]) -> Findings:
    """Check the shares that jumped, that no run returns, and what the offshoots find."""
    (row,) = rows
    step, n = np.array(row["jump_step"]), len(row["jump_step"])
    shares = [f"{np.mean((step >= 0) & (step <= when)):.2f} by step {when}"
              for when in (2000, 5000, 10_000, 20_000) if when <= row["steps"]]  # fmt: skip
    interval = share_interval(_jumps.jumped(row), n)
    yield Finding("most runs jump to rank 1 before the noisy phase ends", above(interval, 0.5),
                  f"{', '.join(shares)}; of {n} (95%: {interval[0]:.2f} to {interval[1]:.2f})",
                  "the one run shown jumps")  # fmt: skip
    yield Finding("a run whose s2/s1 was below .02 does not come back above .05",
                  row["returned"] == 0, f"{row['returned']} of {row['below']} came back",
                  "probability 0")  # fmt: skip
    final = [(b["ratio"], b["missing"][-1]) for b in row["branches"]]
    before = [x for ratio, x in final if ratio >= 0.05]
    after = [x for ratio, x in final if ratio < 0.02]
    # Runs at ratios of .05 to .1 are in the middle of the jump and may end on either side.
    stuck = [x for ratio, x in final if ratio >= 0.1]
    yield Finding("offshoots before the jump fail to fill in the missing entry",
                  bool(stuck) and max(stuck) < 0.5 * row["minimum"],
                  _range(before) or "none started before a jump",
                  "not 1/epsilon = 4")  # fmt: skip
    found = after and f"{_range(after)}; the minimum has {row['minimum']:.3f}"
    yield Finding("offshoots after the jump find the rank-1 minimum",
                  bool(after) and max(abs(x - row["minimum"]) for x in after) < 0.1,
                  found or "none started after a jump", "close to 1/epsilon = 4")  # fmt: skip


def _range(ends: list[float]) -> str:
    return f"{len(ends)} offshoots, A12 {min(ends):.2f} to {max(ends):.2f}" if ends else ""


def plot(rows: list[Row]) -> Any:
    """Draw the noisy path and its offshoots, the ratio of singular values, and the survival."""
    (row,) = rows
    shown = int(np.argmax(np.array(row["jump_step"][:6]) > 0))
    figure, (path, ratio, share) = canvas(9, 8, 3, 1)
    path.plot(row["grid"], row["missing"][shown], color=GRAY, lw=0.8, label="noisy path")
    chosen = [branch for branch in row["branches"] if branch["run"] == shown]
    for k, branch in enumerate(chosen):
        steps, missing = branch["steps"], branch["missing"]
        color = (0.1, 0.1, 0.9 - 0.7 * k / max(len(chosen) - 1, 1))
        label = f"{steps[0]:,}: $s_2/s_1$ = {branch['ratio']:.2g}, ends at {missing[-1]:.2f}"
        path.plot(steps, missing, color=color, ls=("-", "--", "-.")[k % 3], lw=1.4, label=label)
        path.plot(steps[0], missing[0], "o", color=color, ms=4)
    path.axhline(1 / EPSILON, color="black", ls=":", lw=1, label="rank 1, no decay")
    path.set_ylabel("missing entry")
    path.legend(loc="upper left", title="offshoots from step")
    _jumps.ratio_panel(ratio, row, shown=shown)
    _jumps.survival_panel(share, row, f"{len(row['jump_step'])} seeds, 95% band", ORANGE)
    share.legend()
    for axes in (path, ratio, share):
        axes.set_xlim(0, row["grid"][-1])
    path.set_ylim(top=1.15 / EPSILON)
    return figure
