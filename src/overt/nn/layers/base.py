"""What the noise layers have in common: a seed of their own, a drop probability that can move."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from overt import _check
from overt._check import InputTypeError
from overt.nn.layers.mask_covariance import MaskCovariance
from overt.nn.layers.masks import Key
from overt.nn.layers.schedules import DropSchedule


class NoiseLayer(nn.Module, ABC):  # type: ignore[misc]
    """A layer that is random in training mode and certain in evaluation mode.

    With a seed the layer owns its randomness: the buffer `draws` counts the masks drawn so far and
    is saved with the model, so that a restored run continues with the same masks. Without one
    it draws from torch's generator and has no state at all.
    """

    def __init__(self, seed: int | None) -> None:
        super().__init__()
        self.seed = None if seed is None else _check.whole("seed", seed, minimum=0)
        if self.seed is not None:
            self.register_buffer("draws", torch.zeros((), dtype=torch.int64))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"

    def _next_key(self) -> Key | None:
        if self.seed is None:
            return None
        key = Key(self.seed, self.draws.clone())
        self.draws.add_(1)
        return key

    def _described(self, *parts: str) -> str:
        return ", ".join([*parts, *([] if self.seed is None else [f"seed={self.seed}"])])


def checked_tensor(x: Any) -> None:
    """Refuse what is no tensor."""
    if not isinstance(x, Tensor) or x.is_nested or x.layout != torch.strided:
        raise InputTypeError(
            f"x must be a dense torch.Tensor, got {type(x).__module__}.{type(x).__name__}; pass "
            "torch.as_tensor(x, dtype=torch.float32)"
        )


def checked_shape(shape: Any) -> tuple[int, ...]:
    """Return the shape of an input, the batch's axis first."""
    if not isinstance(shape, (tuple, list)) or len(shape) < 2:
        raise InputTypeError(f"shape must be (rows, units, ...), got {shape!r:.60}")
    return tuple(_check.whole("shape", n, minimum=0) for n in shape)


class UnitNoise(NoiseLayer):
    """Noise that multiplies units by random numbers of mean 1; the identity in evaluation."""

    @abstractmethod
    def mask_covariance(self, shape: tuple[int, ...]) -> MaskCovariance:
        """Return the exact second moments of the multipliers for an input of this shape."""

    @abstractmethod
    def _multiplied(self, x: Tensor) -> Tensor:
        """Return x times one draw of the multipliers."""

    @property
    @abstractmethod
    def silent(self) -> bool:
        """Whether the noise is zero, so that training mode is the identity too."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x times random multipliers of mean 1 in training mode, else x itself."""
        checked_tensor(x)
        if not self.training or self.silent:
            return x
        if not x.is_floating_point():
            raise InputTypeError(f"x must be a floating-point tensor, got {x.dtype}")
        return self._multiplied(x)


class RatedNoise(NoiseLayer):
    """Noise that drops with a probability, `drop_prob`: that of now, if it is scheduled."""

    def __init__(self, drop_prob: float | DropSchedule, seed: int | None) -> None:
        super().__init__(seed)
        self.rate = Rate(drop_prob)

    @property
    def drop_prob(self) -> float:
        """The probability that a unit (or weight) is dropped, averaged over a map, now."""
        return self.rate.value

    @drop_prob.setter
    def drop_prob(self, value: float) -> None:
        self.rate.fix(value)

    @property
    def silent(self) -> bool:
        """Whether nothing is dropped, now or later."""
        return self.rate.silent


class Rate(nn.Module):  # type: ignore[misc]
    """A drop probability: a number, or a schedule with the step it has reached.

    With a schedule the buffer `step` is saved with the model, and the probability is a tensor to
    compiled code, which is then not compiled again whenever it moves.
    """

    def __init__(self, drop_prob: float | DropSchedule) -> None:
        super().__init__()
        self.schedule = drop_prob if isinstance(drop_prob, DropSchedule) else None
        if self.schedule is not None:
            self.register_buffer("step", torch.zeros((), dtype=torch.int64))
            # In units of 2^-62: a floating-point buffer would be rounded by model.bfloat16().
            self.register_buffer("bits", torch.zeros((), dtype=torch.int64), persistent=False)
        self.fix(drop_prob if not isinstance(drop_prob, DropSchedule) else drop_prob(0))

    def __repr__(self) -> str:
        if self.schedule is None:
            return f"{self._value:g}"
        return f"{self._value:g} by {self.schedule!r}"

    @property
    def value(self) -> float:
        """The drop probability now."""
        return self._value

    @property
    def current(self) -> float | Tensor:
        """The drop probability now, as code that may be compiled should read it."""
        if self.schedule is not None and torch.compiler.is_compiling():
            return self.bits.double() / 2**62
        return self._value

    @property
    def silent(self) -> bool:
        """Whether the drop probability is 0 and stays so."""
        return self.schedule is None and self._value == 0

    def fix(self, drop_prob: float) -> None:
        """Set the drop probability; a schedule moves on from here only at its next step."""
        self._value = _check.drop_prob(drop_prob)
        if self.schedule is not None:
            self.bits.fill_(round(self._value * 2**62))

    def advance(self, steps: int) -> None:
        """Move the schedule on, if there is one."""
        if self.schedule is not None:
            self.step.add_(steps)
            self.fix(self.schedule(int(self.step)))

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.advance(0)


def advance(model: nn.Module, steps: int = 1) -> None:
    """Move every scheduled drop probability in `model` on by `steps`.

    Call it once after each optimizer step (or epoch), like a learning-rate scheduler.
    """
    steps = _check.whole("steps", steps, minimum=0)
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    for module in model.modules():
        if isinstance(module, Rate):
            module.advance(steps)


def scaled(x: Tensor, multipliers: Tensor) -> Tensor:
    """Return x o multipliers in x's number format, rounded once."""
    return (x * multipliers).to(x.dtype)
