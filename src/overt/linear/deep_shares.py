"""The best shares of a deep network's layers, with a bound for every rank.

A deep linear network with independent noise on its hidden layers has the optimum

    |s|^2 - max over shares pi^1..pi^k in the simplex of sum_p s_p^2 prod_l pi^l_p/(pi^l_p + beta_l)

with beta_l = lam_l / d_l: pi^l_p is the share of layer l's units that serves direction p. Write
F(pi) = prod_l pi_l / (pi_l + beta_l). It is concave on the convex set

    C = {pi >= 0: sum_l beta_l / (beta_l + 2 pi_l) <= 1},

and every global maximum with two or more active directions has all of them inside C: otherwise
giving the shares of the weaker of two directions to the stronger one gains. So the problem is a
maximum of concave programs, one for each number q of active directions. Its dual,

    V_q <= sum_l mu_l + sum_{p <= q} max over C of (s_p^2 F(pi) - mu.pi),

bounds all q at once for any mu. Each maximum is bounded by a tangent plane of the concave F, so a
bound is valid whatever mu and the points of tangency are; rounding is all that is not proved here.
Bounds are on the objective, |s|^2 - V_q, as sums of terms s_p^2 (1 - F(pi_p)) in which nothing
cancels.

A layer whose noise is exchangeable, Gamma = a I + b 1 1' with b > -1, has pi / ((1 + b) pi + a/d):
beta = a / ((1 + b) d), and a factor 1 / (1 + b) of F.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from overt._check import Bools, Floats
from overt.spectral import SquaredNuclear

ROUNDING = 1e-12
"""Relative amount by which bounds are lowered for rounding."""

MAX_NEWTON_STEPS = 100

MAX_SHORT_STEPS = 5
"""Steps below a tenth of Newton's after which the maximum is taken to be on the boundary of C."""

SEARCH_TOL = 1e-5
"""Of the search for mu; 1e-2 left 2 of 600 random networks without a proof, 1e-3 none."""

BISECTIONS = 50
"""Halvings of an interval of log s^2 F."""


@dataclass(frozen=True, eq=False)
class DualPoint:
    """Multipliers mu (layers), and points of tangency pi (directions x layers) in C."""

    mu: Floats
    pi: Floats

    def inside(self, beta: Floats) -> DualPoint:
        """Return the same with points on the boundary of C moved inside, for exact arithmetic."""
        near = _outside_c(self.pi, beta)[:, None] > 1 - 1e-12
        return DualPoint(self.mu, np.where(near, self.pi * (1 + 1e-11), self.pi))


@dataclass(frozen=True, eq=False)
class BestShares:
    """The optimum over shares.

    Attributes
    ----------
    objective
        sum_p s_p^2 (1 - F(pi_p)) at the shares.
    shares
        pi (layers x directions); each row sums to one.
    bounds
        For q = 0, 1, ...: a lower bound on the objective with exactly q active directions.
    duals
        The dual points behind the bounds.
    """

    objective: float
    shares: Floats
    bounds: Floats
    duals: tuple[DualPoint, ...] = ()

    @property
    def rank(self) -> int:
        """Number of directions with positive shares."""
        return int(np.sum(self.shares[0] > 0))

    @property
    def bound(self) -> float:
        """A lower bound on the objective for all shares."""
        return float(min(self.bounds))


def best_shares(s: Floats, beta: Floats, factor: float = 1.0) -> BestShares:
    """Return the globally best shares for decreasing s > 0 and beta > 0, one per noisy layer.

    `factor` multiplies F: the product of 1 / (1 + b) over the layers.
    """
    beta = np.asarray(beta, dtype=float)
    largest = float(s[0])
    s2 = (s / largest) ** 2
    # Shares that underflow belong to directions that are not active.
    with np.errstate(all="ignore"):
        if len(beta) < 2:
            found = _one_layer(s2, beta if len(beta) else np.zeros(1), factor)
        else:
            found = _several_layers(s2, beta, factor)
    unit = largest**2
    duals = tuple(DualPoint(unit * dual.mu, dual.pi) for dual in found.duals)
    return BestShares(unit * found.objective, found.shares, unit * found.bounds, duals)


def one_layer_shares(s2: Floats, beta: float) -> Floats:
    """Return the shares pi that maximize sum_p s_p^2 pi_p / (pi_p + beta): one layer alone.

    The best map of shallow dropout has singular values in proportion to them.
    """
    a = np.asarray(SquaredNuclear().prox(np.sqrt(s2), beta))
    if a.sum() <= 0:
        a[np.argmax(s2)] = 1.0
    return a / a.sum()


def noise_cost(pi: Floats, beta: Floats, factor: float = 1.0) -> Floats:
    """Return 1 - factor F(pi) for shares (directions x layers); 1 where a share is zero."""
    with np.errstate(divide="ignore"):
        return np.asarray(
            -np.expm1(np.log(factor) - np.sum(np.log1p(beta / pi), axis=1))
        )


def rank_cap(beta: Floats, limit: int) -> int:
    """Return the largest rank that any target's optimum can have: 1/q must lie inside C."""
    ranks = np.arange(2, limit + 1)
    inside = np.sum(beta / (beta + 2 / ranks[:, None]), axis=1) < 1
    return 1 + int(np.sum(inside))  # the sum increases with the rank


def _one_layer(s2: Floats, beta: Floats, factor: float) -> BestShares:
    """Return the closed form of shallow dropout."""
    pi = one_layer_shares(s2, float(beta[0]))
    objective = _objective(s2, pi[:, None], beta, factor)
    active = int(np.sum(pi > 0))
    return BestShares(objective, pi[None], _only(active, len(s2), objective))


def _only(rank: int, limit: int, objective: float) -> Floats:
    """Return bounds where the objective is strictly convex in the map: it has one optimum."""
    bounds = np.full(limit + 1, np.inf)
    bounds[rank] = objective
    return bounds


def _several_layers(s2: Floats, beta: Floats, factor: float) -> BestShares:
    """Return the best of the concave programs whose bound does not exclude them."""
    count = len(s2)
    layers = len(beta)
    cap = rank_cap(beta, count)
    best_pi = np.zeros((count, layers))
    best_pi[0] = 1.0
    best = _objective(s2, best_pi, beta, factor)
    bounds = np.full(count + 1, np.inf)
    bounds[0] = np.sum(s2)
    bounds[1] = best
    bounds[2 : cap + 1] = 0.0
    duals: list[DualPoint] = []
    gain2 = factor * s2
    mu = np.mean(gain2) * beta
    rank = min(max(2, _likely_rank(gain2, beta)), cap)
    solved: set[int] = set()
    while cap > 1:
        solved.add(rank)
        pi, mu = _solve_rank(gain2[:rank], beta, mu)
        if pi is not None:
            candidate = np.zeros((count, layers))
            candidate[:rank] = pi / pi.sum(axis=0)
            objective = _objective(s2, candidate, beta, factor)
            if objective < best:
                best = objective
                best_pi = candidate
        duals.append(DualPoint(mu, _points_in_c(gain2[:cap], mu, beta)))
        found = dual_bounds(s2, beta, duals[-1], factor)
        if pi is None and found[rank - 2] < best * (1 + ROUNDING):
            # The maximum lies on the boundary of C, where no global maximum lies.
            duals.append(_boundary_dual(s2, beta, rank, mu, gain2[:cap], factor))
            mu = duals[-1].mu
            found = np.maximum(found, dual_bounds(s2, beta, duals[-1], factor))
        bounds[2 : cap + 1] = np.maximum(bounds[2 : cap + 1], found)
        open_ranks = [
            q
            for q in range(2, cap + 1)
            if bounds[q] < best * (1 - ROUNDING) and q not in solved
        ]
        if not open_ranks:
            break
        rank = min(open_ranks, key=lambda q: bounds[q])
    return BestShares(best, best_pi.T.copy(), bounds, tuple(duals))


def _objective(s2: Floats, pi: Floats, beta: Floats, factor: float) -> float:
    """Return the objective at shares, which rounding would put below 0 where noise is free."""
    return max(0.0, float(np.sum(s2 * noise_cost(pi, beta, factor))))


def dual_bounds(
    s2: Floats, beta: Floats, dual: DualPoint, factor: float = 1.0
) -> Floats:
    """Return lower bounds on the objective with q = 2..len(dual.pi) active directions in C.

    With pi_p a point of C, g = s_p^2 grad F(pi_p) - mu and F concave on C,

        s_p^2 F(x) - mu.x <= s_p^2 F(pi_p) - mu.pi_p + g.(x - pi_p)   for all x in C.

    Where g_l >= 0, x_l <= 1. On the other layers, with h = -g > 0, the least h.x over C is
    (sum_l sqrt(h_l beta_l / 2))^2 - sum_l h_l beta_l / 2 (Cauchy and Schwarz).
    """
    pi = dual.pi
    kept = s2[: len(pi)]
    rest = np.sum(s2) - np.cumsum(kept)
    gain = factor * kept * np.prod(pi / (pi + beta), axis=1)
    slope = gain[:, None] * beta / (pi * (pi + beta)) - dual.mu
    rising = np.maximum(slope, 0.0)
    falling = np.maximum(-slope, 0.0)
    least = np.sum(np.sqrt(falling * beta / 2), axis=1) ** 2 - falling @ beta / 2
    excess = np.sum(rising * (1 - pi) + falling * pi, axis=1) - np.maximum(least, 0.0)
    terms = np.cumsum(
        kept * noise_cost(pi, beta, factor) + pi @ dual.mu - np.maximum(excess, 0.0)
    )
    bounds = (terms - np.sum(dual.mu) + rest)[1:]
    return np.asarray(bounds - ROUNDING * np.abs(bounds))


def local_maxima(s: Floats, beta: Floats) -> dict[int, Floats]:
    """Return, by number of directions, the shares (layers x directions) that are locally best.

    Two or more layers. One direction is always locally best; q directions are if the maximum of
    their concave program lies inside C, where it is then strict.
    """
    s2 = (s / s[0]) ** 2
    count = len(s)
    found = {1: np.zeros((len(beta), count))}
    found[1][:, 0] = 1.0
    with np.errstate(all="ignore"):
        for q in range(2, rank_cap(beta, count) + 1):
            pi, _ = _solve_rank(s2[:q], beta, np.mean(s2) * beta)
            if pi is not None:
                found[q] = np.zeros((len(beta), count))
                found[q][:, :q] = (pi / pi.sum(axis=0)).T
    return found


def jump_ratio(layers: int, beta: float) -> float:
    """Return s_2 / s_1 above which two directions beat one; infinity if they never do.

    All layers have the same beta. At the jump the first direction has the share x in [1/2, 1) with

        x^(k-1) (x^2 + (1-x)^2 + beta) (1 + beta)^k = (x + beta)^(k+1),

    and its logarithm, divided by (1 - x)^2, changes its sign once.
    """
    from scipy.optimize import brentq  # slow to import

    k = layers
    if beta * (2 - 2 ** (1 / k)) >= 2 ** (1 / k) - 1 or k < 2:
        return np.inf if k > 1 else beta / (1 + beta)

    def difference(x: float) -> float:
        own = (k - 1) * np.log(x) + np.log(x * x + (1 - x) ** 2 + beta)
        return float(own + k * np.log1p(beta) - (k + 1) * np.log(x + beta))

    largest = 1 - 1e-3 * min(1.0, (k - 1) * beta)
    x = float(brentq(difference, 0.5, largest, xtol=1e-15))
    log_ratio = (k - 1) * np.log(x / (1 - x)) + (k + 1) * np.log(
        (1 - x + beta) / (x + beta)
    )
    return float(np.exp(log_ratio / 2))


def _likely_rank(s2: Floats, beta: Floats) -> int:
    """Return a rank near the best, by optimizing layers in turn."""
    pi = np.full((len(beta), len(s2)), 1 / len(s2))
    for _ in range(40):
        for layer in range(len(beta)):
            others = np.delete(pi / (pi + beta[:, None]), layer, axis=0)
            pi[layer] = one_layer_shares(
                s2 * np.prod(others, axis=0), float(beta[layer])
            )
    return int(np.sum(pi.min(axis=0) > 0))


def _shares_at(log_weight: Floats, mu: Floats, beta: Floats) -> Floats:
    """Return the positive root of pi (pi + beta) = w beta / mu, without cancellation."""
    w = np.exp(log_weight)[:, None]
    return np.asarray(2 * w / mu / (1 + np.sqrt(1 + 4 * w / (beta * mu))))


def _stationary(s2: Floats, mu: Floats, beta: Floats) -> tuple[Floats, Bools]:
    """Return per direction the stationary point of s^2 F - mu.pi inside C, and whether it exists.

    psi(log w) = log s^2 F(pi(w)) - log w has the slope c(pi(w)) - 1, so it is concave; its upper
    root is the point inside C, and Newton from the right is monotone.
    """
    log_s2 = np.log(s2)
    y = log_s2.copy()
    exists = np.ones(len(s2), dtype=bool)
    for _ in range(MAX_NEWTON_STEPS):
        pi = _shares_at(y, mu, beta)
        psi = log_s2 - y - np.sum(np.log1p(beta / pi), axis=1)
        slope = np.sum(beta / (beta + 2 * pi), axis=1) - 1
        exists &= slope < -1e-9
        step = np.where(exists, psi / np.where(exists, slope, -1.0), 0.0)
        y = y - step
        if np.max(np.abs(step)) < 1e-15 * max(1.0, float(np.max(np.abs(y)))):
            break
    pi = _shares_at(y, mu, beta)
    return pi, exists & (np.sum(beta / (beta + 2 * pi), axis=1) < 1)


def _points_in_c(s2: Floats, mu: Floats, beta: Floats) -> Floats:
    """Return per direction the maximum of s^2 F - mu.pi inside C, or else a point of its boundary.

    There pi solves the same equation pi (pi + beta) = w beta / mu, for the least w inside C.
    """
    pi, exists = _stationary(s2, mu, beta)
    low = np.log(s2) - 100
    high = np.log(s2) + 100
    for _ in range(BISECTIONS if not exists.all() else 0):
        middle = (low + high) / 2
        inside = _outside_c(_shares_at(middle, mu, beta), beta) <= 1
        low = np.where(inside, low, middle)
        high = np.where(inside, middle, high)
    return np.where(exists[:, None], pi, _shares_at(high, mu, beta))


def _outside_c(pi: Floats, beta: Floats) -> Floats:
    """Return sum_l beta_l / (beta_l + 2 pi_l), at most 1 in C."""
    return np.asarray(np.sum(beta / (beta + 2 * pi), axis=1))


def _boundary_dual(
    s2: Floats, beta: Floats, rank: int, start: Floats, gain2: Floats, factor: float
) -> DualPoint:
    """Return the dual point whose bound at this rank is highest, by search over mu."""
    from scipy.optimize import minimize  # few targets need it, and it is slow to import

    def dual_at(log_mu: Floats) -> DualPoint:
        mu = np.exp(log_mu)
        return DualPoint(mu, _points_in_c(gain2, mu, beta))

    def lowered(log_mu: Floats) -> float:
        return -float(dual_bounds(s2, beta, dual_at(log_mu), factor)[rank - 2])

    found = minimize(lowered, np.log(start), method="Nelder-Mead", tol=SEARCH_TOL)
    return dual_at(found.x)


def _solve_rank(s2: Floats, beta: Floats, mu: Floats) -> tuple[Floats | None, Floats]:
    """Return (pi, mu) of the concave program with all these directions active, by Newton.

    The dual D(mu) = sum mu + sum_p max (s_p^2 F - mu.pi) is convex, with the gradient
    1 - sum_p pi_p. pi is None where the maximum is not inside C.
    """
    pi, exists = _stationary(s2, mu, beta)
    while not exists.all():
        mu = mu / 2
        pi, exists = _stationary(s2, mu, beta)
    dual = _dual_value(s2, beta, mu, pi)
    short_steps = 0
    for _ in range(MAX_NEWTON_STEPS):
        gradient = 1 - pi.sum(axis=0)
        if np.max(np.abs(gradient)) < 1e-14:
            return pi, mu
        step = _newton_step(s2, beta, mu, pi, gradient)
        slope = float(gradient @ step)
        length = 1.0
        while length > 1e-5:
            moved = mu + length * step
            if (moved > 0).all():
                pi_moved, exists = _stationary(s2, moved, beta)
                if exists.all():
                    value = _dual_value(s2, beta, moved, pi_moved)
                    if value <= dual + 1e-4 * length * slope + 1e-15 * abs(dual):
                        break
            length /= 2
        else:
            break
        short_steps += length < 0.1
        if short_steps > MAX_SHORT_STEPS:
            break
        improved = np.max(np.abs(1 - pi_moved.sum(axis=0))) < 0.9 * np.max(
            np.abs(gradient)
        )
        mu = moved
        pi = pi_moved
        dual = value
        if not improved and slope > -1e-15 * abs(dual):
            break
    settled = np.max(np.abs(1 - pi.sum(axis=0))) < 1e-8
    return (pi if settled else None), mu


def _dual_value(s2: Floats, beta: Floats, mu: Floats, pi: Floats) -> float:
    gain = s2 * np.prod(pi / (pi + beta), axis=1)
    return float(mu.sum() + np.sum(gain - pi @ mu))


def _newton_step(
    s2: Floats, beta: Floats, mu: Floats, pi: Floats, gradient: Floats
) -> Floats:
    """Solve with the Hessian -sum_p H_p^-1, H_p that of s_p^2 F at pi_p.

    H_p = (mu mu' - diag(mu^2 (1 + 2 pi/beta))) / w_p is a diagonal plus rank one: Sherman-Morrison.
    """
    w = s2 * np.prod(pi / (pi + beta), axis=1)
    inverse = 1 / (mu**2 * (1 + 2 * pi / beta))
    along = inverse * mu
    scale = w / (1 - along @ mu)
    hessian = np.diag(w @ inverse) + (along * scale[:, None]).T @ along
    return np.asarray(np.linalg.solve(hessian, -gradient))
