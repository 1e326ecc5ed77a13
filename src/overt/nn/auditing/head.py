"""The last layers: where they begin, what they map, which bounds hold for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from overt._types import Floats
from overt.linear.bounds import Envelope
from overt.nn.auditing.noises import unit_envelopes, with_drop_prob
from overt.nn.auditing.trace import Point, Tail, Trace, Trunk
from overt.nn.layers.dropconnect import DropConnectLinear
from overt.nn.layers.mask_covariance import MaskCovariance
from overt.nn.layers.recognized import is_weight_noise, mask_covariance_of, plain_dropout
from overt.nn.spread import masked
from overt.spectral import SquaredNuclear, nu


@dataclass(frozen=True, eq=False)
class Stretch:
    """A part of the tail with a bound of its own: its noise as envelopes, and its structure."""

    centered: bool
    rank: int
    trunk: Trunk
    envelopes: Callable[[float | None], list[Envelope]]
    source: str


class Head:
    """The units before the last layers, the noise that multiplies them, the map J behind them.

    Attributes
    ----------
    name, module
        The noise layer, or the linear layer where there is no noise (`noisy` is False).
    shape, units
        A sample's shape at the module's input, and its number of entries.
    J
        The affine part behind it as a matrix, outputs x units.
    stretches
        The parts of the tail that bounds can be taken from: that of the nearest noise first.
    """

    def __init__(self, model: nn.Module, trace: Trace, tail: Tail, name: str, point: Point) -> None:
        self.name, self.module = name, model.get_submodule(name)
        self.noisy = point.noise is not None
        self.connect = isinstance(self.module, DropConnectLinear)
        self.centered = point.shifted
        self.shape = _input_shape(model, self.module, trace.x)
        self.units = math.prod(self.shape)
        self.J = _jacobian(model, self.module, trace.x[:1])
        self._plain = [
            (p, model.get_submodule(p.noise))
            for p in tail.noises
            if p.noise is not None and plain_dropout(model.get_submodule(p.noise)) is not None
        ]
        trunk = trace.trunk(point)
        rank = min(point.narrowest, self.units, trunk.narrowest)
        source = "Structured dropout, Theorem 2.7; Implicit bias of dropout, Theorem 3.6"
        self.stretches = [Stretch(point.shifted, rank, trunk, self._nearest, source)]
        distinct = {p.noise for p, _ in self._plain}
        if not self.connect and len(self._plain) == len(distinct) > 1:
            far = self._plain[-1][0]
            self._widths = [trace.units(trace.operations[p.at].output) for p, _ in self._plain]
            trunk = trace.trunk(far)
            rank = min(far.narrowest, trunk.narrowest)
            source = "Thesis, Theorem 9 and Lemma 9"
            self.stretches.append(Stretch(far.shifted, rank, trunk, self._together, source))

    def fits(self, model: nn.Module, x: Tensor) -> bool:
        """Whether outputs differ between samples by J times what their units differ by."""
        seen: list[Tensor] = []
        hook = self.module.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
        try:
            with torch.no_grad(), _Logits():
                f = model(x).double().reshape(len(x), -1).cpu()
        finally:
            hook.remove()
        F = seen[-1].double().flatten(1).cpu() @ self.J.T
        rounding = 100 * torch.finfo(seen[-1].dtype).eps * float(F.abs().max() + f.abs().max())
        if self.centered:
            f, F = f - f.mean(0), F - F.mean(0)
        return bool(((F - f).abs() <= rounding + 1e-2 * float(F.abs().max())).all())

    def law(self, p: float | None = None) -> MaskCovariance | None:
        """Return the second moments of the multipliers, at another drop probability if given.

        None for a noise that has no drop probability to change.
        """
        if not self.noisy or self.connect:
            current = self.module.strength if self.noisy else 0.0
            return MaskCovariance(self.shape, current if p is None else p / (1 - p))
        module = self.module if p is None else with_drop_prob(self.module, p)
        return None if module is None else mask_covariance_of(module, (1, *self.shape))

    @property
    def law_shares(self) -> bool:
        """Whether several units have one multiplier, so that a mask's unit is a group of them."""
        law = self.law()
        return law is not None and any(self.shape[axis] > 1 for axis in law.shared)

    def penalty(self, h: Tensor) -> float:
        """<Cbar, J'J o mean(h h')>, exact for the squared loss summed over outputs."""
        law = self.law()
        assert law is not None  # noqa: S101 (for the type checker)
        return float(masked(h.double(), None, law).total(self.J[None].to(h.device)))

    def weigh(self, p: float | None) -> Callable[[Floats], Floats] | None:
        """Return C -> Cbar o C over the flattened units."""
        law = self.law(p)
        if law is None:
            return None
        if law.independent and law.matrix is None:
            return lambda C: law.strength * np.diag(np.diag(C))
        Cbar = law.dense(torch.zeros(1, dtype=torch.float64)).numpy()
        return lambda C: Cbar * C

    def _nearest(self, p: float | None) -> list[Envelope]:
        """Return the envelopes of the noise nearest the output."""
        if not self.noisy or self.connect:
            law = self.law(p)
            assert law is not None  # noqa: S101 (for the type checker)
            return [(law.strength / self.units, SquaredNuclear())]
        module = self.module if p is None else with_drop_prob(self.module, p)
        return unit_envelopes(module, self.shape) if module is not None else []

    def _together(self, p: float | None) -> list[Envelope]:
        """Return the envelope of all plain dropout layers in the tail."""
        probs = [plain_dropout(module) for _, module in self._plain]
        if p is not None and self._plain[0][0].noise == self.name:
            probs[0] = p
        return [(nu(self._widths, probs), SquaredNuclear())]


def find_head(model: nn.Module, trace: Trace, *, log_softmax: bool) -> Head | str:
    """Return the head, or the reason why there is none."""
    tail = trace.tail(log_softmax=log_softmax)
    place = _place(model, tail)
    if place is None:
        return (
            f"the output comes from {tail.stopped}, which is not known to be affine in one input: "
            "no bound, and no prediction of its spectrum"
            if tail.linear is None
            else "the last linear map is not a torch.nn.Linear layer: no bound is taken from it"
        )
    name, point = place
    if not trace.is_last(point):
        return f"{name} is called again behind its place: no bound is taken from it"
    features, module = trace.operations[point.at].inputs[0], model.get_submodule(name)
    if len(features) != len(trace.x):
        return f"the rows that {name} takes are not those of the batch: no bound is taken from it"
    if is_weight_noise(module) and trace.units(features) != module.weight[0].numel():
        return f"the weights that {name} drops meet several positions: no bound is taken from it"
    try:
        head = Head(model, trace, tail, name, point)
    except RuntimeError as error:  # the forward pass may have no gradient
        return f"no map behind {name} can be found: {str(error).splitlines()[0]}"
    return head if head.fits(model, trace.x) else f"what lies behind {name} is not affine"


def _place(model: nn.Module, tail: Tail) -> tuple[str, Point] | None:
    """Return the module and the point of the noise nearest the output, or of the last layer."""
    for point in tail.noises:
        module = model.get_submodule(str(point.noise))
        if not is_weight_noise(module):
            return str(point.noise), point
        if isinstance(module, DropConnectLinear) and tail.weight is module.weight:
            assert tail.linear is not None  # noqa: S101 (for the type checker)
            return str(point.noise), replace(tail.linear, noise=point.noise)
    for name, module in model.named_modules():
        if getattr(module, "weight", None) is tail.weight and isinstance(module, nn.Linear):
            assert tail.linear is not None  # noqa: S101 (for the type checker)
            return name, tail.linear
    return None


def _input_shape(model: nn.Module, module: nn.Module, x: Tensor) -> tuple[int, ...]:
    seen: list[tuple[int, ...]] = []
    hook = module.register_forward_pre_hook(lambda _, args: seen.append(tuple(args[0].shape[1:])))
    try:
        with torch.no_grad():
            model(x)
    finally:
        hook.remove()
    return seen[-1]


class _Logits(TorchFunctionMode):  # type: ignore[misc]
    """Let log_softmax pass its input on."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        passes = getattr(func, "__name__", "") == "log_softmax"
        return args[0] if passes else func(*args, **(kwargs or {}))


def _jacobian(model: nn.Module, module: Any, x: Tensor) -> Tensor:
    """Return d output / d (what the module takes in), outputs x units, in double precision.

    What lies behind is affine, but for a final log_softmax, which is left out; so any sample will
    do. A noise layer in evaluation mode is the identity.
    """
    steps: list[Tensor] = []

    def add_zero(module: nn.Module, args: Any) -> Any:
        steps.append(torch.zeros_like(args[0], requires_grad=True))
        return (args[0] + steps[-1], *args[1:])

    hook = module.register_forward_pre_hook(add_zero)
    try:
        with torch.enable_grad():
            with _Logits():
                output = model(x).flatten()
            rows = [
                torch.autograd.grad(o, steps[-1], retain_graph=True, materialize_grads=True)[0]
                for o in output
            ]
    finally:
        hook.remove()
    return torch.stack([row.flatten() for row in rows]).double().cpu()
