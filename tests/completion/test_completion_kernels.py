"""Compiled kernels against their NumPy references, and against the definitions."""

import numpy as np
import pytest

from overt.completion import kernels, reference


def make(rng, m=7, n=9, k=3, biases=True, dtype=np.float64):
    width = k + 2 * biases
    counts = np.array([0, 1, 2, 5, 9, 3, 4])[:m]
    indptr = np.concatenate([[0], np.cumsum(counts)])
    indices = np.concatenate([rng.permutation(n)[:c] for c in counts]).astype(np.int32)
    values = rng.normal(size=indptr[-1]).astype(dtype)
    means = rng.normal(size=(n, width)).astype(dtype)
    free = np.arange(width)
    if biases:
        means[:, k] = 1
        free = np.delete(free, k + 1)
    roots = rng.normal(size=(n, width, width)) * 0.3
    S = roots @ roots.transpose(0, 2, 1)
    if biases:
        S[:, k, :], S[:, :, k] = 0, 0
    A = rng.normal(size=(len(free), len(free)))
    precision = A @ A.T + np.eye(len(free))
    return indptr, indices, values, means, S, precision, rng.normal(size=len(free)), free


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize(("dtype", "close"), [(np.float64, 1e-10), (np.float32, 1e-3)])
def test_learn_rows_matches_reference(biases, dtype, close):
    rng = np.random.default_rng(0)
    indptr, indices, values, means, S, P, shift, free = make(rng, biases=biases, dtype=dtype)
    packed = reference.pack(S + means[:, :, None] * means[:, None, :]).astype(dtype)
    outs = []
    for function in (kernels.learn_rows, reference.learn_rows):
        size, width = packed.shape[1], means.shape[1]
        out = [np.zeros((7, size), dtype), np.zeros((7, width), dtype), np.zeros((7, 2))]
        out.append(np.zeros(size))
        args = (indptr, indices, values, packed, means, P, shift, 0.7, free)
        function(np.arange(7), *args, *out)
        outs.append(out)
    for compiled, plain in zip(*outs, strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=close, atol=close)


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("use", ["dropout", "draw", "diagonal"])
def test_solve_rows_matches_reference(biases, use):
    rng = np.random.default_rng(1)
    indptr, indices, values, means, S, P, shift, free = make(rng, biases=biases)
    width, none = means.shape[1], np.zeros((0, means.shape[1]))
    strength = np.zeros(width)
    variances, normals, variances_out = none, none, none
    if use == "dropout":
        strength[:3] = 0.4
    if use == "draw":
        normals = rng.normal(size=(7, len(free)))
    outs = []
    for function in (kernels.solve_rows, reference.solve_rows):
        if use == "diagonal":
            variances = np.diagonal(S, axis1=1, axis2=2).copy()
            variances_out = np.zeros((7, width))
        centers = np.zeros((7, width)) if use == "draw" else none
        out = (np.zeros((7, width)), centers, variances_out, np.zeros((7, 2)))
        given = (means, variances, strength, P, shift, 0.7, free, normals)
        function(np.arange(7), indptr, indices, values, *given, *out)
        outs.append(out)
    for compiled, plain in zip(*outs, strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=1e-9, atol=1e-9)


def test_stats_are_the_expected_squared_error():
    rng = np.random.default_rng(2)
    indptr, indices, values, means, S, P, shift, free = make(rng)
    width = means.shape[1]
    packed = reference.pack(S + means[:, :, None] * means[:, None, :])
    T, w, stats = np.zeros_like(packed[:7]), np.zeros((7, width)), np.zeros((7, 2))
    args = (indptr, indices, values, packed, means, P, shift, 0.7, free)
    kernels.learn_rows(np.arange(7), *args, T, w, stats, np.zeros(packed.shape[1]))
    r, draws = 4, 40_000
    Su = reference.unpack(T)[r] - np.outer(w[r], w[r])
    u = rng.multivariate_normal(w[r], Su, size=draws, method="eigh")
    here = slice(indptr[r], indptr[r + 1])
    total = np.zeros(draws)
    for b, y in zip(indices[here], values[here], strict=True):
        v = rng.multivariate_normal(means[b], S[b], size=draws, method="eigh")
        total += (y - np.einsum("ei,ei->e", u, v)) ** 2
    error = total.std() / np.sqrt(draws)
    assert abs(total.mean() - stats[r, 0]) <= 5 * error


def test_heavy_rows_are_summed_in_double_precision():
    n = 40_000
    means = np.full((1, 1), 0.1, np.float32)
    packed = means * means
    total, linear = np.zeros(1), np.zeros(1)
    indices, values = np.zeros(n, np.int32), np.ones(n, np.float32)
    kernels.sum_packed(indices, values, packed, means, total, linear)
    assert abs(total[0] / (n * float(packed[0, 0])) - 1) < 1e-6
    square, buffer = np.zeros((1, 1)), np.zeros((kernels.BLOCK, 1), np.float32)
    kernels.sum_gram(indices, values, means, square, linear, buffer)
    assert abs(square[0, 0] / (n * float(means[0, 0]) ** 2) - 1) < 1e-6


def test_solve_gives_zero_to_what_the_others_explain():
    A = np.array([[1.0, 1.0], [1.0, 1.0]])
    right = np.array([2.0, 2.0])
    center = np.empty(2)
    kernels.solve(A, right, np.array([0.5, 0.5]), center)
    np.testing.assert_allclose(center, [2.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(right, [2.5, 0.0], atol=1e-12)


def test_group_is_a_stable_sort():
    rng = np.random.default_rng(3)
    keys, others = rng.integers(0, 5, 40), rng.integers(0, 9, 40)
    indptr, indices, values = kernels.group(keys, others, np.arange(40.0), 5)
    order = np.argsort(keys, kind="stable")
    assert np.array_equal(indices, others[order])
    assert np.array_equal(values, order)
    assert np.array_equal(np.diff(indptr), np.bincount(keys, minlength=5))


def test_spreads_and_dots_match_reference():
    rng = np.random.default_rng(4)
    U, V = rng.normal(size=(5, 4)), rng.normal(size=(6, 4))
    SU, SV = (
        reference.pack(np.stack([a @ a.T for a in rng.normal(size=(c, 4, 4))])) for c in (5, 6)
    )
    rows, cols = rng.integers(0, 5, 20), rng.integers(0, 6, 20)
    for name, args in (("dots", (U, V)), ("spreads", (U, V, SU, SV))):
        found, expected = np.empty(20), np.empty(20)
        getattr(kernels, name)(rows, cols, *args, found)
        getattr(reference, name)(rows, cols, *args, expected)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
