"""Theory of a fitted model: its regularizer, its norm, its generalization.

Everything is computed on the product of the factors (biases and mean apart), in the units of the
values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from overt._check import Floats, InputError
from overt.completion import DropoutCompletion
from overt.results import Result


@dataclass(frozen=True, repr=False, eq=False)
class Bound(Result):
    """Theorem 11: with probability 1 - delta, risk <= empirical risk + complexity.

    Attributes
    ----------
    risk
        The bound on the expected squared error of the clipped predictions, in squared units of
        the values.
    empirical
        Mean squared error on the observed entries.
    complexity
        What is added to it: 8 sqrt((2 K^2 alpha d log d + log(2 / delta) / 4) / n) in the units
        of the theorem, whose matrix has entries in [-1, 1].
    alpha
        n_factors times the explicit regularizer R (without lam), in those units.
    constant
        K of the Rademacher bound, 1 as printed; by default the proved `rademacher_constant`.
    delta
        Probability with which the bound may fail.
    vacuous
        Whether it exceeds the error of predicting the middle of the range everywhere.
    """

    risk: float
    empirical: float
    complexity: float
    alpha: float
    constant: float
    delta: float
    vacuous: bool


def rademacher_constant(shape: tuple[int, int]) -> float:
    """K = sqrt(2 L) + L / 3 with L = log(d0 + d2) / log(max(d0, d2)): 2.7 for 2 x 2, at least 1.7.

    The complexity of {|diag(sqrt p) M diag(sqrt q)|_* <= sqrt(alpha)} is sqrt(alpha) / n times
    E|sum_j eps_j e_a e_b' / sqrt(p_a q_b)|_2. Its terms are independent with mean 0, norms of at
    most sqrt(n d / log d) where p q >= log(d) / (n sqrt(d0 d2)), and variances that sum to
    n d, d = max(d0, d2): Bernstein's inequality for matrices (Tropp 2015, Theorem 6.1.1) gives
    sqrt(2 n d log(d0 + d2)) + sqrt(n d / log d) log(d0 + d2) / 3. No smaller K than 1.558 can hold
    for every size: 2 x 2, three entries, uniform, over all samples and signs.
    """
    d = max(*shape, 2)
    L = float(np.log(max(sum(shape), 3)) / np.log(d))
    return float(np.sqrt(2 * L) + L / 3)


def _factors(model: DropoutCompletion) -> tuple[Floats, Floats]:
    """Return U and V, whose product is in the units of the values."""
    if model.missing == "negative":
        raise InputError(
            'with missing="negative" a model predicts choices, not values: the theorem is about '
            'values (missing="unknown")'
        )
    return model.U_.astype(float), model.V_.astype(float)


def explicit_regularizer(model: DropoutCompletion) -> float:
    """R = mean over entries of sum_i U_ai^2 V_bi^2 (thesis, Proposition 3, without lam)."""
    U, V = _factors(model)
    entries = model.entries_
    squares = np.einsum("ei,ei->e", U[entries.rows] ** 2, V[entries.cols] ** 2)
    return float(squares.mean())


def weighted_trace_norm(model: DropoutCompletion) -> float:
    """|diag(sqrt p) U V' diag(sqrt q)|_*, p and q the observed row and column frequencies."""
    U, V = _factors(model)
    entries = model.entries_
    p = np.bincount(entries.rows, minlength=len(U)) / len(entries)
    q = np.bincount(entries.cols, minlength=len(V)) / len(entries)
    left = np.linalg.qr(np.sqrt(p)[:, None] * U).R
    right = np.linalg.qr(np.sqrt(q)[:, None] * V).R
    return float(np.linalg.svd(left @ right.T, compute_uv=False).sum())


def generalization_bound(
    model: DropoutCompletion, delta: float = 0.05, constant: float | None = None
) -> Bound:
    """L(g(UV')) <= Lhat + 8 sqrt((2 K^2 alpha d2 log d2 + log(2/delta)/4)/n) (thesis, Theorem 11).

    Assumes that entries are sampled independently from a product law p(row) q(column) with
    p q >= log(d2) / (n sqrt(d2 d0)), and values in [-1, 1]: the values less the biases are scaled
    by their largest size. d2 is the larger side. The theorem bounds the risk by the smallest
    regularizer of the same product, so the balanced factors' value is used where it is smaller.
    """
    if not 0 < delta < 1:
        raise InputError(f"delta must be below 1, and above 0, got {delta}")
    entries = model.entries_
    if constant is None:
        constant = rademacher_constant(entries.shape)
    U, V = _factors(model)
    rows = entries.rows
    cols = entries.cols
    biases = model.mean_ + model.row_bias_[rows] + model.col_bias_[cols]
    target = entries.values - biases
    scale = float(np.abs(target).max()) or 1.0
    product = np.einsum("ei,ei->e", U[rows], V[cols])
    empirical = float(np.mean((target - np.clip(product, -scale, scale)) ** 2))
    flat = U.shape[1] * explicit_regularizer(model)
    alpha = min(flat, weighted_trace_norm(model) ** 2) / scale**2
    d = max(*entries.shape, 2)
    inside = 2 * constant**2 * alpha * d * np.log(d) + np.log(2 / delta) / 4
    complexity = float(8 * np.sqrt(inside / len(entries)))
    risk = empirical + complexity * scale**2
    vacuous = risk >= float(np.mean(target**2))
    return Bound(risk, empirical, complexity, alpha, constant, delta, vacuous)
