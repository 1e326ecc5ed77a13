"""Thesis, chapter 6: two-layer leaky-ReLU networks with a fixed top layer, attacked and trained.

    f(x) = sum_r a_r sigma(w_r . x),  sigma(z) = max(slope z, z),  labels y in {-1, 1}

Algorithm 5, `reflected_ascent`, attacks by ascending the reflected loss l_-(z) = -log(1 + e^z),
z = y f(x); Algorithm 6, `train_online`, trains the hidden layer on the attacked points with
l(z) = log(1 + e^-z); `training_plan` says how many steps Theorem 16 asks for. NumPy throughout:
these are the algorithms as printed, for checking what is claimed of them, not for speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

from overt._check import Floats, InputError
from overt.results import Result
from overt.robust import ExactError, exact_error
from overt.robust.threats import L2

SEPARABLE = 1e-8
"""Least margin, relative to the longest input, that is told from none in double precision."""


@dataclass(frozen=True, eq=False)
class LeakyNetwork:
    """f(x) = a . sigma(W x) with W (width, inputs), a (width,) and the slope alpha in [0, 1]."""

    W: Floats
    a: Floats
    slope: float

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
        z = x @ self.W.T
        hidden = np.maximum(self.slope * z, z)
        return hidden @ self.a

    def module(self) -> Any:
        """Return the network as a torch module with one logit."""
        from torch import from_numpy, nn

        width, inputs = self.W.shape
        hidden = nn.Linear(inputs, width, bias=False)
        top = nn.Linear(width, 1, bias=False)
        hidden.weight.data = from_numpy(self.W)
        top.weight.data = from_numpy(self.a[None])
        return nn.Sequential(hidden, nn.LeakyReLU(self.slope), top)

    def input_gradient(self, x: Floats) -> Floats:
        """Return grad_x f(x) = sum_r a_r sigma'(w_r . x) w_r for one input."""
        return self._top(x) @ self.W

    def weight_gradient(self, x: Floats) -> Floats:
        """Return grad_W f(x), rows a_r sigma'(w_r . x) x, for one input."""
        top = self._top(x)
        return np.outer(top, x)

    def attack_step_size(self) -> float:
        """Return 1 / (kappa^2 m |W|_F^2), the largest step of Lemma 18."""
        smoothness = self.kappa**2 * len(self.W)
        return 1 / (smoothness * self.norm**2)

    def beta(self, radius: float) -> float:
        """Return 4 radius (1 - slope) kappa sqrt(m): from here on attacks are surely found.

        The proof of Lemma 18 bounds |delta* - delta_t| by the radius; two points of a ball may be
        twice the radius apart, hence 4 where 2 is printed.
        """
        root = self.kappa * math.sqrt(len(self.W))
        return 4 * radius * (1 - self.slope) * root

    def _top(self, x: Floats) -> Floats:
        """Return a_r sigma'(w_r . x) for one input."""
        active = self.W @ x > 0
        slopes = np.where(active, 1.0, self.slope)
        return slopes * self.a


def reflected_ascent(
    net: LeakyNetwork, x: Floats, y: int, radius: float, step_size: float, steps: int
) -> Floats:
    """Return the attack delta_tau: the iterate t in 1..T with the largest l_-(y f(delta_t)).

    Algorithm 5: delta_1 = x and delta_(t+1) = project(delta_t + step_size grad l_-(y f(delta_t)))
    on the ball of the given radius around x.
    """
    delta = x
    best = x
    best_margin = math.inf
    for _ in range(steps):
        margin = y * float(net.value(delta))
        if margin < best_margin:  # l_- falls with the margin
            best = delta
            best_margin = margin
        slope = expit(margin) * y
        move = delta - x - step_size * slope * net.input_gradient(delta)
        length = np.linalg.norm(move)
        if length > radius:
            move *= radius / length
        delta = x + move
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
    yield net
    for x, y in samples:
        delta = attack(net, x, y)
        margin = y * net.value(delta)
        slope = -y * expit(-margin)
        move = slope * net.weight_gradient(delta)
        W = net.W - step_size * move
        net = LeakyNetwork(W, net.a, net.slope)
        yield net


def separation(x: Floats, y: Floats) -> tuple[float, Floats]:
    """Return the margin gamma = max min_i y_i (v . x_i) over unit vectors v, and that v.

    The hard-margin problem min |v| with y_i (v . x_i) >= 1 is a least-distance problem, which
    non-negative least squares solves exactly (Lawson and Hanson 1974, chapter 23).
    """
    from scipy.optimize import nnls

    G = np.asarray(y)[:, None] * x
    lengths = np.linalg.norm(G, axis=1)
    scale = float(lengths.max()) or 1.0
    G /= scale
    E = np.vstack([G.T, np.ones(len(G))])
    last = np.eye(len(E))[-1]
    u, _ = nnls(E, last)
    v = G.T @ u
    v /= float(np.linalg.norm(v)) or 1.0
    margins = G @ v
    gamma = float(margins.min())
    if gamma < SEPARABLE:
        raise InputError(
            "x must be linearly separable by a plane through the origin, with a margin of at "
            f"least {SEPARABLE:g} of the longest input; it is not"
        )
    return gamma * scale, v


def beta_robust_error(
    net: LeakyNetwork, x: Floats, y: Floats, radius: float, beta: float | None = None
) -> ExactError:
    """Return P(min y f(delta) <= -beta |W|_F) exactly, labels y in {-1, 1}.

    `beta` is that of Theorem 16 if None, 4 nu (1 - alpha) kappa sqrt(m); 0 gives the robust error.
    """
    if beta is None:
        beta = net.beta(radius)
    threat = L2(radius)
    level = beta * net.norm
    return exact_error(net.module(), x, y, threat, level=level)


@dataclass(frozen=True, repr=False, eq=False)
class TrainingPlan(Result):
    """What Theorem 16 asks for to reach an expected beta-robust error of at most 2 epsilon.

    Attributes
    ----------
    train_steps, train_step_size
        Iterations of Algorithm 6 (`train_online`) and its step, which must equal its bound.
    attack_work
        T_atk |W_t|_F^-2: an attack on weights W takes attack_work |W|_F^2 steps of length
        1 / (kappa^2 m |W|_F^2).
    """

    train_steps: int
    train_step_size: float
    attack_work: float

    def attack_steps(self, norm: float) -> int:
        """Return T_atk for hidden weights of this Frobenius norm."""
        steps = self.attack_work * norm**2
        return max(math.ceil(steps), 1)


def training_plan(
    *,
    epsilon: float,
    margin: float,
    radius: float,
    reach: float,
    width: int,
    slope: float,
    kappa: float,
    omega: float,
) -> TrainingPlan:
    """Return the iteration counts and step sizes of Theorem 16, corrected.

    T_tr = 64 (R + nu)^2 (1 + omega gamma alpha kappa sqrt(m) eps) / ((gamma - nu)^2 alpha^2 eps^2),
    eta_tr = 1 / (m kappa^2 (R + nu)^2),  eta_atk = 1 / (kappa^2 m |W|^2),
    T_atk = 8 nu^2 / (eta_atk eps).

    Corrections: T_tr holds for eta_tr equal to its bound, not for any smaller one; every |a_r| must
    equal kappa; beta has 4 where 2 is printed (`LeakyNetwork.beta`).

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
    if radius >= margin:
        raise InputError(
            f"radius must be below the margin {margin:.4g}, got {radius:.4g}: nothing is proved "
            "for larger perturbations"
        )
    root = kappa * math.sqrt(width)
    far = (reach + radius) ** 2
    first = 1 + omega * margin * slope * root * epsilon
    last = (margin - radius) * slope * epsilon
    train_steps = 64 * far * first / last**2
    step_size = 1 / (root**2 * far)
    attack_work = 8 * radius**2 * root**2 / epsilon
    return TrainingPlan(math.ceil(train_steps), step_size, attack_work)
