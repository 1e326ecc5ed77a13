"""One-way jumps, Figures 1, 2 and 4: noise makes SGD jump to rank 1, and it does not come back."""

from __future__ import annotations

from typing import Any

import numpy as np

from overt._figures import BLUE, GRAY, ORANGE, YELLOW, canvas
from overt.decay import Jumps, Schedule, jumps, minima, simulate, two_by_two
from overt.experiments.base import Findings, Params, Row
from overt.experiments.verdicts import Finding, above, below, share_interval, together

CONVENTION = "pytorch"
WARM_UP = (500, 0.03, 0.1)
WIDTH = 100
EPSILONS = {"paths": 0.25, "depths": 0.1, "periods": 0.2}
PERIOD = 1000
"""Steps of a quiet and of a noisy phase in Figure 4."""


def schedule(*phases: tuple[int, float, float]) -> Schedule:
    """Return a schedule from the numbers printed in the paper's figures."""
    return Schedule.of(phases, convention=CONVENTION)


def summary(found: Jumps, shown: int) -> dict[str, Any]:
    """Return what a row keeps of the jumps: times, survival, and the first runs' curves."""
    return {
        "jump_step": found.jump_step.tolist(),
        "diverged": int(found.runs.diverged.sum()),
        "collapsed": found.collapsed,
        "returned": found.returned,
        "below": found.below,
        "grid": found.steps.tolist(),
        "surviving": _brief(found.surviving),
        "lower": _brief(found.lower),
        "upper": _brief(found.upper),
        "ratio": _brief(found.runs.ratio[:shown]),
        "missing": _brief(found.runs.missing[:shown, :, 0]),
        "final_missing": found.runs.missing[:, -1, 0].tolist(),
        "test_error": _brief(found.runs.test_error[:shown]),
    }


def _brief(curves: Any) -> Any:
    """Return curves to the four digits that a picture shows."""
    flat = [float(f"{value:.4g}") for value in np.ravel(curves)]
    return np.reshape(flat, np.shape(curves)).tolist()


def ratio_panel(axes: Any, row: Row, threshold: float = 0.05, shown: int = -1) -> None:
    """Draw s_2 / s_1 of the first runs; all faint but the one that is `shown`, if any."""
    for k, curve in enumerate(row["ratio"]):
        strength = 1 if k == shown else 0.25 if shown >= 0 else 0.5
        axes.plot(row["grid"], curve, color=ORANGE, lw=0.8, alpha=strength)
    axes.axhline(threshold, color="black", ls=":", lw=1)
    axes.set(yscale="log", ylim=(1e-4, 1), ylabel="$s_2 / s_1$")


def survival_panel(axes: Any, row: Row, label: str, color: str) -> None:
    """Draw the share of runs that have not jumped, with its band."""
    axes.step(row["grid"], row["surviving"], where="post", color=color, label=label)
    axes.fill_between(row["grid"], row["lower"], row["upper"], step="post", color=color, alpha=0.2)
    axes.set(ylim=(-0.02, 1.02), xlabel="step", ylabel="share not jumped")


def run_paths(params: Params, seed: int) -> dict[str, Any]:
    """Run the noisy path for many seeds, and quiet offshoots from some of its points."""
    problem, steps, count = two_by_two(EPSILONS["paths"]), params["steps"], 6

    def noisy(until: int) -> Schedule:
        return schedule(WARM_UP, (until - WARM_UP[0], 0.2, 0.1))

    records = steps // 50 + 1
    found = jumps(problem, 3, WIDTH, noisy(steps), params["seeds"], records=records, seed=seed)
    quiet, offshoots = schedule((10_000, 0.02, 0.001)), []
    for start in params["offshoots"]:
        at = simulate(problem, 3, WIDTH, noisy(start), count, records=[start], seed=seed)
        after = simulate(problem, 3, WIDTH, quiet, count, at.weights, 21, seed=seed + 1)
        offshoots += [
            {"start": start, "run": k, "ratio": float(at.ratio[k, -1]),
             "steps": (start + after.steps).tolist(), "missing": after.missing[k, :, 0].tolist()}
            for k in range(count)
        ]  # fmt: skip
    lowest = {m.rank: float(m.matrix[0, 1]) for m in minima(problem, 3, 0.00025)}
    return {**summary(found, shown=count), "branches": offshoots, "minimum": lowest[1]}


def check_paths(rows: list[Row]) -> Findings:
    """Check the shares that jumped, that no run returns, and what the offshoots find."""
    (row,) = rows
    step, n = np.array(row["jump_step"]), len(row["jump_step"])
    shares = [f"{np.mean((step >= 0) & (step <= when)):.2f} by step {when}"
              for when in (2000, 5000, 10_000, 20_000) if when <= row["steps"]]  # fmt: skip
    interval = share_interval(int(np.sum(step >= 0)), n)
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


def plot_paths(rows: list[Row]) -> Any:
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
    wanted = 1 / EPSILONS["paths"]
    path.axhline(wanted, color="black", ls=":", lw=1, label="rank 1, no decay")
    path.set_ylabel("missing entry")
    path.legend(loc="upper left", title="offshoots from step")
    ratio_panel(ratio, row, shown=shown)
    survival_panel(share, row, f"{len(row['jump_step'])} seeds, 95% band", ORANGE)
    share.legend()
    for axes in (path, ratio, share):
        axes.set_xlim(0, row["grid"][-1])
    path.set_ylim(top=1.15 * wanted)
    return figure


def run_depths(params: Params, seed: int) -> dict[str, Any]:
    """Run one depth for many seeds."""
    path = schedule(WARM_UP, (4500, 0.25, 0.1), (5000, 0.05, 0.001))
    given = (two_by_two(EPSILONS["depths"]), params["depth"], WIDTH, path, params["seeds"])
    return summary(jumps(*given, records=501, seed=seed), shown=5)


def check_depths(rows: list[Row]) -> Findings:
    """Check how many runs of each depth jump, and when: depth 4 does and depth 3 does not."""
    shares = {}
    for row in rows:
        steps, shallow = np.array(row["jump_step"]), row["depth"] == 3
        done = steps[steps >= 0]
        low, high = shares[row["depth"]] = share_interval(len(done), len(steps))
        when = f", median step {np.median(done):.0f}" if len(done) else ""
        yield Finding(f"depth {row['depth']}: {'few' if shallow else 'most'} runs jump",
                      below((low, high), 0.5) if shallow else above((low, high), 0.5),
                      f"{len(done)} of {len(steps)} (95%: {low:.2f} to {high:.2f}){when}",
                      "0 of 5" if shallow else "5 of 5")  # fmt: skip
    least = (shares[4][0] - shares[3][1], shares[4][1] - shares[3][0])
    yield Finding("depth 4 jumps more often than depth 3", above(least, 0),
                  f"share larger by {least[0]:.2f} to {least[1]:.2f}", "5 against 0")  # fmt: skip


def plot_depths(rows: list[Row]) -> Any:
    """Draw the missing entry of five runs of each depth, and the survival."""
    figure, (curves, share) = canvas(9, 6, 2, 1, sharex=True)
    for row in rows:
        name, color = f"depth {row['depth']}", {3: BLUE, 4: ORANGE}[row["depth"]]
        for k, curve in enumerate(row["missing"]):
            curves.plot(row["grid"], curve, color=color, lw=0.7, label=None if k else name)
        survival_panel(share, row, f"{name}, {len(row['jump_step'])} seeds, 95% band", color)
    curves.axhline(1 / EPSILONS["depths"], color="black", ls=":", lw=1)
    curves.set_ylabel("missing entry")
    for axes in (curves, share):
        axes.legend()
        axes.axvspan(500, 5000, color=GRAY, alpha=0.1, lw=0)
    return figure


def run_periods(params: Params, seed: int) -> dict[str, Any]:
    """Run the periodic schedule for many seeds, ending in a quiet phase."""
    phases = Schedule.periodic(params["periods"], PERIOD).phases
    path = Schedule((*phases, phases[1]))
    given = (two_by_two(EPSILONS["periods"]), 3, WIDTH, path, params["seeds"])
    return summary(jumps(*given, records=path.steps // 20 + 1, seed=seed), shown=5)


def check_periods(rows: list[Row]) -> Findings:
    """Check that all runs jump, and that they do it in noisy phases."""
    (row,) = rows
    steps = np.array(row["jump_step"])
    done = steps[steps >= 0]
    # The last record above the threshold may come up to one record before the phase begins.
    noisy = ((done + 20 - WARM_UP[0]) // PERIOD) % 2 == 1
    final = np.array(row["final_missing"])[steps >= 0]
    kept = final[np.abs(final) > 1e-3]
    lost, n = row["diverged"] + row["collapsed"], len(steps)
    yield Finding("most runs jump to rank 1, and none comes back",
                  together(above(share_interval(row["below"], n), 0.5), row["returned"] == 0),
                  f"{row['below']} of {n}, {row['returned']} came back", "5 of 5")  # fmt: skip
    yield Finding("jumps happen in noisy phases, more than by chance",
                  above(share_interval(int(noisy.sum()), max(len(done), 1)), 0.5),
                  f"{int(noisy.sum())} of {len(done)} in noisy phases", "all")  # fmt: skip
    filled = int(np.sum(kept > 0.5 / EPSILONS["periods"]))
    yield Finding("after the jump quiet phases fill in the missing entry (above half of it)",
                  above(share_interval(filled, max(len(kept), 1)), 0.5),
                  f"A12 {kept.min():.2f} to {kept.max():.2f}" if len(kept) else "none",
                  "close to 1/epsilon = 5")  # fmt: skip
    yield Finding("the rate .4 is at the edge: later noisy phases throw some runs out",
                  above(share_interval(lost, n), 0),
                  f"{row['diverged']} of {n} diverged, {row['collapsed']} fell to rank 0",
                  "not mentioned")  # fmt: skip


def plot_periods(rows: list[Row]) -> Any:
    """Draw the test error of five runs over the alternating phases."""
    (row,) = rows
    figure, (error, share) = canvas(9, 6, 2, 1, sharex=True)
    for curve in row["test_error"]:
        error.plot(row["grid"], curve, lw=0.8)
    error.set(yscale="log", ylabel="test error / that of zeros")
    survival_panel(share, row, "", "black")
    share.set_xlabel(f"step (shaded: noisy; {len(row['jump_step'])} seeds, 95% band)")
    for start in range(WARM_UP[0] + PERIOD, row["grid"][-1], 2 * PERIOD):
        for axes in (error, share):
            axes.axvspan(start, start + PERIOD, color=YELLOW, alpha=0.15, lw=0)
    return figure
