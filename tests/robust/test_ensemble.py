"""The ensemble, the table of its stages, and what it refuses."""

import numpy as np
import pytest
import torch
from robust_cases import points, small_mlp
from torch.utils.data import DataLoader

from overt import InputError
from overt.robust import (
    BIM,
    L1,
    L2,
    PGD,
    Deviates,
    Effective,
    HopSkipJump,
    Linf,
    Square,
    minimum_distance,
    robust_error,
    smoothed,
    strongest,
)

MLP = small_mlp()
X, Y = points(4, 6), [0, 1, 2, 0]
RUN = {"model": MLP, "x": X, "y": Y, "threat": L2(0.5), "budget": 24, "queries": 0}
WRONG = [
    (lambda: strongest(**(RUN | {"budget": 23})), "budget must be at least 24"),
    (lambda: strongest(**(RUN | {"queries": -1})), "queries must be"),
    (lambda: strongest(**(RUN | {"rivals": 0})), "rivals must be"),
    (lambda: strongest(**(RUN | {"criterion": 3})), "criterion must be a Criterion"),
    (lambda: strongest(**(RUN | {"batch_size": 0})), "batch_size must be"),
    (lambda: strongest(**(RUN | {"depth": 3})), "unexpected argument depth"),
    (lambda: strongest(**(RUN | {"mean": [1.0, 2.0]})), "mean must be a number or fit"),
    (lambda: strongest(**(RUN | {"std": 0.0})), "std positive"),
    (lambda: strongest(**(RUN | {"start": X[:2]})), "start must be shaped like x"),
    (lambda: strongest(**(RUN | {"y": [0, 1, 2, 3]})), r"y must lie in 0\.\.2"),
    (lambda: strongest(**(RUN | {"y": [0, 1, 2, -1]})), r"got -1\.\.2"),
    (lambda: strongest(**(RUN | {"y": [0, 1, 2, 0.5]})), "class numbers, got 0.5"),
    (
        lambda: strongest(**(RUN | {"y": np.ones(4, complex)})),
        "numbers, got torch.complex128",
    ),
    (lambda: strongest(**(RUN | {"x": X.long()})), "floating-point numbers"),
    (
        lambda: strongest(**(RUN | {"x": X[0]})),
        r"x must be \(points, ...\) and not empty",
    ),
    (lambda: strongest(**(RUN | {"x": X[:0]})), "not empty"),
    (lambda: strongest(**(RUN | {"x": X / 0})), "x must be finite, got 24"),
    (lambda: strongest(**(RUN | {"x": (X, X[:2])})), "one row for each point"),
    (lambda: strongest(**(RUN | {"model": lambda v: v[0]})), "logits"),
    (
        lambda: strongest(**(RUN | {"model": lambda v: v * torch.nan})),
        "finite logits, got NaN",
    ),
    (
        lambda: strongest(**(RUN | {"model": lambda v: v[:, None]})),
        r"\(points, classes\), got",
    ),
    (lambda: strongest(**(RUN | {"model": []})), "model must be a torch module"),
    (lambda: PGD(L2(0.5))(MLP, 3.0), "without y, x must give batches"),
    (lambda: PGD(L2(0.5))(MLP, DataLoader([])), "at least one batch"),
    (lambda: PGD(L2(0.5))(MLP, [X]), r"batches \(inputs, classes\)"),
    (
        lambda: PGD(L2(0.5), loss=lambda f, y: f)(MLP, X, Y),
        "one number for each of the 4 points",
    ),
    (
        lambda: PGD(L2(0.5), loss=3),
        "loss must be a name, a Loss or a function, got int",
    ),
    (lambda: PGD(L2(0.5), schedule=3), "schedule must be"),
    (lambda: PGD(L2(0.5), schedule="linear"), "schedule must be one of"),
    (lambda: HopSkipJump(L2(0.5), queries=0), "queries must be"),
    (lambda: BIM(L2(0.5), steps=0), "steps must be"),
    (lambda: BIM(L2(0.5), step_size=-1.0), "step_size must be"),
    (lambda: BIM(L2(0.5), restarts=0), "restarts must be"),
    (lambda: Square(L2(0.5), queries=0), "queries must be"),
    (lambda: Square(L2(0.5), restarts=0), "restarts must be"),
    (lambda: Effective("a"), "beta must be"),
    (lambda: Deviates("a"), "by must be"),
    (
        lambda: PGD(L2(0.5), criterion=Deviates(1.0))(MLP, X, X),
        r"3 number\(s\) for each of the 4",
    ),
    (lambda: smoothed(MLP, X, 0.1, seed=-1), "seed must be"),
    (lambda: smoothed(MLP, X, 0.1, confidence=0.4), "confidence must lie"),
    (lambda: smoothed(MLP, X, 0.1, batch_size=0), "batch_size must be"),
    (lambda: smoothed(MLP, X, 0.1, guesses=0), "guesses must be"),
    (lambda: smoothed(MLP, X, True), "noise must be a positive number"),
    (lambda: smoothed(lambda v: v * torch.nan, X, 0.1), "finite logits"),
    (lambda: Linf(0.1, "box"), 'bounds must be None, "data" or a pair'),
    (lambda: Linf(0.1, 3.0), 'bounds must be None, "data" or a pair'),
    (lambda: Linf(0.1, (0.0, 1.0, 2.0)), "got 3 values"),
    (lambda: Linf(0.1, (1.0, 1.0)), "low below high"),
    (lambda: Linf(0.1, ([0.0, 2.0], [1.0, 1.0])), "low below high"),
    (lambda: Linf("a"), "radius must be"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_mistakes_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_what_an_attack_is_made_of_is_checked():
    for given, message in (
        ({"larger": (2.0,) * 4}, "at most three factors above 1"),
        ({"larger": (0.5,)}, "above 1"),
        ({"larger": 3.0}, "a list of factors"),
        ({"momentum": 1e6 + 0.5}, "at most 1e6"),
        ({"steps": 0}, "steps must be"),
        ({"restarts": 0}, "restarts must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"seed": -1}, "seed must be"),
    ):
        with pytest.raises(InputError, match=message):
            PGD(L2(1.0), **given)
    assert PGD(L2(1.0), larger=(1.0, 2.0, 3.0), momentum=1e6).length == 50
    for given, message in (
        ({"steps": 0}, "steps must be"),
        ({"rivals": -1}, "rivals must be"),
        ({"criterion": Deviates(1.0)}, "criterion must be of classes"),
        ({"criterion": 3}, "criterion must be a Criterion"),
        ({"batch_size": 0}, "batch_size"),
    ):
        with pytest.raises(InputError, match=message):
            minimum_distance(lambda v: v, points(3, 2), [0, 1, 0], L2(1.0), **given)


@pytest.mark.parametrize("budget", [24, 60, 200, 1000])
@pytest.mark.parametrize("kind", [L1, L2, Linf])
def test_the_ensemble_never_exceeds_its_budget(kind, budget):
    """A radius at which nothing is found, so that every stage runs to its end."""
    model, x = small_mlp(classes=10), points(4, 6)
    y = model(x).argmax(1)
    found = strongest(model, x, y, kind(1e-6), budget=budget, queries=0, warn=False)
    assert not found.success.any()
    assert found.gradients <= budget * len(x)


def test_points_that_are_fooled_where_they_start_are_not_flat():
    def model(v):
        right = (v[:, 0] < 1).double()
        return torch.stack([right, 1 - right], 1) + 0 * v[:, :1]

    x, start = torch.zeros(2, 1).double(), torch.tensor([[2.0], [0.5]]).double()
    found = PGD(L2(3.0), steps=3, seed=1)(model, x, [0, 0], start=start, warn=False)
    assert found.flat.tolist() == [False, True]
    assert bool(found.success[0])


@pytest.mark.parametrize(
    "attack", [PGD(L2(0.5), steps=2), PGD(L2(0.5), steps=2, normalize=False)]
)
def test_models_without_any_gradient_are_flat(attack):
    """What leaves torch on its way has no gradient at all, and random starts may still fool it."""
    x = torch.tensor([[1.0, 0.0], [0.1, 0.0]]).double()

    def model(v):
        first = v.detach().numpy()[:, 0]
        return torch.from_numpy(np.stack([first, 0 * first], 1))

    found = attack(model, x, [0, 0], warn=False)
    assert found.flat[0].item() is True
    assert (found.success[0].item(), found.gradients) == (False, 4)
    assert torch.equal(model(found.x).argmax(1) != 0, found.success)


def test_stages_add_up_to_what_was_found_and_spent(tmp_path):
    model, x = small_mlp(classes=4), points(80, 6)
    y = model(x).argmax(1)
    y[:5] = (y[:5] + 1) % 4  # wrong to begin with
    found = robust_error(model, x, y, L2(0.3), budget=100, queries=100)
    assert sum(stage.points for stage in found.stages) == round(80 * found.value) - 5
    assert sum(stage.gradients for stage in found.stages) == found.gradients
    assert sum(stage.queries for stage in found.stages) == found.queries
    assert all(stage.attack in found.table() for stage in found.stages)
    for name in ("found.json", "found.npz"):
        assert type(found).load(found.save(tmp_path / name)) == found


@pytest.mark.parametrize(
    "threat", [L2(0.6), L2(0.6, (-3.0, 3.0)), Linf(0.3), L1(1.2)], ids=str
)
@pytest.mark.parametrize("kind", ["one hot", "numbers"])
def test_models_that_return_labels_are_attacked_by_their_decisions(threat, kind):
    """Most of what the logits allow is found, and what is found is true."""
    torch.manual_seed(0)
    model = small_mlp(classes=3)
    x = points(40, 6).clamp(-3, 3)
    y = model(x).argmax(1)

    def labels(v):
        predicted = model(v).argmax(1)
        if kind == "numbers":
            return predicted
        return torch.nn.functional.one_hot(predicted, 3).double()

    found = strongest(labels, x, y, threat, warn=False)
    wanted = strongest(model, x, y, threat, warn=False)
    assert torch.equal(model(found.x).argmax(1) != y, found.success)
    assert bool((threat.size((found.x - x)) <= threat.radius).all())
    assert found.success.sum() >= 0.75 * wanted.success.sum()
    assert any("class labels" in text for text in found.warnings)
    assert found.queries <= 2500 * 40
