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
    Effective,
    Linf,
    ReflectedAll,
    RobustnessWarning,
    Targeted,
    exact,
    strongest,
)
from overt.robust.losses import margin_of_best

THREATS = [
    L1(1.5),
    L2(1.5),
    Linf(0.3),
    L1(1.5, "data"),
    L2(1.5, (-4.0, 4.0)),
    Linf(0.3, "data"),
]
ATTACKS = [
    FGSM(L2(0.8)),
    BIM(Linf(0.2), steps=8),
    PGD(L2(0.8), steps=12),
    PGD(L1(0.8), steps=12, schedule="cosine", momentum=0.5),
    PGD(Linf(0.2), steps=12, schedule="decay", momentum=0.0),
    PGD(L2(0.8), steps=12, schedule="constant", loss="cross_entropy"),
    PGD(L2(0.8, "data"), steps=12, loss="dlr", random_start=True, restarts=2),
    PGD(L2(0.8, "data"), steps=12, loss="reflected_all"),
    PGD(Linf(0.2, "data"), steps=30, loss="reflected"),
    PGD(L2(0.8), steps=12, schedule="halving", momentum=0.25, loss="margin"),
    PGD(Linf(0.2), steps=12, loss="reflected_lse", early_exit=False),
]


@pytest.mark.parametrize("classes", [1, 2, 10])
@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_linear_models_are_attacked_to_their_closed_form_optimum(threat, classes):
    model, x = linear_model(classes, 12), points(80, 12).clamp(-4, 4)
    y = torch.arange(80) % max(classes, 2)
    truth = exact.linear(model.weight.detach(), model.bias.detach(), x, y, threat)
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
    model, x = small_mlp(), points(60, 6)
    y = model(x).argmax(1)
    y[:5] = (y[:5] + 1) % 3  # misclassified to begin with
    found = attack(model, x, y)
    threat = attack.threat
    assert float(threat.size(found.x - x).max()) <= threat.radius * (1 + 1e-9)
    if threat.bounds is not None:
        assert found.x.min() >= x.min()
        assert found.x.max() <= x.max()
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
    model, x = small_mlp(), points(21, 6)
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
    assert PGD(L2(0.3), steps=50, loss=ReflectedAll(top=1))(model, x, y).success
    assert strongest(model, x, y, L2(0.3)).success
    assert not strongest(model, x, y, L2(0.195), budget=100, warn=False).success
    assert strongest(model, x, y, L2(0.1962)).success


def test_single_classes_are_tried_within_the_same_number_of_gradients():
    loss = LOSSES["reflected"]
    for steps in range(1, 120):
        assert loss.plan(steps, 2) == LOSSES["reflected_greedy"].plan(steps, 2)
        for classes in (3, 5, 10, 1000):
            plan = loss.plan(steps, classes)
            assert plan.steps + plan.measured + plan.rivals * plan.each == steps
            assert plan.steps >= steps // 3
            assert plan.rivals <= plan.measured < classes
            assert (plan.rivals > 0) == (steps >= (17 if classes == 3 else 19))
    model, x = small_mlp(classes=5), points(30, 6)
    y = model(x).argmax(1)
    found = PGD(L2(0.1), steps=50)(model, x, y)
    greedy = PGD(L2(0.1), steps=50, loss="reflected_greedy")(model, x, y)
    assert bool((found.success | ~greedy.success).all())
    assert found.gradients <= 50 * 30


@pytest.mark.parametrize("scale", [1.0, 100.0, 1e4])
def test_logit_scale_does_not_blind_the_reflected_losses(scale):
    model, x = small_mlp(dtype=torch.float32), points(150, 6, dtype=torch.float32)
    y = model(x).argmax(1)
    base = strongest(model, x, y, L2(0.8), budget=100).robust_accuracy
    scaled = lambda v: scale * model(v)  # noqa: E731
    assert (
        abs(strongest(scaled, x, y, L2(0.8), budget=100).robust_accuracy - base) <= 0.01
    )
    if scale > 1:
        with pytest.warns(RobustnessWarning, match="saturated at"):
            blind = PGD(L2(0.8), steps=50, loss="cross_entropy")(scaled, x, y)
        assert blind.robust_accuracy > base + 0.04


def test_targets_and_beta():
    model, x = small_mlp(), points(50, 6)
    f = model(x)
    y, target = f.argmax(1), (f.argmax(1) + 1) % 3
    for name in LOSSES:
        found = PGD(L2(1.5), steps=30, loss=name, criterion=Targeted(target))(
            model, x, y
        )
        assert torch.equal(found.success, model(found.x).argmax(1) == target)
        assert float(found.success.double().mean()) > 0.3
    sure = PGD(L2(1.5), steps=30, criterion=Effective(0.2))(model, x, y)
    margin = margin_of_best(model(sure.x).detach(), y)
    assert torch.equal(sure.success, margin <= -0.2)
    assert (
        0
        < int(sure.success.sum())
        < int(PGD(L2(1.5), steps=30)(model, x, y).success.sum())
    )


def test_more_freedom_never_hurts_the_attacker():
    model, x = small_mlp(seed=3), points(100, 6)
    y = model(x).argmax(1)
    rates = [
        float(strongest(model, x, y, L2(r), budget=100).success.double().mean())
        for r in (0.2, 0.5, 1.0)
    ]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]
    once = PGD(L2(0.5), steps=4)(model, x, y).success
    often = PGD(L2(0.5), steps=4, restarts=5)(model, x, y).success
    assert bool((often | ~once).all())


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


def test_masked_gradients_are_reported_with_their_share():
    model, x = small_mlp(), points(100, 6)

    def staircase(v):
        return model(torch.where(v[:, :1] > 0, v.round(), v))

    y = staircase(x).argmax(1)
    share = float((x[:, 0] > 0).double().mean())
    with pytest.warns(RobustnessWarning, match=f"zero or not a number at {share:.1%}"):
        found = PGD(Linf(0.6), steps=10)(staircase, x, y)
    assert torch.equal(found.flat, x[:, 0] > 0)
    assert bool(found.success[found.flat].any())  # the random start is not blind
    with pytest.warns(RobustnessWarning, match="the model is random"):
        PGD(L2(0.5), steps=2)(lambda v: model(v + 0.1 * torch.randn_like(v)), x, y)


def test_a_healthy_model_gives_no_warning():
    model, x = small_mlp(), points(30, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for attack in ATTACKS:
            attack(model, x, model(x).argmax(1))
        strongest(model, x, model(x).argmax(1), L2(0.5), budget=100)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(4, 6, dtype=torch.int32)}, "x must hold floating-point"),
        ({"x": torch.full((4, 6), float("nan"))}, "finite"),
        ({"x": torch.zeros(0, 6)}, "not empty"),
        ({"y": torch.tensor([0, 1, 2, 3])}, "y must lie in 0..2"),
        ({"y": torch.tensor([0, 1])}, "one class for each of the 4 points"),
        ({"y": torch.full((4,), 0.5)}, "class numbers"),
        ({"model": lambda v: v.sum()}, "logits"),
        ({"model": lambda v: v.mean(1, keepdim=True) / 0}, "finite logits"),
        ({"start": torch.zeros(3, 6)}, "start must be shaped like x"),
    ],
)
def test_mistakes_are_named(change, message):
    given = {
        "model": small_mlp(),
        "x": torch.ones(4, 6),
        "y": torch.zeros(4, dtype=torch.long),
    }
    given |= change
    start = given.pop("start", None)
    with pytest.raises(InputError, match=message):
        PGD(L2(1.0))(given["model"], given["x"], given["y"], start=start)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PGD(1.0), "threat must be"),
        (lambda: PGD(L2(1.0), loss="hinge"), "loss must be one of"),
        (lambda: PGD(L2(1.0), criterion="targeted"), "criterion"),
        (lambda: PGD(L2(1.0), restarts=0), "restarts"),
        (lambda: PGD(L2(1.0), steps=0), "steps"),
        (lambda: PGD(L2(1.0), momentum=-1), "momentum"),
    ],
)
def test_bad_attacks_are_refused_when_made(make, message):
    with pytest.raises(InputError, match=message):
        make()


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


def test_results_are_saved_without_pickle(tmp_path):
    model, x = small_mlp(), points(10, 6)
    found = PGD(L2(0.5), steps=3)(model, x, model(x).argmax(1))
    with np.load(found.save(tmp_path / "found.npz"), allow_pickle=False) as file:
        assert np.array_equal(file["x"], found.x.numpy())
    assert found.to_dict()["success"] == found.success.tolist()
