"""What sliding blocks do, and what noise costs a classifier."""

from __future__ import annotations

import numpy as np
from scipy.special import entr

from overt import noise
from overt.papers import oracles
from overt.papers.evidence import DESCENT, EXACT, relative
from overt.papers.records import Residuals, Rng, statement


@statement(identity="sliding")
def sliding_characteristic(rng: Rng) -> Residuals:
    r"""The characteristic matrix of sliding blocks.

    Sliding blocks have Gamma_ij = (1-g)^(-o_ij) - 1, with o_ij the number of block positions
    that cover both units, on a line and on a plane.

    TeX: Sliding blocks have $\Gamma_{ij} = (1-g)^{-o_{ij}} - 1$, with $o_{ij}$ the number of
    block positions that cover both units, on a line and on a plane.

    Proof: Seeds are independent, and a unit is kept iff none of the $c_i$ positions that cover it
    has one: $P(b_i = 1) = (1-g)^{c_i}$. Two units are kept iff none of the $c_i + c_j - o_{ij}$
    positions that cover one of them has a seed, so that $\Gamma_{ij} = P(b_i = b_j = 1)/(P(b_i =
    1) P(b_j = 1)) - 1 = (1-g)^{-o_{ij}} - 1$.
    """
    for shape, b in ((6,), 2), ((8,), 3), ((3, 4), 2), ((4, 4), 3):
        prob = float(rng.uniform(0.1, 0.7))
        block = noise.DropBlock(prob, block_size=b, placement="sliding")
        g = block.seed_probability(shape)
        mu, Gamma = oracles.moments(*oracles.sliding_masks(shape, b, g))
        yield relative(block.mean(shape), mu)
        yield relative(block.characteristic(shape), Gamma)
    return EXACT, "mean and Gamma over all sets of seeds, 1-D and 2-D"


@statement(how="enumerated")
def audit_class_floor(rng: Rng) -> Residuals:
    r"""Cross-entropy cannot vanish under dropout.

    Cross-entropy under dropout before the last layer (d units) is at least drop_prob^d times
    the entropy of the classes, and for two classes no larger bound holds.

    TeX: Cross-entropy under dropout before the last layer ($d$ units) is at least
    $\mathtt{drop\_prob}^d$ times the entropy of the classes, and for two classes no larger
    bound holds.

    Proof: With probability $\mathtt{drop\_prob}^d$ all units are dropped. The prediction then is
    the same distribution $q$ for every point, and the mean of $-\log q_y$ is at least the entropy
    of the classes (Gibbs). Other masks add at least 0. For two classes let all units be $t y$,
    and the bias the log-odds of the classes: as $t \to \infty$ the loss under every other mask
    goes to 0, and under the empty one it is the entropy.
    """
    d = 3
    p = float(rng.uniform(0.3, 0.7))
    floor = p**d * float(np.sum(entr([0.6, 0.4])))
    z, chances = oracles.masks(np.full(d, 1 - p))
    signs = np.array([-1.0, -1, -1, 1, 1])
    for sure in (0.1, 1.0, 10.0, 100.0):
        logits = np.outer(z.sum(axis=1), sure * signs) + np.log(0.4 / 0.6)
        loss = float(chances @ np.logaddexp(0, -signs * logits).mean(axis=1))
        yield (floor - loss) / floor
    yield relative(loss, floor)
    return DESCENT, f"all masks of {d} units, drop_prob {p:.2f}"
