"""How the compiled kernels draw a noise's multipliers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from overt._types import Floats
from overt.linear.kernels import GAUSSIAN, GRID, INDEPENDENT, SLIDING
from overt.linear.problem import NOTHING
from overt.noise import CovarianceNoise, DropBlock, Dropout, Noise


class Mask(NamedTuple):
    """The last arguments of `kernels.unit_steps`."""

    kind: int
    drop: Floats
    scale: Floats
    block: int
    root: Floats


def mask_of(noise: Noise, width: int) -> Mask:
    """Return how to draw z / mu for a noise over units."""
    scale = 1 / noise.mean(width)
    match noise:
        case Dropout():
            return Mask(INDEPENDENT, 1 - noise.mean(width), scale, 1, NOTHING)
        case DropBlock(placement="grid", block_size=b):
            return Mask(GRID, np.array([noise.drop_prob]), scale, b, NOTHING)
        case DropBlock(block_size=b):
            return Mask(SLIDING, np.array([noise.seed_probability(width)]), scale, b, NOTHING)
        case CovarianceNoise():
            values, vectors = np.linalg.eigh(noise.characteristic(width))
            root = vectors * np.sqrt(np.maximum(values, 0.0))
            return Mask(GAUSSIAN, np.zeros(1), scale, 1, np.ascontiguousarray(root))
    raise TypeError(f"no kernel draws {noise!r}")
