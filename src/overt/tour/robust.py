"""The tour's chapter on robustness: one network, two attacks, and what they show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from overt._figures import canvas
from overt._html import Page
from overt.tour.torch_chapter import torch_chapter


@torch_chapter("Attacks that do not go blind")
def chapter(page: Page, folder: Path, seed: int) -> bool:
    """Attack a network of scikit-learn's digits, before and after its logits are scaled."""
    from overt.papers import models
    from overt.robust import L2

    data = models.load("digits")
    x, y = data.x_test[:150], data.y_test[:150]
    net = models.mlp(64, 10)
    models.fit(net, data.x, data.y, epochs=20, seed=seed)
    threat = L2(0.8, (0.0, 1.0))
    blind, steady = _scaled_logits(page, net, x, y, threat, seed)
    better = _training(page, net, data, x, y, threat, folder, seed)
    claims = {
        "cross-entropy goes blind on scaled logits": blind,
        "the ensemble finds the same at both scales": steady,
        "adversarial training lowers the robust error at every radius": better,
    }
    return page.claims(claims)


def _scaled_logits(
    page: Page, net: Any, x: Any, y: Any, threat: Any, seed: int
) -> tuple[bool, bool]:
    """Return whether cross-entropy goes blind on scaled logits, and the ensemble does not care."""
    from overt.robust import PGD, strongest

    page.text(
        "How robust is a classifier? Attacks follow the gradient of a loss. That of cross-entropy "
        "dies where the network is sure of itself, and the network then looks robust. The "
        "reflected loss keeps its gradient exactly there. Below, a network for 8 x 8 digits is "
        "attacked twice; the second time its logits are multiplied by 100, which changes no "
        "prediction and no true robustness."
    )
    rows, accuracy = [], {}
    for scale in (1.0, 100.0):

        def model(v: Any, scale: float = scale) -> Any:
            return scale * net(v)

        for name in ("cross_entropy", "reflected", "strongest"):
            if name == "strongest":
                found = strongest(model, x, y, threat, budget=60, seed=seed, warn=False)
            else:
                found = PGD(threat, steps=50, loss=name, seed=seed)(model, x, y, warn=False)
            accuracy[name, scale] = found.robust_accuracy
            rows.append((f"x {scale:g}", name, found.robust_accuracy, found.gradients))
    page.table(("logits", "attack", "robust accuracy reported", "gradients"), rows)
    found = strongest(net, x, y, threat, budget=60, seed=seed, warn=False)
    page.figure(_pictures(net, x, y, found), "Clean digits, the difference (red: added, blue: "
                "taken away), what fools the network; l2 radius 0.8.")  # fmt: skip
    blind = accuracy["cross_entropy", 100.0] > accuracy["strongest", 100.0] + 0.3
    return blind, abs(accuracy["strongest", 100.0] - accuracy["strongest", 1.0]) <= 0.01


def _training(
    page: Page, net: Any, data: Any, x: Any, y: Any, threat: Any, folder: Path, seed: int
) -> bool:
    """Return whether adversarial training lowers the robust error at every radius."""
    import torch

    from overt.papers import models
    from overt.robust import PGD, adversarial_train, robust_error

    page.text(
        "Training on batches attacked at radius 0.4 makes the network harder to fool. The curves "
        "are lower bounds on the robust error, with 95% intervals."
    )
    sturdy = models.mlp(64, 10)
    batches = list(zip(data.x.split(64), data.y.split(64), strict=True))
    adversarial_train(
        sturdy, batches, PGD(threat.at(0.4), steps=4), epochs=20,
        optimizer=torch.optim.Adam(sturdy.parameters(), 2e-3), seed=seed,
    )  # fmt: skip
    (figure, axes), errors = canvas(5.6, 3.4), []
    for name, model in (("usual training", net), ("adversarial training", sturdy)):
        curve = robust_error(model, x, y, threat, radii=[0.2, 0.4, 0.6, 1.0, 1.2], budget=40,
                             seed=seed, warn=False)  # fmt: skip
        curve.draw(axes, name)
        curve.save(folder / f"robust-{name.split()[0]}.json")
        errors.append(curve.errors)
    axes.legend()
    page.figure(figure, "Robust error found, against the size of perturbations.")
    usual, sturdier = errors
    return bool(np.all(sturdier <= usual) and sturdier.sum() < usual.sum())


def _pictures(net: Any, x: Any, y: Any, found: Any) -> Any:
    """Return the grid: clean, difference and perturbed, a column for each of eight digits."""
    import torch

    from overt.robust.pictures import draw_examples

    with torch.no_grad():
        clean, after = net(x).argmax(1), net(found.x).argmax(1)
    chosen = ((clean == y) & found.success).nonzero().squeeze(1)[:8]
    return draw_examples(*(part[chosen].numpy() for part in (x, found.x, clean, after)))
