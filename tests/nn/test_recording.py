"""A recorded forward pass: what is seen, under which names, and how values are told apart."""

import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from overt import InputError
from overt.nn import Dropout
from overt.nn.data.models import modes
from overt.nn.data.rng import python_rng_states, repeat_pass, torch_rng_bytes
from overt.nn.recording import operations
from overt.nn.recording.recorder import record
from overt.nn.recording.watching import Extent, is_noise, watch


@dataclass
class Answer:
    logits: torch.Tensor
    hidden: torch.Tensor


class Model(nn.Module):
    """Two inputs, a dictionary's worth of outputs, control flow, functional dropout, in place."""

    def __init__(self):
        super().__init__()
        self.first, self.drop, self.head = nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 2)

    def forward(self, x, mask=None):
        h = self.first(x)
        if mask is not None:
            h = h * mask
        h.relu_()
        h = functional.dropout(h, 0.5, self.training)
        h = functional.dropout(h, 0.5, self.training)
        h = self.drop(h).view(h.size(0), -1)
        return Answer(self.head(h), h)


def test_operations_in_order_with_names_modules_and_references():
    model, x = Model().train(), torch.randn(3, 4)
    found = record(model, (x, torch.ones(6)), output=lambda o: o.logits)
    assert [op.name for op in found.operations] == [
        "linear", "mul", "relu", "dropout", "dropout", "dropout", "view", "linear",
    ]  # fmt: skip
    assert [op.module for op in found.operations] == ["first", "", "", "", "", "drop", "", "head"]
    assert found.noises == ["dropout", "dropout#2", "drop"]
    assert [op.random for op in found.operations] == [
        op.name == "dropout" for op in found.operations
    ]
    assert found.operations[2].inplace
    assert [op.output.shape for op in found.back(found.output)] == [
        (3, 2), (3, 6), (3, 6), (3, 6), (3, 6), (3, 6), (3, 6),
    ]  # fmt: skip
    assert found.output.maker.args[1].tensor is model.head.weight
    assert found.operations[0].given == (found.inputs[0],)
    assert found.operations[3].training is True
    again = record(model.eval(), {"x": x}, output=lambda o: o.hidden)
    assert again.noises == ["dropout", "dropout#2", "drop"]
    assert not any(op.random for op in again.operations)
    with pytest.raises(InputError, match="output"):
        _ = record(model, x).output


def test_values_changed_in_place_are_told_apart():
    model, x = Model().eval(), torch.randn(3, 4)
    found = record(model, x, output=lambda o: o.logits)
    linear, relu = found.operations[:2]
    assert linear.output is not relu.output
    assert relu.inputs == (linear.output,)
    assert found.readers(relu.output)[0].name == "dropout"


def test_modules_as_one_operation_and_light_records():
    model = nn.Sequential(nn.Linear(4, 6), Dropout(0.5), nn.LSTM(6, 3)).train()
    found = record(
        model, torch.randn(3, 4), output=lambda o: o[0], keep=False,
        leaves=lambda name, module: is_noise(module) or isinstance(module, nn.LSTM),
    )  # fmt: skip
    assert [op.name for op in found.operations] == ["linear", "Dropout", "LSTM"]
    assert [op.module for op in found.operations] == ["0", "1", "2"]
    assert found.operations[2].leaf is model[2]
    assert found.noises == ["1"]
    assert found.operations[0].output.tensor is None
    assert found.output.shape == (3, 3)
    assert found.inputs[0].tensor is not None


def test_sizes_that_were_asked_for_are_told_from_written_ones():
    class Shapes(nn.Module):
        def forward(self, x):
            b, c = x.shape
            return x.view(b, c // 2, 2).reshape(x.size(0), -1)

    found = record(Shapes(), torch.randn(3, 4), extents=True)
    first, second = found.operations
    assert [isinstance(size, Extent) for size in first.args[1:]] == [True, True, False]
    assert [isinstance(size, Extent) for size in second.args[1:]] == [True, False]


def test_every_spelling_has_one_name():
    x = torch.randn(2, 2)
    spellings = {
        "add": [lambda: x + 1, lambda: 1 + x, lambda: x.clone().add_(1), lambda: torch.add(x, 1)],
        "div": [lambda: x / 2, lambda: x.true_divide(2), lambda: torch.div(x, 2)],
        "cat": [lambda: torch.cat([x]), lambda: torch.concat([x])],
        "relu": [lambda: torch.relu(x), lambda: functional.relu(x), lambda: x.clone().relu_()],
        "getitem": [lambda: x[0]],
        "setitem": [lambda: x.clone().__setitem__(0, 1.0)],
        "bool_read": [lambda: bool(x[0, 0])],
        "T": [lambda: x.T],
    }
    for name, ways in spellings.items():
        for way in ways:
            seen = []
            with_module = type("M", (nn.Module,), {"forward": lambda self, x, way=way: way()})()
            watch(with_module, x, lambda call, seen=seen: (seen.append(call.name), call.run())[1])
            assert name in seen
    for name in ("mish", "hardswish", "softsign", "softmax", "softplus"):
        assert name in operations.TABLE


def test_modes_are_put_back():
    model = nn.Sequential(nn.BatchNorm1d(4), Dropout(0.5, seed=0), nn.Dropout(0.5)).eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with modes(model, noise=True, statistics="batch"):
        assert all(part.training for part in model)
        model(torch.randn(5, 4))
    assert not any(part.training for part in model)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    with modes(model, noise=True):
        assert [part.training for part in model] == [False, True, True]


def test_passes_from_the_same_states_tell_a_generator_of_its_own_from_all_else():
    """Python's and NumPy's draws and moving buffers begin anew, and no generator moves on."""

    class Own(nn.Module):
        def __init__(self, draw):
            super().__init__()
            self.draw, self.map = draw, nn.utils.spectral_norm(nn.Linear(3, 3))

        def forward(self, x):
            return self.map(x) * self.draw()

    own = np.random.default_rng(0)
    known = Own(lambda: random.random() + np.random.random() + torch.rand(()))  # noqa: NPY002, S311
    hidden, states = Own(own.random), (torch_rng_bytes(), python_rng_states())
    for model in (known, hidden):
        moves = repeat_pass(model, lambda m=model: [m(torch.ones(2, 3))], 2)[1]
        assert moves is (model is hidden)
    assert states == (torch_rng_bytes(), python_rng_states())
