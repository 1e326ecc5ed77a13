"""Section 2: the representation cost."""

from __future__ import annotations

from overt import spectral
from overt.papers import descent, oracles
from overt.papers.evidence import DESCENT, relative
from overt.papers.records import Residuals, Rng, item, statement


@statement("Section 2.2", "2.2", how="sampled")
def representation_cost(scale: int, rng: Rng) -> Residuals:
    r"""The representation cost.

    The least sum of squared weights of an L-layer linear network with a given map is L sum_i
    s_i^(2/L) over its singular values.

    Assumes: hidden layers at least as wide as the rank.

    TeX: The least sum of squared weights of an L-layer linear network with a given map is $L
    \sum_i s_i^{2/L}$ over its singular values.
    """
    for n in range(2, 4 + scale // 2):
        s = rng.uniform(0.3, 3, n)
        best = descent.cheapest_chain(oracles.with_spectrum(rng, n, n, s), rng)
        yield relative(spectral.factorization_cost(s, 3), best)
    return DESCENT, "descent over the factors of square maps, depth 3"


item(
    "Remark 2.1",
    "2.3",
    "SGD is not Gaussian noise",
    how="not checked",
    open="a remark on other models of SGD in the literature; it states nothing to compute",
)
item(
    "Section 2.2, origin",
    "2.2",
    "The origin is always a local minimum for L > 2",
    by="decay-saddles",
)
