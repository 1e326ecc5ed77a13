"""Audits of models written elsewhere: what they report, what they leave alone, what they refuse."""

import json
import pickle
import random
import signal
import weakref
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from audit_models import (
    Branching,
    ResidualNet,
    Transformer,
    X,
    Y,
    batches,
    mlp,
    numbers,
    small,
)
from sklearn.datasets import load_digits
from torch import nn

from overt import InputError
from overt import nn as onn
from overt.nn import audit, explicit_penalty, mc_moments
from overt.nn.monitor import noise_metrics
from overt.results import Status


@pytest.fixture(scope="module")
def digits():
    found = load_digits()
    x = torch.tensor(found.images[:400, None] / 16, dtype=torch.float32)
    return x, torch.tensor(found.target[:400])


OUTSIDE = {
    "mlp": (mlp, ["3", "6"]),
    "residual": (ResidualNet, ["block1.drop", "block2.drop", "dropout"]),
    "transformer": (
        Transformer,
        [
            "",
            *(
                f"encoder.layers.{i}.{d}"
                for i in (0, 1)
                for d in ("self_attn", "dropout1", "dropout", "dropout2")
            ),
            "drop",
        ],
    ),
    "branching": (Branching, ["drop"]),
}


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_models_from_outside(name, loss, digits):
    build, noises = OUTSIDE[name]
    if name == "transformer" and loss == "squared":
        pytest.skip("its last operation is log_softmax, for cross-entropy only")
    torch.manual_seed(0)
    x, y = digits
    report = audit(build(), batches(x, y), loss)
    assert [n.name for n in report.noises] == noises
    if loss == "squared":
        assert report.head.lower_bound <= report.objective + 5 * report.objective_error
    else:
        assert "cross_entropy" in dict(report.skipped)["the last layer"]
    assert report.samples == 400
    assert 0 <= report.accuracy <= 1


def test_terms_agree_with_penalties_and_sampling():
    model, (x, y) = small(), numbers()
    report = audit(model, batches(x, y), "squared")
    (noise,) = report.noises
    expected = float(explicit_penalty(model, x).value.detach())
    assert noise.penalty == pytest.approx(expected, rel=1e-5)
    assert (noise.exact, noise.penalty_error, report.objective_error) == (True, 0, 0)
    variance = mc_moments(model, x, 400, seed=0).variance.sum(1)
    error = float(variance.std() / np.sqrt(len(x))) + float(variance.mean()) / 20
    assert abs(noise.penalty - float(variance.mean())) <= 5 * error
    assert report.objective == pytest.approx(report.plain_loss + noise.penalty)
    assert noise.share == pytest.approx(noise.penalty / report.objective)


def test_mse_is_the_squared_loss_divided_by_the_outputs():
    model, (x, y) = small(), numbers()
    squared = audit(model, batches(x, y), "squared")
    mean = audit(model, batches(x, y), nn.MSELoss())
    for name in ("objective", "plain_loss"):
        assert getattr(mean, name) == pytest.approx(getattr(squared, name) / 3)
    assert mean.head.lower_bound == pytest.approx(squared.head.lower_bound / 3)
    assert mean.head.best_last_layer == pytest.approx(squared.head.best_last_layer / 3)


def test_dead_units_are_counted():
    model, (x, y) = small(), numbers()
    with torch.no_grad():
        model[0].weight[:4] = 0
        model[0].bias[:4] = -1
    report = audit(model, batches(x, y), "squared")
    assert report.noises[0].dead == 4


def test_leaves_everything_as_it_was(digits):
    torch.manual_seed(0)
    x, y = digits
    model = ResidualNet()
    model.train()
    model.block1.eval()
    model.fc.weight.grad = torch.ones_like(model.fc.weight)
    seeded = onn.Dropout(0.5, seed=3)
    model.dropout = seeded
    before = {k: v.clone() for k, v in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    state = torch.get_rng_state()
    first = audit(model, batches(x, y), "cross_entropy", seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(model.fc.weight.grad, torch.ones_like(model.fc.weight))
    assert model.stem[0].weight.grad is None
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.backends.mha.get_fastpath_enabled()
    again = audit(model, batches(x, y), "cross_entropy", seed=5)
    assert again.objective == first.objective


class Forgetful(nn.Module):
    """Changes attributes, lists, buffers, parameters and generators in every pass."""

    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = (
            nn.Linear(5, 8),
            nn.Dropout(0.3),
            nn.Linear(8, 3),
        )
        self.register_buffer("calls", torch.zeros(()))
        self.seen, self.plain, self.cache = None, torch.ones(5), []

    def forward(self, x):
        self.calls += 1
        self.seen = x
        self.plain.mul_(2)
        self.cache.append(x)
        with torch.no_grad():
            self.last.bias.add_(1)
        noise = random.random() + np.random.rand() if self.training else 0.0  # noqa: S311, NPY002
        return self.last(self.drop(torch.relu(self.first(x)))) + noise


class Doubles(nn.Module):
    """Writes into its input, as models do to save memory."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(5, 3)

    def forward(self, x):
        x.mul_(2)
        return self.last(nn.functional.dropout(x, 0.3, self.training))


def test_a_model_that_writes_into_its_input_leaves_the_data_as_they_were():
    torch.manual_seed(0)
    model, x, y = Doubles(), torch.randn(200, 5), torch.randn(200, 3)
    given = x.clone()
    report = audit(model, (given, y), "mse")
    assert torch.equal(given, x)
    noise_metrics(model, (given, y), "mse")
    assert torch.equal(given, x)
    model.train()
    with torch.no_grad():
        plain = torch.stack(
            [nn.functional.mse_loss(model(x.clone()), y) for _ in range(1000)]
        )
    error = np.hypot(report.objective_error, plain.std().item() / 1000**0.5)
    assert abs(report.objective - plain.mean().item()) < 5 * error
    model.eval()
    assert report.plain_loss == pytest.approx(
        nn.functional.mse_loss(model(x.clone()), y).item(), rel=1e-5
    )


def test_what_a_forward_pass_changes_is_changed_back():
    model = Forgetful()
    plain, cache = model.plain, model.cache
    before = {k: v.clone() for k, v in model.state_dict().items()}
    states = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    audit(model, [(X, Y)] * 3, "squared")
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert (model.seen, model.plain is plain, model.cache is cache) == (
        None,
        True,
        True,
    )
    assert (plain.tolist(), cache) == ([1.0] * 5, [])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states  # noqa: NPY002


def test_buffers_that_training_moves_stay():
    """The pass in training mode that looks for noise turns the vectors of spectral_norm."""
    torch.manual_seed(0)
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(5, 8))
    model = nn.Sequential(layer, nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    audit(model, [(X, Y)], "squared")
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


LASTS = {
    "Dropout": lambda: [nn.Dropout(0.5), nn.Linear(8, 3)],
    "twice": lambda: [
        nn.Dropout(0.5),
        nn.Linear(8, 8),
        onn.Dropout(0.2),
        nn.Linear(8, 3),
    ],
    "DropConnect": lambda: [onn.DropConnectLinear(8, 3, drop_prob=0.3)],
    "DropBlock": lambda: [onn.DropBlock1d(0.2, 3), nn.Flatten(), nn.Linear(8, 3)],
}


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
@pytest.mark.parametrize("name", LASTS)
def test_reports_stay_what_they_are_when_the_model_changes(name, loss):
    """Read at once, read later, and copied: the same."""
    torch.manual_seed(0)
    shape = [nn.Unflatten(1, (1, 8))] if name == "DropBlock" else []
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), *shape, *LASTS[name]()).double()
    data = (X.double(), Y.double() if loss == "squared" else Y.argmax(1))
    read, unread, copied = (audit(model, data, loss) for _ in range(3))
    told = read.to_dict() | {"seconds": 0}
    copied = pickle.loads(pickle.dumps(copied))  # noqa: S301
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.9
            elif isinstance(
                module, onn.Dropout | onn.DropConnectLinear | onn.DropBlock1d
            ):
                module.drop_prob = 0.9
    for report in (unread, copied):
        assert report.to_dict() | {"seconds": 0} == told


def test_batches_are_not_kept():
    """A loader that makes its data and checks that earlier batches are gone."""
    alive, most = [], 0

    class Endless:
        def __iter__(self):
            nonlocal most
            rng = torch.Generator().manual_seed(0)
            for _ in range(60):
                x = torch.randn(500, 5, generator=rng)
                alive.append(weakref.ref(x))
                most = max(most, sum(ref() is not None for ref in alive))
                yield x, torch.tanh(x[:, :3])

    report = audit(small(), Endless(), "squared")
    assert report.samples == 30_000
    assert most <= 3


def test_results_do_not_depend_on_the_batches():
    model, (x, y) = small().double(), (t.double() for t in numbers(300))
    one = audit(model, [(x, y)], "squared")
    many = audit(model, batches(x, y, size=7), "squared")
    assert many.objective == pytest.approx(one.objective, rel=1e-12)
    assert many.head.lower_bound == pytest.approx(one.head.lower_bound, rel=1e-12)
    np.testing.assert_allclose(many.head.spectrum, one.head.spectrum, rtol=1e-9)
    assert many.head.best_last_layer == pytest.approx(
        one.head.best_last_layer, rel=1e-9
    )


@pytest.mark.parametrize("how", ["raised", "signal"])
def test_interrupted_audits_report_on_what_they_saw(how):
    model, (x, y) = small(), numbers(500)
    seen = 0

    def loader():
        nonlocal seen
        for pair in batches(x, y):
            if seen == 3 and how == "raised":
                raise KeyboardInterrupt
            if seen == 2 and how == "signal":
                signal.raise_signal(signal.SIGINT)
            seen += 1
            yield pair

    before = signal.getsignal(signal.SIGINT)
    report = audit(model, loader(), "squared")
    assert signal.getsignal(signal.SIGINT) is before
    assert (report.samples, report.status) == (300, Status.INTERRUPTED)
    assert report.objective >= report.head.lower_bound
    assert "interrupted" in str(report)


def test_interrupt_before_anything_is_passed_on():
    def loader():
        raise KeyboardInterrupt
        yield

    with pytest.raises(KeyboardInterrupt):
        audit(small(), loader(), "squared")


NAN = X.clone()
NAN[3, 2] = float("nan")


REFUSED = {
    "empty": (small, [], "squared", "at least one batch"),
    "loss": (small, [(X, Y)], "hinge", "loss must be one of 'squared'"),
    "loss-type": (small, [(X, Y)], 3, "loss must be"),
    "loss-module": (
        small,
        [(X, Y)],
        nn.CrossEntropyLoss(label_smoothing=0.1),
        r"default settings, got CrossEntropyLoss\(\) with label_smoothing=0.1",
    ),
    "class-weights": (
        small,
        [(X, Y)],
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])),
        r"default settings, got CrossEntropyLoss\(\) with weight$",
    ),
    "nan": (
        small,
        [(X, Y), (NAN, Y)],
        "squared",
        "batch 2 of data: inputs must be finite",
    ),
    "nan-targets": (
        small,
        [(X, Y * float("nan"))],
        "squared",
        "targets must be finite",
    ),
    "no-targets": (small, [X], "squared", "must be a pair"),
    "lengths": (small, [(X, Y[:5])], "squared", "20 inputs but 5 targets"),
    "shape": (small, [(X, Y[:, :2])], "squared", "as many numbers as the outputs"),
    "class": (small, [(X, torch.full((20,), 3))], "cross_entropy", "0..2.*got 3"),
    "negative": (small, [(X, torch.full((20,), -1))], "cross_entropy", "got -1"),
    "float-class": (small, [(X, Y[:, 0])], "cross_entropy", "whole class numbers"),
    "probabilities": (small, [(X, Y)], "cross_entropy", "or rows of probabilities"),
    "logistic": (small, [(X, Y + 5)], "logistic", r"must lie in \[0, 1\]"),
    "later-width": (
        small,
        [(X, Y), (X[:, :2], Y)],
        "squared",
        r"batch 2 .* shape \(20, 2\)",
    ),
    "whole": (small, [(X.long(), Y)], "squared", "type of the model's weights"),
    "nothing": (small, None, "squared", "a pair of arrays or give batches"),
    "words": (
        small,
        [(X, np.array(["a"] * 20))],
        "squared",
        "batch 1 of data must hold numbers",
    ),
    "three": (small, [(X, Y, Y)], "squared", "a tuple of Tensor, Tensor, Tensor"),
    "dict": (small, [{"x": X, "z": Y}], "squared", "a dict with 'x', 'z'"),
    "pair": (small, (X, Y[:5]), "squared", "20 inputs but 5 targets"),
    "list": (small, [X, Y], "squared", "must be a pair"),
    "one-logit": (
        lambda: nn.Linear(5, 1),
        [(X, torch.zeros(20).long())],
        "cross_entropy",
        "at least 2",
    ),
    "no-rows": (small, [(X[:0], Y[:0])], "squared", "at least one row"),
    "several": (lambda: Several(), [(X, Y)], "squared", "one floating-point tensor"),
    "model": (lambda: print, [(X, Y)], "squared", "model must be a torch.nn.Module"),
}


class Several(nn.Module):
    def forward(self, x):
        return x, x


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_with_a_reason(name):
    build, loader, loss, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        audit(build(), loader, loss)


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        (X.numpy(), Y.numpy()),
        [(X.double(), Y.double())],
        [(X.numpy().astype(float), Y)],
    ],
    ids=["pair", "arrays", "double", "list"],
)
def test_data_in_other_forms(data):
    first, second = audit(small(), [(X, Y)], "squared"), audit(small(), data, "squared")
    assert second.objective == pytest.approx(first.objective, rel=1e-6)
    assert second.head.lower_bound == pytest.approx(first.head.lower_bound, rel=1e-6)


class Named(nn.Module):
    """Calls its layers by the names of their arguments."""

    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = (
            nn.Linear(5, 8),
            nn.Dropout(0.4),
            nn.Linear(8, 3),
        )

    def forward(self, x):
        return self.last(input=self.drop(input=torch.relu(self.first(input=x))))


def test_layers_that_are_called_by_the_names_of_their_arguments():
    torch.manual_seed(0)
    model, (x, y) = Named(), numbers(400)
    report = audit(model, (x, y), "squared")
    expected = float(explicit_penalty(model, x).value.detach())
    (noise,) = report.noises
    assert noise.name == "drop"
    assert abs(noise.penalty - expected) <= 5 * noise.penalty_error > 0


class Two(nn.Module):
    """Numbers and words, and a switch."""

    def __init__(self):
        super().__init__()
        self.words, self.read = nn.Embedding(7, 6), nn.Linear(5, 6)
        self.drop, self.last = nn.Dropout(0.4), nn.Linear(6, 3)

    def forward(self, x, ids, double=False):
        h = torch.relu(self.read(x) + self.words(ids).mean(1))
        return self.last(self.drop(2 * h if double else h))


@pytest.mark.parametrize("form", ["tuple", "dict"])
def test_several_inputs(form):
    torch.manual_seed(0)
    model, (x, y) = Two(), numbers(400)
    ids = torch.randint(7, (400, 4))
    inputs = (x, ids) if form == "tuple" else {"x": x, "ids": ids, "double": True}
    report = audit(model, (inputs, y), "squared")
    with torch.no_grad():
        run = lambda: model(**inputs) if form == "dict" else model(*inputs)  # noqa: E731
        values = [
            float(((run() - y) ** 2).sum(1).mean()) for _ in range(300) if model.train()
        ]
    error = np.std(values) / np.sqrt(len(values))
    assert report.noises[0].exact
    assert abs(report.objective - np.mean(values)) <= 5 * error
    assert 0 < report.head.lower_bound < report.objective


def test_a_loss_of_ones_own_is_sampled():
    model, (x, y) = small(), numbers(400)

    def summed(output, target):
        return ((output - target) ** 2).sum(1).mean()

    def absolute(output, target):
        return (output - target).abs().sum(1).mean()

    named, own = (audit(model, (x, y), loss) for loss in ("squared", summed))
    assert own.plain_loss == pytest.approx(named.plain_loss, rel=1e-5)
    assert abs(own.objective - named.objective) <= 5 * own.objective_error
    assert (own.loss, own.head, own.noises[0].exact) == ("summed", None, False)
    assert "loss summed" in dict(own.skipped)["the last layer"]
    report = audit(model, (x, y), absolute)
    with torch.no_grad():
        values = [float(absolute(model.train()(x), y)) for _ in range(300)]
    error = np.hypot(np.std(values) / np.sqrt(300), report.objective_error)
    assert abs(report.objective - np.mean(values)) <= 5 * error


@pytest.mark.parametrize("loss", ["cross_entropy", "squared"])
@pytest.mark.parametrize("kind", [torch.float32, torch.int64, torch.bool])
def test_one_hot_targets_are_classes(loss, kind):
    classes = torch.arange(20) % 3
    rows = nn.functional.one_hot(classes).to(kind)
    first, second = (audit(small(), [(X, y)], loss) for y in (classes, rows))
    assert second.objective == first.objective
    assert second.accuracy == first.accuracy is not None
    assert (second.head is None) is (loss == "cross_entropy")


def test_probabilities_of_classes():
    y = torch.softmax(2 * Y, 1)
    report = audit(small(), [(X, y)], nn.CrossEntropyLoss())
    with torch.no_grad():
        plain = nn.functional.cross_entropy(small().eval()(X), y)
    assert report.plain_loss == pytest.approx(float(plain), rel=1e-5)
    assert report.accuracy is None


def test_accuracy_needs_classes_in_every_batch():
    several = torch.tensor([[1.0, 1, 0], [0, 1, 0]])
    assert (
        audit(small(), [(X[:2], several), (X[:1], several[1:])], "squared").accuracy
        is None
    )


@pytest.mark.parametrize(
    "wrap", [nn.DataParallel, lambda m: torch.compile(m, backend="eager")]
)
def test_wrapped_models(wrap):
    model, data = small(), numbers()
    plain, report = (audit(m, data, "squared") for m in (model, wrap(model)))
    assert report.objective == plain.objective
    assert [n.name for n in report.noises] == ["2"]


@pytest.mark.parametrize(
    "wrap", [lambda o: {"a": o}, lambda o: (o, o), lambda o: Out(o)]
)
def test_outputs_that_are_no_tensor(wrap):
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = small()

        def forward(self, x):
            return wrap(self.inner(x))

    def pick(o):
        return (
            o["a"]
            if isinstance(o, dict)
            else o[0]
            if isinstance(o, tuple)
            else o.logits
        )

    (x, y), model = numbers(), Wrapped()
    report = audit(model, [(x, y)], "squared", output=pick)
    plain = audit(model.inner, [(x, y)], "squared")
    assert report.objective == pytest.approx(plain.objective, rel=1e-6)
    assert report.head.lower_bound == pytest.approx(plain.head.lower_bound, rel=1e-6)
    with pytest.raises(InputError, match="output=lambda"):
        audit(model, [(x, y)], "squared")


@dataclass
class Out:
    logits: torch.Tensor


def test_inside_inference_mode():
    model, (x, y) = small(), numbers()
    expected = audit(model, batches(x, y), "squared")
    with torch.inference_mode():
        assert audit(model, batches(x, y), "squared").objective == expected.objective


def test_words_and_files(tmp_path, digits):
    x, y = digits
    torch.manual_seed(0)
    report = audit(mlp(), batches(x, y), "squared")
    text = str(report)
    for word in ("penalty", "last layer", "dead units", "its inputs as they are"):
        assert word in text
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["head"]["lower_bound"] == report.head.lower_bound
    assert plain["noises"][1]["exact"] is True
    stored = json.loads(report.save(tmp_path / "audit.json").read_text())
    assert stored.pop("checksum")
    assert stored == plain
