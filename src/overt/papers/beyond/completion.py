"""Alternating minimization and learned noise."""

from __future__ import annotations

import numpy as np

from overt._types import Floats
from overt.papers.evidence import DESCENT, EXACT, relative
from overt.papers.oracles import multipliers
from overt.papers.records import Residuals, statement


def _solve(V: Floats, y: Floats, lam: float) -> Floats:
    """Row update of fixed dropout, by the kernels' reference; imported here, as it compiles."""
    from overt.completion.kernels import reference
    from overt.completion.kernels.rows import (
        NOT_PINNED,
        Csr,
        FixedSide,
        RowPrior,
        SampledRows,
    )

    width, P = V.shape[1], np.zeros((V.shape[1], V.shape[1]))
    out = SampledRows(np.zeros((1, width)), np.zeros((1, width)), np.zeros((1, 2)))
    csr = Csr(np.array([0, len(y)]), np.arange(len(y)), y)
    prior, zeros = RowPrior(P, np.arange(width), NOT_PINNED), np.zeros((1, width))
    held = FixedSide(V, np.full(width, lam), np.ones(len(V)))
    reference.sample_rows(
        np.array([0]), csr, held, prior, zeros, np.ones(1), zeros, out
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
        yield relative(loss(_solve(V, y, prob / (1 - prob))), best)
    return DESCENT, "expected loss over all masks, minimized by descent"


def _learned(
    V: Floats, S: Floats, y: Floats, noise: float, P: Floats, shift: Floats
) -> Floats:
    """Row update of the learned form, by the kernels' reference."""
    from overt.completion.kernels import reference
    from overt.completion.kernels.rows import (
        NOT_PINNED,
        Blocks,
        FixedSide,
        LearnedRows,
        RowPrior,
        pack,
    )

    packed = pack(V[:, :, None] * V[:, None, :] + S)
    moments = np.zeros((1, packed.shape[1]))
    out = LearnedRows(np.zeros((1, V.shape[1])), moments.copy(), np.zeros((1, 2)))
    row = Blocks(np.array([0, len(y)]), np.zeros(len(y), int), np.arange(len(y)), y)
    prior = RowPrior(P, np.arange(len(P)), NOT_PINNED)
    given = (
        FixedSide(V, packed, np.ones(len(V))),
        prior,
        shift[None],
        np.array([1 / noise]),
    )
    reference.learn_rows(np.array([0]), row, *given, out, np.array([0, 1]), moments)
    return out.means[0]


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
        u = _learned(V, S, y, noise, P, P @ m)
        # The gradient of sum E(y - u.v)^2 / noise + (u - m)'P(u - m) is 0 at its minimum.
        slope = sum(
            2 * ((np.outer(v, v) + s) @ u - t * v) / noise
            for v, s, t in zip(V, S, y, strict=True)
        )
        gradient = slope + 2 * P @ (u - m)
        yield float(np.abs(gradient).max())
        lam = 0.5
        fixed = lam * np.eye(width) * (V**2)[:, None, :]
        none = np.zeros((width, width))
        reduced = _learned(V, fixed, y, 1.0, none, np.zeros(width))
        dropped = np.linalg.solve(V.T @ V + lam * np.diag((V**2).sum(axis=0)), V.T @ y)
        yield relative(reduced, dropped)
    return EXACT, "gradient at the update; the dropout equations"
