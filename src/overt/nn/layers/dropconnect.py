"""DropConnect: weights, not units, are dropped."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from overt._check import InputError, whole
from overt.nn.layers.base import RatedNoise
from overt.nn.layers.masks import keep_mask


class _DropConnect(RatedNoise):
    """A linear map whose weights are dropped in training; parameters as in torch.nn's own."""

    def __init__(self, plain: Any, drop_prob: float, seed: int | None) -> None:
        super().__init__(drop_prob, seed)
        for name in ("weight", "bias", *plain.__constants__):
            setattr(self, name, getattr(plain, name))

    @property
    def strength(self) -> float:
        """lam = drop_prob / (1 - drop_prob), the variance of a weight's multiplier."""
        return self.drop_prob / (1 - self.drop_prob)

    def _noisy_weight(self, *copies: int) -> Tensor:
        p = self._drop_prob
        keep = keep_mask(
            [*copies, *self.weight.shape], p, self.weight.device, self._next_key()
        )
        return self.weight * keep / (1 - p)


class DropConnectLinear(_DropConnect):
    """y = (Z o W / (1 - drop_prob)) x + b, with Z_ij = 0 with probability drop_prob.

    Its penalty is lam sum_k |u_k|^2 v_k' diag(C) v_k where the rows v_k of W feed linear outputs
    u_k (structured dropout, Theorem 4.1, which prints C for diag(C)): Dropout's only where the
    inputs are uncorrelated.

    Parameters
    ----------
    in_features, out_features, bias
        As in torch.nn.Linear; so are the names of the parameters, and a state_dict can be shared.
    drop_prob
        Probability in [0, 1) that a weight is dropped.
    per_sample
        Sample a mask for each row (slower: each then has other weights) instead of one for
        the batch. What one sample sees has the same law either way.
    seed
        A seed for this layer's own generator; None samples from torch's.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        drop_prob: float = 0.5,
        per_sample: bool = False,
        seed: int | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes = (whole("in_features", in_features), whole("out_features", out_features))
        plain = nn.Linear(*sizes, bias, device=device, dtype=dtype)
        super().__init__(plain, drop_prob, seed)
        self.per_sample = bool(per_sample)

    def extra_repr(self) -> str:
        """Return the settings, for printing."""
        sample = f"per_sample={self.per_sample}"
        return self._describe(nn.Linear.extra_repr(self), self._rate, sample)

    def reset_parameters(self) -> None:
        """Initialize weight and bias as torch.nn.Linear does."""
        nn.Linear.reset_parameters(self)

    def _evaluate(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)

    def _sample(self, x: Tensor) -> Tensor:
        if not self.per_sample:
            return functional.linear(x, self._noisy_weight(), self.bias)
        if x.ndim < 2:
            raise InputError(f"x must have a batch axis, got shape {tuple(x.shape)}")
        weight = self._noisy_weight(x.shape[0])
        positions = math.prod(x.shape[1:-1])
        y = torch.matmul(x.reshape(len(x), positions, self.in_features), weight.mT)
        y = y.reshape(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias.to(y.dtype)


class DropConnectConv2d(_DropConnect):
    """A 2-D convolution whose kernel weights are dropped, one mask for a batch.

    All positions of a map see the same mask, so that the noise is correlated along the map:
    Cov(y_op, y_oq) = lam sum_k W_ok^2 x_kp x_kq, k over the kernel, p and q positions.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias
        As in torch.nn.Conv2d; so are the names of the parameters, and a state_dict can be shared.
    drop_prob
        Probability in [0, 1) that a weight is dropped.
    seed
        A seed for this layer's own generator; None samples from torch's.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        drop_prob: float = 0.5,
        seed: int | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes: dict[str, Any] = {
            "in_channels": in_channels,
            "out_channels": out_channels,
            "kernel_size": kernel_size,
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
        }
        sizes = {name: _check_sizes(name, value) for name, value in sizes.items()}
        groups = sizes["groups"]
        if sizes["in_channels"] % groups or sizes["out_channels"] % groups:
            raise InputError(
                f"groups must divide both numbers of channels, got {groups}"
            )
        plain = nn.Conv2d(**sizes, bias=bias, device=device, dtype=dtype)
        super().__init__(plain, drop_prob, seed)

    def extra_repr(self) -> str:
        """Return the settings, for printing."""
        return self._describe(nn.Conv2d.extra_repr(self), self._rate)

    def reset_parameters(self) -> None:
        """Initialize weight and bias as torch.nn.Conv2d does."""
        nn.Conv2d.reset_parameters(self)

    def _evaluate(self, x: Tensor) -> Tensor:
        return self.convolve(x, self.weight, self.bias)

    def _sample(self, x: Tensor) -> Tensor:
        return self.convolve(x, self._noisy_weight(), self.bias)

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return this layer's convolution of x with the given kernel."""
        return functional.conv2d(
            x, weight, bias, self.stride, self.padding, self.dilation, self.groups
        )


def _check_sizes(name: str, value: Any) -> Any:
    """Return whole numbers, one or one for each axis; only padding may be 0."""
    if isinstance(value, tuple):
        return tuple(_check_sizes(name, part) for part in value)
    return whole(name, value, minimum=int(name != "padding"))
