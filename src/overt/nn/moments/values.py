"""Random tensors of a recorded pass: mean, variance per entry, deviation.

A value is a function, entry by entry, of one *root*: a random call whose law is known, or a
tensor that counts as normal. Chains of entrywise functions stay functions of their root, so that
x * sigmoid(x), where(x > 0, x, a * x) or relu(dropout(x)) are integrated as one function.

The deviation of a tensor from its mean, in the linearized network, is a function of the `steps` of
all sources of noise. The steps are 0 and have gradients: `backward` differentiates the output's
deviation with respect to them. In a random direction (`sampled=True`) the deviation is instead one
sample, whose squares have the right expectation; then one pass is enough for training.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from overt.nn.graph.record import UnsupportedError


@dataclass(frozen=True)
class Settings:
    """Numbers that the rules were tuned with, on the zoo of benchmarks/zoo.py."""

    nodes: tuple[int, ...] = (10, 5, 3)
    """Gauss-Hermite nodes for each of one, two or three roots; 10 integrate GELU to 1e-4."""
    training_nodes: int = 5
    """Those of one root in a training step, where each node costs time and 1e-2 is enough."""
    least_step: float = 1e-4
    """Standard deviations of nodes, relative to the mean: slopes of less would be rounding."""
    max_chain: int = 24
    """Entrywise functions in one chain; longer ones cost more to repeat than they gain."""
    directions: int = 4
    """Random directions that estimate the covariance of factors of a product."""
    max_direction_calls: int = 40
    """Random operations of a recording up to which these directions are cheap: 10 to 20 ms."""
    max_units: int = 64
    """Correlated units of a row whose variances are worked out by a backward pass each."""


SETTINGS = Settings()


def hermite(n: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights that integrate a standard normal law."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n)
    return torch.as_tensor(nodes), torch.as_tensor(weights / weights.sum())


HERMITE = {n: hermite(n) for n in (3, 5, 10)}


@dataclass(frozen=True, eq=False)
class Law:
    """A law of entries: nodes and weights that integrate it, and quantiles.

    Nodes and weights are those of all entries, or have the entries' axes behind the first one. Two
    nodes are a coin, for which sums over the nodes are exact.
    """

    nodes: Tensor
    weights: Tensor
    quantile: Callable[[Tensor], Tensor] | None = None

    @property
    def is_coin(self) -> bool:
        """Whether there are but two values."""
        return len(self.nodes) == 2


def _uniform_law(n: int = 64) -> Law:
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return Law(
        torch.as_tensor((nodes + 1) / 2), torch.as_tensor(weights / 2), lambda u: u
    )


UNIFORM = _uniform_law()
NORMAL = Law(*hermite(32), torch.special.ndtri)


@cache
def coin_law(p: float, low: float = 0.0, high: float = 1.0) -> Law:
    """Return the law of a number that is `high` with probability p and `low` otherwise."""
    weights = torch.tensor([1 - p, p], dtype=torch.float64)
    return Law(torch.tensor([low, high]), weights)


@dataclass(frozen=True, eq=False)
class RandomTensor:
    """Mean, variance per entry and deviation of a tensor.

    Attributes
    ----------
    noises
        Numbers of the random calls that it depends on.
    law
        The law of its entries, if it is a random call.
    exact
        Whether the mean is exact and the deviation affine in sources with exact variances.
    known
        Whether the variances per entry are exact.
    independent
        Whether its entries are independent of each other.
    derived
        0 if all sources of the deviation are random calls, 1 if some are products of independent
        deviations, 2 if some are other functions of random calls.
    product
        Variances v of independent entries and a matrix W, if it is their product x @ W and a
        constant: its covariance is W' diag(v) W then.
    roots, function
        Sets of few roots that it is an entrywise function of, and that function.
    """

    mean: Tensor
    var: Tensor
    dev: Tensor
    noises: frozenset[int]
    law: Law | None = None
    exact: bool = True
    known: bool = True
    independent: bool = True
    derived: int = 0
    product: tuple[Tensor, Tensor] | None = None
    roots: tuple[tuple[RandomTensor, ...], ...] = ()
    function: Function | None = None

    @property
    def units(self) -> int:
        """Entries of each row."""
        return self.mean.numel() // (len(self.mean) if self.mean.ndim else 1)

    @property
    def is_coin(self) -> bool:
        """Whether its entries are random calls with but two values."""
        return self.law is not None and self.law.is_coin

    @property
    def integrated_over(self) -> tuple[RandomTensor, ...]:
        """What functions of it are integrated over: itself, or independent roots with a coin.

        Dropout of random values is far from normal: it is 0 with the probability of a drop.
        """
        for roots in self.roots:
            shared = len(frozenset().union(*(root.noises for root in roots)))
            independent = shared == sum(len(root.noises) for root in roots)
            if independent and any(root.is_coin for root in roots):
                return roots
        return (self,)

    def changed(self, **changes: Any) -> RandomTensor:
        """Return another tensor made of it, with the same flags but for the changes."""
        defaults = {"law": None, "product": None, "roots": (), "function": None}
        return replace(self, **(defaults | changes))

    def approximated(self, **changes: Any) -> RandomTensor:
        """Return it with changes that are approximations."""
        return self.changed(exact=False, known=False, **changes)


Points = dict[RandomTensor, Tensor]
"""Values of roots."""

Function = Callable[[Points, dict["Value", Tensor]], Tensor]
"""A function of the values of roots; the dictionary stores intermediate results."""


@dataclass(eq=False)
class Source:
    """Independent deviations of mean 0, or a mask's with their covariance.

    `rest`: the part of a function's variance that a linear map leaves, not noise itself. `doubt`:
    a second-order effect that is left out of the variance, and counts in its error estimate only.
    `normal`: independent normal numbers, whose sums are normal however few they are.
    """

    step: Tensor
    var: Tensor
    covariance: Any = None
    rest: bool = False
    doubt: bool = False
    normal: bool = False

    def times(self, g: Tensor) -> Tensor:
        """Return Cov @ g for gradients g of shape (n, *step.shape)."""
        if self.covariance is None:
            return self.var * g
        return self.covariance.apply(g)


@dataclass(eq=False)
class Propagation:
    """One pass over a recording: its settings, and what it met.

    Noises that are `off` are at their means, the rest is propagated. With `sampled` the deviation
    is one sample in a random direction; with `grad` the certain part of the network has gradients.

    A product f(x, y) of factors that share noise leaves E f(t_x, t_y) out of its mean: a sampled
    pass appends f(t_x, t_y) to `cross`, and their means with standard errors are the `corrections`
    of another pass. `shared` is how much the products may miss, in standard deviations. Noise has
    at least the precision of `dtype`. `enumerated`: all operations met are in the table of those
    that may be called exact.
    """

    sampled: bool = False
    grad: bool = False
    off: Collection[str] = ()
    cross: list[Tensor] | None = None
    corrections: Iterator[tuple[Tensor, Tensor]] | None = None
    sources: list[Source] = field(default_factory=list)
    enumerated: bool = True
    shared: float = 0.0
    draws: int = 0
    dtype: torch.dtype = torch.float32

    def source(self, var: Tensor, **kind: Any) -> Tensor:
        """Return the deviation of new entries with these variances."""
        if self.sampled:
            tiny = torch.finfo(var.dtype).tiny ** 0.5
            return var.clamp(min=tiny).sqrt() * random_signs(var)
        step = torch.zeros_like(var, requires_grad=True)
        self.sources.append(Source(step, self.fixed(var), **kind))
        return step

    def doubt(self, dev: Tensor, var: Tensor) -> Tensor:
        """Return a deviation in which a second-order effect of this variance is left out."""
        if self.sampled:
            return dev
        return dev + self.source(var.detach().expand(dev.shape), doubt=True)

    def variance_mode(self) -> Any:
        """In a training step, variances inside the network have no gradients."""
        return torch.no_grad() if self.sampled else contextlib.nullcontext()

    def draw(self, mean: Tensor, var: Tensor, law: Law | None) -> Value:
        """Return new independent entries."""
        self.draws += 1
        noises = frozenset({self.draws})
        dev = self.source(var, normal=law is NORMAL)
        return Value(RandomTensor(mean, var, dev, noises, law))

    def fixed(self, value: Any) -> Any:
        """Return a factor of a deviation, without gradients unless the pass has them."""
        return value.detach() if isinstance(value, Tensor) and not self.grad else value


def random_signs(like: Tensor) -> Tensor:
    """Return independent entries that are 1 or -1."""
    # One random number has eight bytes, of which each gives a sign.
    words = torch.empty(-(-like.numel() // 8), dtype=torch.int64, device=like.device)
    bits = words.random_().view(torch.int8)[: like.numel()] & 1
    return bits.to(like.dtype).mul_(2).sub_(1).view(like.shape)


class Value:
    """A function of a root's entries, whose moments are worked out when they are needed."""

    def __init__(
        self,
        root: RandomTensor,
        function: Function | None = None,
        *,
        moments: RandomTensor | None = None,
        length: int = 0,
        positive: bool = False,
        shape: Any = None,
    ) -> None:
        self.root = root
        self.function = function
        self.found = root if function is None else moments
        self.length = length
        self.positive = positive
        self.shape = root.mean.shape if shape is None else shape
        self.affine = function is None

    def at(self, points: Points, cache: dict[Value, Tensor]) -> Tensor:
        """Return the value where its root, or what that is made of, has the given values."""
        if self not in cache:
            function = self.function
            if function is None and self.root in points:
                return points[self.root]
            cache[self] = (function or self.root.function)(points, cache)  # type: ignore[misc]
        return cache[self]

    def moments(self, run: Propagation) -> RandomTensor:
        """Return mean, variance and deviation."""
        if self.found is None:
            roots = self.root.integrated_over
            self.found = integrate(
                run, roots, self.at, self.shape, positive=self.positive
            )
        return self.found


def integrate(
    run: Propagation,
    roots: tuple[RandomTensor, ...],
    function: Function,
    shape: Any,
    *,
    positive: bool = False,
) -> RandomTensor:
    """Return the moments of a function f of one to three roots that count as independent.

    E f and Var f are sums over nodes of the roots' laws. The deviation is that of the roots times
    the mean slopes s = Cov(x, f) / Var x; what they leave of Var f is a separate source.
    """
    single = len(roots) == 1
    normal = sum(not root.is_coin for root in roots)
    count = SETTINGS.nodes[max(normal - 1, 0)]
    if run.sampled and normal == 1:
        count = SETTINGS.training_nodes
    by_law = [r.law is not None and (single or r.is_coin) for r in roots]

    def on_axis(numbers: Tensor, i: int) -> Tensor:
        """Put the nodes of root i on the i-th axis before those of the entries."""
        count, *entries = numbers.shape
        before = [1] * len(roots)
        before[i] = count
        between = [1] * (len(shape) - len(entries))
        return numbers.to(like).reshape(*before, *between, *entries)

    like = roots[0].var
    points: Points = {}
    widths = []
    weights: Any = 1.0
    for i, root in enumerate(roots):
        law = root.law if by_law[i] else None
        nodes, share = (law.nodes, law.weights) if law else HERMITE[count]
        weights = weights * on_axis(share, i)
        nodes = on_axis(nodes, i)
        points[root], width = _places(root, nodes, by_law[i], positive)
        widths.append(width)
    axes = tuple(range(len(roots)))
    y = function(points, {})
    if not y.is_floating_point():
        if not by_law[0]:
            raise UnsupportedError("a comparison of random values decides")
        y = y.to(like.dtype)
    mean = (weights * y).sum(axes)
    away = y - mean
    share = weights * away
    slopes = []
    for root, width in zip(roots, widths, strict=True):
        slopes.append((share * (points[root] - root.mean)).sum(axes) / width)
    with run.variance_mode():
        rest = (share * away).sum(axes)
        var: Any = 0.0
        # Where the variance is but rounding, nodes are farther away than it says.
        shrink = torch.zeros_like(rest)
        for root, slope, width in zip(roots, slopes, widths, strict=True):
            square = slope * slope
            rest = rest - square * width
            var = var + square * root.var
            shrink = torch.maximum(shrink, root.var / width)
        rest = (rest.clamp(min=0) * shrink * shrink).expand(shape)
        var = var + rest
    dev: Any = 0.0
    for root, slope in zip(roots, slopes, strict=True):
        dev = dev + run.fixed(slope) * root.dev
    mean, var, dev = (t.expand(shape) for t in (mean, var, dev))
    first = roots[0]
    same = single and first.mean.shape == mean.shape
    if single and first.is_coin:
        # A function of a coin is affine in it: the slope leaves nothing.
        alone = first.independent and same
        return first.changed(mean=mean, var=var, dev=dev, independent=alone)
    return first.approximated(
        mean=mean,
        var=var,
        dev=dev + run.source(rest, rest=True),
        noises=frozenset().union(*(root.noises for root in roots)),
        independent=single and first.independent,
    )


def _places(
    root: RandomTensor, nodes: Tensor, by_law: bool, positive: bool
) -> tuple[Tensor, Tensor]:
    """Return where a root is at the nodes, and its variance there."""
    tiny = torch.finfo(root.var.dtype).tiny
    mean = root.mean
    if by_law:
        return nodes, root.var.clamp(min=tiny)
    least = SETTINGS.least_step * mean.detach().abs()
    sd = torch.maximum(root.var.clamp(min=tiny).sqrt(), least)
    if positive and bool((mean > 0).all()):
        # A root, logarithm or quotient of a positive tensor: log-normal, so as to stay there.
        log_sd = torch.log1p((sd / mean) ** 2).sqrt()
        return mean * torch.exp(log_sd * nodes - log_sd * log_sd / 2), sd * sd
    return mean + sd * nodes, sd * sd
