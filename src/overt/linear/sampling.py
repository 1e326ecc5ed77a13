"""What a step of training draws: a sample (x, y), and multipliers of the hidden units.

The compiled kernels know the library's noises by a kind each; any other noise draws its multipliers
itself, a block of steps at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from overt._check import InputError
from overt._types import Floats
from overt.noise import CovarianceNoise, DropBlock, Dropout, Noise

Advance = Callable[[list[Floats], Floats], int]
"""advance(weights, rates) takes a step in place for each rate, and returns how many: fewer if the
run diverged. It releases the interpreter lock, so that seeds can share the cores."""

LIMIT = 1e40
"""The squared error beyond which a run has diverged."""

BLOCK = 1000
"""Steps for which multipliers are drawn at once."""

ISOTROPIC, CORRELATED, DATA = 0, 1, 2
INDEPENDENT, GRID, GAUSSIAN, SLIDING, GIVEN = 0, 1, 2, 3, 4

_UNUSED: Floats = np.zeros((1, 1))
"""Stands where a kind reads nothing: compiled code wants an array in every place."""


class Samples(NamedTuple):
    """Where (x, y) comes from.

    kind        x                                 y
    ISOTROPIC   normal                            outputs @ x
    CORRELATED  inputs @ normal                   outputs @ x
    DATA        a row of inputs, drawn uniformly  the same row of outputs
    """

    kind: int
    inputs: Floats
    outputs: Floats

    def batch(self, size: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Draw `size` samples at once, samples x features."""
        if self.kind == DATA:
            rows = rng.integers(0, len(self.inputs), size)
            return self.inputs[rows], self.outputs[rows]
        correlated = self.kind == CORRELATED
        x = rng.standard_normal((size, (self.inputs if correlated else self.outputs).shape[1]))
        x = x @ self.inputs.T if correlated else x
        return x, x @ self.outputs.T


def samples_of_target(M: Floats, L: Floats | None) -> Samples:
    """Return x = L g with g normal (x = g if L is None) and y = M x."""
    M = np.ascontiguousarray(M)
    if L is None:
        return Samples(ISOTROPIC, _UNUSED, M)
    return Samples(CORRELATED, np.ascontiguousarray(L), M)


class Mask(NamedTuple):
    """How a kernel draws z / mu.

    kind         what is drawn                                                reads
    INDEPENDENT  each unit: 0 with probability drop, else scale               drop, scale
    GRID         the same for each block of units                             drop, scale, block
    SLIDING      scale, and 0 from each start on, with probability drop       drop, scale, block
    GAUSSIAN     1 + table @ normal                                           table
    GIVEN        row after row of the table                                   table
    """

    kind: int
    drop: Floats
    scale: Floats
    block: int
    table: Floats


def mask_of(noise: Noise, width: int) -> Mask | None:
    """Return how the kernels draw a noise over units, None if they do not know it."""
    mean = noise.mean(width)
    match noise:
        case Dropout():
            return Mask(INDEPENDENT, 1 - mean, 1 / mean, 1, _UNUSED)
        case DropBlock(placement="grid", block_size=b):
            return Mask(GRID, np.array([noise.drop_prob]), 1 / mean, b, _UNUSED)
        case DropBlock(block_size=b):
            return Mask(SLIDING, np.array([noise.seed_probability(width)]), 1 / mean, b, _UNUSED)
        case CovarianceNoise():
            values, vectors = np.linalg.eigh(noise.characteristic(width))
            root = np.ascontiguousarray(vectors * np.sqrt(np.maximum(values, 0.0)))
            return Mask(GAUSSIAN, np.zeros(1), 1 / mean, 1, root)
    return None


def masks(noise: Noise, width: int, rng: np.random.Generator) -> Callable[[int], Mask]:
    """Return a function that says how to draw the multipliers of the next steps.

    The kernels draw the noises that they know. Any other draws its own, from a stream beside that
    of the samples, so that a run does not depend on where it is cut into blocks.
    """
    known = mask_of(noise, width)
    if known is not None:
        return lambda steps: known
    stream = rng.spawn(1)[0]

    def given(steps: int) -> Mask:
        z = np.ascontiguousarray(noise.multipliers(width, steps, stream), dtype=float)
        if z.shape != (steps, width) or not np.isfinite(z).all():
            raise InputError(
                f"{type(noise).__name__} must draw finite masks of shape (size, width) = "
                f"({steps}, {width}), got shape {z.shape}"
            )
        return Mask(GIVEN, np.zeros(1), np.ones(1), 1, z)

    return given


def on_rows(kernel: Callable[[list[Floats], Floats], int]) -> Advance:
    """Return steps by a kernel that holds one contiguous row per hidden unit, in blocks."""

    def advance(weights: list[Floats], rates: Floats) -> int:
        rows = [np.ascontiguousarray(W.T) for W in weights]
        taken = 0
        for first in range(0, len(rates), BLOCK):
            part = rates[first : first + BLOCK]
            taken += kernel(rows, part)
            if taken < first + len(part):
                break
        for W, row in zip(weights, rows, strict=True):
            W[:] = row.T
        return taken

    return advance
