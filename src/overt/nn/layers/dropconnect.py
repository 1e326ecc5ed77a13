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


class DropConnectLinear(RatedNoise):
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
        super().__init__(drop_prob, seed)
        self.in_features = whole("in_features", in_features)
        self.out_features = whole("out_features", out_features)
        sizes = (self.in_features, self.out_features)
        plain = nn.Linear(*sizes, bias, device=device, dtype=dtype)
        self.weight = plain.weight
        self.bias = plain.bias
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
        if self.per_sample and x.ndim < 2:
            raise InputError(f"x must have a batch axis, got shape {tuple(x.shape)}")
        copies = x.shape[:1] if self.per_sample else ()
        shape = (*copies, *self.weight.shape)
        keep = keep_mask(shape, self._drop_prob, self.weight.device, self._next_key())
        weight = self.weight * keep / (1 - self._drop_prob)
        if not self.per_sample:
            return functional.linear(x, weight, self.bias)
        positions = math.prod(x.shape[1:-1])
        rows = x.reshape(len(x), positions, self.in_features)
        y = torch.matmul(rows, weight.mT)
        y = y.reshape(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias.to(y.dtype)
