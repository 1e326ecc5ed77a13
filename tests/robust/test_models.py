"""What models, inputs and classes may look like."""

from functools import cache

import numpy as np
import pytest
import torch
from robust_cases import (
    blobs,
    points,
    small_mlp,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from overt import InputError
from overt.robust import (
    L2,
    LOSSES,
    PGD,
    Linf,
    RobustnessWarning,
    adversarial_train,
    robust_error,
    strongest,
)

ATTACK = PGD(L2(0.8), steps=8)


class Frame:
    """Like a data frame: not an array, but ready to become one."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return self.values


def case(n=30):
    model, x = small_mlp(), points(n, 6)
    return model, x, model(x).argmax(1)


def test_arrays_of_every_kind_give_the_same():
    model, x, y = case()
    wanted = ATTACK(model, x, y)
    frozen = x.numpy().copy()
    frozen.flags.writeable = False
    backwards = np.ascontiguousarray(x.numpy()[::-1])[::-1]
    foreign = x.numpy().astype(">f8"), y.numpy().astype(">i4")
    for inputs, classes in (
        (frozen, y.numpy()),
        (backwards, np.ascontiguousarray(y.numpy()[::-1])[::-1]),
        foreign,
        (x.numpy().astype(np.longdouble), y.double()),
        (Frame(x.numpy()), Frame(y.numpy())),
        (x.tolist(), y.tolist()),
    ):
        found = ATTACK(model, inputs, classes)
        assert torch.equal(found.x, wanted.x)
        assert torch.equal(found.success, wanted.success)
    with torch.inference_mode():
        assert torch.equal(ATTACK(model, x, y).x, wanted.x)


def test_models_that_squeeze_may_end_with_a_single_point():
    x = points(12, 6)
    for classes in (1, 3):
        model = small_mlp(classes=classes)
        y = (model(x)[:, 0] > 0).long() if classes == 1 else model(x).argmax(1)
        wanted = ATTACK(model, x, y)
        one_by_one = PGD(L2(0.8), steps=8, batch_size=1)
        found = one_by_one(lambda v, model=model: model(v).squeeze(), x, y)
        assert torch.equal(found.success, wanted.success)


def test_logits_may_have_another_number_format():
    model, x, y = case()
    half = PGD(L2(0.8), steps=8)(lambda v: model(v).bfloat16(), x, y)
    assert half.x.dtype == x.dtype
    assert half.success.sum() >= 0.8 * ATTACK(model, x, y).success.sum()


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_what_is_not_a_number_is_no_success(loss):
    model, x, y = case()

    def fragile(v):
        moved = (v - x[: len(v)]).abs().amax(1, keepdim=True) > 0
        return torch.where(moved, torch.nan, model(v))

    with pytest.warns(
        RobustnessWarning, match="NaN or infinity at perturbations of 100.0%"
    ):
        found = PGD(L2(0.8), steps=3, loss=loss, restarts=2, early_exit=False)(
            fragile, x, y
        )
    assert not found.success.any()
    assert found.broken.all()
    assert torch.equal(found.x, x)


class Many(nn.Module):
    """A model of two inputs that returns more than logits."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, image, shift):
        return {"features": image, "logits": self.net(image) + shift}


def test_loaders_tuples_and_further_inputs_give_the_same():
    model, x, y = case()
    wanted = ATTACK(model, x, y)
    loader = DataLoader(TensorDataset(x, y), batch_size=7)
    assert torch.equal(ATTACK(model, loader).x, wanted.x)
    assert robust_error(model, loader, L2(0.8), attack=ATTACK).value == float(
        wanted.rate.mean()
    )
    rows = [{"pixels": v, "labels": t} for v, t in zip(x, y, strict=True)]
    assert torch.equal(ATTACK(model, DataLoader(rows, batch_size=7)).x, wanted.x)
    with pytest.raises(InputError, match="must be a pair"):
        ATTACK(model, DataLoader(x, batch_size=7))
    with pytest.raises(InputError, match="targets under one of labels"):
        ATTACK(model, [{"pixels": x, "kind": y}])
    assert torch.equal(
        ATTACK(lambda v: (model(v), v), x, y, output=lambda o: o[0]).x, wanted.x
    )
    with pytest.raises(InputError, match="got tuple; output=lambda o: o"):
        ATTACK(lambda v: (model(v), v), x, y)
    shift = torch.linspace(-3, 3, 30)[:, None] * torch.tensor([1.0, 0.0, 0.0]).double()
    y = (model(x) + shift).argmax(1)
    found = ATTACK(Many(model), (x, shift), y, output=lambda o: o["logits"])
    assert torch.equal(found.success, (model(found.x) + shift).argmax(1) != y)
    named = {"image": x, "shift": shift}
    again = PGD(L2(0.8), steps=8, batch_size=4)(
        Many(model), named, y, output=lambda o: o["logits"]
    )
    assert torch.equal(again.success, found.success)


def test_normalized_inputs():
    model = small_mlp()
    images = (0.2 + 0.6 * torch.rand(10, 3, 2, 1)).double()
    mean, std = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 0.6, 0.7])
    net = nn.Sequential(nn.Flatten(), model)
    by_hand = lambda v: net((v - mean.view(3, 1, 1)) / std.view(3, 1, 1))  # noqa: E731
    y = by_hand(images).argmax(1)
    attack = PGD(Linf(0.1, (0.0, 1.0)), steps=8)
    scaled = attack(net, images, y, mean=mean, std=std)
    assert torch.allclose(scaled.x, attack(by_hand, images, y).x)
    for given, twin in (
        ({"mean": 0.4}, lambda v: net(v - 0.4)),
        ({"std": std}, lambda v: net(v / std.view(3, 1, 1))),
        ({"std": 0.3}, lambda v: net(v / 0.3)),
    ):
        expected = attack(twin, images, y)
        found = attack(net, images, y, **given)
        assert torch.allclose(found.x, expected.x)
        assert torch.equal(found.success, expected.success)
    with pytest.raises(InputError, match="std must be positive"):
        attack(net, images, y, std=0.0)
    with pytest.raises(InputError, match="mean must be a number or an array that fits"):
        attack(net, images, y, mean=[0.1, 0.2])


def test_one_sided_outputs_are_not_taken_for_probabilities():
    model, x, y = case()
    with pytest.warns(RobustnessWarning, match="probabilities"):
        ATTACK(lambda v: model(v).softmax(1), x, y)
    ATTACK(lambda v: model(v).exp(), x, y)
    one = small_mlp(classes=1)
    y = (one(x)[:, 0] > 0).long()
    wanted = ATTACK(one, x, y)
    assert len(set(y.tolist())) == 2
    with pytest.warns(RobustnessWarning, match="probabilities"):
        ATTACK(lambda v: one(v).sigmoid(), x, y)
    found = ATTACK(lambda v: one(v).sigmoid(), x, y, outputs="probabilities")
    assert torch.equal(found.success, wanted.success)
    small = lambda v: (one(v) + 3) / 100  # noqa: E731  (a logit between 0 and 1 at all points)
    assert bool(((small(x) > 0) & (small(x) < 0.5)).all())
    assert not ATTACK(small, x, torch.ones(30)).warnings


class Hiding(nn.Module):
    """A module that does not know of the one that it calls."""

    def __init__(self, net):
        super().__init__()
        self.parts = [net]

    def forward(self, v):
        return self.parts[0](v)


def test_modules_inside_functions_are_switched_and_left_alone():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)
    )
    x = points(86, 6, dtype=torch.float32)
    net(x)
    y = net.eval()(x).argmax(1)
    wanted = PGD(L2(0.8), steps=10)(net, x, y)
    net.train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    for model in (lambda v: net(v), net.forward, Hiding(net)):
        inside = PGD(L2(0.8), steps=10)(model, x, y)
        assert torch.equal(inside.x, wanted.x)
        assert torch.equal(inside.success, wanted.success)
    assert all(m.training for m in net.modules())
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    PGD(L2(0.8), steps=3)(lambda v: net(v), x[:1], y[:1])  # a single point


@cache
def weights():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 3))
    adam = torch.optim.Adam(model.parameters(), 0.02)
    adversarial_train(model, blobs(300), None, epochs=12, optimizer=adam)
    return model.state_dict()


def trained(dtype=torch.float32):
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 3))
    model.load_state_dict(weights())
    x, y = blobs(80)
    return model.to(dtype), x, y


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_are_attacked_in_single_precision(dtype):
    model, x, y = trained()
    wide = strongest(model, x, y, Linf(0.15, (0.0, 1.0)), budget=40, warn=False)
    half = trained(dtype=dtype)[0]
    for given in (x, x.to(dtype)):
        found = strongest(half, given, y, Linf(0.15, (0.0, 1.0)), budget=40, warn=False)
        assert found.x.dtype == given.dtype
        assert abs(found.robust_accuracy - wide.robust_accuracy) <= 0.04
        assert float((found.x.double() - given.double()).abs().max()) <= 0.15
        assert torch.equal(found.success, half(found.x.to(dtype)).argmax(1) != y)


def test_model_state_is_restored():
    model = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)
    )
    model.train()
    model[1].eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    x = points(20, 6, dtype=torch.float32)
    with torch.no_grad(), pytest.warns(RobustnessWarning, match="training mode"):
        PGD(L2(0.5), steps=3)(model, x, torch.zeros(20, dtype=torch.long))
    assert [m.training for m in model.modules()] == [True, True, False, True, True]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_probabilities_of_zero_have_finite_logits():
    def model(x):
        return (
            torch.stack([(x[:, 0] > 0).float(), (x[:, 0] <= 0).float()], 1)
            + 0 * x[:, :1]
        )

    found = PGD(Linf(0.1), steps=3)(model, torch.ones(2, 1), [0, 0], warn=False)
    assert torch.isfinite(torch.as_tensor(found.loss)).all()


MLP = small_mlp()
X, Y = points(4, 6), [0, 1, 2, 0]
WRONG = [
    ({"budget": 23}, "budget must be at least 24"),
    ({"queries": -1}, "queries must be"),
    ({"batch_size": 0}, "batch_size must be"),
    ({"mean": [1.0, 2.0]}, "mean must be a number or an array that fits"),
    ({"std": 0.0}, "std must be positive"),
    ({"samples": 0}, "samples must be at least 1"),
    ({"output": "logits"}, "output must be a function"),
    ({"output": lambda o: o["logits"]}, r"inputs shaped \(4, 6\), all and one by one"),
    ({"outputs": "odds"}, "outputs must be one of"),
    ({"outputs": "probabilities"}, r"values in \[0, 1\]"),
    ({"surrogate": nn.Linear(2, 3)}, "model must take inputs shaped"),
    ({"surrogate": nn.Linear(6, 2).double()}, "as many logits as the model, 3, got 2"),
    ({"y": [0, 1, 2, 3]}, r"y must lie in 0\.\.2"),
    ({"y": [0, 1, 2, -1]}, r"got -1\.\.2"),
    ({"y": [0, 1, 2, 0.5]}, "class numbers, got 0.5"),
    ({"y": [0, 1]}, "one class for each of the 4 points"),
    ({"y": []}, "one class for each of the 4 points"),
    ({"y": ["cat"] * 4}, "y must"),
    ({"y": np.ones(4, complex)}, "y must hold numbers"),
    ({"y": None}, "x must be a pair of arrays or give batches"),
    ({"x": X.long()}, "floating-point numbers"),
    ({"x": X[0]}, r"x must be \(points, ...\) and not empty"),
    ({"x": X[:0]}, "at least one row"),
    ({"x": X / 0}, "x must be finite, got 24"),
    ({"x": (X, X[:2])}, "one row for each point"),
    ({"x": [[1.0, 2.0], [1.0]]}, "x must be an array"),
    ({"x": X[:, :5]}, r"model must take inputs shaped \(.*, 5\)"),
    ({"threat": 2.0}, "threat must be"),
    ({"threat": L2(1.0, (torch.zeros(5), torch.ones(5)))}, "bounds must be"),
    ({"model": lambda v: v[0]}, "logits"),
    ({"model": lambda v: v * torch.nan}, "finite logits, got NaN"),
    ({"model": lambda v: v[:, None]}, r"\(points, classes\), got"),
    ({"model": lambda v: {"logits": v}}, r'output=lambda o: o\["logits"\]'),
    ({"model": lambda v: 1 / 0}, "it fails: ZeroDivisionError"),
    ({"model": []}, "model must be a torch module"),
    ({"model": nn.Linear}, "model must be a torch module or a function"),
]


def test_an_argument_that_does_not_exist_is_named():
    with pytest.raises(TypeError, match="unexpected keyword argument 'depth'"):
        strongest(MLP, X, Y, L2(0.5), depth=3)


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_mistakes_are_named(change, message):
    given = {
        "model": MLP,
        "x": X,
        "y": Y,
        "threat": L2(0.5),
        "budget": 24,
        "queries": 0,
    }
    with pytest.raises(InputError, match=message):
        strongest(**(given | change))


def test_of_a_dict_of_arguments_the_first_tensor_is_attacked():
    """A model with a text before its input: the same points are fooled as without the text."""
    torch.manual_seed(0)
    linear = nn.Linear(4, 3)

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = linear

        def forward(self, way, x, scale):
            assert way == "twice"
            return 2 * scale[:, None] * self.linear(x)

    x = torch.rand(40, 4)
    y = linear(x).argmax(1)
    given = {"way": "twice", "x": x, "scale": torch.full((40,), 0.5)}
    attack = PGD(L2(0.3), steps=10)
    found = attack(Named().eval(), given, y)
    plain = attack(linear, x, y)
    assert plain.success.any()
    torch.testing.assert_close(found.x, plain.x)
