"""Two-layer linear networks x -> U V'x whose hidden units (or weights) are masked by noise.

With P = L'V and R = T - U P' the objective is residual + |R|^2 + <Gamma, U'U o P'P>. `sharing` says
what theory knows of a noise over units: what a map costs, and how units share it at that cost.

Noise on the weights V, DropConnect, has the penalty lam sum_k |u_k|^2 v_k'D v_k. It
lives in the geometry of D = diag(C), not of C. With B = A D^(1/2), K = D^(-1/2) L, the best map
solves the convex problem

    min_B  |T - B K|^2 + (lam/d) |B|_*^2,

by alternating directions: a linear system for the loss, a proximal map for the norm, multipliers G
that make the two agree. Weak duality bounds it from below at any N: 2 <N, T> - |N|^2 - (d/lam)
|N K'|_op^2, evaluated at N = G K^+'; at the optimum N = T - B K. Where the inputs are uncorrelated
D = C, and everything but the steps is as for Dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from overt import _check, equalize, penalty
from overt._check import Array, Bools, Floats, InputError, InputTypeError
from overt.linear.bounds import (
    EPS,
    EXACT,
    Envelope,
    Leading,
    NormCost,
    Relaxation,
    UnitShares,
    any_noise_bound,
    best_pieces,
    pairs_below,
    positive,
    relax,
    total_gain,
)
from overt.linear.descent import Advance, attains, masked_steps, refine, scaled
from overt.linear.network import (
    Evaluation,
    NoiseEffect,
    NoisyNetwork,
    grade,
    regression_of,
    require_consistent,
    target_or_data,
)
from overt.linear.regression import Regression
from overt.noise import DropBlock, DropConnect, Dropout, Noise
from overt.results import Solution
from overt.spectral import KSupport, SquaredNuclear, induced

TOL = 3e-12
"""Relative duality gap at which the steps stop."""

MAX_STEPS = 3000

CHECKED = 5
"""Steps after which the duality gap is looked at."""

RELAXED = 1.5
"""Over-relaxation of alternating directions, between 1 and 2."""


class LinearNetwork(NoisyNetwork):
    """A two-layer linear network trained with noise on its hidden layer.

    The objective is E|y - U diag(z/mu) V'x|^2 = E|y - U V'x|^2 + penalty(U, V), without a factor
    1/2; for data the mean over samples.

    Parameters
    ----------
    target
        M (outputs x inputs) with y = M x: an array or a scipy sparse matrix.
    width
        Number of hidden units.
    noise
        Dropout, KeepExactly, DropBlock, DropConnect, CovarianceNoise, or a noise over units of
        your own.
        `noise.at_width(width)` is the width-adjusted form of structured dropout.
    X, Y
        Data in place of a target, samples x features.
    second_moment
        E[x x'] (inputs x inputs) for a target; the identity if None.
    input_noise
        A noise on the inputs too, such as Dropout(0.2): it adds Gamma o E[x x'] to their second
        moment, a ridge, and everything stays exact.

    Examples
    --------
    >>> import numpy as np, overt
    >>> net = overt.LinearNetwork(target=np.diag([3.0, 1.0]), width=2, noise=overt.Dropout(0.5))
    >>> best = net.solve()
    >>> best.rank, str(best.status)
    (1, 'optimal')
    >>> np.round(best.product, 6)
    array([[2., 0.],
           [0., 0.]])
    """

    kind = "two-layer"
    noise: Noise

    @target_or_data
    def __init__(
        self,
        target: Any,
        width: int,
        noise: Noise,
        *,
        X: Any = None,
        Y: Any = None,
        second_moment: Any = None,
        input_noise: Noise | None = None,
    ) -> None:
        self.width = _check.whole("width", width)
        self.noise = noise
        self.input_noise = input_noise
        task = regression_of(target, X, Y, second_moment, input_noise)
        self.effect = effect_of(noise, self.width, task)

    def __repr__(self) -> str:
        task = self.effect.regression
        return f"LinearNetwork({task.inputs} -> {self.width} -> {task.outputs}, {self.noise!r})"

    def solve(self, rank: int | None = None) -> Solution:
        """Return the best factors that are known, and a certificate.

        With `rank` they are the best whose map has at most that rank.

        The status is "optimal" where they reach the proved lower bound: always for Dropout, with
        one probability or one per unit, and for KeepExactly; for DropConnect unless correlated
        inputs meet too small a width, for DropBlock with enough blocks. Elsewhere it is
        "lower_bound", and the factors come from descent started at the bound's solution. For noises
        whose units are correlated the package Clarabel, if it is installed, raises the bound much
        (up to 32 units).
        """
        effect = self._limited(rank)
        U, V = effect.best_weights()
        return Solution(U, V, *grade(effect, U, V))

    def _start(self, init: Any) -> Sequence[Floats]:
        if not isinstance(init, (tuple, list)):
            raise InputError(f"init must be a pair of weights (U, V), got {init!r:.60}")
        return self._checked(*init)


def effect_of(noise: Noise, width: int, task: Regression) -> UnitNoise:
    """Return what the noise does to a two-layer network: the one place that chooses."""
    if not isinstance(noise, Noise):
        raise InputTypeError(
            f"noise must be a noise such as overt.Dropout(0.5), got {noise!r}"
        )
    if isinstance(noise, DropConnect):
        return WeightNoise(task, width, noise)
    if noise.masks != "units":
        raise InputTypeError(
            f"of the noises over weights only DropConnect is known, got {noise!r}"
        )
    require_consistent(noise, width)
    return UnitNoise(task, width, noise)


CANCELS = 0.01
"""Share of its terms' absolute values below which a penalty is evaluated without cancellation."""

RANK_MARGIN = 1e-10
"""Share of the largest singular value within which a threshold does not decide the rank."""

RIDGE = 1e-14
"""Ridge added to the costs of units, relative to their sizes, so that they decide."""


SETS_SLACK = 1e-11
"""Share of the matrix that sets of units leave to single units, to absorb rounding."""

SLACK = 1e-12
"""Share of the matrix by which costs are lowered, so that the difference can be shown positive."""


class UnitNoise(NoiseEffect):
    """Any noise over the hidden units of a two-layer network."""

    def __init__(self, regression: Regression, width: int, noise: Noise) -> None:
        noise.mean(width)  # the noise must fit the width
        self.regression = regression
        self.width = width
        self.noise = noise
        self.shapes = (regression.outputs, width), (regression.inputs, width)
        self.sharing = sharing(noise, width)
        if not noise.independent and self._characteristic.min() < 0:
            # Terms of the penalty cancel; the remainder is known up to the rounding of Gamma.
            largest = float(self._characteristic.max())
            self.least = max(32 * EPS / EXACT * min(1.0, largest), self.least)

    @property
    def closed_form(self) -> bool:
        """Whether the optimum is known in closed form."""
        return self.sharing.exact

    @property
    def directions(self) -> int:
        """The largest rank of a map."""
        return self.width if self.max_rank is None else min(self.width, self.max_rank)

    @cached_property
    def relaxation(self) -> Relaxation:
        """The bound and the map of the noise's envelopes, in place of its penalty."""
        rule = self.sharing
        return relax(self.leading, rule.envelopes(), self.regression, rule.refined)

    @property
    def leading(self) -> Leading:
        """The target's leading directions."""
        return self.regression.leading(self.directions)

    @property
    def rank_range(self) -> tuple[int, int] | None:
        """That of the one best map, where its spectrum is known in closed form.

        Values that are within rounding of the threshold may or may not belong to it.
        """
        (costs,) = self.sharing.envelopes() if self.sharing.exact else (None,)
        if not isinstance(costs, UnitShares) or costs.one_direction:
            return None
        s = self.leading.s
        margin = s - costs.multipliers(s)[: len(s)]
        unsure = RANK_MARGIN * s[0]
        return int(np.sum(margin > unsure)), int(np.sum((margin > -unsure) & (s > 0)))

    def best_weights(self) -> Sequence[Floats]:
        """Return factors of the relaxation's map, refined by descent if they are not exact.

        The penalty depends on U'U and P'P only, so turning a map's singular directions to those of
        T costs nothing and gains (von Neumann): the best U and P lie in the leading directions.
        """
        if self.sharing.exact:
            U, P = self.sharing.factors(*self.relaxation.kept)
            return U, self.regression.unwhiten(P)
        task = self.regression
        left, s, right = task.svd
        d = self.directions
        rest = task.residual + float(np.sum(s[d:] ** 2))
        enough = attains(self.relaxation.bound) - rest
        U, P = _balanced(*self._best_factors(s[:d], self.relaxation.spectrum, enough))
        return left[:, :d] @ U, task.unwhiten(right[:, :d] @ P)

    def best_root(self, m: Floats, a: Floats, enough: float) -> Floats:
        """Return the best B found of |diag(m) - B B'|^2 + <Gamma, B'B o B'B>, m >= 0 decreasing.

        The first start are factors of the relaxation's map, with the spectrum a.
        """

        def value(B: Floats) -> tuple[float, Sequence[Floats]]:
            objective, (gradient, other) = self._value(np.diag(m), B, B)
            return objective, (gradient + other,)

        (B,) = refine(value, [(self._shared(m, a),)], enough)
        return B

    def _best_factors(self, m: Floats, a: Floats, enough: float) -> Pair:
        """Return the best (U, P) found of |diag(m) - U P'|^2 + <Gamma, U'U o P'P>.

        P may differ from U where noise is correlated: units that cancel each other cancel noise
        too. The best P for a U is known, so descent is in U alone.
        """
        start = self._shared(m, a)
        T = np.diag(m)

        def value(U: Floats) -> tuple[float, Sequence[Floats]]:
            objective, (gradient, _) = self._value(T, U, self._partner(T, U))
            return objective, (gradient,)

        if self._value(T, start, start)[0] <= enough:
            return start, start
        (U,) = refine(value, [(start,)], enough)
        P = self._partner(T, U)
        if self._value(T, U, P)[0] < self._value(T, start, start)[0]:
            return U, P
        return start, start

    def _partner(self, T: Floats, U: Floats) -> Floats:
        """Return the best P for U: (U'U + Gamma o U'U) P' = U'T.

        Units are scaled to one size, which does not change the solution.
        """
        size = np.linalg.norm(U, axis=0)
        size = np.where(size > 0, size, 1.0)
        unit = U / size
        K = unit.T @ unit
        K = K + self._characteristic * K
        K += RIDGE * np.diag(1 + np.diag(K))
        return np.asarray((np.linalg.solve(K, unit.T @ T) / size[:, None]).T)

    def _value(self, T: Floats, U: Floats, P: Floats) -> tuple[float, Sequence[Floats]]:
        """Return |T - U P'|^2 + <Gamma, U'U o P'P> and its gradients."""
        Gamma = self._characteristic
        R = T - U @ P.T
        UU = U.T @ U
        PP = P.T @ P
        value = float(np.sum(R * R) + np.sum(Gamma * UU * PP))
        gradient_U = 2 * (U @ (Gamma * PP) - R @ P)
        gradient_P = 2 * (P @ (Gamma * UU) - R.T @ U)
        return value, (gradient_U, gradient_P)

    def _shared(self, m: Floats, a: Floats) -> Floats:
        """Return a root of diag(a), a map in the coordinates of diag(m), as units best share it."""
        unit = np.eye(len(m))
        kept = positive(a)
        B, _ = self.sharing.factors(unit[:, kept], a[kept], unit[:, kept])
        return B

    def evaluate(self, *weights: Floats) -> tuple[Floats, Floats, float]:
        """Return the weights, which are the factors, and <Gamma, U'U o H'H>."""
        U, V = weights
        return U, V, self._penalty(U, self.regression.hidden(V))

    def _penalty(self, U: Floats, H: Floats) -> float:
        if self.noise.independent:
            return float(penalty.shallow(U, H, self.noise))
        terms = self._characteristic * (U.T @ U) * (H.T @ H)
        if (total := float(np.sum(terms))) > CANCELS * np.sum(np.abs(terms)):
            return total
        # As a sum of squares |U diag(z) H'|^2 over a root of Gamma = sum z z', in triangles.
        values, vectors = np.linalg.eigh(self._characteristic)
        kept = values > EPS * values[-1]
        left, right = (np.asarray(np.linalg.qr(A, mode="r")) for A in (U, H))
        roots = (vectors[:, kept] * np.sqrt(values[kept])).T
        return float(sum(np.sum(((left * z) @ right.T) ** 2) for z in roots))

    def imbalance(self, found: Evaluation) -> float:
        """Return the variance over units, or blocks of them, of their share of the map."""
        return float(self.sharing.imbalance(found.U, found.P))

    def value(self, *weights: Floats) -> tuple[float, Sequence[Floats]]:
        """Return the objective and its gradients in (U, V)."""
        U, V = weights
        dense = self.regression
        value, (gradient_U, gradient_P) = self._value(dense.T, U, dense.whiten(V))
        return dense.residual + value, (gradient_U, dense.pull_back(gradient_P))

    def witness(self, s: Floats) -> dict[str, Any]:
        """Return thresholds, costs of units or sets of units."""
        return unit_witness(self.noise, self.width, s)

    def steps(self, rng: np.random.Generator, batch_size: int = 1) -> Advance:
        """Return compiled steps with masked units."""
        return masked_steps(
            self.regression.samples, self.noise, self.width, rng, batch_size
        )

    @cached_property
    def _characteristic(self) -> Floats:
        return self.noise.characteristic(self.width)


def _balanced(U: Floats, P: Floats) -> Pair:
    """Return factors whose units have u_i and p_i of one length: the objective is the same.

    Searches may end with units of 1e-10 and 1e9, which lose digits wherever they are used.
    """
    lengths = np.linalg.norm(U, axis=0), np.linalg.norm(P, axis=0)
    used = (lengths[0] > 0) & (lengths[1] > 0)
    scale = np.ones(U.shape[1])
    scale[used] = np.sqrt(lengths[1][used] / lengths[0][used])
    return U * scale, P / scale


def unit_witness(noise: Noise, width: int, s: Floats) -> dict[str, Any]:
    """Return what makes the bound of a proof tight, for a target with singular values s.

    Thresholds, costs of units or sets of units are proposals: a bad one makes the bound that the
    checker evaluates loose, never wrong. docs/howto/proofs.md derives the inequalities.
    """
    padded = np.concatenate([s, np.zeros(width - len(s))])
    match noise:
        case Dropout(gaussian=False):
            costs = UnitShares(noise.relative_variance(width))
            return {"thresholds": costs.multipliers(padded)}
        case DropBlock(placement="grid", block_size=b):
            weight = noise.strength * b / width
            return {"thresholds": KSupport(b).shrinkage(padded, weight)}
    Gamma = np.asarray(noise.characteristic(width), dtype=float)
    rule = sharing(noise, width)
    lowered = _costs_below(Gamma, rule)
    best = max(lowered, key=lambda costs: costs.bound(padded))
    if not rule.exact:
        sets_slack = SETS_SLACK * float(np.abs(Gamma).max())
        pieces = best_pieces(Gamma, s, sets_slack)
        if np.sum(s**2) - total_gain(pieces) > best.bound(padded):
            sets = [
                {"units": list(p.units), "root": p.root, "loads": p.loads}
                for p in pieces
            ]
            return {"slack": sets_slack, "sets": sets}
    found = {"gamma": best.gamma, "delta": best.delta}
    if not best.one_direction:
        found["thresholds"] = best.multipliers(padded)
    return found


def _costs_below(Gamma: Floats, rule: Sharing) -> list[UnitShares]:
    """Return costs of units that exact arithmetic can show to be below a matrix."""
    gamma = float(Gamma[0, -1])
    if np.all(Gamma[~np.eye(len(Gamma), dtype=bool)] == gamma):
        # What is left is a diagonal, so that no slack is needed but for rounding.
        delta = np.nextafter(np.diag(Gamma) - gamma, -np.inf)
        return [UnitShares(np.maximum(delta, 0.0), gamma)]
    slack = SLACK * float(np.abs(Gamma).max())
    return [
        UnitShares(
            np.maximum(costs.delta - slack, 0.0), costs.gamma - slack / len(Gamma)
        )
        for costs in rule.envelopes()
        if isinstance(costs, UnitShares)
    ]


Pair = tuple[Floats, Floats]


class Sharing(NamedTuple):
    """How hidden units share a map A = left diag(a) right', a > 0, at the least penalty known.

    `envelopes` lists what the noise costs a map at least, `spread(left, a, right)` returns factors
    of a map that is not zero, the best way known; `exact` says that these are a global optimum at
    any width. `refined(s)` is a further lower bound on the objective for a target with singular
    values s, where no envelope is exact. `imbalance(U, P)` is the variance of what the noise makes
    equal.
    """

    width: int
    envelopes: Callable[[], Sequence[Envelope]]
    spread: Callable[[Floats, Floats, Floats], Pair]
    exact: bool = False
    refined: Callable[[Floats], float] | None = None
    imbalance: Callable[[Floats, Floats], Array] = equalize.imbalance

    def factors(self, left: Floats, a: Floats, right: Floats) -> Pair:
        """Return factors of the map."""
        if len(a) == 0:
            return np.zeros((len(left), self.width)), np.zeros((len(right), self.width))
        return self.spread(left, a, right)


def sharing(noise: Noise, width: int) -> Sharing:
    """Return what theory says about a noise over units: the one place that tells them apart."""
    match noise:
        case Dropout():
            units: UnitShares | None = UnitShares(noise.relative_variance(width))
        case DropBlock(placement="grid", block_size=b):
            equal = partial(equalize.block_imbalance, block_size=b)
            induces = [NormCost(*induced(noise, width))]
            spread = partial(block_factors, width=width, block_size=b)
            return Sharing(width, partial(list, induces), spread, imbalance=equal)
        case _:
            units = _diagonal_plus_constant(noise, width)
    if units is not None:
        spread = partial(_shared_units, units)
        return Sharing(width, partial(list, [units]), spread, exact=True)
    Gamma = noise.characteristic(width)
    kept = np.sum(noise.mean(width)) if isinstance(noise, DropBlock) else width
    refined = partial(any_noise_bound, Gamma, kept)
    return Sharing(
        width,
        partial(pairs_below, Gamma),
        partial(equalize.balanced_factors, width=width),
        refined=refined,
    )


def _diagonal_plus_constant(noise: Noise, width: int) -> UnitShares | None:
    """Return the costs of units under Gamma = diag(delta) + gamma 1 1', None if it is not that."""
    if noise.independent or width == 1:
        return UnitShares(noise.relative_variance(width))
    Gamma = noise.characteristic(width)
    others = Gamma[~np.eye(width, dtype=bool)]
    gamma = float(np.mean(others))
    delta = np.diag(Gamma) - gamma
    rounding = 1e-14 * np.abs(Gamma).max()
    if np.ptp(others) > rounding or delta.min() < -rounding:
        return None
    if np.ptp(delta) <= rounding:  # equal up to rounding: all units alike
        delta = np.full(width, delta.mean())
    return UnitShares(np.maximum(delta, 0.0), gamma)


def _shared_units(units: UnitShares, left: Floats, a: Floats, right: Floats) -> Pair:
    """Return factors whose units have their best shares, by Schur and Horn."""
    if np.ptp(units.delta) == 0:
        return equalize.balanced_factors(left, a, right, len(units.delta))
    padded = np.concatenate([a, np.zeros(len(units.delta) - len(a))])
    Q = equalize.schur_horn(padded, units.shares(a))[: len(a)]
    return (left * np.sqrt(a)) @ Q, (right * np.sqrt(a)) @ Q


def block_factors(
    left: Floats, a: Floats, right: Floats, width: int, block_size: int
) -> tuple[Floats, Floats]:
    """Return (U, V) with U V' = left diag(a) right', a > 0, distributed over blocks of columns.

    The best product has spectrum a with occupancies t (sum t = b). If F_j (rank x b) have
    orthonormal columns and the average of F_j F_j' over the k blocks is diag(t), then the blocks

        U_j = W diag(a/t)^(1/2) F_j / sqrt(k),   V_j = Y diag(a/t)^(1/2) F_j / sqrt(k)

    multiply to W diag(a) Y' and attain the k-support norm. One such F has t as the diagonal of F F'
    (Schur-Horn); flipping its signs with the rows of a Hadamard matrix of order k >= rank averages
    all other entries to zero. So DropBlock's convex bound is attained whenever such a matrix
    exists; for other numbers of blocks the signs are random, and descent may start from there.
    """
    t = np.asarray(KSupport(block_size).occupancy(a))
    free = t < 1 - 1e-12
    R = _signed_frame(t, free, width, block_size)
    root = np.sqrt(a)
    return (left * root) @ R, (right * root) @ R


def attains_bound(a: Floats, blocks: int, block_size: int) -> bool:
    """Return whether blocks are known to attain the bound for a map with spectrum a > 0.

    That is so if the occupancies below one are no more than the blocks, whose number is a power of
    two (or the order of any Hadamard matrix). Otherwise it is a question of fusion frames.
    """
    if len(a) == 0:
        return True
    t = np.asarray(KSupport(block_size).occupancy(a))
    free = int(np.sum(t < 1 - 1e-12))
    return free == 0 or (free <= blocks and hadamard(blocks) is not None)


def hadamard(order: int) -> Floats | None:
    """Return Sylvester's matrix of +-1 with orthogonal rows, None if order is no power of two."""
    H = np.ones((1, 1))
    while len(H) < order:
        H = np.block([[H, H], [H, -H]])
    return H if len(H) == order else None


def _signed_frame(t: Floats, free: Bools, width: int, block_size: int) -> Floats:
    """Return R (rank x width), R R' = I: one frame F for all blocks, with separate signs in each.

    Rows of a Hadamard matrix make the blocks' average diag(t) exactly; random signs nearly.
    """
    n = len(t)
    blocks = width // block_size
    count = int(free.sum())
    H = hadamard(blocks) if count <= blocks else None
    if H is None:
        H = np.random.default_rng(0).choice([-1.0, 1.0], size=(count, blocks))
    signs = np.ones((n, blocks))
    signs[free] = H[:count]
    F = _projection(t, block_size) / np.sqrt(t)[:, None]
    frames = signs[:, :, None] * F[:, None, :]  # (rank, blocks, block_size)
    X, _, Y = np.linalg.svd(frames.reshape(n, width), full_matrices=False)
    return np.asarray(X @ Y)


def _projection(t: Floats, rank: int) -> Floats:
    """Return F with orthonormal (or zero) columns and diag(F F') = t, columns padded to `rank`."""
    n = len(t)
    if n <= rank:
        return np.eye(n, rank)
    eigenvalues = np.zeros(n)
    eigenvalues[:rank] = 1.0
    return equalize.schur_horn(eigenvalues, t * (rank / t.sum())).T[:, :rank]


class WeightNoise(UnitNoise):
    """DropConnect on the first layer; with uncorrelated inputs it costs what Dropout does."""

    def __init__(self, regression: Regression, width: int, noise: DropConnect) -> None:
        super().__init__(regression, width, Dropout(noise.drop_prob))
        self.weight_noise = noise
        self.correlated = not regression.uncorrelated()

    def limited(self, rank: int | None) -> WeightNoise:
        """Return the same problem over maps of at most this rank; inputs must be uncorrelated."""
        if rank is not None and self.correlated:
            raise InputError(
                "rank= is not available for DropConnect with correlated inputs: no bound by rank "
                "is known there"
            )
        return super().limited(rank)

    @property
    def closed_form(self) -> bool:
        """Whether the optimum is that of Dropout."""
        return not self.correlated

    @property
    def rank_range(self) -> tuple[int, int] | None:
        """That of Dropout, if inputs are uncorrelated."""
        return None if self.correlated else super().rank_range

    @cached_property
    def relaxation(self) -> Relaxation:
        """The bound and the map of the convex problem of the map."""
        if not self.correlated:
            return super().relaxation
        dense = self.regression
        B, bound, N = best_map(
            dense, self._root, self.weight_noise.strength / self.width
        )
        loss = float(np.sum((dense.T - B @ (dense.root / self._root[:, None])) ** 2))
        bound -= dense.rounding(bound, loss, float(np.linalg.norm(B, "nuc")))
        return Relaxation(
            bound, B / self._root, np.ones(dense.inputs), dense.root.T, None, N
        )

    def best_weights(self) -> Sequence[Floats]:
        """Return balanced factors of the best map, refined by descent where the width is short."""
        if not self.correlated:
            return super().best_weights()
        left, s, right = np.linalg.svd(
            self.relaxation.left * self._root, full_matrices=False
        )
        rank = int(np.sum(s > 1e-9 * s[0])) if s[0] > 0 else 0
        kept = min(rank, self.width)
        U, V = equalize.balanced_factors(
            left[:, :kept], s[:kept], right[:kept].T, self.width
        )
        root = self._root[:, None]
        if rank > self.width:
            enough = attains(self.relaxation.bound)
            U, V = refine(scaled(self.value, 1.0, root), [(U, V)], enough)
        return U, V / root

    def evaluate(self, *weights: Floats) -> tuple[Floats, Floats, float]:
        """Return the weights, which are the factors, and lam sum_k |u_k|^2 v_k'D v_k."""
        U, V = weights
        root = np.sqrt(self.regression.input_variances)[:, None]
        return (
            U,
            V,
            float(penalty.dropconnect(U, root * V, self.weight_noise.drop_prob)),
        )

    def imbalance(self, found: Evaluation) -> float:
        """Return the variance over units of |u_k| |D^(1/2) v_k|."""
        root = np.sqrt(self.regression.input_variances)[:, None]
        return float(equalize.imbalance(found.U, root * found.V))

    def value(self, *weights: Floats) -> tuple[float, Sequence[Floats]]:
        """Return residual + |R|^2 + lam sum_k |u_k|^2 v_k'D v_k and its gradients."""
        U, V = weights
        dense = self.regression
        lam = self.weight_noise.strength
        D = dense.input_variances
        P = dense.whiten(V)
        R = dense.T - U @ P.T
        u = np.sum(U * U, axis=0)
        v = np.sum(V * V * D[:, None], axis=0)
        value = dense.residual + float(np.sum(R * R) + lam * u @ v)
        return value, (
            2 * (lam * U * v - R @ P),
            2 * (lam * V * D[:, None] * u - dense.pull_back(R.T @ U)),
        )

    def witness(self, s: Floats) -> dict[str, Any]:
        """Return that of Dropout, or what the best map leaves over, N in place of the target T."""
        if len(s):
            return super().witness(s)
        task = self.regression
        best = self.relaxation
        N = best.multiplier
        if N is None:  # in closed form, as inputs are uncorrelated up to rounding
            N = task.T - best.left * best.spectrum @ best.right.T
        if "Y" in task.given:
            M = np.asarray(task.given["Y"], dtype=float).T
        else:
            M = np.asarray(task.given["target"], dtype=float)
        left = np.zeros_like(M)
        if task.L_inverse is not None:
            back = task.L_inverse
            if "X" in task.given:
                back = back @ np.asarray(task.given["X"], dtype=float).T
            left = M + (N - task.T) @ back
        return {"multiplier": left}

    def steps(self, rng: np.random.Generator, batch_size: int = 1) -> Advance:
        """Return compiled steps with masked weights."""
        return masked_steps(
            self.regression.samples, self.weight_noise, self.width, rng, batch_size
        )

    @cached_property
    def _root(self) -> Floats:
        """The diagonal of D^(1/2), with 1 in place of 0."""
        D = self.regression.input_variances
        return np.sqrt(np.where(D > 0, D, 1.0))


def best_map(
    regression: Regression, root: Floats, weight: float
) -> tuple[Floats, float, Floats]:
    """Return (B, bound, N): the optimum in scaled coordinates, a proved lower bound, its dual."""
    T = regression.T
    K = regression.root / root[:, None]
    if weight == 0:
        return T @ np.linalg.pinv(K), regression.residual, np.zeros_like(T)
    values, Q = np.linalg.eigh(K @ K.T)
    back = np.linalg.pinv(K.T)
    norm = SquaredNuclear()
    TK = T @ K.T
    rho = float(np.mean(values))
    Z = np.zeros_like(TK)
    best = Z
    reached = np.inf
    bound = -np.inf
    dual = T
    multipliers = Z  # G / rho
    for count in range(1, MAX_STEPS + 1):
        B = (((TK + rho * (Z - multipliers)) @ Q) / (values + rho)) @ Q.T
        ahead = RELAXED * B + (1 - RELAXED) * Z
        left, s, right = np.linalg.svd(ahead + multipliers, full_matrices=False)
        s = np.asarray(norm.prox(s, weight / rho))
        before = Z
        Z = left * s @ right
        multipliers = multipliers + ahead - Z
        if count % CHECKED:
            continue
        value = float(np.sum((T - Z @ K) ** 2) + weight * norm.value(s))
        N = rho * multipliers @ back
        lower, factor = _dual(T, K, weight, N)
        if lower > bound:
            bound = lower
            dual = factor * N
        if value < reached:
            best = Z
            reached = value
        if reached - bound <= TOL * reached:
            break
        # Relative errors of map and multipliers should be of one size.
        apart = float(np.linalg.norm(B - Z) * np.linalg.norm(multipliers))
        uneven = apart / max(
            float(np.linalg.norm(Z - before) * np.linalg.norm(Z)), 1e-300
        )
        factor = min(max(uneven, 0.5), 2.0)
        rho = rho * factor
        multipliers = multipliers / factor
    return best, regression.residual + bound, dual


def _dual(T: Floats, K: Floats, weight: float, N: Floats) -> tuple[float, float]:
    """Return 2 <N, T> - |N|^2 - |N K'|_op^2 / weight at the best multiple of N, and the factor."""
    inner = float(np.sum(N * T))
    size = float(np.sum(N**2) + np.linalg.norm(N @ K.T, 2) ** 2 / weight)
    return (inner**2 / size, inner / size) if inner > 0 else (0.0, 0.0)
