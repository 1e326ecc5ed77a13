"""What the papers prove about the last layers of networks, checked on PyTorch modules.

The checks import torch when they run; where it is missing their verdict is an error that says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from overt.theorems import _oracles as oracles
from overt.theorems.base import EXACT, MONTE_CARLO, Residuals, relative, standard_errors, theorem


@theorem(
    "nn-last-layer",
    source="Structured dropout, Lemma 3.1",
    claim="What explicit_penalty returns is what noise before the last layer adds to E|y - f|^2",
    assumes="the noise is followed by affine maps only (here a convolution, pooling and a layer)",
)
def last_layer(scale: int, rng: np.random.Generator) -> Residuals:
    """Enumerate the blocks dropped in a convolutional network."""
    from overt import nn as onn

    torch, seq = oracles.seeded_torch(rng)
    drop_prob, block, size = float(rng.uniform(0.2, 0.7)), 2, 3
    model = seq(
        torch.nn.Conv2d(1, 1, 2),
        torch.nn.Tanh(),
        onn.DropBlock2d(drop_prob, block),
        torch.nn.Conv2d(1, 2 * scale, 2),
        torch.nn.AvgPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(2 * scale, 3),
    )
    x = torch.randn(5, 1, size + 1, size + 1).double()
    keep = model[2].keep_prob((size, size)).numpy().ravel()
    seed_prob = 1 - float(keep[0])  # a corner is covered by one block
    z, p = oracles.sliding_masks((size, size), block, seed_prob)
    multipliers = torch.as_tensor(z / keep).reshape(-1, 1, size, size)
    added = _added(model, x, multipliers, p, torch)
    yield relative(_stated(model, x), added)
    return EXACT, f"all {len(p)} sets of blocks, drop_prob {drop_prob:.2f}"


@theorem(
    "nn-dropout-factor",
    source="Structured dropout, Corollary 3.2; Thesis, Proposition 5",
    claim="Dropout before the last layer U adds lam sum_j |u_j|^2 mean(a_j^2)",
    correction="Corollary 3.2 omits the factor lam",
)
def dropout_factor(scale: int, rng: np.random.Generator) -> Residuals:
    """Enumerate the masks of a hidden layer."""
    from overt import nn as onn

    torch, model, x, multipliers, p = _hidden_layer(rng, 5 + 2 * scale, 0.45, onn.Dropout)
    added = _added(model, x, multipliers, p, torch)
    a, U = torch.relu(model[0](x)), model[3].weight
    printed = float(((U**2).sum(0) * (a**2).mean(0)).sum())
    yield relative(_stated(model, x), added)
    return EXACT, f"all {len(p)} masks", relative(printed, added)


@theorem(
    "nn-variance",
    source="Structured dropout, Lemma 3.1, per input",
    claim="Var(o_k | x) of last-layer dropout is lam sum_j U_kj^2 a_j(x)^2, in one pass",
    assumes="the noise is followed by affine maps only",
)
def variance(scale: int, rng: np.random.Generator) -> Residuals:
    """Enumerate the masks and compare the whole covariance of the outputs."""
    from torch.nn import Dropout

    from overt import nn as onn

    torch, model, x, multipliers, p = _hidden_layer(rng, 5 + 2 * scale, 0.7, Dropout)
    outputs = _outputs(model, x, multipliers, torch).numpy()
    mean = np.tensordot(p, outputs, 1)
    centered = outputs - mean
    expected = np.einsum("m,mbi,mbj->bij", p, centered, centered)
    found = onn.predictive_moments(model, x, covariance=True)
    yield relative(found.variance.detach().numpy(), expected)
    yield relative(found.mean.detach().numpy(), mean)
    return EXACT, f"mean and covariance over all {len(p)} masks"


@theorem(
    "nn-dropconnect",
    source="Structured dropout, Theorem 4.1",
    claim="DropConnect on V adds lam sum_k |u_k|^2 v_k' diag(C) v_k, C the inputs' second moment",
    assumes="a linear layer follows",
    correction="the theorem prints C, and so equivalence with Dropout, in place of diag(C)",
)
def dropconnect(scale: int, rng: np.random.Generator) -> Residuals:
    """Enumerate the dropped weights on correlated inputs."""
    from overt import nn as onn

    torch, seq = oracles.seeded_torch(rng)
    inputs, width, drop_prob = 4, 2, float(rng.uniform(0.2, 0.7))
    model = seq(
        onn.DropConnectLinear(inputs, width, bias=False, drop_prob=drop_prob),
        torch.nn.Linear(width, 2 + scale, bias=False),
    )
    x = torch.as_tensor(rng.standard_normal((7, inputs)) + 1.0)
    V, U = model[0].weight, model[1].weight
    z, p = oracles.multipliers(inputs * width, drop_prob)
    masked = torch.as_tensor(z).reshape(-1, width, inputs) * V
    clean = x @ V.T @ U.T
    losses = ((x @ masked.mT @ U.T - clean) ** 2).sum(2).mean(1).detach().numpy()
    added, lam = float(p @ losses), drop_prob / (1 - drop_prob)
    printed = lam * float(((U**2).sum(0) * ((x @ V.T) ** 2).mean(0)).sum())
    detail = f"all {len(p)} masks of {inputs * width} weights, inputs of mean 1"
    yield relative(_stated(model, x), added)
    return EXACT, detail, relative(printed, added)


@theorem(
    "nn-path-norm",
    source="Thesis, Proposition 6",
    claim="Dropout in a two-layer ReLU network adds (lam/2) sum over paths of U_ki^2 V_ij^2",
    assumes="inputs symmetric about 0 with E[x x'] = I",
    correction="the main text omits lam",
)
def relu_path_norm(scale: int, rng: np.random.Generator) -> Residuals:
    """Evaluate the penalty on a symmetric data set with second moment I."""
    from overt import nn as onn

    torch, seq = oracles.seeded_torch(rng)
    inputs, width, drop_prob = 4, 8 * scale, float(rng.uniform(0.55, 0.8))
    model = seq(
        torch.nn.Linear(inputs, width, bias=False), torch.nn.ReLU(), onn.Dropout(drop_prob),
        torch.nn.Linear(width, 3),
    )  # fmt: skip
    half = np.linalg.qr(rng.standard_normal((30, inputs)))[0] * np.sqrt(30)
    x = torch.as_tensor(np.concatenate([half, -half]))
    V, U = model[0].weight, model[3].weight
    paths = float(((U**2) @ (V**2)).sum())
    lam = drop_prob / (1 - drop_prob)
    value = _stated(model, x)
    stated, printed = (relative(value, factor / 2 * paths) for factor in (lam, 1))
    yield stated
    return EXACT, f"{len(x)} symmetric points, width {width}", printed


@theorem(
    "nn-sliding-blocks",
    source="Structured dropout, section 5.3",
    claim="With the seed probability g of mean_i (1-g)^(c_i) = keep, sliding DropBlock drops what "
    "it says, and its expected output is its input everywhere",
    correction="section 5.3 prints the keep probability 1 - (1 - keep)^(1 / (2k - 1)) of a start, "
    "its k undefined and here taken to be the block size",
)
def sliding_blocks(scale: int, rng: np.random.Generator) -> Residuals:
    """Draw masks; the residual is the largest deviation in standard errors."""
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


def _hidden_layer(rng: np.random.Generator, width: int, most: float, kind: Any) -> Any:
    """Return torch, a network with dropout, its drop_prob and inputs, and all masks with chances.

    One hidden layer of ReLU units, with drop_prob between .2 and `most`; masks as multipliers.
    """
    torch, seq = oracles.seeded_torch(rng)
    drop_prob = float(rng.uniform(0.2, most))
    model = seq(torch.nn.Linear(4, width), torch.nn.ReLU(), kind(drop_prob),
                torch.nn.Linear(width, 3))  # fmt: skip
    x = torch.randn(6, 4).double()
    z, p = oracles.multipliers(width, drop_prob)
    return torch, model, x, torch.as_tensor(z)[:, None], p


def _stated(model: Any, x: Any) -> float:
    from overt.nn import explicit_penalty

    return float(explicit_penalty(model, x).value.detach())


def _outputs(model: Any, x: Any, multipliers: Any, torch: Any) -> Any:
    """Return the outputs when the noise, the third module, multiplies by each of these."""
    before = model[:2](x)
    return torch.stack([model[3:](before * m) for m in multipliers])


def _added(model: Any, x: Any, multipliers: Any, p: Any, torch: Any) -> float:
    """E|y - f|^2 - |y - f|^2 averaged over x, for a random y."""
    outputs, clean = _outputs(model, x, multipliers, torch), model(x)
    y = torch.randn_like(clean)
    losses = ((outputs - y) ** 2).sum(2).mean(1).numpy()
    return float(p @ losses - float(((clean - y) ** 2).sum(1).mean()))
