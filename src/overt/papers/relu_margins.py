"""Thesis, Assumption 2: the margin of data in the space of a ReLU network's gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from overt import _check
from overt._check import InputError, doubles, generator, number, whole
from overt._progress import meter
from overt._types import Floats, Seed
from overt.relu.training import labels
from overt.results import Result, Status

FRESH = 20
"""Features on which a margin is measured, as a multiple of those that chose the map."""


@dataclass(frozen=True, repr=False, eq=False)
class Margin(Result):
    """The margin gamma of Assumption 2 between two estimates.

    Attributes
    ----------
    lower
        The margin of an explicit map psi, on features z that did not choose it, three standard
        errors off: what Theorems 14 and 15 may be used with. Not above 0 if none was found.
    upper
        The value of a dual point on the same features, three standard errors added.
    gap
        upper - lower on the features that chose the map, before fresh ones are sampled: how far the
        optimization is from its end.
    weights
        The dual point: how much each example matters, (samples,).
    """

    lower: float
    upper: float
    gap: float
    weights: Floats
    drop_prob: float
    features: int
    status: Status


def margin(
    X: Floats,
    y: Any,
    *,
    drop_prob: float = 0.0,
    features: int = 1000,
    iterations: int = 400,
    tol: float = 0.02,
    seed: Seed = 0,
) -> Margin:
    """gamma = max over psi, |psi(z)| <= 1, of min_i q E_z y_i <psi(z), x_i> 1[z.x_i >= 0].

    q = 1 - drop_prob and z ~ N(0, I). (Assumption 2 calls psi linear; a bounded linear map is 0,
    any map is meant.) By duality gamma / q = min over probabilities p of E_z |s_p(z)|,
    s_p(z) = sum_i p_i y_i x_i 1[z.x_i >= 0], and psi = s_p / |s_p| is the best answer to p: its
    margins are the gradient in p. The dual is minimized by exponentiated gradients on `features`
    samples of z until the relative gap is below `tol`; both sides are then measured on new ones.
    It is the margin of these rows: a law from which they are a sample has a smaller one.

    Parameters
    ----------
    X, y
        Inputs of norm 1, samples x features, and their labels, -1 or 1.
    """
    X = doubles("X", X, ndim=2)
    y = labels(y, len(X))
    unit_rows(X)
    q = 1 - _check.drop_prob(drop_prob)
    rng, count = generator(seed), whole("features", features, 2)
    tol = number("tol", tol)
    signed = y[:, None] * X
    G = _gates(rng, count, X)
    p, value, floor, status = _minimize(G, signed, whole("iterations", iterations), tol)
    lower, upper = _fresh(rng, X, signed, p, count)
    return Margin(q * lower, q * upper, q * (value - floor), p, 1 - q, count, status)


def unit_rows(X: Floats) -> None:
    """Refuse inputs whose norm is not 1."""
    with np.errstate(over="ignore"):
        norms = np.linalg.norm(X, axis=1)
    if np.abs(norms - 1).max() > 1e-6:
        raise InputError(
            f"rows of X must have norm 1, got norms from {norms.min():.4g} to {norms.max():.4g}; "
            "divide each row by its norm"
        )


def _gates(rng: np.random.Generator, count: int, X: Floats) -> Floats:
    """Return 1[z_r . x_i >= 0] for fresh z_r ~ N(0, I): (features, samples)."""
    return np.asarray(rng.normal(size=(count, X.shape[1])) @ X.T >= 0, dtype=np.float64)


def _psi(G: Floats, signed: Floats, p: Floats) -> tuple[Floats, Floats]:
    """Return |s_p(z_r)| and psi(z_r) = s_p / |s_p|, 0 where s_p is."""
    s = G @ (p[:, None] * signed)
    norms = np.linalg.norm(s, axis=1)
    return norms, s / np.where(norms > 0, norms, 1)[:, None]


def _answer(G: Floats, signed: Floats, p: Floats) -> tuple[Floats, Floats]:
    """Return |s_p(z_r)|, and the margin of every sample under psi = s_p / |s_p|."""
    norms, psi = _psi(G, signed, p)
    return norms, np.einsum("ij,ij->i", G.T @ psi, signed) / len(G)


def _minimize(
    G: Floats, signed: Floats, iterations: int, tol: float
) -> tuple[Floats, float, float, Status]:
    """Return (p, E|s_p|, the best least margin of a psi_p met, status).

    Exponentiated gradients, p <- p exp(-step slope) / sum, with the step halved until
    F(p') <= F(p) + slope.(p' - p) + KL(p', p) / step, so F never grows.
    """
    p = np.full(len(signed), 1 / len(signed))
    norms, slope = _answer(G, signed, p)
    value, floor, step = float(norms.mean()), float(slope.min()), 1.0
    try:
        with meter("margin", iterations) as bar:
            for _ in range(iterations):
                if value - floor <= tol * value:
                    return p, value, floor, Status.CONVERGED
                while True:
                    logits = np.log(p) - step * slope
                    # The floor keeps every logarithm finite and lets a sample come back.
                    trial = np.maximum(np.exp(logits - logits.max()), 1e-14)
                    trial /= trial.sum()
                    norms, new = _answer(G, signed, trial)
                    distance = float(trial @ np.log(trial / p))
                    model = value + float(slope @ (trial - p)) + distance / step
                    if norms.mean() <= model + 1e-12 or step < 1e-9:
                        break
                    step /= 2
                p, slope, value, step = trial, new, float(norms.mean()), 1.2 * step
                floor = max(floor, float(slope.min()))
                bar.advance(note=f"{floor:.4f} <= margin <= {value:.4f}")
    except KeyboardInterrupt:
        return p, value, floor, Status.INTERRUPTED
    return p, value, floor, Status.FINISHED


def _fresh(
    rng: np.random.Generator, X: Floats, signed: Floats, p: Floats, count: int
) -> tuple[float, float]:
    """Return the least margin under psi_p and E|s_p| on fresh features, three errors off and on."""
    sums, squares = np.zeros(len(X)), np.zeros(len(X))
    norms = []
    for _ in range(FRESH):
        G = _gates(rng, count, X)
        length, psi = _psi(G, signed, p)
        terms = G * (psi @ signed.T)
        sums, squares = sums + terms.sum(0), squares + (terms**2).sum(0)
        norms.append(length)
    total, lengths = FRESH * count, np.concatenate(norms)
    means = sums / total
    errors = np.sqrt(np.maximum(squares / total - means**2, 0) / total)
    upper = lengths.mean() + 3 * lengths.std() / np.sqrt(total)
    return float((means - 3 * errors).min()), float(upper)
