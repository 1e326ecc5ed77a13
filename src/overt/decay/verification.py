"""Whether a matrix is the product of a local minimum, from second derivatives at full width."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from overt._types import Floats
from overt.decay import layers
from overt.decay.search import numerical_rank, polish
from overt.entries import Entries
from overt.results import Result
from overt.spectral import factorization_cost

_KINDS = {-1: "underestimating", 0: "exact", 1: "overestimating"}
_STATIONARY = 1e-9
_FLAT = 1e-7  # curvatures below this fraction of the largest count as zero


class FittingRank(int):
    """The smallest rank for which descent fits, with what is known for certain about it.

    Attributes
    ----------
    at_least
        Rank of a block that is observed whole: no matrix of smaller rank fits.
    """

    at_least: int

    def __new__(cls, rank: int, at_least: int = 0) -> FittingRank:
        """Make the whole number `rank` with its lower bound."""
        self = super().__new__(cls, rank)
        self.at_least = at_least
        return self

    @property
    def proved(self) -> bool:
        """Whether the bound is attained; otherwise that no smaller rank fits is a guess."""
        return self.at_least == self

    def __repr__(self) -> str:
        """Show a guess as a guess."""
        if self.proved:
            return f"{int(self)} (proved)"
        return f"{int(self)} (a guess: at least {self.at_least}, and descent fits nothing smaller)"


@dataclass(frozen=True, repr=False, eq=False)
class Minimum(Result):
    """A local minimum of the regularized loss.

    Attributes
    ----------
    rank, matrix
        The minimum.
    loss, cost
        C(A) + lam L sum s^(2/L), and C(A) alone.
    kind
        "underestimating", "exact" or "overestimating": its rank against the smallest rank that
        fits the observed entries.
    kind_proved
        Whether that is more than a guess (`FittingRank`).
    isolated, dimension
        False if minima of the same loss go on from it; then `dimension` is that of the set they
        form (as matrices, near this one), and this is one of them.
    verified
        Whether the factorized loss of full width has a vanishing gradient, no negative curvature
        and no flat direction there, but those of the symmetry and of the set of minima.
    gradient, curvature
        Largest gradient entry, and smallest eigenvalue of the second derivative beyond those zeros.
    imbalance
        max_l |W_l W_l' - W_(l+1)' W_(l+1)|; 0 at critical points.
    proof
        "closed form" if it lies on the explicit curve of the 2 x 2 family, "origin" for rank 0
        (a minimum for every lam > 0 if L > 2), otherwise "numeric".
    """

    rank: int
    matrix: Floats
    loss: float
    cost: float
    kind: str
    kind_proved: bool
    isolated: bool
    dimension: int
    verified: bool
    gradient: float
    curvature: float
    imbalance: float
    proof: str


def verify(
    problem: Entries, A: Floats, depth: int, lam: float, known: FittingRank, proof: str
) -> Minimum:
    """Grade a candidate in the network of full width, from the problem's data alone."""
    rank, width = numerical_rank(A), min(problem.shape)
    weights = layers.balanced(A, depth, width, rank)
    gradient = float(np.abs(layers.flatten(layers.gradient(problem, weights, lam))).max())
    H = layers.hessian(problem, weights, lam)
    eigenvalues = np.linalg.eigvalsh(H)
    flat = int(np.sum(np.abs(eigenvalues) <= _FLAT * eigenvalues[-1]))
    # Each hidden layer's r directions can turn inside the width: a Stiefel manifold per layer.
    symmetry = (depth - 1) * (rank * width - rank * (rank + 1) // 2)
    stationary = gradient <= _STATIONARY * max(1.0, float(np.abs(problem.values).max()))
    dimension = max(0, flat - symmetry)
    outside = np.delete(eigenvalues, np.argsort(np.abs(eigenvalues))[: symmetry + dimension])
    curvature = float(outside.min())
    minimum = stationary and curvature > 0
    if minimum and dimension:
        minimum = _goes_on(problem, weights, lam, H, dimension)
    cost, s = layers.cost(problem, A), np.linalg.svd(A, compute_uv=False)
    loss, imbalance = cost + lam * float(factorization_cost(s, depth)), layers.imbalance(weights)
    kind = _KINDS[int(np.sign(rank - known))]
    kind_proved = known.proved or rank < known.at_least or rank > known
    return Minimum(
        rank=rank, matrix=A, loss=loss, cost=cost, kind=kind, kind_proved=kind_proved,
        isolated=dimension == 0, dimension=dimension, verified=bool(minimum), gradient=gradient,
        curvature=curvature, imbalance=imbalance, proof=proof,
    )  # fmt: skip


def _goes_on(
    problem: Entries, weights: layers.Layers, lam: float, H: Floats, dimension: int
) -> bool:
    """Return whether minima of the same loss go on in all flat directions beyond the symmetry's.

    From a step h in a random one, Newton steps must lead to a critical point of the same loss by a
    way of order h^2; a direction that is flat to second order only takes them back all of h.
    """
    theta, shapes = layers.flatten(weights), [(len(W), W.shape[1]) for W in weights]
    values, vectors = np.linalg.eigh(H)
    flat = vectors[:, np.argsort(np.abs(values))]
    turns = _turns(weights)
    flat = flat[:, : dimension + np.linalg.matrix_rank(turns, tol=1e-8)]
    U, sizes, _ = np.linalg.svd(turns, full_matrices=False)
    Q = U[:, sizes > 1e-8]
    beyond = np.linalg.svd(flat - Q @ (Q.T @ flat))[0][:, :dimension]
    rng, before = np.random.default_rng(0), layers.loss(problem, weights, lam)
    for _ in range(2):
        way = beyond @ rng.standard_normal(dimension)
        h = 1e-2 * float(np.linalg.norm(theta))
        start = theta + h * way / np.linalg.norm(way)
        after = polish(problem, layers.unflatten(start, shapes), lam)
        gradient = layers.flatten(layers.gradient(problem, after, lam))
        if (
            np.abs(gradient).max() > _STATIONARY
            or abs(layers.loss(problem, after, lam) - before) > 1e-9 * before
            or np.linalg.norm(layers.flatten(after) - start) > 0.1 * h
        ):
            return False
    return True


def _turns(weights: layers.Layers) -> Floats:
    """Return the tangents of the symmetry, K W_l and -W_(l+1) K for antisymmetric K, as columns."""
    columns = [np.zeros(sum(W.size for W in weights))]
    for layer in range(len(weights) - 1):
        for p, q in combinations(range(len(weights[layer])), 2):
            change = [np.zeros_like(W) for W in weights]
            change[layer][p], change[layer][q] = weights[layer][q], -weights[layer][p]
            change[layer + 1][:, q] = -weights[layer + 1][:, p]
            change[layer + 1][:, p] = weights[layer + 1][:, q]
            columns.append(layers.flatten(change))
    return np.stack(columns, axis=1)
