"""The tour's chapter on smaller networks: sub-networks of a network trained with dropout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from overt._figures import canvas
from overt._html import Page
from overt.tour.torch_chapter import network, torch_chapter

WIDTH, EPOCHS = 512, 25
SHARES = (0.5, 0.25, 0.1)
WAYS = {
    "mask": "the best of 32 sub-networks that dropout draws",
    "flow": "units with the greatest flow",
    "spectrum": "products of low rank",
}


@torch_chapter("PyTorch: a smaller network")
def chapter(page: Page, folder: Path, seed: int) -> bool:
    """Train on scikit-learn's digits with dropout, then make the network smaller in three ways."""
    from overt.nn.compression import compress

    page.text(
        f"A 64-{WIDTH}-10 network learns scikit-learn's digits, half of its hidden units dropped "
        "at each step. Dropout trains all its sub-networks at once, so one of them can be cut "
        "out (mask). Units can also be chosen by their flow ‖uᵢ‖ √E[aᵢ²], and layers be "
        "replaced by products of low rank. There is no training after the cut; a third of the "
        "held-out digits chooses, the others give the accuracies below."
    )
    model, choosing, testing = _trained(seed)
    rows, reports = [], {}
    curves: dict[str, list[tuple[float, float]]] = {by: [] for by in WAYS}
    for by, meaning in WAYS.items():
        for keep in SHARES:
            report: Any = compress(model, keep, choosing[0], choosing, by, holdout=testing)[1]
            before, after = report.before, report.after
            curves[by].append((after.parameters / before.parameters, after.accuracy))
            cells = (keep, after.parameters, report.speedup, after.accuracy)
            rows.append((f"{by}: {meaning}", *cells))
            reports[by, keep] = report
    half = reports["mask", SHARES[0]]
    page.table(("way", "keep", "parameters", "speed-up", "accuracy"), rows)
    page.figure(
        _picture(curves, half),
        "Left: accuracy over the share of parameters that stays; gray: the whole network. Right: "
        "held-out loss of the 32 sub-networks of half width.",
    )
    kept = half.after.accuracy / half.before.accuracy
    page.text(
        f"At half width the chosen sub-network keeps {100 * kept:.1f}% of the accuracy "
        f"{half.before.accuracy:.3f} with {half.after.parameters:,} of "
        f"{half.before.parameters:,} parameters."
    )
    return bool(kept >= 0.98 and half.after.parameters < half.before.parameters)


def _trained(seed: int) -> tuple[Any, tuple[Any, Any], tuple[Any, Any]]:
    """Return the trained network, and held-out digits for choosing and for testing."""
    import torch

    from overt.experiments import small

    data = small.load("digits")
    model = torch.nn.Sequential(torch.nn.Flatten(), *network(WIDTH, 0.5))
    small.fit(model, data.x, data.y, epochs=EPOCHS, seed=seed)
    x, y = data.x_test, data.y_test
    cut = len(x) // 3
    return model.eval(), (x[:cut], y[:cut]), (x[cut:], y[cut:])


def _picture(curves: dict[str, list[tuple[float, float]]], half: Any) -> Any:
    figure, (left, right) = canvas(8.4, 3.4, 1, 2)
    left.axhline(half.before.accuracy, color="0.6", lw=1)
    for by, curve in curves.items():
        left.plot(*zip(*curve, strict=True), "o-", label=by)
    left.set(xlabel="share of parameters", ylabel="accuracy", xscale="log")
    left.set_xticks((0.1, 0.2, 0.5), ("0.1", "0.2", "0.5"))
    left.minorticks_off()
    left.legend()
    right.hist(half.losses, bins=12)
    right.set(xlabel="held-out loss", ylabel="sub-networks")
    return figure
