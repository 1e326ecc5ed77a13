"""Models that return labels are attacked by their decisions."""

import pytest
import torch
from robust_cases import points, small_mlp

from overt.robust import L1, L2, Linf, strongest


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
