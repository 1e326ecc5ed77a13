"""Training noises: each draws masks and knows their exact moments.

A mask z over the hidden units has a non-zero mean mu and a covariance K; the network multiplies
unit i by z_i / mu_i, so that its expected output is the noise-free one. All that a noise does to a
squared loss depends on its **characteristic matrix**

    Gamma_ij = K_ij / (mu_i mu_j)                                       (structured dropout, eq. 16)

`width` is the number of units, or a (height, width) pair for units that lie on a plane; moments are
then those of the flattened plane.
"""

from __future__ import annotations

from overt.noise.blocks import DropBlock
from overt.noise.checking import check
from overt.noise.masks import CovarianceNoise, DropConnect, Dropout, KeepExactly, Noise

__all__ = [
    "CovarianceNoise",
    "DropBlock",
    "DropConnect",
    "Dropout",
    "KeepExactly",
    "Noise",
    "check",
]
