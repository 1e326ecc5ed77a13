"""Compiled kernels against their NumPy references, and against the definitions."""

import numpy as np
import pytest

from overt.completion.kernels import reference
from overt.completion.kernels import rows as kernels
from overt.completion.kernels.rows import (
    BLOCK,
    NOT_PINNED,
    AllPartners,
    Blocks,
    Csr,
    FixedSide,
    LearnedRows,
    RowPrior,
    SampledRows,
    block,
    dots,
    group,
    pack,
    unpack,
)

N_ROWS = 7


def make(rng, n=9, k=3, biases=True, dtype=np.float64):
    """Entries of rows of all kinds, their partners with covariances S, and a prior."""
    width = k + 2 * biases
    counts = np.array([0, 1, 2, 5, 9, 3, 4])
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
    prior = RowPrior(A @ A.T + np.eye(len(free)), free, k + 1 if biases else NOT_PINNED)
    by_row = rng.normal(size=(N_ROWS, len(free))), rng.uniform(0.5, 2, N_ROWS)
    return Csr(indptr, indices, values), means, S, prior, by_row, rng.uniform(0.5, 2, n)


ROWS, CUTS = np.array([3, 0, 1, 6, 2, 5, 4]), np.array([0, 3, 7])


def in_blocks(csr, n=9):
    """The same entries by chunk of ROWS."""
    chunk, slot = np.empty((2, N_ROWS), np.int32)
    chunk[ROWS], slot[ROWS] = np.repeat([0, 1], [3, 4]), [0, 1, 2, 0, 1, 2, 3]
    keys = np.repeat(np.arange(N_ROWS), np.diff(csr.indptr))
    return Blocks(*block(keys, csr.indices, csr.values, chunk, slot, 2, n))


def second_moments(means, S):
    return pack(S + means[:, :, None] * means[:, None, :]).astype(means.dtype)


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize(("dtype", "close"), [(np.float64, 1e-10), (np.float32, 1e-3)])
def test_learn_rows_matches_reference(biases, dtype, close):
    given = make(np.random.default_rng(0), biases=biases, dtype=dtype)
    csr, means, S, prior, by_row, weights = given
    fixed, blocks = FixedSide(means, second_moments(means, S), weights), in_blocks(csr)
    size, width = fixed.covariances.shape[1], means.shape[1]
    outs = []
    for module in (kernels, reference):
        written = (np.zeros((N_ROWS, columns), dtype) for columns in (width, size))
        out, moments = LearnedRows(*written, np.zeros((N_ROWS, 2))), np.zeros((2, size))
        module.learn_rows(ROWS, blocks, fixed, prior, *by_row, out, CUTS, moments)
        outs.append((*out, moments))
    for compiled, plain in zip(*outs, strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=close, atol=close)


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("use", ["dropout", "draw", "diagonal"])
def test_gram_kernels_match_reference(biases, use):
    rng = np.random.default_rng(1)
    csr, means, S, prior, by_row, weights = make(rng, biases=biases)
    width, normals = means.shape[1], rng.normal(size=(N_ROWS, len(prior.free)))
    outs = []
    for module in (kernels, reference):
        w, other, stats = (np.zeros((N_ROWS, columns)) for columns in (width, width, 2))
        given = np.arange(N_ROWS), csr
        if use != "diagonal":
            strength = np.array([0.4] * 3 + [0.0] * (width - 3)) * (use == "dropout")
            out, fixed = (
                SampledRows(w, other, stats),
                FixedSide(means, strength, weights),
            )
            module.sample_rows(*given, fixed, prior, *by_row, normals, out)
        else:
            variances, out = (
                np.diagonal(S, axis1=1, axis2=2).copy(),
                LearnedRows(w, other, stats),
            )
            module.learn_variances(
                *given, FixedSide(means, variances, weights), prior, *by_row, out
            )
        outs.append(out)
    for compiled, plain in zip(*outs, strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=1e-9, atol=1e-9)


def test_stats_are_the_expected_squared_error():
    rng = np.random.default_rng(2)
    csr, means, S, prior, by_row, weights = make(rng)
    fixed = FixedSide(means, second_moments(means, S), weights)
    out = LearnedRows(
        np.zeros((7, means.shape[1])),
        np.zeros_like(fixed.covariances[:7]),
        np.zeros((7, 2)),
    )
    moments = np.zeros((2, fixed.covariances.shape[1]))
    kernels.learn_rows(ROWS, in_blocks(csr), fixed, prior, *by_row, out, CUTS, moments)
    r, draws = 4, 40_000
    w = out.means[r]
    u = rng.multivariate_normal(
        w, unpack(out.covariances)[r] - np.outer(w, w), draws, method="eigh"
    )
    here = slice(csr.indptr[r], csr.indptr[r + 1])
    total = np.zeros(draws)
    for b, y in zip(csr.indices[here], csr.values[here], strict=True):
        v = rng.multivariate_normal(means[b], S[b], size=draws, method="eigh")
        total += weights[b] * (y - np.einsum("ei,ei->e", u, v)) ** 2
    error = total.std() / np.sqrt(draws)
    assert abs(total.mean() - out.stats[r, 0]) <= 5 * error


def test_heavy_rows_are_summed_in_double_precision():
    n = 40_000
    means = np.full((1, 1), 0.1, np.float32)
    fixed = FixedSide(means, means * means, np.ones(1))
    zeros, ones = np.zeros(n, np.int32), np.ones(n, np.float32)
    sums = kernels.allocate_sums(np.array([0, 1]), fixed)
    kernels.sum_block(Blocks(np.array([0, n]), zeros, zeros, ones), 0, fixed, sums)
    assert n > BLOCK
    assert abs(sums.total[0, 0] / (n * float(fixed.covariances[0, 0])) - 1) < 1e-6
    work = kernels.workspace(means, 1)
    kernels.sum_gram(Csr(np.array([0, n]), zeros, ones), 0, fixed, work)
    assert abs(work.total[0, 0] / (n * float(means[0, 0]) ** 2) - 1) < 1e-6


def test_packing_is_by_rows_of_the_lower_triangle():
    S = np.arange(32.0).reshape(2, 4, 4)
    S = S + S.transpose(0, 2, 1)
    packed = pack(S)
    assert packed.shape == (2, 10)
    for i, j in np.ndindex(4, 4):
        at = max(i, j) * (max(i, j) + 1) // 2 + min(i, j)
        assert np.array_equal(packed[:, at], S[:, i, j])
        assert kernels._at(i, j) == at
    assert np.array_equal(unpack(packed), S)


def test_solve_gives_zero_to_what_the_others_explain():
    A = np.array([[1.0, 1.0], [1.0, 1.0]])
    right = np.array([2.0, 2.0])
    center = np.empty(2)
    kernels.solve(A, right, np.array([0.5, 0.5]), center)
    np.testing.assert_allclose(center, [2.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(right, [2.5, 0.0], atol=1e-12)


def test_solve_kernel_gives_zero_to_what_nothing_is_known_of():
    A, right, center = np.diag([4.0, 0.0]), np.array([2.0, 0.0]), np.ones(2)
    assert kernels.solve(A, right, np.array([3.0, 3.0]), center) == pytest.approx(
        -np.log(4.0)
    )
    np.testing.assert_allclose(center, [0.5, 0.0])
    np.testing.assert_allclose(right, [0.5 + 3.0 / 2, 0.0])


def test_group_is_a_stable_sort():
    rng = np.random.default_rng(3)
    keys, others = rng.integers(0, 5, 40), rng.integers(0, 9, 40)
    indptr, indices, values = group(keys, others, np.arange(40.0), 5)
    order = np.argsort(keys, kind="stable")
    assert np.array_equal(indices, others[order])
    assert np.array_equal(values, order)
    assert np.array_equal(np.diff(indptr), np.bincount(keys, minlength=5))


def test_blocks_hold_every_entry_once_and_partners_in_order():
    csr, *_ = make(np.random.default_rng(5))
    blocks, found = in_blocks(csr), []
    for c in (0, 1):
        here = slice(blocks.starts[c], blocks.starts[c + 1])
        assert np.all(np.diff(blocks.partners[here]) >= 0)
        rows = ROWS[CUTS[c] : CUTS[c + 1]][blocks.slots[here]]
        found += zip(rows, blocks.partners[here], blocks.values[here], strict=True)
    keys = np.repeat(np.arange(N_ROWS), np.diff(csr.indptr))
    assert sorted(found) == sorted(zip(keys, csr.indices, csr.values, strict=True))


def test_products_of_rows_match_reference():
    rng = np.random.default_rng(4)
    U, V = rng.normal(size=(5, 4)), rng.normal(size=(6, 4))
    SU, SV = (
        pack(np.stack([a @ a.T for a in rng.normal(size=(c, 4, 4))])) for c in (5, 6)
    )
    rows, cols = rng.integers(0, 5, 20), rng.integers(0, 6, 20)
    for compiled, plain, args in (
        (dots, reference.dots, (U, V)),
        (kernels.dot_variances, reference.dot_variances, (U, V, SU, SV)),
    ):
        found, expected = np.empty(20), np.empty(20)
        compiled(rows, cols, *args, found)
        plain(rows, cols, *args, expected)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("n", [1, 5, 6, 9, 33])
def test_log_determinants_are_exact_at_every_size(n):
    rng = np.random.default_rng(n)
    root, right = rng.normal(size=(n, n + 2)), rng.normal(size=n)
    P = root @ root.T + np.eye(n)
    expected = -np.linalg.slogdet(P)[1]
    assert kernels.invert(np.column_stack([P, right])) == pytest.approx(
        expected, rel=1e-10
    )
    found = kernels.solve(P.copy(), right.copy(), np.zeros(n), np.zeros(n))
    assert found == pytest.approx(expected, rel=1e-10)


def test_learn_pairs_is_the_dense_formula():
    """Every pair counts: weight 1 and value 0 where a row has no entry, weight 2 where it has."""
    rng = np.random.default_rng(6)
    csr, means, S, prior, by_row, c = make(rng, biases=False)
    width = means.shape[1]
    T = S + means[:, :, None] * means[:, None, :]
    fixed = FixedSide(means, pack(T), c)
    m = rng.normal(size=width)
    own = by_row[1]
    noise = 0.7
    total = pack(np.einsum("b,bij->ij", c, T))
    shared = AllPartners(total, 2.0, prior.precision, prior.precision @ m, noise)
    size = fixed.covariances.shape[1]
    out = LearnedRows(*(np.zeros((N_ROWS, columns)) for columns in (width, size, 2)))
    moments = np.zeros((2, size))
    kernels.learn_pairs(ROWS, in_blocks(csr), fixed, shared, own, out, CUTS, moments)
    for r in range(N_ROWS):
        here = slice(csr.indptr[r], csr.indptr[r + 1])
        weights, y = c * own[r], np.zeros(len(means))
        weights[csr.indices[here]] *= 2
        y[csr.indices[here]] = csr.values[here]
        A = np.einsum("b,bij->ij", weights, T)
        covariance = np.linalg.inv(A / noise + prior.precision)
        u = covariance @ ((weights * y) @ means / noise + prior.precision @ m)
        second = np.outer(u, u) + covariance
        error = np.sum(second * A) - 2 * (weights * y) @ (means @ u) + weights @ y**2
        np.testing.assert_allclose(out.means[r], u, atol=1e-9)
        np.testing.assert_allclose(unpack(out.covariances[r]), second, atol=1e-9)
        assert out.stats[r, 0] == pytest.approx(error)
        assert out.stats[r, 1] == pytest.approx(np.linalg.slogdet(covariance)[1])
    np.testing.assert_allclose(
        moments.sum(axis=0), out.covariances.sum(axis=0), atol=1e-9
    )


def test_sampling_draws_from_the_posterior():
    """Draws of one row have the mean and the covariance of its exact posterior."""
    rng = np.random.default_rng(0)
    V = rng.normal(size=(6, 2))
    y, noise, P = rng.normal(size=6), 0.5, np.diag([2.0, 1.0])
    n = 20_000
    normals, out, centers, stats = (
        rng.normal(size=(n, 2)),
        *(np.zeros((n, 2)) for _ in range(3)),
    )
    csr = Csr(
        np.arange(n + 1) * 6, np.tile(np.arange(6, dtype=np.int32), n), np.tile(y, n)
    )
    prior, by_row = (
        RowPrior(P, np.arange(2), NOT_PINNED),
        (np.zeros((n, 2)), np.full(n, 1 / noise)),
    )
    held, drawn = (
        FixedSide(V, np.zeros(2), np.ones(6)),
        SampledRows(out, centers, stats),
    )
    kernels.sample_rows(np.arange(n), csr, held, prior, *by_row, normals, drawn)
    S = np.linalg.inv(V.T @ V / noise + P)
    mean = S @ V.T @ y / noise
    np.testing.assert_allclose(centers, np.tile(mean, (n, 1)), rtol=1e-9)
    assert np.all(np.abs(out.mean(axis=0) - mean) <= 5 * np.sqrt(np.diag(S) / n))
    spread = np.cov(out, rowvar=False)
    error = np.sqrt((np.outer(np.diag(S), np.diag(S)) + S**2) / n)
    assert np.all(np.abs(spread - S) <= 5 * error)


def test_learned_reduces_to_dropout_with_its_noise():
    """S_b = lam diag(v_b o v_b), P = 0, sigma = 1: the learned row update is dropout's."""
    rng = np.random.default_rng(6)
    V, lam, y = rng.normal(size=(8, 3)), 0.5, rng.normal(size=8)
    T = pack(V[:, :, None] * V[:, None, :] + lam * np.eye(3) * (V**2)[:, None, :])
    blocks = Blocks(
        np.array([0, 8]), np.zeros(8, np.int32), np.arange(8, dtype=np.int32), y
    )
    prior = RowPrior(np.zeros((3, 3)), np.arange(3), NOT_PINNED)
    w, packed, stats = (np.zeros((1, size)) for size in (3, 6, 2))
    given = (
        np.array([0]),
        blocks,
        FixedSide(V, T, np.ones(8)),
        prior,
        np.zeros((1, 3)),
        np.ones(1),
    )
    kernels.learn_rows(
        *given, LearnedRows(w, packed, stats), np.array([0, 1]), np.zeros((1, 6))
    )
    expected = np.linalg.solve(V.T @ V + lam * np.diag((V**2).sum(axis=0)), V.T @ y)
    np.testing.assert_allclose(w[0], expected, rtol=1e-10)
