"""What a noise is: its masks, their exact moments, and what of them matters."""

from __future__ import annotations

import math

import numpy as np

from overt import noise, penalty
from overt._types import Floats
from overt.theorems import _oracles as oracles
from overt.theorems.base import EXACT, MONTE_CARLO, Residuals, relative, standard_errors, theorem


@theorem(
    "characteristic-matrix",
    source="Structured dropout, eq. 16",
    claim="A noise acts on the squared loss through its characteristic matrix alone, so two noises "
    "that share it cost a network the same",
    assumes="no unit's mask has mean zero",
)
def _characteristic_matrix(scale: int, rng: np.random.Generator) -> Residuals:
    d = 3 + scale // 2
    for _ in range(4 * scale):
        z, _ = oracles.masks(np.full(d, 0.5))
        p = rng.dirichlet(np.ones(len(z)))
        mu, Gamma = oracles.moments(z, p)
        other = rng.uniform(0.5, 2, d)
        gaussian = noise.CovarianceNoise(other, Gamma * np.outer(other, other))
        Y, U, A = rng.normal(size=(5, 2)), rng.normal(size=(2, d)), rng.normal(size=(5, d))
        exact = oracles.added_loss(Y, U, A, z / mu, p)
        yield relative(penalty.hidden(U, A, gaussian), exact)
    return EXACT, f"random laws over all {2**d} masks against Gaussian noise with equal Gamma"


@theorem(
    "mask-moments",
    source="Structured dropout, section 3",
    claim="The masks that a noise draws have the mean and the characteristic matrix that it "
    "states, so the network's expected output is the noise-free one",
)
def _mask_moments(scale: int, rng: np.random.Generator) -> Residuals:
    d, size = 6, 4000 * scale
    K = rng.normal(size=(d, d))
    noises: list[noise.Noise] = [
        noise.Dropout(0.3),
        noise.Dropout(rng.uniform(0.1, 0.6, d)),
        noise.DropBlock(0.4, block_size=3),
        noise.DropBlock(0.3, block_size=2, placement="sliding"),
        noise.CovarianceNoise(rng.uniform(0.5, 2, d), K @ K.T / d),
    ]
    for each in noises:
        w = rng.normal(size=d)
        flow = each.multipliers(d, size, rng) @ w
        spread = w @ each.characteristic(d) @ w
        yield standard_errors(flow, w.sum())
        yield standard_errors((flow - w.sum()) ** 2, spread)
    return MONTE_CARLO, f"{len(noises)} noises, {size} masks each, in s.e."


@theorem(
    "dropblock-mask",
    source="Structured dropout, eq. 3",
    claim="DropBlock repeats each of d/b block decisions for the b units of its block",
    assumes="the block size b divides the width d",
    correction="The mask is printed as diag(w) kron I_(d/r), which has the wrong size; it is "
    "diag(w) kron I_r with r the block size",
)
def _dropblock_mask(scale: int, rng: np.random.Generator) -> Residuals:
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


@theorem(
    "sliding-coverage",
    source="overt (new)",
    claim="Of the sliding blocks of size b that fit into 1..d, exactly min(i, b, d-b+1, d-i+1) "
    "cover unit i, so units near the border survive more often",
)
def _sliding_coverage(scale: int, rng: np.random.Generator) -> Residuals:
    for d in range(2, 8 * scale + 2):
        b = int(rng.integers(1, d + 1))
        block = noise.DropBlock(0.4, block_size=b, placement="sliding")
        brute = [sum(first <= i < first + b for first in range(d - b + 1)) for i in range(d)]
        i = np.arange(1, d + 1)
        formula = np.minimum.reduce([i, np.full(d, b), np.full(d, d - b + 1), d - i + 1])
        stated = np.log(block.mean(d)) / math.log1p(-block.seed_probability(d))
        yield relative(stated, brute)
        yield relative(formula, brute)
    return EXACT, "the survival exponents against a count of all positions"


@theorem(
    "sliding-keep",
    source="Structured dropout, section 5.3",
    claim="The seed probability g that solves mean_i (1-g)^(c_i) = 1 - drop_prob makes sliding "
    "blocks drop the asked share of units; away from the border it is 1 - (1-drop_prob)^(1/b)",
    assumes="blocks lie inside the layer",
    correction="The retain probability of a block position is printed as 1 - drop_prob^(1/(2k-1)) "
    "with k undefined; taken to be the block size it keeps .0022 of the interior units instead of "
    ".5 for b = 3; it is (1-drop_prob)^(1/b)",
)
def _sliding_keep(scale: int, rng: np.random.Generator) -> Residuals:
    b = 3
    for d in range(b, b + 4 + scale):
        prob = float(rng.uniform(0.1, 0.8))
        g = noise.DropBlock(prob, block_size=b, placement="sliding").seed_probability(d)
        z, p = oracles.sliding_masks((d,), b, g)
        yield relative((p @ z).mean(), 1 - prob)
    inner = 2 * b - 1  # blocks on all sides of its middle unit
    z, p = oracles.sliding_masks((inner,), b, 1 - 0.5 ** (1 / b))
    yield relative((p @ z)[b - 1], 0.5)
    z, p = oracles.sliding_masks((inner,), b, 0.5 ** (1 / (2 * b - 1)))
    kept = float((p @ z)[b - 1])
    detail = f"share kept, over all sets of seeds; the printed rule keeps {kept:.4f} instead of .5"
    return EXACT, detail, relative(kept, 0.5)


@theorem(
    "sliding-characteristic",
    source="overt (new)",
    claim="Sliding blocks have Gamma_ij = (1-g)^(-o_ij) - 1, with o_ij the number of block "
    "positions that cover both units, on a line and on a plane",
)
def _sliding_characteristic(scale: int, rng: np.random.Generator) -> Residuals:
    shapes: list[tuple[tuple[int, ...], int]] = [((6,), 2), ((8,), 3), ((3, 4), 2), ((4, 4), 3)]
    for shape, b in [*shapes, ((4, 4), 2)] if scale > 1 else shapes:
        prob = float(rng.uniform(0.1, 0.7))
        block = noise.DropBlock(prob, block_size=b, placement="sliding")
        mu, Gamma = oracles.moments(*oracles.sliding_masks(shape, b, block.seed_probability(shape)))
        yield relative(block.mean(shape), mu)
        yield relative(block.characteristic(shape), Gamma)
    return EXACT, "mean and Gamma over all sets of seeds, 1-D and 2-D"


@theorem(
    "width-adjusted",
    source="Structured dropout, eq. 7",
    claim="With theta(d) = tb b / (tb b + (1-tb) d) the noise's strength grows in proportion to "
    "the width, lam(d) = beta d/b with beta = (1-tb)/tb",
)
def _width_adjusted(scale: int, rng: np.random.Generator) -> Residuals:
    for _ in range(8 * scale):
        prob = float(rng.uniform(0.05, 0.95))
        b, k = int(rng.integers(1, 5)), int(rng.integers(1, 9))
        beta, d = prob / (1 - prob), b * k
        block = noise.DropBlock(prob, block_size=b).at_width(d)
        unit = noise.Dropout(prob).at_width(d)
        yield relative(block.relative_variance(d), np.full(d, beta * d / b))
        yield relative(unit.relative_variance(d), np.full(d, beta * d))
    return EXACT, "Gamma_ii of the adjusted noise against beta d/b"


def _enlarged(matrix: Floats, size: int) -> Floats:
    return np.pad(matrix, (0, size - len(matrix)))
