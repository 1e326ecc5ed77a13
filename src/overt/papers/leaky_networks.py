"""Thesis, chapter 6: two-layer leaky-ReLU networks with a fixed top layer, attacked and trained.

    f(x) = sum_r a_r sigma(w_r . x),  sigma(z) = max(slope z, z),  labels y in {-1, 1}

Algorithm 5, `reflected_ascent`, attacks by ascending the reflected loss l_-(z) = -log(1 + e^z),
z = y f(x); Algorithm 6, `train_online`, trains the hidden layer on the attacked points with
l(z) = log(1 + e^-z). NumPy throughout: these are the algorithms as printed, for checking what is
claimed of them, not for speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

from overt._check import (
    InputError,
    bounded,
    doubles,
    instance,
    number,
    plain_array,
    whole,
)
from overt._types import Floats
from overt.robust.certify.exact import ExactError, check_slope, two_layer
from overt.robust.threats import L2

SEPARABLE = 1e-8
"""Least margin, relative to the largest input, that is told from none in double precision."""


@dataclass(frozen=True, eq=False)
class LeakyNetwork:
    """f(x) = a . sigma(W x) with W (width, inputs), a (width,) and the slope alpha in [0, 1]."""

    W: Floats
    a: Floats
    slope: float

    def __post_init__(self) -> None:
        W = doubles("W", self.W, ndim=2)
        a = doubles("a", self.a, ndim=1)
        if len(a) != len(W):
            raise InputError(f"a must be ({len(W)},), got {a.shape}")
        for name, value in (("W", W), ("a", a), ("slope", check_slope(self.slope))):
            object.__setattr__(self, name, value)

    @property
    def kappa(self) -> float:
        """The largest weight of the top layer, which Theorem 16 needs all to have."""
        return float(np.abs(self.a).max())

    @property
    def norm(self) -> float:
        """Frobenius norm of the hidden layer."""
        return float(np.linalg.norm(self.W))

    @bounded
    def value(self, x: Floats) -> Floats:
        """Return f(x) for one input or for rows of inputs."""
        z = self._preactivations(x)
        return np.maximum(self.slope * z, z) @ self.a

    @bounded
    def input_gradient(self, x: Floats) -> Floats:
        """Return grad_x f(x) = sum_r a_r sigma'(w_r . x) w_r for one input."""
        return (self.a * self._slopes(x)) @ self.W

    @bounded
    def weight_gradient(self, x: Floats) -> Floats:
        """Return grad_W f(x), rows a_r sigma'(w_r . x) x, for one input."""
        return np.outer(self.a * self._slopes(x), x)

    @bounded
    def attack_step_size(self) -> float:
        """Return 1 / (kappa^2 m |W|_F^2), the largest step of Lemma 18."""
        if not self.kappa * self.norm:
            raise InputError("W and a must not be zero: there is nothing to attack")
        return 1 / (self.kappa**2 * len(self.W) * self.norm**2)

    def beta(self, radius: float) -> float:
        """Return 4 radius (1 - slope) kappa sqrt(m): from here on attacks are surely found.

        The proof of Lemma 18 bounds |delta* - delta_t| by the radius; two points of a ball may be
        twice the radius apart, hence 4 where 2 is printed.
        """
        return (
            4
            * number("radius", radius)
            * (1 - self.slope)
            * self.kappa
            * math.sqrt(len(self.W))
        )

    def _preactivations(self, x: Floats) -> Floats:
        if np.shape(x)[-1:] != self.W.shape[1:]:
            raise InputError(
                f"x must have {self.W.shape[1]} inputs, got shape {np.shape(x)}"
            )
        return np.asarray(x @ self.W.T)

    def _slopes(self, x: Floats) -> Floats:
        """Return sigma'(w_r . x) for one input."""
        return np.where(self._preactivations(x) > 0, 1.0, self.slope)


@bounded
def reflected_ascent(
    net: LeakyNetwork, x: Floats, y: int, radius: float, step_size: float, steps: int
) -> Floats:
    """Return the attack delta_tau: the iterate t in 1..T with the largest l_-(y f(delta_t)).

    Algorithm 5: delta_1 = x and delta_(t+1) = project(delta_t + step_size grad l_-(y f(delta_t)))
    on the ball of the given radius around x.
    """
    instance("net", net, LeakyNetwork, "a LeakyNetwork")
    x = doubles("x", x, ndim=1)
    y, radius, step_size = (
        _sign(y),
        number("radius", radius),
        number("step_size", step_size),
    )
    delta, best, best_margin = x, x, math.inf
    for _ in range(whole("steps", steps)):
        margin = y * float(net.value(delta))
        if margin < best_margin:  # l_- falls with the margin
            best, best_margin = delta, margin
        ascent = -expit(margin) * y * net.input_gradient(delta)
        move = delta + step_size * ascent - x
        length = float(np.linalg.norm(move))
        delta = x + move * min(1.0, radius / length if length else 1.0)
    return best


def train_online(
    net: LeakyNetwork,
    samples: Iterable[tuple[Floats, int]],
    step_size: float,
    attack: Callable[[LeakyNetwork, Floats, int], Floats],
) -> Iterator[LeakyNetwork]:
    """Yield W_1, W_2, ...: one gradient step on l(y f(delta)) for each sample, attacked first.

    This is Algorithm 6.
    """
    number("step_size", step_size)
    yield net
    for x, y in samples:
        delta = attack(net, x, y)
        slope = -expit(-_sign(y) * float(net.value(delta)))
        W = net.W - step_size * slope * y * net.weight_gradient(delta)
        net = LeakyNetwork(W, net.a, net.slope)
        yield net


def separation(x: Floats, y: Floats) -> tuple[float, Floats]:
    """Return the margin gamma = max min_i y_i (v . x_i) over unit vectors v, and that v.

    The hard-margin problem min |v| with y_i (v . x_i) >= 1 is a least-distance problem, which
    non-negative least squares solves exactly (Lawson and Hanson 1974, chapter 23).
    """
    from scipy.optimize import nnls

    X = doubles("x", x, ndim=2)
    scale = float(np.abs(X).max()) or 1.0  # first, as squares of large numbers overflow
    scale *= float(np.linalg.norm(X / scale, axis=1).max()) or 1.0
    G = _signs(y, len(X))[:, None] * (X / scale)
    E = np.vstack([G.T, np.ones(len(G))])
    f = np.zeros(len(E))
    f[-1] = 1.0
    u, _ = nnls(E, f)
    v = G.T @ u
    v /= float(np.linalg.norm(v)) or 1.0
    gamma = float((G @ v).min())
    if gamma < SEPARABLE:
        raise InputError(
            "x must be linearly separable by a plane through the origin, with a margin of at "
            f"least {SEPARABLE:g} of the largest input; it is not"
        )
    return gamma * scale, v


def beta_robust_error(
    net: LeakyNetwork, x: Floats, y: Floats, radius: float, beta: float | None = None
) -> ExactError:
    """Return P(min y f(delta) <= -beta |W|_F) exactly, labels y in {-1, 1}.

    `beta` is that of Theorem 16 if None, 4 nu (1 - alpha) kappa sqrt(m); 0 gives the robust error.
    """
    instance("net", net, LeakyNetwork, "a LeakyNetwork")
    x = doubles("x", x, ndim=2)
    beta = net.beta(radius) if beta is None else number("beta", beta)
    return two_layer(
        net.W,
        net.a[None],
        x,
        _signs(y, len(x)),
        L2(radius),
        slope=net.slope,
        level=beta * net.norm,
    )


def _sign(value: Any) -> int:
    found = plain_array("y", value)
    if found.ndim or found.dtype.kind not in "iufc" or found not in (-1, 1):
        raise InputError(f"y must be -1 or 1, got {value!r}")
    return int(found.real)


def _signs(y: Any, n: int) -> Floats:
    values = plain_array("y", y)
    if values.shape != (n,):
        raise InputError(
            f"y must be {n} labels, each -1 or 1, got shape {values.shape}"
        )
    return np.array([_sign(value) for value in values.tolist()], dtype=np.float64)
