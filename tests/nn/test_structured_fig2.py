"""The experiment of structured dropout's Figure 2 at toy size, and the trunk behind it."""

import torch

from overt import experiments
from overt.experiments.small import bottleneck_trunk, features


def test_claims_can_fail():
    spectrum = [1.0, 0.8, 0.5, 0.2, 0.1] * 2
    rows = [
        {"data": "digits", "objective": 0.51, "bound": 0.5, "exact": [0.9, 0.51],
         "spectrum": spectrum, "best_spectrum": spectrum}
    ]  # fmt: skip
    assert all(f.holds for f in experiments.find("structured-fig2").check(rows))
    below = [{**rows[0], "exact": [rows[0]["bound"] * 0.99]}]
    assert not experiments.find("structured-fig2").check(below)[0].holds
    flat = [{**rows[0], "spectrum": [0.2] * 10}]
    assert not experiments.find("structured-fig2").check(flat)[1].holds


def test_the_trunk_is_resnet_50():
    trunk = bottleneck_trunk(3)
    # 25,557,032 parameters of the ImageNet network less its last layer, 2048 x 1000 + 1000.
    assert sum(p.numel() for p in trunk.parameters()) == 25_557_032 - 2_049_000
    assert features(trunk) == 2048
    small = bottleneck_trunk(1, (1, 1), 4)
    assert small(torch.randn(2, 1, 8, 8)).shape == (2, features(small)) == (2, 32)
