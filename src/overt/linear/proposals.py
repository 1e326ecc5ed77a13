"""Witnesses of proofs: singular vectors, thresholds, costs and multipliers that make bounds tight.

All of them are proposals: a bad one makes the bound that the checker evaluates loose, never wrong.
docs/howto/proofs.md derives the inequalities. Needs python-flint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import flint
import numpy as np

from overt._types import Floats
from overt.linear import balls
from overt.linear.bounds import Envelope, spectral_bound
from overt.linear.checker import Matrix, Problem, RefusedError, dominated
from overt.linear.effect import NoiseEffect
from overt.linear.shares import UnitShares
from overt.linear.unit_sets import certified_pieces
from overt.spectral import KSupport, Schatten

PRECISION = 192
"""Bits of the arithmetic."""

SETS_SLACK = 1e-11
"""Share of the matrix that sets of units leave to single units, to absorb rounding."""

SLACK = 1e-12
"""Share of the matrix by which costs are lowered, so that the difference can be shown positive."""


def complete(
    document: dict[str, Any], given: Mapping[str, Floats], effect: NoiseEffect
) -> Problem:
    """Return the problem of a proof file, its witness completed with what is not there yet."""
    problem = Problem(document, balls.Exact.read)
    with flint.ctx.workprec(PRECISION):
        if problem.C is not None:
            _show_positive(given["C"], problem.C, problem.witness)
        if problem.correlated:
            _operator(problem, given, effect)
        else:
            _basis(problem, given)
            s = np.zeros(problem.width)
            found = problem.singular_values[: problem.width]
            s[: len(found)] = [float(x) for x in found]
            if problem.Gamma is not None:
                _costs(problem, problem.Gamma, s, effect)
            elif (
                problem.network == "deep" and sum(x > 0 for x in problem.strengths) > 1
            ):
                _shares(problem, found, effect)
            elif "thresholds" not in problem.witness:
                delta, gamma, band = problem.costs()
                costs = UnitShares(np.array([float(x) for x in delta]))
                proposed = (
                    block_thresholds(s, float(gamma), band)
                    if band
                    else costs.multipliers(s)
                )
                problem.witness["thresholds"] = stored(proposed)
    return problem


def _shares(problem: Problem, s: list[Fraction], effect: Any) -> None:
    """Add dual points for the shares of a deep network's layers."""
    if "shares" in problem.witness:
        return
    values = np.array([float(x) for x in s])
    if values[0] == 0:
        values[0] = 1.0  # any points will do
    problem.witness["shares"] = [
        {"multipliers": stored(dual.mu), "points": stored(dual.pi)}
        for dual in effect.dual_points(np.maximum(values, 1e-9 * values[0]))
    ]


def stored(value: Any) -> Any:
    """Return a matrix, exact balls or integers, as the proof file holds it."""
    if value is None or isinstance(value, (list, int, str)):
        return value
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, np.ndarray):
        return np.vectorize(float.hex, otypes=[object])(value).tolist()
    return [[balls.hexadecimal(x) for x in row] for row in value.tolist()]


def _show_positive(C: Floats, exact: Matrix, witness: dict[str, Any]) -> None:
    """Add Z such that Z'C Z is strictly dominated by its diagonal, if one is found."""
    scale = np.sqrt(np.maximum(np.diag(C), 1e-300))
    Z = _dominating(C / np.outer(scale, scale)) / scale[:, None]
    if np.isfinite(Z).all() and dominated(exact, balls.Exact.read(stored(Z))):
        witness["positive"] = stored(Z)


def _dominating(D: Floats) -> Floats:
    """Propose Z with Z'D Z = I."""
    values, vectors = np.linalg.eigh((D + D.T) / 2)
    return np.asarray(vectors / np.sqrt(np.maximum(values, 1e-300)))


def _operator(
    problem: Problem, given: Mapping[str, Floats], effect: NoiseEffect
) -> None:
    """Propose what the best map leaves over, N in place of the target T, and its basis."""
    if "multiplier" not in problem.witness:
        task, best = effect.regression.dense("prove"), effect.relaxation
        N = best.multiplier
        if N is None:  # in closed form, as inputs are uncorrelated up to rounding
            N = task.T - best.left * best.spectrum @ best.right.T
        M = given["Y"].T if problem.X is not None else given["target"]
        left = np.zeros_like(M)
        if problem.strengths[0] and task.L_inverse is not None:
            back = (
                task.L_inverse if problem.X is None else task.L_inverse @ given["X"].T
            )
            left = M + (N - task.T) @ back
        problem.witness["multiplier"] = stored(left)
    if "basis" not in problem.witness:
        problem.witness["basis"] = stored(
            balls.eigenvectors(balls.around(problem.operator[1]))
        )


def _basis(problem: Problem, given: Mapping[str, Floats]) -> None:
    """Propose singular vectors of the target, and for data a root that spans the inputs."""
    witness = problem.witness
    wanted = problem.X is not None and "inverse_root" not in witness
    if wanted and not np.array_equal(given["X"], given["Y"]):
        X = given["X"]
        singular = np.linalg.svd(
            X / (np.linalg.norm(X, axis=0) + 1e-300), compute_uv=False
        )
        found = balls.relations(X) if singular[-1] < 1e-13 * singular[0] else []
        rank = X.shape[1] - len(found)
        if rank < len(X):
            root = stored(balls.inverse_root(X, rank))
            witness |= {"inverse_root": root, "relations": found}
    try:
        K = problem.gram[0]
    except RefusedError:  # the target itself bounds it, too
        witness |= {"inverse_root": None, "relations": []}
        K = problem.gram[0]
    if "basis" not in witness:
        weak = (
            max(problem.strengths, default=1) < 1e-3
        )  # the bound is then a small share of |M|^2
        witness["basis"] = stored(balls.eigenvectors(balls.around(K), 2 if weak else 1))


def _costs(problem: Problem, exact: Matrix, s: Floats, effect: NoiseEffect) -> None:
    """Add the costs of the best envelope, thresholds, and Z that shows them to be below Gamma.

    If Gamma - diag(delta) - gamma 1 1' is positive definite, the noise costs at least as much as
    units with these costs (`UnitShares`); with zeros in place of delta, and Gamma_ij = 0 for
    |i - j| >= band, it costs at least gamma times the squared k-support norm, k = band.
    """
    witness = problem.witness
    if "gamma" in witness or "sets" in witness:
        return
    untied: Any = getattr(effect, "untied", effect)
    Gamma = untied.noise.characteristic(problem.width)
    lowered = [_lowered(envelope, Gamma) for envelope in untied.sharing.envelopes()]
    ordered = sorted(lowered, key=lambda envelope: -spectral_bound(s, 0.0, envelope))
    if not untied.sharing.exact:
        best = spectral_bound(s, 0.0, ordered[0])
        if _sets(problem, np.asarray(Gamma, dtype=float), s, best):
            return
    for found in _proposed(ordered[:3], Gamma, s):
        new = {
            name: stored(value) for name, value in found.items() if name not in witness
        }
        witness |= new
        try:
            problem.below(exact)
        except RefusedError:
            for name in new:
                del witness[name]
        else:
            return


def _sets(problem: Problem, Gamma: Floats, s: Floats, least: float) -> bool:
    """Add sets of units whose bound is above `least`, if there are any."""
    slack = SETS_SLACK * float(np.abs(Gamma).max())
    count = len(problem.singular_values[: problem.width])
    pieces = certified_pieces(Gamma, s[:count], slack)
    if pieces is None or np.sum(s**2) - sum(piece.gain for piece in pieces) <= least:
        return False
    problem.witness["slack"] = stored(slack)
    problem.witness["sets"] = [
        {"units": list(p.units), "root": stored(p.root), "loads": stored(p.loads)}
        for p in pieces
    ]
    return True


def _proposed(
    envelopes: list[UnitShares | tuple[float, KSupport]], Gamma: Floats, s: Floats
) -> Iterator[dict[str, Any]]:
    for envelope in envelopes:
        found: dict[str, Any]
        if isinstance(envelope, UnitShares):
            delta, gamma = envelope.delta, envelope.gamma
            found = {"gamma": gamma, "delta": delta}
            if gamma > -1:
                found["thresholds"] = envelope.multipliers(s)
        else:
            delta, gamma, band = np.zeros(len(Gamma)), envelope[0], envelope[1].k
            found = {
                "gamma": gamma,
                "band": band,
                "thresholds": block_thresholds(s, gamma, band),
            }
        Z = _dominating(Gamma - np.diag(delta) - gamma)
        if np.isfinite(Z).all():
            yield found | {"dominated": Z}


def _lowered(envelope: Envelope, Gamma: Floats) -> UnitShares | tuple[float, KSupport]:
    """Return an envelope that is a little lower."""
    slack, d = SLACK * float(np.abs(Gamma).max()), len(Gamma)
    if isinstance(envelope, UnitShares):
        return UnitShares(
            np.maximum(envelope.delta - slack, 0.0), envelope.gamma - slack / d
        )
    weight, norm = envelope
    if isinstance(norm, KSupport) and norm.k > 1:
        return weight * (1 - 1e-9), norm
    if isinstance(norm, Schatten):
        return UnitShares(np.zeros(d), weight * (1 - 1e-9))
    return UnitShares(np.full(d, max(weight * d - slack, 0.0)), -slack / d)


def block_thresholds(s: Floats, w: float, block: int) -> Floats:
    """Propose the g that raise |s|^2 - sum (s_i - g_i)_+^2 - (block largest g_i^2) / w most."""
    if w == 0:
        return np.zeros_like(s)
    a = np.asarray(KSupport(block).prox(s, w))
    free = (a > 0) & (a < s / (1 + w) * (1 - 1e-12))
    tau = float(np.median((s - a)[free])) if free.any() else 0.0
    if not free.any() and len(s) > block:
        tau = float(s[block])
    return np.maximum(s * w / (1 + w), tau)
