"""Small models whose robustness is known, and a generic solver for projections."""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np
import torch
from torch import nn


def linear_model(classes, inputs, seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return nn.Linear(inputs, classes).to(dtype)


def small_mlp(inputs=6, width=8, classes=3, seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, classes)
    ).to(dtype)


def logits(model, x):
    from overt.robust.models import ModelAdapter

    return ModelAdapter(model, x).logits(x, torch.arange(len(x)))


def points(n, inputs, seed=0, dtype=torch.float64):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, inputs))).to(
        dtype
    )


def quadratic_program(v, norm, radius, box):
    """argmin |d - v|^2 over the ball and the box, by a convex solver."""
    d = cp.Variable(len(v))
    limits = [cp.norm(d, norm) <= radius]
    if box is not None:
        limits += [d >= box[0], d <= box[1]]
    problem = cp.Problem(cp.Minimize(cp.sum_squares(d - v)), limits)
    with warnings.catch_warnings():
        # The tolerances are tighter than the solver always reaches, which it reports.
        warnings.filterwarnings("ignore", message="Solution may be inaccurate")
        problem.solve(
            solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12
        )
    return d.value


def blobs(n=240, seed=0):
    """Three separable classes in the plane, within [0, 1]."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    centers = np.array([[0.2, 0.2], [0.8, 0.3], [0.4, 0.85]])
    x = np.clip(centers[y] + 0.06 * rng.standard_normal((n, 2)), 0, 1)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def linear_network(weight, bias=None):
    """A linear layer with these weights, in double precision."""
    W = np.atleast_2d(np.asarray(weight, float))
    b = np.zeros(len(W)) if bias is None else np.asarray(bias, float).reshape(-1)
    layer = nn.Linear(W.shape[1], len(W)).double()
    layer.load_state_dict({"weight": torch.tensor(W), "bias": torch.tensor(b)})
    return layer


def two_layer_network(hidden, top, hidden_bias=None, top_bias=None, slope=0.0):
    """x -> A max(slope z, z) + c, z = W x + b."""
    return nn.Sequential(
        linear_network(hidden, hidden_bias),
        nn.LeakyReLU(slope),
        linear_network(top, top_bias),
    )
