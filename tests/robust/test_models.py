"""What models, inputs and classes may look like."""

import math

import numpy as np
import pytest
import torch
from robust_cases import points

from overt import InputError
from overt.robust import PGD, Linf
from overt.robust.models import ModelAdapter, classes, floating, split_labeled


@pytest.mark.parametrize("shape", [(1, 3), (2, 3), (1, 3, 2), (3, 3, 2, 2), (2, 3, 3)])
def test_inputs_are_scaled_as_one_of_them_is(shape):
    x, free = (
        points(shape[0], math.prod(shape[1:])).view(shape),
        (1,) * (len(shape) - 2),
    )
    channels = torch.tensor([0.2, 0.5, 3.0]).double()
    for given, plain in (
        (0.25, 0.25),
        (channels, channels.view(3, *free)),
        (x[0] ** 2, x[0] ** 2),
    ):
        for options, expected in (
            ({"mean": given, "std": given}, (x - plain) / plain),
            ({"mean": given}, x - plain),
            ({"std": given}, x / plain),
        ):
            adapter = ModelAdapter(lambda v: v.flatten(1), x, options)
            torch.testing.assert_close(adapter.logits(x, None), expected.flatten(1))
    for wrong in (torch.ones(5), channels.view(1, 3, *free)):
        with pytest.raises(InputError, match="must be a number or fit one input"):
            ModelAdapter(lambda v: v, x, {"mean": wrong})


@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan])
def test_inputs_are_finite_on_both_sides(odd):
    x = points(3, 2)
    x[1, 0] = odd
    with pytest.raises(InputError, match="x must be finite, got 1 NaN or infinite"):
        ModelAdapter(lambda v: v, x, {})


def test_classes_are_numbers_of_points():
    x = points(3, 2)
    for y, count, expected in (
        ([-1, 1, -1], 2, [0, 1, 0]),
        ([-1, -1, -1], 2, [0, 0, 0]),
        ([1, 1, 1], 2, [1, 1, 1]),
        ([[0], [1], [2]], 3, [0, 1, 2]),
        ([0.0, 1.0, 2.0], 3, [0, 1, 2]),
        ([True, False, True], 2, [1, 0, 1]),
        (np.array([2, 0, 1], "u1"), 3, [2, 0, 1]),
    ):
        found = classes(y, x, count)
        assert (found.tolist(), found.dtype) == (expected, torch.int64)
    for y, count, message in (
        ([-1, 0, 1], 2, "y must lie in 0..1 for a model of 2 classes, got -1..1"),
        ([-1, 1, 1], 3, "got -1..1"),
        ([0, 1, 3], 3, "got 0..3"),
        ([0, 1], 3, "each of the 3"),
        ([[0, 1]] * 3, 3, "got shape"),
        ([[[0]]] * 3, 3, "got shape"),
        ([0, 1, 0.5], 3, "got 0.5"),
        ([0, 1, 1j], 3, "got torch.complex"),
        ([-2, 1, 1], 2, "got -2..1"),
    ):
        with pytest.raises(InputError, match=message):
            classes(y, x, count)


def test_inputs_are_points_of_numbers_with_a_fraction():
    assert floating("x", [[1, 2], [3, 4]]).dtype == torch.float64
    assert floating("x", ([1.0, 2.0],)).dtype == torch.float64
    assert floating("x", np.ones((2, 1), np.float32)).dtype == torch.float32
    for x, message in (
        (np.ones((2, 2), int), "convert it first"),
        ([[1j, 2.0]], "floating-point numbers"),
        (np.ones(3), r"must be \(points, ...\)"),
        (np.ones((2, 0)), "not empty"),
        (np.ones((0, 2)), "not empty"),
        (np.float64(3.0), r"must be \(points, ...\)"),
    ):
        with pytest.raises(InputError, match=message):
            floating("x", x)


def test_batches_are_pairs_or_have_a_usual_name():
    for name in ("labels", "label", "targets", "target", "y"):
        assert split_labeled({"a": 1, name: 2}) == (1, 2)
        assert split_labeled({"a": 1, "b": 3, name: 2}) == ({"a": 1, "b": 3}, 2)
    assert split_labeled({"y": 2, "label": 3}) == (2, 3)
    assert (split_labeled((1, 2)), split_labeled([1, 2, 3])) == ((1, 2), (1, 2))
    for wrong, message in (
        ({"a": 1}, "under one of labels"),
        ((1,), "batches"),
        (7, "batches"),
    ):
        with pytest.raises(InputError, match=message):
            split_labeled(wrong)


def test_probabilities_of_zero_have_finite_logits():
    def model(x):
        return (
            torch.stack([(x[:, 0] > 0).float(), (x[:, 0] <= 0).float()], 1)
            + 0 * x[:, :1]
        )

    found = PGD(Linf(0.1), steps=3)(model, torch.ones(2, 1), [0, 0], warn=False)
    assert torch.isfinite(torch.as_tensor(found.loss)).all()
