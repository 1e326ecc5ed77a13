"""FGSM, BIM and PGD: allowed, true, the same in any batch, and optimal for linear models."""

import warnings

import numpy as np
import pytest
import torch
from robust_cases import linear_model, logits, points, small_mlp
from torch import nn

from overt import InputError
from overt.results import Status
from overt.robust import (
    BIM,
    FGSM,
    L1,
    L2,
    LOSSES,
    PGD,
    HopSkipJump,
    Linf,
    ReflectedAll,
    Square,
    exact_error,
    strongest,
)
from overt.robust.losses import margin_of_best

THREATS = [
    L1(1.5),
    L2(1.5),
    Linf(0.3),
    L1(1.5, (-4.0, 4.0)),
    L2(1.5, (-4.0, 4.0)),
    Linf(0.3, (-4.0, 4.0)),
]


ATTACKS = [
    FGSM(L2(0.8)),
    BIM(Linf(0.2), steps=8),
    PGD(L2(0.8), steps=12),
    PGD(L1(0.8), steps=12, schedule="cosine"),
    PGD(Linf(0.2), steps=12, schedule="decay"),
    PGD(L2(0.8), steps=12, schedule="constant", loss="cross_entropy"),
    PGD(L2(0.8, (-4.0, 4.0)), steps=12, loss="dlr", random_start=True, restarts=2),
    PGD(L2(0.8, (-4.0, 4.0)), steps=12, loss="reflected_all"),
    PGD(Linf(0.2, (-4.0, 4.0)), steps=30, loss="reflected"),
    PGD(L2(0.8), steps=12, schedule="constant", loss="margin"),
    PGD(Linf(0.2), steps=12, loss="reflected_lse", early_exit=False),
]


@pytest.mark.parametrize("classes", [1, 2, 10])
@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_linear_models_are_attacked_to_their_closed_form_optimum(threat, classes):
    model, x = linear_model(classes, 12), points(80, 12).clamp(-4, 4)
    y = torch.arange(80) % max(classes, 2)
    truth = exact_error(model, x, y, threat)
    attack = PGD(threat, steps=50, loss="reflected_all", early_exit=False)
    found = attack(model, x, y, warn=False)
    lead = -margin_of_best(logits(model, found.x).detach(), y).numpy()
    assert np.abs(lead - truth.lead).max() < 1e-5
    assert np.array_equal(found.success.numpy(), truth.fooled)
    early = strongest(model, x, y, threat, budget=100, warn=False)
    assert np.array_equal(early.success.numpy(), truth.fooled)


@pytest.mark.parametrize(
    "attack", ATTACKS, ids=lambda a: f"{type(a).__name__}-{a.loss}"
)
def test_what_comes_out_is_allowed_and_true(attack):
    model, x = small_mlp(), points(60, 6).clamp(-4, 4)
    y = model(x).argmax(1)
    y[:5] = (y[:5] + 1) % 3  # misclassified to begin with
    found = attack(model, x, y)
    threat = attack.threat
    assert float(threat.size(found.x - x).max()) <= threat.radius * (1 + 1e-9)
    if threat.bounds is not None:
        assert found.x.abs().max() <= 4
    assert torch.equal(found.success, model(found.x).argmax(1) != y)
    assert bool(found.success[:5].all())
    if attack.early_exit:
        assert torch.equal(found.x[:5], x[:5])
    assert 5 < int(found.success.sum()) < 60
    assert found.status is Status.FINISHED
    assert found.gradients > 0


@pytest.mark.parametrize(
    "attack", ATTACKS, ids=lambda a: f"{type(a).__name__}-{a.loss}"
)
def test_batch_size_and_order_do_not_matter(attack):
    model, x = small_mlp(), points(21, 6).clamp(-4, 4)
    y = model(x).argmax(1)
    whole = attack(model, x, y)
    order = torch.randperm(21, generator=torch.Generator().manual_seed(1))
    for size in (1, 10, 1000):
        again = type(attack)(**{**vars(attack), "batch_size": size})(model, x, y)
        assert torch.allclose(again.x, whole.x, atol=1e-9)
        assert torch.equal(again.success, whole.success)
        assert (
            again.gradients <= 1.3 * whole.gradients
        )  # some that are fooled stay in the batch
    mixed = attack(model, x[order], y[order])
    assert torch.allclose(mixed.x, whole.x[order], atol=1e-9)
    assert torch.equal(mixed.success, whole.success[order])


@pytest.mark.parametrize("shape", [(12,), (1, 3, 4), (4, 3)])
@pytest.mark.parametrize("classes", [1, 2, 5])
def test_any_shape_and_number_of_logits(shape, classes):
    flat = small_mlp(12, 9, classes)
    model = nn.Sequential(nn.Flatten(), flat)
    x = points(20, 12)
    y = (flat(x)[:, 0] > 0).long() if classes == 1 else flat(x).argmax(1)
    for name in LOSSES:
        for threat in (L1(1.0), L2(0.7), Linf(0.2)):
            plain = PGD(threat, steps=4, loss=name)(flat, x, y)
            shaped = PGD(threat, steps=4, loss=name)(model, x.view(20, *shape), y)
            assert shaped.x.shape == (20, *shape)
            assert torch.allclose(shaped.x.flatten(1), plain.x)
            assert torch.equal(shaped.success, plain.success)


def test_one_logit_takes_both_kinds_of_labels_and_equals_two():
    one = small_mlp(classes=1)
    x = points(40, 6)
    y = (one(x).squeeze(1) > 0).long()
    attack = PGD(L2(0.6), steps=10)
    a = attack(one, x, y)
    assert torch.allclose(attack(one, x, 2 * y - 1).x, a.x)
    assert torch.allclose(attack(lambda v: one(v).squeeze(1), x, y).x, a.x)
    assert torch.allclose(
        attack(lambda v: torch.cat([0 * one(v), one(v)], 1), x, y).x, a.x
    )


def test_greedy_reflection_fails_where_all_targets_succeed():
    model = nn.Linear(2, 3, bias=False)
    model.weight.data = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 10.0]])
    x, y = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    assert not PGD(L2(0.3), steps=50, loss="reflected_greedy")(model, x, y).success
    assert not PGD(L2(0.3), steps=50, loss="reflected", early_exit=False)(
        model, x, y
    ).success
    assert PGD(L2(0.3), steps=50, loss="reflected")(model, x, y).success
    assert PGD(L2(0.3), steps=50, loss="reflected_all")(model, x, y).success
    assert PGD(L2(0.3), steps=50, loss=ReflectedAll(top=2))(model, x, y).success
    assert strongest(model, x, y, L2(0.3)).success
    assert not strongest(model, x, y, L2(0.195), budget=100, warn=False).success
    assert strongest(model, x, y, L2(0.1962)).success


def test_targets_are_reached():
    model, x = small_mlp(), points(50, 6)
    f = model(x)
    y, target = f.argmax(1), (f.argmax(1) + 1) % 3
    for name in LOSSES:
        found = PGD(L2(1.5), steps=30, loss=name, target=target)(model, x, y)
        assert torch.equal(found.success, model(found.x).argmax(1) == target)
        assert float(found.success.double().mean()) > 0.3
    for wrong, message in ((3, "0..2"), (-1, "0..2"), ([0, 1], "target"), (1.5, "1.5")):
        with pytest.raises(InputError, match=message):
            PGD(L2(1.0), target=wrong)(model, x, y)


def test_a_healthy_model_gives_no_warning():
    model, x = small_mlp(), points(30, 6).clamp(-4, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for attack in ATTACKS:
            attack(model, x, model(x).argmax(1))
        strongest(model, x, model(x).argmax(1), L2(0.5), budget=100)


def test_interruption_keeps_what_was_found():
    model, x = small_mlp(), points(40, 6)
    y = model(x).argmax(1)

    def impatient(v):
        if v.requires_grad and torch.equal(v[0], x[20]):
            raise KeyboardInterrupt
        return model(v)

    found = PGD(L2(5.0), steps=20, batch_size=20)(impatient, x, y, warn=False)
    assert found.status is Status.INTERRUPTED
    assert bool(found.success.any())
    assert torch.equal(found.x[20:], x[20:])


KINDS = [L1, L2, Linf]


@pytest.mark.parametrize("restarts", [1, 3])
def test_gradients_count_every_row_that_was_differentiated(restarts):
    model, x = small_mlp(), points(30, 6)
    rows = []

    def counting(v):
        if v.requires_grad:
            rows.append(len(v))
        return model(v)

    attack = PGD(Linf(0.1), steps=12, loss="reflected_greedy", restarts=restarts)
    found = attack(counting, x, model(x).argmax(1))
    assert found.gradients == sum(rows)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PGD(1.0), "threat must be"),
        (lambda: PGD(L2(1.0), loss="hinge"), "loss must be one of"),
        (lambda: PGD(L2(1.0), loss=3), "loss must be a name, a Loss or a function"),
        (lambda: PGD(L2(1.0), restarts=0), "restarts"),
        (lambda: PGD(L2(1.0), steps=0), "steps"),
        (lambda: PGD(L2(1.0), seed=-1), "seed"),
        (lambda: PGD(L2(1.0), batch_size=0), "batch_size"),
        (lambda: PGD(L2(1.0), schedule="linear"), "schedule must be one of"),
        (lambda: PGD(L2(1.0), larger=(2.0,) * 4), "at most three factors"),
        (lambda: PGD(L2(1.0), larger=(0.5,)), "above 1"),
        (lambda: PGD(L2(1.0), larger=3.0), "a tuple of factors"),
        (lambda: BIM(L2(0.5), step_size=-1.0), "step_size must be"),
        (lambda: Square(L2(0.5), queries=0), "queries must be"),
        (lambda: HopSkipJump(L2(0.5), queries=0), "queries must be"),
    ],
)
def test_bad_attacks_are_refused_when_made(make, message):
    with pytest.raises(InputError, match=message):
        make()
