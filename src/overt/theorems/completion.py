"""Matrix completion: exact row updates, learned noise, and the constant of the bound."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from overt._types import Floats
from overt.theorems._oracles import multipliers
from overt.theorems.base import DESCENT, EXACT, Residuals, relative, theorem


@theorem(
    "completion-rows",
    source="Thesis, Proposition 3, as alternating minimization",
    claim="With V held, the row of U that minimizes the expected loss of completion with dropout "
    "solves (sum v v' + lam diag(sum v o v)) u = sum y v over its observed entries",
)
def _completion_rows(scale: int, rng: np.random.Generator) -> Residuals:
    from scipy.optimize import minimize

    for width in range(2, 4 + scale):
        V, y, prob = rng.normal(size=(6, width)), rng.normal(size=6), 0.35
        z, p = multipliers(width, prob)

        def loss(u: Floats, V=V, y=y, z=z, p=p) -> float:  # type: ignore[no-untyped-def]
            return float(p @ ((y - (z * u) @ V.T) ** 2).sum(axis=1))

        best = minimize(loss, np.zeros(width), tol=1e-14).fun
        yield relative(loss(_solve(V, y, prob / (1 - prob))), best)
    return DESCENT, "expected loss over all masks, minimized by descent"


@theorem(
    "completion-learned",
    source="overt (new)",
    claim="The learned form's row update minimizes the expected squared error over noisy partners "
    "plus the prior, and with S = lam diag(v o v), P = 0 it is dropout's",
)
def _completion_learned(scale: int, rng: np.random.Generator) -> Residuals:
    for width in range(2, 4 + scale):
        V, y = rng.normal(size=(6, width)), rng.normal(size=6)
        roots = rng.normal(size=(6, width, width)) * 0.4
        S, noise = roots @ roots.transpose(0, 2, 1), 0.7
        A = rng.normal(size=(width, width))
        P, m = A @ A.T + np.eye(width), rng.normal(size=width)
        u = _learned(V, S, y, noise, P, P @ m)
        # The gradient of sum E(y - u.v)^2 / noise + (u - m)'P(u - m) is 0 at its minimum.
        slope = sum(
            2 * ((np.outer(v, v) + s) @ u - t * v) / noise for v, s, t in zip(V, S, y, strict=True)
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


def _solve(V: Floats, y: Floats, lam: float) -> Floats:
    """Row update of fixed dropout, by the kernels' reference; imported here, as it compiles."""
    from overt.completion.kernels import NOT_PINNED, Csr, Drawn, Held, RowPrior, reference

    width, P = V.shape[1], np.zeros((V.shape[1], V.shape[1]))
    out = Drawn(np.zeros((1, width)), np.zeros((1, width)), np.zeros((1, 2)))
    csr = Csr(np.array([0, len(y)]), np.arange(len(y)), y)
    prior, zeros = RowPrior(P, np.arange(width), NOT_PINNED), np.zeros((1, width))
    held = Held(V, np.full(width, lam), np.ones(len(V)))
    reference.draw_rows(np.array([0]), csr, held, prior, zeros, np.ones(1), zeros, out)
    return out.means[0]


def _learned(V: Floats, S: Floats, y: Floats, noise: float, P: Floats, shift: Floats) -> Floats:
    """Row update of the learned form, by the kernels' reference."""
    from overt.completion.kernels import NOT_PINNED, Blocks, Held, Learned, RowPrior, reference
    from overt.completion.kernels.full import pack

    packed = pack(V[:, :, None] * V[:, None, :] + S)
    moments = np.zeros((1, packed.shape[1]))
    out = Learned(np.zeros((1, V.shape[1])), moments.copy(), np.zeros((1, 2)))
    row = Blocks(np.array([0, len(y)]), np.zeros(len(y), int), np.arange(len(y)), y)
    prior = RowPrior(P, np.arange(len(P)), NOT_PINNED)
    given = (Held(V, packed, np.ones(len(V))), prior, shift[None], np.array([1 / noise]))
    reference.learn_rows(np.array([0]), row, *given, out, np.array([0, 1]), moments)
    return out.means[0]


@theorem(
    "completion-bound",
    source="Thesis, Theorems 11 and 20 (Rademacher complexity of the weighted trace norm ball)",
    claim="The ball {|diag(sqrt p) M diag(sqrt q)|_* <= sqrt(alpha)} has Rademacher complexity at "
    "most K sqrt(alpha d log d / n) with K = sqrt(2 L) + L/3, L = log(d0 + d2) / log d, "
    "d = max(d0, d2)",
    assumes="entries drawn from a product law with p q >= log(d) / (n sqrt(d2 d0))",
    correction="The printed bound sets an unknown constant to 1; 2 x 2 with three uniform entries "
    "needs 1.558, over all samples and signs",
)
def _completion_bound(scale: int, rng: np.random.Generator) -> Residuals:
    from overt.completion import bounds  # which compiles

    printed = 0.0
    cases = [(2, 2, 3), (2, 2, 5), (1, 2, 4), (2, 3, 4), (3, 2, 3)]
    for rows, cols, n in cases:
        for p, q in _product_laws(rows, cols, n, rng):
            needed = _needed_constant(p, q, n)
            yield needed / bounds.rademacher_constant((rows, cols))
            printed = max(printed, needed)
    for d in (10, 20 * scale):
        n = int(np.ceil(2 * d * np.log(d))) + 1
        draws = np.array([_dual_norm(d, n, rng) for _ in range(200)])
        needed = float(draws.mean() - 5 * draws.std() / np.sqrt(len(draws))) / n
        needed /= np.sqrt(d * np.log(d) / n)
        yield needed / bounds.rademacher_constant((d, d))
    detail = f"all samples and signs of {len(cases)} sizes, 3 laws each: {printed:.3f} is needed"
    return 1.0, f"{detail}; {d} x {d} by sampling", printed


def _product_laws(rows: int, cols: int, n: int, rng: np.random.Generator) -> Iterator[Any]:
    """Yield the uniform law, and two as far from it as the theorem allows."""
    least = np.log(max(rows, cols)) / (n * np.sqrt(rows * cols))
    uniform = (np.full(rows, 1 / rows), np.full(cols, 1 / cols))
    yield uniform
    for _ in range(2):
        away = rng.dirichlet(np.ones(rows)), rng.dirichlet(np.ones(cols))
        for t in np.linspace(1, 0, 101):
            p, q = ((1 - t) * u + t * v for u, v in zip(uniform, away, strict=True))
            if p.min() * q.min() >= least:
                yield p, q
                break


def _needed_constant(p: Floats, q: Floats, n: int) -> float:
    """E|sum_j eps_j e_a e_b' / sqrt(p_a q_b)|_2 / sqrt(n d log d), all samples and signs."""
    P = np.outer(p, q).ravel()
    # Places drawn, signs included, in any order; how often each, and the chance of that.
    drawn = np.array(list(combinations_with_replacement(range(2 * len(P)), n)))
    counts = np.sum(drawn[:, :, None] == np.arange(2 * len(P)), axis=1)
    orders = math.factorial(n) / np.prod(np.cumprod([1, *range(1, n + 1)])[counts], axis=1)
    chance = orders * np.prod((np.r_[P, P] / 2) ** counts, axis=1)
    signed = (counts[:, : len(P)] - counts[:, len(P) :]) / np.sqrt(P)
    norms = np.linalg.norm(signed.reshape(-1, len(p), len(q)), 2, axis=(1, 2))
    d = max(len(p), len(q))
    return float(chance @ norms / np.sqrt(n * d * np.log(d)))


def _dual_norm(d: int, n: int, rng: np.random.Generator) -> float:
    """|diag(1/sqrt p) (sum_j eps_j e_a e_b') diag(1/sqrt q)|_2 for uniform p and q."""
    total = np.zeros((d, d))
    np.add.at(total, (rng.integers(0, d, n), rng.integers(0, d, n)), rng.choice([-1.0, 1.0], n))
    return float(d * np.linalg.norm(total, 2))
