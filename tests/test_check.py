"""Bad input is refused with a message that names the argument and what was seen."""

import math

import numpy as np
import pandas
import polars
import pytest
import torch

import overt
from overt import (
    CovarianceNoise,
    DropBlock,
    DropConnect,
    Dropout,
    InputError,
    MissingExtraError,
    equalize,
    penalty,
    spectral,
)
from overt._check import InputTypeError
from overt.noise import Noise
from overt.spectral import KSupport, Schatten, SquaredNuclear

NAN, INF = math.nan, math.inf
U, V, H = np.ones((2, 4)), np.ones((3, 4)), np.ones((5, 4))
W1, W2 = np.ones((4, 3)), np.ones((2, 4))
A3 = np.ones((6, 2, 3))
S = np.array([3.0, 2.0, 1.0])
HALF = Dropout(0.5)


def refuse(call, *fragments):
    """Assert that the call raises InputError with a message holding all fragments."""
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    for fragment in fragments:
        assert fragment in message
    return caught.value


def table(cases):
    return pytest.mark.parametrize("case", cases.values(), ids=cases.keys())


BAD_DROP_PROBS = {
    "one": (1.0, "1.0"),
    "above-one": (1.5, "1.5"),
    "negative": (-0.1, "-0.1"),
    "nan": (NAN, "nan"),
    "infinite": (INF, "inf"),
    "text": ("a", "str"),
    "numpy-text": (np.str_("0.5"), ""),
    "bytes": (b"a", ""),
    "bool": (True, "bool"),
    "numpy-bool": (np.False_, "bool"),
    "none": (None, "NoneType"),
    "complex": (0.5j, "0.5j"),
    "single-complex": (np.complex64(0.5), "0.5"),
}
DROP_PROB_CALLS = {
    "Dropout": Dropout,
    "DropBlock": lambda p: DropBlock(p, 2),
    "DropConnect": DropConnect,
    "dropconnect": lambda p: penalty.dropconnect(U, V, p),
    "deep": lambda p: penalty.deep([W1, W2], p),
    "deep-per-layer": lambda p: penalty.deep([W1, np.ones((4, 4)), W2], [0.1, p]),
    "completion": lambda p: penalty.completion(U, V, [0], [0], p),
    "sensing": lambda p: penalty.sensing(U, V, A3, p),
    "nu": lambda p: spectral.nu([4], p),
}


@table(BAD_DROP_PROBS)
@pytest.mark.parametrize(
    "call_it", DROP_PROB_CALLS.values(), ids=DROP_PROB_CALLS.keys()
)
def test_bad_drop_prob(call_it, case):
    value, seen = case
    refuse(lambda: call_it(value), "drop_prob", "[0, 1)", seen)


@pytest.mark.parametrize(
    "value", [0, 0.25, np.float32(0.25), np.array(0.25), torch.tensor(0.25)], ids=repr
)
@pytest.mark.parametrize(
    "call_it", DROP_PROB_CALLS.values(), ids=DROP_PROB_CALLS.keys()
)
def test_any_kind_of_number_is_a_good_drop_prob(call_it, value):
    call_it(value)


BAD_DROP_PROB_SEQUENCES = {
    "entry-one": (lambda: Dropout([0.1, 1.0]), "drop_prob[1]", "1.0"),
    "entry-nan": (lambda: Dropout([0.1, NAN]), "drop_prob", "NaN"),
    "text-entry": (lambda: Dropout(["a", "b"]), "drop_prob", "numbers only"),
    "table": (lambda: Dropout([[0.1, 0.2]]), "drop_prob", "(1, 2)"),
    "ragged": (lambda: Dropout([[0.1], [0.1, 0.2]]), "drop_prob"),
    "empty": (lambda: Dropout([]), "drop_prob", "(0,)"),
    "wrong-count": (lambda: Dropout([0.1, 0.2]).mean(3), "drop_prob", "2", "3"),
    "shallow-wrong-count": (
        lambda: penalty.shallow(U, V, Dropout([0.1, 0.2])),
        "drop_prob",
        "2",
        "4",
    ),
    "deep-wrong-count": (
        lambda: penalty.deep([W1, W2], [0.1, 0.2]),
        "drop_prob",
        "2",
        "1",
    ),
    "nu-wrong-count": (lambda: spectral.nu([3, 4], [0.1]), "drop_prob", "2", "1"),
    "completion-wrong-count": (
        lambda: penalty.completion(U, V, [0], [0], [0.1, 0.2]),
        "drop_prob",
        "2",
        "4",
    ),
    "adjusting-per-unit": (
        lambda: Dropout([0.1, 0.2]).at_width(2),
        "drop_prob",
        "tuple",
    ),
}


@table(BAD_DROP_PROB_SEQUENCES)
def test_bad_sequence_of_drop_probs(case):
    refuse(*case)


BAD_ENTRIES = {
    "nan": (lambda shape: np.full(shape, NAN), "finite", "NaN"),
    "infinite": (lambda shape: np.full(shape, -INF), "finite", "infinite"),
    "empty": (lambda shape: np.ones((0, *shape[1:])), "empty", "(0"),
    "booleans": (lambda shape: np.ones(shape, dtype=bool), "floating-point", "bool"),
    "complex": (
        lambda shape: np.ones(shape, dtype=complex),
        "floating-point",
        "complex128",
    ),
    "objects": (lambda shape: np.ones(shape, dtype=object), "floating-point", "object"),
    "text-array": (lambda shape: np.full(shape, "1.5"), "floating-point", "<U3"),
    "text-list": (lambda shape: np.full(shape, "a").tolist(), "numbers only"),
    "number-text-list": (lambda shape: np.full(shape, "1.5").tolist(), "numbers only"),
    "none-list": (lambda shape: np.full(shape, None).tolist(), ""),
    "text": (lambda shape: "abc", "NumPy array", "str"),
    "none": (lambda shape: None, "NumPy array", "NoneType"),
    "masked": (lambda shape: np.ma.masked_all(shape), "NumPy array", "MaskedArray"),
    "wrong-ndim": (lambda shape: np.ones((*shape, 2)), "dimension", "2)"),
    "number": (lambda shape: 1.5, "NumPy array", "float"),
    "torch-nan": (lambda shape: torch.full(shape, NAN), "finite", "NaN"),
    "torch-complex": (
        lambda shape: torch.ones(shape, dtype=torch.complex64),
        "complex64",
    ),
}
ARRAY_CALLS = {
    "shallow-U": ("U", (2, 4), lambda x: penalty.shallow(x, V, HALF)),
    "shallow-V": ("V", (3, 4), lambda x: penalty.shallow(U, x, HALF)),
    "tied-U": ("U", (2, 4), lambda x: penalty.tied(x, HALF)),
    "hidden-U": ("U", (2, 4), lambda x: penalty.hidden(x, H, HALF)),
    "hidden-activations": ("activations", (5, 4), lambda x: penalty.hidden(U, x, HALF)),
    "variance-U": ("U", (2, 4), lambda x: penalty.predictive_variance(x, H, HALF)),
    "variance-activations": (
        "activations",
        (5, 4),
        lambda x: penalty.predictive_variance(U, x, HALF),
    ),
    "dropconnect-U": ("U", (2, 4), lambda x: penalty.dropconnect(x, V, 0.5)),
    "dropconnect-V": ("V", (3, 4), lambda x: penalty.dropconnect(U, x, 0.5)),
    "deep-first": ("weights[0]", (4, 3), lambda x: penalty.deep([x, W2], 0.5)),
    "deep-last": ("weights[1]", (2, 4), lambda x: penalty.deep([W1, x], 0.5)),
    "deep_terms-last": ("weights[1]", (2, 4), lambda x: penalty.deep_terms([W1, x])),
    "path_norm-first": ("weights[0]", (4, 3), lambda x: penalty.path_norm([x, W2])),
    "completion-U": ("U", (2, 4), lambda x: penalty.completion(x, V, [0], [0], 0.5)),
    "completion-V": ("V", (3, 4), lambda x: penalty.completion(U, x, [0], [0], 0.5)),
    "sensing-U": ("U", (2, 4), lambda x: penalty.sensing(x, V, A3, 0.5)),
    "sensing-measurements": (
        "measurements",
        (6, 2, 3),
        lambda x: penalty.sensing(U, V, x, 0.5),
    ),
    "CovarianceNoise-mean": ("mean", (2,), lambda x: CovarianceNoise(x, np.eye(2))),
    "CovarianceNoise-covariance": (
        "covariance",
        (2, 2),
        lambda x: CovarianceNoise([1.0, 1.0], x),
    ),
    "SquaredNuclear-value": ("s", (3,), SquaredNuclear().value),
    "SquaredNuclear-dual": ("s", (3,), SquaredNuclear().dual),
    "SquaredNuclear-prox": ("s", (3,), lambda x: SquaredNuclear().prox(x, 0.5)),
    "optimality-s": (
        "s",
        (3,),
        lambda x: SquaredNuclear().optimality(x, np.ones(3), 0.5),
    ),
    "optimality-a": (
        "a",
        (3,),
        lambda x: SquaredNuclear().optimality(np.ones(3), x, 0.5),
    ),
    "KSupport-value": ("s", (3,), KSupport(2).value),
    "KSupport-dual": ("s", (3,), KSupport(2).dual),
    "KSupport-prox": ("s", (3,), lambda x: KSupport(2).prox(x, 0.5)),
    "Schatten-value": ("s", (3,), Schatten(2).value),
    "Schatten-dual": ("s", (3,), Schatten(2).dual),
    "Schatten-prox": ("s", (3,), lambda x: Schatten(2).prox(x, 0.5)),
    "matrix_value-A": ("A", (2, 3), SquaredNuclear().matrix_value),
    "matrix_dual-A": ("A", (2, 3), SquaredNuclear().matrix_dual),
    "matrix_prox-A": ("A", (2, 3), lambda x: KSupport(2).matrix_prox(x, 0.5)),
    "factorization_cost": ("s", (3,), lambda x: spectral.factorization_cost(x, 2)),
    "equalizer": ("U", (2, 4), equalize.equalizer),
    "equalize_product": ("A", (2, 3), lambda x: equalize.equalize_product(x, 3)),
    "schur_horn-eigenvalues": (
        "eigenvalues",
        (2,),
        lambda x: equalize.schur_horn(x, [1.0, 1.0]),
    ),
    "schur_horn-diagonal": (
        "diagonal",
        (2,),
        lambda x: equalize.schur_horn([1.0, 1.0], x),
    ),
    "block_imbalance-U": ("U", (2, 4), lambda x: equalize.block_imbalance(x, V, 2)),
    "KSupport-occupancy": ("s", (3,), KSupport(2).occupancy),
    "importance-U": ("U", (2, 4), lambda x: equalize.importance(x, V)),
    "imbalance-V": ("V", (3, 4), lambda x: equalize.imbalance(U, x)),
    "equalization_gaps": (
        "weights[0]",
        (4, 3),
        lambda x: equalize.equalization_gaps([x, W2]),
    ),
}


@table(BAD_ENTRIES)
@pytest.mark.parametrize(
    ("name", "shape", "call_it"), ARRAY_CALLS.values(), ids=ARRAY_CALLS.keys()
)
def test_bad_array(name, shape, call_it, case):
    make, *fragments = case
    refuse(lambda: call_it(make(shape)), f"{name} must", *fragments)


SECOND_MOMENT_CALLS = {
    "shallow": lambda C: penalty.shallow(U, V, HALF, C),
    "shallow-dropconnect": lambda C: penalty.shallow(U, V, DropConnect(0.5), C),
    "tied": lambda C: penalty.tied(V, HALF, C),
    "dropconnect": lambda C: penalty.dropconnect(U, V, 0.5, C),
    "deep": lambda C: penalty.deep([W1, W2], 0.5, C),
    "deep_terms": lambda C: penalty.deep_terms([W1, W2], C),
    "importance": lambda C: equalize.importance(U, V, C),
    "imbalance": lambda C: equalize.imbalance(U, V, C),
    "equalization_gaps": lambda C: equalize.equalization_gaps([W1, W2], C),
}
BAD_SECOND_MOMENTS = {
    "wrong-size": (np.eye(4), "3 x 3", "(4, 4)"),
    "not-square": (np.ones((3, 2)), "3 x 3", "(3, 2)"),
    "asymmetric": (np.array([[1.0, 0.5, 0], [0, 1, 0], [0, 0, 1]]), "symmetric", "0.5"),
    "nan": (np.full((3, 3), NAN), "finite", "9 NaN"),
    "vector": (np.ones(3), "2 dimension", "(3,)"),
}


@table(BAD_SECOND_MOMENTS)
@pytest.mark.parametrize(
    "call_it", SECOND_MOMENT_CALLS.values(), ids=SECOND_MOMENT_CALLS.keys()
)
def test_bad_second_moment(call_it, case):
    C, *fragments = case
    refuse(lambda: call_it(C), "second_moment", *fragments)


BAD_WHOLE_NUMBERS = {
    "zero": (0, "at least 1", "0"),
    "negative": (-2, "at least 1", "-2"),
    "fraction": (1.5, "whole number", "1.5"),
    "whole-float": (2.0, "whole number", "2.0"),
    "bool": (True, "whole number", "True"),
    "text": ("2", "whole number", "'2'"),
    "none": (None, "whole number", "None"),
}
WHOLE_NUMBER_CALLS = {
    "KSupport-k": ("k", KSupport),
    "DropBlock-block_size": ("block_size", lambda n: DropBlock(0.5, n)),
    "mean-width": ("width", HALF.mean),
    "mean-plane": ("width", lambda n: HALF.mean((2, n))),
    "dropconnect-width": ("width", DropConnect(0.5).characteristic),
    "grid-width": ("width", DropBlock(0.5, 1).sample),
    "covariance-width": ("width", CovarianceNoise([1.0], [[1.0]]).mean),
    "at_width": ("width", HALF.at_width),
    "sample-size": ("size", lambda n: HALF.sample(3, n)),
    "block-sample-size": ("size", lambda n: DropBlock(0.5, 1).sample(3, n)),
    "covariance-sample-size": (
        "size",
        lambda n: CovarianceNoise([1.0], [[1.0]]).sample(1, n),
    ),
    "induced-width": ("width", lambda n: spectral.induced(HALF, n)),
    "factorization_cost-depth": ("depth", lambda n: spectral.factorization_cost(S, n)),
    "nu-widths": ("widths[1]", lambda n: spectral.nu([3, n], 0.5)),
    "block_imbalance-size": ("block_size", lambda n: equalize.block_imbalance(U, V, n)),
    "equalize_product-width": (
        "width",
        lambda n: equalize.equalize_product(np.ones((2, 2)), n),
    ),
}


@table(BAD_WHOLE_NUMBERS)
@pytest.mark.parametrize(
    ("name", "call_it"), WHOLE_NUMBER_CALLS.values(), ids=WHOLE_NUMBER_CALLS.keys()
)
def test_bad_whole_number(name, call_it, case):
    value, *fragments = case
    refuse(lambda: call_it(value), f"{name} must", *fragments)


BAD_WEIGHTS = {
    "negative": (-0.5, "at least 0", "-0.5"),
    "nan": (NAN, "finite", "nan"),
    "infinite": (INF, "finite", "inf"),
    "none": (None, "number", "None"),
    "text": ("a", "number", "'a'"),
    "number-text": ("1.5", "number", "'1.5'"),
    "complex": (1j, "number", "1j"),
}
WEIGHT_CALLS = {
    "SquaredNuclear": lambda w: SquaredNuclear().prox(S, w),
    "optimality": lambda w: SquaredNuclear().optimality(S, S, w),
    "KSupport": lambda w: KSupport(2).prox(S, w),
    "Schatten-1": lambda w: Schatten(1).prox(S, w),
    "Schatten-2": lambda w: Schatten(2).prox(S, w),
    "Schatten-inf": lambda w: Schatten(INF).prox(S, w),
    "matrix": lambda w: KSupport(1).matrix_prox(U, w),
}


@table(BAD_WEIGHTS)
@pytest.mark.parametrize("call_it", WEIGHT_CALLS.values(), ids=WEIGHT_CALLS.keys())
def test_bad_weight(call_it, case):
    value, *fragments = case
    refuse(lambda: call_it(value), "weight must", *fragments)


BAD_SEEDS = {
    "negative": (-1, "at least 0", "-1"),
    "text": ("a", "whole number", "'a'"),
    "fraction": (0.5, "whole number", "0.5"),
    "legacy": (np.random.RandomState(0), "whole number", "RandomState"),
}
SEED_CALLS = {
    "Dropout": lambda seed: HALF.sample(3, 2, seed),
    "DropConnect": lambda seed: DropConnect(0.5).sample(3, 2, seed),
    "DropBlock": lambda seed: DropBlock(0.5, 1).sample(3, 2, seed),
    "CovarianceNoise": lambda seed: CovarianceNoise([1.0], [[1.0]]).sample(1, 2, seed),
    "multipliers": lambda seed: HALF.multipliers(3, 2, seed),
}


@table(BAD_SEEDS)
@pytest.mark.parametrize("call_it", SEED_CALLS.values(), ids=SEED_CALLS.keys())
def test_bad_seed(call_it, case):
    value, *fragments = case
    refuse(lambda: call_it(value), "seed must", *fragments)


BAD_NOISES = {
    "none": (None, "None"),
    "word": ("dropout", "'dropout'"),
    "class": (Dropout, "Dropout"),
}
NOISE_CALLS = {
    "shallow": lambda noise: penalty.shallow(U, V, noise),
    "tied": lambda noise: penalty.tied(U, noise),
    "hidden": lambda noise: penalty.hidden(U, H, noise),
    "predictive_variance": lambda noise: penalty.predictive_variance(U, H, noise),
}


@table(BAD_NOISES)
@pytest.mark.parametrize("call_it", NOISE_CALLS.values(), ids=NOISE_CALLS.keys())
def test_bad_noise(call_it, case):
    value, seen = case
    refuse(
        lambda: call_it(value),
        "noise must",
        "Dropout, DropBlock or CovarianceNoise",
        seen,
    )


BAD_INDICES = {
    "too-large": ([0, 9], "0..1", "0..9"),
    "negative": ([-1, 0], "0..1", "-1..0"),
    "floats": ([0.0, 1.0], "whole numbers", "float"),
    "booleans": ([True, False], "whole numbers", "bool"),
    "text": ("ab", "whole numbers"),
    "none": (None, "whole numbers"),
    "table": ([[0, 1]], "one-dimensional", "(1, 2)"),
    "ragged": ([[0], [0, 1]], "one-dimensional"),
    "empty": (np.array([], dtype=int), "non-empty", "(0,)"),
}
BACKENDS = {"numpy": np.ones((2, 4)), "torch": torch.ones(2, 4, dtype=torch.float64)}


@table(BAD_INDICES)
@pytest.mark.parametrize("factor", BACKENDS.values(), ids=BACKENDS.keys())
@pytest.mark.parametrize("name", ["rows", "cols"])
def test_bad_indices(name, factor, case):
    value, *fragments = case
    given = {"rows": [0, 1], "cols": [0, 1]} | {name: value}
    refuse(
        lambda: penalty.completion(factor, factor, drop_prob=0.5, **given),
        f"{name} must",
        *fragments,
    )


MISFITS = {
    "shallow-widths": (
        lambda: penalty.shallow(U, np.ones((3, 5)), HALF),
        "U",
        "(2, 4)",
        "(3, 5)",
    ),
    "dropconnect-widths": (
        lambda: penalty.dropconnect(U, np.ones((3, 5)), 0.5),
        "V",
        "(3, 5)",
    ),
    "completion-widths": (
        lambda: penalty.completion(U, np.ones((3, 5)), [0], [0], 0.5),
        "V",
        "(3, 5)",
    ),
    "importance-widths": (
        lambda: equalize.importance(U, np.ones((3, 5))),
        "V",
        "(3, 5)",
    ),
    "hidden-widths": (
        lambda: penalty.hidden(U, np.ones((5, 3)), HALF),
        "activations",
        "(5, 3)",
        "(2, 4)",
    ),
    "variance-widths": (
        lambda: penalty.predictive_variance(U, np.ones((5, 3)), HALF),
        "activations",
        "(5, 3)",
    ),
    "chain": (
        lambda: penalty.deep([W1, np.ones((2, 5))], 0.5),
        "weights[1]",
        "4 outputs",
        "(2, 5)",
    ),
    "one-layer": (
        lambda: penalty.deep([W1], 0.5),
        "weights",
        "at least two",
        "length 1",
    ),
    "no-list": (lambda: penalty.deep_terms(W1), "weights", "list", "ndarray"),
    "generator": (
        lambda: penalty.path_norm(W for W in (W1, W2)),
        "weights",
        "generator",
    ),
    "index-lengths": (
        lambda: penalty.completion(U, V, [0, 1], [0], 0.5),
        "rows and cols",
        "2 and 1",
    ),
    "measurements": (
        lambda: penalty.sensing(U, V, np.ones((6, 3, 2)), 0.5),
        "measurements",
        "n x 2 x 3",
        "(6, 3, 2)",
    ),
    "block-does-not-divide": (
        lambda: DropBlock(0.5, 2).mean(5),
        "block_size must divide",
        "block_size 2",
        "width 5",
        "sliding",
    ),
    "block-does-not-divide-a-plane": (
        lambda: DropBlock(0.5, 2).sample((4, 5)),
        "block_size must divide",
        "(4, 5)",
    ),
    "block-too-big": (
        lambda: DropBlock(0.5, 6, "sliding").mean(5),
        "block_size must be at most",
        "5",
        "6",
    ),
    "block-too-big-on-a-plane": (
        lambda: DropBlock(0.5, 4, "sliding").seed_probability((8, 3)),
        "block_size must be at most",
        "(8, 3)",
        "4",
    ),
    "shallow-block": (
        lambda: penalty.shallow(U, V, DropBlock(0.5, 3)),
        "block_size",
        "3",
        "4",
    ),
    "induced-block": (
        lambda: spectral.induced(DropBlock(0.5, 3), 4),
        "block_size",
        "3",
        "4",
    ),
    "placement": (
        lambda: DropBlock(0.5, 2, "random"),
        "placement",
        "'sliding'",
        "'random'",
    ),
    "covariance-width": (
        lambda: CovarianceNoise([1.0, 1.0], np.eye(2)).mean(3),
        "2 units",
        "3",
    ),
    "covariance-size": (
        lambda: CovarianceNoise([1.0, 1.0], np.eye(3)),
        "covariance must be 2 x 2",
        "(3, 3)",
    ),
    "covariance-asymmetric": (
        lambda: CovarianceNoise([1.0, 1.0], [[1.0, 0.5], [0.0, 1.0]]),
        "covariance must be symmetric",
        "0.5",
    ),
    "covariance-indefinite": (
        lambda: CovarianceNoise([1.0, 1.0], [[1.0, 2.0], [2.0, 1.0]]),
        "covariance must be positive semi-definite",
        "-1",
    ),
    "covariance-negative": (
        lambda: CovarianceNoise([1.0], [[-0.5]]),
        "covariance must be positive semi-definite",
        "-0.5",
    ),
    "zero-mean": (
        lambda: CovarianceNoise([1.0, 0.0], np.eye(2)),
        "mean must",
        "zero",
        "at 1",
    ),
    "schatten-zero": (lambda: Schatten(0), "p must", "above 0", "0"),
    "schatten-nan": (lambda: Schatten(NAN), "p must", "nan"),
    "schatten-text": (lambda: Schatten("a"), "p must", "'a'"),
    "schatten-quasi-dual": (lambda: Schatten(0.5).dual(S), "p >= 1", "0.5"),
    "schatten-unknown-prox": (
        lambda: Schatten(3).prox(S, 0.5),
        "p = 1, 2 and infinity",
        "3",
    ),
    "path-order": (
        lambda: penalty.path_norm([W1, W2], 0),
        "order must",
        "above 0",
        "0",
    ),
    "nu-no-layer": (lambda: spectral.nu([], 0.5), "widths", "none"),
    "nu-float": (lambda: spectral.nu(5.0, 0.5), "widths", "5.0"),
    "schur-horn-lengths": (
        lambda: equalize.schur_horn([1.0, 2.0], [3.0]),
        "diagonal must have 2 entries",
        "1",
    ),
    "block-imbalance-size": (
        lambda: equalize.block_imbalance(U, V, 3),
        "block_size must divide",
        "4",
        "3",
    ),
    "product-width": (
        lambda: equalize.equalize_product(np.eye(3), 2),
        "width must be at least",
        "3",
        "2",
    ),
    "zero-map": (
        lambda: equalize.equalization_gaps([np.zeros((4, 3)), W2]),
        "weights must not multiply to the zero map",
    ),
    "mixed-libraries": (lambda: penalty.shallow(U, torch.tensor(V), HALF), "U", "V"),
    "mixed-second-moment": (
        lambda: penalty.shallow(torch.tensor(U), torch.tensor(V), HALF, np.eye(3)),
        "second_moment",
    ),
}


@table(MISFITS)
def test_arguments_that_do_not_fit(case):
    refuse(*case)


WRONG_TYPES = {
    "complex-array": lambda: KSupport(1).value(np.array([1j, 2])),
    "text-array": lambda: KSupport(1).value("abc"),
    "text-list": lambda: KSupport(1).value(["a"]),
    "text-drop-prob": lambda: Dropout("a"),
    "bool-drop-prob": lambda: Dropout(True),
    "fractional-k": lambda: KSupport(1.5),
    "missing-weight": lambda: KSupport(1).prox(S, None),
    "noise": lambda: penalty.shallow(U, V, None),
    "unknown-induced-norm": lambda: spectral.induced(DropBlock(0.5, 2, "sliding"), 4),
}


@table(WRONG_TYPES)
def test_wrong_type_is_also_a_type_error(case):
    error = refuse(case)
    assert isinstance(error, InputTypeError)
    assert isinstance(error, TypeError)
    assert isinstance(error, ValueError)


def test_wrong_value_is_no_type_error():
    assert not isinstance(refuse(lambda: Dropout(1.0)), TypeError)
    assert issubclass(InputError, ValueError)
    assert overt.InputError is InputError


def test_missing_extra_names_the_command_that_installs_it():
    error = MissingExtraError("torch", "torch")
    assert isinstance(error, ImportError)
    assert "torch" in str(error)
    assert "pip install 'overt[torch]'" in str(error)


@pytest.mark.parametrize(
    "make", [list, tuple, np.array, torch.tensor], ids=lambda m: m.__name__
)
def test_lists_tuples_arrays_and_tensors_are_good_spectra(make):
    assert float(KSupport(1).value(make([3.0, 1.0]))) == 16.0


@pytest.mark.parametrize(
    "make", [list, np.array, torch.tensor], ids=lambda m: m.__name__
)
def test_whole_numbers_are_good_matrices_whatever_holds_them(make):
    assert float(penalty.shallow(make([[1, 2]]), make([[3, 1]]), HALF)) == 13.0


class Broken(Noise):
    """A noise of one's own with an error in it, on numbers of ordinary size."""

    def __init__(self, error):
        self.error = error

    def mean(self, width):
        return np.ones(width)

    def characteristic(self, width):
        raise self.error

    def sample(self, width, size=1, seed=None):
        return np.ones((size, width))

    @property
    def independent(self):
        return False


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("division by zero"),
        np.linalg.LinAlgError("ours"),
        FloatingPointError("f"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_the_code_is_not_blamed_on_the_numbers(error):
    with pytest.raises(type(error)) as caught:
        penalty.shallow(U, V, Broken(error))
    assert caught.value is error


def test_numbers_that_overflow_are_named_with_their_cause():
    error = refuse(
        lambda: penalty.shallow(1e200 * U, 1e200 * V, HALF), "divide them by a constant"
    )
    assert isinstance(error.__cause__, FloatingPointError)


class ArrayLike:
    """An object of another library that NumPy can read."""

    def __init__(self, numbers):
        self.numbers = np.asarray(numbers)

    def __array__(self, dtype=None, copy=None):
        return np.array(self.numbers, dtype=dtype)


LIBRARIES = {
    "pandas": (pandas.DataFrame, pandas.Series),
    "polars": (polars.DataFrame, polars.Series),
    "unmasked": (np.ma.asarray, np.ma.asarray),
    "array protocol": (ArrayLike, ArrayLike),
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_holds_numbers_is_taken_like_an_array(library):
    frame, series = LIBRARIES[library]
    assert penalty.shallow(frame(U), frame(V), HALF) == penalty.shallow(U, V, HALF)
    assert SquaredNuclear().value(series(S)) == SquaredNuclear().value(S)
    found = overt.LinearNetwork(target=frame(U), width=3, noise=HALF).solve()
    assert (
        found.objective
        == overt.LinearNetwork(target=U, width=3, noise=HALF).solve().objective
    )
    assert np.array_equal(equalize.equalizer(frame(U)), equalize.equalizer(U))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_what_a_series_lacks_is_refused(library):
    series = LIBRARIES[library][1]
    refuse(
        lambda: SquaredNuclear().value(series([1.0, None, 2.0])),
        "s must be finite",
        "1 NaN",
    )
    refuse(lambda: SquaredNuclear().value(series(["a", "b"])), "s must", "numbers")
