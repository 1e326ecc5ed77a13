"""The tour's first and last chapters: one matrix, one landscape, every statement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import overt
from overt import equalize, experiments, penalty, spectral
from overt._figures import GRAY, subplots
from overt._files import write_whole
from overt._html import Page
from overt._progress import meter
from overt._types import Array, Floats
from overt.theorems import registered, verify


def one_matrix(page: Page, folder: Path, seed: int) -> bool:
    """From noise to balanced factors on one small matrix."""
    page.section("From noise to optimum on one matrix")
    page.text(
        "Take a 6 x 4 matrix M and factor it as UVᵀ with 4 hidden units while each unit is "
        "dropped half of the time. The expected squared error is the squared error plus an "
        "explicit penalty, whose smallest value for a given product is a norm of that product; "
        "so the best product is a shrunken M, and the best factors share its norm equally."
    )
    rng, width = np.random.default_rng(seed), 4
    noise = overt.Dropout(0.5)
    M = rng.standard_normal((6, 4)) @ np.diag([3.0, 2.0, 1.0, 0.5])
    s = np.linalg.svd(M, compute_uv=False)
    weight, norm = spectral.induced(noise, width)
    best = norm.matrix_prox(M, weight)
    kept = np.linalg.svd(best, compute_uv=False)
    U, V = equalize.equalize_product(best, width)
    added, induced = (float(penalty.shallow(U, V, noise)), float(weight * norm.matrix_value(best)))
    optimum = float(np.sum((M - U @ V.T) ** 2)) + added
    draws = noise.multipliers(width, 100_000, seed=seed + 1)
    losses = np.sum((M[None] - (U * draws[:, None, :]) @ V.T) ** 2, axis=(1, 2))
    error = losses.std() / np.sqrt(len(losses))
    rows = [
        ("noise", "Dropout(0.5)", "λ = 1"),
        ("penalty at the optimum", _numbers([added]), "λ Σ ‖uᵢ‖² ‖vᵢ‖²"),
        ("induced norm", _numbers([induced]), "(λ / width) · (nuclear norm of UVᵀ)²"),
        ("spectrum of M", _numbers(s), ""),
        ("optimal spectrum", _numbers(kept), f"shrunken, rank {np.sum(kept > 1e-12)} of {width}"),
        ("balance: ‖uᵢ‖ ‖vᵢ‖", _numbers(equalize.importance(U, V)), "equal"),
        ("objective, exact", _numbers([optimum]), "squared error + penalty"),
        ("objective, 100,000 masks", _numbers([losses.mean()]), f"standard error {error:.2g}"),
    ]
    page.figure(
        _spectra(M, width),
        "The singular values of M, and those of the best networks under four noises that drop half "
        "of what they act on.",
    )
    page.table(("step", "value", "what it is"), rows)
    return bool(np.isclose(added, induced) and abs(losses.mean() - optimum) <= 5 * error)


def _spectra(M: Floats, width: int) -> Any:
    """Draw the optimal spectra under several noises beside that of the target."""
    noises = {
        "Dropout": overt.Dropout(0.5),
        "half of the units, exactly": overt.KeepExactly(width // 2),
        "DropBlock of 2": overt.DropBlock(0.5, 2),
        "one probability per unit": overt.Dropout(tuple(np.linspace(0.2, 0.8, width))),
    }
    figure, ((axes,),) = subplots(size=(6.5, 3.2))
    index = range(1, min(M.shape) + 1)
    axes.plot(index, np.linalg.svd(M, compute_uv=False), "o-", color=GRAY, label="target")
    for (name, noise), marker in zip(noises.items(), "s^Dv", strict=True):
        best = overt.LinearNetwork(M, width, noise).solve()
        axes.plot(index, best.spectrum[: len(index)], marker=marker, label=name)
    axes.set(xlabel="index", ylabel="singular value", xticks=index)
    axes.legend()
    return figure


def landscape(page: Page, folder: Path, seed: int) -> bool:
    """Show the first figure of the papers."""
    experiment = experiments.find("dropout-fig1")
    page.section("What dropout does to a landscape")
    page.text(f"{experiment.source}: {experiment.claim}.")
    rows = experiments.run(experiment, size="toy", out=folder)
    page.figure(
        experiment.plot(rows),
        "The objective of two tied hidden units without dropout and at two strengths. White: the "
        "minima that theory predicts.",
    )
    findings = experiment.check(rows)
    page.table(
        ("claim", "verdict", "measured", "reported"),
        [(f.claim, f.holds, f.measured, f.reported) for f in findings],
    )
    return all(f.holds for f in findings)


def statements(page: Page, folder: Path, seed: int) -> bool:
    """Run every executable statement."""
    page.section("Every statement, checked now")
    known = registered()
    corrected = sum(1 for s in known.values() if s.correction)
    page.text(
        f"Each of the {len(known)} statements is measured against an independent oracle: "
        "enumeration of all masks, a generic optimizer, or Monte Carlo (whose residual is in "
        f"standard errors). {corrected} had to be corrected; for these the printed form's residual "
        "is shown too, and must exceed the tolerance."
    )
    verdicts = []
    with meter("theorems", len(known)) as bar:
        for verdict in verify(seed=seed):
            verdicts.append(verdict)
            bar.advance(note=verdict.id)
    page.table(
        ("id", "claim", "source", "residual", "tolerance", "as printed", "verdict"),
        [
            (v.id, v.claim + (f" [corrected: {v.correction}]" if v.correction else ""), v.source,
             v.residual, v.tolerance, v.printed_residual, v.verdict)
            for v in verdicts
        ],
    )  # fmt: skip
    write_whole(folder / "verify.json", json.dumps([v.to_dict() for v in verdicts], indent=1))
    skipped = [v for v in verdicts if v.verdict == "skipped"]
    if skipped:
        page.text(f"{len(skipped)} statements were skipped: {skipped[0].detail}")
    return all(v.verdict in ("holds", "skipped") for v in verdicts)


def _numbers(values: Array) -> str:
    return ", ".join(f"{v:.4f}" for v in values)
