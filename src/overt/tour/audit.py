"""The tour's chapter on audits: a network trained with dropout, held against its lower bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from overt._figures import BLUE, ORANGE, canvas
from overt._html import Page
from overt.tour.torch_chapter import digits, network, torch_chapter

WIDTH, DROP_PROB, STEPS, SHOTS = 64, 0.5, 300, 8


@torch_chapter("An audit of a network")
def chapter(page: Page, folder: Path, seed: int) -> bool:
    """Train on scikit-learn's digits, audit the network as it learns, and keep its report."""
    from overt.nn.auditing.presentation import gap_line, noise_rows

    steps, reports = _audited(seed)
    report = reports[-1]
    head, suggestion = report.head, report.suggestion
    if head is None or suggestion is None:
        page.text("The audit found no last layer.")
        return False
    page.text(
        f"A 64-{WIDTH}-10 network learns scikit-learn's digits with dropout {DROP_PROB:g} and a "
        "squared loss. However its layers are set, and whatever came before the dropout, the "
        "training objective cannot fall below a bound that depends on the targets, the width and "
        "the drop probability only; and the bound's optimum has a known spectrum. One call, "
        "audit(model, data, loss), measures both."
    )
    page.figure(
        _picture(steps, reports, head),
        "Left: the exact training objective at each audit, and the bound. Right: singular values "
        "of the centered outputs of the trained network, of the optimum, and of the targets.",
    )
    noise = report.noises[0]
    page.table(
        ("layer", "kind", "drop_prob", "realized", "penalty", "share of the objective", "phi"),
        [row[:7] for row in noise_rows(report)],
    )
    page.text(f"{gap_line(report, head).capitalize()}. {str(suggestion).splitlines()[0]}.")
    report.to_html(folder / "audit.html")
    page.text("The whole report is in audit.html, beside this page.", note=True)
    below = all(r.head is not None and r.head.lower_bound <= r.objective for r in reports)
    realized = abs(noise.realized - DROP_PROB) <= 5 * noise.realized_error
    return bool(below and realized and noise.exact)


def _audited(seed: int) -> tuple[list[int], list[Any]]:
    """Return steps of training and an audit at each, the last one with held-out digits."""
    import torch
    from torch.nn import functional

    from overt.nn.auditing import audit

    x, y, x_test, y_test = digits()
    target = functional.one_hot(y, 10).float()
    model = network(WIDTH, DROP_PROB)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    shots = {round(s) for s in np.geomspace(1, STEPS + 1, SHOTS) - 1}
    steps, reports = [], []
    for step in range(STEPS + 1):
        if step in shots:
            steps.append(step)
            reports.append(audit(model, (x, y), "squared", seed=seed))
        optimizer.zero_grad()
        rows = torch.randint(len(x), (128,))
        ((model.train()(x[rows]) - target[rows]) ** 2).sum(1).mean().backward()
        optimizer.step()
    steps.append(STEPS + 1)
    reports.append(audit(model, (x, y), "squared", holdout=(x_test, y_test), seed=seed))
    return steps, reports


def _picture(steps: list[int], reports: list[Any], head: Any) -> Any:
    figure, (left, right) = canvas(8.4, 3.6, 1, 2)
    shown, objective = [step + 1 for step in steps], [r.objective for r in reports]
    left.plot(shown, objective, marker="o", ms=3, label="objective")
    left.axhline(head.lower_bound, color=ORANGE, label="proved lower bound")
    left.set(xscale="log", xlabel="step + 1", ylabel="training objective", ylim=(0, None))
    left.legend()
    index = np.arange(1, len(head.spectrum) + 1)
    targets, predicted = head.target_spectrum[: len(index)], head.predicted_spectrum
    at = np.arange(1, len(predicted) + 1)
    right.plot(index, targets, color="0.7", marker="s", ms=4, lw=1, label="targets")
    right.plot(at, predicted, color=ORANGE, marker="o", ms=5, lw=1, label="optimum")
    right.plot(index, head.spectrum, color=BLUE, marker="x", ms=6, lw=1, label="outputs")
    right.set(xlabel="index", ylabel="singular value / sqrt(samples)", ylim=(0, None))
    right.legend()
    return figure
