"""Sections 1 to 2.3: the mask of DropBlock, its penalty and its norm."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np

from overt import noise, penalty, spectral
from overt._types import Floats
from overt.papers import descent, oracles
from overt.papers.evidence import EXACT, relative
from overt.papers.records import Residuals, Rng, item, statement


def _enlarged(matrix: Floats, size: int) -> Floats:
    return np.pad(matrix, (0, size - len(matrix)))


@statement("Equation 3", "1", how="enumerated")
def dropblock_mask(scale: int, rng: Rng) -> Residuals:
    r"""The mask of DropBlock.

    DropBlock repeats each of d/b block decisions for the b units of its block.

    Assumes: the block size b divides the width d.

    Printed: The paper has the mask diag(w) kron I_(d/r), which has the wrong size; it is
    diag(w) kron I_r with r the block size.

    TeX: DropBlock repeats each of $d/b$ block decisions for the $b$ units of its block.
    \[m=\theta^{-1}\,w\otimes\mathbf{1}_b,\qquad w\in\{0,1\}^{d/b}\]
    """
    printed = math.inf
    for b in range(2, 3 + scale):
        blocks, prob = b + 1, float(rng.uniform(0.2, 0.7))
        d = blocks * b
        w, p = oracles.masks(np.full(blocks, 1 - prob))
        z = np.stack([w[:, j // b] for j in range(d)], axis=1)
        _, exact = oracles.moments(z, p)
        _, other = oracles.moments(np.repeat(w, blocks, axis=1), p)
        block = noise.DropBlock(prob, block_size=b)
        yield relative(block.characteristic(d), exact)
        size = max(len(other), d)
        printed = min(printed, relative(_enlarged(other, size), _enlarged(exact, size)))
    detail = "Gamma against all block decisions; the printed mask's is zero-padded to compare"
    return EXACT, detail, printed


@statement("Lemma 2.1", "2.1", how="symbolic", identity="blocks")
def dropblock_penalty(scale: int, rng: Rng) -> Residuals:
    r"""DropBlock's explicit penalty.

    DropBlock on a grid adds lam times the sum over blocks of |U_i V_i'X|^2.

    Assumes: the block size divides the width.

    TeX: DropBlock on a grid adds $\lambda$ times the sum over blocks of $|U_i V_i^\top X|^2$.
    \[R(U,V)=\lambda\sum_{i=1}^{d/b}\|U_iV_i^\top X\|_F^2\]
    """
    for b in (1, 2, 3):
        d, prob = b * (2 + scale // 2), float(rng.uniform(0.1, 0.8))
        U, V, X, Y = oracles.two_layers(rng, d)
        block = noise.DropBlock(prob, block_size=b)
        exact = oracles.added_loss(Y, U, X @ V, *oracles.multipliers(d, prob, b))
        yield relative(penalty.shallow(U, V, block, X.T @ X / len(X)), exact)
    return EXACT, "the loss over all block decisions, blocks of 1, 2 and 3"


@statement("Lemma 2.2", "2.2", how="symbolic", identity="algebra")
def vanishing_penalty(scale: int, rng: Rng) -> Residuals:
    r"""The penalty vanishes with width.

    At a fixed drop probability, replacing every block by two copies scaled by 1/sqrt(2) on both
    sides keeps the map and halves the penalty, so width alone makes it vanish.

    TeX: At a fixed drop probability, replacing every block by two copies scaled by $1/\sqrt{2}$
    on both sides keeps the map and halves the penalty, so width alone makes it vanish.
    \[U'=\tfrac{1}{\sqrt2}[U\;U],\;V'=\tfrac{1}{\sqrt2}[V\;V]:\quad U'V'^\top=UV^\top,\quad
    R(U',V')=\tfrac{1}{2}R(U,V)\]
    """
    b, prob = 2, float(rng.uniform(0.2, 0.8))
    U, V, X, Y = oracles.two_layers(rng, 2 * b)
    block, C = noise.DropBlock(prob, block_size=b), X.T @ X / len(X)
    start, loss = float(penalty.shallow(U, V, block, C)), Y - X @ V @ U.T
    for doubling in range(1, 3 if scale > 1 else 2):
        U, V = np.hstack([U, U]) / 2**0.5, np.hstack([V, V]) / 2**0.5
        exact = oracles.added_loss(
            Y, U, X @ V, *oracles.multipliers(U.shape[1], prob, b)
        )
        yield relative(Y - X @ V @ U.T, loss)
        yield relative(start / 2**doubling, exact)
        yield relative(penalty.shallow(U, V, block, C), exact)
    return EXACT, f"copies up to width {U.shape[1]}, the loss over all masks"


@statement("Equation 7", "2.2", how="symbolic", identity="algebra")
def width_adjusted(scale: int, rng: Rng) -> Residuals:
    r"""The width-adjusted probability.

    With theta(d) = tb b / (tb b + (1-tb) d) the noise's strength grows in proportion to the
    width, lam(d) = beta d/b with beta = (1-tb)/tb.

    TeX: With $\theta(d) = tb b / (tb b + (1-tb) d)$ the noise's strength grows in proportion to
    the width, $\lambda(d) = \beta d/b$ with $\beta = (1-tb)/tb$. \[\theta(d)=\frac{\bar\theta
    b}{\bar\theta b+(1-\bar\theta)d},\qquad
    \lambda(d)=\frac{1-\bar\theta}{\bar\theta}\,\frac{d}{b}\]
    """
    for _ in range(8 * scale):
        prob = float(rng.uniform(0.05, 0.95))
        b, k = int(rng.integers(1, 5)), int(rng.integers(1, 9))
        beta, d = prob / (1 - prob), b * k
        block = noise.DropBlock(prob, block_size=b).at_width(d)
        unit = noise.Dropout(prob).at_width(d)
        yield relative(block.relative_variance(d), np.full(d, beta * d / b))
        yield relative(unit.relative_variance(d), np.full(d, beta * d))
    return EXACT, "Gamma_ii of the adjusted noise against beta d/b"


@statement("Theorem 2.3", "2.3", how="sampled")
def ksupport_value(scale: int, rng: Rng) -> Residuals:
    r"""The envelope is a k-support norm.

    The k-support norm of a spectrum has a closed form: the largest values count by their
    squares, the rest by the square of their sum.

    Printed: The paper takes the split rho that maximizes the expression, which is always
    rho = b; it is the largest rho with (b-rho+1) s_(rho-1) >= the sum of the rest.

    TeX: The k-support norm of a spectrum has a closed form: the largest values count by their
    squares, the rest by the square of their sum.
    \[\sum_{i<\rho}s_i^2+\frac{1}{b-\rho+1}\left(\sum_{i\ge\rho}s_i\right)^2,\qquad
    \rho=\max\left\{j:(b-j+1)\,s_{j-1}\ge\sum_{i\ge j}s_i\right\}\]
    """
    printed = 0.0
    for _ in range(30 * scale):
        n = int(rng.integers(2, 9))
        k, s = (
            int(rng.integers(1, n + 1)),
            rng.exponential(size=n) ** rng.uniform(0.2, 3),
        )
        exact, ordered = descent.ksupport(s, k), np.sort(s)[::-1]
        largest = float(
            ordered[: k - 1] @ ordered[: k - 1] + ordered[k - 1 :].sum() ** 2
        )
        yield relative(spectral.KSupport(k).value(s), exact)
        printed = max(printed, relative(largest, exact))
    return EXACT, f"{30 * scale} spectra, the variational form's dual", printed


@statement("Theorem 2.3, limits", "2.3", how="sampled")
def ksupport_limits(scale: int, rng: Rng) -> Residuals:
    r"""Blocks of one and of many.

    DropBlock's norm runs from the squared nuclear norm for blocks of one unit to the squared
    Frobenius norm for blocks as large as the rank.

    TeX: DropBlock's norm runs from the squared nuclear norm for blocks of one unit to the
    squared Frobenius norm for blocks as large as the rank. \[b=1:\
    \left(\sum_is_i\right)^2,\qquad b\ge\mathrm{rank}:\ \sum_is_i^2\]
    """
    for _ in range(5 * scale):
        rank = int(rng.integers(1, 5))
        A = oracles.with_spectrum(rng, 5, 6, rng.exponential(size=rank))
        values = [float(spectral.KSupport(k).matrix_value(A)) for k in range(1, 7)]
        yield float(np.max(np.diff(values))) / values[0]
        yield relative(values[0], np.linalg.norm(A, "nuc") ** 2)
        yield relative(values[rank - 1 :], np.full(7 - rank, np.linalg.norm(A) ** 2))
    return EXACT, "random matrices; the norm never grows with the block size"


@statement("Theorem 2.3, lower bound", "2.3", how="bound evaluated")
def dropblock_lower_bound(scale: int, rng: Rng) -> Residuals:
    r"""The norm bounds the penalty.

    No factors of a map cost less under DropBlock than (lam b/d) times its squared k-support
    norm with k = b, and factors with enough blocks can reach it.

    Assumes: a fixed drop probability; the block size b divides the width d.

    TeX: No factors of a map cost less under DropBlock than $(\lambda b/d)$ times its squared
    k-support norm with $k = b$, and factors with enough blocks can reach it.
    """
    prob, null = 0.4, -math.inf
    for trial in range(10 * scale):
        b, tight = int(rng.integers(1, 4)), trial % 2 == 0
        blocks = math.comb(4, b) if tight else int(rng.integers(1, 5))
        U, V = rng.normal(size=(2, 4, b * blocks))
        if tight:
            # Equal singular values, shared by one block for each b of the four directions.
            chosen = [i for subset in combinations(range(4), b) for i in subset]
            U, V = (np.linalg.qr(W)[0][:, chosen] for W in rng.normal(size=(2, 4, 4)))
        # Inputs are the four unit vectors, so that the mean over samples is |.|^2 / 4.
        drawn = oracles.multipliers(b * blocks, prob, b)
        exact = 4 * oracles.added_loss(np.zeros((4, 4)), U, V, *drawn)
        weight, norm = spectral.induced(noise.DropBlock(prob, block_size=b), b * blocks)
        bound = float(weight * norm.matrix_value(U @ V.T))
        yield relative(bound, exact) if tight else bound / exact - 1
        null = max(null, 1.1 * bound / exact - 1)
    detail = (
        "violation by random factors, distance for factors that share directions; null: 1.1 times "
        "the bound"
    )
    return EXACT, detail, None, null


item("Algorithm 1", "2", "Training with DropBlock", by="dropout-step")
item(
    "Section 2.3, convexity",
    "2.3",
    "Lambda(A) is not necessarily convex",
    how="not checked",
    printed="it is convex: the infimum over the width makes it a squared gauge",
    open="no check yet",
)
item(
    "Section 2.3, convex hull",
    "2.3",
    "conv(S_0,2) lies in S_1,2; the k-support norm is the tightest",
    how="cited",
    open="a result on k-support norms",
)
