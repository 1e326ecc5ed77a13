"""The tour's chapter on linear networks: exact optimum, training beside it, certificate."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import overt
from overt._figures import runs_figure
from overt._html import Page
from overt.linear import inverse_decay
from overt.theorems._oracles import with_spectrum


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
