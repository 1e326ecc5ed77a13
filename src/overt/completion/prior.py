"""Priors of a side's rows, w_a ~ N(m + g_a, P^-1), and each row's share in the noise.

g_a is what the row's features lead to expect. With scores A (N rows with entries, I directions),
g_a = H'a_a. In the eigenbasis of P^-1 = X X' the whitened rows x_a = X^-1 (w_a - m) have
independent coordinates c, in each

    x_c ~ N(A h_c, 1),   h_c ~ N(0, D_c),   D_c = diag(s_jc) with one scale for each block j,

and h_c is integrated out: with y_c = A'x_c, K = A'A and C_c = (K + D_c^-1)^-1,

    2 cost = N log det P^-1 + sum_c log det(1 + D_c K) + sum_a E |x_a|^2 - sum_c E y_c'C_c y_c
             - sum_a log det S_a - N n

is the side's part of the negative evidence bound; E y y' = ybar ybar' + K times the rows' mean
variance. Scales maximize it on a grid, one after the other; (m, P) make one EM step in which h is
the latent variable; rows are solved with g fixed, which bounds -y'C y (concave) by its tangent.

Entry (a, b) has the noise variance sigma^2 / (alpha_a beta_b), alpha_a ~ Gamma(nu/2, nu/2) of mean
1, and beta_b likewise with another nu. With n_a entries and the misfit
e_a = sum_b E beta_b E r_ab^2 / sigma^2,

    q(alpha_a) = Gamma((nu + n_a) / 2, (nu + e_a) / 2)

is exact given everything else, and leaves in the negative evidence bound

    -log integral Gamma(alpha; nu/2, nu/2) alpha^(n_a / 2) exp(-alpha e_a / 2) d alpha
      = log Gamma(nu/2) - (nu/2) log(nu/2)
        - log Gamma((nu + n_a)/2) + ((nu + n_a)/2) log((nu + e_a)/2)

whose sum over rows nu minimizes; nu = infinity is one noise for all, and leaves e_a / 2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from overt._check import Array, Floats, Ints
from overt.completion.features import MISSINGNESS, Features
from overt.completion.kernels.rows import RowPrior
from overt.completion.problem import Columns

SCALES = np.concatenate([[0.0], np.logspace(-3, 3, 61)])
"""Scales of features that are tried."""

MIN_VARIANCE = 1e-4
"""Variance of the n pseudo-rows beside N rows with n unknowns, for values of unit variance.

A factor that is not needed shrinks until its prior variance is this, where it adds nothing to
predictions; without it the prior would narrow for ever, and the objective fall with it."""

NU_RANGE = (4.0, 3200.0)
"""Values of nu that are tried beside infinity; at 4 a row never seen has twice the variance."""


class Sums(NamedTuple):
    """Sums over a side's rows with entries: N, sum w, sum w w', sum S, A'W, sum log det S."""

    N: int
    first: Floats
    second: Floats
    S: Floats
    AW: Floats
    logdets: float

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

    def residual_moment(self, sums: Sums, features: Features) -> Floats:
        """X [diag h_c - V o (h_c + h_d - tr(C_c K C_d K))] X', h_c = tr(C_c K).

        The variance of h adds to the residuals and explains a part of the rows' variances V.
        """
        X = self.X
        M = self.C @ features.K
        h = np.trace(M, axis1=1, axis2=2)
        both = np.einsum("cij,dji->cd", M, M, optimize=True)
        V = _whiten(X, sums.S / sums.N)
        explained = V * (h[:, None] + h - both)
        return np.asarray(X @ (np.diag(h) - explained) @ X.T)


@dataclass(frozen=True, eq=False)
class Prior:
    """N(mean + H'a, precision^-1) over the unknowns of a row with scores a."""

    mean: Floats
    precision: Floats
    effects: Effects | None = None
    # By which the covariance of a new row is larger: see `learn`.
    widening: float = 1.0

    @property
    def covariance(self) -> Floats:
        """precision^-1."""
        return np.asarray(np.linalg.inv(self.precision), dtype=np.float64)

    def for_rows(self, columns: Columns, side: int) -> RowPrior:
        """Return the part that the kernels share among all rows."""
        nothing = np.zeros(columns.packed_size)
        return RowPrior(
            self.precision, columns.free(side), columns.pinned(side), nothing
        )

    def means(self, scores: Array) -> Floats:
        """m + H'a for rows with these scores."""
        if self.effects is None:
            return np.tile(self.mean, (len(scores), 1))
        return self.mean + scores @ self.effects.H.astype(scores.dtype)

    def covariances(self, scores: Array, unknown: Floats) -> Floats:
        """Return covariances of new rows with these mean scores and a covariance of scores.

        P^-1 (for all that is known of it, `widening` times as large) and the variance of h'a:
        X diag(widening + a'C_c a + tr(C_c Cov(a))) X' + H' Cov(a) H.
        """
        if self.effects is None:
            return np.tile(self.widening * self.covariance, (len(scores), 1, 1))
        X, H, C = self.effects.X, self.effects.H, self.effects.C
        a = scores.astype(np.float64)
        variances = np.einsum("ri,cij,rj->rc", a, C, a, optimize=True)
        variances += np.einsum("cij,ij->c", C, unknown)
        own = np.einsum("ic,rc,jc->rij", X, self.widening + variances, X)
        return np.asarray(own + H.T @ unknown @ H)

    def learn(self, sums: Sums, features: Features, certain: bool = True) -> Prior:
        """Make the EM step for m and P, then choose the scales of the features.

        Missingness features that are not `certain` stay at 0 until each of their n scales raises
        the evidence by a nat.

        P^-1 = sum of second moments about m + g, and the variance of h, over N + n: the n
        pseudo-rows keep priors from fitting noise where there are few rows. The rows themselves
        scatter (N + n) / N times as much, and the mean of N rows has a variance of its own.
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
            about += self.effects.residual_moment(sums, features)
        covariance = (about + sums.S + n * MIN_VARIANCE * np.eye(n)) / (N + n)
        precision = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
        widening = (N + n) / N * (1 + 1 / N)
        prior = Prior(mean, precision, widening=widening)
        if not len(features.K):
            return prior
        blocks = len(features.directions.parts)
        old = np.zeros((blocks, n)) if self.effects is None else self.effects.scales
        effects = _likeliest_effects(prior, sums, features, old, certain)
        return replace(prior, effects=effects) if effects.scales.any() else prior

    @property
    def pseudo_cost(self) -> float:
        """Part of the objective that n pseudo-rows of variance MIN_VARIANCE add."""
        n = len(self.mean)
        logdet = np.linalg.slogdet(self.precision)[1]
        return float(n * (MIN_VARIANCE * np.trace(self.precision) - logdet)) / 2

    def cost(self, sums: Sums, features: Features) -> float:
        """Return the side's part of the negative evidence bound (top of this file)."""
        N = sums.N
        n = len(self.mean)
        logdet = np.linalg.slogdet(self.precision)[1]
        twice = np.sum(self.precision * (sums.about(self.mean) + sums.S))
        twice -= N * logdet + sums.logdets + N * n
        if self.effects is not None:
            e = self.effects
            Y = _project(e.X, self.mean, sums, features)
            V = np.diag(_whiten(e.X, sums.S / N))
            twice += e.logdet - np.einsum("ic,cij,jc->", Y, e.C, Y)
            twice -= V @ np.einsum("cij,ij->c", e.C, features.K)
        return float(twice) / 2


def _project(X: Floats, mean: Floats, sums: Sums, features: Features) -> Floats:
    """y_c = A'x_c for all coordinates, (I, n)."""
    centered = sums.AW - np.outer(features.ones, mean)
    return np.asarray(np.linalg.solve(X, centered.T).T)


def _likeliest_effects(
    prior: Prior, sums: Sums, features: Features, scales: Floats, certain: bool
) -> Effects:
    """Return effects whose scales are the likeliest, block after block."""
    values, E = np.linalg.eigh(prior.covariance)
    X = E * np.sqrt(np.maximum(values, 1e-300))
    Y = _project(X, prior.mean, sums, features)
    V = np.diag(_whiten(X, sums.S / sums.N))
    scales = scales.copy()
    for block, name in enumerate(features.directions.parts):
        evidence = scale_evidence(block, Y, V, features, scales)
        pays = evidence.max(axis=0).sum() > len(V) or name != MISSINGNESS
        if certain or pays or scales[block].any():
            scales[block] = SCALES[evidence.argmax(axis=0)]
    return posterior_effects(X, Y, features, scales)


def sample_effects(
    mean: Floats,
    variances: Floats,
    AW: Floats,
    features: Features,
    scales: Floats,
    rng: np.random.Generator,
) -> Effects:
    """Sample scales and effects given rows that are known, for independent coordinates."""
    X = np.diag(np.sqrt(variances))
    Y = (AW - np.outer(features.ones, mean)) / np.sqrt(variances)
    scales = scales.copy()
    for block in range(len(scales)):
        evidence = scale_evidence(block, Y, np.zeros(len(mean)), features, scales)
        # The largest of log-probabilities plus Gumbel noise is a sample.
        scales[block] = SCALES[
            (evidence + rng.gumbel(size=evidence.shape)).argmax(axis=0)
        ]
    return posterior_effects(X, Y, features, scales, rng)


def posterior_effects(
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
        factor = cho_factor(
            np.eye(len(at)) + r[:, None] * features.K[np.ix_(at, at)] * r
        )
        C[c][np.ix_(at, at)] = r[:, None] * cho_solve(factor, np.eye(len(at))) * r
        logdet += 2 * float(np.log(np.diag(factor[0])).sum())
        H[:, c] = C[c] @ Y[:, c]
        if rng is not None:  # C = r M^-1 r, M = U'U
            sample = np.linalg.solve(np.triu(factor[0]), rng.standard_normal(len(at)))
            H[at, c] += r * sample
    return Effects(scales, X, H @ X.T, C, logdet)


def scale_evidence(
    block: int, Y: Floats, V: Floats, features: Features, scales: Floats
) -> Floats:
    """Return log N(x_c; 0, 1 + A D_c A') over the block's scales, less that at 0: (scales, n).

    With Omega the covariance that other blocks leave and A_j'Omega^-1 A_j = E e E', it is
    -1/2 sum_i log(1 + s e_i) + 1/2 sum_i s E z_i^2 / (1 + s e_i), z = E'A_j'Omega^-1 x.
    """
    members = features.directions.members
    mine = members[block] > 0
    others = np.flatnonzero(members[block] == 0)
    s = SCALES[:, None]
    out = np.empty((len(SCALES), Y.shape[1]))
    bases: dict[
        bytes, Any
    ] = {}  # coordinates whose other blocks have equal scales share one
    for c in range(Y.shape[1]):
        D = (scales[:, c] @ members)[others]
        at = others[D > 0]
        key = D.tobytes()
        if key not in bases:
            bases[key] = _reduced_basis(features.K, mine, at, D[D > 0])
        e, E, G, square = bases[key]
        z = E.T @ (Y[mine, c] - G @ Y[at, c])
        expected = z**2 + V[c] * square
        gain = expected * s / (1 + s * e)
        out[:, c] = (gain - np.log1p(s * e)).sum(axis=1) / 2
    return out


def _reduced_basis(
    K: Floats, mine: Array, at: Array, D: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
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


@dataclass(frozen=True, eq=False)
class RowNoise:
    """E alpha and E 1 / alpha of a side's rows; `fixed` is the bound's part without the misfit."""

    nu: float
    weights: Floats
    variances: Floats
    fixed: float = 0.0

    @classmethod
    def equal(cls, count: int) -> RowNoise:
        """Return one noise for all."""
        return cls(np.inf, np.ones(count), np.ones(count))

    @property
    def unseen(self) -> float:
        """E 1 / alpha of a row without entries."""
        return float(self.nu / (self.nu - 2)) if np.isfinite(self.nu) else 1.0

    def take(self, pick: Ints) -> RowNoise:
        """Return the noise of some rows."""
        return replace(self, weights=self.weights[pick], variances=self.variances[pick])

    def with_unseen(self) -> RowNoise:
        """Return them with one more row at the end, that of a row never seen."""
        weights = np.append(self.weights, 1.0)
        variances = np.append(self.variances, self.unseen)
        return replace(self, weights=weights, variances=variances)

    def learn(self, counts: Array, misfits: Floats) -> RowNoise:
        """Return q(alpha) and nu for rows with these numbers of entries and misfits."""
        from scipy.optimize import minimize_scalar

        active = counts > 0
        n = counts[active].astype(float)
        e = np.maximum(misfits[active], 0)
        found = minimize_scalar(
            lambda log_nu: _noise_cost(np.exp(log_nu), n, e),
            bounds=np.log(NU_RANGE),
            method="bounded",
            options={"xatol": 0.05},
        )
        nu = float(np.exp(found.x))
        cost = float(found.fun)
        if cost >= e.sum() / 2:
            nu = np.inf
            cost = float(e.sum()) / 2
        noise = replace(RowNoise.equal(len(counts)), nu=nu)
        noise.variances[:] = noise.unseen
        noise.weights[active], noise.variances[active] = noise_shares(nu, n, e)
        return replace(noise, fixed=cost - float(noise.weights[active] @ e) / 2)


def noise_shares(nu: float, n: Any, e: Any) -> tuple[Any, Any]:
    """Return E alpha and E 1 / alpha of rows with n entries and the misfit e."""
    if not np.isfinite(nu):
        return np.ones_like(n), np.ones_like(n)
    return (nu + n) / (nu + e), (nu + e) / (nu + n - 2)


def _noise_cost(nu: float, n: Floats, e: Floats) -> float:
    """Return what alpha leaves in the negative evidence bound, summed over rows."""
    from scipy.special import gammaln

    half = nu / 2
    each = gammaln(half) - half * np.log(half) - gammaln(half + n / 2)
    return float(np.sum(each + (half + n / 2) * np.log(half + e / 2)))
