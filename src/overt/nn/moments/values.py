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
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from overt.nn.graph.record import UnsupportedError


@dataclass(frozen=True)
class Settings:
    """Numbers that the rules were tuned with, on the zoo of benchmarks/zoo.py."""

    normal_nodes: int = 10
    """Gauss-Hermite nodes of a function of one normal root; 10 integrate GELU to 1e-4."""
    training_nodes: int = 5
    """The same in a training step, where each node costs time and 1e-2 is enough."""
    grid_nodes: tuple[int, ...] = (10, 5, 3)
    """Nodes per root of a function of one, two or three roots."""
    small_deviation: float = 1e-3
    """Relative standard deviation below which the slope at the mean is the mean slope."""
    max_chain: int = 24
    """Entrywise functions in one chain; longer ones cost more to repeat than they gain."""
    max_roots: int = 3
    """Roots of one function; a grid over four would have 81 points or more."""
    signs: int = 16
    """Random signs that estimate the variances of a linear map that has no rule."""
    directions: int = 16
    """Random directions that estimate the covariance of factors of a product."""
    max_direction_calls: int = 40
    """Random operations of a recording up to which these directions are cheap: 10 to 20 ms."""
    local_samples: int = 32
    """Samples of an operation without a rule."""
    local_slopes: int = 4
    """Samples at which the slope of such an operation is taken."""
    max_units: int = 64
    """Correlated units of a row whose variances are worked out by a backward pass each."""
    max_window: int = 16
    """Entries of a pooling window that are compared one by one."""


SETTINGS = Settings()


def hermite(n: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights that integrate a standard normal law."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n)
    return torch.as_tensor(nodes), torch.as_tensor(weights / weights.sum())


_HERMITE = {n: hermite(n) for n in (3, 5, 10)}


@dataclass(frozen=True, eq=False)
class Law:
    """A law that all entries have: nodes and weights that integrate it, and quantiles.

    Two nodes are a coin, for which sums over the nodes are exact.
    """

    nodes: Tensor
    weights: Tensor
    quantile: Callable[[Tensor], Tensor] | None = None

    @property
    def is_coin(self) -> bool:
        """Whether there are but two values."""
        return len(self.nodes) == 2


@dataclass(frozen=True, eq=False)
class Derived:
    """A source that is a function of noises, not a random call itself.

    It is the product of deviations of `factors`, which are independent of each other; without
    factors it may be any function of its noises.
    """

    noises: frozenset[int]
    factors: tuple[frozenset[int], ...] = ()

    def may_correlate_with(self, other: Derived) -> bool:
        """Whether the two may be correlated: not if one has a factor that the other is free of."""
        if not self.noises & other.noises:
            return False
        if any(not factor & other.noises for factor in self.factors):
            return False
        return all(factor & self.noises for factor in other.factors)


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
        Sources of the deviation that are no random calls.
    product
        Variances v of independent entries and a matrix W, if it is their product x @ W and a
        constant: its covariance is W' diag(v) W then.
    """

    mean: Tensor
    var: Tensor
    dev: Tensor
    noises: frozenset[int]
    law: Law | None = None
    exact: bool = True
    known: bool = True
    independent: bool = True
    derived: frozenset[Derived] = frozenset()
    product: tuple[Tensor, Tensor] | None = None

    def approximated(self, **changes: Any) -> RandomTensor:
        """Return it with changes that are approximations."""
        return replace(
            self, exact=False, known=False, law=None, product=None, **changes
        )


@dataclass(eq=False)
class Source:
    """Independent deviations of mean 0, or a mask's with their covariance.

    `rest`: the part of a function's variance that a linear map leaves, not noise itself. `doubt`:
    a second-order effect that is left out of the variance, and counts in its error estimate only.
    """

    step: Tensor
    var: Tensor
    covariance: Any = None
    rest: bool = False
    doubt: bool = False

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
    of another pass.
    """

    sampled: bool = False
    grad: bool = False
    off: Collection[str] = ()
    sources: list[Source] = field(default_factory=list)
    unknown: dict[str, None] = field(default_factory=dict)
    cross: list[Tensor] | None = None
    corrections: list[tuple[Tensor, Tensor]] | None = None
    shared_count: int = 0
    shared_products: float = 0.0
    draws: int = 0
    coarse: set[int] = field(default_factory=set)
    dtype: torch.dtype = torch.float32

    def source(
        self, var: Tensor, *, covariance: Any = None, rest: bool = False
    ) -> Tensor:
        """Return the deviation of new entries with these variances, or with a covariance."""
        if self.sampled:
            tiny = torch.finfo(var.dtype).tiny ** 0.5
            return var.clamp(min=tiny).sqrt() * random_signs(var)
        step = torch.zeros(
            var.shape, dtype=var.dtype, device=var.device, requires_grad=True
        )
        self.sources.append(
            Source(step, var.detach() if not self.grad else var, covariance, rest)
        )
        return step

    def doubt(self, dev: Tensor, var: Tensor) -> Tensor:
        """Return a deviation in which a second-order effect of this variance is left out."""
        if self.sampled:
            return dev
        step = torch.zeros(
            var.shape, dtype=var.dtype, device=var.device, requires_grad=True
        )
        self.sources.append(Source(step, var.detach(), doubt=True))
        return dev + step

    def variance_mode(self) -> Any:
        """In a training step, variances inside the network have no gradients."""
        return torch.no_grad() if self.sampled else contextlib.nullcontext()

    def draw(
        self, mean: Tensor, var: Tensor, law: Law | None, *, off: bool = False
    ) -> Value:
        """Return new independent entries; `off`: of the same law, but without deviations."""
        self.draws += 1
        if off:
            zero = torch.zeros_like(mean)
            return Value(RandomTensor(mean, zero, zero, frozenset(), law))
        return Value(
            RandomTensor(mean, var, self.source(var), frozenset({self.draws}), law)
        )

    def fixed(self, value: Any) -> Any:
        """Return a factor of a deviation, without gradients unless the pass has them."""
        return value.detach() if isinstance(value, Tensor) and not self.grad else value

    def note_shared_product(self, share: Tensor) -> None:
        """Remember how much a product of factors that share noise may miss, at most."""
        if not self.sampled and share.numel():
            largest = float(share.detach().nan_to_num(9.9).amax())
            self.shared_products = max(self.shared_products, largest)


def random_signs(like: Tensor) -> Tensor:
    """Return independent entries that are 1 or -1."""
    return torch.randint(0, 2, like.shape, dtype=like.dtype, device=like.device) * 2 - 1


Points = dict[int, Tensor]
"""Values of roots, by the id of the root's value."""

Expression = tuple[tuple["Value", ...], Callable[[Points, dict[int, Tensor]], Tensor]]
"""Some roots, and a function of their values; the dictionary caches intermediate results."""


class Value:
    """A function of a root's entries, whose moments are worked out when they are needed."""

    def __init__(
        self,
        root: RandomTensor,
        function: Callable[[Tensor, dict[int, Tensor]], Tensor] | None = None,
        *,
        moments: RandomTensor | None = None,
        length: int = 0,
        positive: bool = False,
        shape: Any = None,
        affine: bool = True,
    ) -> None:
        self.root = root
        self.function = function
        self.length = length
        self.positive = positive
        self.affine = affine
        self.shape = root.mean.shape if shape is None else shape
        self.found = root if function is None else moments
        self.enumerated = True
        """Whether all operations that it came from are in the table of exact ones."""
        self.home: Value | None = None
        """The value that is the root, if it is another."""
        self.expressions: list[Expression] = []
        """The root as a function of other roots, if it was integrated over several."""

    def at(self, x: Tensor, cache: dict[int, Tensor]) -> Tensor:
        """Return the value where the root is x."""
        if self.function is None:
            return x
        if id(self) not in cache:
            cache[id(self)] = self.function(x, cache)
        return cache[id(self)]

    def as_expressions(self) -> list[Expression]:
        """Return the value as a function of its root, and of what the root is made of."""
        home = self.home or self

        def of_root(points: Points, cache: dict[int, Tensor]) -> Tensor:
            return self.at(points[id(home)], cache)

        found: list[Expression] = [((home,), of_root)]
        for roots, inner in home.expressions:

            def of_roots(
                points: Points, cache: dict[int, Tensor], inner: Any = inner
            ) -> Tensor:
                return self.at(inner(points, cache), cache)

            found.append((roots, of_roots))
        return found

    def moments(self, run: Propagation) -> RandomTensor:
        """Return mean, variance and deviation."""
        if self.found is None:
            self.found = self._integrate(run)
        if not self.enumerated and self.found.exact:
            self.found = replace(self.found, exact=False)
        return self.found

    def _integrate(self, run: Propagation) -> RandomTensor:
        """Return E f, the mean slope s = Cov(x, f) / Var x, and Var f over the root's law.

        The deviation is s times the root's; what s leaves of Var f is a separate source.
        """
        root = self.root
        x, weights, small = self._nodes(run)
        y = self.at(x, {})
        if not y.is_floating_point():
            if root.law is None:
                raise UnsupportedError("a comparison of random values decides")
            y = y.to(root.var.dtype)
        mean = (weights * y).sum(0)
        if (
            not root.noises
        ):  # a noise that is off: the mean of a coin, else the function at it
            if root.law is None or not root.law.is_coin:
                mean = self.at(root.mean, {})
            mean = mean.expand(self.shape)
            zero = torch.zeros_like(mean)
            return RandomTensor(mean, zero, zero, frozenset())
        away = y - mean
        with run.variance_mode():
            var = (weights * away * away).sum(0)
        tiny = torch.finfo(root.var.dtype).tiny
        slope = (weights * away * (x - root.mean)).sum(0) / root.var.clamp(min=tiny)
        if small is not None and bool(small.any()):
            slope = torch.where(small, self._slope_at_mean(), slope)
        mean, var, slope = (t.expand(self.shape) for t in (mean, var, slope))
        dev = run.fixed(slope) * root.dev
        same_shape = root.mean.shape == mean.shape
        if root.law is not None and root.law.is_coin:
            # A function of a coin is affine in it: the slope leaves nothing.
            return replace(
                root,
                mean=mean,
                var=var,
                dev=dev,
                law=None,
                independent=root.independent and same_shape,
            )
        rest = (var - slope * slope * root.var).clamp(min=0)
        dev = dev + run.source(rest, rest=True)
        return root.approximated(mean=mean, var=var, dev=dev)

    def _nodes(self, run: Propagation) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return points of the root, their weights, and where its deviation is small."""
        root = self.root
        pad = [1] * len(self.shape)
        mean, var = root.mean, root.var
        if root.law is not None:
            nodes = root.law.nodes.to(var).reshape(-1, *pad)
            return nodes, root.law.weights.to(var).reshape(-1, *pad), None
        count = SETTINGS.training_nodes if run.sampled else SETTINGS.normal_nodes
        z, weights = (t.to(var).reshape(-1, *pad) for t in _HERMITE[count])
        tiny = torch.finfo(var.dtype).tiny
        small = var.sqrt() <= SETTINGS.small_deviation * mean.abs() + tiny**0.5
        sd = torch.where(var <= tiny, 0.0, var).clamp(min=tiny).sqrt()
        if self.positive and bool((mean > 0).all()):
            # A root, logarithm or quotient of a positive tensor: log-normal, so as to stay there.
            sd = torch.log1p(var / (mean * mean)).clamp(min=tiny).sqrt()
            return mean * torch.exp(sd * z - sd * sd / 2), weights, small
        return mean + sd * z, weights, small

    def _slope_at_mean(self) -> Tensor:
        keep_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            mean = self.root.mean
            x = (
                mean
                if keep_graph and mean.requires_grad
                else mean.detach().requires_grad_()
            )
            x = x.expand(self.shape)
            y = self.at(x, {})
            if not y.requires_grad:
                return torch.zeros_like(x)
            (slope,) = torch.autograd.grad(y.sum(), x, create_graph=keep_graph)
        return slope


def integrate_roots(
    run: Propagation, expression: Expression, shape: Any
) -> RandomTensor:
    """Return the moments of a function of two or three roots that count as independent."""
    homes, function = expression
    roots = [home.root for home in homes]
    nodes, weights = _grid(roots)
    pad = [1] * len(shape)
    nodes = nodes.to(roots[0].mean)
    weights = weights.to(nodes).reshape(-1, *pad)
    tiny = torch.finfo(roots[0].var.dtype).tiny
    points: Points = {}
    scaled = []
    for i, home in enumerate(homes):
        z = nodes[:, i].reshape(-1, *pad)
        sd = home.root.var.clamp(min=tiny).sqrt()
        points[id(home)] = home.root.mean + sd * z
        scaled.append((home.root, sd, z))
    y = function(points, {})
    mean = (weights * y).sum(0)
    away = y - mean
    var = (weights * away * away).sum(0)
    dev = torch.zeros_like(mean)
    rest = var
    for root, sd, z in scaled:
        slope = (weights * away * z).sum(0) / sd
        dev = dev + run.fixed(slope) * root.dev
        rest = rest - slope * slope * root.var
    dev = dev + run.source(rest.clamp(min=0).expand(shape), rest=True)
    return RandomTensor(
        mean.expand(shape),
        var.expand(shape),
        dev,
        frozenset().union(*(root.noises for root in roots)),
        exact=False,
        known=False,
        independent=False,
    )


def _grid(roots: list[RandomTensor]) -> tuple[Tensor, Tensor]:
    """Return standardized nodes (points, roots) and weights of the product of the roots' laws."""
    normal = _HERMITE[SETTINGS.grid_nodes[len(roots) - 1]]
    axes = []
    for root in roots:
        if root.law is not None and root.law.is_coin:
            center = root.mean.flatten()[0].double()
            sd = root.var.flatten()[0].double().sqrt()
            axes.append(
                ((root.law.nodes.double() - center) / sd, root.law.weights.double())
            )
        else:
            axes.append(normal)
    nodes = torch.cartesian_prod(*(z for z, _ in axes))
    weights = torch.cartesian_prod(*(w for _, w in axes)).prod(1)
    return nodes, weights


def relu_moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return E, mean slope and variance of max(x, 0) for normal x."""
    sd = var.clamp(min=torch.finfo(var.dtype).tiny).sqrt()
    a = mean / sd
    phi = torch.exp(a * a * -0.5) * (2 * math.pi) ** -0.5
    Phi = torch.special.ndtr(a)
    u = torch.addcmul(phi, a, Phi)
    # Var = v (Phi + u (a (1 - Phi) - phi)): no difference of large numbers.
    return sd * u, Phi, var * torch.addcmul(Phi, u, a * (1 - Phi) - phi).clamp(min=0)


def gelu_moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return E, mean slope and variance of x Phi(x) for normal x.

    With s^2 = 1 + v and a = m / s: E f = m Phi(a) + v phi(a) / s. Its derivatives in m are the
    mean derivatives f_k of f, and Var f = v f_1^2 + v^2 f_2^2 / 2 + v^3 f_3^2 / 6 + ...; the first
    four terms are taken, which is 1e-3 for v = 1.
    """
    c = 1 / (1 + var)
    r = c.sqrt()
    a = mean * r
    aa = a * a
    Phi = torch.special.ndtr(a)
    phi = torch.exp(aa * -0.5) * (2 * math.pi) ** -0.5
    slope = Phi + a * phi * c
    h2 = 1 + c * (1 - aa)
    h3 = a * (h2 + 2 * c)
    h4 = aa - 1 + c * ((6 - aa) * aa - 3)
    cv = c * var
    rest = (
        var * cv * phi * phi / 6 * (3 * h2 * h2 + cv * h3 * h3 + cv * cv / 4 * h4 * h4)
    )
    return mean * Phi + phi * var * r, slope, slope * slope * var + rest
