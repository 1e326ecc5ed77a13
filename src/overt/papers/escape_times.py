"""How long SGD stays at a minimum, from theory: log(T eta) = c + S / eta as eta -> 0.

A jump needs uneven sampling of entries for a while. In time t = eta * step, sampling entry k with
the share w_k(t) moves the product of balanced weights, which stay balanced, by

    A' = sum_k w_k f_k(A),   f_k(A) = -(A_k - y_k) P_A(E_k) - 2 lam L A,
    P_A(X) = sum_l (AA')^((L-l)/L) X (A'A)^((l-1)/L),

with a log-probability of -(1/eta) int KL(w | uniform) dt (Freidlin and Wentzell, chapter 5). S is
the least such integral from the rank-2 minimum to the saddle beside it: whoever reaches the edge of
the basin elsewhere falls along it to the saddle, at no cost. With H(A, p) = log mean_k exp<p, f_k>
the best way solves A' = H_p, p' = -H_A, w_k ~ exp<p, f_k>. It leaves the one point at t = -inf and
reaches the other at +inf, where it is linear: A - A_0 = Sigma p with SGD's stationary covariance
Sigma (over eta), and p along the saddle's left unstable direction v. In between Newton's method
solves a boundary value problem, from the largest lam, where the two points meet, downwards.

A diffusion with SGD's covariance has H to second order in p only: S = 1.95 in place of 2.02 for
epsilon .25, depth 3, lam .025. The noise acts in fewer directions than A has, so a path without p
has no action that could be minimized.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_continuous_lyapunov
from scipy.sparse import coo_matrix
from scipy.sparse.linalg import splu

from overt._check import InputError, number, whole
from overt._types import Array, Floats
from overt.decay import family, layers
from overt.entries import Entries
from overt.results import Result

_POINTS = 200  # on the path; twice as many for the error
_FIRST = 0.05  # z = sqrt(1 - lam / largest) at which a straight line is a first guess
_ENDS = 0.02  # about the share of the way at which the linear ends begin
_STEP = 1e-6  # of differences
_TOL = 1e-9


@dataclass(frozen=True, repr=False, eq=False)
class Escape(Result):
    """The least action of a jump from the rank-2 minimum of [[1, *], [epsilon, 1]].

    Attributes
    ----------
    action, error
        S, and how much it changed when the path's points were doubled.
    minimum, saddle
        Where the jump starts, and the point of no return.
    times, path
        Time t = eta * step, and matrices on the most likely way, (points, 2, 2).
    shares
        How often each observed entry is sampled on the way, (points, entries).
    epsilon, depth, weight_decay
        The arguments.
    """

    action: float
    error: float
    minimum: Floats
    saddle: Floats
    times: Floats
    path: Floats
    shares: Floats
    epsilon: float
    depth: int
    weight_decay: float

    def log_time(self, learning_rate: float) -> float:
        """Return S/eta - log(eta): the log of the mean number of steps but for the constant c."""
        rate = number("learning_rate", learning_rate, exclusive=True)
        return float(self.action / rate - np.log(rate))


def escape(problem: Entries, depth: int = 3, weight_decay: float = 0.02) -> Escape:
    """Return the least action S of a jump from the rank-2 minimum of [[1, *], [epsilon, 1]].

    S is the limit of eta log(T eta) as eta -> 0. At rates where runs can be watched, the slope of
    log(T eta) over 1/eta is on its way there only (simulated 3.3, 3.6, 3.5, 4.0 for S =
    4.51, as rates fall): expect a factor of two, more near the largest lam. The how-to on rank
    jumps has a table, and a case where it fails. Other problems are refused, as are decays too
    close to the largest, and small ones at which no way out is found.
    """
    layers.check_entries(problem)
    depth, lam = (
        whole("depth", depth, 3),
        number("weight_decay", weight_decay, exclusive=True),
    )
    epsilon = family.epsilon_of(problem)
    if epsilon is None:
        raise InputError(
            "problem must be [[1, *], [epsilon, 1]] (overt.decay.two_by_two): only for these is "
            "the saddle beside the minimum known"
        )
    largest = family.existence(epsilon, depth, 2)
    if not lam <= (1 - _FIRST**2) * largest:
        raise InputError(
            f"weight_decay must be at most {(1 - _FIRST**2) * largest:.4g}, got {lam:g}: rank 2 "
            f"has a minimum up to {largest:.4g}, and close to it runs drift away rather than jump"
        )
    goal = max(_FIRST, float(np.sqrt(1 - lam / largest)))
    way, y = _follow(lambda z: _Way(epsilon, depth, largest * (1 - z**2)), goal)
    tau = np.linspace(-1, 1, 2 * _POINTS + 1)
    guess = np.stack([np.interp(tau, tau[::2], column) for column in y.T], axis=1)
    path = way.solve(tau, guess)
    if path is None:
        raise _lost(lam, way.lam)
    action, shares = way.action(tau, path), way.shares(path)
    minimum, saddle = _matrices(np.stack([way.low, way.high]))
    error = abs(action - way.action(tau[::2], y))
    shares = np.where(problem.rows == problem.cols, shares[:, :1] / 2, shares[:, 1:])
    way_out = way.clock(tau), _matrices(path[:, :3]), shares
    return Escape(action, error, minimum, saddle, *way_out, epsilon, depth, lam)


class _Way:
    """From the minimum to the saddle at one lam, in the coordinates x = (s_1, s_2, t) of family.py.

    A path is y = (x, p), (points, 6), at tau in -1..1, half done at 0. By symmetry the two ones
    are sampled equally often: moves and shares belong to a one and to epsilon.
    """

    def __init__(self, epsilon: float, depth: int, lam: float) -> None:
        self.epsilon, self.depth, self.lam = epsilon, depth, lam
        points = np.array(family.critical_points(epsilon, depth, lam, 2))
        s = np.linalg.svd(points, compute_uv=False)
        t = np.arctan2(2 * points[:, 0, 0], points[:, 0, 1] - points[:, 1, 0]) / 2
        self.low, self.high = np.column_stack([s, t])[np.argsort(-s[:, 1])]
        self.way = self.high - self.low
        J, noise = self._linear(self.low)
        slowest = -float(np.linalg.eigvals(J).real.max())
        self.Sigma = solve_continuous_lyapunov(J, -noise)
        J, noise = self._linear(self.high)
        rates, left = np.linalg.eig(J.T)
        k = int(np.argmax(rates.real))
        self.mu, v = float(rates[k].real), left[:, k].real
        self.v = v * np.sign(v @ self.way) / np.linalg.norm(v)
        self.noise = float(self.v @ noise @ self.v)
        self.before, self.after = np.log(1 / _ENDS) / np.array([slowest, self.mu])
        length = float(np.linalg.norm(self.way))
        self.origin = np.append(self.low, np.zeros(3))
        self.units = np.repeat([length, self.mu * length / self.noise], 3)

    def _moves(self, x: Array) -> Array:
        """Return f of a one and of epsilon, (points, 2, 3); x may be complex."""
        L, (s_1, s_2, t) = self.depth, x.T
        c, s = np.cos(t), np.sin(t)
        q_1, q_2 = s_1 ** (2 / L), s_2 ** (2 / L)
        K = sum(q_1 ** (L - 1 - k) * q_2**k for k in range(L))
        one, eps = 1 - (s_1 + s_2) * s * c, self.epsilon - s_1 * s * s + s_2 * c * c
        force = np.array(
            [  # along s_1, s_2 and t
                [one * s * c, one * s * c, one * (c * c - s * s) / 2],
                [eps * s * s, -eps * c * c, eps * s * c],
            ]
        )
        speed = np.array([L * q_1 ** (L - 1), L * q_2 ** (L - 1), K / (s_1 + s_2)])
        shrinking = 2 * self.lam * L * np.array([s_1, s_2, 0 * t])
        return np.moveaxis(speed * force - shrinking, 2, 0)

    def _linear(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the derivative of the mean move at x, and the moves' covariance."""
        mean = np.einsum(
            "nki,k->in", self._moves(x + 1e-30j * np.eye(3)), [2 / 3, 1 / 3]
        )
        f = self._moves(x[None])[0]
        return mean.imag / 1e-30, 2 / 9 * np.outer(f[0] - f[1], f[0] - f[1])

    def _tilted(self, y: Array) -> Array:
        """Return exp<p, f> times 2/3 for a one and 1/3 for epsilon, (points, 2)."""
        return np.exp(np.einsum("nki,ni->nk", self._moves(y[:, :3]), y[:, 3:])) * [
            2 / 3,
            1 / 3,
        ]

    def _slope(self, y: Floats) -> Floats:
        """Return (H_p, -H_x)."""
        H = [
            np.log(self._tilted(y + e).sum(axis=1)).imag / 1e-30
            for e in 1e-30j * np.eye(6)
        ]
        return np.stack([*H[3:], -H[0], -H[1], -H[2]], axis=1)

    def shares(self, y: Floats) -> Floats:
        """Return how often ones, and epsilon, are sampled, (points, 2)."""
        w = self._tilted(y)
        return np.asarray(w / w.sum(axis=1, keepdims=True))

    def clock(self, tau: Floats) -> Floats:
        """Return the times t of tau."""
        return np.where(tau < 0, tau * self.before, tau * self.after)

    def straight(self, tau: Floats) -> Floats:
        """Return the way near the fold, where it is a line: s' = mu s (1 - s)."""
        s = 1 / (1 + np.exp(-self.mu * self.clock(tau)[:, None]))
        p = 2 * self.mu * s * (1 - s) * (self.v @ self.way) / self.noise * self.v
        return np.hstack([self.low + self.way * s, p])

    def solve(self, tau: Floats, y: Floats) -> Floats | None:
        """Return (x, p) from a guess; None if Newton's method fails."""
        friction = 0.0
        for _ in range(12):
            residual, jacobian = self._system(self.clock(tau), y, friction)
            if np.abs(residual).max() < _TOL:
                return y
            try:
                step = splu(jacobian).solve(-residual)
            except RuntimeError:  # singular
                return None
            change = step[:-1].reshape(y.shape)
            if not np.abs(change[:, :3]).max() < np.linalg.norm(self.way):
                return None
            y, friction = y + change, friction + step[-1]
        return None

    def _system(self, t: Floats, y: Floats, friction: float) -> tuple[Floats, Array]:
        """Return the residuals of the implicit midpoint rule, with both ends, and their derivative.

        p' = -H_x + friction p: the friction, 0 at the solution, is the unknown for which there is
        the equation that fixes the phase.
        """
        h, middle, zero = np.diff(t), (y[1:] + y[:-1]) / 2, int(np.searchsorted(t, 0.0))
        push = middle * np.repeat([0, 1], 3)
        D = np.empty((len(h), 6, 6))
        for i, e in enumerate(_STEP * np.eye(6)):
            D[:, :, i] = (self._slope(middle + e) - self._slope(middle - e)) / (
                2 * _STEP
            )
        D += friction * np.diag([0, 0, 0, 1, 1, 1])
        at_first, at_last = np.hstack([np.eye(3), -self.Sigma]), np.zeros((3, 6))
        at_last[:2, 3:] = np.linalg.svd(self.v[None])[2][1:]  # p is along v,
        at_last[2] = np.append(
            self.v, self.noise / (2 * self.mu) * self.v
        )  # of the stable size
        residual = np.concatenate(
            [
                at_first @ (y[0] - self.origin),
                (
                    np.diff(y, axis=0)
                    - h[:, None] * (self._slope(middle) + friction * push)
                ).ravel(),
                at_last @ (y[-1] - np.append(self.high, np.zeros(3))),
                [self.v @ (y[zero, :3] - self.low - self.way / 2)],
            ]
        )
        half, end = 0.5 * h[:, None, None] * D, 6 * len(h)
        blocks = [
            (0, 0, at_first),
            (3 + end, end, at_last),
            (6 + end, 6 * zero, self.v[None]),
        ]
        blocks += [(3 + 6 * k, 6 * k, -np.eye(6) - half[k]) for k in range(len(h))]
        blocks += [(3 + 6 * k, 6 * k + 6, np.eye(6) - half[k]) for k in range(len(h))]
        blocks += [(3, 6 + end, -(h[:, None] * push).reshape(-1, 1))]
        places = [
            np.indices(b.shape).reshape(2, -1) + np.array([[i], [j]])
            for i, j, b in blocks
        ]
        data = np.concatenate([b.ravel() for *_, b in blocks])
        return residual, coo_matrix((data, np.concatenate(places, axis=1))).tocsc()

    def action(self, tau: Floats, y: Floats) -> float:
        """Return int KL(w | uniform) dt, with both linear ends."""
        middle = (y[1:] + y[:-1]) / 2
        w = self.shares(middle)
        density = np.sum(w * np.log(w / [2 / 3, 1 / 3]), axis=1)
        start = 0.5 * y[0, 3:] @ self.Sigma @ y[0, 3:]
        end = float(self.v @ y[-1, 3:]) ** 2 * self.noise / (4 * self.mu)
        return float(start + np.diff(self.clock(tau)) @ density + end)


def _follow(at: Callable[[float], _Way], goal: float) -> tuple[_Way, Floats]:
    """Follow the way from near the fold to z = goal."""
    z, growth, way, older = _FIRST, 1.3, at(_FIRST), None
    tau = np.linspace(-1, 1, _POINTS + 1)
    y = way.solve(tau, way.straight(tau))
    while y is not None and z < goal and growth > 1.003:
        further = min(goal, z * growth)
        after, shape = at(further), (y - way.origin) / way.units
        change = 0 if older is None else (shape - older[1]) / (z - older[0])
        guess = shape + change * (further - z)
        found = after.solve(tau, after.origin + guess * after.units)
        if found is None:
            growth = 1 + (growth - 1) / 3
        else:
            older, growth = (z, shape), min(1.5, 1 + 1.6 * (growth - 1))
            z, way, y = further, after, found
    if y is None or z < goal:
        raise _lost(at(goal).lam, way.lam)
    return way, y


def _lost(lam: float, last: float) -> InputError:
    return InputError(
        f"weight_decay must be above {last:.4g} here, down to which the way out of the minimum "
        f"could be followed, got {lam:.4g}"
    )


def _matrices(x: Floats) -> Floats:
    """Return A of (s_1, s_2, t), (points, 2, 2)."""
    s_1, s_2, (c, s) = x[:, 0], x[:, 1], (np.cos(x[:, 2]), np.sin(x[:, 2]))
    a = (s_1 + s_2) * s * c
    return np.stack(
        [a, s_1 * c**2 - s_2 * s**2, s_1 * s**2 - s_2 * c**2, a], 1
    ).reshape(-1, 2, 2)
