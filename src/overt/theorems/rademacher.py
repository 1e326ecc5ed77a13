"""The constant of the bound on completion, over all samples and signs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from overt._types import Floats
from overt.theorems.base import Evidence, theorem


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
def _completion_bound(scale: int, rng: np.random.Generator) -> Evidence:
    from overt.completion import bounds  # which compiles

    over, printed = 0.0, 0.0
    cases = [(2, 2, 3), (2, 2, 5), (1, 2, 4), (2, 3, 4), (3, 2, 3)]
    for rows, cols, n in cases:
        for p, q in _product_laws(rows, cols, n, rng):
            needed = _needed_constant(p, q, n)
            over = max(over, needed / bounds.rademacher_constant((rows, cols)))
            printed = max(printed, needed)
    for d in (10, 20 * scale):
        n = int(np.ceil(2 * d * np.log(d))) + 1
        draws = np.array([_dual_norm(d, n, rng) for _ in range(200)])
        needed = float(draws.mean() - 5 * draws.std() / np.sqrt(len(draws))) / n
        needed /= np.sqrt(d * np.log(d) / n)
        over = max(over, needed / bounds.rademacher_constant((d, d)))
    return Evidence(
        over, 1.0, f"all samples and signs of {len(cases)} sizes, 3 laws each: {printed:.3f} is "
        f"needed; {d} x {d} by sampling", printed,
    )  # fmt: skip


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
