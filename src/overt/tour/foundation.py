"""The tour's first and last chapters: one matrix, a landscape, networks, every statement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import overt
from overt import equalize, papers, penalty, spectral
from overt._figures import GRAY, runs_figure, subplots
from overt._files import write_whole
from overt._html import Page
from overt._progress import meter
from overt._types import Array, Floats
from overt.linear import inverse_decay
from overt.papers.oracles import with_spectrum


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
    figure = papers.find("dropout-fig1").figure
    assert figure is not None  # noqa: S101
    page.section("What dropout does to a landscape")
    page.text(f"{figure.source}: {figure.claim}.")
    rows = papers.run(figure, size="toy")
    page.figure(
        figure.plot(rows),
        "The objective of two tied hidden units without dropout and at two strengths. White: the "
        "minima that theory predicts.",
    )
    findings = figure.findings(rows)
    page.table(
        ("claim", "verdict", "measured", "reported"),
        [(f.claim, f.holds, f.measured, f.reported) for f in findings],
    )
    return all(f.holds for f in findings)


def networks(page: Page, folder: Path, seed: int) -> bool:
    """Solve, train and certify networks on one matrix, and follow the path over drop_prob."""
    page.section("Linear networks: solved, trained, certified")
    rng = np.random.default_rng(seed)
    M = with_spectrum(rng, 18, 12, np.exp(-np.arange(12) / 4))
    page.text(
        "A target M (18 x 12) with a decaying spectrum, 12 hidden units. For each noise the exact "
        "optimum is computed first; then stochastic gradient descent runs beside it from 4 seeds, "
        "one sample and one mask per step. The certificate is recomputed from M."
    )
    noises = [overt.Dropout(0.3), overt.DropBlock(0.3, 3), overt.DropConnect(0.3)]
    held, rows, runs = [], [], []
    for noise in noises:
        net = overt.LinearNetwork(M, 12, noise)
        best = net.solve()
        run = net.train(60_000, inverse_decay(0.02, 6_000), range(seed, seed + 4))
        excess = float(run.objective[:, -1].mean() / best.objective - 1)
        held.append(excess < 0.05 and bool(run.objective.min() >= run.optimum * (1 - 1e-9)))
        found = (best.objective, best.certificate.relative_gap, best.rank, str(best.status))
        rows.append((repr(noise), *found, f"{excess:.2%} above"))
        runs.append((type(noise).__name__, run))
    page.table(
        ("noise", "exact optimum", "relative gap", "rank", "status", "after 60,000 steps"), rows
    )
    page.figure(
        runs_figure(runs),
        "Training with noise (mean, and spread over seeds) descends to the exact optimum (dashed) "
        "and balances the hidden units.",
    )
    probs = [0.0, 0.2, 0.4, 0.6, 0.8, 0.9]
    path = overt.path(M, 12, probs)
    page.text("The whole path over the drop probability comes from one decomposition of M:")
    page.table(
        ("drop probability", *(f"{p:g}" for p in probs)),
        [("rank", *map(int, path.rank)), ("objective", *map(float, path.objective))],
    )
    wanted = overt.drop_prob_for_rank(M, width=12, rank=3)
    solved = overt.LinearNetwork(M, 12, overt.Dropout(wanted)).solve()
    page.text(f"The smallest drop probability whose optimum has rank 3: {wanted:.4f}.")
    return all(held) and solved.rank == 3


def statements(page: Page, folder: Path, seed: int) -> bool:
    """Run every executable statement."""
    page.section("Every statement, checked now")
    known = [item for item in papers.items().values() if item.check]
    corrected = sum(bool(item.printed) for item in known)
    page.text(
        f"Each of the {len(known)} statements is measured against an independent oracle: "
        "enumeration of all masks, a generic optimizer, or Monte Carlo (whose residual is in "
        f"standard errors). {corrected} had to be corrected; for these the printed form's residual "
        "is shown too, and must exceed the tolerance."
    )
    verdicts = []
    with meter("statements", len(known)) as bar:
        for verdict in papers.verify(seed=seed):
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
    absent = [v for v in verdicts if v.verdict == "not run"]
    if absent:
        page.text(f"{len(absent)} statements were not run: {absent[0].detail}")
    return all(v.verdict in ("holds", "not run") for v in verdicts)


def _numbers(values: Array) -> str:
    return ", ".join(f"{v:.4f}" for v in values)
