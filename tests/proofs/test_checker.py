"""The checker of proofs, part by part, against floating point and matrices of fractions."""

import copy
import itertools
from fractions import Fraction
from math import prod

import numpy as np
import pytest

import overt
from overt.proofs import checker
from overt.proofs.checker import Matrix, Problem, RefusedError

RNG = np.random.default_rng(0)
EYE = np.eye(3)


def told(A):
    """A matrix as a proof file has it."""
    return [[float(x).hex() for x in row] for row in np.asarray(A, float)]


def as_floats(A):
    return np.array(
        [[float(x * Fraction(2) ** A.exponent) for x in row] for row in A.rows]
    )


def dropout(*chances):
    return {
        "kind": "dropout",
        "drop_prob": [float(p).hex() for p in chances],
        "block_size": 1,
    }


def posed(network, weights, noise, witness=None, **given):
    file = {"network": network, "noise": noise, "witness": witness or {}}
    file["problem"] = {name: told(value) for name, value in given.items()}
    return file | {"weights": [told(W) for W in weights]}


def test_numbers_are_read_exactly():
    for x in (0.1, -3.25, 1e-300, 5e-324, 0.0, 2.0**60):
        assert checker.number(float(x).hex()) == Fraction(x)
    assert checker.number("-0x1.8p1") == -3
    for bad in ("1.5", "0x1", "0x1p", "0x1.p1", 3.0, None, "0x1p100000", " 0x1p1"):
        with pytest.raises(RefusedError, match="not a hexadecimal number"):
            checker.number(bad)
    for x in (
        Fraction(2),
        Fraction(1, 3),
        Fraction(0),
        Fraction(10) ** 80,
        Fraction(10) ** -80,
    ):
        root = checker.root_above(x)
        assert root**2 >= x
        assert (root - root / 2**300) ** 2 <= x
    for x in (
        1 + Fraction(1, 2**802),
        1 + Fraction(1, 2**800),
        1 - Fraction(1, 2**802),
    ):
        assert (
            checker.root_above(x) ** 2 >= x
        )  # next to the square of a number of so many bits


def test_matrices_of_integers():
    A, B = RNG.standard_normal((2, 3)), RNG.standard_normal((3, 4)) * 1e3
    a, b = Matrix.read(told(A)), Matrix.read(told(B))
    np.testing.assert_array_equal(as_floats(a), A)
    np.testing.assert_array_equal(as_floats(a.T), A.T)
    exact = [
        [sum(Fraction(x) * Fraction(y) for x, y in zip(r, c, strict=True)) for c in B.T]
        for r in A
    ]
    product = a @ b
    for i, j in itertools.product(range(2), range(4)):
        assert product.rows[i][j] * Fraction(2) ** product.exponent == exact[i][j]
    other = Matrix.read(told(1e-5 * A))
    for factor in (1, -1, 3):
        found = a.plus(other, factor)
        for i, j in itertools.product(range(2), range(3)):
            expected = Fraction(A[i, j]) + factor * Fraction(1e-5 * A[i, j])
            assert found.rows[i][j] * Fraction(2) ** found.exponent == expected
            assert other.plus(a, factor).rows[i][j] * Fraction(2) ** found.exponent == (
                Fraction(1e-5 * A[i, j]) + factor * Fraction(A[i, j])
            )
    assert a.dot(other) == sum(Fraction(x) * Fraction(1e-5 * x) for x in A.flat)
    square = Matrix.read(told(A @ A.T))
    assert [float(x) for x in square.diagonal] == np.diag(A @ A.T).tolist()
    np.testing.assert_array_equal(as_floats(checker.identity(2)), np.eye(2))
    np.testing.assert_array_equal(
        as_floats(checker.diagonal_part(square)), np.diag(np.diag(A @ A.T))
    )
    gap = float(checker.distance(a, other))
    assert gap == pytest.approx(np.linalg.norm(A - 1e-5 * A), rel=1e-12)
    for call, message in (
        (lambda: Matrix.read([["0x1p0"], []]), "misshapen"),
        (lambda: a @ a, "do not fit"),
        (lambda: Matrix.read([["0x1p0"], ["0x1p0", "0x1p0"]]), "misshapen"),
        (lambda: a.dot(b), "do not fit"),
        (lambda: Matrix.read([[]]), "misshapen"),
    ):
        with pytest.raises(RefusedError, match=message):
            call()


def test_eigenvalues_are_bounded_by_any_good_basis():
    A = RNG.standard_normal((4, 4))
    A = A + A.T
    values, vectors = np.linalg.eigh(A)
    true = np.maximum(values[::-1], 0)
    for tilt in (0.0, 1e-6, 1e-2):
        basis = vectors + tilt * RNG.standard_normal((4, 4))
        found = [
            float(x)
            for x in checker.eigenvalues_below(*map(Matrix.read, map(told, (A, basis))))
        ]
        assert all(x >= y - 1e-12 for x, y in zip(found, true, strict=True))
        S, E = basis.T @ A @ basis, basis.T @ basis - np.eye(4)
        off = np.linalg.norm(S - np.diag(np.diag(S)))
        expected = np.maximum(np.diag(S) + off, 0) / (1 - np.linalg.norm(E))
        np.testing.assert_allclose(
            found, np.sort(expected)[::-1], rtol=1e-9, atol=1e-12
        )
    for far in (2 * np.eye(4), np.diag([1.0, 1.0, 1.0, 0.0])):
        with pytest.raises(RefusedError, match="too far from orthogonal"):
            checker.eigenvalues_below(Matrix.read(told(A)), Matrix.read(told(far)))
    with pytest.raises(RefusedError, match="wrong size"):
        checker.eigenvalues_below(
            Matrix.read(told(A)), Matrix.read(told(np.eye(4)[:, :3]))
        )
    for D, expected in (
        ([[2, 1], [1, 2]], True),
        ([[1, 1], [1, 1]], True),
        ([[1, 1.5], [1.5, 1]], False),
        ([[-2, 1], [1, -2]], False),
        ([[2, -1.5], [-1.5, 2]], True),
        ([[2, 1], [1, 0.5]], False),
    ):
        assert checker.dominated(Matrix.read(told(D)), checker.identity(2)) == expected
    for Z in (
        0 * EYE,
        np.ones((3, 3)),
    ):  # singular: strictness would show that it is not
        assert not checker.dominated(Matrix.read(told(-EYE)), Matrix.read(told(Z)))
    assert not checker.dominated(Matrix.read(told(EYE)), Matrix.read(told(EYE[:, :2])))


ROOT = RNG.standard_normal((3, 3))
C = ROOT @ ROOT.T
C = (C + C.T) / 2
X = RNG.standard_normal((7, 3))
Y = RNG.standard_normal((7, 2))
GIVEN = {"plain": {}, "moment": {"second_moment": C}, "data": {"X": X, "Y": Y}}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("noise", ["dropout", "dropblock", "dropconnect", "matrix"])
def test_objectives_are_those_of_networks(noise, given):
    M, U, V = (
        RNG.standard_normal((2, 3)),
        RNG.standard_normal((2, 4)),
        RNG.standard_normal((3, 4)),
    )
    R = RNG.standard_normal((4, 4))
    kinds = {
        "dropout": (overt.Dropout([0.1, 0.5, 0.3, 0.2]), dropout(0.1, 0.5, 0.3, 0.2)),
        "dropblock": (
            overt.DropBlock(0.4, 2),
            {"kind": "dropblock", "block_size": 2, "drop_prob": [(0.4).hex()]},
        ),
        "dropconnect": (overt.DropConnect(0.3), dropout(0.3) | {"kind": "dropconnect"}),
        "matrix": (
            overt.CovarianceNoise(np.ones(4), R @ R.T),
            {
                "kind": "matrix",
                "drop_prob": [],
                "block_size": 1,
                "characteristic": None,
            },
        ),
    }
    law, text = kinds[noise]
    if noise == "matrix":
        text = text | {"characteristic": told(law.characteristic(4))}
    target = {} if given == "data" else {"target": M}
    net = overt.LinearNetwork(width=4, noise=law, **target, **GIVEN[given])
    found = Problem(posed("two-layer", [U, V], text, **target, **GIVEN[given]))
    assert found.samples == (7 if given == "data" else 1)
    assert float(found.objective()) / found.samples == pytest.approx(
        net.objective(U, V), rel=1e-12
    )
    assert found.correlated == (noise == "dropconnect" and given != "plain")
    if noise == "dropconnect":
        diagonal = posed(
            "two-layer", [U, V], text, target=M, second_moment=np.diag([1.0, 2.0, 3.0])
        )
        assert not Problem(diagonal).correlated


@pytest.mark.parametrize("given", GIVEN)
def test_objectives_of_deep_and_tied_networks(given):
    shapes = [(4, 3), (5, 4), (2, 5)]
    weights = [RNG.standard_normal(shape) for shape in shapes]
    M = RNG.standard_normal((2, 3))
    target = {} if given == "data" else {"target": M}
    net = overt.DeepLinearNetwork(
        widths=(4, 5), drop_prob=(0.3, 0.6), **target, **GIVEN[given]
    )
    found = Problem(posed("deep", weights, dropout(0.3, 0.6), **target, **GIVEN[given]))
    value = float(found.objective()) / found.samples
    assert value == pytest.approx(net.objective(weights), rel=1e-12)
    assert found.width == 4
    nu = (1 + 0.3 / 0.7 / 4) * (1 + 0.6 / 0.4 / 5) - 1
    delta, gamma = found.costs()
    assert [float(x) for x in delta] == pytest.approx([nu * 4] * 4)
    assert gamma == 0
    U = RNG.standard_normal((3, 2))
    if given == "data":
        tied = overt.TiedAutoencoder(X=X, width=2, noise=overt.Dropout(0.3))
        found = Problem(posed("tied", [U], dropout(0.3, 0.3), X=X, Y=X))
    else:
        S = RNG.standard_normal((3, 3))
        tied = overt.TiedAutoencoder(S, 2, overt.Dropout(0.3), **GIVEN[given])
        found = Problem(posed("tied", [U], dropout(0.3, 0.3), target=S, **GIVEN[given]))
    assert float(found.objective()) / found.samples == pytest.approx(
        tied.objective(U), rel=1e-12
    )
    K, shrink = found.gram
    if given == "plain":
        np.testing.assert_allclose(as_floats(K), S + S.T)
        assert shrink is None


GOOD = posed("two-layer", [EYE, EYE], dropout(0.1, 0.2, 0.3), target=EYE)
MATRIX = {
    "kind": "matrix",
    "drop_prob": [],
    "block_size": 1,
    "characteristic": told(EYE),
}
BLOCK = {"kind": "dropblock", "drop_prob": ["0x1p-1"], "block_size": 3}
WRONG = [
    (
        {
            "problem": {
                "target": told(EYE),
                "X": told(EYE),
                "Y": told(EYE),
                "second_moment": told(EYE),
            }
        },
        "both data and a second moment",
    ),
    (
        {"problem": {"target": told(EYE), "second_moment": told(EYE + np.eye(3, k=1))}},
        "unsymm",
    ),
    ({"weights": [told(EYE)]}, "a wrong number of weights"),
    ({"weights": [told(EYE)] * 3}, "a wrong number of weights"),
    ({"network": "tied"}, "a wrong number of weights"),
    ({"network": "deep", "weights": [told(EYE)]}, "a wrong number of weights"),
    ({"noise": MATRIX | {"kind": "gauss"}}, "unknown noise"),
    ({"network": "deep", "noise": BLOCK}, "unknown noise"),
    (
        {
            "network": "tied",
            "weights": [told(EYE)],
            "noise": dropout(0.1) | {"kind": "dropconnect"},
        },
        "unknown noise",
    ),
    (
        {"noise": dropout(0.1, 0.2, 0.3) | {"characteristic": told(EYE)}},
        "a matrix that is not",
    ),
    ({"noise": {**MATRIX, "characteristic": None}}, "a matrix that is not wanted"),
    (
        {"noise": MATRIX | {"characteristic": told(EYE + np.eye(3, k=1))}},
        "a wrong matrix",
    ),
    ({"noise": MATRIX | {"characteristic": told(np.eye(2))}}, "a wrong matrix"),
    ({"noise": dropout(0.1, 0.2)}, "wrong drop probabilities"),
    ({"noise": dropout(0.1, 0.2, 1.0)}, "wrong drop probabilities"),
    ({"noise": dropout(0.1, 0.2, -0.1)}, "wrong drop probabilities"),
    ({"noise": MATRIX | {"drop_prob": ["0x1p-1"]}}, "wrong drop probabilities"),
    ({"noise": BLOCK | {"drop_prob": ["0x1p-1"] * 3}}, "wrong drop probabilities"),
    ({"noise": dropout(0.1, 0.2, 0.3) | {"block_size": 3}}, "a wrong block size"),
    ({"noise": BLOCK | {"block_size": 2}}, "a wrong block size"),
    ({"noise": BLOCK | {"block_size": 0}}, "a wrong block size"),
    ({"noise": BLOCK | {"block_size": True}}, "a wrong block size"),
    ({"noise": BLOCK | {"block_size": -3}}, "a wrong block size"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_what_is_no_problem_is_refused(change, message):
    assert Problem(copy.deepcopy(GOOD)).width == 3
    with pytest.raises(RefusedError, match=message):
        Problem(copy.deepcopy(GOOD) | change)


def bounding(noise, thresholds=None, **witness):
    told_of = (
        {}
        if thresholds is None
        else {"thresholds": [float(x).hex() for x in thresholds]}
    )
    given = {"basis": told(EYE), **told_of, **witness}
    return Problem(
        posed("two-layer", [EYE, EYE], noise, given, target=np.diag([4.0, 2.0, 1.0]))
    )


def test_gains_follow_the_thresholds():
    """used / (1 + gamma) + sum of g^2 / delta, or top / gamma with blocks."""
    s, g = np.array([4.0, 2.0, 1.0]), np.array([0.25, 0.5, 1.5])
    lam = np.array([0.1 / 0.9, 0.2 / 0.8, 0.3 / 0.7])
    found = float(bounding(dropout(0.1, 0.2, 0.3), g).bound())
    used = np.sum(np.maximum(s - g, 0) ** 2)
    assert found == pytest.approx(21 - used - np.sum(g**2 / lam))
    block = BLOCK | {"block_size": 3}
    gamma = 1.0 * 3 / 3
    assert float(bounding(block, g).bound()) == pytest.approx(
        21 - used - np.sum(g**2) / gamma
    )
    few = BLOCK | {"block_size": 1}
    assert float(bounding(few, g).bound()) == pytest.approx(
        21 - used - 1.5**2 / (1 / 3)
    )
    assert float(bounding(dropout(0, 0, 0), [0, 0, 0]).bound()) == pytest.approx(0.0)
    some = bounding(dropout(0.0, 0.2, 0.3), [0.0, 0.5, 1.5])
    expected = 21 - 16 - 1.5**2 - 0.25 / lam[1] - 2.25 / lam[2]
    assert float(some.bound()) == pytest.approx(expected)
    Gamma = np.array([[1.0, 0.4, 0.4], [0.4, 1.2, 0.4], [0.4, 0.4, 1.4]])
    matrix = MATRIX | {"characteristic": told(Gamma)}
    below = {
        "gamma": (0.375).hex(),
        "delta": [(0.5).hex(), (0.75).hex(), (0.875).hex()],
        "dominated": told(EYE),
    }
    found = float(bounding(matrix, g, **below).bound())
    expected = 21 - used / 1.375 - np.sum(g**2 / np.array([0.5, 0.75, 0.875]))
    assert found == pytest.approx(expected)
    assert float(bounding(matrix).bound()) == pytest.approx(
        0.0
    )  # no costs: 21 less all of it
    negative = np.diag([5.0, 5.0, 5.0]) - 1.5 + 0.01
    told_negative = {
        "gamma": (-1.5).hex(),
        "delta": [(4.75).hex()] * 3,
        "dominated": told(EYE),
    }
    found = bounding(MATRIX | {"characteristic": told(negative)}, **told_negative)
    left = 1 - 1.5 + 4.75 / 3
    assert float(found.bound()) == pytest.approx(21 - 16 / left)


REFUSED = [
    (dropout(0.1, 0.2, 0.3), [0.1, 0.2], {}, "wrong thresholds"),
    (dropout(0.1, 0.2, 0.3), [-0.1, 0.2, 0.3], {}, "wrong thresholds"),
    (dropout(0.1, 0.2, 0.3), [0.3, 0.2, 0.4], {}, "thresholds that decrease"),
    (dropout(0.0, 0.2, 0.3), [0.1, 0.2, 0.3], {}, "a cost without noise"),
    (BLOCK | {"drop_prob": ["0x0p0"]}, [0.0, 0.0, 0.3], {}, "a cost without noise"),
    (
        dropout(0.1) | {"kind": "dropconnect"},
        None,
        {"multiplier": told(np.eye(2))},
        "fit",
    ),
    (
        dropout(0.1, 0.2, 0.3),
        None,
        {"multiplier": told(EYE)},
        "a multiplier without DropConnect",
    ),
    (
        dropout(0.0) | {"kind": "dropconnect"},
        None,
        {"multiplier": told(EYE)},
        "a cost without",
    ),
    (
        MATRIX,
        None,
        {
            "gamma": (-1.5).hex(),
            "delta": [(2.25).hex()] * 2 + ["0x0p0"],
            "dominated": told(EYE),
        },
        "not shown to be below",
    ),
    (
        MATRIX | {"characteristic": told(3 * EYE - 1.5)},
        None,
        {
            "gamma": (-1.5).hex(),
            "delta": ["0x1p0"] * 2 + ["0x0p0"],
            "dominated": told(EYE),
        },
        "a cost without noise",
    ),
    (
        MATRIX | {"characteristic": told(1.5 * EYE - 1.5)},
        None,
        {"gamma": (-1.5).hex(), "delta": ["0x1p-1"] * 3, "dominated": told(EYE)},
        "costs that bound nothing",
    ),
    (
        MATRIX,
        [0.1] * 3,
        {"gamma": "0x0p0", "delta": ["0x1p0"] * 2, "dominated": told(EYE)},
        "wrong costs",
    ),
    (
        MATRIX,
        [0.1] * 3,
        {
            "gamma": "0x0p0",
            "delta": ["0x1p-1", "0x1p-1", "-0x1p-1"],
            "dominated": told(EYE),
        },
        "wrong costs",
    ),
    (
        MATRIX,
        [0.1] * 3,
        {"gamma": "0x0p0", "delta": ["0x1p1"] * 3, "dominated": told(EYE)},
        "not shown to be below",
    ),
    (
        MATRIX,
        [0.1] * 3,
        {"gamma": "0x0p0", "delta": ["0x1p0"] * 3, "dominated": told(0 * EYE)},
        "not shown to be below",
    ),
]


@pytest.mark.parametrize(("noise", "thresholds", "witness", "message"), REFUSED)
def test_witnesses_that_show_nothing_are_refused(noise, thresholds, witness, message):
    with pytest.raises(RefusedError, match=message):
        bounding(noise, thresholds, **witness).bound()


@pytest.mark.parametrize("given", GIVEN)
def test_the_operator_bound_is_its_formula(given):
    """2 <Y C, M> - <Y C, Y> - lambda_max(Y C D^-1 C Y') d / lam."""
    M, Z = RNG.standard_normal((2, 3)), 0.3 * RNG.standard_normal((2, 3))
    weights = [RNG.standard_normal((2, 4)), RNG.standard_normal((3, 4))]
    second, target = np.eye(3), {"target": M}
    if given == "moment":
        second = C
    if given == "data":
        second, target, Z = X.T @ X, {}, 0.3 * RNG.standard_normal((2, 7))
    flow = Z @ X if given == "data" else Z @ second
    K = flow / np.diag(second) @ flow.T
    basis = np.linalg.eigh(K)[1]
    noise = dropout(0.3) | {"kind": "dropconnect"}
    shown = {"multiplier": told(Z), "basis": told(basis)}
    found = Problem(posed("two-layer", weights, noise, shown, **target, **GIVEN[given]))
    linear = np.sum(Z * Y.T) if given == "data" else np.sum(flow * M)
    square = np.sum(Z * Z) if given == "data" else np.sum(flow * Z)
    top = np.linalg.eigvalsh(K)[-1]
    expected = 2 * linear - square - top * 4 / (0.3 / 0.7)
    assert float(found.bound()) == pytest.approx(expected, rel=1e-9)
    for chance in (0.0, 0.3):
        none = {"multiplier": told(0 * Z), "basis": told(basis)}
        quiet = dropout(chance) | {"kind": "dropconnect"}
        found = Problem(
            posed("two-layer", weights, quiet, none, **target, **GIVEN[given])
        )
        assert found.bound() == 0
    if given == "moment":
        flat = np.array([[0.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
        wrong = posed("two-layer", weights, noise, shown, **target, second_moment=flat)
        with pytest.raises(RefusedError, match="an input without variance"):
            Problem(wrong).bound()
    if given != "plain":
        with pytest.raises(RefusedError, match="needs a multiplier"):
            Problem(
                posed("two-layer", weights, noise, **target, **GIVEN[given])
            ).bound()


@pytest.mark.parametrize("unit", [1.0, 2.0**-300, 2.0**300])
def test_the_operator_bound_of_multipliers_with_zeros(unit):
    """An input counts with its variance unless the multiplier leaves it out altogether."""
    D, Z, M = (
        np.array([0.25, 2.0, 0.0]),
        np.array([[0, 0.5, 0.3], [0.7, 0, 0.2]]),
        np.ones((2, 3)),
    )
    D, flow = D * unit, Z * D * unit
    K = flow / np.where(D > 0, D, 1.0) @ flow.T
    shown = {"multiplier": told(Z), "basis": told(np.linalg.eigh(K)[1])}
    noise = dropout(0.3) | {"kind": "dropconnect"}
    file = posed(
        "two-layer",
        [np.ones((2, 4)), np.ones((3, 4))],
        noise,
        shown,
        target=M,
        second_moment=np.diag(D),
    )
    expected = (
        2 * np.sum(flow)
        - np.sum(flow * Z)
        - np.linalg.eigvalsh(K)[-1] * 4 / (0.3 / 0.7)
    )
    assert float(Problem(file).bound()) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("outputs", [2, 9])
def test_grams_of_data_use_a_root_that_is_shown(outputs):
    Z = RNG.standard_normal((7, outputs))
    R = np.linalg.inv(np.linalg.cholesky(X.T @ X)).T
    weights = [np.ones((outputs, 1)), np.ones((3, 1))]

    def posing(X=X, **witness):
        return Problem(posed("two-layer", weights, dropout(0.1), witness, X=X, Y=Z))

    K, shrink = posing(inverse_root=told(R)).gram
    true = np.linalg.svd(Z.T @ X @ R, compute_uv=False)
    np.testing.assert_allclose(
        np.sort(np.linalg.eigvalsh(as_floats(K)))[::-1][: len(true)], true**2, atol=1e-9
    )
    assert 1 - 1e-9 < float(shrink) <= 1
    assert K.shape == (min(3, outputs),) * 2
    K, shrink = posing().gram
    assert (K.shape, shrink) == ((min(7, outputs),) * 2, 1)
    for root, message in ((2 * R, "too far from one"), (R[:, :2], "low rank")):
        with pytest.raises(RefusedError, match=message):
            _ = posing(inverse_root=told(root)).gram
    plain = posed(
        "two-layer",
        [EYE, EYE],
        dropout(0.1, 0.1, 0.1),
        {"inverse_root": told(EYE)},
        target=EYE,
    )
    with pytest.raises(RefusedError, match="without data"):
        _ = Problem(plain).gram


def test_costs_of_layers_multiply():
    lam = [Fraction(3, 7), Fraction(1, 4)]
    file = posed(
        "deep",
        [np.ones((2, 3)), np.ones((5, 2)), np.ones((1, 5))],
        dropout(0.3, 0.2),
        target=np.ones((1, 3)),
    )
    found = Problem(file)
    nu = prod((1 + s / n for s, n in zip(found.strengths, (2, 5), strict=True))) - 1
    assert found.costs()[0] == [nu * 2] * 2
    assert [float(x) for x in found.strengths] == pytest.approx([float(x) for x in lam])


def test_no_file_is_neither_accepted_nor_refused(capsys, tmp_path):
    for words in ([], ["--help"]):
        assert checker.main(words) == 2
        assert capsys.readouterr().out.startswith("usage: ")
    assert checker.main([str(tmp_path / "none.json")]) == 1
    assert capsys.readouterr().out.startswith("refused: ")


def test_a_bound_that_trusts_the_noise_says_so_and_a_contradiction_is_refused():
    """Without a witness for Gamma the checker took any matrix for a covariance."""
    noise = overt.CovarianceNoise(np.ones(3), np.outer([1, 2, 3], [1, 2, 3]))
    net = overt.LinearNetwork(EYE, 3, noise)
    proof = net.certify(2 * EYE, 2 * EYE, rigorous=True)
    assert "positive semi-definite" in proof.statement
    file = proof.document
    assert "the characteristic matrix is positive semi-definite" in checker.check(file)
    file["noise"]["characteristic"] = told(-4 * EYE)
    value = float(checker.Problem(file).objective())
    file["claim"] = {
        "at_most": value.hex(),
        "at_least": "0x0.0p0",
        "gap": value.hex(),
    }
    file["sha256"] = checker.digest(file)
    with pytest.raises(checker.RefusedError, match="above an objective"):
        checker.check(file)
