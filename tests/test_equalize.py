import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers import anisotropic, paper_equalizer, square_root
from hypothesis import given
from hypothesis import strategies as st

from overt import Dropout, InputError, equalize, penalty, spectral


def gaussian(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


MATRICES = {
    "tall": gaussian(7, 4),
    "square": gaussian(5, 5),
    "wide": gaussian(3, 8),
    "rank-deficient": gaussian(6, 2) @ gaussian(2, 5, seed=1),
    "rank-one": np.outer(gaussian(4), gaussian(6, seed=1)),
    "zero": np.zeros((3, 4)),
    "single-column": gaussian(5, 1),
    "single-row": gaussian(1, 5),
    "single-entry": np.array([[-2.0]]),
    "equal-columns": np.tile(gaussian(4, 1), 6),
    "orthogonal": np.linalg.qr(gaussian(6, 6))[0],
    "diagonal": np.diag([3.0, 2.0, 2.0, 0.0]),
    "graded": gaussian(6, 6) * 10.0 ** -np.arange(6),
    "one-large-column": np.hstack([1e8 * gaussian(5, 1), gaussian(5, 4, seed=1)]),
    "tiny": 1e-200 * gaussian(4, 4),
    "huge": 1e200 * gaussian(4, 4),
}
every_matrix = pytest.mark.parametrize("U", MATRICES.values(), ids=MATRICES.keys())


def column_norms(A):
    return np.linalg.norm(A, axis=0)


def assert_orthogonal(Q, tolerance=1e-12):
    np.testing.assert_allclose(Q.T @ Q, np.eye(Q.shape[1]), rtol=0, atol=tolerance)


def assert_equal_entries(values, relative):
    assert np.ptp(values) <= relative * np.max(values)


@every_matrix
def test_equalizer_is_orthogonal_and_makes_column_norms_equal(U):
    Q = equalize.equalizer(U)
    assert Q.shape == (U.shape[1], U.shape[1])
    assert_orthogonal(Q)
    scale = np.max(np.abs(U)) or 1.0
    assert_equal_entries(column_norms(U / scale @ Q), 1e-10)


def test_equalizer_of_a_large_matrix():
    U = gaussian(400, 400) * np.geomspace(1, 1e-6, 400)
    Q = equalize.equalizer(U)
    assert_orthogonal(Q)
    assert_equal_entries(column_norms(U @ Q), 1e-10)


@given(
    rows=st.integers(1, 6),
    cols=st.integers(1, 6),
    seed=st.integers(0, 999),
    digits=st.integers(0, 1),
)
def test_equalizer_on_any_shape_with_and_without_ties(rows, cols, seed, digits):
    U = np.round(gaussian(rows, cols, seed=seed), digits)
    Q = equalize.equalizer(U)
    assert_orthogonal(Q)
    assert_equal_entries(column_norms(U @ Q), 1e-10)


@pytest.mark.parametrize("name", ["tall", "square", "wide", "rank-deficient", "graded"])
def test_equalizer_equals_the_papers_algorithm_in_effect(name):
    U = MATRICES[name]
    ours, papers = U @ equalize.equalizer(U), U @ paper_equalizer(U)
    np.testing.assert_allclose(column_norms(ours), column_norms(papers), rtol=1e-7)
    np.testing.assert_allclose(ours @ ours.T, papers @ papers.T, atol=1e-12)


def test_column_norms_are_the_root_mean_square():
    U = MATRICES["tall"]
    norms = column_norms(U @ equalize.equalizer(U))
    np.testing.assert_allclose(norms, np.linalg.norm(U) / math.sqrt(4), rtol=1e-13)


def majorized(n, rng):
    """Eigenvalues, and an average of their permutations: the general majorized diagonal."""
    eigenvalues = np.round(rng.exponential(size=n), 1)
    shares = rng.dirichlet(np.full(4, 0.5))
    return eigenvalues, sum(share * rng.permutation(eigenvalues) for share in shares)


@given(n=st.integers(1, 8), seed=st.integers(0, 999))
def test_schur_horn_reaches_every_majorized_diagonal(n, seed):
    eigenvalues, diagonal = majorized(n, np.random.default_rng(seed))
    Q = equalize.schur_horn(eigenvalues, diagonal)
    assert_orthogonal(Q)
    reached = np.diag(Q.T @ np.diag(eigenvalues) @ Q)
    np.testing.assert_allclose(
        reached, diagonal, rtol=0, atol=1e-12 * (1 + eigenvalues.sum())
    )


def test_schur_horn_with_the_eigenvalues_themselves_is_a_permutation():
    Q = equalize.schur_horn(np.array([1.0, 3.0, 2.0]), np.array([2.0, 1.0, 3.0]))
    np.testing.assert_allclose(np.sort(np.abs(Q), axis=0)[-1], 1, rtol=1e-12)


NOT_MAJORIZED = {
    "too-peaked": ([2.0, 2.0], [3.0, 1.0], "1"),
    "other-sum": ([2.0, 2.0], [2.0, 1.5], "0.5"),
    "second-partial-sum": ([3.0, 1.0, 0.0], [2.5, 2.0, -0.5], "0.5"),
}


@pytest.mark.parametrize(
    ("eigenvalues", "diagonal", "excess"),
    NOT_MAJORIZED.values(),
    ids=NOT_MAJORIZED.keys(),
)
def test_schur_horn_refuses_what_no_rotation_reaches(eigenvalues, diagonal, excess):
    with pytest.raises(
        InputError, match=f"eigenvalues must majorize.*differs by {excess}"
    ):
        equalize.schur_horn(eigenvalues, diagonal)
    assert equalize.majorization_excess(eigenvalues, diagonal) == pytest.approx(
        float(excess)
    )


@given(n=st.integers(1, 8), seed=st.integers(0, 999))
def test_diagonal_of_any_rotation_is_majorized(n, seed):
    rng = np.random.default_rng(seed)
    eigenvalues = rng.standard_normal(n)
    R = np.linalg.qr(rng.standard_normal((n, n)))[0]
    diagonal = np.diag(R.T @ np.diag(eigenvalues) @ R)
    assert equalize.majorization_excess(eigenvalues, diagonal) <= 1e-12


PRODUCTS = {
    "width-above-both-dimensions": (gaussian(4, 3), 7),
    "width-between": (gaussian(5, 3), 4),
    "width-is-rank-of-a-full-matrix": (gaussian(5, 3), 3),
    "width-is-rank-below-both": (gaussian(6, 2) @ gaussian(2, 5, seed=1), 2),
    "width-one": (np.outer(gaussian(4), gaussian(3, seed=1)), 1),
    "width-above-rank": (gaussian(6, 2) @ gaussian(2, 5, seed=1), 4),
    "wide-map": (gaussian(2, 9), 5),
    "zero": (np.zeros((3, 4)), 2),
    "scalar": (np.array([[-3.0]]), 4),
    "large-width": (gaussian(3, 3), 64),
}
every_product = pytest.mark.parametrize(
    ("A", "width"), PRODUCTS.values(), ids=PRODUCTS.keys()
)


@every_product
def test_equalized_product_is_the_same_map_with_balanced_factors(A, width):
    U, V = equalize.equalize_product(A, width)
    assert U.shape == (A.shape[0], width)
    assert V.shape == (A.shape[1], width)
    np.testing.assert_allclose(U @ V.T, A, rtol=0, atol=1e-12)
    share = np.linalg.norm(A, "nuc") / width
    np.testing.assert_allclose(column_norms(U) ** 2, share, rtol=1e-10)
    np.testing.assert_allclose(column_norms(V) ** 2, share, rtol=1e-10)


@every_product
def test_equalized_product_has_no_imbalance(A, width):
    U, V = equalize.equalize_product(A, width)
    assert equalize.imbalance(U, V) <= 1e-20 * max(1.0, np.linalg.norm(A)) ** 2


@pytest.mark.parametrize("width", [1, 2])
def test_width_below_the_rank_is_refused(width):
    with pytest.raises(
        InputError, match=rf"width must be at least the rank of A, 3, got {width}"
    ):
        equalize.equalize_product(gaussian(5, 3), width)


def test_equalizing_never_raises_the_penalty():
    rng = np.random.default_rng(3)
    for _ in range(20):
        U, V = rng.standard_normal((4, 6)), rng.standard_normal((3, 6))
        balanced = equalize.equalize_product(U @ V.T, 6)
        assert penalty.shallow(*balanced, Dropout(0.5)) <= penalty.shallow(
            U, V, Dropout(0.5)
        )


P, Q = np.array([0.6, 0.3, 0.1]), np.array([0.05, 0.15, 0.3, 0.5])


def product_law_penalty(U, V):
    """sum_ij p_i q_j sum_k U_ik^2 V_jk^2."""
    return np.einsum("i,j,ik,jk->", P, Q, U**2, V**2)


@given(
    sizes=st.lists(st.integers(1, 4), min_size=3, max_size=5),
    seed=st.integers(0, 999),
    correlated=st.booleans(),
)
def test_equalization_gaps_are_never_negative(sizes, seed, correlated):
    rng = np.random.default_rng(seed)
    pairs = pairwise(sizes)
    weights = [rng.standard_normal((after, before)) for before, after in pairs]
    C = anisotropic(sizes[0], rng) if correlated else None
    gaps = equalize.equalization_gaps(weights, C)
    assert len(gaps) == len(sizes) - 2
    assert min(gaps) >= -1e-12


def test_generic_network_has_gaps():
    weights = [gaussian(3, 2), gaussian(4, 3, seed=1), gaussian(2, 4, seed=2)]
    assert min(equalize.equalization_gaps(weights)) > 0.1


def test_shallow_gap_is_penalty_over_induced_norm():
    U, V = gaussian(3, 4), gaussian(2, 4, seed=1)
    C = anisotropic(2, np.random.default_rng(6))
    weight, norm = spectral.induced(Dropout(0.5), 4)
    bound = weight * norm.matrix_value(U @ V.T @ square_root(C))
    (gap,) = equalize.equalization_gaps([V.T, U], C)
    assert gap == pytest.approx(
        penalty.shallow(U, V, Dropout(0.5), C) / bound - 1, rel=1e-11
    )


def test_importance_is_the_product_of_incoming_and_outgoing_norms():
    U, V = gaussian(3, 4), gaussian(2, 4, seed=1)
    C = anisotropic(2, np.random.default_rng(6))
    plain = column_norms(U) * column_norms(V)
    weighed = column_norms(U) * column_norms(square_root(C) @ V)
    np.testing.assert_allclose(equalize.importance(U, V), plain, rtol=1e-13)
    np.testing.assert_allclose(equalize.importance(U, V, C), weighed, rtol=1e-12)
    assert equalize.imbalance(U, V, C) == pytest.approx(np.var(weighed), rel=1e-11)


def test_squared_importances_add_up_to_the_dropout_penalty():
    U, V = gaussian(3, 4), gaussian(2, 4, seed=1)
    total = np.sum(equalize.importance(U, V) ** 2)
    assert penalty.shallow(U, V, Dropout(0.5)) == pytest.approx(total, rel=1e-13)


def test_imbalance_is_zero_iff_units_share_equally():
    U, V = gaussian(3, 4), gaussian(2, 4, seed=1)
    scale = equalize.importance(U, V)
    assert equalize.imbalance(U, V) > 1e-3
    assert equalize.imbalance(U / scale, V) <= 1e-28


def test_block_imbalance_is_the_variance_of_block_norms():
    U, V = gaussian(3, 6), gaussian(2, 6, seed=1)
    norms = [np.linalg.norm(U[:, j : j + 2] @ V[:, j : j + 2].T) for j in (0, 2, 4)]
    assert equalize.block_imbalance(U, V, 2) == pytest.approx(np.var(norms), rel=1e-11)
    assert equalize.block_imbalance(U, V, 6) == 0
    units = equalize.imbalance(U, V)
    assert equalize.block_imbalance(U, V, 1) == pytest.approx(units, rel=1e-11)


EXACT_IN_TORCH = ["tall", "square", "wide", "rank-deficient", "zero", "single-column"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", EXACT_IN_TORCH)
def test_torch_equalizer(name, dtype):
    U, precision = torch.tensor(MATRICES[name], dtype=dtype), torch.finfo(dtype).eps
    Q = equalize.equalizer(U)
    assert Q.dtype == dtype
    assert_orthogonal(Q.numpy(), 100 * precision)
    assert_equal_entries(column_norms((U @ Q).numpy()), 1000 * precision)


def test_torch_and_numpy_results_have_the_same_effect():
    A = gaussian(4, 3)
    U, V = equalize.equalize_product(torch.tensor(A), 5)
    assert torch.is_tensor(U)
    np.testing.assert_allclose((U @ V.T).numpy(), A, atol=1e-12)
    np.testing.assert_allclose(
        column_norms(U.numpy()) ** 2, np.linalg.norm(A, "nuc") / 5
    )
    weights = [gaussian(3, 2), gaussian(2, 3, seed=1)]
    np.testing.assert_allclose(
        equalize.equalization_gaps([torch.tensor(W) for W in weights]),
        equalize.equalization_gaps(weights),
        rtol=1e-12,
    )
    tensors = [torch.tensor(W) for W in (gaussian(3, 4), gaussian(2, 4))]
    assert float(equalize.imbalance(*tensors)) == pytest.approx(
        equalize.imbalance(gaussian(3, 4), gaussian(2, 4)), rel=1e-12
    )


@pytest.mark.parametrize(
    "shape", [(5, 3), (3, 3), (3, 5)], ids=["tall", "square", "wide"]
)
def test_gradient_through_the_equalized_matrix(shape):
    U = torch.tensor(gaussian(*shape), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: x @ equalize.equalizer(x), U)


@pytest.mark.parametrize("width", [3, 5])
def test_gradient_through_balanced_factors(width):
    A = torch.tensor(gaussian(4, 3), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: equalize.equalize_product(x, width), A)


def test_gradient_through_the_reconstruction_is_the_identity():
    A = torch.tensor(gaussian(4, 3), requires_grad=True)

    def reconstruct(x):
        U, V = equalize.equalize_product(x, 5)
        return U @ V.T

    jacobian = torch.autograd.functional.jacobian(reconstruct, A).reshape(12, 12)
    np.testing.assert_allclose(jacobian.numpy(), np.eye(12), atol=1e-10)


def test_gradient_of_importance_imbalance_and_gaps():
    tensors = [
        torch.tensor(W, requires_grad=True) for W in (gaussian(3, 4), gaussian(2, 4))
    ]
    assert torch.autograd.gradcheck(equalize.importance, tensors)
    assert torch.autograd.gradcheck(equalize.imbalance, tensors)
    assert torch.autograd.gradcheck(
        lambda U, V: equalize.block_imbalance(U, V, 2), tensors
    )
    layers = [
        torch.tensor(gaussian(*shape), requires_grad=True)
        for shape in ((3, 2), (2, 3), (2, 2))
    ]
    assert torch.autograd.gradcheck(
        lambda *W: tuple(equalize.equalization_gaps(W)), layers
    )


def test_a_product_is_never_cut_to_a_lower_rank():
    A = np.diag([3.0, 1.0, 1e-7])
    with pytest.raises(InputError, match="rank of A, 3, got 2"):
        equalize.equalize_product(A, 2)
    U, V = equalize.equalize_product(A, 3)
    np.testing.assert_allclose(U @ V.T, A, atol=1e-15)
