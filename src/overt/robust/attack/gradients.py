"""Do gradients tell the truth? And whose gradients to follow where they do not."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from overt._check import InputError
from overt.robust.attack.base import AttackState, Batch, slope
from overt.robust.losses import LOSSES, objective_of
from overt.robust.models import ModelAdapter


@dataclass(frozen=True)
class GradientTestConfig:
    """Tuned so that rippled inputs are noticed and no network without a mask is suspected.

    At each of 7 ripples v + a sin(f v) of an MNIST network, a from .02 to .05 and f from 100 to
    500, at least 59 % of the points break their promise at a radius of .06. At 34 pairs of a
    network without a mask and a threat at most 2 % do.
    """

    step_lengths: tuple[float, ...] = (0.01, 0.1, 1.0)  # in radii
    min_kept: float = 0.4  # share of its promise that a step must gain
    min_kept_toward: float = 0.2  # toward a target, where the best other class changes
    max_doubtful: float = 0.1  # share of the points from which no gradient is believed
    rounding: float = 64  # machine epsilons of the largest logit that a loss is off by


CONFIG = GradientTestConfig()


def find_doubtful_gradients(state: AttackState) -> tuple[Tensor, bool]:
    """Step along the gradient and compare the gain with what the gradient promised.

    Return at which of all points a gradient breaks its promise, (points,), and whether gradients
    can be trusted in general. Several lengths are tried because a masking layer may ripple at one
    scale only: a sine of period 1/300 is honest at 1/1000 of the radius and useless at a tenth of
    it. The loss is the margin, which is nearly linear. Costs a gradient and three queries a point.
    """
    left = state.left
    doubtful = torch.zeros_like(state.best.fooled)
    flat = doubtful.clone()
    objective = objective_of(LOSSES["margin"], targeted=state.targeted)
    for rows in left.split(state.batch_size):
        batch = state.batch(rows, objective=objective)
        value, _, gradient = batch.differentiate(batch.region.x)
        breaks = _breaks_promise(state, batch, value, gradient)
        doubtful[rows] = breaks
        flat[rows] = ~(gradient.abs().amax(1) > 0)
        cost = state.adapter.samples * len(rows)
        state.best.gradients += cost
        state.best.queries += len(CONFIG.step_lengths) * cost
    doubt = float((doubtful | flat)[left].double().mean())
    return doubtful & ~flat, doubt <= CONFIG.max_doubtful


def _breaks_promise(
    state: AttackState, batch: Batch, value: Tensor, gradient: Tensor
) -> Tensor:
    """Return which points gain less than a fair share of what some step promises, (points,)."""
    x = batch.region.x
    exact = gradient.double()
    # By how much rounding in the model's number format may change the loss.
    logits = state.clean[batch.rows].abs().amax(1).double()
    inputs = (exact.abs() * x.abs()).sum(1)
    rounding = state.adapter.precision * (CONFIG.rounding * logits + inputs)
    min_kept = CONFIG.min_kept_toward if state.targeted else CONFIG.min_kept
    broken = torch.zeros_like(batch.y, dtype=torch.bool)
    for length in CONFIG.step_lengths:
        radius = length * state.threat.radius
        region = batch.region.with_radius(radius)
        moved = region.perturbed(region.project(radius * region.ascent(gradient)))
        promised = (exact * (moved - x).double()).sum(1)
        gained = batch.evaluate(moved)[0].double() - value.double()
        # A model that returns no number there has another warning.
        known = gained.isfinite() & (promised > rounding)
        broken |= known & ~(gained > min_kept * promised)
    return broken


@dataclass(frozen=True, eq=False)
class GradientSource:
    """Gradients of another model, or of the model itself made smooth.

    They are averaged over `evaluations` normal perturbations of size `sigma` and, if `straight`,
    rounding and detaching pass gradients on unchanged.
    """

    adapter: ModelAdapter
    sigma: float = 0.0
    evaluations: int = 1
    straight: bool = False

    def gradient(self, moved: Tensor, batch: Batch, step: int) -> Tensor:
        """Return the gradient of the batch's objective at the moved points of a step."""
        total = torch.zeros_like(moved)
        generator = torch.Generator().manual_seed(step)
        for _ in range(self.evaluations):
            # The same for every point: results do not depend on the batch.
            noise = torch.randn(moved.shape[1], generator=generator).to(moved)
            there = (moved + self.sigma * noise).detach().requires_grad_()
            mode = StraightThrough() if self.straight else nullcontext()
            with torch.enable_grad():
                with mode:
                    logits = self.adapter.logits(there, batch.rows)
                value = batch.objective(logits, batch.y, batch.target)
                total += slope(value, there).nan_to_num_(0, 0, 0)
        return total


class StraightThrough(TorchFunctionMode):  # type: ignore[misc]
    """Give rounding and detaching the gradient of the identity; `seen` says if there are any.

    Conversions to whole numbers keep their values and become numbers with a fraction.
    """

    HIDING: ClassVar[frozenset[str]] = frozenset(
        ("round", "floor", "ceil", "trunc", "sign", "int", "long", "byte", "detach")
    )

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        x = args[0] if args else None
        hides = getattr(func, "__name__", "") in self.HIDING
        hides = hides or func == Tensor.data.__get__
        if not hides or not isinstance(x, Tensor) or not x.requires_grad:
            return func(*args, **(kwargs or {}))
        self.seen = True
        return func(*args, **(kwargs or {})).detach().to(x.dtype) + (x - x.detach())


def hides_gradients(state: AttackState) -> bool:
    """Return whether the model rounds or detaches."""
    rows = state.left[: state.batch_size]
    x = state.x[rows].requires_grad_()
    try:
        with torch.enable_grad(), StraightThrough() as mode:
            state.adapter.logits(x, rows)
    except Exception:  # a number with a fraction may not do as an index, say
        return False
    return mode.seen


def surrogate_gradients(state: AttackState, surrogate: Any) -> GradientSource:
    """Return the gradients of a surrogate, which must have the model's classes."""
    other = ModelAdapter(surrogate, state.adapter.inputs, state.options)
    found = other.clean_logits(state.batch_size).shape[1]
    if found != state.clean.shape[1]:
        raise InputError(
            f"surrogate must return as many logits as the model, {state.clean.shape[1]}, got "
            f"{found}"
        )
    return GradientSource(other)
