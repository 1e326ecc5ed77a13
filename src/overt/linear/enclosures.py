"""Enclosures of a noisy linear network's objective and of a bound below it, in ball arithmetic.

The bound follows by weak duality from singular vectors, thresholds or multipliers that are only
proposals: a bad one makes it loose, never wrong. docs/howto/proofs.md derives the inequalities.
For data everything is multiplied by the number of samples. Needs python-flint.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import flint
import numpy as np

from overt._types import Floats
from overt.linear import balls, below
from overt.linear.balls import dot
from overt.linear.effect import NoiseEffect
from overt.linear.shares import UnitShares

PRECISION = 192
"""Bits of the ball arithmetic; twice as many for data, whose inputs may be near singular."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Exact numbers: E|y - A x|^2 for y = M x with second moment C, or data X with M = Y'."""

    network: str
    M: Floats
    C: Floats | None
    X: Floats | None
    kind: str
    drop_prob: tuple[float, ...]
    block: int
    Gamma: Floats | None
    weights: tuple[Floats, ...]

    @property
    def samples(self) -> int:
        """How many there are; 1 without data."""
        return 1 if self.X is None else len(self.X)

    @property
    def strengths(self) -> list[Fraction]:
        """lam = p / (1 - p) of each unit, of all, or of each layer."""
        return [Fraction(p) / (1 - Fraction(p)) for p in self.drop_prob]

    @property
    def width(self) -> int:
        """Hidden units; those of the narrowest layer if deep."""
        if self.network == "deep":
            return min(len(W) for W in self.weights[:-1])
        return int(self.weights[0].shape[1])

    @property
    def costs(self) -> list[Fraction]:
        """lam_i, increasing, with penalty >= sum_i lam_i x_i^2 over units that carry x_i."""
        lam, d = self.strengths, self.width
        if self.network == "deep":
            pairs = zip(lam, self.weights, strict=False)
            nu = math.prod((1 + c / len(W) for c, W in pairs), start=Fraction(1)) - 1
            return [nu * d] * d
        return sorted(lam) if self.kind == "dropout" else lam * d

    @property
    def correlated(self) -> bool:
        """Whether DropConnect differs from Dropout."""
        if self.kind != "dropconnect":
            return False
        C = self.C
        return self.X is not None or (C is not None and bool(np.any(C - np.diag(np.diag(C)))))

    @property
    def inputs(self) -> Floats:
        """X, or C where there are no data."""
        if self.X is not None:
            return self.X
        return np.eye(self.M.shape[1]) if self.C is None else self.C

    def moment(self, V: Any) -> Any:
        """V'C V."""
        if self.X is not None:
            V = balls.balls(self.X) * V
        return V.transpose() * (V if self.C is None else balls.balls(self.C) * V)

    @property
    def variances(self) -> list[Any]:
        """The diagonal of C, in balls."""
        if self.X is not None:
            return [dot(x, x) for x in (balls.balls(column[None]) for column in self.X.T)]
        return [flint.arb(x) for x in np.diag(self.inputs).tolist()]


def enclose(
    problem: Problem, effect: NoiseEffect, witness: dict[str, Any]
) -> tuple[Fraction, Fraction]:
    """Return (above, below): at least the objective, at most that of any weights.

    The witness is completed with what was proposed.
    """
    with flint.ctx.workprec(PRECISION * (1 if problem.X is None else 2)):
        above = objective(problem) / problem.samples
        bound = operator_bound if problem.correlated else spectral_bound
        least = bound(problem, effect, witness) / problem.samples
        if not (above.is_finite() and least.is_finite()):
            raise ArithmeticError("nothing could be proved: numbers are too large or too small")
        if problem.C is not None:
            show_positive(problem.C, witness)
        return balls.fraction(above.upper()), balls.fraction(least.lower())


def objective(problem: Problem) -> Any:
    """Return a ball around the objective."""
    weights = [balls.balls(W) for W in problem.weights]
    U, V = weights[0], weights[-1]
    if problem.network == "deep":
        U, V = weights[1], weights[0].transpose()
        for W in weights[2:]:
            U = W * U
    P = problem.moment(V)
    outputs = V if problem.X is None else balls.balls(problem.X) * V
    R = balls.balls(problem.M) - U * outputs.transpose()
    loss = dot(R, R if problem.C is None else R * balls.balls(problem.C))
    if problem.network == "deep":
        return loss + _deep_penalty(problem, weights, U, P)
    G, b, lam = U.transpose() * U, problem.block, [balls.ratio(x) for x in problem.strengths]
    if problem.kind == "dropconnect":
        rows = [[d * x for x in row] for d, row in zip(problem.variances, V.tolist(), strict=True)]
        P = V.transpose() * flint.arb_mat(rows)
    if problem.Gamma is not None:
        pairs = zip(G.entries(), P.entries(), problem.Gamma.ravel().tolist(), strict=True)
        return loss + sum((g * p * c for g, p, c in pairs), flint.arb(0))
    for i in range(U.ncols()):
        mates = range(i - i % b, i - i % b + b)
        strength = lam[i if problem.kind == "dropout" else 0]
        loss += strength * sum((G[i, j] * P[i, j] for j in mates), flint.arb(0))
    return loss


def _deep_penalty(problem: Problem, weights: Sequence[Any], U: Any, S: Any) -> Any:
    """Second moments from layer to layer: T = S + lam diag(S), S = W T W'."""
    plain = (U * S * U.transpose()).trace()
    for lam, W in zip(problem.strengths, weights[1:], strict=True):
        for i in range(S.nrows()):
            S[i, i] = S[i, i] * balls.ratio(1 + lam)
        S = W * S * W.transpose()
    return S.trace() - plain


def spectral_bound(problem: Problem, effect: NoiseEffect, witness: dict[str, Any]) -> Any:
    """|M|^2 - sum_i (s_i - g_i)_+^2 - cost(g), from above on the singular values s of the target.

    cost(g) = sum_i g_i^2 / lam_i for Dropout, (sum of the b largest g_i^2) d / (b lam) for blocks.
    """
    M = balls.balls(problem.M)
    s = _singular_values_below(problem, M, witness)[: problem.width]
    padded = np.zeros(problem.width)
    padded[: len(s)] = [float(x) for x in s]
    bound = dot(M, M if problem.C is None else M * balls.balls(problem.C))
    if problem.Gamma is not None:
        return bound - below.gain(problem.Gamma, s, padded, effect, witness)
    lam = problem.costs
    if "thresholds" not in witness:
        if problem.kind == "dropblock":
            w = float(lam[0]) * problem.block / problem.width
            witness["thresholds"] = below.block_thresholds(padded, w, problem.block)
        else:
            units = UnitShares(np.array([float(x) for x in lam]))
            witness["thresholds"] = units.multipliers(padded)
    g = [flint.arb(float(y)) for y in witness["thresholds"]]
    for x, y in zip(s, g, strict=False):
        bound -= balls.positive(x - y) ** 2
    if problem.kind == "dropblock":
        ordered = sorted(g, key=float)[-problem.block :]
        lam, g = [problem.strengths[0] * problem.block / problem.width] * len(ordered), ordered
    return bound - below.cost(g, [balls.ratio(c) for c in lam])


def _singular_values_below(problem: Problem, M: Any, witness: dict[str, Any]) -> list[Any]:
    """Return upper bounds on the singular values of the whitened target; eigenvalues if tied."""
    symmetric = problem.network == "tied" and problem.C is None and problem.X is None
    shrink = flint.arb(1)
    if symmetric:
        K = M + M.transpose()
    elif problem.C is not None:
        K = M * (balls.balls(problem.C) * M.transpose())
    else:
        if problem.X is not None:
            M, shrink = _project(problem.X, M, witness)
        K = M.transpose() * M if M.ncols() <= M.nrows() else M * M.transpose()
    if "basis" not in witness:
        weak = max(problem.strengths, default=1) < 1e-3  # the bound is then a small share of |M|^2
        witness["basis"] = balls.eigenvectors(K, 2 if weak or K.nrows() <= 150 else 1)
    values = balls.eigenvalues_below(K, witness["basis"])
    return [x / 2 if symmetric else (x / shrink).upper().sqrt().upper() for x in values]


def _project(X: Floats, M: Any, witness: dict[str, Any]) -> tuple[Any, Any]:
    """Return M X R and 1 - |(X R)'X R - I|, which bound M on the row space of X' from above.

    Without R, where X has no fewer features than samples or none could be verified, M itself does.
    """
    if "inverse_root" not in witness:
        reproduced = M.ncols() == len(X) and np.array_equal(balls.floats(M), X.T)
        singular = np.linalg.svd(X / (np.linalg.norm(X, axis=0) + 1e-300), compute_uv=False)
        short = len(singular) < X.shape[1] or singular[-1] < 1e-13 * singular[0]
        found = balls.relations(X) if short and not reproduced else []
        rank = X.shape[1] - len(found)
        if reproduced or rank >= len(X):
            return M, flint.arb(1)
        witness |= {"inverse_root": balls.inverse_root(X, rank), "relations": found}
    XR = balls.balls(X) * witness["inverse_root"]
    left = 1 - balls.distance_from_identity(XR.transpose() * XR)
    if not left > 0:
        witness |= {"inverse_root": None, "relations": []}
        return M, flint.arb(1)
    return M * XR, left


def operator_bound(problem: Problem, effect: NoiseEffect, witness: dict[str, Any]) -> Any:
    """2 <Y C, M> - <Y C, Y> - lambda_max(Y C D^-1 C Y') d / lam; for data Y in place of Y C."""
    M, lam = balls.balls(problem.M), problem.strengths[0]
    if "multiplier" not in witness:
        witness["multiplier"] = _multiplier(problem, effect) if lam else np.zeros_like(problem.M)
    Y = balls.balls(np.asarray(witness["multiplier"], dtype=float))
    YC = Y * balls.balls(problem.inputs)
    flat = Y if problem.C is None else YC
    pairs = zip(YC.transpose().tolist(), problem.variances, strict=True)
    scaled = [[y / d for y in row] if any(row) else row for row, d in pairs]
    K = YC * flint.arb_mat(scaled)
    if "basis" not in witness:
        witness["basis"] = balls.eigenvectors(K)
    top = balls.eigenvalues_below(K, witness["basis"])[0]
    bound = 2 * dot(flat, M) - dot(flat, Y)
    return bound - top * problem.width / balls.ratio(lam) if lam else bound


def _multiplier(problem: Problem, effect: NoiseEffect) -> Floats:
    """Propose what the best map leaves over: the dual point N in place of the target T."""
    task, N = effect.regression.dense("prove"), effect.relaxation.multiplier
    if N is None or task.L_inverse is None:
        return np.zeros_like(problem.M)
    back = task.L_inverse if problem.X is None else task.L_inverse @ problem.X.T
    return np.asarray(problem.M + (N - task.T) @ back)


def show_positive(C: Floats, witness: dict[str, Any]) -> None:
    """Add Z such that Z'C Z is strictly dominated by its diagonal, if one is found."""
    scale = np.sqrt(np.maximum(np.diag(C), 1e-300))
    Z = balls.dominating(C / np.outer(scale, scale)) / scale[:, None]
    if balls.dominated(balls.balls(C), Z):
        witness["positive"] = Z
