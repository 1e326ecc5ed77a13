"""Thesis, Figure 6-2: how many of the top-k attacks of a grid search flip the label.

f(x) = x, x = (3, 2, 1), class 1. Perturbations on a grid in (-.51, .51)^3 within a Euclidean ball
are sorted by a loss. The printed radius .7078 leaves flips only on very fine grids; .72 shows the
same at a coarse one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from overt.experiments.base import Experiment, Finding, Findings, Params, Row, canvas, grid

X, TOP = np.array([3.0, 2.0, 1.0]), (10, 100, 1000)
LOSSES = ("cross-entropy", "reflected, log-softmax", "reflected, pairwise")
REPORTED = {(0.7078, 800): {"cross-entropy": (0, 0, 0), "reflected, pairwise": (10, 100, 172)}}


def run(params: Params, seed: int) -> dict[str, Any]:
    """Go through the grid slab by slab, keeping the best thousand by the loss."""
    axis = np.linspace(-0.51, 0.51, params["points"])
    second, third = np.meshgrid(axis, axis, indexing="ij")
    tail = second**2 + third**2
    best_value, best_flip = np.empty(0), np.empty(0, dtype=bool)
    flips = 0
    for first in axis:
        room = params["radius"] ** 2 - first**2
        inside = tail <= room
        f = np.stack([
            np.full(int(inside.sum()), X[0] + first), X[1] + second[inside], X[2] + third[inside]
        ])  # fmt: skip
        flip = np.maximum(f[1], f[2]) > f[0]
        flips += int(flip.sum())
        value = _loss(params["loss"], f)
        best_value = np.concatenate([best_value, value])
        best_flip = np.concatenate([best_flip, flip])
        if len(best_value) > TOP[-1]:
            keep = np.argpartition(-best_value, TOP[-1])[: TOP[-1]]
            best_value, best_flip = best_value[keep], best_flip[keep]
    order = np.argsort(-best_value, kind="stable")
    hits = [int(best_flip[order[:k]].sum()) for k in TOP]
    return {"hits": hits, "flips": flips}


def _loss(name: str, f: Any) -> Any:
    if name == "reflected, pairwise":
        return -np.logaddexp(0, f[0] - np.maximum(f[1], f[2]))
    log_p = f - np.logaddexp.reduce(f, axis=0)
    return -log_p[0] if name == "cross-entropy" else np.maximum(log_p[1], log_p[2])


def check(rows: list[Row]) -> Findings:
    """Compare the counts with those that are known, and the losses with each other."""
    counts = {row["loss"]: row["hits"] for row in rows}
    for row in rows:
        known = REPORTED.get((row["radius"], row["points"]), {}).get(row["loss"])
        if known is not None:
            close = all(
                abs(a - b) <= max(2, 0.02 * b) for a, b in zip(row["hits"], known, strict=True)
            )
            yield Finding(f"flips among the top 10, 100, 1000 by {row['loss']}", close,
                          str(row["hits"]), str(list(known)))  # fmt: skip
        if row["loss"] == "reflected, pairwise":
            first = [min(k, row["flips"]) for k in TOP]
            yield Finding("by the pairwise reflected loss all flips come first",
                          row["hits"] == first, str(row["hits"]), str(first))  # fmt: skip
    ce, pairwise = counts["cross-entropy"], counts["reflected, pairwise"]
    yield Finding(
        "the reflected loss ranks attacks better than cross-entropy",
        all(p >= c for p, c in zip(pairwise, ce, strict=True)) and pairwise[-1] > ce[-1],
        f"{pairwise} against {ce}, of {rows[0]['flips']} flips on the grid",
        "Figure 6-2, bars",
    )


def plot(rows: list[Row]) -> Any:
    """Draw the bars of the figure."""
    figure, bars_of = canvas(8.4, 3.0, 1, len(TOP))
    for i, (axes, k) in enumerate(zip(bars_of, TOP, strict=True)):
        values = [row["hits"][i] for row in rows]
        bars = axes.bar(range(len(rows)), values, color=["tab:blue", "salmon", "tab:red"])
        axes.bar_label(bars)
        axes.set_xticks(
            range(len(rows)), [r["loss"].replace(", ", ",\n") for r in rows], fontsize=7
        )
        axes.set_title(f"top {k}")
        axes.set_ylim(0, 1.12 * min(k, max(*values, 1)))
    return figure


EXPERIMENT = Experiment(
    id="thesis-fig6-2",
    title="Grid search: which of the top attacks flip the label",
    source="Thesis, Figure 6-2",
    claim="sorting perturbations by the reflected loss puts label flips first",
    grids={
        "toy": grid(loss=list(LOSSES), radius=0.72, points=120),
        "full": grid(loss=list(LOSSES), radius=0.7078, points=800),
    },
    run=run, check=check, plot=plot,
)  # fmt: skip
