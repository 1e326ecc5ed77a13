"""Random samples (x, y) and multipliers of units for training, a block of steps at a time.

Each comes from a separate stream, so that a run does not depend on where it is cut into blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from overt._check import InputError
from overt._types import Floats
from overt.noise import Noise

Advance = Callable[[list[Floats], Floats], int]
"""advance(weights, rates) takes a step in place for each rate, and returns how many: fewer if the
run diverged. It releases the interpreter lock, so that seeds can share the cores."""

Kernel = Callable[..., int]
"""kernel(Ut, Vt, x, y, z, rates), as in `overt.linear.kernels`."""

LIMIT = 1e40
"""The squared error beyond which a run has diverged."""

BLOCK = 100_000
"""Largest number of random numbers generated at once."""

ISOTROPIC, CORRELATED, DATA = 0, 1, 2


class Samples(NamedTuple):
    """Where (x, y) comes from; `noise`, if any, masks x before the network sees it.

    kind        x                                 y
    ISOTROPIC   normal                            outputs @ x
    CORRELATED  inputs @ normal                   outputs @ x
    DATA        a row of inputs, at random        the same row of outputs
    """

    kind: int
    inputs: Floats
    outputs: Floats
    noise: Noise | None = None

    def batch(
        self,
        size: int,
        rng: np.random.Generator,
        masks: np.random.Generator | None = None,
    ) -> tuple[Floats, Floats]:
        """Sample `size` pairs at once, samples x features; masks of inputs from a stream apart."""
        if self.kind == DATA:
            rows = rng.integers(0, len(self.inputs), size)
            x, y = self.inputs[rows], self.outputs[rows]
        else:
            x = rng.standard_normal((size, self.inputs.shape[1]))
            x = x @ self.inputs.T if self.kind == CORRELATED else x
            y = x @ self.outputs.T
        if self.noise is not None and size:
            x = x * multipliers(
                self.noise, x.shape[1], size, rng if masks is None else masks
            )
        return x, y


def samples_of_target(
    M: Floats, L: Floats | None, noise: Noise | None = None
) -> Samples:
    """Return x = L g with g normal (x = g if L is None) and y = M x."""
    M = np.ascontiguousarray(M)
    if L is None:
        return Samples(ISOTROPIC, M, M, noise)
    return Samples(CORRELATED, np.ascontiguousarray(L), M, noise)


def multipliers(
    noise: Noise, units: int, size: int, rng: np.random.Generator
) -> Floats:
    """Return sampled multipliers z / mu, `size` x units."""
    z = np.ascontiguousarray(noise.multipliers(units, size, rng), dtype=float)
    if z.shape != (size, units) or not np.isfinite(z).all():
        raise InputError(
            f"{type(noise).__name__} must draw finite masks of shape (size, width) = "
            f"({size}, {units}), got shape {z.shape}"
        )
    return z


def masks(
    kernel: Kernel,
    samples: Samples,
    noise: Noise,
    shape: tuple[int, ...],
    rng: np.random.Generator,
    batch_size: int = 1,
) -> Advance:
    """Return steps by a kernel whose masks, of this shape, are sampled from the noise."""
    for_masks, for_inputs = rng.spawn(2)
    drawn = samples.outputs.shape[0] + samples.inputs.shape[-1] + int(np.prod(shape))
    block = max(1, BLOCK // (drawn * batch_size))

    def advance(weights: list[Floats], rates: Floats) -> int:
        rows = [np.ascontiguousarray(W.T) for W in weights]
        taken = 0
        # Without rates nothing is sampled, but what is not compiled yet is compiled.
        for first in range(0, max(len(rates), 1), block):
            part = rates[first : first + block]
            size, places = len(part) * batch_size, (len(part), batch_size)
            x, y = samples.batch(size, rng, for_inputs)
            z = np.empty((0, *shape))
            if size:
                z = multipliers(noise, int(np.prod(shape)), size, for_masks)
            given = (
                a.reshape(*places, *a.shape[1:])
                for a in (x, y, z.reshape(size, *shape))
            )
            taken += kernel(rows[0], rows[-1], *given, part)
            if taken < first + len(part):
                break
        for W, row in zip(weights, rows, strict=True):
            W[:] = row.T
        return taken

    return advance
