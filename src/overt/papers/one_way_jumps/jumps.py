"""Sections 3.2.1 and 4: the figures, jumps under noise."""

from __future__ import annotations

from typing import Any

import numpy as np

from overt._figures import BLUE, GRAY, ORANGE, YELLOW, canvas
from overt.decay import Jumps, Schedule, existence, jumps, minima, simulate, two_by_two
from overt.papers.descent import descend
from overt.papers.figures import (
    Finding,
    Findings,
    Params,
    Row,
    Rows,
    above,
    below,
    column_of_each,
    mean_interval,
    most,
    rows_with,
    share_interval,
    together,
    values_of,
)
from overt.papers.one_way_jumps.networks import network
from overt.papers.records import figure

WARM_UP = (500, 0.03, 0.1)
"""Steps, learning rate and weight decay of the first phase."""

WIDTH = 100

PERIOD = 1000
"""Steps of a quiet and of a noisy phase in Figure 4."""

RECOVERED = 0.1
"""Relative test error below which the missing entry counts as recovered."""

DECAYS = (0.025, 0.00025)
"""Where random descents try to find a minimum that is not on the list."""


def schedule(params: Params, *phases: tuple[int, float, float]) -> Schedule:
    """Return a schedule from the numbers printed in the paper's figures."""
    return Schedule.of(phases, convention=params.get("convention", "pytorch"))


def split(rows: Rows) -> tuple[Rows, Rows]:
    """Return the rows with the printed decay read as PyTorch's, and those with the printed loss."""
    shown = [row for row in rows if "convention" not in row]
    printed = [row for row in rows if "convention" in row]
    return shown, printed


def check_printed(rows: Rows) -> Findings:
    """Check whether the printed decay reproduces the figure under the printed loss."""
    runs = sum(len(row["jump_step"]) for row in rows)
    low = 0
    for row in rows:
        low += row["collapsed"] + row["diverged"]
    if rows:
        yield Finding(
            "the printed weight decay reproduces the figure under the printed loss",
            most(runs - low, runs),
            f"{low} of {runs} runs fall to rank 0 or diverge",
            "jumps from rank 2 to rank 1",
        )


def summary(found: Jumps, shown: int) -> dict[str, Any]:
    """Return what a row keeps of the jumps: times, survival, and the first runs' curves."""
    runs = found.runs
    curves = {
        "surviving": found.surviving,
        "lower": found.lower,
        "upper": found.upper,
        "ratio": runs.ratio[:shown],
        "missing": runs.missing[:shown, :, 0],
        "test_error": runs.test_error[:shown],
    }
    return {
        "jump_step": found.jump_step.tolist(),
        "diverged": int(runs.diverged.sum()),
        "collapsed": found.collapsed,
        "returned": found.returned,
        "below": found.below,
        "grid": found.steps.tolist(),
        "final_missing": runs.missing[:, -1, 0].tolist(),
        # Six decimals are more than a picture shows.
        **{name: np.round(curve, 6).tolist() for name, curve in curves.items()},
    }


def ratio_panel(axes: Any, row: Row, threshold: float = 0.05) -> None:
    """Plot s_2 / s_1 of the first runs."""
    ratios = np.transpose(row["ratio"])
    grid = row["grid"]
    axes.plot(grid, ratios, color=ORANGE, lw=0.8, alpha=0.5)
    axes.axhline(threshold, color="black", ls=":", lw=1)
    axes.set_yscale("log")
    axes.set_ylim(1e-4, 1)
    axes.set_ylabel("$s_2 / s_1$")


def survival_panel(axes: Any, row: Row, color: str, name: str = "") -> None:
    """Plot the share of runs that have not jumped, with its band."""
    grid = row["grid"]
    label = f"{name}{len(row['jump_step'])} runs, 95% band"
    axes.step(grid, row["surviving"], where="post", color=color, label=label)
    band = {"step": "post", "color": color, "alpha": 0.2}
    lower = row["lower"]
    axes.fill_between(grid, lower, row["upper"], **band)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("step")
    axes.set_ylabel("share not jumped")
    axes.legend()


def run_paths(params: Params, seed: int) -> dict[str, Any]:
    """Run the noisy path for many seeds, and quiet offshoots from some of its points."""
    steps = params["steps"]
    given = (two_by_two(0.25), 3, WIDTH)

    def noisy(until: int) -> Schedule:
        return schedule(params, WARM_UP, (until - WARM_UP[0], 0.2, 0.1))

    records = steps // 50 + 1
    found = jumps(*given, noisy(steps), params["seeds"], records=records, seed=seed)
    quiet = schedule(params, (10_000, 0.02, 0.001))
    offshoots = []
    for start in params["offshoots"]:
        at = simulate(*given, noisy(start), 6, records=[start], seed=seed)
        after = simulate(*given, quiet, 6, at.weights, 21, seed=seed + 1)
        for k in range(6):
            offshoot = {
                "start": start,
                "run": k,
                "ratio": float(at.ratio[k, -1]),
                "steps": (start + after.steps).tolist(),
                "missing": after.missing[k, :, 0].tolist(),
            }
            offshoots.append(offshoot)
    (minimum,) = [m.matrix[0, 1] for m in minima(given[0], 3, 0.00025) if m.rank == 1]
    return {**summary(found, 6), "branches": offshoots, "minimum": float(minimum)}


def check_paths(rows: Rows) -> Findings:
    """Check the shares that jumped, that no run returns, and what the offshoots find."""
    (row,), printed = split(rows)
    yield from check_printed(printed)
    step = np.array(row["jump_step"])
    jumped = int(np.sum(step >= 0))
    low, high = share_interval(jumped, len(step))
    yield Finding(
        "most runs jump to rank 1 before the noisy phase ends",
        above((low, high), 0.5),
        f"{jumped / len(step):.2f} of {len(step)} (95%: {low:.2f} to {high:.2f})",
        "the one run shown jumps",
    )
    yield Finding(
        "a run whose s2/s1 was below .02 does not come back above .05",
        row["returned"] == 0,
        f"{row['returned']} of {row['below']} came back",
        "probability 0",
    )
    # Runs at ratios of .02 to .1 are in the middle of the jump and may end on either side.
    before = []
    after = []
    for branch in row["branches"]:
        end = branch["missing"][-1]
        if branch["ratio"] >= 0.1:
            before.append(end)
        elif branch["ratio"] < 0.02:
            after.append(end)
    minimum = row["minimum"]
    distances = [abs(end - minimum) for end in after]
    off = max(distances, default=np.inf)
    yield Finding(
        "offshoots before the jump fail to fill in the missing entry",
        bool(before) and max(before) < 0.5 * minimum,
        _range(before),
        "not 1/epsilon = 4",
    )
    yield Finding(
        "offshoots after the jump find the rank-1 minimum",
        off < 0.1,
        f"{_range(after)}; the minimum has {minimum:.3f}",
        "close to 1/epsilon = 4",
    )


def _range(ends: list[float]) -> str:
    if not ends:
        return "none"
    return f"{len(ends)}, A12 {min(ends):.2f} to {max(ends):.2f}"


def plot_paths(rows: Rows) -> Any:
    """Plot the noisy path and its offshoots, the ratio of singular values, and the survival."""
    (row,), _ = split(rows)
    first = np.array(row["jump_step"][:6])
    shown = int(np.argmax(first > 0))
    picture, axes = canvas(9, 8, 3, 1, sharex=True)
    path, ratio, share = axes
    grid = row["grid"]
    path.plot(grid, row["missing"][shown], color=GRAY, label="noisy path")
    for branch in rows_with(row["branches"], run=shown):
        label = f"from step {branch['start']:,}, ends at {branch['missing'][-1]:.2f}"
        path.plot(branch["steps"], branch["missing"], label=label)
    path.axhline(4, color="black", ls=":", lw=1, label="rank 1, no decay")
    path.set_ylabel("missing entry")
    path.set_ylim(None, 4.6)
    path.legend()
    ratio_panel(ratio, row)
    survival_panel(share, row, ORANGE)
    share.set_xlim(0, grid[-1])
    return picture


def run_depths(params: Params, seed: int) -> dict[str, Any]:
    """Run one depth for many seeds."""
    path = schedule(params, WARM_UP, (4500, 0.25, 0.1), (5000, 0.05, 0.001))
    given = (two_by_two(0.1), params["depth"], WIDTH, path, params["seeds"])
    return summary(jumps(*given, records=501, seed=seed), shown=5)


def check_depths(rows: Rows) -> Findings:
    """Check how many runs of each depth jump, and when: depth 4 does and depth 3 does not."""
    shown, printed = split(rows)
    yield from check_printed(printed)
    for row in shown:
        steps = np.array(row["jump_step"])
        jumped = int(np.sum(steps >= 0))
        low, high = share_interval(jumped, len(steps))
        claims = {
            3: ("few", below((low, high), 0.5), "0 of 5"),
            4: ("most", above((low, high), 0.5), "5 of 5"),
        }
        many, verdict, printed_count = claims[row["depth"]]
        yield Finding(
            f"depth {row['depth']}: {many} runs jump",
            verdict,
            f"{jumped} of {len(steps)} (95%: {low:.2f} to {high:.2f})",
            printed_count,
        )


def plot_depths(rows: Rows) -> Any:
    """Plot the missing entry of five runs of each depth, and the survival."""
    picture, axes = canvas(9, 6, 2, 1, sharex=True)
    curves, share = axes
    shown, _ = split(rows)
    for row in shown:
        color = {3: BLUE, 4: ORANGE}[row["depth"]]
        missing = np.transpose(row["missing"])
        curves.plot(row["grid"], missing, color=color, lw=0.7)
        survival_panel(share, row, color, f"depth {row['depth']}, ")
    curves.axhline(10, color="black", ls=":", lw=1)
    curves.set_ylabel("missing entry")
    for panel in axes:
        panel.axvspan(500, 5000, color=GRAY, alpha=0.1, lw=0)
    return picture


def run_periods(params: Params, seed: int) -> dict[str, Any]:
    """Run the periodic schedule for many seeds, ending in a quiet phase."""
    quiet = (PERIOD, 0.1, 0.001)
    noisy = (PERIOD, 0.4, 0.1)
    path = schedule(params, WARM_UP, *[quiet, noisy] * params["periods"], quiet)
    given = (two_by_two(0.2), 3, WIDTH, path, params["seeds"])
    return summary(jumps(*given, records=path.steps // 20 + 1, seed=seed), shown=5)


def check_periods(rows: Rows) -> Findings:
    """Check that all runs jump, and that they do it in noisy phases."""
    (row,), printed = split(rows)
    yield from check_printed(printed)
    steps = np.array(row["jump_step"])
    n = len(steps)
    done = steps[steps >= 0]
    yield Finding(
        "most runs jump to rank 1, and none comes back",
        together(most(row["below"], n), row["returned"] == 0),
        f"{row['below']} of {n}, {row['returned']} came back",
        "5 of 5",
    )
    # The last record above the threshold may come up to one record before the phase begins.
    phase = (done + 20 - WARM_UP[0]) // PERIOD
    noisy = np.sum(phase % 2 == 1)
    yield Finding(
        "jumps happen in noisy phases, more than by chance",
        most(noisy, len(done)),
        f"{noisy} of {len(done)} in noisy phases",
        "all",
    )
    final = np.array(row["final_missing"])
    final = final[steps >= 0]
    kept = final[np.abs(final) > 1e-3].tolist()
    filled = sum(x > 2.5 for x in kept)
    yield Finding(
        "after the jump quiet phases fill in the missing entry (above half of it)",
        most(filled, len(kept)),
        _range(kept),
        "close to 1/epsilon = 5",
    )


def plot_periods(rows: Rows) -> Any:
    """Plot the test error of five runs over the alternating phases."""
    (row,), _ = split(rows)
    picture, axes = canvas(9, 6, 2, 1, sharex=True)
    error, share = axes
    grid = row["grid"]
    errors = np.transpose(row["test_error"])
    error.plot(grid, errors, lw=0.8)
    error.set(
        yscale="log",
        ylabel="test error / that of zeros",
    )
    survival_panel(share, row, "black")
    share.set_xlabel("step (noisy phases are shaded)")
    first = WARM_UP[0] + PERIOD
    for start in range(first, grid[-1], 2 * PERIOD):
        end = start + PERIOD
        for panel in axes:
            panel.axvspan(start, end, color=YELLOW, alpha=0.15, lw=0)
    return picture


def run_epsilon(params: Params, seed: int) -> dict[str, Any]:
    """Run t0 noisy steps (the warm-up included) and then the quiet phase, at depth 4."""
    noisy = params["noisy_steps"]
    start = [WARM_UP, (noisy - WARM_UP[0], 0.25, 0.1)] if noisy else []
    path = schedule(params, *start, (4000, 0.05, 0.001))
    given = (two_by_two(params["epsilon"]), 4, WIDTH, path, params["seeds"])
    runs = simulate(*given, records=[path.steps], seed=seed)
    error = runs.test_error[:, -1]
    return {
        "test_error": error.tolist(),
        "mean": float(error.mean()),
        "standard_error": float(error.std(ddof=1) / np.sqrt(len(error))),
    }


def check_epsilon(rows: Rows) -> Findings:
    """Check that no noise fails, that some noise suffices for large epsilon, more for small."""
    shown, printed = split(rows)
    easy = [row for row in printed if row["epsilon"] >= 0.25 and row["noisy_steps"]]
    if easy:
        claim = (
            "the printed weight decay recovers epsilon >= .25 under the printed loss"
        )
        yield _recovered(claim, easy)
    still = rows_with(shown, noisy_steps=0)
    intervals = [mean_interval(row["test_error"]) for row in still]
    failed = [above(interval, RECOVERED) for interval in intervals]
    yield Finding(
        f"without a noisy phase the missing entry is not recovered (error above {RECOVERED:g})",
        together(*failed),
        _means(still),
        "fails even for epsilon = 1",
    )
    noisy = rows_with(shown, noisy_steps=1000)
    easy = [row for row in noisy if row["epsilon"] >= 0.25]
    yield _recovered("1000 noisy steps are enough for epsilon >= .25", easy)
    hard = rows_with(shown, epsilon=0.1)
    hard.sort(key=lambda row: row["noisy_steps"])
    errors = [np.array(row["test_error"]) for row in hard]
    gain = mean_interval(errors[0] - errors[-1])
    second = mean_interval(errors[1])
    means = [f"{row['noisy_steps']}: {row['mean']:.2f}" for row in hard]
    yield Finding(
        "epsilon = .1 needs a longer noisy phase",
        together(above(gain, 0), above(second, RECOVERED)),
        f"error by noisy steps {', '.join(means)}",
        "larger t0 recovers smaller epsilon",
    )


def _recovered(claim: str, rows: Rows) -> Finding:
    intervals = [mean_interval(row["test_error"]) for row in rows]
    within = [below(interval, RECOVERED) for interval in intervals]
    verdict = together(*within)
    return Finding(claim, verdict, _means(rows), "recovered")


def _means(rows: Rows) -> str:
    found = [f"{row['epsilon']:g}: {row['mean']:.3f}" for row in rows]
    return "mean relative error " + ", ".join(found)


def plot_epsilon(rows: Rows) -> Any:
    """Plot the relative test error against epsilon, one curve for each length."""
    shown, _ = split(rows)
    picture, axes = canvas(6.4, 4.2)
    for noisy in values_of(shown, "noisy_steps"):
        line = rows_with(shown, noisy_steps=noisy)
        line.sort(key=lambda row: row["epsilon"])
        x = [row["epsilon"] for row in line]
        mean = [row["mean"] for row in line]
        bars = [2 * row["standard_error"] for row in line]
        axes.errorbar(x, mean, bars, fmt="o-", ms=3, label=f"$t_0$ = {noisy}")
    axes.set(
        xlabel=r"$\epsilon$",
        ylabel="test error / that of zeros",
    )
    axes.legend(title=f"{shown[0]['seeds']} seeds, 2 s.e.")
    return picture


def run_minima(params: Params, seed: int) -> dict[str, Any]:
    """Find the minima on a ladder of weight decays, and descend from random weights at two."""
    depth = params["depth"]
    problem = two_by_two(params["epsilon"])
    points = []
    for lam in sorted({*np.geomspace(1e-5, 0.12, params["points"]), *DECAYS}):
        starts = 24 if lam in DECAYS else 1
        for m in minima(problem, depth, lam, starts=starts, seed=seed, every=True):
            point = {"weight_decay": float(lam), "rank": m.rank, "loss": m.loss}
            points.append({**point, "missing": float(m.matrix[0, 1])})
    rng = np.random.default_rng(seed)
    ends = []
    for lam in DECAYS:
        objective, _, size = network(problem, depth, 2, lam)
        first = rng.standard_normal((params["descents"], size))
        ends += [(lam, descend(objective, start)[0]) for start in first]
    exists = {str(r): existence(problem, depth, r) for r in (1, 2)}
    return {"points": points, "ends": ends, "exists": exists}


def check_minima(rows: Rows) -> Findings:
    """Compare with random descents, and with the existence thresholds."""
    for row in rows:
        name = f"L = {row['depth']}, epsilon = {row['epsilon']:g}"
        off = []
        for lam, loss, *_ in row["ends"]:
            listed = rows_with(row["points"], weight_decay=lam)
            distances = [abs(loss / point["loss"] - 1) for point in listed]
            off.append(min(distances))
        yield Finding(
            f"{name}: random descents end at the listed minima",
            max(off) < 1e-6,
            f"{len(off)} descents, largest relative distance in loss {max(off):.0e}",
        )
        one = row["exists"]["1"]
        two = row["exists"]["2"]
        limits = [np.inf, one, two]
        beyond = 0
        for point in row["points"]:
            beyond += point["weight_decay"] >= limits[point["rank"]]
        yield Finding(
            f"{name}: no rank-2 minimum above lam = {two:.4f}, no rank-1 above "
            f"{one:.4f}",
            beyond == 0,
            f"{beyond} found above",
        )


def plot_minima(rows: Rows) -> Any:
    """Plot the missing entry and the loss of each rank's minimum against the weight decay."""
    picture, grid = column_of_each(rows, 3.3, 6, 2, sharex=True)
    for column, row in enumerate(rows):
        missing, loss = grid[:, column]
        for axes, key in ((missing, "missing"), (loss, "loss")):
            for rank, color in enumerate((GRAY, ORANGE, BLUE)):
                line = rows_with(row["points"], rank=rank)
                lam = [point["weight_decay"] for point in line]
                found = [point[key] for point in line]
                axes.plot(lam, found, ".", ms=3, color=color, label=f"rank {rank}")
            axes.set_xscale("log")
        limit = 1.3 / row["epsilon"]
        missing.set_ylim(-limit, limit)
        missing.set_title(f"L = {row['depth']}, $\\epsilon$ = {row['epsilon']:g}")
        loss.set(
            yscale="log",
            xlabel="weight decay",
        )
    grid[0, 0].set_ylabel("missing entry")
    grid[1, 0].set_ylabel("regularized loss")
    grid[0, 0].legend()
    return picture


figure(
    "jumps-fig1",
    "Figure 1",
    "3.2.1",
    """A jump from rank 2 to rank 1, and offshoots before and after it.

    Noisy SGD jumps to rank 1 for good; only after that does quiet SGD find the rank-1 fit.
    """,
    run=run_paths,
    check=check_paths,
    plot=plot_paths,
)

figure(
    "jumps-fig2",
    "Figure 2",
    "3.2.1",
    """Depth makes jumps more likely.

    Networks of depth 4 jump to rank 1 within the noisy phase, networks of depth 3 do not.
    """,
    run=run_depths,
    check=check_depths,
    plot=plot_depths,
)

figure(
    "jumps-fig3",
    "Figure 3",
    "4",
    """Annealing across epsilon.

    Longer noisy phases recover the rank-1 completion for smaller epsilon.
    """,
    run=run_epsilon,
    check=check_epsilon,
    plot=plot_epsilon,
)

figure(
    "jumps-fig4",
    "Figure 4",
    "4",
    """Jumps under a periodic schedule.

    All runs jump, all in noisy phases; quiet phases then show a low test error.
    """,
    run=run_periods,
    check=check_periods,
    plot=plot_periods,
)

figure(
    "jumps-minima",
    "section 4, the three minima",
    "4",
    """Local minima by rank.

    Ranks 0, 1 and 2 each have a minimum, rank 1 a second one that fits worse; higher ranks bear
    less decay.
    """,
    run=run_minima,
    check=check_minima,
    plot=plot_minima,
)
