"""Chapter 1: norm measures."""

from __future__ import annotations

from typing import Any

import numpy as np

from overt.papers.records import Residuals, Rng, statement


@statement("Section 1.1.1", "1.1.1", how="bound evaluated")
def audit_norm_measures(rng: Rng) -> Residuals:
    """Norm measures compared.

    The spectral measure (1.2) is never worse than the PAC-Bayes measure (1.3) up to a constant,
    (k+1)/k, which orthogonal weights need.

    Assumes: the width in (1.3) is the largest number of rows of a weight.

    TeX: The spectral measure $(1.2)$ is never worse than the PAC-Bayes measure $(1.3)$ up to a
    constant, $(k+1)/k$, which orthogonal weights need.
    """
    ratio = 0.0
    for _ in range(20):
        k = int(rng.integers(1, 5))
        d = int(rng.integers(2, 9))
        weights = rng.standard_normal((k + 1, d, d))
        weights *= rng.exponential(size=(k + 1, d, 1))
        orthogonal, _ = np.linalg.qr(weights)
        for chosen in (weights, orthogonal):
            # Without prod |W_i|_2 / sqrt(n), which both have.
            norms = np.linalg.norm(chosen, 2, axis=(1, 2))
            scaled = chosen / norms[:, None, None]
            lengths = np.linalg.norm(scaled, axis=2)
            rows = lengths.sum(axis=1)
            spectral = np.sum(rows ** (2 / 3))
            spectral **= 1.5
            squares = np.sum(scaled**2)
            pac_bayes = np.sqrt(d * k**2 * squares)
            constant = spectral / pac_bayes * k / (k + 1)
            yield constant - 1
            ratio = max(ratio, constant)
    yield 1 - ratio  # the constant is reached
    detail = "random and orthogonal chains, up to 5 layers; null: a constant ten times smaller"
    return 1e-12, detail, None, 10 * ratio - 1


@statement("Section 1.1.3, FGSM", "1.1.3")
def fgsm_is_one_step(rng: Rng) -> Residuals:
    r"""FGSM is one step of PGD of infinite size.

    One step of projected gradient ascent with a large step, in the Linf ball, is the fast gradient
    sign method.

    TeX: One step of projected gradient ascent with a large step, in the $\ell_\infty$ ball, is the
    fast gradient sign method.
    """
    import torch

    from overt.robust import FGSM, PGD, Linf

    ball = Linf(0.1)
    sign = FGSM(ball)
    step = PGD(ball, steps=1, schedule="constant", step_size=1e6)
    for _ in range(3):
        V = torch.from_numpy(rng.standard_normal((5, 7)))
        U = torch.from_numpy(rng.standard_normal((7, 3)))
        x = torch.from_numpy(rng.standard_normal((6, 5)))

        def net(x: Any, V: Any = V, U: Any = U) -> Any:
            return torch.tanh(x @ V) @ U

        y = net(x).argmax(1)
        one = sign(net, x, y).x
        other = step(net, x, y).x
        off = (one - other).abs()
        yield float(off.max())
    return 1e-12, "largest difference of the two attacked inputs"
