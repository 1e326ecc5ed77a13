"""A random tensor inside a network, and what is written down while moments are carried."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from overt.nn.layers.mask_covariance import MaskCovariance
from overt.nn.moments.adjoint import Source, Sources
from overt.nn.moments.entries import signs
from overt.nn.moments.views import Views
from overt.nn.recording.watching import NoiseNames, mapped, tensors


@dataclass(frozen=True, eq=False)
class Moment:
    """A random tensor.

    Attributes
    ----------
    mean, variance, tangent
        The mean, the variance of each entry, and the deviation from the mean in the linearized
        network as a function of the noise's sources, all of one shape.
    noises
        The names of the noises that have reached it.
    exact
        Whether the mean is, and the tangent is affine in sources whose variances are.
    known
        Whether the variance per entry is exact.
    independent
        Whether the entries are independent of each other.
    dropped
        (values, drop_prob) if it is certain values under plain dropout.
    law
        The law, if all entries are fresh draws from one.
    """

    mean: Tensor
    variance: Tensor
    tangent: Tangent
    noises: frozenset[str]
    exact: bool = True
    known: bool = True
    independent: bool = True
    dropped: tuple[Tensor, float] | None = None
    law: Law | None = None

    def with_(self, **changes: Any) -> Moment:
        """Return one with some attributes changed, as dataclasses.replace does, but faster."""
        other = object.__new__(Moment)
        other.__dict__.update(self.__dict__, **changes)
        return other


class Law(NamedTuple):
    """A cumulative distribution function of draws, shifted."""

    cdf: Callable[[float], float]
    shift: float = 0.0

    def below(self, value: float) -> float:
        """Return the probability of a number below a value."""
        return self.cdf(value - self.shift)

    def shifted(self, by: float) -> Law:
        """Return the law of the same draw and a number more."""
        return self._replace(shift=self.shift + by)


class Tangent:
    """A tensor that is worked out when it is asked for: not every result needs its tangent."""

    def __init__(self, make: Callable[[], Tensor], graph: bool) -> None:
        self._make: Callable[[], Tensor] | None = make
        self._graph = graph

    def __call__(self) -> Tensor:
        """Return the tensor."""
        if self._make is not None:
            with torch.inference_mode(False), torch.set_grad_enabled(self._graph):
                self.work_out()
        return self._value

    def work_out(self) -> None:
        """Make the tensor, where gradients are as they should be."""
        if self._make is not None:
            self._value = self._make()
            self._make = None


class Uncarried(Exception):  # noqa: N818
    """An operation needs the values of these noises, not their moments."""

    def __init__(self, noises: Collection[str], operation: str) -> None:
        super().__init__(operation)
        self.noises = frozenset(noises)


@dataclass(eq=False)
class Tape:
    """What is known while one pass is carried.

    Attributes
    ----------
    active, drawn
        The noises that are on (None: all), and those of them that are drawn, not carried.
    probe
        Whether tangents are drawn, and not differentiated.
    differentiable
        Whether gradients with respect to parameters are wanted.
    settle
        The most units of a tensor whose covariances are worked out to keep a result exact.
    put_off
        None where covariances are worked out as they are met, else whether any were passed over, as
        if the result stayed exact without them.
    coarse, few, rough
        Noises with one number to a row, with a few that many entries share, and those of the latter
        by whose entries a tensor is normalized: they are not followed closely.
    """

    active: Collection[str] | None
    drawn: Collection[str]
    probe: bool
    differentiable: bool
    sources: Sources
    settle: int = 512
    put_off: bool | None = None
    met: dict[str, None] = field(default_factory=dict)
    was_drawn: dict[str, None] = field(default_factory=dict)
    linearized: dict[str, None] = field(default_factory=dict)
    coarse: dict[str, None] = field(default_factory=dict)
    few: dict[str, None] = field(default_factory=dict)
    rough: dict[str, None] = field(default_factory=dict)
    names: NoiseNames = field(default_factory=NoiseNames)

    def __post_init__(self) -> None:  # by id: tensors that are held here keep theirs
        self._moments: dict[int, tuple[Tensor, Moment]] = {}
        self._places: dict[int, tuple[Tensor, frozenset[str]]] = {}
        self.views = Views()
        self._tangents: list[Tangent] = []

    def state(self, name: str) -> Literal["off", "drawn", "carried"]:
        """Note that a noise is met, and say what to do with it."""
        self.met[name] = None
        if self.active is not None and name not in self.active:
            return "off"
        if name in self.drawn:
            self.was_drawn[name] = None
            return "drawn"
        return "carried"

    @property
    def holds(self) -> bool:
        """Whether any moment is kept."""
        return bool(self._moments)

    def get(self, value: Any) -> Moment | None:
        """Return the moment of a tensor of the pass, None if it is certain."""
        found = self._moments.get(id(value))
        return None if found is None else found[1]

    def put(
        self, moment: Moment, handle: Tensor | None = None, view: Tensor | None = None
    ) -> Tensor:
        """Remember a moment; return the tensor that stands for it in the model's code.

        It may be a view of another such tensor.
        """
        if handle is None and not moment.noises:
            return moment.mean
        if handle is None:  # an object of its own: the mean may be a tensor that is certain
            handle = moment.mean.view_as(moment.mean)
        self._moments[id(handle)] = handle, moment
        self.views.add(handle, view)
        return handle

    def place(self, part: Any, noises: frozenset[str]) -> Any:
        """Return whole numbers that came with moments, such as where the largest entries are.

        They are as random, and must not be used.
        """
        if isinstance(part, Tensor) and not part.is_floating_point() and self.get(part) is None:
            self._places[id(part)] = part, noises
        return part

    def check(self, operation: str, given: list[Tensor]) -> None:
        """Refuse tensors whose moments are not at hand."""
        for t in given:
            if id(t) in self._places:
                raise Uncarried(self._places[id(t)][1], operation)
            if self.views.stale(t) or torch._C._functorch.is_functorch_wrapped_tensor(t):
                raise Uncarried(set(self.met) - set(self.was_drawn), operation)

    def mean(self, tree: Any) -> Any:
        """Return arguments with means in the place of random tensors."""
        return mapped(tree, lambda t: t if (m := self.get(t)) is None else m.mean)

    def noisy(self, tree: Any) -> list[Moment]:
        """Return the moments among some arguments."""
        return [m for t in tensors(tree) if (m := self.get(t)) is not None and m.noises]

    def certain(self, tensor: Tensor) -> Moment:
        """Return a certain tensor as a moment of variance 0."""
        zero = torch.zeros((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)
        return Moment(tensor, zero, Tangent(lambda: zero, self.differentiable), frozenset())

    def of(self, tensor: Tensor) -> Moment:
        """Return a tensor's moment, also if it is certain."""
        return self.get(tensor) or self.certain(tensor)

    def later(self, make: Callable[[], Tensor]) -> Tangent:
        """Return a tangent that is worked out when it is asked for, cast as it would be now."""
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                make = torch.autocast(device, torch.get_autocast_dtype(device))(make)
        self._tangents.append(Tangent(make, self.differentiable or not self.probe))
        return self._tangents[-1]

    def tangent(self, x: Moment) -> Tensor:
        """Return the tangent of x; the others before it come first, so that none nests deeply."""
        graph = self.differentiable or not self.probe
        with torch.inference_mode(False), torch.set_grad_enabled(graph):
            for tangent in self._tangents:
                tangent.work_out()
                if tangent is x.tangent:
                    break
        return x.tangent()

    def fixed(self, tree: Any) -> Any:
        """Return arguments as tangents should see them: no gradients unless they are wanted."""
        if self.differentiable:
            return self.mean(tree)
        return mapped(self.mean(tree), Tensor.detach)

    def spread(self, f: Callable[..., Tensor], *given: Tensor) -> Tensor:
        """Return f of variances; a probe takes them as they are, without gradients."""
        if not self.probe:
            return f(*given)
        with torch.no_grad():
            return f(*given)

    def source(self, variance: Tensor, *, rest: bool = False) -> Tensor:
        """Return the tangent of new independent deviations with these variances."""
        if self.probe:
            tiny = torch.finfo(variance.dtype).tiny ** 0.5
            return variance.clamp(min=tiny).sqrt() * signs(variance)
        return self._step(variance.shape, variance, variance, rest)

    def masks(self, covariance: MaskCovariance, like: Tensor) -> Tensor:
        """Return the tangent of new masks (rows, *shape), without their mean."""
        return self._step((len(like), *covariance.shape), covariance, like)

    def dense(self, covariance: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return the tangent of new deviations with these covariances (rows, units, units)."""
        return self._step(shape, covariance, covariance)

    def _step(
        self, shape: Any, spread: Tensor | MaskCovariance, like: Tensor, rest: bool = False
    ) -> Tensor:
        step = torch.zeros(shape, dtype=like.dtype, device=like.device, requires_grad=True)
        return self.sources.add(Source(step, spread, rest))

    def settled(self, x: Moment) -> Moment:
        """Return x with its variances worked out from its sources, if that is affordable."""
        if x.known or not x.exact or self.probe or not self._affordable(x):
            return x
        if self.put_off is not None:
            self.put_off = True
            return x.with_(known=True)
        found = self.sources.variances(self.tangent(x))
        return x.with_(variance=found, known=True)

    def covariance(self, x: Moment) -> Tensor | None:
        """Return the covariances of x (rows, units, units), None if that is too dear or inexact."""
        if not x.exact or self.probe or not self._affordable(x):
            return None
        if self.put_off is not None:
            self.put_off = True
            return None
        return self.sources.covariances(self.tangent(x))

    def _affordable(self, x: Moment) -> bool:
        return x.mean.ndim > 1 and math.prod(x.mean.shape[1:]) <= self.settle
