"""Section 4.4: the same maps written otherwise."""

from __future__ import annotations

import numpy as np

from overt.papers.evidence import EXACT, relative
from overt.papers.records import Residuals, Rng, statement


@statement("Section 4.4, convolution", "4.4", how="enumerated")
def sensing_convolution(scale: int, rng: Rng) -> Residuals:
    r"""Sensing is a convolution.

    <UV', A> = <vec(U'), (I kron V') vec(A')>: sensing is regression by a network whose first
    layer is a convolution with the columns of V as filters.

    TeX: $\langle UV^\top , A\rangle = \langle \operatorname{vec}(U^\top ), (I \otimes V^\top )
    \operatorname{vec}(A^\top )\rangle $: sensing is regression by a network whose first layer
    is a convolution with the columns of $V$ as filters.
    """
    U = rng.normal(size=(4, 2))
    V = rng.normal(size=(3, 2))
    A = rng.normal(size=(4, 3))
    # Rows of U and A, stacked, are vec of the transpose.
    network = U.ravel() @ np.kron(np.eye(4), V.T) @ A.ravel()
    yield relative(network, np.sum(U @ V.T * A))
    return EXACT, "the Kronecker product written out"
