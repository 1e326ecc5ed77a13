"""The networks that the figures train."""

import pytest

torch = pytest.importorskip("torch")

from overt.papers.models import bottleneck_trunk, features  # noqa: E402


def test_the_trunk_is_resnet_50():
    trunk = bottleneck_trunk(3)
    # 25,557,032 parameters of the ImageNet network less its last layer, 2048 x 1000 + 1000.
    assert sum(p.numel() for p in trunk.parameters()) == 25_557_032 - 2_049_000
    assert features(trunk) == 2048
    small = bottleneck_trunk(1, (1, 1), 4)
    assert small(torch.randn(2, 1, 8, 8)).shape == (2, features(small)) == (2, 32)
