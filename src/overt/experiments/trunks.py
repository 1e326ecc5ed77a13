"""Residual trunks with bottleneck blocks (He et al. 2016): ResNet-50 without its last layer."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.functional import relu

RESNET_50 = (3, 4, 6, 3)
"""Bottleneck blocks in each of ResNet-50's four stages."""


class Bottleneck(nn.Module):  # type: ignore[misc]
    """relu(x + (1x1, 3x3, 1x1 convolutions of x)), normalized; a projection where shapes differ."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.conv1 = nn.Conv2d(before, width, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.conv3 = nn.Conv2d(width, after, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.norm3 = nn.BatchNorm2d(after)
        self.skip = nn.Identity()
        if stride != 1 or before != after:
            self.skip = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's map of x, 4 * width channels."""
        h = relu(self.norm1(self.conv1(x)))
        h = relu(self.norm2(self.conv2(h)))
        return relu(self.skip(x) + self.norm3(self.conv3(h)))


def bottleneck_trunk(
    channels: int, blocks: Sequence[int] = RESNET_50, width: int = 64
) -> nn.Sequential:
    """Return a trunk that maps images to 4 * width * 2^(stages - 1) averaged features.

    Parameters
    ----------
    channels
        Channels of the images, of any size.
    blocks, width
        Blocks in each stage, and the width of the first stage, which doubles from stage to stage.
        The defaults are ResNet-50's.
    """
    layers = [nn.Conv2d(channels, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)]
    layers += [nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = width
    for stage, count in enumerate(blocks):
        inner = width * 2**stage
        for block in range(count):
            stride = 2 if stage and block == 0 else 1
            layers.append(Bottleneck(before, inner, stride))
            before = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def features(trunk: nn.Sequential) -> int:
    """Return how many features a trunk gives."""
    last = [module for module in trunk if isinstance(module, Bottleneck)][-1]
    return int(last.conv3.out_channels)
