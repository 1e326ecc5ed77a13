"""Thesis, chapter 6: two-layer leaky-ReLU networks with a fixed top layer, and what is proved.

    f(x) = sum_r a_r sigma(w_r . x),  sigma(z) = max(slope z, z),  labels y in {-1, 1}

Algorithm 5 attacks by ascending the reflected loss l_-(z) = -log(1 + e^z), z = y f(x); Algorithm 6
trains the hidden layer on the attacked points with l(z) = log(1 + e^-z). NumPy throughout: these
are the algorithms as printed, for checking what is claimed of them, not for speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

from overt._check import InputError, floating, matrix, number, whole
from overt._types import Floats
from overt.results import Result
from overt.robust.exact import ExactError, two_layer
from overt.robust.threat import L2

SEPARABLE = 1e-8
"""Least margin, relative to the largest input, that is told from none in double precision."""


@dataclass(frozen=True, eq=False)
class LeakyNetwork:
    """f(x) = a . sigma(W x) with W (width, inputs), a (width,) and the slope alpha in [0, 1]."""

    W: Floats
    a: Floats
    slope: float

    def __post_init__(self) -> None:
        W = np.asarray(matrix("W", self.W), dtype=np.float64)
        a = np.asarray(floating("a", np.asarray(self.a, dtype=np.float64), ndim=1))
        if len(a) != len(W):
            raise InputError(f"a must be ({len(W)},), got {a.shape}")
        for name, value in (("W", W), ("a", a), ("slope", _slope(self.slope))):
            object.__setattr__(self, name, value)

    @property
    def kappa(self) -> float:
        """The largest weight of the top layer, which Theorem 16 needs all to have."""
        return float(np.abs(self.a).max())

    @property
    def norm(self) -> float:
        """Frobenius norm of the hidden layer."""
        return float(np.linalg.norm(self.W))

    def value(self, x: Floats) -> Floats:
        """Return f(x) for one input or for rows of inputs."""
        z = self._preactivations(x)
        return np.maximum(self.slope * z, z) @ self.a

    def input_gradient(self, x: Floats) -> Floats:
        """Return grad_x f(x) = sum_r a_r sigma'(w_r . x) w_r for one input."""
        return (self.a * self._slopes(x)) @ self.W

    def weight_gradient(self, x: Floats) -> Floats:
        """Return grad_W f(x), rows a_r sigma'(w_r . x) x, for one input."""
        return np.outer(self.a * self._slopes(x), x)

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
        return 4 * number("radius", radius) * (1 - self.slope) * self.kappa * math.sqrt(len(self.W))

    def _preactivations(self, x: Floats) -> Floats:
        if np.shape(x)[-1:] != self.W.shape[1:]:
            raise InputError(f"x must have {self.W.shape[1]} inputs, got shape {np.shape(x)}")
        return np.asarray(x @ self.W.T)

    def _slopes(self, x: Floats) -> Floats:
        """Return sigma'(w_r . x) for one input."""
        return np.where(self._preactivations(x) > 0, 1.0, self.slope)


def algorithm_5(
    net: LeakyNetwork, x: Floats, y: int, radius: float, step_size: float, steps: int
) -> Floats:
    """Return the attack delta_tau: the iterate t in 1..T with the largest l_-(y f(delta_t)).

    delta_1 = x and delta_(t+1) = project(delta_t + step_size grad l_-(y f(delta_t))) on the ball
    of the given radius around x.
    """
    x = np.asarray(floating("x", np.asarray(x, dtype=np.float64), ndim=1))
    y, radius, step_size = _sign(y), number("radius", radius), number("step_size", step_size)
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


def algorithm_6(
    net: LeakyNetwork,
    samples: Iterable[tuple[Floats, int]],
    step_size: float,
    attack: Callable[[LeakyNetwork, Floats, int], Floats],
) -> Iterator[LeakyNetwork]:
    """Yield W_1, W_2, ...: one gradient step on l(y f(delta)) for each sample, attacked first."""
    number("step_size", step_size)
    yield net
    for x, y in samples:
        delta = attack(net, x, y)
        slope = -expit(-_sign(y) * float(net.value(delta)))
        W = net.W - step_size * slope * y * net.weight_gradient(delta)
        net = LeakyNetwork(W, net.a, net.slope)
        yield net


@dataclass(frozen=True, repr=False)
class Plan(Result):
    """What Theorem 16 asks for to reach an expected beta-robust error of at most 2 epsilon.

    Attributes
    ----------
    train_steps, train_step_size
        Iterations of Algorithm 6 and its step, which must equal its bound.
    attack_work
        T_atk |W_t|_F^-2: an attack on weights W takes attack_work |W|_F^2 steps of length
        1 / (kappa^2 m |W|_F^2).
    beta
        The smallest lead that counts as an attack.
    kappa
        Size of every weight of the top layer.
    """

    train_steps: int
    train_step_size: float
    attack_work: float
    beta: float
    kappa: float
    epsilon: float

    def attack_steps(self, norm: float) -> int:
        """Return T_atk for hidden weights of this Frobenius norm."""
        return max(math.ceil(self.attack_work * number("norm", norm) ** 2), 1)


def theorem_16(
    *,
    epsilon: float,
    margin: float,
    radius: float,
    reach: float,
    width: int,
    slope: float,
    kappa: float,
    omega: float,
) -> Plan:
    """Return the iteration counts and step sizes of Theorem 16, corrected.

    T_tr = 64 (R + nu)^2 (1 + omega gamma alpha kappa sqrt(m) eps) / ((gamma - nu)^2 alpha^2 eps^2),
    eta_tr = 1 / (m kappa^2 (R + nu)^2),  eta_atk = 1 / (kappa^2 m |W|^2),
    T_atk = 8 nu^2 / (eta_atk eps),  beta = 4 nu (1 - alpha) kappa sqrt(m).

    Corrections: beta has 4 where 2 is printed; T_tr holds for eta_tr equal to its bound, not for
    any smaller one; every |a_r| must equal kappa.

    Parameters
    ----------
    epsilon
        Half of the error to be reached.
    margin
        gamma: every y (v . x) >= gamma for some unit vector v.
    radius
        nu, the Euclidean radius of perturbations, below the margin.
    reach
        R, the largest norm of an input.
    width, slope, kappa, omega
        m, alpha > 0, |a_r|, and the largest Frobenius norm of the first hidden weights.
    """
    epsilon, kappa = (
        number(name, value, exclusive=True)
        for name, value in (("epsilon", epsilon), ("kappa", kappa))
    )
    margin, radius, reach, omega = (
        number(name, value)
        for name, value in (
            ("margin", margin), ("radius", radius), ("reach", reach), ("omega", omega)
        )
    )  # fmt: skip
    if not _slope(slope):
        raise InputError("slope must be above 0: nothing is proved for ReLU networks")
    if reach < margin * (1 - 1e-9):
        raise InputError(
            f"reach must be at least the margin {margin:.4g}, got {reach:.4g}: it is the largest "
            "norm of an input"
        )
    if radius >= margin:
        raise InputError(
            f"radius must be below the margin {margin:.4g}, got {radius:.4g}: nothing is proved "
            "for larger perturbations"
        )
    root = kappa * math.sqrt(whole("width", width))
    train_steps = (
        64 * (reach + radius) ** 2 * (1 + omega * margin * slope * root * epsilon)
        / ((margin - radius) ** 2 * slope**2 * epsilon**2)
    )  # fmt: skip
    return Plan(
        math.ceil(train_steps),
        1 / (root**2 * (reach + radius) ** 2),
        8 * radius**2 * root**2 / epsilon,
        4 * radius * (1 - slope) * root,
        kappa,
        epsilon,
    )


def corollary_4(*, epsilon: float, margin: float, radius: float, reach: float, width: int) -> Plan:
    """Return the counts for linear classifiers: slope 1, kappa = 1 / sqrt(m), omega = 1 / gamma.

    T_tr = 64 (R + nu)^2 (1 + eps) / ((gamma - nu)^2 eps^2), at most the printed 128 (...) for
    eps <= 1; beta vanishes, so that the error is the robust error itself.
    """
    kappa, margin = 1 / math.sqrt(whole("width", width)), number("margin", margin, exclusive=True)
    return theorem_16(
        epsilon=epsilon, margin=margin, radius=radius, reach=reach,
        width=width, slope=1.0, kappa=kappa, omega=1 / margin,
    )  # fmt: skip


def corollary_5(
    *,
    beta: float,
    epsilon: float,
    margin: float,
    radius: float,
    reach: float,
    width: int,
    slope: float,
    omega: float,
) -> Plan:
    """Return the counts for a beta of choice: kappa = beta / (4 nu (1 - alpha) sqrt(m)).

    With it T_atk = 8 nu^2 / (eta_atk eps) = beta^2 |W|^2 / (2 (1 - alpha)^2 eps). Printed are
    kappa with 2 for 4, and T_atk = 2 (1 - alpha)^2 / (beta^2 |W|^2 eps), which is upside down.
    """
    beta, radius = number("beta", beta, exclusive=True), number("radius", radius)
    if not 0 < _slope(slope) < 1 or radius == 0:
        raise InputError(
            f"slope must lie in (0, 1) and radius above 0, got {slope!r} and {radius!r}; beta is 0 "
            "otherwise, see corollary_4"
        )
    kappa = beta / (4 * radius * (1 - slope) * math.sqrt(whole("width", width)))
    return theorem_16(
        epsilon=epsilon, margin=margin, radius=radius, reach=reach,
        width=width, slope=slope, kappa=kappa, omega=omega,
    )  # fmt: skip


def separation(x: Floats, y: Floats) -> tuple[float, Floats]:
    """Return the margin gamma = max min_i y_i (v . x_i) over unit vectors v, and that v.

    The hard-margin problem min |v| with y_i (v . x_i) >= 1 is a least-distance problem, which
    non-negative least squares solves exactly (Lawson and Hanson 1974, chapter 23).
    """
    from scipy.optimize import nnls

    X = np.asarray(matrix("x", x), dtype=np.float64)
    scale = float(np.linalg.norm(X, axis=1).max()) or 1.0
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
            "x must be linearly separable by a plane through the origin, with a margin above "
            f"{SEPARABLE:g} of the largest input; it is not"
        )
    return gamma * scale, v


def beta_robust_error(
    net: LeakyNetwork, x: Floats, y: Floats, radius: float, beta: float | None = None
) -> ExactError:
    """Return P(min y f(delta) <= -beta |W|_F) exactly, labels y in {-1, 1}.

    `beta` is that of Theorem 16 if None, 4 nu (1 - alpha) kappa sqrt(m); 0 gives the robust error.
    """
    beta = net.beta(radius) if beta is None else number("beta", beta)
    return two_layer(
        net.W, net.a[None], x, _signs(y, len(x)), L2(radius), slope=net.slope, level=beta * net.norm
    )


def _slope(value: Any) -> float:
    slope = number("slope", value)
    if slope > 1:
        raise InputError(f"slope must lie in [0, 1], got {value!r}")
    return slope


def _sign(value: Any) -> int:
    if np.ndim(value) or value not in (-1, 1):
        raise InputError(f"y must be -1 or 1, got {value!r}")
    return int(value)


def _signs(y: Any, n: int) -> Floats:
    values = np.asarray(y)
    if values.shape != (n,):
        raise InputError(f"y must be {n} labels, each -1 or 1, got shape {values.shape}")
    return np.array([_sign(value) for value in values.tolist()], dtype=np.float64)
