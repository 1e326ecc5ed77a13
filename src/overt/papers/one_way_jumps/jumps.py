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
    above,
    below,
    mean_interval,
    rows_with,
    share_interval,
    together,
    values_of,
)
from overt.papers.one_way_jumps.networks import network
from overt.papers.oracles import chain
from overt.papers.records import figure

CONVENTION = "pytorch"

QUARTER = (
    "the printed learning rates and weight decays do not reproduce the figure under the printed "
    "loss; they do under PyTorch's (a quarter of the decay). More runs than printed"
)


WARM_UP = (500, 0.03, 0.1)


WIDTH = 100


EPSILONS = {"paths": 0.25, "depths": 0.1, "periods": 0.2}


PERIOD = 1000
"""Steps of a quiet and of a noisy phase in Figure 4."""


def schedule(params: Params, *phases: tuple[int, float, float]) -> Schedule:
    """Return a schedule from the numbers printed in the paper's figures."""
    return Schedule.of(phases, convention=params.get("convention", CONVENTION))


def as_pytorch(rows: list[Row]) -> list[Row]:
    """Return the rows in which the printed decay is read as PyTorch's, which the figure shows."""
    return [row for row in rows if "convention" not in row]


def check_printed(rows: list[Row]) -> Findings:
    """Check whether the printed decay reproduces the figure under the printed loss."""
    printed = [row for row in rows if "convention" in row]
    if printed:
        runs = sum(len(row["jump_step"]) for row in printed)
        low = sum(row["collapsed"] + row["diverged"] for row in printed)
        yield Finding(
            "the printed weight decay reproduces the figure under the printed loss",
            above(share_interval(runs - low, runs), 0.5),
            f"{low} of {runs} runs fall to rank 0 or diverge",
            "jumps from rank 2 to rank 1",
        )


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
    """Plot s_2 / s_1 of the first runs; all faint but the one that is `shown`, if any."""
    for k, curve in enumerate(row["ratio"]):
        strength = 1 if k == shown else 0.25 if shown >= 0 else 0.5
        axes.plot(row["grid"], curve, color=ORANGE, lw=0.8, alpha=strength)
    axes.axhline(threshold, color="black", ls=":", lw=1)
    axes.set(yscale="log", ylim=(1e-4, 1), ylabel="$s_2 / s_1$")


def survival_panel(axes: Any, row: Row, label: str, color: str) -> None:
    """Plot the share of runs that have not jumped, with its band."""
    axes.step(row["grid"], row["surviving"], where="post", color=color, label=label)
    axes.fill_between(
        row["grid"], row["lower"], row["upper"], step="post", color=color, alpha=0.2
    )
    axes.set(ylim=(-0.02, 1.02), xlabel="step", ylabel="share not jumped")


def run_paths(params: Params, seed: int) -> dict[str, Any]:
    """Run the noisy path for many seeds, and quiet offshoots from some of its points."""
    problem, steps, count = two_by_two(EPSILONS["paths"]), params["steps"], 6

    def noisy(until: int) -> Schedule:
        return schedule(params, WARM_UP, (until - WARM_UP[0], 0.2, 0.1))

    records = steps // 50 + 1
    found = jumps(
        problem, 3, WIDTH, noisy(steps), params["seeds"], records=records, seed=seed
    )
    quiet, offshoots = schedule(params, (10_000, 0.02, 0.001)), []
    for start in params["offshoots"]:
        at = simulate(
            problem, 3, WIDTH, noisy(start), count, records=[start], seed=seed
        )
        after = simulate(problem, 3, WIDTH, quiet, count, at.weights, 21, seed=seed + 1)
        offshoots += [
            {
                "start": start,
                "run": k,
                "ratio": float(at.ratio[k, -1]),
                "steps": (start + after.steps).tolist(),
                "missing": after.missing[k, :, 0].tolist(),
            }
            for k in range(count)
        ]
    lowest = {m.rank: float(m.matrix[0, 1]) for m in minima(problem, 3, 0.00025)}
    return {**summary(found, shown=count), "branches": offshoots, "minimum": lowest[1]}


def check_paths(rows: list[Row]) -> Findings:
    """Check the shares that jumped, that no run returns, and what the offshoots find."""
    yield from check_printed(rows)
    (row,) = as_pytorch(rows)
    step, n = np.array(row["jump_step"]), len(row["jump_step"])
    shares = [
        f"{np.mean((step >= 0) & (step <= when)):.2f} by step {when}"
        for when in (2000, 5000, 10_000, 20_000)
        if when <= row["steps"]
    ]
    interval = share_interval(int(np.sum(step >= 0)), n)
    yield Finding(
        "most runs jump to rank 1 before the noisy phase ends",
        above(interval, 0.5),
        f"{', '.join(shares)}; of {n} (95%: {interval[0]:.2f} to {interval[1]:.2f})",
        "the one run shown jumps",
    )
    yield Finding(
        "a run whose s2/s1 was below .02 does not come back above .05",
        row["returned"] == 0,
        f"{row['returned']} of {row['below']} came back",
        "probability 0",
    )
    final = [(b["ratio"], b["missing"][-1]) for b in row["branches"]]
    before = [x for ratio, x in final if ratio >= 0.05]
    after = [x for ratio, x in final if ratio < 0.02]
    # Runs at ratios of .05 to .1 are in the middle of the jump and may end on either side.
    stuck = [x for ratio, x in final if ratio >= 0.1]
    yield Finding(
        "offshoots before the jump fail to fill in the missing entry",
        bool(stuck) and max(stuck) < 0.5 * row["minimum"],
        _range(before) or "none started before a jump",
        "not 1/epsilon = 4",
    )
    found = after and f"{_range(after)}; the minimum has {row['minimum']:.3f}"
    yield Finding(
        "offshoots after the jump find the rank-1 minimum",
        bool(after) and max(abs(x - row["minimum"]) for x in after) < 0.1,
        found or "none started after a jump",
        "close to 1/epsilon = 4",
    )


def _range(ends: list[float]) -> str:
    return (
        f"{len(ends)} offshoots, A12 {min(ends):.2f} to {max(ends):.2f}" if ends else ""
    )


def plot_paths(rows: list[Row]) -> Any:
    """Plot the noisy path and its offshoots, the ratio of singular values, and the survival."""
    (row,) = as_pytorch(rows)
    shown = int(np.argmax(np.array(row["jump_step"][:6]) > 0))
    figure, (path, ratio, share) = canvas(9, 8, 3, 1)
    path.plot(
        row["grid"], row["missing"][shown], color=GRAY, lw=0.8, label="noisy path"
    )
    chosen = [branch for branch in row["branches"] if branch["run"] == shown]
    for k, branch in enumerate(chosen):
        steps, missing = branch["steps"], branch["missing"]
        color = (0.1, 0.1, 0.9 - 0.7 * k / max(len(chosen) - 1, 1))
        label = f"{steps[0]:,}: $s_2/s_1$ = {branch['ratio']:.2g}, ends at {missing[-1]:.2f}"
        path.plot(
            steps,
            missing,
            color=color,
            ls=("-", "--", "-.")[k % 3],
            lw=1.4,
            label=label,
        )
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
    path = schedule(params, WARM_UP, (4500, 0.25, 0.1), (5000, 0.05, 0.001))
    given = (
        two_by_two(EPSILONS["depths"]),
        params["depth"],
        WIDTH,
        path,
        params["seeds"],
    )
    return summary(jumps(*given, records=501, seed=seed), shown=5)


def check_depths(rows: list[Row]) -> Findings:
    """Check how many runs of each depth jump, and when: depth 4 does and depth 3 does not."""
    yield from check_printed(rows)
    shares = {}
    for row in as_pytorch(rows):
        steps, shallow = np.array(row["jump_step"]), row["depth"] == 3
        done = steps[steps >= 0]
        low, high = shares[row["depth"]] = share_interval(len(done), len(steps))
        when = f", median step {np.median(done):.0f}" if len(done) else ""
        yield Finding(
            f"depth {row['depth']}: {'few' if shallow else 'most'} runs jump",
            below((low, high), 0.5) if shallow else above((low, high), 0.5),
            f"{len(done)} of {len(steps)} (95%: {low:.2f} to {high:.2f}){when}",
            "0 of 5" if shallow else "5 of 5",
        )
    least = (shares[4][0] - shares[3][1], shares[4][1] - shares[3][0])
    yield Finding(
        "depth 4 jumps more often than depth 3",
        above(least, 0),
        f"share larger by {least[0]:.2f} to {least[1]:.2f}",
        "5 against 0",
    )


def plot_depths(rows: list[Row]) -> Any:
    """Plot the missing entry of five runs of each depth, and the survival."""
    figure, (curves, share) = canvas(9, 6, 2, 1, sharex=True)
    for row in as_pytorch(rows):
        name, color = f"depth {row['depth']}", {3: BLUE, 4: ORANGE}[row["depth"]]
        for k, curve in enumerate(row["missing"]):
            curves.plot(
                row["grid"], curve, color=color, lw=0.7, label=None if k else name
            )
        survival_panel(
            share, row, f"{name}, {len(row['jump_step'])} seeds, 95% band", color
        )
    curves.axhline(1 / EPSILONS["depths"], color="black", ls=":", lw=1)
    curves.set_ylabel("missing entry")
    for axes in (curves, share):
        axes.legend()
        axes.axvspan(500, 5000, color=GRAY, alpha=0.1, lw=0)
    return figure


def run_periods(params: Params, seed: int) -> dict[str, Any]:
    """Run the periodic schedule for many seeds, ending in a quiet phase."""
    convention = params.get("convention", CONVENTION)
    phases = Schedule.periodic(params["periods"], PERIOD, convention=convention).phases
    path = Schedule((*phases, phases[1]))
    given = (two_by_two(EPSILONS["periods"]), 3, WIDTH, path, params["seeds"])
    return summary(jumps(*given, records=path.steps // 20 + 1, seed=seed), shown=5)


def check_periods(rows: list[Row]) -> Findings:
    """Check that all runs jump, and that they do it in noisy phases."""
    yield from check_printed(rows)
    (row,) = as_pytorch(rows)
    steps = np.array(row["jump_step"])
    done = steps[steps >= 0]
    # The last record above the threshold may come up to one record before the phase begins.
    noisy = ((done + 20 - WARM_UP[0]) // PERIOD) % 2 == 1
    final = np.array(row["final_missing"])[steps >= 0]
    kept = final[np.abs(final) > 1e-3]
    lost, n = row["diverged"] + row["collapsed"], len(steps)
    yield Finding(
        "most runs jump to rank 1, and none comes back",
        together(above(share_interval(row["below"], n), 0.5), row["returned"] == 0),
        f"{row['below']} of {n}, {row['returned']} came back",
        "5 of 5",
    )
    yield Finding(
        "jumps happen in noisy phases, more than by chance",
        above(share_interval(int(noisy.sum()), max(len(done), 1)), 0.5),
        f"{int(noisy.sum())} of {len(done)} in noisy phases",
        "all",
    )
    filled = int(np.sum(kept > 0.5 / EPSILONS["periods"]))
    yield Finding(
        "after the jump quiet phases fill in the missing entry (above half of it)",
        above(share_interval(filled, max(len(kept), 1)), 0.5),
        f"A12 {kept.min():.2f} to {kept.max():.2f}" if len(kept) else "none",
        "close to 1/epsilon = 5",
    )
    yield Finding(
        "the rate .4 is at the edge: later noisy phases throw some runs out",
        above(share_interval(lost, n), 0),
        f"{row['diverged']} of {n} diverged, {row['collapsed']} fell to rank 0",
        "not mentioned",
    )


def plot_periods(rows: list[Row]) -> Any:
    """Plot the test error of five runs over the alternating phases."""
    (row,) = as_pytorch(rows)
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


RECOVERED = 0.1
"""Relative test error below which the missing entry counts as recovered."""


DECAYS = (0.025, 0.00025)
"""Where random descents try to find a minimum that is not on the list."""


def run_epsilon(params: Params, seed: int) -> dict[str, Any]:
    """Run t0 noisy steps (the warm-up included) and then the quiet phase, at depth 4."""
    noisy = params["noisy_steps"]
    start = [WARM_UP, (noisy - WARM_UP[0], 0.25, 0.1)] if noisy else []
    path = schedule(params, *start, (4000, 0.05, 0.001))
    given = (two_by_two(params["epsilon"]), 4, WIDTH, path, params["seeds"])
    runs = simulate(*given, records=[path.steps], balance=False, seed=seed)
    error = runs.test_error[:, -1]
    return {
        "test_error": error.tolist(),
        "mean": float(error.mean()),
        "standard_error": float(error.std(ddof=1) / np.sqrt(len(error))),
    }


def check_epsilon(rows: list[Row]) -> Findings:
    """Check that no noise fails, that some noise suffices for large epsilon, more for small."""
    printed = [row for row in rows if "convention" in row]
    rows = as_pytorch(rows)
    if printed:
        yield _printed_recovers(printed)
    table = {(row["epsilon"], row["noisy_steps"]): row["test_error"] for row in rows}
    epsilons, lengths = (sorted({key[i] for key in table}) for i in (0, 1))
    first = next(t for t in lengths if t)
    still = {e: table[e, 0] for e in epsilons}
    easy = {e: table[e, first] for e in epsilons if e >= 0.25}
    hard = [table[0.1, t] for t in lengths]
    gain = mean_interval(np.subtract(hard[0], hard[-1]))
    yield Finding(
        f"without a noisy phase the missing entry is not recovered (error above {RECOVERED:g})",
        together(*(above(mean_interval(e), RECOVERED) for e in still.values())),
        _means(still),
        "fails even for epsilon = 1",
    )
    yield Finding(
        f"{first} noisy steps are enough for epsilon >= .25",
        together(*(below(mean_interval(e), RECOVERED) for e in easy.values())),
        _means(easy),
        "recovered",
    )
    yield Finding(
        "epsilon = .1 needs a longer noisy phase",
        together(above(gain, 0), above(mean_interval(table[0.1, first]), RECOVERED)),
        "error by noisy steps "
        + ", ".join(
            f"{t}: {np.mean(e):.2f}" for t, e in zip(lengths, hard, strict=True)
        ),
        "larger t0 recovers smaller epsilon",
    )


def _printed_recovers(rows: list[Row]) -> Finding:
    """Return whether annealing recovers epsilon >= .25 with the printed decay and loss."""
    chosen = [row for row in rows if row["noisy_steps"] and row["epsilon"] >= 0.25]
    errors = {row["epsilon"]: row["test_error"] for row in chosen}
    return Finding(
        "the printed weight decay recovers epsilon >= .25 under the printed loss",
        together(
            *(below(mean_interval(row["test_error"]), RECOVERED) for row in chosen)
        ),
        _means(errors),
        "recovered",
    )


def _means(errors: dict[float, list[float]]) -> str:
    return "mean relative error " + ", ".join(
        f"{e:g}: {np.mean(v):.3f}" for e, v in errors.items()
    )


def plot_epsilon(rows: list[Row]) -> Any:
    """Plot the relative test error against epsilon, one curve for each length."""
    rows = as_pytorch(rows)
    figure, axes = canvas(6.4, 4.2)
    for noisy in values_of(rows, "noisy_steps"):
        line = sorted(rows_with(rows, noisy_steps=noisy), key=lambda r: r["epsilon"])
        x, mean, se = (
            [r[key] for r in line] for key in ("epsilon", "mean", "standard_error")
        )
        style = {"marker": "o", "ms": 3, "capsize": 2, "label": f"$t_0$ = {noisy}"}
        axes.errorbar(x, mean, yerr=[2 * s for s in se], **style)
    axes.set(
        xlabel=r"$\epsilon$", ylabel="test error / that of zeros", ylim=(-0.03, 1.05)
    )
    axes.legend(title=f"{rows[0]['seeds']} seeds, 2 s.e.")
    return figure


def run_minima(params: Params, seed: int) -> dict[str, Any]:
    """Find the minima on a ladder of weight decays, and descend from random weights at two."""
    depth, problem = params["depth"], two_by_two(params["epsilon"])
    ladder = sorted({*np.geomspace(1e-5, 0.12, params["points"]), *DECAYS})
    points = []
    for lam in ladder:
        starts = 24 if lam in DECAYS else 1
        points += [
            {
                "weight_decay": float(lam),
                "rank": m.rank,
                "missing": float(m.matrix[0, 1]),
                "loss": m.loss,
                "curvature": m.curvature,
            }
            for m in minima(problem, depth, lam, starts=starts, seed=seed, every=True)
        ]
    rng, ends = np.random.default_rng(seed), []
    for lam in DECAYS:
        objective, weights, size = network(problem, depth, 2, lam)
        for _ in range(params["descents"]):
            loss, theta = descend(objective, rng.standard_normal(size))
            ends.append((lam, loss, chain(weights(theta))[0, 1]))
    exists = {str(r): existence(problem, depth, r) for r in (1, 2)}
    return {"points": points, "ends": ends, "exists": exists}


def check_minima(rows: list[Row]) -> Findings:
    """Compare with random descents, and with the existence thresholds."""
    for row in rows:
        name = f"L = {row['depth']}, epsilon = {row['epsilon']:g}"
        listed = {(p["weight_decay"], p["loss"]) for p in row["points"]}
        off = [
            min(abs(loss / other - 1) for at, other in listed if at == lam)
            for lam, loss, _ in row["ends"]
        ]
        yield Finding(
            f"{name}: random descents end at the listed minima",
            max(off) < 1e-6,
            f"{len(off)} descents, largest relative distance in loss {max(off):.0e}",
        )
        limits = {int(r): lam for r, lam in row["exists"].items()}
        inside = all(
            p["weight_decay"] < limits[p["rank"]] for p in row["points"] if p["rank"]
        )
        yield Finding(
            f"{name}: no rank-2 minimum above lam = {limits[2]:.4f}, no rank-1 above "
            f"{limits[1]:.4f}",
            inside,
            "none found above",
        )


def plot_minima(rows: list[Row]) -> Any:
    """Plot the missing entry and the loss of each rank's minimum against the weight decay."""
    figure, grid = canvas(3.3 * len(rows), 6, 2, len(rows), squeeze=False, sharex=True)
    colors = {0: GRAY, 1: ORANGE, 2: BLUE}
    for (upper, lower), row in zip(grid.T, rows, strict=True):
        for rank, mirrored in ((0, False), (1, False), (1, True), (2, False)):
            line = [
                p
                for p in row["points"]
                if (p["rank"], p["missing"] < 0) == (rank, mirrored)
            ]
            lam, color = [p["weight_decay"] for p in line], colors[rank]
            style, label = (
                (".:", "rank 1, mirrored") if mirrored else (".-", f"rank {rank}")
            )
            for axes, key in ((upper, "missing"), (lower, "loss")):
                axes.plot(
                    lam, [p[key] for p in line], style, ms=3, color=color, label=label
                )
        for rank in (1, 2):
            for axes in (upper, lower):
                axes.axvline(row["exists"][str(rank)], color=colors[rank], ls=":", lw=1)
        wanted = 1 / row["epsilon"]
        upper.axhline(wanted, color="black", ls=":", lw=0.8)
        upper.set(
            xscale="log",
            ylim=(-1.3 * wanted, 1.3 * wanted),
            title=f"L = {row['depth']}, $\\epsilon$ = {row['epsilon']:g}",
        )
        lower.set(yscale="log", xlabel="weight decay")
    grid[0, 0].set_ylabel("missing entry")
    grid[1, 0].set_ylabel("regularized loss")
    grid[0, 0].legend()
    return figure


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
    hours={"paper": 0.04},
    sizes={
        "toy": {
            "seeds": 16,
            "steps": 6000,
            "offshoots": [[1000, 6000]],
        },
        "paper": [
            {
                "seeds": 100,
                "steps": 20000,
                "offshoots": [[1000, 2000, 4000, 8000, 16000]],
            },
            {
                "convention": "loss",
                "seeds": 20,
                "steps": 20000,
                "offshoots": [[1000, 16000]],
            },
        ],
    },
    differs={
        "toy": "16 runs of 6,000 steps",
        "paper": QUARTER,
    },
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
    hours={"paper": 0.03},
    sizes={
        "toy": {
            "depth": [3, 4],
            "seeds": 8,
        },
        "paper": [
            {"depth": [3, 4], "seeds": 40},
            {"convention": "loss", "depth": [3, 4], "seeds": 20},
        ],
    },
    differs={
        "toy": "8 runs of each depth",
        "paper": QUARTER,
    },
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
    hours={"paper": 0.32},
    sizes={
        "toy": {
            "epsilon": [0.1, 0.25, 1.0],
            "noisy_steps": [0, 1000, 5000],
            "seeds": 8,
        },
        "paper": [
            {
                "epsilon": [0.05, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5, 0.75, 1.0],
                "noisy_steps": [0, 1000, 2000, 5000],
                "seeds": 40,
            },
            {
                "convention": "loss",
                "epsilon": [0.1, 0.25, 1.0],
                "noisy_steps": [0, 1000, 5000],
                "seeds": 20,
            },
        ],
    },
    differs={
        "toy": "three values of epsilon, 8 runs of each",
        "paper": QUARTER,
    },
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
    hours={"paper": 0.03},
    sizes={
        "toy": {
            "seeds": 8,
            "periods": 5,
        },
        "paper": [
            {"seeds": 40, "periods": 10},
            {"convention": "loss", "seeds": 20, "periods": 10},
        ],
    },
    differs={
        "toy": "8 runs of 5 periods",
        "paper": QUARTER,
    },
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
    hours={"paper": 0.01},
    sizes={
        "toy": {
            "depth": 3,
            "epsilon": 0.25,
            "points": 12,
            "descents": 6,
        },
        "paper": {
            "depth": [3, 4],
            "epsilon": [0.25, 0.1],
            "points": 60,
            "descents": 40,
        },
    },
    differs={
        "paper": "the paper states them without a picture",
        "toy": "one depth and one epsilon; the paper states them without a picture",
    },
    revision=2,
)
