"""DropBlock drops what it says: the realized fraction, and the mean at every position."""

import numpy as np
import pytest
import torch
from helpers import assert_mean_within_standard_errors

from overt import DropBlock
from overt._blocks import Sliding
from overt.nn import DropBlock2d

CASES = [
    (7, (14, 14), "sliding", False),
    (4, (9, 13), "sliding", False),
    (7, (14, 14), "sliding", True),
    (4, (9, 13), "sliding", True),
    (4, (9, 13), "grid", False),
]


@pytest.mark.parametrize("drop_prob", [0.1, 0.25, 0.5])
@pytest.mark.parametrize(("block", "size", "placement", "uniform"), CASES)
def test_realized_fraction_and_mean(block, size, placement, uniform, drop_prob):
    layer = DropBlock2d(drop_prob, block, placement=placement, uniform=uniform, seed=0)
    y = layer(torch.ones(4000, 1, *size))[:, 0]
    dropped = (y == 0).double().numpy()
    assert_mean_within_standard_errors(dropped.mean((1, 2)), drop_prob)
    assert_mean_within_standard_errors(y.double().numpy(), 1.0)
    if uniform or placement == "grid":
        assert_mean_within_standard_errors(dropped, drop_prob)
    np.testing.assert_allclose(float(layer.keep_prob(size).mean()), 1 - drop_prob, atol=1e-12)


@pytest.mark.parametrize(("block", "size"), [(3, (5, 4)), (2, (3, 4)), (3, (3, 5))])
def test_geometry_agrees_with_the_noise_of_the_core(block, size):
    ours = Sliding(0.4, size, (block, block), uniform=False)
    core = DropBlock(0.4, block, "sliding")
    np.testing.assert_allclose(ours.keep_prob().ravel(), core.mean(size), rtol=1e-12)
    np.testing.assert_allclose(ours.characteristic(), core.characteristic(size), rtol=1e-9)
    assert ours.seed_prob() == pytest.approx(core.seed_probability(size), rel=1e-12)


def test_drops_whole_blocks():
    y = DropBlock2d(0.2, 3, seed=1)(torch.ones(200, 1, 8, 8))[:, 0]
    hole = (y == 0).double()
    # Opening by a 3 x 3 square leaves a union of 3 x 3 squares as it is.
    eroded = -torch.nn.functional.max_pool2d(-hole[:, None], 3, stride=1)
    opened = torch.nn.functional.max_pool2d(
        torch.nn.functional.pad(eroded, (2, 2, 2, 2)), 3, stride=1
    )
    assert torch.equal(opened[:, 0], hole)
    assert hole.sum() > 0
