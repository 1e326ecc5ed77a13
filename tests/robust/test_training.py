import shutil

import numpy as np
import pytest
import torch
from robust_cases import blobs
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from overt import InputError
from overt.results import Status
from overt.robust import L2, PGD, Linf, TrainingConfig, adversarial_train, strongest

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
        if attack is None:
            assert np.array_equal(run.clean_accuracy, run.robust_accuracy)
    assert accuracy["robust"] > accuracy["standard"] + 0.1


@pytest.mark.parametrize("every", [0, 2])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_interrupted_training_resumes_to_the_same_weights(tmp_path, every, momentum):
    def start(model, path, **more):
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=momentum)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        attack = PGD(L2(0.1), steps=3, random_start=True)
        config = TrainingConfig(clean_fraction=0.3, checkpoint_every=every)
        return adversarial_train(
            model,
            loader(),
            attack,
            epochs=4,
            optimizer=optimizer,
            scheduler=scheduler,
            checkpoint=path,
            seed=3,
            config=config,
            **more,
        )

    whole = network()
    full = start(whole, None)
    cut, calls = network(), []
    forward = cut[0].forward

    def impatient(v):
        calls.append(1)
        if len(calls) == 90:
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


def test_killed_training_resumes_to_the_same_weights(tmp_path):
    path, left = tmp_path / "state.safetensors", tmp_path / "left.safetensors"

    def run(model, checkpoint, **more):
        more = {"epochs": 3, "optimizer": adam(model), "checkpoint": checkpoint} | more
        return adversarial_train(model, loader(), ATTACK, **more)

    def keep(row):  # what a process leaves that is killed after the first epoch
        if not left.exists():
            shutil.copy(path, left)

    whole, model, rows = network(), network(seed=5), []
    run(whole, path, config=TrainingConfig(on_epoch=keep))
    assert run(model, left, config=TrainingConfig(on_epoch=rows.append)).epochs == 3
    assert len(rows) == 2
    assert same(model, whole)


def test_one_logit_and_data_bounds():
    x, y = blobs()
    data = DataLoader(TensorDataset(x, (y > 0).long()), batch_size=60)
    model = network(classes=1)
    run = adversarial_train(
        model, data, PGD(Linf(0.05, "data"), steps=3), epochs=30, optimizer=adam(model)
    )
    assert run.robust_accuracy[-1] > 0.9


def test_a_pair_of_arrays_is_shuffled_and_resumes(tmp_path):
    def run(data, path, **more):
        model = network()
        return model, adversarial_train(
            model, data, ATTACK, checkpoint=path, seed=1, **more
        )

    class Permuted:
        """What a pair stands for: a fresh order in each pass, from torch's generator."""

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
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.05, max_iter=3, history_size=4),
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
            config=TrainingConfig(step_scheduler_each=each, checkpoint_every=2),
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


def test_bounds_from_the_data_hold_the_holdout_too():
    x, y = blobs(seed=1)
    attack = PGD(Linf(0.1, "data"), steps=1)
    run = adversarial_train(network(), loader(), attack, epochs=1, holdout=(3 * x, y))
    assert 0 <= run.holdout_robust_accuracy[0] <= run.holdout_clean_accuracy[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attack": "pgd"}, "attack must be"),
        ({"epochs": 0}, "epochs"),
        ({"data": [(torch.zeros(2, 2),)]}, "batches"),
        ({"data": []}, "empty"),
        ({"data": (np.zeros((3, 2)), np.zeros(4))}, "same length, got lengths 3, 4"),
        (
            {"data": (np.zeros((3, 2)), np.zeros(3), np.zeros(3))},
            "one array of inputs and one of",
        ),
        ({"batch_size": 0}, "batch_size"),
        ({"data": iter([])}, "a generator is used up"),
        ({"data": 3}, "data must give batches"),
        ({"optimizer": torch.optim.Adam}, "optimizer must be a torch optimizer"),
        ({"optimizer": adam(nn.Linear(2, 3))}, "none of them"),
        ({"scheduler": "cosine"}, "scheduler must be"),
        ({"holdout": (torch.zeros(3, 2), [0])}, "one class for each of the 3 points"),
        ({"holdout": torch.zeros(3, 2)}, "holdout must be a pair"),
        ({"holdout": {}}, "holdout must be a pair"),
        ({"config": {"beta": 1.0}}, "config must be a TrainingConfig"),
        ({"seed": "a"}, "seed"),
    ],
)
def test_mistakes_are_named_before_training(change, message):
    given = {"data": loader(), "attack": None, "epochs": 1} | change
    with pytest.raises(InputError, match=message):
        adversarial_train(network(), given.pop("data"), given.pop("attack"), **given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"beta": -1.0}, "beta"),
        ({"clean_fraction": 2.0}, "clean_fraction"),
        ({"step_scheduler_each": "step"}, "step_scheduler_each"),
        ({"autocast": "bfloat16"}, "autocast must be a torch.dtype"),
        ({"scaler": 3}, "scaler must be a torch.amp.GradScaler"),
        ({"checkpoint_every": -1}, "checkpoint_every"),
        ({"on_epoch": "print"}, "on_epoch must be a function"),
    ],
)
def test_mistakes_of_the_config_are_named(change, message):
    with pytest.raises(InputError, match=message):
        TrainingConfig(**change)


def test_checkpoints_that_do_not_fit_are_refused(tmp_path):
    path = tmp_path / "state.safetensors"
    adversarial_train(network(), loader(), None, epochs=1, checkpoint=path)
    model = network()
    with pytest.raises(InputError, match=r"another model, optimizer.*SGD.*Adam"):
        adversarial_train(model, loader(), None, optimizer=adam(model), checkpoint=path)
    with pytest.raises(InputError, match="another model"):
        adversarial_train(nn.Linear(2, 3), loader(), None, checkpoint=path)
    with pytest.raises(InputError, match="is a folder"):
        adversarial_train(network(), loader(), None, checkpoint=tmp_path)
    path.write_bytes(b"junk")
    with pytest.raises(InputError, match="that training wrote"):
        adversarial_train(network(), loader(), None, checkpoint=path)
