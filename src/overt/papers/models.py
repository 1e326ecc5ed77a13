"""Small data sets, networks and trainings that the experiments share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from overt._check import InputError
from overt._io import open_npz
from overt.datasets import data_folder

RESNET_50 = (3, 4, 6, 3)
"""Bottleneck blocks in each of ResNet-50's four stages."""


@dataclass(frozen=True, eq=False)
class Data:
    """Images in [0, 1] as (points, channels, height, width), with classes (points,)."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor


def load(name: str, only: Sequence[int] | None = None) -> Data:
    """Return "digits" (from scikit-learn), or "mnist" or "cifar10" from the folder OVERT_DATA.

    With `only`, classes in ascending order, all others are left out and these numbered from 0.
    """
    parts: list[Any]
    if name == "digits":
        from sklearn.datasets import load_digits

        bunch = load_digits()
        x = bunch.images[:, None] / 16.0
        y = bunch.target
        split = np.random.default_rng(0).permutation(len(y))
        train = split[500:]
        test = split[:500]
        parts = [x[train], y[train], x[test], y[test]]
    else:
        path = data_folder() / f"{name}.npz"
        if not path.exists():
            raise InputError(
                f"the folder OVERT_DATA must hold {name}.npz with x_train, y_train, "
                f"x_test and y_test; {path.parent} does not"
            )
        with open_npz(path) as file:
            parts = [file[k] for k in ("x_train", "y_train", "x_test", "y_test")]
        for i in (0, 2):
            images = parts[i] / np.float32(255)
            parts[i] = (
                images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
            )
    if only is not None:
        for i in (0, 2):
            kept = np.isin(parts[i + 1], only)
            parts[i], parts[i + 1] = (
                parts[i][kept],
                np.searchsorted(only, parts[i + 1][kept]),
            )
    x, y, x_test, y_test = (torch.tensor(np.ascontiguousarray(part)) for part in parts)
    return Data(x.float(), y.long(), x_test.float(), y_test.long())


def mlp(inputs: int, classes: int, width: int = 100) -> nn.Sequential:
    """Return a network with one hidden layer of ReLU units."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, classes)
    )


class Stack(nn.Module):  # type: ignore[misc]
    """Copies of networks by `mlp`, side by side; a batch has as many points for each of them.

    The points of the first network come first. A batch that cannot be divided is filled up.
    """

    def __init__(self, networks: Sequence[nn.Sequential]) -> None:
        super().__init__()
        weights = zip(*(network.parameters() for network in networks), strict=True)
        self.weights = nn.ParameterList(torch.stack(part).detach() for part in weights)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the points."""
        V, b, U, c = self.weights
        x = x.flatten(1)
        missing = -len(x) % len(V)
        if missing:
            filled = torch.cat([x, x.new_zeros(missing, x.shape[1])])
            return self.forward(filled)[: len(x)]
        h = relu(torch.baddbmm(b[:, None], x.view(len(V), -1, x.shape[1]), V.mT))
        return torch.baddbmm(c[:, None], h, U.mT).flatten(0, 1)

    def unstacked(self) -> list[nn.Sequential]:
        """Return the networks, one by one."""
        _, width, inputs = self.weights[0].shape
        networks = []
        for parts in zip(*self.weights, strict=True):
            network = mlp(inputs, parts[-1].numel(), width)
            for own, part in zip(network.parameters(), parts, strict=True):
                own.data = part.detach()
            networks.append(network)
        return networks


def descend(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    loss: Any,
    epochs: int,
    rate: float,
    batch: int = 64,
) -> None:
    """Train with Adam on batches in random order, in place."""
    optimizer = torch.optim.Adam(model.parameters(), rate)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            loss(model(x[rows]), y[rows]).backward()
            optimizer.step()


class _Block(nn.Module):  # type: ignore[misc]
    """Pre-activation residual block: norm, ReLU, convolution, twice."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.BatchNorm2d(before), nn.BatchNorm2d(after)
        self.conv_1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv_2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.skip = nn.Identity()
        if stride != 1 or before != after:
            self.skip = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = relu(self.norm_1(x))
        return self.skip(h) + self.conv_2(relu(self.norm_2(self.conv_1(h))))


def residual(
    channels: int,
    classes: int,
    width: int = 16,
    stride: int = 1,
    blocks: Sequence[int] = (1, 1, 1),
) -> nn.Sequential:
    """Return a pre-activation residual network (He et al. 2016) for images of any size.

    `stride` is that of the first layer: 2 makes everything about four times as fast. Width 64 and
    blocks (2, 2, 2, 2) make a PreActResNet-18.
    """
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, stride, 1, bias=False)]
    before = width
    for stage, count in enumerate(blocks):
        after = width * 2**stage
        for block in range(count):
            layers.append(_Block(before, after, 2 if stage and block == 0 else 1))
            before = after
    return nn.Sequential(
        *layers,
        nn.BatchNorm2d(before),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(before, classes),
    )


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
    """Return a residual trunk (He et al. 2016): images to 4 * width * 2^(stages - 1) features.

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
