"""What noise adds to the expected squared loss, against the loss averaged over all masks."""

from __future__ import annotations

import numpy as np

from overt import noise, penalty
from overt.theorems import _oracles as oracles
from overt.theorems.base import EXACT, MONTE_CARLO, Residuals, relative, standard_errors, theorem


@theorem(
    "shallow-penalty",
    source="Implicit bias of dropout, Lemma A.1",
    claim="Dropout on the hidden layer of x -> U V'x adds exactly lam sum_i |u_i|^2 v_i'C v_i to "
    "the expected squared loss, whatever the targets",
)
def _shallow_penalty(scale: int, rng: np.random.Generator) -> Residuals:
    d = 4 + scale
    for _ in range(4):
        U, V, X, Y = oracles.two_layers(rng, d)
        probs = rng.uniform(0.1, 0.8, d)
        z, p = oracles.masks(1 - probs)
        exact = oracles.added_loss(Y, U, X @ V, z / (1 - probs), p)
        yield relative(penalty.shallow(U, V, noise.Dropout(probs), X.T @ X / len(X)), exact)
    return EXACT, f"the loss over all {2**d} masks, one probability per unit"


@theorem(
    "path-norm",
    source="Implicit bias of dropout, eq. 3",
    claim="For uncorrelated inputs of unit variance, dropout's penalty is lam times the squared l2 "
    "path norm: the sum over all input-output paths of the squared products of weights",
    assumes="E[x x'] = I",
)
def _path_norm(scale: int, rng: np.random.Generator) -> Residuals:
    for _ in range(2 * scale):
        U, V, _, _ = oracles.two_layers(rng, 3 + scale)
        paths, prob = oracles.path_sum([V.T, U]), float(rng.uniform(0.1, 0.9))
        lam = prob / (1 - prob)
        yield relative(penalty.path_norm([V.T, U]) ** 2, paths)
        yield relative(penalty.path_norm([V.T, U], order=1), oracles.path_sum([V.T, U], order=1))
        yield relative(penalty.shallow(U, V, noise.Dropout(prob)), lam * paths)
    return EXACT, "every path written out"


@theorem(
    "dropblock-penalty",
    source="Structured dropout, Lemma 2.1",
    claim="DropBlock on a grid adds lam times the sum over blocks of |U_i V_i'X|^2",
    assumes="the block size divides the width",
)
def _dropblock_penalty(scale: int, rng: np.random.Generator) -> Residuals:
    for b in (1, 2, 3):
        d, prob = b * (2 + scale // 2), float(rng.uniform(0.1, 0.8))
        U, V, X, Y = oracles.two_layers(rng, d)
        block = noise.DropBlock(prob, block_size=b)
        exact = oracles.added_loss(Y, U, X @ V, *oracles.multipliers(d, prob, b))
        yield relative(penalty.shallow(U, V, block, X.T @ X / len(X)), exact)
    return EXACT, "the loss over all block decisions, blocks of 1, 2 and 3"


@theorem(
    "generalized-penalty",
    source="Structured dropout, Lemma 3.1",
    claim="Any noise on the last hidden layer of any network adds <Gamma, U'U o E[g g']>, with g "
    "the activations of that layer",
    assumes="no unit's mask has mean zero",
)
def _generalized_penalty(scale: int, rng: np.random.Generator) -> Residuals:
    d, draws = 4, 5000 * scale
    U, A, Y = rng.normal(size=(2, d)), oracles.relu_layer(rng, d), rng.normal(size=(12, 2))
    K = rng.normal(size=(d, d))
    correlated = noise.CovarianceNoise(rng.uniform(0.5, 2, d), K @ K.T / d)
    m = correlated.multipliers(d, draws, rng)
    loss = ((Y - (m[:, None, :] * A) @ U.T) ** 2).sum(-1).mean(-1)
    added = loss - ((Y - A @ U.T) ** 2).sum(-1).mean()
    yield standard_errors(added, penalty.hidden(U, A, correlated))
    return MONTE_CARLO, f"{draws} draws of correlated Gaussian noise on a ReLU layer, in s.e."


@theorem(
    "last-layer-dropout",
    source="Structured dropout, Corollary 3.2",
    claim="Dropout on the last hidden layer of any network adds lam sum_j |u_j|^2 E[a_j(x)^2], "
    "with a_j the activation of unit j",
    correction="The factor lam = drop_prob / (1 - drop_prob) is missing in print",
)
def _last_layer_dropout(scale: int, rng: np.random.Generator) -> Residuals:
    d, prob = 4 + scale, 0.3
    U, A, Y = rng.normal(size=(2, d)), oracles.relu_layer(rng, d), rng.normal(size=(12, 2))
    exact = oracles.added_loss(Y, U, A, *oracles.multipliers(d, prob))
    without_lam = float((U**2).sum(0) @ (A**2).mean(0))
    detail = f"a tanh-ReLU network, its loss over all {2**d} masks"
    yield relative(penalty.hidden(U, A, noise.Dropout(prob)), exact)
    return EXACT, detail, relative(without_lam, exact)


@theorem(
    "predictive-variance",
    source="Structured dropout, Lemma 3.1",
    claim="The variance of Monte Carlo dropout in the last layer has a closed form for each input "
    "and output, lam sum_j U_oj^2 a_j(x)^2 for Dropout",
)
def _predictive_variance(scale: int, rng: np.random.Generator) -> Residuals:
    d, prob = 6 + 2 * (scale // 2), float(rng.uniform(0.1, 0.8))
    U, A = rng.normal(size=(3, d)), oracles.relu_layer(rng, d)
    cases: list[tuple[noise.Noise, int]] = [(noise.Dropout(prob), 1), (noise.DropBlock(prob, 2), 2)]
    for each, b in cases:
        z, p = oracles.multipliers(d, prob, b)
        exact = np.tensordot(p, ((z[:, None, :] * A - A) @ U.T) ** 2, axes=1)
        yield relative(penalty.predictive_variance(U, A, each), exact)
    return EXACT, "Dropout and DropBlock, outputs under all masks"


@theorem(
    "relu-isotropic",
    source="Thesis, Proposition 6",
    claim="In a two-layer ReLU network dropout adds lam/2 times the squared l2 path norm",
    assumes="inputs are symmetric about 0 with E[x x'] = I",
    correction="The main text drops the factor lam; the proposition in the appendix has it",
)
def _relu_isotropic(scale: int, rng: np.random.Generator) -> Residuals:
    d, prob, n = 3, 0.2, 8000 * scale
    U, V, _, _ = oracles.two_layers(rng, d)
    inputs = len(V)
    directions = rng.normal(size=(n, inputs))
    samples = {
        "Laplace": rng.laplace(scale=np.sqrt(0.5), size=(n, inputs)),
        "signs": rng.choice([-1.0, 1.0], size=(n, inputs)),
        "sphere": directions * np.sqrt(inputs) / np.linalg.norm(directions, axis=1, keepdims=True),
    }
    stated = float(penalty.relu_isotropic(U, V, prob))
    without_lam, printed = oracles.path_sum([V.T, U]) / 2, np.inf
    for X in samples.values():
        A, (z, p) = np.maximum(X @ V, 0), oracles.multipliers(d, prob)
        spread = sum(q * (((m - 1) * A @ U.T) ** 2).sum(-1) for q, m in zip(p, z, strict=True))
        yield standard_errors(spread, stated)
        printed = min(printed, standard_errors(spread, without_lam))
    return MONTE_CARLO, f"{n} inputs from each of {', '.join(samples)}, in s.e.", printed


@theorem(
    "dropconnect",
    source="Structured dropout, Theorem 4.1",
    claim="DropConnect on the weights V of x -> U V'x adds lam sum_k |u_k|^2 v_k' diag(C) v_k, "
    "which is Dropout's penalty only for uncorrelated inputs",
    correction="C = E[x x'] is printed in place of its diagonal part, as if DropConnect and "
    "Dropout were the same",
)
def _dropconnect(scale: int, rng: np.random.Generator) -> Residuals:
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


@theorem(
    "dropconnect-last-layer",
    source="Structured dropout, section 4",
    claim="DropConnect on the last layer's weights U costs the same as Dropout on its inputs",
)
def _dropconnect_last_layer(scale: int, rng: np.random.Generator) -> Residuals:
    outputs, d, prob = 2, 3 + scale // 2, float(rng.uniform(0.1, 0.8))
    U, A = rng.normal(size=(outputs, d)), oracles.relu_layer(rng, d)
    Y = rng.normal(size=(12, outputs))
    Z, p = oracles.multipliers(outputs * d, prob)
    masked = Z.reshape(-1, outputs, d) * U
    noisy = ((Y.T - masked @ A.T) ** 2).sum(1).mean(-1)
    exact = p @ noisy - ((Y - A @ U.T) ** 2).sum(-1).mean()
    yield relative(penalty.hidden(U, A, noise.Dropout(prob)), exact)
    return EXACT, f"all {len(p)} masks of U"


@theorem(
    "sensing-penalty",
    source="Thesis, Proposition 3",
    claim="Dropping columns of the factors in matrix sensing adds lam sum_i mean_j (u_i'A_j v_i)^2 "
    "to the mean squared error",
)
def _sensing_penalty(scale: int, rng: np.random.Generator) -> Residuals:
    U, V, _, _ = oracles.two_layers(rng, 3 + scale)
    A = rng.normal(size=(6, len(U), len(V)))
    prob = float(rng.uniform(0.1, 0.8))
    exact = oracles.sensing_added_loss(rng.normal(size=len(A)), U, V, A, prob)
    yield relative(penalty.sensing(U, V, A, prob), exact)
    return EXACT, "the error over all masks"


@theorem(
    "completion-penalty",
    source="Thesis, Proposition 3",
    claim="In matrix completion dropout adds lam times the mean over observed entries (a, b) of "
    "sum_i U_ai^2 V_bi^2",
)
def _completion_penalty(scale: int, rng: np.random.Generator) -> Residuals:
    U, V, _, _ = oracles.two_layers(rng, 3 + scale)
    rows, cols = rng.integers(len(U), size=9), rng.integers(len(V), size=9)
    A = np.zeros((9, len(U), len(V)))
    A[np.arange(9), rows, cols] = 1
    prob = float(rng.uniform(0.1, 0.8))
    exact = oracles.sensing_added_loss(rng.normal(size=len(A)), U, V, A, prob)
    yield relative(penalty.completion(U, V, rows, cols, prob), exact)
    return EXACT, "the error on observed entries over all masks"


@theorem(
    "vanishing-penalty",
    source="Structured dropout, Lemma 2.2",
    claim="At a fixed drop probability, replacing every block by two copies scaled by 1/sqrt(2) "
    "on both sides keeps the map and halves the penalty, so width alone makes it vanish",
)
def _vanishing_penalty(scale: int, rng: np.random.Generator) -> Residuals:
    b, prob = 2, float(rng.uniform(0.2, 0.8))
    U, V, X, Y = oracles.two_layers(rng, 2 * b)
    block, C = noise.DropBlock(prob, block_size=b), X.T @ X / len(X)
    start, loss = float(penalty.shallow(U, V, block, C)), Y - X @ V @ U.T
    for doubling in range(1, 3 if scale > 1 else 2):
        U, V = np.hstack([U, U]) / 2**0.5, np.hstack([V, V]) / 2**0.5
        exact = oracles.added_loss(Y, U, X @ V, *oracles.multipliers(U.shape[1], prob, b))
        yield relative(Y - X @ V @ U.T, loss)
        yield relative(start / 2**doubling, exact)
        yield relative(penalty.shallow(U, V, block, C), exact)
    return EXACT, f"copies up to width {U.shape[1]}, the loss over all masks"
