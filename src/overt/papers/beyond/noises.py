"""What sliding blocks do, and what layers really drop."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from overt import noise
from overt._figures import canvas
from overt.papers import oracles
from overt.papers.evidence import EXACT, MONTE_CARLO, relative, standard_errors
from overt.papers.figures import Finding, Findings, Params, Row, rows_with, values_of
from overt.papers.records import Residuals, figure, statement


@statement(how="symbolic", identity="sliding")
def sliding_coverage(scale: int, rng: np.random.Generator) -> Residuals:
    r"""How many sliding blocks cover a unit.

    Of the sliding blocks of size b that fit into 1..d, exactly min(i, b, d-b+1, d-i+1) cover
    unit i, so units near the border survive more often.

    TeX: Of the sliding blocks of size $b$ that fit into $1,\ldots,d$, exactly $\min(i, b,
    d-b+1, d-i+1)$ cover unit $i$, so units near the border survive more often.
    """
    for d in range(2, 8 * scale + 2):
        b = int(rng.integers(1, d + 1))
        block = noise.DropBlock(0.4, block_size=b, placement="sliding")
        brute = [
            sum(first <= i < first + b for first in range(d - b + 1)) for i in range(d)
        ]
        i = np.arange(1, d + 1)
        formula = np.minimum.reduce(
            [i, np.full(d, b), np.full(d, d - b + 1), d - i + 1]
        )
        stated = np.log(block.mean(d)) / math.log1p(-block.seed_probability(d))
        yield relative(stated, brute)
        yield relative(formula, brute)
    return EXACT, "the survival exponents against a count of all positions"


@statement(how="symbolic", identity="sliding")
def sliding_characteristic(scale: int, rng: np.random.Generator) -> Residuals:
    r"""The characteristic matrix of sliding blocks.

    Sliding blocks have Gamma_ij = (1-g)^(-o_ij) - 1, with o_ij the number of block positions
    that cover both units, on a line and on a plane.

    TeX: Sliding blocks have $\Gamma_{ij} = (1-g)^{-o_{ij}} - 1$, with $o_{ij}$ the number of
    block positions that cover both units, on a line and on a plane.
    """
    shapes: list[tuple[tuple[int, ...], int]] = [
        ((6,), 2),
        ((8,), 3),
        ((3, 4), 2),
        ((4, 4), 3),
    ]
    for shape, b in [*shapes, ((4, 4), 2)] if scale > 1 else shapes:
        prob = float(rng.uniform(0.1, 0.7))
        block = noise.DropBlock(prob, block_size=b, placement="sliding")
        mu, Gamma = oracles.moments(
            *oracles.sliding_masks(shape, b, block.seed_probability(shape))
        )
        yield relative(block.mean(shape), mu)
        yield relative(block.characteristic(shape), Gamma)
    return EXACT, "mean and Gamma over all sets of seeds, 1-D and 2-D"


@statement(how="sampled")
def nn_sliding_blocks(scale: int, rng: np.random.Generator) -> Residuals:
    r"""Units that the sliding layer drops.

    With the seed probability g of mean_i (1-g)^(c_i) = keep, sliding DropBlock drops what it
    says, and its expected output is its input everywhere.

    Printed: section 5.3 prints the keep probability 1 - (1 - keep)^(1 / (2k - 1)) of a start,
    its k undefined and here taken to be the block size.

    TeX: With the seed probability $g$ of $\operatorname{mean}_i (1-g)^{c_i} = \text{ keep }$,
    sliding DropBlock drops what it says, and its expected output is its input everywhere.
    """
    from overt import nn as onn

    torch, _ = oracles.seeded_torch(rng)
    drop_prob, block, size, n = 0.5, 3, (6, 7), 4000 * scale
    layer = onn.DropBlock2d(drop_prob, block, seed=int(rng.integers(2**31)))
    y = layer(torch.ones(n, 1, *size, dtype=torch.float64))[:, 0]
    dropped = (y == 0).double().mean((1, 2)).numpy()
    yield standard_errors(dropped, drop_prob)
    error = y.std(0) / np.sqrt(n)
    yield float(((y.mean(0) - 1).abs() / error).max())
    start_kept = 1 - drop_prob ** (1 / (2 * block - 1))
    line = rng.random((n, 30)) < start_kept
    kept = np.lib.stride_tricks.sliding_window_view(line, block, axis=1).all(2)
    printed = standard_errors((~kept).mean(1), drop_prob)
    detail = (
        f"{n} masks of {size[0]} x {size[1]}, in standard errors; printed: {kept.mean():.4f} kept "
        "instead of 0.5 on a line"
    )
    return MONTE_CARLO, detail, printed


Layer = Callable[[Any], Any]


SIZES = {3: (14, 14), 4: (9, 13), 7: (14, 14)}
"""Height and width of the map for each block size."""


def seed_mask(x: Any, drop_prob: float, block: int) -> Any:
    """Return torchvision's algorithm: seeds inside the map, max-pooled; batch rescaling."""
    import torch
    from torch.nn import functional

    n, c, h, w = x.shape
    valid = (h - block + 1) * (w - block + 1)
    gamma = drop_prob * h * w / (block**2 * valid)
    noise = torch.empty(n, c, h - block + 1, w - block + 1).bernoulli_(min(gamma, 1.0))
    keep = 1 - _grown(functional.pad(noise, [block // 2] * 4), block)
    return x * keep * (keep.numel() / (1e-6 + keep.sum()))


def seed_everywhere(x: Any, drop_prob: float, block: int) -> Any:
    """Return timm's fast algorithm: the same gamma, seeds anywhere; batch rescaling."""
    import torch

    h, w = x.shape[2:]
    gamma = drop_prob * h * w / block**2 / ((w - block + 1) * (h - block + 1))
    noise = torch.empty_like(x).bernoulli_(min(gamma, 1.0))
    keep = 1 - _grown(noise, block)[..., :h, :w]
    return x * keep * (keep.numel() / (keep.sum() + 1e-7))


def seed_shared(x: Any, drop_prob: float, block: int) -> Any:
    """Return the dropblock package's algorithm: gamma = p / b^2, one mask for all channels."""
    import torch

    gamma = drop_prob / block**2
    noise = _grown((torch.rand(len(x), 1, *x.shape[2:]) < gamma).to(x.dtype), block)
    keep = 1 - (noise[..., :-1, :-1] if block % 2 == 0 else noise)
    return x * keep * (keep.numel() / keep.sum())


def _grown(seeds: Any, block: int) -> Any:
    """Return the units within half a block of a seed."""
    from torch.nn.functional import max_pool2d

    return max_pool2d(seeds, block, stride=1, padding=block // 2)


def implementations(block: int, drop_prob: float, seed: int) -> dict[str, Layer]:
    """Return every implementation that takes this block size, by name."""
    from overt.nn import DropBlock2d

    found: dict[str, Layer] = {
        "overt": DropBlock2d(drop_prob, block, seed=seed),
        "overt, uniform": DropBlock2d(drop_prob, block, uniform=True, seed=seed),
        "overt, grid": DropBlock2d(drop_prob, block, placement="grid", seed=seed),
        "max-pooled seeds (timm)": lambda x: seed_everywhere(x, drop_prob, block),
        "max-pooled seeds (dropblock)": lambda x: seed_shared(x, drop_prob, block),
    }
    if block % 2:
        found["max-pooled seeds (torchvision)"] = lambda x: seed_mask(
            x, drop_prob, block
        )
        if find_spec("torchvision") is not None:
            ops = import_module("torchvision.ops")
            found["torchvision itself"] = ops.DropBlock2d(drop_prob, block)
    return found


def run_realized(params: Params, seed: int) -> dict[str, Any]:
    """Measure one block size and nominal value in every implementation."""
    import torch

    block, drop_prob = params["block_size"], params["drop_prob"]
    size = SIZES[block]
    torch.manual_seed(seed)
    rows: dict[str, Any] = {}
    for name, layer in implementations(block, drop_prob, seed % 2**31).items():
        fractions, total = [], torch.zeros(size, dtype=torch.float64)
        square = torch.zeros(size, dtype=torch.float64)
        for _ in range(params["batches"]):
            y = layer(torch.ones(64, 4, *size)).double()
            fractions += (y == 0).double().mean((1, 2, 3)).tolist()
            total, square = total + y.mean((0, 1)), square + (y * y).mean((0, 1))
        mean = total / params["batches"]
        spread = (square / params["batches"] - mean**2).clamp(min=0)
        rows[name] = {
            "realized": float(np.mean(fractions)),
            "error": float(np.std(fractions) / np.sqrt(len(fractions))),
            "center": float(mean[size[0] // 2, size[1] // 2]),
            "corner": float(mean[0, 0]),
            "worst_mean": float((mean - 1).abs().max()),
            "mean_error": float((spread / (params["batches"] * 64)).sqrt().max()),
        }
    return {"implementations": rows}


def check_realized(rows: list[Row]) -> Findings:
    """Check that overt's layers realize the nominal value, and say what the others do."""
    for row in rows:
        nominal, found = row["drop_prob"], row["implementations"]
        ours = {name: f for name, f in found.items() if name.startswith("overt")}
        others = {name: f for name, f in found.items() if name not in ours}
        off = max(abs(f["realized"] - nominal) / f["error"] for f in ours.values())
        mean = max(f["worst_mean"] / f["mean_error"] for f in ours.values())
        realized = ", ".join(
            f"{name} {f['realized']:.3f}" for name, f in others.items()
        )
        yield Finding(
            f"block {row['block_size']}, nominal {nominal:g}: overt drops what it says, and "
            "its expected output is the input everywhere",
            off <= 5 and mean <= 5,
            f"within {off:.1f} s.e.; mean within {mean:.1f} s.e.",
            realized,
        )


def plot_realized(rows: list[Row]) -> Any:
    """Plot realized against nominal, one panel for each block size."""
    blocks = values_of(rows, "block_size")
    figure, line = canvas(3.6 * len(blocks), 3.6, 1, len(blocks), squeeze=False)
    for axes, block in zip(line[0], blocks, strict=True):
        chosen = rows_with(rows, block_size=block)
        axes.plot([0, 0.6], [0, 0.6], color="0.75", lw=1)
        for name in chosen[0]["implementations"]:
            x = [row["drop_prob"] for row in chosen]
            y = [row["implementations"][name]["realized"] for row in chosen]
            ours = name.startswith("overt")
            axes.plot(
                x,
                y,
                marker="o" if ours else "x",
                ms=7 if ours else 5,
                lw=1,
                label=name,
                mfc="none",
            )
        height, width = SIZES[block]
        axes.set(
            title=f"block {block} on {height} x {width}",
            xlabel="nominal drop probability",
        )
    figure.axes[0].set_ylabel("realized drop fraction")
    lines, names = figure.axes[-1].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=3, fontsize=8)
    return figure


figure(
    "nn-realized",
    "",
    "",
    """What DropBlock really drops.

    Overt's DropBlock realizes its nominal drop probability; the popular algorithms do not.
    """,
    run=run_realized,
    check=check_realized,
    plot=plot_realized,
    hours={"paper": 0.01},
    sizes={
        "toy": {
            "block_size": [4, 7],
            "drop_prob": [0.1, 0.5],
            "batches": 6,
        },
        "paper": {
            "block_size": [3, 4, 7],
            "drop_prob": [0.1, 0.2, 0.25, 0.5],
            "batches": 60,
        },
    },
    differs={"paper": "our own figure", "toy": "our own figure"},
    needs={"torch": "torch"},
)
