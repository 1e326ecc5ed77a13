"""Oracles shared by the tests: slow, obvious computations of what overt computes in closed form."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np

from overt import CovarianceNoise, DropBlock, DropConnect, Dropout, KeepExactly


def enumerate_masks(noise, width):
    """All masks (n, units) of a noise and their probabilities (n,).

    Gaussian noise has no finite list; 2 d sigma points with its mean and covariance stand for it,
    which is the same to any quadratic function of the mask.
    """
    shape = width if isinstance(width, tuple) else (width,)
    match noise:
        case Dropout(gaussian=True):
            units = math.prod(shape)
            return sigma_points(
                np.ones(units), np.diag(np.broadcast_to(noise.strength, units))
            )
        case Dropout() | DropConnect():
            drop = np.broadcast_to(np.asarray(noise.drop_prob), math.prod(shape))
            return bernoulli_patterns(1 - drop)
        case DropBlock(placement="grid"):
            return _grid_masks(noise, shape)
        case DropBlock(placement="sliding"):
            return _sliding_masks(noise, shape)
        case KeepExactly(count=k):
            masks, _ = bernoulli_patterns(np.full(math.prod(shape), 0.5))
            masks = masks[masks.sum(axis=1) == k]
            return masks, np.full(len(masks), 1 / len(masks))
        case CovarianceNoise():
            return sigma_points(noise.mean(width), noise.covariance(width))
    raise NotImplementedError(noise)


def bernoulli_patterns(keep):
    """All 0/1 vectors (n, units) with the probability of each when unit i is 1 with keep[i]."""
    patterns = np.array(list(product((0.0, 1.0), repeat=len(keep))))
    return patterns, np.prod(
        np.where(patterns == 1, keep, 1 - np.asarray(keep)), axis=1
    )


def sigma_points(mean, covariance):
    """mu +- sqrt(d) l_i, l_i the columns of a root of the covariance, all equally likely."""
    values, vectors = np.linalg.eigh(covariance)
    steps = math.sqrt(len(mean)) * (vectors * np.sqrt(np.maximum(values, 0))).T
    return np.vstack([mean + steps, mean - steps]), np.full(
        2 * len(mean), 0.5 / len(mean)
    )


def _grid_masks(noise, shape):
    grid = tuple(n // noise.block_size for n in shape)
    blocks, probabilities = bernoulli_patterns(
        np.full(math.prod(grid), 1 - noise.drop_prob)
    )
    cells = [tuple(i // noise.block_size for i in unit) for unit in np.ndindex(shape)]
    masks = [[pattern.reshape(grid)[cell] for cell in cells] for pattern in blocks]
    return np.array(masks), probabilities


def _sliding_masks(noise, shape):
    starts = tuple(n - noise.block_size + 1 for n in shape)
    g = noise.seed_probability(shape)
    seeds, probabilities = bernoulli_patterns(np.full(math.prod(starts), g))
    masks = np.ones((len(seeds), *shape))
    for mask, pattern in zip(masks, seeds, strict=True):
        for start in np.argwhere(pattern.reshape(starts)):
            mask[tuple(slice(i, i + noise.block_size) for i in start)] = 0
    return masks.reshape(len(seeds), -1), probabilities


def moments(values, probabilities):
    """Mean (d,) and covariance (d, d) of a discrete law over the rows of `values`."""
    mean = probabilities @ values
    centered = values - mean
    return mean, (centered * probabilities[:, None]).T @ centered


def assert_mean_within_standard_errors(draws, exact, count=5):
    """Fail unless the mean of the draws (along axis 0) is within `count` s.e. of `exact`."""
    draws = np.asarray(draws)
    error = np.abs(draws.mean(axis=0) - exact)
    standard_error = draws.std(axis=0, ddof=1) / math.sqrt(len(draws))
    rounding = 1e-12 * (1 + np.abs(exact))
    worst = np.max(error - count * standard_error - rounding)
    assert worst <= 0, (
        f"off by {np.max(error):.3g}, standard error {np.max(standard_error):.3g}"
    )


def deep_term_by_pivots(weights, order, second_moment=None):
    """R_l of Proposition 8 as printed: a sum over all choices of l pivot layers and their units."""
    depth = len(weights) - 1
    C = np.eye(weights[0].shape[1]) if second_moment is None else second_moment
    total = 0.0
    for layers in combinations(range(1, depth + 1), order):
        for units in product(*(range(weights[layer - 1].shape[0]) for layer in layers)):
            incoming = chain_product(weights[: layers[0]])[units[0]]
            outgoing = chain_product(weights[layers[-1] :])[:, units[-1]]
            term = incoming @ C @ incoming * (outgoing @ outgoing)
            for p in range(order - 1):
                between = chain_product(weights[layers[p] : layers[p + 1]])
                term *= between[units[p + 1], units[p]] ** 2
            total += term
    return total


def chain_product(weights):
    """W_n ... W_1."""
    result = weights[0]
    for W in weights[1:]:
        result = W @ result
    return result


def paper_equalizer(U):
    """Algorithm 2 of Implicit bias of dropout: one eigendecomposition for each column.

    The mean w of the eigenvectors of G, times the root of their number, has w'Gw = mean(diag(G)).
    """
    r = U.shape[1]
    G, Q = U.T @ U, np.eye(r)
    for i in range(r):
        _, vectors = np.linalg.eigh(G)
        w = vectors.sum(axis=1) / math.sqrt(r - i)
        rotation = _basis_starting_with(w)
        Q[:, i:] = Q[:, i:] @ rotation
        G = (rotation.T @ G @ rotation)[1:, 1:]
    return Q


def _basis_starting_with(w):
    basis = np.linalg.svd(w[:, None])[0]
    basis[:, 0] = w
    return basis


def central_differences(function, x, step=1e-5):
    """Gradient of a scalar function at the array x."""
    gradient = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        shift = np.zeros_like(x)
        shift[index] = step
        gradient[index] = (function(x + shift) - function(x - shift)) / (2 * step)
    return gradient


def square_root(C):
    """The symmetric root of a positive semi-definite matrix."""
    values, vectors = np.linalg.eigh(C)
    return vectors * np.sqrt(np.maximum(values, 0)) @ vectors.T


def inputs_with_second_moment(C, samples, rng):
    """Inputs X (samples x inputs) with X'X / samples = C exactly."""
    orthonormal = np.linalg.qr(rng.standard_normal((samples, len(C))))[0]
    return math.sqrt(samples) * orthonormal @ square_root(C)


def anisotropic(size, rng):
    """A well-conditioned second moment with correlations."""
    root = rng.standard_normal((size, size + 2))
    return root @ root.T / size
