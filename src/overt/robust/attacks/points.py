"""Points that go through a model together, whose gradients they follow, and what is found there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from overt.robust.attacks.criteria import Criterion
from overt.robust.attacks.losses import Objective
from overt.robust.attacks.models import Subject
from overt.robust.keyed_random import keys_of, normal
from overt.robust.threats import Region

Draw = Callable[[], Tensor]
"""Draws random allowed perturbations of the points of a batch."""


@dataclass(frozen=True, eq=False)
class Guide:
    """Whose gradients are followed where the model's own are not to be trusted.

    Those of `subject` (another model, or the model itself), averaged over `draws` normal
    perturbations of size `sigma`, and, if `straight`, as if rounding were no operation at all.
    """

    subject: Subject
    sigma: float = 0.0
    draws: int = 1
    straight: bool = False

    def gradient(self, moved: Tensor, points: Points) -> Tensor:
        """Return the gradient of the points' objective."""
        total = torch.zeros_like(moved)
        for k in range(self.draws):
            there = moved
            if self.sigma > 0:
                there = moved + self.sigma * normal(keys_of(moved, k), moved.shape[1], moved)
            there = there.detach().requires_grad_()
            with torch.enable_grad(), StraightThrough() if self.straight else nullcontext() as mode:
                logits = self.subject.logits(there, points.rows)
            with torch.enable_grad():
                logits = logits if mode is None else mode.through(logits)
                value = points.objective(logits, points.y, points.aim)
                total += slope(value, there).nan_to_num_(0, 0, 0)
        return total


class StraightThrough(TorchFunctionMode):  # type: ignore[misc]
    """Give what hides a gradient that of the identity while it is active; `seen` says if any does.

    That is rounding (conversions to whole numbers keep their values and become numbers with a
    fraction), what cuts a tensor off from its past, hooks on gradients, and operations with a
    backward pass of their own, as far as inputs are shaped like outputs.
    """

    ROUNDING: ClassVar[frozenset[Any]] = frozenset(
        getattr(place, name)
        for name in ("round", "floor", "ceil", "trunc", "fix", "sign", "int", "long", "byte")
        for place in (torch, Tensor)
        if callable(getattr(place, name, None)) and not isinstance(getattr(place, name), type)
    )
    CUTTING: ClassVar[frozenset[Any]] = frozenset(
        {torch.detach, Tensor.detach, Tensor.data.__get__}
    )

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        x = args[0] if args else None
        hides = func in self.ROUNDING or func in self.CUTTING or func is Tensor.register_hook
        if not hides or not isinstance(x, Tensor) or not x.requires_grad:
            return func(*args, **(kwargs or {}))
        self.seen = True
        if func in self.CUTTING:
            return x
        if func is Tensor.register_hook:
            return RemovableHandle(OrderedDict())
        return func(*args, **(kwargs or {})).detach().to(x.dtype) + (x - x.detach())

    def through(self, value: Tensor) -> Tensor:
        """Return value, its gradient passed straight through operations of the model's own."""
        waiting, known = [value.grad_fn], {None, value.grad_fn}
        while waiting:
            node = waiting.pop()
            own = isinstance(node, BackwardCFunction)
            if own and not str(node._forward_cls.__module__).startswith("torch."):
                self.seen = True
                node.register_hook(_straight)
            further = {n for n, _ in node.next_functions} - known if node is not None else set()
            known |= further
            waiting += further
        return value


def _straight(inward: tuple[Any, ...], outward: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the gradients of an operation's inputs: that of its output, where that fits."""
    g = outward[0]
    fits = [old is not None and g is not None and old.shape == g.shape for old in inward]
    return tuple(g if fit else old for fit, old in zip(fits, inward, strict=True))


@dataclass(frozen=True, eq=False)
class Points:
    """What to attack: points that go through the model together, and their allowed moves."""

    subject: Subject
    rows: Tensor
    y: Tensor
    aim: Tensor
    region: Region
    objective: Objective
    criterion: Criterion
    guide: Guide | None = None

    def evaluate(self, moved: Tensor) -> tuple[Tensor, Tensor]:
        """Return the objective at the moved points and who is fooled there."""
        with torch.no_grad():
            logits = self.subject.logits(moved, self.rows)
            return self._judge(logits, self.objective(logits, self.y, self.aim))

    def differentiate(self, moved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the objective at the moved points, who is fooled there, and the gradient."""
        if self.guide is not None:
            return *self.evaluate(moved), self.guide.gradient(moved, self)
        logits, value, gradient = self.follow(moved)
        return *self._judge(logits.detach(), value.detach()), gradient

    def follow(self, moved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, objective and gradient, and judge nothing."""
        moved = moved.detach().requires_grad_()
        with torch.enable_grad():
            logits = self.subject.logits(moved, self.rows)
            value = self.objective(logits, self.y, self.aim)
            return logits, value, slope(value, moved)

    def take(self, rows: Tensor) -> Points:
        """Return some of the points."""
        return replace(
            self, rows=self.rows[rows], y=self.y[rows], aim=self.aim[rows],
            region=self.region.take(rows),
        )  # fmt: skip

    def _judge(self, logits: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return the value, NaN where logits are not finite, and who is fooled by finite ones."""
        broken = ~torch.isfinite(logits).all(1)
        fooled = self.criterion.met(logits, self.y, self.aim)
        return value.masked_fill(broken, torch.nan), fooled & ~broken


@dataclass(eq=False)
class Found:
    """The best perturbation of each point, its objective, success, and what was seen."""

    delta: Tensor
    value: Tensor
    fooled: Tensor
    flat: Tensor
    broken: Tensor
    gradients: int = 0
    queries: int = 0

    @classmethod
    def nothing(cls, delta: Tensor) -> Found:
        """Return what is known before the first evaluation."""
        lowest = torch.full((len(delta),), -torch.inf, dtype=delta.dtype, device=delta.device)
        nobody = torch.zeros(len(delta), dtype=torch.bool, device=delta.device)
        return cls(delta.clone(), lowest, nobody, nobody.clone(), nobody.clone())

    def each(self, change: Callable[[Tensor], Tensor]) -> Found:
        """Return the same with all tensors changed in one way."""
        names = ("delta", "value", "fooled", "flat", "broken")
        return replace(self, **{name: change(getattr(self, name)) for name in names})

    def merge(self, rows: Tensor, other: Found) -> None:
        """Take over what is better of what was found at some of the points: success first."""
        better = torch.where(
            other.fooled == self.fooled[rows], other.value > self.value[rows], other.fooled
        )
        chosen = rows[better]
        self.delta[chosen] = other.delta[better]
        self.value[chosen] = other.value[better]
        self.fooled[rows] |= other.fooled
        self.flat[rows] |= other.flat
        self.broken[rows] |= other.broken
        self.gradients += other.gradients
        self.queries += other.queries


def slope(value: Tensor, x: Tensor, *, retain: bool = False) -> Tensor:
    """Return the gradient of each point's value, zero if it does not depend on x at all."""
    if not value.requires_grad:
        return torch.zeros_like(x)
    (gradient,) = torch.autograd.grad(value.sum(), x, retain_graph=retain, allow_unused=True)
    return torch.zeros_like(x) if gradient is None else gradient
