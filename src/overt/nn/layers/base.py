"""Common parts of all noise layers: a private seed, and a drop probability that can change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from overt import _check
from overt._check import InputError, InputTypeError
from overt.nn.layers.masks import Key, MaskCovariance, Shape


class NoiseLayer(nn.Module, ABC):  # type: ignore[misc]
    """A layer that is random in training mode and deterministic in evaluation mode.

    With a seed the layer has a private generator: the buffer `draws` counts the masks sampled so
    far and is saved with the model, so that a restored run continues with the same masks. Without
    a seed the layer samples from torch's generator and has no state.
    """

    def __init__(self, seed: int | None) -> None:
        super().__init__()
        self.seed = None if seed is None else _check.whole("seed", seed, minimum=0)
        if self.seed is not None:
            self.register_buffer("draws", torch.zeros((), dtype=torch.int64))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output: random in training mode, deterministic otherwise."""
        if isinstance(x, torch.fx.Proxy):  # one call, as of a layer of torch.nn
            path = x.tracer.path_of_module(self)
            return x.tracer.create_proxy("call_module", path, (x,), {})
        if not isinstance(x, Tensor) or x.is_nested or x.layout != torch.strided:
            kind = f"{type(x).__module__}.{type(x).__name__}"
            raise InputTypeError(
                f"x must be a dense torch.Tensor, got {kind}; "
                "pass torch.as_tensor(x, dtype=torch.float32)"
            )
        if not self.training or self.silent:
            return self._evaluate(x)
        return self._sample(x)

    @property
    @abstractmethod
    def silent(self) -> bool:
        """Whether the noise is zero, so that training mode equals evaluation mode."""

    @abstractmethod
    def _evaluate(self, x: Tensor) -> Tensor:
        """Return the output without noise."""

    @abstractmethod
    def _sample(self, x: Tensor) -> Tensor:
        """Return the output under one sample of the noise."""

    def _next_key(self) -> Key | None:
        """Return what the next mask is sampled from, None for torch's generator."""
        if self.seed is None:
            return None
        # In a backward pass a forward pass is a checkpoint that computes its activations again. It
        # would advance `draws`, sample another mask and return a wrong gradient.
        if (
            not torch.compiler.is_compiling()
            and torch._C._current_graph_task_id() != -1
        ):
            raise InputError(
                f"{type(self).__name__} has seed={self.seed} and is computed again by "
                "torch.utils.checkpoint, which would sample another mask; use seed=None inside "
                "checkpointed parts"
            )
        key = Key(self.draws.clone(), self.seed)
        self.draws.add_(1)
        return key

    def _describe(self, *parts: str) -> str:
        """Return settings for printing, with the seed if there is one."""
        seed = [] if self.seed is None else [f"seed={self.seed}"]
        return ", ".join([*parts, *seed])


class UnitNoise(NoiseLayer):
    """Noise that multiplies units by random numbers of mean 1; the identity in evaluation mode."""

    two_valued = True
    """Whether a unit's multiplier is 0 or one other number."""

    @abstractmethod
    def mask_covariance(self, shape: Shape) -> MaskCovariance:
        """Return the exact second moments of the multipliers for an input of this shape."""

    @abstractmethod
    def _apply_mask(self, x: Tensor) -> Tensor:
        """Return x times one sample of the multipliers."""

    def _evaluate(self, x: Tensor) -> Tensor:
        return x

    def _sample(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            raise InputTypeError(f"x must be a floating-point tensor, got {x.dtype}")
        return self._apply_mask(x)


class RatedNoise(NoiseLayer):
    """Noise with a drop probability, `drop_prob`, that may be set at any time."""

    def __init__(self, drop_prob: float, seed: int | None) -> None:
        super().__init__(seed)
        self.drop_prob = drop_prob

    @property
    def drop_prob(self) -> float:
        """The probability that a unit (or weight) is dropped, averaged over a map."""
        return self._drop_prob

    @drop_prob.setter
    def drop_prob(self, value: float) -> None:
        self._drop_prob = _check.drop_prob(value)

    p = drop_prob  # the name it has in torch.nn.Dropout

    @property
    def silent(self) -> bool:
        """Whether nothing is dropped."""
        return self._drop_prob == 0

    @property
    def _rate(self) -> str:
        """The drop probability, for printing."""
        return f"drop_prob={self._drop_prob:g}"


def check_shape(shape: Any) -> Shape:
    """Return the shape of an input, batch axis first."""
    if not isinstance(shape, (tuple, list)) or len(shape) < 2:
        raise InputTypeError(f"shape must be (rows, units, ...), got {shape!r:.60}")
    return tuple(_check.whole("shape", n, minimum=0) for n in shape)
