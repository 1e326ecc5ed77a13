"""Priors of a side's rows: w_a ~ N(m + g_a, P^-1), g_a what its features lead to expect.

With scores A (N rows with entries, I directions), g_a = H'a_a. In the eigenbasis of P^-1 = X X' the
whitened rows x_a = X^-1 (w_a - m) have independent coordinates c, in each

    x_c ~ N(A h_c, 1),   h_c ~ N(0, D_c),   D_c = diag(s_jc) with one scale for each block j,

and h_c is integrated out: with y_c = A'x_c, K = A'A and C_c = (K + D_c^-1)^-1,

    2 cost = N log det P^-1 + sum_c log det(1 + D_c K) + sum_a E |x_a|^2 - sum_c E y_c'C_c y_c
             - sum_a log det S_a - N n

is the side's part of the negative evidence bound; E y y' = ybar ybar' + K times the rows' mean
variance. Scales maximize it on a grid, one after the other; (m, P) make one EM step in which h is
the latent variable; rows are solved with g fixed, which bounds -y'C y (concave) by its tangent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from overt._types import Array, Floats
from overt.completion.forms.features import SIGNALS, Features
from overt.completion.forms.problem import Columns
from overt.completion.kernels import RowPrior

GRID = np.concatenate([[0.0], np.logspace(-3, 3, 61)])
"""Scales that are tried."""

LEAST_VARIANCE = 1e-4
"""Variance of the n pseudo-rows beside N rows with n unknowns, for values of unit variance.

A factor that is not needed shrinks until its prior variance is this, where it adds nothing to
predictions; without it the prior would narrow for ever, and the objective fall with it."""


class Sums(NamedTuple):
    """Of a side's rows with entries: N, sum w, sum w w', sum S, A'W, sum log det S."""

    N: int
    first: Floats
    second: Floats
    S: Floats
    AW: Floats
    logdets: float

    def plus(self, other: Sums, sign: int) -> Sums:
        """Add (1) or take away (-1) the sums over other rows; log dets are left out."""
        first = self.first + sign * other.first
        second = self.second + sign * other.second
        S = self.S + sign * other.S
        AW = self.AW + sign * other.AW
        return Sums(self.N + sign * other.N, first, second, S, AW, 0.0)

    def about(self, m: Floats) -> Floats:
        """Sum of (w - m)(w - m)'."""
        cross = np.outer(self.first, m)
        return self.second - cross - cross.T + self.N * np.outer(m, m)


@dataclass(frozen=True, eq=False)
class Effects:
    """Effects of features: g_a = H'a_a; coordinate c of X^-1 h has the covariance C_c."""

    scales: Floats  # (blocks, n)
    X: Floats
    H: Floats  # (I, n)
    C: Floats  # (n, I, I)
    logdet: float = 0.0  # sum_c log det(1 + D_c K)

    def spread(self, sums: Sums, features: Features) -> Floats:
        """X [diag h_c - V o (h_c + h_d - tr(C_c K C_d K))] X', h_c = tr(C_c K).

        The variance of h adds to the residuals and explains a part of the rows' variances V.
        """
        X = self.X
        M = self.C @ features.K
        h = np.trace(M, axis1=1, axis2=2)
        both = M.reshape(len(h), -1) @ M.transpose(0, 2, 1).reshape(len(h), -1).T
        V = _whiten(X, sums.S / sums.N)
        return np.asarray(X @ (np.diag(h) - V * (h[:, None] + h - both)) @ X.T)

    def arrays(self, side: int) -> dict[str, Array]:
        """Return the arrays to store."""
        kept = {"scales": self.scales, "X": self.X, "H": self.H, "C": self.C}
        return {f"effects_{name}_{side}": array for name, array in kept.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], side: int) -> Effects | None:
        """Rebuild them."""
        if f"effects_X_{side}" not in arrays:
            return None
        scales, X, H, C = (arrays[f"effects_{name}_{side}"] for name in ("scales", "X", "H", "C"))
        return cls(scales, X, H, C)


@dataclass(frozen=True, eq=False)
class Prior:
    """N(mean + H'a, precision^-1) over the unknowns of a row with scores a."""

    mean: Floats
    precision: Floats
    effects: Effects | None = None

    @property
    def covariance(self) -> Floats:
        """precision^-1."""
        return np.asarray(np.linalg.inv(self.precision), dtype=np.float64)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], side: int) -> Prior:
        """Rebuild the prior of a side from stored arrays."""
        given = (arrays[f"prior_mean_{side}"], arrays[f"prior_precision_{side}"])
        return cls(*given, Effects.from_arrays(arrays, side))

    def arrays(self, side: int) -> dict[str, Array]:
        """Return the arrays to store of the prior of a side."""
        kept = {f"prior_mean_{side}": self.mean, f"prior_precision_{side}": self.precision}
        return kept if self.effects is None else kept | self.effects.arrays(side)

    def scaled(self, units: Floats) -> Prior:
        """Return the prior of rows whose unknowns are multiplied by `units`."""
        effects = self.effects
        if effects is not None:
            effects = replace(effects, X=units[:, None] * effects.X, H=effects.H * units)
        return Prior(self.mean * units, self.precision / np.outer(units, units), effects)

    def for_rows(self, columns: Columns, side: int) -> RowPrior:
        """Return what the kernels take of it for all rows."""
        return RowPrior(self.precision, columns.free(side), columns.pinned(side))

    def means(self, scores: Array) -> Floats:
        """m + H'a for rows with these scores."""
        if self.effects is None:
            return np.tile(self.mean, (len(scores), 1))
        return self.mean + scores @ self.effects.H.astype(scores.dtype)

    def covariances(self, scores: Array) -> Floats:
        """P^-1 + Cov(H'a) for rows with these scores: X diag(1 + a'C_c a) X'."""
        if self.effects is None:
            return np.tile(self.covariance, (len(scores), 1, 1))
        X = self.effects.X
        a = scores.astype(np.float64)
        spread = np.stack([np.einsum("ri,ri->r", a @ C, a) for C in self.effects.C], axis=1)
        return np.asarray(np.einsum("ic,rc,jc->rij", X, 1 + spread, X))

    def learn(self, sums: Sums, features: Features, certain: bool = True) -> Prior:
        """Make the EM step for m and P, then choose the scales of the features.

        Signals that are not `certain` are left at 0 until each of their n scales pays a nat.

        P^-1 = sum of second moments about m + g, and the variance of h, over N + n: the n
        pseudo-rows keep priors from fitting noise where there are few rows.
        """
        N = sums.N
        n = len(self.mean)
        if self.effects is None:
            mean = sums.first / N
            about = sums.about(mean)
        else:
            H = self.effects.H
            mean = (sums.first - features.ones @ H) / N
            cross = (sums.AW - np.outer(features.ones, mean)).T @ H
            about = sums.about(mean) - cross - cross.T + H.T @ features.K @ H
            about += self.effects.spread(sums, features)
        covariance = (about + sums.S + n * LEAST_VARIANCE * np.eye(n)) / (N + n)
        prior = Prior(mean, np.asarray(np.linalg.inv(covariance), dtype=np.float64))
        if not len(features.K):
            return prior
        blocks = len(features.directions.parts)
        old = np.zeros((blocks, n)) if self.effects is None else self.effects.scales
        found = effects_of(prior, sums, features, old, certain)
        return replace(prior, effects=found) if found.scales.any() else prior

    @property
    def pseudo_cost(self) -> float:
        """Return what n pseudo-rows of variance LEAST_VARIANCE add to the objective."""
        n = len(self.mean)
        logdet = np.linalg.slogdet(self.precision)[1]
        return float(n * (LEAST_VARIANCE * np.trace(self.precision) - logdet)) / 2

    def cost(self, sums: Sums, features: Features) -> float:
        """Return the side's part of the negative evidence bound (top of this file)."""
        N = sums.N
        n = len(self.mean)
        logdet = np.linalg.slogdet(self.precision)[1]
        twice = np.sum(self.precision * (sums.about(self.mean) + sums.S))
        twice -= N * logdet + sums.logdets + N * n
        if self.effects is not None:
            e = self.effects
            Y = projected(e.X, self.mean, sums, features)
            V = np.diag(_whiten(e.X, sums.S / N))
            twice += e.logdet - np.einsum("ic,cij,jc->", Y, e.C, Y)
            twice -= V @ np.einsum("cij,ij->c", e.C, features.K)
        return float(twice) / 2


def projected(X: Floats, mean: Floats, sums: Sums, features: Features) -> Floats:
    """y_c = A'x_c for all coordinates, (I, n)."""
    return np.asarray(np.linalg.solve(X, (sums.AW - np.outer(features.ones, mean)).T).T)


def effects_of(
    prior: Prior, sums: Sums, features: Features, scales: Floats, certain: bool = True
) -> Effects:
    """Return effects whose scales are the likeliest, block after block."""
    values, E = np.linalg.eigh(prior.covariance)
    X = E * np.sqrt(np.maximum(values, 1e-300))
    Y = projected(X, prior.mean, sums, features)
    scales = scales.copy()
    V = np.diag(_whiten(X, sums.S / sums.N))
    for block, name in enumerate(features.directions.parts):
        found = likelihoods(block, Y, V, features, scales)
        pays = found.max(axis=0).sum() > len(V) or name != SIGNALS
        if certain or pays or scales[block].any():
            scales[block] = GRID[found.argmax(axis=0)]
    return posterior(X, Y, features, scales)


def draw_effects(
    mean: Floats,
    variances: Floats,
    AW: Floats,
    features: Features,
    scales: Floats,
    rng: np.random.Generator,
) -> Effects:
    """Draw scales and effects given rows that are known, for independent coordinates."""
    X = np.diag(np.sqrt(variances))
    Y = (AW - np.outer(features.ones, mean)) / np.sqrt(variances)
    scales = scales.copy()
    for block in range(len(scales)):
        found = likelihoods(block, Y, np.zeros(len(mean)), features, scales)
        scales[block] = GRID[(found + rng.gumbel(size=found.shape)).argmax(axis=0)]
    return posterior(X, Y, features, scales, rng)


def posterior(
    X: Floats,
    Y: Floats,
    features: Features,
    scales: Floats,
    rng: np.random.Generator | None = None,
) -> Effects:
    """h_c ~ N(C_c y_c, C_c), C_c = (K + D_c^-1)^-1; H is X times the mean, or times a sample."""
    size, n = Y.shape
    roots = np.sqrt(scales.T @ features.directions.members)
    H = np.zeros((size, n))
    C = np.zeros((n, size, size))
    logdet = 0.0
    for c in np.flatnonzero(roots.any(axis=1)):
        at = np.flatnonzero(roots[c])
        r = roots[c, at]
        factor = cho_factor(np.eye(len(at)) + r[:, None] * features.K[np.ix_(at, at)] * r)
        C[c][np.ix_(at, at)] = r[:, None] * cho_solve(factor, np.eye(len(at))) * r
        logdet += 2 * float(np.log(np.diag(factor[0])).sum())
        H[:, c] = C[c] @ Y[:, c]
        if rng is not None:  # C = r M^-1 r, M = U'U
            draw = np.linalg.solve(np.triu(factor[0]), rng.standard_normal(len(at)))
            H[at, c] += r * draw
    return Effects(scales, X, H @ X.T, C, logdet)


def likelihoods(block: int, Y: Floats, V: Floats, features: Features, scales: Floats) -> Floats:
    """Return log N(x_c; 0, 1 + A D_c A') over the block's scales on GRID, less that at 0.

    (grid, n). With Omega the covariance that other blocks leave and A_j'Omega^-1 A_j = E e E',
    it is -1/2 sum_i log(1 + s e_i) + 1/2 sum_i s E z_i^2 / (1 + s e_i), z = E'A_j'Omega^-1 x.
    """
    members = features.directions.members
    K = features.K
    mine = members[block] > 0
    others = members[block] == 0
    s = GRID[:, None]
    out = np.empty((len(GRID), Y.shape[1]))
    bases: dict[bytes, tuple[Floats, Floats, Floats, Floats]] = {}
    for c in range(Y.shape[1]):
        D = (scales[:, c] @ members)[others]
        key = D.tobytes()
        if key not in bases:
            bases[key] = _basis(K, mine, np.flatnonzero(others)[D > 0], D[D > 0])
        e, E, G, square = bases[key]
        at = np.flatnonzero(others)[D > 0]
        z = E.T @ (Y[mine, c] - G @ Y[at, c])
        expected = z**2 + V[c] * square
        out[:, c] = (expected * s / (1 + s * e) - np.log1p(s * e)).sum(axis=1) / 2
    return out


def _basis(K: Floats, mine: Array, at: Array, D: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Return e, E, G with A_j'Omega^-1 x = y_j - G y_o, and diag E'A_j'Omega^-2 A_j E."""
    Kjj = K[np.ix_(mine, mine)]
    Kjo = K[np.ix_(mine, at)]
    Koo = K[np.ix_(at, at)]
    G = np.linalg.solve(Koo + np.diag(1 / D), Kjo.T).T
    e, E = np.linalg.eigh(Kjj - G @ Kjo.T)
    twice = Kjj - G @ Kjo.T - Kjo @ G.T + G @ Koo @ G.T
    return np.maximum(e, 0), E, G, np.einsum("ij,ik,kj->j", E, twice, E)


def _whiten(X: Floats, S: Floats) -> Floats:
    """X^-1 S X^-T."""
    half = np.linalg.solve(X, S)
    return np.asarray(np.linalg.solve(X, half.T))
