"""Attacks without gradients: by the loss, and by decisions alone."""

import itertools

import pytest
import torch
from robust_cases import linear_model, points, small_mlp
from torch import nn

from overt.robust import (
    L1,
    L2,
    PGD,
    Linf,
    Square,
    strongest,
)

SHAPES = [(12,), (1, 3, 4), (3, 2, 2)]


@pytest.mark.parametrize(("kind", "radius"), [(L1, 1.2), (L2, 0.6), (Linf, 0.3)])
def test_search_without_gradients_stays_inside_and_finds(kind, radius):
    """At least 8 of 10 points that gradients find, over nine linear models."""
    threat = kind(radius, (-3.0, 3.0))
    fooled = reachable = 0
    for seed, shape in itertools.product(range(3), SHAPES):
        model = nn.Sequential(nn.Flatten(), linear_model(3, 12, seed))
        x = points(30, 12, seed).view(30, *shape).clamp(-3, 3)
        y = model(x).argmax(1)
        found = Square(threat, queries=100)(model, x, y, warn=False)
        assert found.gradients == 0
        assert found.queries <= 101 * 30
        assert float(threat.size((found.x - x).flatten(1)).max()) <= radius
        assert found.x.abs().max() <= 3
        assert torch.equal(found.success, model(found.x).argmax(1) != y)
        order = torch.randperm(30, generator=torch.Generator().manual_seed(1))
        again = Square(threat, queries=100, batch_size=7)
        mixed = again(model, x[order], y[order], warn=False)
        assert torch.equal(mixed.success, found.success[order])
        fooled += int(found.success.sum())
        best = PGD(threat, steps=30)(model, x, y, warn=False)
        reachable += int(best.success.sum())
    assert fooled >= 0.8 * reachable > 9


@pytest.mark.parametrize(
    "threat", [L2(0.6), L2(0.6, (-3.0, 3.0)), Linf(0.3), L1(1.2)], ids=str
)
@pytest.mark.parametrize("kind", ["one hot", "numbers"])
def test_models_that_return_labels_are_attacked_by_their_decisions(threat, kind):
    """Most of what the logits allow is found, and what is found is true."""
    torch.manual_seed(0)
    model = small_mlp(classes=3)
    x = points(40, 6).clamp(-3, 3)
    y = model(x).argmax(1)

    def labels(v):
        predicted = model(v).argmax(1)
        if kind == "numbers":
            return predicted
        return torch.nn.functional.one_hot(predicted, 3).double()

    found = strongest(labels, x, y, threat, warn=False)
    wanted = strongest(model, x, y, threat, warn=False)
    assert torch.equal(model(found.x).argmax(1) != y, found.success)
    assert bool((threat.size((found.x - x)) <= threat.radius).all())
    assert found.success.sum() >= 0.75 * wanted.success.sum()
    assert any("class labels" in text for text in found.warnings)
    assert found.queries <= 2500 * 40
