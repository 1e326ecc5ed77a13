"""Alternating minimization and learned noise."""

from __future__ import annotations

from typing import Any

import numpy as np

from overt._types import Floats
from overt.papers.evidence import DESCENT, EXACT, relative
from overt.papers.oracles import multipliers
from overt.papers.records import Residuals, statement


def _row(
    V: Floats,
    y: Floats,
    lam: float = 0.0,
    S: Floats | None = None,
    noise: float = 1.0,
    P: Any = 0.0,
    shift: Any = 0.0,
) -> Floats:
    """Row update by the kernel's reference, with dropout of strength lam or covariances S."""
    from overt.completion.kernels import reference
    from overt.completion.kernels import rows as kernels

    count, k = V.shape
    tables = np.zeros((count, 0))
    if S is not None:
        tables = kernels.pack(V[:, :, None] * V[:, None, :] + S)
    row = kernels.Blocks(
        np.array([0, count]), np.zeros(count, int), np.arange(count), y
    )
    fixed = kernels.FixedSide(V, tables, np.ones(count), np.full(k, lam))
    nothing = np.zeros(k * (k + 1) // 2)
    prior = kernels.RowPrior(
        P + np.zeros((k, k)), np.arange(k), kernels.NOT_PINNED, nothing
    )
    by_row = (shift + np.zeros((1, k)), np.array([1 / noise]), np.zeros((1, k)))
    sizes = (k, k, tables.shape[1], 2)
    out = kernels.Rows(*(np.zeros((1, size)) for size in sizes))
    cuts = np.array([0, 1])
    reference.update_rows(
        cuts[:1], row, fixed, prior, *by_row, out, cuts, nothing[None]
    )
    return out.means[0]


@statement(how="symbolic", identity="rows")
def completion_rows(scale: int, rng: np.random.Generator) -> Residuals:
    r"""Alternating minimization.

    With V fixed, the row of U that minimizes the expected loss of completion with dropout solves
    (sum v v' + lam diag(sum v o v)) u = sum y v over its observed entries.

    TeX: With $V$ fixed, the row of $U$ that minimizes the expected loss of completion with
    dropout solves $(\sum v v^\top + \lambda \operatorname{diag}(\sum v \circ v)) u = \sum y v$
    over its observed entries.
    """
    from scipy.optimize import minimize

    for width in range(2, 4 + scale):
        V, y, prob = rng.normal(size=(6, width)), rng.normal(size=6), 0.35
        z, p = multipliers(width, prob)

        def loss(u: Floats, V=V, y=y, z=z, p=p) -> float:  # type: ignore[no-untyped-def]
            return float(p @ ((y - (z * u) @ V.T) ** 2).sum(axis=1))

        best = minimize(loss, np.zeros(width), tol=1e-14).fun
        yield relative(loss(_row(V, y, prob / (1 - prob))), best)
    return DESCENT, "expected loss over all masks, minimized by descent"


@statement(how="sampled")
def completion_learned(scale: int, rng: np.random.Generator) -> Residuals:
    r"""Learned noise.

    The learned form's row update minimizes the expected squared error over noisy partners plus
    the prior, and with S = lam diag(v o v), P = 0 it is dropout's.

    TeX: The learned form's row update minimizes the expected squared error over noisy partners
    plus the prior, and with $S = \lambda \operatorname{diag}(v \circ v)$, $P = 0$ it is
    dropout's.
    """
    for width in range(2, 4 + scale):
        V, y = rng.normal(size=(6, width)), rng.normal(size=6)
        roots = rng.normal(size=(6, width, width)) * 0.4
        S, noise = roots @ roots.transpose(0, 2, 1), 0.7
        A = rng.normal(size=(width, width))
        P, m = A @ A.T + np.eye(width), rng.normal(size=width)
        u = _row(V, y, 0.0, S, noise, P, P @ m)
        # The gradient of sum E(y - u.v)^2 / noise + (u - m)'P(u - m) is 0 at its minimum.
        slope = sum(
            2 * ((np.outer(v, v) + s) @ u - t * v) / noise
            for v, s, t in zip(V, S, y, strict=True)
        )
        gradient = slope + 2 * P @ (u - m)
        yield float(np.abs(gradient).max())
        lam = 0.5
        fixed = lam * np.eye(width) * (V**2)[:, None, :]
        reduced = _row(V, y, 0.0, fixed)
        dropped = np.linalg.solve(V.T @ V + lam * np.diag((V**2).sum(axis=0)), V.T @ y)
        yield relative(reduced, dropped)
    return EXACT, "gradient at the update; the dropout equations"
