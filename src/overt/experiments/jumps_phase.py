"""Which share of a matrix's entries each method needs: the phase transition of completion."""

from __future__ import annotations

from typing import Any

import numpy as np

from overt.decay import DeepLinearCompletion, test_error
from overt.decay.baselines import nuclear_norm, small_initialization
from overt.entries import Entries
from overt.experiments._jumps import SOURCE
from overt.experiments.base import Experiment, Findings, Params, Row, canvas, grid
from overt.experiments.verdicts import Finding, above, share_interval

METHODS = {
    "deep": "DeepLinearCompletion",
    "nuclear": "nuclear norm (convex)",
    "small": "descent from small weights",
}
RECOVERED = 0.01
"""Test error below this share of the variance counts as recovered."""


def draw(size: int, rank: int, share: float, number: int) -> Entries:
    """Return a random matrix of this rank, seen at a share of its entries."""
    rng = np.random.default_rng([size, rank, round(1000 * share), number])
    truth = rng.standard_normal((size, rank)) @ rng.standard_normal((rank, size))
    return Entries.sample(truth, round(share * size * size), seed=rng)


def complete(method: str, problem: Entries, seed: int) -> Any:
    """Return the completed matrix."""
    match method:
        case "deep":
            return DeepLinearCompletion(seed=seed).fit(problem).complete()
        case "nuclear":
            return nuclear_norm(problem)
    return small_initialization(problem, seed=seed)


def run(params: Params, seed: int) -> dict[str, Any]:
    """Complete the same matrices by every method."""
    size, rank, share = params["size"], params["rank"], params["share"]
    problems = [draw(size, rank, share, k) for k in range(params["draws"])]
    return {
        method: [test_error(p, complete(method, p, seed)) for p in problems] for method in METHODS
    }


def check(rows: list[Row]) -> Findings:
    """Check that the deep network recovers wherever the others do, and more."""
    solved = {m: np.concatenate([np.array(row[m]) < RECOVERED for row in rows]) for m in METHODS}
    measured = ", ".join(f"{name} {solved[m].sum()}" for m, name in METHODS.items())
    for other in ("nuclear", "small"):
        more = int(np.sum(solved["deep"] & ~solved[other]))
        fewer = int(np.sum(~solved["deep"] & solved[other]))
        interval = share_interval(more, more + fewer) if more + fewer else (0.0, 1.0)
        yield Finding(f"of the matrices that only one recovers, the deep network does more than "
                      f"{METHODS[other]}", above(interval, 0.5),
                      f"{more} against {fewer}; of {len(solved[other])}: {measured}")  # fmt: skip


def plot(rows: list[Row]) -> Any:
    """Draw the share of recovered matrices by rank and share of entries, one panel a method."""
    ranks, shares = (sorted({row[key] for row in rows}) for key in ("rank", "share"))
    size = rows[0]["size"]
    figure, panels = canvas(10, 3.6, 1, len(METHODS), sharey=True)
    for axes, (method, name) in zip(panels, METHODS.items(), strict=True):
        table = np.full((len(shares), len(ranks)), np.nan)
        for row in rows:
            cell = shares.index(row["share"]), ranks.index(row["rank"])
            table[cell] = _recovered(row, method) / row["draws"]
        image = axes.imshow(table, origin="lower", aspect="auto", cmap="viridis", vmin=0, vmax=1)
        for (i, j), value in np.ndenumerate(table):
            axes.text(j, i, f"{value:.0%}", ha="center", va="center", color="C1", fontsize=8)
        freedom = [r * (2 * size - r) / size**2 for r in ranks]
        axes.plot(
            range(len(ranks)),
            np.interp(freedom, shares, range(len(shares)), left=np.nan),
            "w--",
            lw=1.5,
        )
        axes.set_xticks(range(len(ranks)), [str(r) for r in ranks])
        axes.set_yticks(range(len(shares)), [f"{s:g}" for s in shares])
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("rank")
    panels[0].set_ylabel("share of entries observed")
    figure.colorbar(image, ax=panels, label="share recovered")
    return figure


def _recovered(row: Row, method: str) -> int:
    return int(np.sum(np.array(row[method]) < RECOVERED))


EXPERIMENT = Experiment(
    id="jumps-phase",
    title="Phase transition of matrix completion",
    source=f"{SOURCE}, section 2.1 (comparison by overt)",
    claim="shedding rank by noise recovers matrices from fewer entries than the nuclear norm needs",
    grids={
        "toy": grid(size=30, rank=[1, 2], share=[0.16, 0.4], draws=1),
        "reduced": grid(size=40, rank=[1, 2, 3], share=[0.1, 0.15, 0.2, 0.3, 0.4], draws=2),
        "paper": grid(size=100, rank=[1, 2, 3, 5, 8],
                     share=[0.04, 0.06, 0.08, 0.1, 0.13, 0.17, 0.22, 0.3, 0.4, 0.5], draws=3),
    },
    run=run, check=check, plot=plot, differs={"paper": "our own comparison; the paper has none"},
)  # fmt: skip
