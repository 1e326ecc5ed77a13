"""The compiled row kernel against its NumPy reference, and against the definitions."""

import numpy as np
import pytest

from overt.completion.kernels import rows as kernels
from overt.completion.kernels.rows import (
    NOT_PINNED,
    Blocks,
    FixedSide,
    RowPrior,
    Rows,
    pack,
    unpack,
)
from overt.completion.memory import sort_by_chunk

ROWS, CUTS = np.array([3, 0, 1, 6, 2, 5, 4]), np.array([0, 3, 7])
N_ROWS, N_COLS = len(ROWS), 9
KINDS = ("learned", "every pair", "sampled", "dropout")


def update_rows_plainly(
    rows, blocks, fixed, prior, shifts, precisions, normals, out, cuts, moments
):
    """The row kernel in plain NumPy, to read and to test against."""
    uncertain = fixed.tables.shape[1] > 0
    if uncertain:
        T = unpack(fixed.tables.astype(float))
    else:
        dropout = fixed.strength * np.eye(len(fixed.strength))
        T = np.einsum("bi,bj,ij->bij", fixed.means, fixed.means, 1 + dropout)
    free = prior.free
    pinned = np.setdiff1d(np.arange(len(fixed.strength)), free)
    for c in range(len(cuts) - 1):
        here = slice(blocks.starts[c], blocks.starts[c + 1])
        for s, r in enumerate(rows[cuts[c] : cuts[c + 1]]):
            mine = blocks.slots[here] == s
            b = blocks.partners[here][mine]
            y = blocks.values[here][mine].astype(float)
            weights = fixed.weights[b]
            observed = np.einsum("b,bij->ij", weights, T[b])
            M = unpack(prior.background) + prior.table_weight * observed
            linear = prior.value_weight * (weights * y) @ fixed.means[b]
            P = prior.precision + precisions[r] * M[np.ix_(free, free)]
            right = precisions[r] * (linear - M[:, pinned].sum(axis=1))[free]
            w = np.ones(len(linear))
            w[free] = np.linalg.solve(P, right + shifts[r])
            S = np.zeros_like(M)
            if uncertain:
                S[np.ix_(free, free)] = np.linalg.inv(P)
                out.tables[r] = pack(np.outer(w, w) + S)
            else:
                out.centers[r] = w
                w[free] += np.linalg.solve(np.linalg.cholesky(P).T, normals[r])
            out.means[r] = w
            square = prior.value_weight * weights @ y**2
            error = square - 2 * w @ linear + np.sum((np.outer(w, w) + S) * M)
            out.stats[r] = (error, -np.linalg.slogdet(P)[1])
        if uncertain:
            moments[c] = out.tables[rows[cuts[c] : cuts[c + 1]]].sum(axis=0)


def entries(rng, dtype):
    """Rows with 0 to 9 entries: keys, partners, values."""
    counts = np.array([0, 1, 2, 5, 9, 3, 4])
    partners = [rng.permutation(N_COLS)[:c] for c in counts]
    keys = np.repeat(np.arange(N_ROWS), counts)
    return keys, np.concatenate(partners), rng.normal(size=len(keys)).astype(dtype)


def in_blocks(keys, partners, values):
    """The entries by chunk of ROWS."""
    chunk, slot = np.empty((2, N_ROWS), np.int32)
    chunk[ROWS], slot[ROWS] = np.repeat([0, 1], [3, 4]), [0, 1, 2, 0, 1, 2, 3]
    return Blocks(*sort_by_chunk(keys, partners, values, chunk, slot, None))


def problem(kind, biases=False, dtype=np.float64, k=3):
    """Return entries, covariances of the partners, and the arguments of the kernel."""
    rng = np.random.default_rng(0)
    width = k + 2 * biases
    size = width * (width + 1) // 2
    given = entries(rng, dtype)
    means = rng.normal(size=(N_COLS, width)).astype(dtype)
    free = np.arange(width)
    roots = rng.normal(size=(N_COLS, width, width)) * 0.3
    S = roots @ roots.transpose(0, 2, 1)
    if biases:
        means[:, k] = 1
        S[:, k, :], S[:, :, k] = 0, 0
        free = np.delete(free, k + 1)
    tables = np.zeros((N_COLS, 0), dtype)
    if kind in KINDS[:2]:
        tables = pack(S + means[:, :, None] * means[:, None, :]).astype(dtype)
    strength = np.array([0.4] * k + [0.0] * (width - k)) * (kind == "dropout")
    fixed = FixedSide(means, tables, rng.uniform(0.5, 2, N_COLS), strength)
    root = rng.normal(size=(len(free), len(free)))
    P = root @ root.T + np.eye(len(free))
    prior = RowPrior(P, free, k + 1 if biases else NOT_PINNED, np.zeros(size))
    if kind == "every pair":
        background = (fixed.weights[:, None] * tables).sum(axis=0).astype(float)
        prior = prior._replace(background=background, value_weight=2.0)
    normals = rng.normal(size=(N_ROWS, len(free)))
    by_row = (
        rng.normal(size=(N_ROWS, len(free))),
        rng.uniform(0.5, 2, N_ROWS),
        normals * (kind == "sampled"),
    )
    return given, S, (ROWS, in_blocks(*given), fixed, prior, *by_row)


def run(update_rows, arguments):
    """Return what a kernel writes, and the sums of its chunks."""
    means, tables = arguments[2].means, arguments[2].tables
    sizes = (means.shape[1], means.shape[1], tables.shape[1])
    written = (np.zeros((N_ROWS, size), means.dtype) for size in sizes)
    out = Rows(*written, np.zeros((N_ROWS, 2)))
    moments = np.zeros((2, tables.shape[1]))
    update_rows(*arguments, out, CUTS, moments)
    return out, moments


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize(("dtype", "close"), [(np.float64, 1e-9), (np.float32, 1e-3)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_kernel_matches_its_reference(kind, biases, dtype, close):
    *_, arguments = problem(kind, biases, dtype)
    found, expected = (
        run(kernel, arguments) for kernel in (kernels.update_rows, update_rows_plainly)
    )
    for compiled, plain in zip(
        (*found[0], found[1]), (*expected[0], expected[1]), strict=True
    ):
        np.testing.assert_allclose(compiled, plain, rtol=close, atol=close)


def test_stats_are_the_expected_squared_error():
    (keys, partners, values), S, arguments = problem("learned", biases=True)
    fixed = arguments[2]
    out, _ = run(kernels.update_rows, arguments)
    rng = np.random.default_rng(2)
    r, count = 4, 40_000
    w = out.means[r]
    law = (w, unpack(out.tables)[r] - np.outer(w, w))
    u = rng.multivariate_normal(*law, count, method="eigh")
    total = np.zeros(count)
    for b, y in zip(partners[keys == r], values[keys == r], strict=True):
        v = rng.multivariate_normal(fixed.means[b], S[b], count, method="eigh")
        total += fixed.weights[b] * (y - np.einsum("ei,ei->e", u, v)) ** 2
    error = total.std() / np.sqrt(count)
    assert abs(total.mean() - out.stats[r, 0]) <= 5 * error


def test_heavy_rows_are_summed_in_double_precision():
    n = 40_000
    means = np.full((1, 1), 0.1, np.float32)
    zeros, ones = np.zeros(n, np.int32), np.ones(n, np.float32)
    blocks = Blocks(np.array([0, n]), zeros, zeros, ones)
    for tables in (means * means, means[:, :0]):
        fixed = FixedSide(means, tables, np.ones(1), np.zeros(1))
        sums = kernels.allocate_sums(np.array([0, 1]), means)
        kernels.sum_block(blocks, 0, fixed, sums)
        assert abs(sums.total[0, 0] / (n * float(means[0, 0]) ** 2) - 1) < 1e-6


def test_packing_is_by_rows_of_the_lower_triangle():
    S = np.arange(32.0).reshape(2, 4, 4)
    S = S + S.transpose(0, 2, 1)
    packed = pack(S)
    assert packed.shape == (2, 10)
    for i, j in np.ndindex(4, 4):
        at = max(i, j) * (max(i, j) + 1) // 2 + min(i, j)
        assert np.array_equal(packed[:, at], S[:, i, j])
    assert np.array_equal(unpack(packed), S)


@pytest.mark.parametrize(
    ("P", "right", "center", "sample"),
    [
        ([[1.0, 1.0], [1.0, 1.0]], [2.0, 2.0], [2.0, 0.0], [2.5, 0.0]),  # explained
        ([[4.0, 0.0], [0.0, 0.0]], [2.0, 0.0], [0.5, 0.0], [0.75, 0.0]),  # unknown
    ],
)
def test_a_coordinate_that_is_explained_or_unknown_gets_zero(P, right, center, sample):
    A = np.column_stack([P, right])
    found = np.empty(2)
    kernels.solve(A, np.array([0.5, 0.5]), found)
    np.testing.assert_allclose(found, center, atol=1e-12)
    np.testing.assert_allclose(A[:, 2], sample, atol=1e-12)


def test_blocks_hold_every_entry_once_and_partners_in_order():
    given = entries(np.random.default_rng(5), float)
    blocks, found = in_blocks(*given), []
    for c in (0, 1):
        here = slice(blocks.starts[c], blocks.starts[c + 1])
        assert np.all(np.diff(blocks.partners[here]) >= 0)
        rows = ROWS[CUTS[c] : CUTS[c + 1]][blocks.slots[here]]
        found += zip(rows, blocks.partners[here], blocks.values[here], strict=True)
    assert sorted(found) == sorted(zip(*given, strict=True))


def test_products_of_rows_and_their_variance():
    rng = np.random.default_rng(4)
    U, V = rng.normal(size=(5, 4)), rng.normal(size=(6, 4))
    SU, SV = (np.stack([a @ a.T for a in rng.normal(size=(c, 4, 4))]) for c in (5, 6))
    rows, cols = rng.integers(0, 5, 20), rng.integers(0, 6, 20)
    found = np.empty(20)
    kernels.dots(rows, cols, U, V, found)
    np.testing.assert_allclose(found, np.sum(U[rows] * V[cols], axis=1), rtol=1e-12)
    kernels.dot_variances(rows, cols, U, V, pack(SU), pack(SV), found)
    # Var(u.v) = E (u.v)^2 - (E u.v)^2, with independent u and v
    seconds = [S + w[:, :, None] * w[:, None, :] for S, w in ((SU, U), (SV, V))]
    square = np.einsum("eij,eij->e", seconds[0][rows], seconds[1][cols])
    expected = square - np.sum(U[rows] * V[cols], axis=1) ** 2
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("n", [1, 5, 6, 9, 33])
def test_log_determinants_are_exact_at_every_size(n):
    rng = np.random.default_rng(n)
    root, right = rng.normal(size=(n, n + 2)), rng.normal(size=n)
    P = root @ root.T + np.eye(n)
    expected = -np.linalg.slogdet(P)[1]
    A = np.column_stack([P, right])
    assert kernels.invert(A.copy()) == pytest.approx(expected, rel=1e-10)
    found = kernels.solve(A, np.zeros(n), np.zeros(n))
    assert found == pytest.approx(expected, rel=1e-10)


def test_every_pair_counts_by_the_dense_formula():
    """Weight 1 and value 0 where a row has no entry, weight 2 where it has."""
    (keys, partners, values), S, arguments = problem("every pair")
    _, _, fixed, prior, shifts, own, _ = arguments
    T = S + fixed.means[:, :, None] * fixed.means[:, None, :]
    out, moments = run(kernels.update_rows, arguments)
    for r in range(N_ROWS):
        weights, y = fixed.weights.copy(), np.zeros(N_COLS)
        weights[partners[keys == r]] *= 2
        y[partners[keys == r]] = values[keys == r]
        A = np.einsum("b,bij->ij", weights, T)
        covariance = np.linalg.inv(own[r] * A + prior.precision)
        u = covariance @ (own[r] * (weights * y) @ fixed.means + shifts[r])
        second = np.outer(u, u) + covariance
        error = np.sum(second * A) - 2 * (weights * y) @ (fixed.means @ u)
        np.testing.assert_allclose(out.means[r], u, atol=1e-9)
        np.testing.assert_allclose(unpack(out.tables[r]), second, atol=1e-9)
        assert out.stats[r, 0] == pytest.approx(error + weights @ y**2)
        assert out.stats[r, 1] == pytest.approx(np.linalg.slogdet(covariance)[1])
    np.testing.assert_allclose(moments.sum(axis=0), out.tables.sum(axis=0), atol=1e-9)


def test_samples_come_from_the_posterior():
    """Samples of one row have the mean and the covariance of its exact posterior."""
    rng = np.random.default_rng(0)
    V, y, noise, P = rng.normal(size=(6, 2)), rng.normal(size=6), 0.5, np.diag([2.0, 1])
    n = 20_000
    slots, partners = np.tile(np.arange(n), 6), np.repeat(np.arange(6), n)
    blocks = Blocks(np.array([0, 6 * n]), slots, partners, y[partners])
    prior = RowPrior(P, np.arange(2), NOT_PINNED, np.zeros(3))
    fixed = FixedSide(V, V[:, :0], np.ones(6), np.zeros(2))
    by_row = (np.zeros((n, 2)), np.full(n, 1 / noise), rng.normal(size=(n, 2)))
    out = Rows(*(np.zeros((n, size)) for size in (2, 2, 0, 2)))
    cuts = np.array([0, n])
    rows = np.arange(n)
    kernels.update_rows(
        rows, blocks, fixed, prior, *by_row, out, cuts, np.zeros((1, 0))
    )
    S = np.linalg.inv(V.T @ V / noise + P)
    mean = S @ V.T @ y / noise
    np.testing.assert_allclose(out.centers, np.tile(mean, (n, 1)), rtol=1e-9)
    assert np.all(np.abs(out.means.mean(axis=0) - mean) <= 5 * np.sqrt(np.diag(S) / n))
    error = np.sqrt((np.outer(np.diag(S), np.diag(S)) + S**2) / n)
    assert np.all(np.abs(np.cov(out.means, rowvar=False) - S) <= 5 * error)


def test_stored_covariances_of_dropout_give_its_update():
    """S_b = lam diag(v_b o v_b): the update with covariances is that of dropout."""
    *_, arguments = problem("dropout")
    expected, _ = run(
        kernels.update_rows, (*arguments[:-1], np.zeros_like(arguments[-1]))
    )
    fixed = arguments[2]
    V = fixed.means
    T = V[:, :, None] * V[:, None, :] * (1 + fixed.strength * np.eye(3))
    stored = fixed._replace(tables=pack(T), strength=np.zeros(3))
    out, _ = run(kernels.update_rows, (*arguments[:2], stored, *arguments[3:]))
    np.testing.assert_allclose(out.means, expected.means, rtol=1e-9, atol=1e-12)
