"""Rotations that share a product's norm equally among the hidden units.

Noise makes the best factors of a map balanced: |u_i| |v_i| is the same for every hidden unit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from array_api_compat import device, is_torch_array

from overt import _check, penalty
from overt._check import Array, InputError, bounded, namespace


@bounded
def equalizer(U: Array) -> Array:
    """Return an orthogonal Q (width x width) with all columns of U Q of equal norm.

    Implicit bias of dropout, Theorem 2.2. Its Algorithm 2 takes one eigendecomposition per column,
    O(r^4) in all; this takes one SVD and r - 1 plane rotations of two columns, O(r^2) beyond it.

    Examples
    --------
    >>> import numpy as np, overt
    >>> U = np.array([[3.0, 0.0], [0.0, 1.0]])
    >>> np.round(np.linalg.norm(U @ overt.equalize.equalizer(U), axis=0) ** 2, 12)
    array([5., 5.])
    """
    U = _check.matrix("U", U)
    s, right = _right_singular(U)
    scale = _number(s[0]) or 1.0
    return right.T @ _equalizing_rotation(_padded((s / scale) ** 2, U.shape[1]))


@bounded
def equalize_product(A: Array, width: int) -> tuple[Array, Array]:
    """Return balanced factors (U, V) of A: U V' = A and |u_i|^2 = |v_i|^2 = |A|_* / width.

    Implicit bias of dropout, Theorem 3.3. `width` must be at least the rank of A.
    """
    A, width = _check.matrix("A", A), _check.whole("width", width)
    xp = namespace(A)
    left, s, right = xp.linalg.svd(A, full_matrices=False)
    rank = min(width, s.shape[0])
    negligible = max(A.shape) * float(xp.finfo(A.dtype).eps) * _number(s[0])
    if rank < s.shape[0] and _number(s[rank]) > negligible:
        needed = int(xp.sum(xp.astype(s > negligible, xp.int64)))
        raise InputError(f"width must be at least the rank of A, {needed}, got {width}")
    return balanced_factors(left[:, :rank], s[:rank], right[:rank].T, width)


@bounded
def balanced_factors(
    left: Array, s: Array, right: Array, width: int
) -> tuple[Array, Array]:
    """Return (U, V) = (W S^(1/2) Q, Y S^(1/2) Q), `width` columns each, from an SVD W S Y'."""
    left, right = _check.matrix("left", left), _check.matrix("right", right)
    s = _check.floating("s", s, ndim=1)
    _check.same_library(left=left, s=s, right=right)
    width = _check.whole("width", width)
    xp, rank = namespace(left, s, right), s.shape[0]
    if (
        (left.shape[1], right.shape[1]) != (rank, rank)
        or bool(xp.any(s < 0))
        or width < rank
    ):
        raise InputError(
            "left, s and right must be an SVD of rank at most the width: as many columns each as s "
            f"has values, none negative, got {tuple(left.shape)}, {tuple(s.shape)}, "
            f"{tuple(right.shape)} and width {width}"
        )
    Q = _equalizing_rotation(_padded(s, width))[: s.shape[0], :]
    root = xp.sqrt(s)
    return (left * root) @ Q, (right * root) @ Q


@bounded
def schur_horn(eigenvalues: Array, diagonal: Array) -> Array:
    """Return an orthogonal Q with diag(Q' diag(eigenvalues) Q) = diagonal.

    It exists iff the eigenvalues majorize the wanted diagonal: same sum, and no partial sum of the
    largest diagonal entries above that of the eigenvalues (Schur and Horn). One plane rotation per
    entry, as in `equalizer`, which is the case of a constant diagonal.
    """
    values = _check.doubles("eigenvalues", eigenvalues, ndim=1)
    wanted = _check.doubles("diagonal", diagonal, ndim=1)
    excess = majorization_excess(values, wanted)
    if excess > 1e-9 * max(1e-300, float(np.abs(values).sum())):
        raise InputError(
            "eigenvalues must majorize the diagonal: a partial sum or the total differs by "
            f"{excess:.3g}"
        )
    order, targets = np.argsort(-values), np.argsort(-wanted)
    # Remaining eigenvalues, decreasing, with their vectors as rows.
    left, vectors = list(values[order]), list(np.eye(values.size)[order])
    Q = np.empty((values.size, values.size))
    for target in targets[:-1]:
        # The neighbors left[j] >= wanted >= left[j + 1] are merged; the order is kept.
        below = next(
            (j for j, v in enumerate(left) if v < wanted[target]), len(left) - 1
        )
        j = min(max(below - 1, 0), len(left) - 2)
        high, low = left[j], left[j + 1]
        part = (wanted[target] - low) / (high - low) if high > low else 1.0
        cosine, sine = (
            math.sqrt(min(max(part, 0.0), 1.0)),
            math.sqrt(min(max(1 - part, 0.0), 1.0)),
        )
        Q[:, target] = cosine * vectors[j] + sine * vectors[j + 1]
        left[j : j + 2] = [high + low - wanted[target]]
        vectors[j : j + 2] = [cosine * vectors[j + 1] - sine * vectors[j]]
    Q[:, targets[-1]] = vectors[0]
    return Q


def majorization_excess(eigenvalues: Array, diagonal: Array) -> float:
    """Return by how much the eigenvalues fail to majorize the diagonal; 0 if they do."""
    values = _check.doubles("eigenvalues", eigenvalues, ndim=1)
    wanted = _check.doubles("diagonal", diagonal, ndim=1)
    if values.shape != wanted.shape:
        raise InputError(
            f"diagonal must have {values.size} entries, as eigenvalues, got {wanted.size}"
        )
    above = np.cumsum(np.sort(wanted)[::-1]) - np.cumsum(np.sort(values)[::-1])
    return max(0.0, float(above.max()), abs(float(above[-1])))


@bounded
def importance(U: Array, V: Array, second_moment: Array | None = None) -> Array:
    """|u_i| |C^(1/2) v_i| for each hidden unit i."""
    U, V = _check.factors(U, V)
    C = _check.second_moment(second_moment, V.shape[0], V)
    xp = namespace(U, V)
    incoming = xp.sum(V * (V if C is None else C @ V), axis=0)
    return xp.sqrt(xp.sum(U * U, axis=0) * xp.clip(incoming, min=0.0))


@bounded
def imbalance(U: Array, V: Array, second_moment: Array | None = None) -> Array:
    """Return the variance over hidden units of |u_i| |C^(1/2) v_i|; 0 iff they are equalized."""
    scores = importance(U, V, second_moment)
    return namespace(scores).var(scores)


@bounded
def block_imbalance(U: Array, V: Array, block_size: int) -> Array:
    """Return the variance over blocks of columns of |U_j V_j'|_F (structured dropout, Def. 2.4)."""
    U, V = _check.factors(U, V)
    xp, b = namespace(U, V), _check.whole("block_size", block_size)
    if U.shape[1] % b:
        raise InputError(f"block_size must divide the width {U.shape[1]}, got {b}")
    blocks = (U.shape[1] // b, b)
    Ub = xp.permute_dims(xp.reshape(U, (U.shape[0], *blocks)), (1, 0, 2))
    Vb = xp.permute_dims(xp.reshape(V, (V.shape[0], *blocks)), (1, 0, 2))
    squares = xp.sum((Ub.mT @ Ub) * (Vb.mT @ Vb), axis=(1, 2))
    return xp.var(xp.sqrt(xp.clip(squares, min=0.0)))


@bounded
def equalization_gaps(
    weights: Sequence[Array], second_moment: Array | None = None
) -> list[Array]:
    """[R_l / LB_l - 1 for l = 1..k]: zero for every order iff the deep network is equalized.

    LB_l = e_l(1/d_1, ..., 1/d_k) |W C^(1/2)|_*^2 with e_l the elementary symmetric polynomial and
    W the network map (thesis, eq. 3.14 and section 3.4.2).
    """
    layers = _check.chain(weights)
    xp = namespace(*layers)
    C = _check.second_moment(second_moment, layers[0].shape[1], layers[0])
    W = layers[0]
    for layer in layers[1:]:
        W = layer @ W
    if C is None:
        nuclear = xp.sum(xp.linalg.svdvals(W))
    else:
        values, vectors = xp.linalg.eigh(C)
        nuclear = xp.sum(
            xp.linalg.svdvals(W @ vectors * xp.sqrt(xp.clip(values, min=0.0)))
        )
    if bool(nuclear == 0):
        raise InputError("weights must not multiply to the zero map: its gaps are 0/0")
    symmetric = np.array([1.0])
    for layer in layers[:-1]:
        symmetric = np.convolve(symmetric, [1.0, 1.0 / layer.shape[0]])
    terms = penalty.deep_terms(layers, second_moment)
    return [
        term / (float(e) * nuclear**2) - 1
        for term, e in zip(terms, symmetric[1:], strict=True)
    ]


def _equalizing_rotation(diagonal: Array) -> Array:
    """Return an orthogonal R with all diagonal entries of R' diag(diagonal) R equal to the mean.

    Entries are consumed one after another. A carrier column holds what is left of those consumed;
    it is rotated with the next one so that one of the two gets the mean, and the other carries on.
    The Gram matrix has no entry between the carrier and an unconsumed column, so each rotation
    needs the two diagonal values only; taking the smallest when the carrier is above the mean, and
    the largest otherwise, keeps the mean between the two.
    """
    xp, r = namespace(diagonal), diagonal.shape[0]
    order = xp.argsort(diagonal, descending=True)
    values, mean = diagonal[order], xp.mean(diagonal)
    columns = xp.eye(r, dtype=diagonal.dtype, device=device(diagonal))
    largest, smallest = 1, r - 1
    carrier, held = columns[order[0], :], values[0]
    finished = []
    while largest <= smallest:
        if bool(held >= mean):
            index, smallest = smallest, smallest - 1
        else:
            index, largest = largest, largest + 1
        other, value = columns[order[index], :], values[index]
        gap = held - value
        # cos^2 held + sin^2 value = mean
        if abs(_number(gap)) <= float(xp.finfo(diagonal.dtype).tiny):
            cosine, sine = xp.ones_like(gap), xp.zeros_like(gap)
        else:
            shares = xp.stack([mean - value, held - mean]) / gap
            cosine, sine = xp.sqrt(xp.clip(shares, min=0.0, max=1.0))
        finished.append(cosine * carrier + sine * other)
        carrier, held = cosine * other - sine * carrier, held + value - mean
    return xp.stack([*finished, carrier], axis=1)


def _right_singular(U: Array) -> tuple[Array, Array]:
    """Return (s, Y'): singular values and a full set of right singular vectors, as rows."""
    xp, width = namespace(U), U.shape[1]
    if U.shape[0] >= width or not is_torch_array(U):
        _, s, right = xp.linalg.svd(U, full_matrices=U.shape[0] < width)
        return s, right
    # torch takes the null space of a full decomposition for constant; it must follow the rest.
    _, s, right = xp.linalg.svd(U, full_matrices=False)
    null = xp.linalg.svd(U.detach(), full_matrices=True)[2][s.shape[0] :]
    return s, xp.concat([right, null - (null @ right.T) @ right])


def _number(x: Array) -> float:
    """Return a scalar as a float, cut off from any gradient."""
    return float(x.detach()) if is_torch_array(x) else float(x)


def _padded(s: Array, width: int) -> Array:
    xp = namespace(s)
    missing = width - s.shape[0]
    if missing <= 0:
        return s
    return xp.concat([s, xp.zeros((missing,), dtype=s.dtype, device=device(s))])
