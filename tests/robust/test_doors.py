"""What users come with: loaders, several inputs, tuples, ensembles, regression, mixed precision."""

import numpy as np
import pytest
import torch
from robust_cases import blobs, points, small_mlp
from torch import nn
from torch.nn.functional import cross_entropy, kl_div
from torch.utils.data import DataLoader, TensorDataset

from overt import InputError
from overt.robust import (
    FGSM,
    L2,
    PGD,
    Deviates,
    Linf,
    RobustnessWarning,
    TrainingConfig,
    adversarial_train,
    robust_error,
    strongest,
)
from overt.robust.training.losses import Target, TrainingLoss

ATTACK = PGD(L2(0.8), steps=8)


def case(n=30):
    model, x = small_mlp(), points(n, 6)
    return model, x, model(x).argmax(1)


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
    with pytest.raises(InputError, match=r"data must give batches \(inputs, classes\)"):
        ATTACK(model, DataLoader(x, batch_size=7))
    with pytest.raises(InputError, match="classes under one of labels"):
        ATTACK(model, [{"pixels": x, "kind": y}])
    assert torch.equal(
        ATTACK(lambda v: (model(v), v), x, y, output=lambda o: o[0]).x, wanted.x
    )
    with pytest.raises(InputError, match=r"got tuple; output=lambda o: o\[0\]"):
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


def test_ensembles_and_normalized_inputs():
    model, x, y = case()
    other = small_mlp(seed=1)
    joint = lambda v: (model(v) + other(v)) / 2  # noqa: E731
    y = joint(x).argmax(1)
    assert torch.allclose(ATTACK([model, other], x, y).x, ATTACK(joint, x, y).x)
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
    with pytest.raises(InputError, match="std positive"):
        attack(net, images, y, std=0.0)
    with pytest.raises(InputError, match="mean must be a number or fit one input"):
        attack(net, images, y, mean=[0.1, 0.2])


def test_regression_and_own_losses():
    torch.manual_seed(0)
    model, x = nn.Linear(5, 1).double(), points(40, 5)
    y = model(x).detach().squeeze(1)
    reach = 0.3 * float(
        model.weight.detach().abs().sum()
    )  # what Linf .3 moves a linear output by
    for by, share in ((0.98 * reach, 1.0), (1.02 * reach, 0.0)):
        attack = PGD(Linf(0.3), steps=20, random_start=True, criterion=Deviates(by))
        assert (
            robust_error(model, x, y, Linf(0.3), attack=attack, warn=False).value
            == share
        )
        found = strongest(
            model, x, y, Linf(0.3), criterion=Deviates(by), budget=40, warn=False
        )
        assert found.success.double().mean() == share
    net, x, y = case()
    own = PGD(L2(0.8), steps=8, loss=lambda f, t: cross_entropy(f, t, reduction="none"))
    named = PGD(L2(0.8), steps=8, loss="cross_entropy")
    assert torch.equal(own(net, x, y).x, named(net, x, y).x)
    with pytest.raises(InputError, match="one number for each of the 30 points"):
        PGD(L2(0.8), loss=cross_entropy)(net, x, y)
    with pytest.raises(InputError, match="y must hold 1 number"):
        strongest(
            model, points(4, 5), np.zeros((4, 2)), L2(1.0), criterion=Deviates(1.0)
        )


def test_starts_are_fresh_without_a_seed():
    model, x, y = case()
    torch.manual_seed(0)
    fresh = PGD(L2(0.8), steps=1, random_start=True, seed=None, early_exit=False)
    one, other = (fresh(model, x, y, warn=False).x for _ in range(2))
    assert not torch.equal(one, other)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))


def test_losses_of_training_are_their_formulas():
    torch.manual_seed(0)
    clean, robust, y = torch.randn(7, 4), torch.randn(7, 4), torch.arange(7) % 4
    p, q = clean.softmax(1), robust.softmax(1)
    kl = (p * (p.log() - q.log())).sum(1)
    assert torch.allclose(kl.sum(), kl_div(q.log(), p, reduction="sum"))
    target = Target(y, None)
    trades = TrainingLoss.of("trades", 5.0).value(clean, robust, target)
    assert torch.allclose(trades, -p[range(7), y].log().mean() + 5 * kl.mean())
    best = torch.stack([q[i][torch.arange(4) != y[i]].max() for i in range(7)])
    wanted = (
        -q[range(7), y].log() - (1.0001 - best).log() + 5 * (1 - p[range(7), y]) * kl
    )
    assert torch.allclose(
        TrainingLoss.of("mart", 5.0).value(clean, robust, target), wanted.mean()
    )
    soft = Target(y, torch.full((7, 4), 0.25))
    assert torch.allclose(
        TrainingLoss.of("cross_entropy", 1.0).value(None, robust, soft), -q.log().mean()
    )
    with pytest.raises(InputError, match="loss must be one of"):
        TrainingLoss.of("madry", 6.0)


@pytest.mark.parametrize("loss", ["trades", "mart", cross_entropy])
@pytest.mark.parametrize(
    "attack", [PGD(Linf(0.05, (0.0, 1.0)), steps=2), FGSM(Linf(0.05))]
)
def test_every_loss_trains(loss, attack):
    x, y = blobs(120)
    model = network()
    adam = torch.optim.Adam(model.parameters(), 0.02)
    run = adversarial_train(
        model,
        (x, y),
        attack,
        epochs=6,
        optimizer=adam,
        loss=loss,
        batch_size=30,
        config=TrainingConfig(beta=2.0),
    )
    assert run.robust_accuracy[-1] > 0.85


def test_dicts_soft_labels_scaler_and_the_best_weights(tmp_path):
    x, y = blobs(120)
    soft = torch.eye(3)[y] * 0.9 + 1 / 30
    rows = [
        {"labels": s, "x": v} for v, s in zip(x.split(30), soft.split(30), strict=True)
    ]
    model = network()
    path = tmp_path / "run.safetensors"
    held = DataLoader(TensorDataset(*blobs(40, seed=1)), batch_size=16)
    attack = PGD(Linf(0.03, (0.0, 1.0)), steps=2)
    mixed = TrainingConfig(scaler=torch.amp.GradScaler("cpu"), autocast=torch.bfloat16)
    run = adversarial_train(
        model,
        rows,
        attack,
        epochs=4,
        optimizer=torch.optim.Adam(model.parameters(), 0.03),
        holdout=held,
        checkpoint=path,
        config=mixed,
    )
    assert run.clean_accuracy[-1] > 0.8
    score = list(
        zip(run.holdout_robust_accuracy, run.holdout_clean_accuracy, strict=True)
    )
    assert run.best_epoch == score.index(max(score)) + 1
    from safetensors.torch import load_file

    again = network(seed=3)
    again.load_state_dict(load_file(tmp_path / "run.best.safetensors"))
    kept = attack(again, *blobs(40, seed=1), warn=False).robust_accuracy
    assert kept == pytest.approx(max(run.holdout_robust_accuracy))


def test_another_seed_or_attack_is_refused(tmp_path):
    path, data = tmp_path / "run.safetensors", blobs(60)
    given = {"epochs": 1, "checkpoint": path, "batch_size": 30}
    adversarial_train(network(), data, FGSM(Linf(0.1)), **given)
    with pytest.raises(InputError, match="written with seed 0, got 1"):
        adversarial_train(network(), data, FGSM(Linf(0.1)), seed=1, **given)
    with pytest.raises(InputError, match="written with attack FGSM"):
        adversarial_train(network(), data, FGSM(Linf(0.2)), **given)
    with pytest.raises(InputError, match="written with loss cross_entropy"):
        adversarial_train(network(), data, FGSM(Linf(0.1)), loss="trades", **given)


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 0}, "samples must be at least 1"),
        ({"output": "logits"}, "output must be a function"),
        (
            {"output": lambda o: o["logits"]},
            r"model must take inputs shaped \(30, 6\), it fails",
        ),
        ({"model": lambda v: {"logits": v}}, r'output=lambda o: o\["logits"\]'),
        ({"model": lambda v: 1 / 0}, "it fails: ZeroDivisionError"),
        ({"surrogate": nn.Linear(2, 3)}, "model must take inputs shaped"),
        (
            {"surrogate": nn.Linear(6, 2).double()},
            "surrogate must return as many .* 3, got 2",
        ),
    ],
)
def test_mistakes_at_the_door_are_named(change, message):
    model, x, y = case()
    with pytest.raises(InputError, match=message):
        strongest(
            change.pop("model", model), x, y, L2(0.8), budget=24, queries=0, **change
        )
