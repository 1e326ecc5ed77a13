"""The last layer that is best for given features under a noise, and the drop probability to use.

With features h before the noise, targets y, C = E[h h'], and a bias that noise does not touch,

    min over U, b: E|y - b - U (m o h)|^2,   U (Cov(h) + Cbar o C) = Cov(y, h),

a ridge regression. Solved on some rows and evaluated on others, it tells what a drop probability is
worth on these features; second moments are enough for both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from overt._types import Floats
from overt.nn.auditing.stream import Parts

Weigh = Callable[[Floats], Floats]
"""C -> Cbar o C."""

CANDIDATES = np.round(np.arange(0, 0.96, 0.05), 2)
MAX_UNITS = 2048
"""The widest last layer whose second moments are kept."""


class Ridge:
    """The problem on some rows: their second moments of (1, h, y), as sums over n rows."""

    def __init__(self, total: Floats, n: float, units: int, *, bias: bool) -> None:
        mean = total / n
        self.first, self._second = mean[0, 1:], mean[1:, 1:]
        self._units, self._bias = units, bias
        self.C = self._second[:units, :units]

    def best(self, weigh: Weigh) -> tuple[Floats, Floats]:
        """Return the optimal (U, b) under the noise."""
        centered = self._centered()
        d = self._units
        U = _solve(centered[:d, :d] + weigh(self.C), centered[:d, d:]).T
        b = self.first[d:] - U @ self.first[:d] if self._bias else np.zeros(len(U))
        return U, b

    def objective(self, U: Floats, b: Floats, weigh: Weigh | None = None) -> float:
        """E|y - b - U h|^2, plus the penalty of the noise if there is one."""
        d = self._units
        S, h, y = self._second, self.first[:d], self.first[d:]
        loss = np.trace(S[d:, d:]) - 2 * np.sum(U * S[d:, :d]) + np.sum((U @ S[:d, :d]) * U)
        loss += b @ b + 2 * b @ (U @ h - y)
        if weigh is not None:
            loss += np.sum((U @ weigh(self.C)) * U)
        return float(loss)

    def _centered(self) -> Floats:
        return self._second - np.outer(self.first, self.first) if self._bias else self._second


def held_out_curve(
    parts: Parts, weigh: Callable[[float], Weigh | None], *, bias: bool, chosen: Floats = CANDIDATES
) -> tuple[Floats, Floats] | None:
    """Return the held-out squared error at each drop probability, and its standard error.

    None where there are too few rows, or where the noise has no drop probability to vary.
    """
    tests = [parts.moments([p]) for p in range(1, parts.PARTS)]
    total, n = parts.moments([0])
    if n < 2 or min(rows for _, rows in tests) < 1:
        return None
    problem = Ridge(total, n, parts.units, bias=bias)
    groups = [Ridge(*test, parts.units, bias=bias) for test in tests]
    errors = []
    for p in chosen:
        weighed = weigh(float(p))
        if weighed is None:
            return None
        U, b = problem.best(weighed)
        errors.append([group.objective(U, b) for group in groups])
    table = np.array(errors)
    return table.mean(1), table.std(1, ddof=1) / np.sqrt(table.shape[1])


def _solve(A: Floats, B: Floats) -> Any:
    """Return A^+ B for a positive semi-definite A."""
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    scale = np.sqrt(np.maximum(np.diag(A), 0.0))
    used = scale > 1e-12 * max(scale.max(initial=0.0), 1e-300)
    result = np.zeros_like(B)
    if not used.any():
        return result
    scale = scale[used]
    inner, right = A[np.ix_(used, used)] / np.outer(scale, scale), B[used] / scale[:, None]
    try:
        factor = cho_factor(inner, lower=True)
        if np.abs(np.diag(factor[0])).min(initial=1.0) < 1e-6:
            raise LinAlgError
        result[used] = cho_solve(factor, right) / scale[:, None]
    except LinAlgError:
        values, vectors = np.linalg.eigh(inner)
        kept = values > 1e-11 * max(values[-1], 1e-300)
        inverse = vectors[:, kept] / values[kept] @ (vectors[:, kept].T @ right)
        result[used] = inverse / scale[:, None]
    return result
