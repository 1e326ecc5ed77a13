"""The explicit regularizer that a noise adds to the expected squared loss.

Every function takes NumPy arrays or PyTorch tensors and is differentiable on the latter.
Notation: lam = drop_prob / (1 - drop_prob), C = E[x x'] (`second_moment`, the identity if None),
Gamma the noise's characteristic matrix, o the entrywise product, u_i and v_i columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from array_api_compat import device

from overt import _check
from overt._check import Array, InputError, InputTypeError, bounded, namespace
from overt.noise.checking import checked_characteristic, checked_mean, is_built_in
from overt.noise.masks import DropConnect, Dropout, Noise


@bounded
def shallow(
    U: Array, V: Array, noise: Noise, second_moment: Array | None = None
) -> Array:
    """<Gamma, U'U o V'CV>; for Dropout lam sum_i |u_i|^2 v_i'C v_i.

    What the noise on the hidden layer of x -> U V'x adds to E|y - U V'x|^2 (Implicit bias of
    dropout, Lemma A.1; structured dropout, Lemma 3.1). For DropConnect the mask lies on V: see
    `dropconnect`.

    Parameters
    ----------
    U, V
        Outputs x width and inputs x width.
    noise
        Any noise of `overt.noise`.
    second_moment
        C = E[x x'], inputs x inputs; the identity if None.

    Examples
    --------
    >>> import numpy as np, overt
    >>> U, V = np.array([[1.0, 2.0]]), np.array([[3.0, 1.0]])
    >>> float(overt.penalty.shallow(U, V, overt.Dropout(0.5)))  # 1 * (1*9 + 4*1)
    13.0
    """
    if isinstance(noise, DropConnect):
        return dropconnect(U, V, noise.drop_prob, second_moment)
    U, V = _check.factors(U, V)
    C = _check.second_moment(second_moment, V.shape[0], V)
    return _contract(U, V, V if C is None else C @ V, noise)


@bounded
def tied(U: Array, noise: Noise, second_moment: Array | None = None) -> Array:
    """<Gamma, U'U o U'CU>; for Dropout and C = I lam sum_i |u_i|^4: `shallow` with V = U."""
    return shallow(U, U, noise, second_moment)


@bounded
def hidden(U: Array, activations: Array, noise: Noise) -> Array:
    """<Gamma, U'U o A'A/n>; for Dropout lam sum_j |u_j|^2 mean(a_j^2).

    Noise on the last hidden layer of any network, whose `activations` A are samples x width
    (structured dropout, Lemma 3.1; its Corollary 3.2 drops the factor lam).
    """
    U, A = _last_layer(U, activations, noise)
    return _contract(U, A, A, noise) / A.shape[0]


@bounded
def predictive_variance(U: Array, activations: Array, noise: Noise) -> Array:
    """Var(o_k | x) = sum_ij Gamma_ij U_ki a_i U_kj a_j: samples x outputs, exact.

    For Dropout lam sum_j U_kj^2 a_j(x)^2: the limit of Monte Carlo dropout in the last layer.
    """
    U, A = _last_layer(U, activations, noise)
    if noise.independent:
        return (A * A * _like(noise.relative_variance(U.shape[1]), U)) @ (U * U).T
    xp = namespace(U, A)
    flow = A[:, None, :] * U[None, :, :]  # (samples, outputs, width)
    return xp.sum((flow @ _like(noise.characteristic(U.shape[1]), U)) * flow, axis=-1)


@bounded
def dropconnect(
    U: Array, V: Array, drop_prob: float, second_moment: Array | None = None
) -> Array:
    """lam sum_k |u_k|^2 v_k' diag(C) v_k: DropConnect on the entries of V.

    It equals Dropout's penalty only where C is diagonal; the printed Theorem 4.1 of structured
    dropout has C in place of diag(C).
    """
    U, V = _check.factors(U, V)
    C = _check.second_moment(second_moment, V.shape[0], V)
    xp = namespace(U, V)
    weighted = V if C is None else xp.linalg.diagonal(C)[:, None] * V
    lam = DropConnect(drop_prob).strength
    return lam * xp.sum(xp.sum(U * U, axis=0) * xp.sum(V * weighted, axis=0))


@bounded
def deep(
    weights: Sequence[Array], drop_prob: Any, second_moment: Array | None = None
) -> Array:
    """R = E|W_(k+1) D_k W_k ... D_1 W_1 x|^2 - E|W_(k+1) ... W_1 x|^2, D_i dropout multipliers.

    The thesis (Proposition 8) writes it as a sum over exponentially many choices of pivots. Here
    second moments are propagated: with S_i that of layer i's input to the noise,

        S_1 = W_1 C W_1',  S_(i+1) = W_(i+1) (S_i + lam_i diag(S_i)) W_(i+1)',
        R = sum_i lam_i <diag(S_i), diag(B_i'B_i)>,  B_i = W_(k+1) ... W_(i+1),

    one positive term for each noisy layer, so nothing cancels.

    Parameters
    ----------
    weights
        [W_1, ..., W_(k+1)], each outputs x inputs.
    drop_prob
        One probability, or one for each of the k hidden layers.
    second_moment
        C = E[x x'], inputs x inputs; the identity if None.
    """
    layers = _check.chain(weights)
    xp = namespace(*layers)
    probs = _check.drop_probs(drop_prob, len(layers) - 1)
    C = _check.second_moment(second_moment, layers[0].shape[1], layers[0])

    tails = _tail_norms(layers)
    S = _first_moment(layers[0], C)
    spread = xp.linalg.diagonal(S)
    total: Array = 0.0
    for i, prob in enumerate(probs):
        lam = prob / (1 - prob)
        total = total + lam * xp.sum(spread * tails[i])
        if i + 1 < len(probs):
            W = layers[i + 1]
            WT = W @ S + W * (lam * spread)
            spread = xp.sum(WT * W, axis=1)
            if i + 2 < len(probs):  # the last noisy layer needs its diagonal only
                S = WT @ W.T
    return total


@bounded
def deep_terms(
    weights: Sequence[Array], second_moment: Array | None = None
) -> list[Array]:
    """[R_1, ..., R_k] with R = sum_l lam^l R_l (thesis, Proposition 8).

    The propagation of `deep` with S_i a polynomial in lam. R_k is the squared l2 path norm where
    C = I.
    """
    layers = _check.chain(weights)
    xp = namespace(*layers)
    C = _check.second_moment(second_moment, layers[0].shape[1], layers[0])

    k, tails = len(layers) - 1, _tail_norms(layers)
    S = [_first_moment(layers[0], C)]  # S[p] is the coefficient of lam^p
    terms: list[Array] = [0.0] * k
    for i in range(k):
        spread = [xp.linalg.diagonal(coefficient) for coefficient in S]
        for p, diagonal in enumerate(spread):
            terms[p] = terms[p] + xp.sum(diagonal * tails[i])
        if i + 1 < k:
            W = layers[i + 1]
            clean = [*(W @ coefficient for coefficient in S), 0.0]
            noisy = [0.0, *(W * diagonal for diagonal in spread)]
            S = [(c + n) @ W.T for c, n in zip(clean, noisy, strict=True)]
    return terms


@bounded
def completion(U: Array, V: Array, rows: Any, cols: Any, drop_prob: Any) -> Array:
    """lam mean_j sum_i U_(a_j i)^2 V_(b_j i)^2 over the observed entries (a_j, b_j).

    What dropping columns of the factors adds to the mean squared error of a completed matrix
    (thesis, Proposition 3). `drop_prob` is one probability, or one per factor.
    """
    U, V = _check.factors(U, V)
    xp = namespace(U, V)
    a, b = _indices("rows", rows, U), _indices("cols", cols, V)
    if a.shape != b.shape:
        raise InputError(
            f"rows and cols must have the same length, got {a.shape[0]} and {b.shape[0]}"
        )
    lam = _like(Dropout(drop_prob).relative_variance(U.shape[1]), U)
    return xp.mean((U * U)[a] * (V * V)[b] @ lam)


@bounded
def sensing(U: Array, V: Array, measurements: Array, drop_prob: Any) -> Array:
    """lam sum_i mean_j (u_i'A_j v_i)^2 for measurements A_j (n x rows x columns).

    The general form of `completion`, whose A_j have a single one (thesis, Proposition 3).
    """
    U, V = _check.factors(U, V)
    A = _check.floating("measurements", measurements, ndim=3)
    _check.same_library(U=U, measurements=A)
    if tuple(A.shape[1:]) != (U.shape[0], V.shape[0]):
        raise InputError(
            f"measurements must be n x {U.shape[0]} x {V.shape[0]}, got {tuple(A.shape)}"
        )
    xp = namespace(U, V, A)
    flow = xp.sum((A @ V) * U, axis=1)  # (n, width): u_i'A_j v_i
    lam = _like(Dropout(drop_prob).relative_variance(U.shape[1]), U)
    return xp.mean(flow * flow @ lam)


@bounded
def path_norm(weights: Sequence[Array], order: float = 2.0) -> Array:
    """(sum over paths prod |w|^order)^(1/order), over all input-output paths of a network.

    For order 2 its square is the last term of `deep_terms` where C = I, and for two layers
    [V', U] lam times it is the dropout penalty (Implicit bias of dropout, eq. 3).
    """
    layers = _check.chain(weights)
    order = _check.number("order", order, exclusive=True)
    xp = namespace(*layers)
    paths = xp.sum(xp.abs(layers[0]) ** order, axis=1)
    for W in layers[1:]:
        paths = (xp.abs(W) ** order) @ paths
    return xp.sum(paths) ** (1 / order)


def _contract(U: Array, V: Array, CV: Array, noise: Noise) -> Array:
    """<Gamma, U'U o V'(CV)>."""
    if not isinstance(noise, Noise) or noise.masks != "units":
        raise InputTypeError(
            "noise must be a noise over units (Dropout, DropBlock or CovarianceNoise), "
            f"got {noise!r}"
        )
    xp, d = namespace(U, V), U.shape[1]
    if not is_built_in(noise):
        checked_mean(noise, d)
        return xp.sum(
            _like(checked_characteristic(noise, d), U) * (U.T @ U) * (V.T @ CV)
        )
    if noise.independent:
        Gamma = _like(noise.relative_variance(d), U)
        return xp.sum(Gamma * xp.sum(U * U, axis=0) * xp.sum(V * CV, axis=0))
    return xp.sum(_like(noise.characteristic(d), U) * (U.T @ U) * (V.T @ CV))


def _last_layer(U: Array, activations: Array, noise: Noise) -> tuple[Array, Array]:
    if not isinstance(noise, Noise):
        raise InputTypeError(
            "noise must be a noise over units (Dropout, DropBlock or CovarianceNoise), "
            f"got {noise!r}"
        )
    U, A = _check.matrix("U", U), _check.matrix("activations", activations)
    _check.same_library(U=U, activations=A)
    if A.shape[1] != U.shape[1]:
        raise InputError(
            "activations (samples x width) and U (outputs x width) must have the same number of "
            f"columns, got {tuple(A.shape)} and {tuple(U.shape)}"
        )
    xp = namespace(U, A)
    dtype = xp.result_type(U, A)
    return xp.astype(U, dtype, copy=False), xp.astype(A, dtype, copy=False)


def _first_moment(W: Array, C: Array | None) -> Array:
    return W @ W.T if C is None else W @ C @ W.T


def _tail_norms(layers: list[Array]) -> list[Array]:
    """diag(B_i'B_i), B_i = W_(k+1) ... W_(i+1), for the hidden layers i = 1..k."""
    xp = namespace(*layers)
    B, norms = layers[-1], []
    for W in [*layers[-2:0:-1], None]:
        norms.append(xp.sum(B * B, axis=0))
        B = B if W is None else B @ W
    return norms[::-1]


def _indices(name: str, value: Any, factor: Array) -> Array:
    xp = namespace(factor)
    try:
        index = xp.asarray(value, device=device(factor))
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"{name} must be a non-empty one-dimensional array of whole numbers, got {value!r}"
        ) from None
    if index.ndim != 1 or 0 in index.shape or not xp.isdtype(index.dtype, "integral"):
        raise InputError(
            f"{name} must be a non-empty one-dimensional array of whole numbers, got shape "
            f"{tuple(index.shape)} and type {index.dtype}"
        )
    low, high = int(xp.min(index)), int(xp.max(index))
    if low < 0 or high >= factor.shape[0]:
        raise InputError(
            f"{name} must lie in 0..{factor.shape[0] - 1}, got values in {low}..{high}"
        )
    return xp.astype(index, xp.int64)


def _like(values: np.ndarray[Any, Any], example: Array) -> Array:
    """Move NumPy `values` to the library, number format and device of `example`."""
    return namespace(example).asarray(
        values, dtype=example.dtype, device=device(example)
    )
