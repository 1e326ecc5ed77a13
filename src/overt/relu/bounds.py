"""Thesis, section 4.3: what bounds the capacity of two-layer ReLU networks trained with dropout.

    f(x) = u . sigma(V'x),  psi_i = |u_i| a_i,  a_i^2 = E sigma(v_i.x)^2,  alpha = sum_i psi_i

The class F_alpha holds the networks, of any width, with sum_i |u_i| a_i <= alpha. Dropout controls
alpha: alpha <= sqrt(width R), R = sum_i psi_i^2 the penalty at lam = 1. Expectations are over the
law of the inputs; with data in its place the numbers describe the law of those data, so alpha
should be measured on points that training has not seen. Hidden biases are weights of a constant
input: append a column of ones to X.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from array_api_compat import is_torch_array

from overt import _check
from overt._check import (
    Array,
    Floats,
    InputError,
    bounded,
    doubles,
    namespace,
    number,
    whole,
)
from overt.results import Result


@dataclass(frozen=True, repr=False, eq=False)
class RiskBound(Result):
    """With probability 1 - delta, risk <= factor * empirical + complexity + confidence = value.

    Attributes
    ----------
    value
        The bound on the expected squared error of the predictions clipped to [-1, 1].
    factor, empirical
        Weight of the mean squared error on the sample, and that error, of clipped predictions.
    complexity
        What the Rademacher complexity of the class adds.
    confidence
        What the probability delta of failing adds.
    vacuous
        Whether the bound says nothing: predicting 0 has a squared error of at most 1.
    assumes
        What must hold for the bound to be one.
    """

    value: float
    factor: float
    empirical: float
    complexity: float
    confidence: float
    alpha: float
    retentivity: float
    delta: float
    n: int
    vacuous: bool
    assumes: str


@bounded
def flows(U: Array, activations: Array) -> Array:
    """psi_i = |u_i| a_i, a_i^2 = mean over samples of a_i(x)^2 (thesis, section 4.6).

    What unit i contributes to the output. `U` is outputs x width, `activations` samples x width;
    NumPy or PyTorch, with gradients, which are 0 at dead units.
    """
    U, A = _check.matrix("U", U), _check.matrix("activations", activations)
    _check.same_library(U=U, activations=A)
    if U.shape[1] != A.shape[1]:
        raise InputError(
            "activations (samples x width) and U (outputs x width) must have the same number of "
            f"columns, got {tuple(A.shape)} and {tuple(U.shape)}"
        )
    norm = namespace(U, A).linalg.vector_norm
    return norm(U, axis=0) * (norm(A, axis=0) / math.sqrt(A.shape[0]))


def capacity(psi: Array) -> float:
    """alpha = sum_i psi_i, the size of the class F_alpha that holds the network (eq. 4.5)."""
    psi = _flows(psi)
    return float(namespace(psi).sum(psi))


def coadaptation(psi: Array) -> float | None:
    """phi = |psi|_1 / (sqrt(width) |psi|_2), in [1/sqrt(width), 1] (thesis, section 4.6).

    1 where all units contribute alike, 1/sqrt(width) where a single unit does everything. None
    for a network whose flows are all zero.
    """
    psi = _flows(psi)
    xp = namespace(psi)
    largest = float(xp.max(psi))
    if largest == 0:
        return None
    share, width = psi / largest, math.prod(psi.shape)
    return float(xp.sum(share)) / math.sqrt(width * float(xp.sum(share * share)))


def positive_norm(X: Floats, second_moment: Floats | None = None) -> float:
    """|X|_(C+) = sqrt(sum_i x_i' C+ x_i), C+ the pseudo-inverse of C = E[x x'].

    With C from the same data (the default) it is sqrt(n rank(X)). Infinite where a row of X leaves
    the range of C: the law with that C never samples it.
    """
    X = doubles("X", X, ndim=2)
    C = _check.second_moment(second_moment, X.shape[1])
    if C is None:
        return math.sqrt(len(X) * int(np.linalg.matrix_rank(X)))
    values, vectors = np.linalg.eigh(doubles("second_moment", C))
    if values[0] < -1e-6 * np.abs(values).max():
        raise InputError(
            f"second_moment must have no negative eigenvalue, got {values[0]:.4g}: it is E[x x']"
        )
    kept = values > values[-1] * len(values) * np.finfo(float).eps
    peak = float(np.abs(X).max()) or 1.0  # squares of large numbers would overflow
    along = X / peak @ vectors
    if np.linalg.norm(along[:, ~kept]) > 1e-6 * np.linalg.norm(along):
        return math.inf
    with np.errstate(
        over="ignore"
    ):  # infinite, as the law has almost no variance there
        return peak * float(np.sqrt(np.sum(along[:, kept] ** 2 / values[kept])))


def rademacher_upper(alpha: float, norm: float, n: int, retentivity: float) -> float:
    """R_S(F_alpha) <= 2 alpha |X|_(C+) / (n sqrt(beta)) (thesis, Theorem 12).

    Assumes inputs whose law is beta-retentive, E sigma(v.x)^2 >= beta E(v.x)^2 for every v, and a
    single output. `norm` is `positive_norm` of the sample; the expected complexity obeys the same
    with norm = sqrt(n rank(C)). The bound grows as beta falls, so a retentivity that errs on the
    large side (see `overt.relu.retentivity`) makes it too small. Infinite for beta = 0.
    """
    beta, slope = _retentivity(retentivity), _slope(alpha, norm, n)
    return 2 * slope / math.sqrt(beta) if beta else math.inf


def rademacher_lower(alpha: float, norm: float, n: int) -> float:
    """R_S(F_alpha) >= alpha |X|_(C+) / (2 n) (thesis, Theorem 13, with c = 1/2).

    The thesis states it for H_r, the networks of width d1 with R <= r: there alpha = sqrt(d1 r),
    and the two classes have the same complexity, since the best network repeats one unit. Hence
    it holds for odd widths too, which the printed proof leaves out.
    """
    return _slope(alpha, norm, n) / 2


def risk_bound(
    empirical: float,
    alpha: float,
    norm: float,
    n: int,
    retentivity: float,
    delta: float = 0.05,
) -> RiskBound:
    """L <= Lhat + 16 alpha |X|_(C+) / (sqrt(beta) n) + 12 sqrt(log(2/delta)/(2n)) (Corollary 2).

    Squared error of predictions clipped to [-1, 1], labels in [-1, 1], one output, independent
    samples, beta-retentive inputs, and alpha fixed before the sample was seen. `empirical` is
    the training error of the clipped predictions.
    """
    complexity = 8 * rademacher_upper(alpha, norm, n, retentivity)
    return _bound(
        1.0,
        empirical,
        complexity,
        12.0,
        alpha,
        retentivity,
        n,
        delta,
        "labels in [-1, 1], one output, independent samples, inputs of the given retentivity, "
        "alpha fixed in advance",
    )


def symmetrized_bound(
    empirical: float, alpha: float, norm: float, n: int, delta: float = 0.05
) -> RiskBound:
    """L <= 2 Lhat' + 46 alpha |X|_(C+) / n + 24 sqrt(log(2/delta)/(2n)) (Corollary 3).

    Needs no retentivity: the sample is (zeta_i x_i, y_i) with random signs zeta_i. `empirical` is
    the error of clipped predictions on that symmetrized sample, alpha = sum_i |u_i| a'_i with
    a'_i^2 = E(v_i.x)^2 / 2. |X|_(C+) does not change under signs. The risk is that of the original
    inputs.
    """
    complexity = 46 * _slope(alpha, norm, n)
    return _bound(
        2.0,
        empirical,
        complexity,
        24.0,
        alpha,
        0.5,
        n,
        delta,
        "labels in [-1, 1], one output, independent samples, trained and measured on inputs with "
        "random signs, alpha fixed in advance",
    )


def _bound(
    factor: float,
    empirical: float,
    complexity: float,
    weight: float,
    alpha: float,
    retentivity: float,
    n: int,
    delta: float,
    assumes: str,
) -> RiskBound:
    empirical, delta = (
        number("empirical", empirical),
        number("delta", delta, exclusive=True),
    )
    if delta >= 1:
        raise InputError(f"delta must lie in (0, 1), got {delta!r}")
    confidence = weight * math.sqrt(math.log(2 / delta) / (2 * n))
    value = factor * empirical + complexity + confidence
    return RiskBound(
        value,
        factor,
        empirical,
        complexity,
        confidence,
        float(alpha),
        float(retentivity),
        delta,
        n,
        value >= 1,
        assumes,
    )


def _retentivity(value: float) -> float:
    beta = number("retentivity", value)
    if beta > 0.5:
        raise InputError(
            f"retentivity must lie in [0, 1/2] (v and -v share the second moment), got {value!r}"
        )
    return beta


def _slope(alpha: float, norm: float, n: int) -> float:
    """Return alpha |X|_(C+) / n; infinite with the norm, as F_0 already is off the range of C."""
    alpha, n = number("alpha", alpha), whole("n", n)
    if isinstance(norm, float) and norm == math.inf:
        return math.inf
    return alpha * number("norm", norm) / n


def _flows(psi: Array) -> Array:
    """Return checked flows without their gradient."""
    psi = _check.floating("psi", psi)
    psi = psi.detach() if is_torch_array(psi) else psi
    least = float(namespace(psi).min(psi))
    if least < 0:
        raise InputError(f"psi must hold flows, none negative, got {least:.4g}")
    return psi
