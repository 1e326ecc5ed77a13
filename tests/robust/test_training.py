import copy

import numpy as np
import pytest
import torch
from robust_cases import blobs
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from overt import InputError
from overt.results import Status
from overt.robust import (
    FGSM,
    L2,
    PGD,
    Linf,
    TrainingConfig,
    adversarial_train,
    strongest,
)

ATTACK = PGD(L2(0.2, (0.0, 1.0)), steps=5)


def network(seed=0, classes=3):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(2, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, classes)
    )


def loader(size=48):
    return DataLoader(TensorDataset(*blobs()), batch_size=size, shuffle=True)


def adam(model):
    return torch.optim.Adam(model.parameters(), 0.01)


def same(a, b):
    return all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())


def test_adversarial_training_makes_the_network_more_robust():
    x, y = blobs(seed=1)
    accuracy = {}
    for name, attack in (("standard", None), ("robust", ATTACK)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 3))
        model[0].weight.data[:, 0] *= 8  # both start with one feature far too important
        run = adversarial_train(
            model, loader(), attack, epochs=12, optimizer=adam(model), holdout=(x, y)
        )
        found = strongest(model, x, y, L2(0.2, (0.0, 1.0)), budget=60, warn=False)
        accuracy[name] = found.robust_accuracy
        assert run.status is Status.FINISHED
        assert run.holdout_clean_accuracy[-1] > 0.95
        assert run.loss[-1] < run.loss[0]
    assert accuracy["robust"] > accuracy["standard"] + 0.1


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_interrupted_training_resumes_to_the_same_weights(tmp_path, momentum):
    def start(model, path, **more):
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=momentum)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        attack = PGD(L2(0.1), steps=3, random_start=True)
        return adversarial_train(
            model,
            loader(),
            attack,
            epochs=4,
            optimizer=optimizer,
            scheduler=scheduler,
            checkpoint=path,
            seed=3,
            **more,
        )

    whole = network()
    full = start(whole, None)
    cut, calls = network(), []
    forward = cut[0].forward

    def impatient(v):
        calls.append(1)
        if len(calls) == 60:
            raise KeyboardInterrupt
        return forward(v)

    cut[0].forward = impatient
    path = tmp_path / "state.safetensors"
    first = start(cut, path)
    assert first.status is Status.INTERRUPTED
    assert 0 < first.epochs < 4
    again = network(seed=9)
    second = start(again, path)
    assert second.epochs == 4
    assert same(whole, again)
    assert np.array_equal(second.loss, full.loss)
    assert np.array_equal(second.robust_accuracy, full.robust_accuracy)


def test_one_logit_is_trained_as_two_classes():
    x, y = blobs()
    data = DataLoader(TensorDataset(x, (y > 0).long()), batch_size=60)
    model = network(classes=1)
    run = adversarial_train(
        model,
        data,
        PGD(Linf(0.05, (0.0, 1.0)), steps=3),
        epochs=30,
        optimizer=adam(model),
    )
    assert run.robust_accuracy[-1] > 0.9


def test_a_pair_of_arrays_is_shuffled_and_resumes(tmp_path):
    def run(data, path, **more):
        model = network()
        return model, adversarial_train(
            model, data, ATTACK, checkpoint=path, seed=1, **more
        )

    class Permuted:
        """A pair is read in a new order in each pass, from torch's generator."""

        def __iter__(self):
            for rows in torch.randperm(240).split(100):
                yield x[rows], y[rows]

    x, y = blobs()
    pair, path = (x.numpy(), y.numpy()), tmp_path / "run.safetensors"
    run(pair, path, batch_size=100, epochs=1)
    resumed, last = run(pair, path, batch_size=100, epochs=3)
    straight, wanted = run(Permuted(), None, epochs=3)
    assert same(resumed, straight)
    assert last == wanted


def test_training_does_not_touch_the_global_generator():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    adversarial_train(network_without_seed(), loader(), None, epochs=1)
    assert torch.equal(torch.rand(3), expected)


def network_without_seed():
    with torch.random.fork_rng():
        return network()


class Stopped(Exception):
    pass


class Stopping:
    """A loader that is killed before its n-th batch."""

    def __init__(self, after):
        self.left = after

    def __iter__(self):
        for batch in loader():
            self.left -= 1
            if self.left < 0:
                raise Stopped
            yield batch


S = torch.optim.lr_scheduler
OPTIMIZERS = {
    "tensor rate": lambda p: torch.optim.Adam(p, torch.tensor(0.01)),
    "rprop": lambda p: torch.optim.Rprop(p),
}
SCHEDULERS = {
    "milestones": (lambda o: S.MultiStepLR(o, [1, 2], 0.1), "epoch"),
    "batch milestones": (lambda o: S.MultiStepLR(o, np.array([2, 6, 9]), 0.1), "batch"),
    "plateau": (lambda o: S.ReduceLROnPlateau(o, patience=0, threshold=10.0), "epoch"),
    "one cycle": (lambda o: S.OneCycleLR(o, 0.2, total_steps=200), "batch"),
}


@pytest.mark.parametrize(
    ("optimizer", "scheduler"),
    [*((name, None) for name in OPTIMIZERS), *((None, name) for name in SCHEDULERS)],
)
def test_every_optimizer_and_scheduler_resumes_to_the_same(
    tmp_path, optimizer, scheduler
):
    def run(batches, path):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 3))
        chosen = OPTIMIZERS.get(
            optimizer, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)
        )
        steps = chosen(model.parameters())
        make, each = SCHEDULERS.get(scheduler, (lambda o: None, "epoch"))
        rates = make(steps)
        attack = PGD(Linf(0.1, (0.0, 1.0)), steps=1)
        adversarial_train(
            model,
            batches,
            attack,
            epochs=3,
            optimizer=steps,
            scheduler=rates,
            checkpoint=path,
            config=TrainingConfig(step_scheduler_each=each),
        )
        return model, float(steps.param_groups[0]["lr"])

    path = tmp_path / "state.safetensors"
    with pytest.raises(Stopped):
        run(Stopping(len(loader()) + 3), path)
    resumed, rate = run(loader(), path)
    straight, wanted = run(loader(), None)
    assert same(resumed, straight)
    assert rate == wanted
    if scheduler is not None:
        assert rate != 0.1


def test_reporting_leaves_no_trace_in_batch_normalization():
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    adversarial_train(model, loader(), ATTACK, epochs=1)
    assert int(model[1].num_batches_tracked) == len(loader())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attack": "pgd"}, "attack must be"),
        ({"epochs": 0}, "epochs"),
        ({"data": [(torch.zeros(2, 2),)]}, "must be a pair"),
        ({"data": []}, "at least one batch"),
        ({"data": (np.zeros((3, 2)), np.zeros(4))}, "3 inputs and 4 classes"),
        ({"batch_size": 0}, "batch_size"),
        ({"data": iter([])}, "must not be an iterator"),
        ({"data": 3}, "data must be a pair of arrays or give batches"),
        ({"loss": "madry"}, "loss must be one of"),
        ({"optimizer": torch.optim.Adam}, "optimizer must be a torch optimizer"),
        ({"optimizer": adam(nn.Linear(2, 3))}, "none of them"),
        ({"scheduler": "cosine"}, "scheduler must be"),
        ({"holdout": (torch.zeros(3, 2), torch.zeros(2))}, "3 inputs but 2 targets"),
        ({"holdout": torch.zeros(3, 2)}, "holdout must be a pair"),
        ({"config": {"beta": 1.0}}, "config must be a TrainingConfig"),
        ({"seed": "a"}, "seed"),
    ],
)
def test_mistakes_are_named_before_training(change, message):
    given = {"data": loader(), "attack": None, "epochs": 1} | change
    with pytest.raises(InputError, match=message):
        adversarial_train(network(), given.pop("data"), given.pop("attack"), **given)


def test_mistakes_of_the_config_are_named():
    with pytest.raises(InputError, match="beta"):
        TrainingConfig(beta=-1.0)
    with pytest.raises(InputError, match="step_scheduler_each"):
        TrainingConfig(step_scheduler_each="step")


def test_checkpoints_that_do_not_fit_are_refused(tmp_path):
    path = tmp_path / "state.safetensors"
    adversarial_train(network(), loader(), None, epochs=1, checkpoint=path)
    model = network()
    with pytest.raises(InputError, match="another model, optimizer"):
        adversarial_train(model, loader(), None, optimizer=adam(model), checkpoint=path)
    with pytest.raises(InputError, match="another model"):
        adversarial_train(nn.Linear(2, 3), loader(), None, checkpoint=path)
    with pytest.raises(InputError, match="is a folder"):
        adversarial_train(network(), loader(), None, checkpoint=tmp_path)
    path.write_bytes(b"junk")
    with pytest.raises(InputError, match="that training wrote"):
        adversarial_train(network(), loader(), None, checkpoint=path)


def test_a_changed_weight_in_a_checkpoint_is_noticed(tmp_path):
    path = tmp_path / "state.safetensors"
    adversarial_train(network(), loader(), None, epochs=1, checkpoint=path)
    content = bytearray(path.read_bytes())
    content[-20] ^= 1  # the last bytes of a safetensors file are numbers
    path.write_bytes(content)
    with pytest.raises(InputError, match="changed or damaged"):
        adversarial_train(network(), loader(), None, epochs=2, checkpoint=path)


LOSSES = ["cross_entropy", "trades", cross_entropy]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "attack",
    [
        PGD(Linf(0.05, (0.0, 1.0)), steps=2),
        FGSM(Linf(0.05), random_start=True),
        PGD(Linf(0.05), steps=2, restarts=2),
        PGD(Linf(0.05), steps=2, target=1),
    ],
    ids=str,
)
def test_every_loss_trains(loss, attack):
    x, y = blobs(120)
    model = network()
    run = adversarial_train(
        model,
        (x, y),
        attack,
        epochs=8,
        optimizer=torch.optim.Adam(model.parameters(), 0.02),
        loss=loss,
        batch_size=30,
        config=TrainingConfig(beta=2.0),
    )
    assert run.robust_accuracy[-1] > 0.8


@pytest.mark.parametrize("loss", ["cross_entropy", "trades"])
def test_training_is_the_loop_of_madry_or_of_trades(loss):
    """Given the same batches and random starts, a loop written by hand reaches the same weights."""
    x, y = blobs(60)
    batches = list(zip(x.double().split(20), y.split(20), strict=True))
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    twin = copy.deepcopy(model)
    seen = []
    model.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    attack = PGD(
        Linf(0.1, (0.0, 1.0)),
        steps=4,
        loss="cross_entropy",
        schedule="constant",
        step_size=0.04,
        random_start=True,
    )
    adversarial_train(
        model,
        batches,
        attack,
        epochs=2,
        loss=loss,
        optimizer=torch.optim.SGD(model.parameters(), 0.5, momentum=0.9),
        config=TrainingConfig(beta=3.0),
    )
    optimizer = torch.optim.SGD(twin.parameters(), 0.5, momentum=0.9)
    passes = 7 if loss == "trades" else 5
    starts = iter(seen[2::passes] if loss == "trades" else seen[1::passes])
    for inputs, targets in 2 * batches:
        p = twin(inputs).softmax(1).detach()
        moved = next(starts)
        assert 0 < float((moved - inputs).abs().max()) <= 0.1
        for _ in range(4):
            moved = moved.detach().requires_grad_()
            q = twin(moved).log_softmax(1)
            value = cross_entropy(twin(moved), targets)
            if loss == "trades":
                value = (p * (p.log() - q)).sum()
            (gradient,) = torch.autograd.grad(value, moved)
            moved = moved.detach() + 0.04 * gradient.sign()
            moved = torch.minimum(torch.maximum(moved, inputs - 0.1), inputs + 0.1)
            moved = moved.clamp(0, 1)
        value = cross_entropy(twin(moved), targets)
        if loss == "trades":
            p, q = twin(inputs).softmax(1), twin(moved).softmax(1)
            kl = (p * (p.log() - q.log())).sum(1).mean()
            value = cross_entropy(twin(inputs), targets) + 3.0 * kl
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    for own, wanted in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own, wanted, rtol=1e-10, atol=1e-12)


def test_batches_of_dicts_and_the_best_weights(tmp_path):
    x, y = blobs(120)
    rows = [
        {"labels": t, "x": v} for v, t in zip(x.split(30), y.split(30), strict=True)
    ]
    model = network()
    path = tmp_path / "run.safetensors"
    held = DataLoader(TensorDataset(*blobs(40, seed=1)), batch_size=16)
    attack = PGD(Linf(0.03, (0.0, 1.0)), steps=2)
    run = adversarial_train(
        model,
        rows,
        attack,
        epochs=4,
        optimizer=torch.optim.Adam(model.parameters(), 0.03),
        holdout=held,
        checkpoint=path,
    )
    assert run.robust_accuracy[-1] > 0.8
    both = (run.holdout_robust_accuracy, run.holdout_clean_accuracy)
    score = list(zip(*both, strict=True))
    assert run.best_epoch == score.index(max(score)) + 1
    from safetensors.torch import load_file

    again = network(seed=3)
    again.load_state_dict(load_file(tmp_path / "run.best.safetensors"))
    kept = attack(again.eval(), *blobs(40, seed=1), warn=False).robust_accuracy
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
