"""Section 4: DropConnect."""

from __future__ import annotations

import numpy as np

from overt import noise, penalty
from overt.papers import oracles
from overt.papers.evidence import EXACT, relative
from overt.papers.records import Residuals, Rng, figure, item, statement
from overt.papers.structured import shallow


@statement("Theorem 4.1", "4", how="symbolic", identity="weights")
def dropconnect(scale: int, rng: Rng) -> Residuals:
    r"""DropConnect's explicit penalty.

    DropConnect on the weights V of x -> U V'x adds lam sum_k |u_k|^2 v_k' diag(C) v_k, which is
    Dropout's penalty only for uncorrelated inputs.

    Printed: C = E[x x'] stands in place of its diagonal part, as if DropConnect and Dropout
    were the same.

    TeX: DropConnect on the weights $V$ of $x \to U V^\top x$ adds $\lambda \sum_k |u_k|^2
    v_k^\top \operatorname{diag}(C) v_k$, which is Dropout's penalty only for uncorrelated
    inputs.
    """
    inputs, d, printed = 3, 3, np.inf
    for _ in range(scale):
        U, V, _, Y = oracles.two_layers(rng, d, inputs)
        X, prob = rng.uniform(0, 2, size=(8, inputs)), float(rng.uniform(0.2, 0.7))
        Z, p = oracles.multipliers(inputs * d, prob)
        masked = Z.reshape(-1, inputs, d) * V
        noisy = ((Y - X @ masked @ U.T) ** 2).sum(-1).mean(-1)
        exact = p @ noisy - ((Y - X @ V @ U.T) ** 2).sum(-1).mean()
        C, lam = X.T @ X / len(X), prob / (1 - prob)
        as_dropout = lam * float((U**2).sum(0) @ np.einsum("ik,ij,jk->k", V, C, V))
        yield relative(penalty.dropconnect(U, V, prob, C), exact)
        printed = min(printed, relative(as_dropout, exact))
    return EXACT, f"the loss over all {2 ** (inputs * d)} masks of V", printed


@statement("section 4, last layer", "4", how="symbolic", identity="weights")
def dropconnect_last_layer(scale: int, rng: Rng) -> Residuals:
    r"""DropConnect on the last layer is Dropout.

    DropConnect on the last layer's weights U costs the same as Dropout on its inputs.

    TeX: DropConnect on the last layer's weights $U$ costs the same as Dropout on its inputs.
    \[R=\lambda\sum_j\|u_j\|^2\,\mathbb{E}[a_j(x)^2]\]
    """
    outputs, d, prob = 2, 3 + scale // 2, float(rng.uniform(0.1, 0.8))
    U, A = rng.normal(size=(outputs, d)), oracles.relu_layer(rng, d)
    Y = rng.normal(size=(12, outputs))
    Z, p = oracles.multipliers(outputs * d, prob)
    masked = Z.reshape(-1, outputs, d) * U
    noisy = ((Y.T - masked @ A.T) ** 2).sum(1).mean(-1)
    exact = p @ noisy - ((Y - A @ U.T) ** 2).sum(-1).mean()
    yield relative(penalty.hidden(U, A, noise.Dropout(prob)), exact)
    return EXACT, f"all {len(p)} masks of U"


figure(
    "structured-fig3",
    "Figure 3",
    "4",
    """DropConnect beside Dropout.

    DropConnect has an exact objective, Dropout's only where the inputs are uncorrelated.
    """,
    run=shallow.run_dropconnect,
    check=shallow.check_dropconnect,
    plot=shallow.plot_dropconnect,
    sizes={
        "toy": {
            "drop_prob": 0.5,
            "correlation": [0.0, 0.5],
            "samples": 200,
            "inputs": 20,
            "outputs": 16,
            "width": 10,
            "steps": 40000,
        },
        "paper": {
            "drop_prob": 0.5,
            "correlation": [0.0, 0.5],
            "samples": 1000,
            "inputs": 100,
            "outputs": 80,
            "width": 50,
            "steps": 500000,
        },
    },
    differs={
        "toy": "20 inputs, 16 outputs, width 10, 200 samples, 40,000 steps",
        "paper": "learning rates are not printed; 500,000 steps, one run",
    },
)

item(
    "Corollary 4.2",
    "4",
    "DropConnect in linear networks",
    by=("dropconnect", "dropconnect-norm", "dropconnect-optimum"),
)
