"""Data in every form, and losses by every name."""

import sys
from collections import UserDict
from importlib import import_module

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from overt import InputError, MissingExtraError
from overt.nn import Predictive, audit, compress
from overt.nn.data.batches import (
    LABELS,
    ROWS,
    Batches,
    Inputs,
    name_failing_inputs,
    split_batch,
)
from overt.nn.data.losses import (
    LOSSES,
    Targets,
    check_loss,
    guess_loss,
    loss_name,
    mean_loss,
)
from overt.robust import L2, robust_error

torch.manual_seed(0)
X, Y = torch.randn(600, 4), torch.arange(600) % 3
NET = nn.Linear(4, 3)


def rows(batches):
    """All inputs by place or name, and all targets, put together again."""
    found = list(batches)
    first = found[0].inputs.given
    names = first.keys() if isinstance(first, dict) else range(len(first))
    inputs = {name: torch.cat([b.inputs.given[name] for b in found]) for name in names}
    return inputs, torch.cat([b.y for b in found])


SAME = {
    "pair": (X, Y),
    "arrays": (X.numpy(), Y.numpy()),
    "double": (X.numpy().astype(np.float64), Y.numpy().astype(np.int32)),
    "list": list(zip(X.split(100), Y.split(100), strict=True)),
    "list-of-arrays": [(X.numpy(), Y.numpy())],
    "lists": [[X, Y]],
    "nested": [((X,), Y)],
    "loader": DataLoader(TensorDataset(X, Y), batch_size=64),
    "generator": ((x, y) for x, y in zip(X.split(50), Y.split(50), strict=True)),
    "whole-mapping": {"x": X, "labels": Y},
    "mappings": [{"image": X, "label": Y}],
    "own-mapping": [UserDict(features=X, target=Y)],
    "loader-of-mappings": DataLoader(
        [{"x": x, "labels": y} for x, y in zip(X, Y, strict=True)], batch_size=64
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_all_forms_of_data_give_the_same_rows(name):
    inputs, y = rows(Batches(SAME[name], NET))
    torch.testing.assert_close(inputs[0], X)
    assert inputs[0].dtype == torch.float32
    assert torch.equal(y.long(), Y)


def test_pairs_are_split_and_counted():
    batches = Batches((X, Y), NET)
    assert batches.count == -(-600 // ROWS) == len(list(batches))
    assert [b.where for b in batches][:2] == ["batch 1 of data", "batch 2 of data"]
    assert Batches(iter([]), NET).count == 0


@pytest.mark.parametrize(
    "data",
    [
        ((X, 2 * X), Y),
        [((X, 2 * X), Y)],
        ({"a": X.numpy(), "b": 2 * X, "flag": True}, Y),
        [({"a": X, "b": 2 * X, "flag": True}, Y)],
    ],
)
def test_several_inputs(data):
    class Sum(nn.Module):
        def forward(self, a, b, flag=True):
            return a + b if flag else a

    outputs = [b.inputs.run(Sum()) for b in Batches(data, NET)]
    torch.testing.assert_close(torch.cat(outputs), 3 * X)


def test_numbers_take_the_models_format():
    double = nn.Linear(4, 3).double()
    (batch,) = Batches([(X, Y)], double)
    assert batch.inputs.given[0].dtype == torch.float64
    assert batch.y.dtype == torch.int64
    (ids,) = Batches(
        [(np.ones((2, 3), dtype=np.uint8), np.zeros(2, dtype=bool))], double
    )
    assert ids.inputs.given[0].dtype == ids.y.dtype == torch.int64


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "data must be a pair of arrays or give batches"),
        (X, "got Tensor"),
        ("path", "got str"),
        ({"x": X}, "got dict"),
        ([], "at least one batch"),
        ((X, Y[:5]), "600 inputs but 5 targets"),
        ([(X, Y[:5])], "batch 1 of data has 600 inputs but 5 targets"),
        ([(X, Y), (X,)], "batch 2 of data must be a pair"),
        ([(X, Y, Y)], "a tuple of Tensor, Tensor, Tensor"),
        ([{"x": X, "z": Y}], "a dict with 'x', 'z'"),
        ([(X, "y")], "targets must be a tensor, got str"),
        ([((X, "b"), Y)], "must be a tensor, a tuple of tensors or a dict"),
        ([(X, np.array(["a"] * 600))], "must hold numbers"),
        ([(X[:0], Y[:0])], "at least one row"),
        ([(X * torch.nan, Y)], "inputs must be finite"),
        (TensorDataset(X, Y), "needs a torch.utils.data.DataLoader"),
    ],
)
def test_what_is_no_data_is_named(data, message):
    with pytest.raises(InputError, match=message):
        list(Batches(data, NET))


def test_data_that_is_used_again_is_no_iterator():
    with pytest.raises(InputError, match="must not be an iterator"):
        Batches(iter([(X, Y)]), NET, repeated=True)
    (batch,) = Batches([X], NET, unlabeled=True)
    assert batch.y is None


def test_models_that_do_not_run_are_explained():
    inputs = Inputs.of(X[:, :2], "example")
    message = r"here: .* shape \(600, 2\) and type torch.float32"
    with pytest.raises(InputError, match=message), name_failing_inputs(inputs, "here"):
        inputs.run(NET)


def test_losses_are_recognized():
    assert [check_loss(name) for name in LOSSES] == list(LOSSES)
    assert check_loss(nn.MSELoss()) == check_loss(functional.mse_loss) == "mse"
    assert loss_name(nn.CrossEntropyLoss()) == "cross_entropy"
    smooth = nn.CrossEntropyLoss(label_smoothing=0.1)
    assert check_loss(smooth) is smooth
    with pytest.raises(InputError, match="default settings"):
        loss_name(smooth)
    with pytest.raises(InputError, match=r"loss must be one of 'squared'.*got int"):
        check_loss(3)
    with pytest.raises(InputError, match="loss must be one of"):
        check_loss("auto")


F = torch.randn(8, 3)
CLASSES = torch.arange(8) % 3
HOT = functional.one_hot(CLASSES)
MEANS = {
    "squared": (CLASSES, ((F - HOT) ** 2).sum(1).mean()),
    "mse": (HOT, functional.mse_loss(F, HOT.float())),
    "cross_entropy": (CLASSES, functional.cross_entropy(F, CLASSES)),
    "logistic": (
        HOT.double(),
        3 * functional.binary_cross_entropy_with_logits(F, HOT.float()),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_mean_is_the_mean_of_the_rows(name):
    y, expected = MEANS[name]
    torch.testing.assert_close(mean_loss(F, y, name), expected)
    targets = Targets(y, F, name, "here")
    torch.testing.assert_close(targets.losses(F, name).mean(), expected.double())
    assert torch.equal(targets.classes, CLASSES)
    first = targets.losses(F[:2], name)
    torch.testing.assert_close(first, targets.losses(F, name)[:2])


BITS = (CLASSES == 1).long()
GUESSES = {
    "classes": (CLASSES, F, "cross_entropy"),
    "classes of pixels": (
        torch.zeros(8, 4, 4, dtype=torch.long),
        torch.zeros(8, 3, 4, 4),
        "cross_entropy",
    ),
    "one-hot": (HOT.float(), F, "cross_entropy"),
    "several of several": (torch.ones(8, 3), F, "logistic"),
    "whole one-hot": (HOT, F, "logistic"),
    "bits": (BITS, F[:, :1], "logistic"),
    "bits stored as fractions": (BITS.float(), F[:, :1], "logistic"),
    "bits for a flat output": (BITS.float(), F[:, 0], "logistic"),
    "numbers": (F**2, F, "mse"),
    "one number": (F[:, 1:2], F[:, :1], "mse"),
}


@pytest.mark.parametrize("name", GUESSES)
def test_the_loss_is_guessed_from_the_targets(name):
    y, output, expected = GUESSES[name]
    assert guess_loss(y, output) == expected
    assert float(mean_loss(output, y, expected)) >= 0


@pytest.mark.parametrize("label", LABELS)
def test_targets_of_a_mapping_go_by_several_names(label):
    inputs, y = split_batch({"a": X, "b": X, label: Y})
    assert list(inputs) == ["a", "b"]
    assert y is Y
    assert split_batch({"features": X, label: Y})[0] is X
    assert list(split_batch({"input": X, label: Y}, NET)[0]) == ["input"]


def test_a_cache_among_the_inputs_is_not_changed():
    class Cached(nn.Module):
        def forward(self, x, cache):
            cache.append(x)
            return x * len(cache)

    cache = [X]
    inputs = Inputs.of({"x": X, "cache": cache}, "example")
    for _ in range(3):
        torch.testing.assert_close(inputs.run(Cached()), 2 * X)
    assert len(cache) == 1


class Net(nn.Module):
    """A classifier whose argument has the name of an entry of the mappings."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3)
        )

    def forward(self, x, scale=None):
        return self.layers(x if scale is None else x * scale)


SCALE = torch.full((600, 1), 0.5)
LOADERS = {
    "pairs": [(X, Y)],
    "dicts": [{"x": X, "labels": Y}],
    "own mappings": [UserDict(x=X, labels=Y)],
    "unknown names": [{"image": X, "target": Y}],
    "several": [{"x": X, "scale": SCALE, "y": Y}],
    "DataLoader": DataLoader(
        [{"x": x, "labels": y} for x, y in zip(X, Y, strict=True)], batch_size=100
    ),
}


def accuracy_by(function, data, net):
    """The accuracy that a public function reports on data."""
    match function:
        case "audit":
            return audit(net, data, "cross_entropy").accuracy
        case "compress":
            example = (
                {"x": X[:2], "scale": SCALE[:2]}
                if data is LOADERS["several"]
                else X[:2]
            )
            return compress(net, 0.5, example, data, by="flow")[1].before.accuracy
        case "robust_error":
            return 1 - robust_error(net, data, L2(0.1), budget=24, queries=0).clean
    found = Predictive(net, loss="cross_entropy").recalibrate(data)
    return (found.probabilities(data).argmax(1) == Y).double().mean()


def plain_accuracy(net, x):
    with torch.no_grad():
        return float((net(x).argmax(1) == Y).double().mean())


def noisy_accuracy(net, x):
    """That of the mean probabilities, from the tensor itself."""
    found = Predictive(net, loss="cross_entropy").recalibrate((x, Y))
    return float((found.probabilities(x).argmax(1) == Y).double().mean())


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize(
    "function", ["audit", "compress", "robust_error", "Predictive"]
)
def test_every_function_takes_every_loader(function, name):
    net = Net().eval()
    scaled = X * SCALE if name == "several" else X
    reference = noisy_accuracy if function == "Predictive" else plain_accuracy
    expected = reference(net, scaled)
    assert float(accuracy_by(function, LOADERS[name], net)) == pytest.approx(
        expected, abs=1e-9
    )


def absolute(output, y):
    return (output - y).abs().mean()


def branching(output, y):
    return absolute(output, y) if output.sum() > 0 else 2 * absolute(output, y)


@pytest.mark.parametrize("loss", [absolute, branching])
def test_a_loss_of_ones_own_is_taken_row_by_row(loss):
    y = F**2
    found = Targets(y, F, loss, "here").losses(F, loss)
    expected = torch.stack([loss(F[i : i + 1], y[i : i + 1]) for i in range(8)])
    torch.testing.assert_close(found, expected.double())
    with pytest.raises(InputError, match="one number"):
        Targets(y, F, loss, "here").losses(F, lambda f, t: (f - t).abs())


def test_missing_torch_is_named(monkeypatch):
    for name in list(sys.modules):
        if name == "overt.nn" or name.startswith("overt.nn."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"overt\[torch\]"):
        import_module("overt.nn")
