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
        rng = np.random.default_rng(0)
        split = rng.permutation(len(y))
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
            if images.ndim == 3:
                parts[i] = images[:, None]
            else:
                parts[i] = images.transpose(0, 3, 1, 2)
    if only is not None:
        for i in (0, 2):
            classes = parts[i + 1]
            kept = np.isin(classes, only)
            parts[i] = parts[i][kept]
            parts[i + 1] = np.searchsorted(only, classes[kept])
    tensors = [torch.tensor(np.ascontiguousarray(part)) for part in parts]
    x, y, x_test, y_test = tensors
    seen = x.float(), y.long()
    unseen = x_test.float(), y_test.long()
    return Data(*seen, *unseen)


def mlp(inputs: int, classes: int, width: int = 100) -> nn.Sequential:
    """Return a network with one hidden layer of ReLU units."""
    hidden = nn.Linear(inputs, width)
    top = nn.Linear(width, classes)
    layers = [nn.Flatten(), hidden, nn.ReLU(), top]
    return nn.Sequential(*layers)


class Stack(nn.Module):  # type: ignore[misc]
    """Copies of networks by `mlp`, side by side; a batch has as many points for each of them.

    The points of the first network come first. A batch that cannot be divided is filled up.
    """

    def __init__(self, networks: Sequence[nn.Sequential]) -> None:
        super().__init__()
        parameters = [network.parameters() for network in networks]
        self.weights = nn.ParameterList()
        for part in zip(*parameters, strict=True):
            stacked = torch.stack(part)
            self.weights.append(stacked.detach())

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the points."""
        V, b, U, c = self.weights
        x = x.flatten(1)
        points, inputs = x.shape
        missing = -points % len(V)
        if missing:
            zeros = x.new_zeros(missing, inputs)
            filled = self.forward(torch.cat([x, zeros]))
            return filled[:points]
        x = x.view(len(V), -1, inputs)
        z = torch.baddbmm(b[:, None], x, V.mT)
        h = relu(z)
        outputs = torch.baddbmm(c[:, None], h, U.mT)
        return outputs.flatten(0, 1)

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


class Block(nn.Module):  # type: ignore[misc]
    """relu(x + convolutions of x), normalized; a projection where shapes differ.

    The first 3 x 3 convolution has the stride.
    """

    def __init__(
        self, widths: Sequence[int], sizes: Sequence[int], stride: int
    ) -> None:
        super().__init__()
        strides = [1] * len(sizes)
        strides[sizes.index(3)] = stride
        self.convolutions = nn.Sequential()
        for layer in zip(widths, widths[1:], sizes, strides, strict=False):
            self.convolutions.append(_normalized(*layer))
        self.skip = nn.Identity()
        if stride != 1 or widths[0] != widths[-1]:
            self.skip = _normalized(widths[0], widths[-1], 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's map of x."""
        first, *others = self.convolutions
        h = first(x)
        for convolution in others:
            h = convolution(relu(h))
        return relu(self.skip(x) + h)


def _normalized(before: int, after: int, size: int, stride: int) -> nn.Sequential:
    padding = size // 2
    convolution = nn.Conv2d(before, after, size, stride, padding, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(after))


def residual_trunk(
    channels: int,
    blocks: Sequence[int] = (3, 4, 6, 3),
    width: int = 64,
    *,
    first: tuple[int, int] = (7, 2),
    bottleneck: bool = True,
) -> nn.Sequential:
    """Return a residual trunk (He et al. 2016) from images to features.

    Parameters
    ----------
    channels
        Channels of the images, of any size.
    blocks, width
        Blocks in each stage, and the width of the first stage, which doubles from stage to stage.
        The defaults are ResNet-50's.
    first
        Size and stride of the first convolution; one larger than 3 is followed by max pooling.
    bottleneck
        Whether blocks have convolutions of sizes 1, 3, 1 and four times the width of the stage,
        or two of size 3.
    """
    sizes = (1, 3, 1) if bottleneck else (3, 3)
    layers = [_normalized(channels, width, *first), nn.ReLU()]
    if first[0] > 3:
        layers.append(nn.MaxPool2d(3, 2, 1))
    before = width
    for stage, count in enumerate(blocks):
        inner = width * 2**stage
        after = 4 * inner if bottleneck else inner
        for block in range(count):
            stride = 2 if stage and block == 0 else 1
            inside = [inner] * (len(sizes) - 1)
            widths = [before, *inside, after]
            layers.append(Block(widths, sizes, stride))
            before = after
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers)


def features(trunk: nn.Sequential) -> int:
    """Return how many features a trunk gives."""
    vectors = [part for part in trunk.parameters() if part.ndim == 1]
    return len(vectors[-1])
