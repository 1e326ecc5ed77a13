"""What sliding blocks do, what noise costs a classifier, and what layers really drop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import entr

from overt import noise
from overt._figures import canvas
from overt.papers import oracles
from overt.papers.evidence import DESCENT, EXACT, relative
from overt.papers.figures import Finding, Findings, Params, Row, rows_with, values_of
from overt.papers.records import Residuals, Rng, figure, statement


@statement(how="symbolic", identity="sliding")
def sliding_characteristic(scale: int, rng: Rng) -> Residuals:
    r"""The characteristic matrix of sliding blocks.

    Sliding blocks have Gamma_ij = (1-g)^(-o_ij) - 1, with o_ij the number of block positions
    that cover both units, on a line and on a plane.

    TeX: Sliding blocks have $\Gamma_{ij} = (1-g)^{-o_{ij}} - 1$, with $o_{ij}$ the number of
    block positions that cover both units, on a line and on a plane.

    Proof: Seeds are independent, and a unit is kept iff none of the $c_i$ positions that cover it
    has one: $P(b_i = 1) = (1-g)^{c_i}$. Two units are kept iff none of the $c_i + c_j - o_{ij}$
    positions that cover one of them has a seed, so that $\Gamma_{ij} = P(b_i = b_j = 1)/(P(b_i =
    1) P(b_j = 1)) - 1 = (1-g)^{-o_{ij}} - 1$.
    """
    for shape, b in ((6,), 2), ((8,), 3), ((3, 4), 2), ((4, 4), 3):
        prob = float(rng.uniform(0.1, 0.7))
        block = noise.DropBlock(prob, block_size=b, placement="sliding")
        g = block.seed_probability(shape)
        mu, Gamma = oracles.moments(*oracles.sliding_masks(shape, b, g))
        yield relative(block.mean(shape), mu)
        yield relative(block.characteristic(shape), Gamma)
    return EXACT, "mean and Gamma over all sets of seeds, 1-D and 2-D"


@statement(how="enumerated")
def audit_class_floor(scale: int, rng: Rng) -> Residuals:
    r"""Cross-entropy cannot vanish under dropout.

    Cross-entropy under dropout before the last layer (d units) is at least drop_prob^d times
    the entropy of the classes, and for two classes no larger bound holds.

    TeX: Cross-entropy under dropout before the last layer ($d$ units) is at least
    $\mathtt{drop\_prob}^d$ times the entropy of the classes, and for two classes no larger
    bound holds.

    Proof: With probability $\mathtt{drop\_prob}^d$ all units are dropped. The prediction then is
    the same distribution $q$ for every point, and the mean of $-\log q_y$ is at least the entropy
    of the classes (Gibbs). Other masks add at least 0. For two classes let all units be $t y$,
    and the bias the log-odds of the classes: as $t \to \infty$ the loss under every other mask
    goes to 0, and under the empty one it is the entropy.
    """
    d = 2 + scale
    p = float(rng.uniform(0.3, 0.7))
    floor = p**d * float(np.sum(entr([0.6, 0.4])))
    z, chances = oracles.masks(np.full(d, 1 - p))
    signs = np.array([-1.0, -1, -1, 1, 1])
    for sure in (0.1, 1.0, 10.0, 100.0):
        logits = np.outer(z.sum(axis=1), sure * signs) + np.log(0.4 / 0.6)
        loss = float(chances @ np.logaddexp(0, -signs * logits).mean(axis=1))
        yield (floor - loss) / floor
    yield relative(loss, floor)
    return DESCENT, f"all masks of {d} units, drop_prob {p:.2f}"


SIZES = {3: (14, 14), 4: (9, 13), 7: (14, 14)}
"""Height and width of the map for each block size."""


def seed_inside(x: Any, drop_prob: float, block: int) -> Any:
    """Return torchvision's algorithm: seeds inside the map, max-pooled; batch rescaling."""
    import torch
    from torch.nn.functional import pad

    n, c, h, w = x.shape
    h = h - block + 1
    w = w - block + 1
    seeds = torch.empty(n, c, h, w).bernoulli_(_gamma(x, drop_prob, block))
    return _masked(x, _grown(pad(seeds, [block // 2] * 4), block))


def seed_everywhere(x: Any, drop_prob: float, block: int) -> Any:
    """Return timm's fast algorithm: the same gamma, seeds anywhere; batch rescaling."""
    import torch

    seeds = torch.empty_like(x).bernoulli_(_gamma(x, drop_prob, block))
    return _masked(x, _grown(seeds, block))


def _gamma(x: Any, drop_prob: float, block: int) -> float:
    h, w = x.shape[2:]
    fitting = (h - block + 1) * (w - block + 1)
    return min(drop_prob * h * w / (block**2 * fitting), 1.0)


def _grown(seeds: Any, block: int) -> Any:
    """Return the units within half a block of a seed."""
    from torch.nn.functional import max_pool2d

    return max_pool2d(seeds, block, stride=1, padding=block // 2)


def _masked(x: Any, dropped: Any) -> Any:
    h, w = x.shape[2:]
    keep = 1 - dropped[..., :h, :w]
    return x * keep * (keep.numel() / (keep.sum() + 1e-7))


def implementations(
    block: int, drop_prob: float, seed: int
) -> dict[str, Callable[[Any], Any]]:
    """Return every implementation that takes this block size, by name."""
    from overt.nn import DropBlock2d

    found: dict[str, Callable[[Any], Any]] = {
        "overt": DropBlock2d(drop_prob, block, seed=seed),
        "overt, uniform": DropBlock2d(drop_prob, block, uniform=True, seed=seed),
        "overt, grid": DropBlock2d(drop_prob, block, placement="grid", seed=seed),
        "max-pooled seeds (timm)": lambda x: seed_everywhere(x, drop_prob, block),
    }
    if block % 2:
        name = "max-pooled seeds (torchvision)"
        found[name] = lambda x: seed_inside(x, drop_prob, block)
    return found


def run_realized(params: Params, seed: int) -> dict[str, Any]:
    """Measure one block size and nominal value in every implementation."""
    import torch

    block = params["block_size"]
    torch.manual_seed(seed)
    rows: dict[str, Any] = {}
    for name, layer in implementations(
        block, params["drop_prob"], seed % 2**31
    ).items():
        ones = torch.ones(64, 4, *SIZES[block])
        y = torch.cat([layer(ones).double() for _ in range(params["batches"])])
        fractions = (y == 0).double().mean((1, 2, 3))
        mean = y.mean((0, 1))
        # Channels may share a mask: only the points of a batch count as samples.
        error = y.mean(1).std(0) / len(y) ** 0.5
        rows[name] = {
            "realized": float(fractions.mean()),
            "error": float(fractions.std() / len(fractions) ** 0.5),
            "worst_mean": float((mean - 1).abs().max()),
            "mean_error": float(error.max()),
        }
    return {"implementations": rows}


def check_realized(rows: list[Row]) -> Findings:
    """Check that overt's layers realize the nominal value, and say what the others do."""
    for row in rows:
        nominal = row["drop_prob"]
        found = row["implementations"]
        ours = [found[name] for name in found if name.startswith("overt")]
        off = max(abs(f["realized"] - nominal) / f["error"] for f in ours)
        mean = max(f["worst_mean"] / f["mean_error"] for f in ours)
        others = [name for name in found if not name.startswith("overt")]
        realized = [f"{name} {found[name]['realized']:.3f}" for name in others]
        yield Finding(
            f"block {row['block_size']}, nominal {nominal:g}: overt drops what it says, and "
            "its expected output is the input everywhere",
            off <= 5 and mean <= 5,
            f"within {off:.1f} s.e.; mean within {mean:.1f} s.e.",
            ", ".join(realized),
        )


def plot_realized(rows: list[Row]) -> Any:
    """Plot realized against nominal, one panel for each block size."""
    blocks = values_of(rows, "block_size")
    picture, line = canvas(3.6 * len(blocks), 3.6, 1, len(blocks), squeeze=False)
    for axes, block in zip(line[0], blocks, strict=True):
        chosen = rows_with(rows, block_size=block)
        x = [row["drop_prob"] for row in chosen]
        axes.plot([0, 0.6], [0, 0.6], color="0.75", lw=1)
        for name in chosen[0]["implementations"]:
            y = [row["implementations"][name]["realized"] for row in chosen]
            style = "o-" if name.startswith("overt") else "x-"
            axes.plot(x, y, style, lw=1, label=name, mfc="none")
        height, width = SIZES[block]
        axes.set_title(f"block {block} on {height} x {width}")
        axes.set_xlabel("nominal drop probability")
        axes.legend()
    line[0, 0].set_ylabel("realized drop fraction")
    return picture


figure(
    "nn-realized",
    "Realized drop fractions",
    "DropBlock",
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
    differs={
        "paper": "our own figure",
        "toy": "our own figure",
    },
    needs={"torch": "torch"},
)
