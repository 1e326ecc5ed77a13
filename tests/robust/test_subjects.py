"""What attacks see of a model and of arrays, against the definitions."""

import math

import numpy as np
import pytest
import torch

from overt import InputError
from overt.robust.attacks.models import Subject
from overt.robust.threats.base import tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outputs_are_probabilities_where_they_sum_to_one(dtype):
    eps, tiny = torch.finfo(dtype).eps, torch.finfo(dtype).tiny

    def seen(outputs, y=None, raw=False):
        outputs = torch.tensor(outputs, dtype=dtype)
        rows = torch.arange(len(outputs), dtype=dtype)[:, None]
        subject = Subject(lambda v: outputs[v[:, 0].long()], rows, {}, raw=raw)
        return subject.clean_logits(2, y), subject.probabilities

    rows = [[0.25, 0.75], [0.0, 1.0], [0.5, 0.5]]
    f, probable = seen(rows)
    assert probable
    expected = torch.tensor(rows, dtype=dtype).clamp(min=tiny).log()
    assert torch.equal(f, expected)
    assert f[1, 0] == math.log(tiny) or dtype is torch.float32
    assert not seen(rows, raw=True)[1]
    for off, expected in ((16 * eps, True), (40 * eps, False), (-40 * eps, False)):
        assert seen([[0.5, 0.5], [0.5, 0.5 + off]])[1] == expected
    assert not seen([[0.5, 0.5], [1.5, -0.5]])[1]  # below zero
    one = [[0.2], [0.3], [0.7], [1.0]]
    assert seen(one)[1]
    for y, expected in (([0, 0, 1, 1], True), ([1] * 4, False), ([0, 1, 1, 1], True)):
        f, probable = seen(one, y)
        assert probable == expected, y
        p = torch.tensor(one, dtype=dtype)
        both = torch.cat([1 - p if probable else 0 * p, p], 1)
        assert torch.equal(f, both.clamp(min=tiny).log() if probable else both)
    assert not seen([[0.2], [1.2]])[1]


def test_randomness_is_a_thousandth_of_the_largest_logit():
    calls = []

    def model(x, wobble=(0.5, 0.5, 2.0)):
        calls.append(len(x))
        moved = torch.tensor(wobble).double()[: len(x), None] * 1e-3 * (len(calls) % 2)
        return torch.cat([0 * x, x + moved], 1)

    x = torch.ones(3, 1).double()
    assert Subject(model, x, {}).random().tolist() == [False, False, True]
    assert calls == [3] * 4  # 2 + 8 // 3
    many = Subject(lambda v: calls.append(len(v)) or v.expand(-1, 2), torch.ones(99, 1), {})
    assert not bool(many.random().any())
    assert calls[4:] == [64] * 2


def test_arrays_become_tensors_of_the_same_numbers():
    values = np.array([[1.0, 2.0], [3.0, 4.0]])
    frozen = values.copy()
    frozen.flags.writeable = False
    same = [
        values, values.tolist(), values[::-1].copy()[::-1], values.astype(">f8"), frozen,
        values.astype(np.longdouble), torch.tensor(values), torch.tensor(values).to_sparse(),
        torch.tensor(values, requires_grad=True),
    ]  # fmt: skip
    for given in same:
        found = tensor("x", given)
        assert found.dtype == torch.float64
        assert not found.requires_grad
        assert found.layout is torch.strided
        assert found.tolist() == values.tolist()
    assert tensor("x", np.array([3, 2**63 - 1], np.uint64)).tolist() == [3, 2**63 - 1]
    assert tensor("x", np.array([], np.uint64)).dtype == torch.int64
    for kind in (np.float32, np.float16, np.int32, np.uint8, np.bool_, np.complex64):
        given = np.ones(2, kind)
        assert str(tensor("x", given).dtype).split(".")[1] == given.dtype.name
    own = np.zeros(3)
    tensor("x", own)[0] = 5.0
    assert own[0] == 5.0  # no copy where none is needed
    for bad, message in (
        (np.array([2**63], np.uint64), "below 2\\^63, got 9223372036854775808"),
        (np.array(["a"]), "of numbers, got ndarray of"), (torch.ones(2, device="meta"), "plain"),
        (torch.ones(2).to(torch.float8_e4m3fn), "plain"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            tensor("x", bad)
