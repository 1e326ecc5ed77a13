"""The tour's chapter on two-layer ReLU networks: capacity, bounds, and what training needs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from overt import relu
from overt._figures import canvas
from overt._html import Page

WIDTHS, DROP_PROB, STEPS = (20, 100, 500, 2000), 0.8, 3000


def chapter(page: Page, folder: Path, seed: int) -> bool:
    """Compare bounds with the complexity itself, then train with dropout and take parts out."""
    page.section("ReLU networks: what dropout's penalty bounds, and sub-networks that work alone")
    between = _complexity(page, seed)
    X, y, test = _digits(seed)
    runs = {
        m: relu.train_lazy(X, y, width=m, drop_prob=DROP_PROB, steps=STEPS, holdout=test, seed=seed)
        for m in WIDTHS
    }
    wide = runs[WIDTHS[-1]]
    wide.save(folder / "relu-lazy.json")
    _show_runs(page, runs, test[0])
    gamma = relu.margin(X, y, drop_prob=DROP_PROB, features=400, tol=0.05, seed=seed)
    usable = gamma.lower > 0
    silent = "No positive margin was proved, so the theory is silent."
    page.text(_asked(gamma, 100 * wide.full_error[-1]) if usable else silent)
    gaps = [float(run.unseen_error[-1] - run.full_error[-1]) for run in runs.values()]
    claims = {
        "the complexity lies between Theorems 13 and 12": between,
        "dropout learns to tell 4 from 7": bool(wide.full_error[-1] < 0.05),
        f"unseen sub-networks lag less behind at width {WIDTHS[-1]} than at {WIDTHS[0]} (by "
        f"{100 * gaps[-1]:.1f} and {100 * gaps[0]:.1f} points)": gaps[-1] < gaps[0],
    }
    return page.claims(claims) and usable


def _complexity(page: Page, seed: int) -> bool:
    """Show the complexity of the class between its bounds; return whether it is there."""
    page.text(
        "The flow of a hidden unit is the size of its outgoing weights times the root mean square "
        "of its activation. Dropout's penalty is λ = drop_prob / (1 - drop_prob) times the sum "
        "of the squared flows; that of the flows themselves, alpha, bounds how well the class of "
        "such networks can fit random signs. In the plane that capacity can be computed exactly, "
        "sign by sign, and stands between two theorems."
    )
    angles = np.random.default_rng([seed, 4]).uniform(0, 2 * np.pi, 40)
    spread = np.stack([np.cos(angles), 0.5 * np.sin(angles)], axis=1)
    found = {
        shift: relu.rademacher(spread + np.array([shift, 0]), draws=300, seed=seed)
        for shift in (0.0, 0.2, 0.35)
    }
    page.table(
        ("inputs shifted by", "retentivity", "Theorem 13 (lower)", "Rademacher complexity",
         "Theorem 12 (upper)"),
        [(shift, f.retentivity, f.lower, f.value, f.upper) for shift, f in found.items()],
    )  # fmt: skip
    return all(f.lower <= f.value <= f.upper for f in found.values())


def _show_runs(page: Page, runs: dict[int, relu.LazyRun], X: Any) -> None:
    page.text(
        f"Now train the hidden layer on 8 x 8 images of 4 and 7, dropping {DROP_PROB:.0%} of the "
        "units at each step, and beside each network look at others drawn at random from it, a "
        "fifth of its width and never seen in training."
    )
    page.figure(
        _picture(runs),
        "Left: test error after training, of the full network and of sub-networks it never saw. "
        "Right: wide networks move less (the lazy regime), though over these widths the longest "
        "move falls more slowly than the dotted line, 1 / sqrt(width).",
    )
    page.figure(
        _flow_picture(runs, X),
        "Flows of the hidden units, sorted and scaled by their mean. phi = |flow|_1 / (sqrt(width) "
        "|flow|_2) is 1 where all units do the same amount of work and 1 / sqrt(width) where one "
        "unit does all of it.",
    )


def _asked(gamma: relu.Margin, reached: float) -> str:
    """Return what theory asks for at this margin beside the error that was reached."""
    need = relu.required(epsilon=0.1, margin=gamma.lower, dimension=64)
    have = relu.guarantee(margin=gamma.lower, dimension=64, width=WIDTHS[-1], steps=STEPS)
    return (
        f"What theory asks: the margin of these data is estimated at {gamma.lower:.3f} to "
        f"{gamma.upper:.3f}, and for an error of 10% Theorem 14 asks for {need.width:.1e} "
        f"units and {need.steps:.1e} steps. What happened: {reached:.1f}% with "
        f"{WIDTHS[-1]} units and {STEPS} steps, for which the theorem needs "
        f"{have.needed_width:.1e} units and promises nothing."
    )


def _digits(seed: int) -> tuple[Any, Any, tuple[Any, Any]]:
    """Return training and test images of 4 and 7, of norm 1, labeled -1 and 1."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    chosen = np.flatnonzero(np.isin(bunch.target, (4, 7)))
    chosen = np.random.default_rng([seed, 7]).permutation(chosen)
    X = bunch.data[chosen] / np.linalg.norm(bunch.data[chosen], axis=1, keepdims=True)
    y = np.where(bunch.target[chosen] == 7, 1.0, -1.0)
    return X[:240], y[:240], (X[240:], y[240:])


def _picture(runs: dict[int, relu.LazyRun]) -> Any:
    figure, (errors, moves) = canvas(8.6, 3.2, 1, 2)
    widths = list(runs)
    for label, name in (("full network", "full_error"), ("unseen sub-networks", "unseen_error")):
        values = [100 * getattr(run, name)[-1] for run in runs.values()]
        errors.plot(widths, values, marker="o", label=label)
    moves.plot(widths, [run.moved[-1] for run in runs.values()], marker="o", label="longest move")
    scale = runs[widths[0]].moved[-1] * math.sqrt(widths[0])
    moves.plot(widths, [scale / math.sqrt(w) for w in widths], ":", label="1 / sqrt(width)")
    for axes, label in ((errors, "test error, %"), (moves, "distance of a row from its start")):
        axes.set(xscale="log", xlabel="width", ylabel=label)
        axes.legend()
    moves.set_yscale("log")
    return figure


def _flow_picture(runs: dict[int, relu.LazyRun], X: Any) -> Any:
    figure, axes = canvas(6.4, 3.0)
    for width, run in runs.items():
        psi = np.sort(relu.TwoLayer(run.a[None] / math.sqrt(width), run.W.T).flows(X))[::-1]
        share = np.arange(width) / width
        axes.plot(share, psi / psi.mean(), label=f"width {width}: phi {relu.coadaptation(psi):.2f}")
    axes.set(xlabel="share of the units", ylabel="flow over mean flow")
    axes.legend()
    return figure
