"""The noise that an audit finds, and what it adds to the loss, against brute force."""

import gc
import random
import weakref

import numpy as np
import pytest
import torch
from audit_models import (
    Transformer,
    X,
    Y,
    batches,
    numbers,
)
from sklearn.datasets import load_digits
from torch import nn

from overt.nn import DropBlock1d, Dropout, audit, explicit_penalty


@pytest.fixture(scope="module")
def digits():
    found = load_digits()
    x = torch.tensor(found.images[:400, None] / 16, dtype=torch.float32)
    return x, torch.tensor(found.target[:400])


class Gaussian(nn.Module):
    def forward(self, x):
        return x + 0.1 * torch.randn_like(x) if self.training else x


class Coin(nn.Module):
    """Stochastic depth as people write it."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 5)

    def forward(self, x):
        if self.training and torch.rand(()) < 0.5:
            return x
        return x + self.inner(x)


class Attends(nn.Module):
    def forward(self, x):
        h = x[:, None, :, None]
        p = 0.1 * self.training
        return nn.functional.scaled_dot_product_attention(h, h, h, dropout_p=p)[
            :, 0, :, 0
        ]


class Foreign(nn.Module):
    """Skips a layer by a coin that is not torch's."""

    def __init__(self, coin):
        super().__init__()
        self.coin, self.inner = coin, nn.Linear(5, 5)

    def forward(self, x):
        return x if self.training and self.coin() < 0.5 else x + self.inner(x)


class Uses(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.odd, self.last = layer, nn.Linear(5, 3)

    def forward(self, x):
        x = self.odd(x)
        return self.last(x[0] if isinstance(x, tuple) else x)


class Always(nn.Dropout):
    def forward(self, x):
        return nn.functional.dropout(x, self.p)


SOURCES = {
    "Scripted": lambda: torch.jit.script(
        nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.3))
    ),
    "AlphaDropout": lambda: nn.AlphaDropout(0.3),
    "GRU": lambda: nn.GRU(5, 5, 2, dropout=0.4),
    "RReLU": nn.RReLU,
    "Gaussian": Gaussian,
    "Coin": Coin,
    "Attends": Attends,
    "Python": lambda: Foreign(random.random),
    "NumPy": lambda: Foreign(np.random.rand),
}


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", SOURCES)
def test_whatever_draws_in_training_mode_is_found_and_sampled(name):
    """The oracle runs the whole model in training mode, and knows nothing of sources."""
    torch.manual_seed(0)
    model, x, y = Uses(SOURCES[name]()), 2 * X[:20], Y[:20]
    draws = 400
    report = audit(model, [(x, y)] * 10, "squared", passes=40)
    (noise,) = report.noises
    # Where a coin decides what runs, no pass can be recorded.
    assert noise.name == ("" if name in ("Coin", "Python", "NumPy") else "odd")
    assert not noise.exact
    with torch.no_grad():
        model.train()
        losses = np.array(
            [float((model(x) - y).square().sum(1).mean()) for _ in range(draws)]
        )
    error = np.hypot(losses.std() / np.sqrt(draws), report.objective_error)
    assert abs(losses.mean() - report.objective) <= 5 * error
    assert report.objective_error > 0


def test_draws_in_hooks_of_known_layers_are_found():
    model = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.Linear(4, 3))
    model[0].register_forward_hook(
        lambda layer, _, y: y + torch.randn_like(y) if layer.training else y
    )
    assert [noise.name for noise in audit(model, (X, Y), "squared").noises] == [
        "",
        "1",
    ]


class SameName(nn.Module):
    """Has an attribute with the name of the function that samples."""

    def __init__(self):
        super().__init__()
        self.dropout, self.last = nn.Dropout(0.5), nn.Linear(5, 3)

    def forward(self, x):
        x = nn.functional.dropout(x, 0.5, self.training)
        return self.last(self.dropout(x)).tanh()


class SharedMask(nn.Module):
    """Drops the same units of all rows."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(5, 3)

    def forward(self, x):
        mask = nn.functional.dropout(torch.ones_like(x[:1]), 0.5, self.training)
        return self.last(x * mask)


@pytest.mark.parametrize("build", [SameName, SharedMask])
def test_functional_dropout_is_all_counted(build):
    torch.manual_seed(0)
    model, (x, y) = build(), numbers(400)
    reports = [audit(model, (x, y), "squared", seed=seed) for seed in range(12)]
    with torch.no_grad():
        model.train()
        losses = np.array(
            [float((model(x) - y).square().sum(1).mean()) for _ in range(2000)]
        )
    truth, error = losses.mean(), losses.std() / np.sqrt(2000)
    scores = [
        (r.objective - truth) / np.hypot(r.objective_error, error) for r in reports
    ]
    assert np.abs(scores).max() < 5
    assert np.std(scores) < 2  # above 4 if rows are taken for independent


def test_a_generator_of_its_own_is_named():
    model = Uses(Foreign(np.random.default_rng(0).random))
    (noise,) = audit(model, [(X, Y)], "squared").noises
    assert "generator" in noise.kind
    assert noise.penalty_error > 0


def test_dropout_that_stays_on_is_named():
    report = audit(Uses(Always(0.3)), [(X, Y)], "squared")
    assert "samples in evaluation mode too" in dict(report.skipped)["odd"]
    assert report.objective_error > 0


def test_noise_that_stays_on_has_an_error():
    torch.manual_seed(0)
    model = Uses(nn.Identity())
    model.last.forward = lambda x: nn.functional.linear(
        nn.functional.dropout(x), model.last.weight
    )
    found = [audit(model, [(X, Y)], "squared", seed=seed) for seed in range(12)]
    spread = np.std([report.objective for report in found], ddof=1)
    assert (
        spread / 2 < np.mean([report.objective_error for report in found]) < 2 * spread
    )


class Learned(Uses):
    """Noise on parameters, and attributes that only look like drop probabilities."""

    def __init__(self):
        super().__init__(nn.Dropout(0.3))
        self.p = nn.Parameter(torch.randn(4, 5))

    def forward(self, x):
        x = x + self.odd(self.p).mean(0)
        return self.last(nn.functional.dropout(x, 0.1, self.training))


def test_noise_on_parameters():
    report = audit(Learned(), (X, Y), "squared")
    assert [(n.name, n.drop_prob) for n in report.noises] == [("odd", 0.3), ("", None)]


def test_what_only_looks_like_noise_is_not_named():
    class Off(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.drop_path = nn.Linear(5, 3), nn.Identity()

        def forward(self, x):
            return self.last(
                nn.functional.dropout(self.drop_path(x), 0.5, training=False)
            )

    assert "forward" not in dict(audit(Off(), [(X, Y)], "squared").skipped)


def test_noise_inside_torch_transformers_is_on(digits):
    """torch's fast path in evaluation mode would skip the dropout layers."""
    x, y = digits
    torch.manual_seed(0)
    model = Transformer()
    report = audit(model, batches(x, y), "cross_entropy", passes=200)
    with torch.no_grad():
        model.train()
        losses = [float(nn.functional.nll_loss(model(x), y)) for _ in range(100)]
    error = np.hypot(np.std(losses) / 10, report.objective_error)
    assert abs(report.objective - np.mean(losses)) <= 5 * error
    assert min(noise.penalty_error for noise in report.noises) > 0


def test_layers_with_seeds_are_found_one_by_one():
    torch.manual_seed(0)
    layers = [nn.Linear(5, 8), nn.ReLU(), Dropout(0.4, seed=3), nn.Linear(8, 8)]
    model = nn.Sequential(*layers, nn.ReLU(), Dropout(0.3, seed=4), nn.Linear(8, 3))
    report = audit(model, numbers(), "squared")
    found = [(noise.name, noise.exact) for noise in report.noises]
    assert found == [("2", False), ("5", True)]


def test_sampled_terms_within_their_error():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 16),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(16, 16),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(16, 3),
    )
    x, y = numbers(400)
    report = audit(model, batches(x, y), "squared", seed=1)
    with torch.no_grad():
        values = [
            float(((model.train()(x) - y) ** 2).sum(1).mean()) for _ in range(300)
        ]
    truth, error = np.mean(values), np.std(values) / np.sqrt(len(values))
    assert abs(report.objective - truth) <= 5 * np.hypot(error, report.objective_error)
    assert not report.noises[0].exact
    assert report.noises[1].exact


class Decides(nn.Module):
    """A coin decides what runs, so that a pass in training mode cannot be recorded."""

    def __init__(self):
        super().__init__()
        self.coin = nn.Dropout(0.5)
        self.tail = nn.Sequential(
            DropBlock1d(0.4, 2, placement="grid"), nn.Flatten(), nn.Linear(5, 3)
        )

    def forward(self, x):
        x = -x if self.coin(x).sum() > 0 else x
        return self.tail(x[:, None])


def test_penalties_after_an_audit_are_those_before_it():
    """A mask that an audit had seen whole counted as no noise: the penalty was 0, "exact"."""
    model, (x, y) = Decides(), numbers()
    audit(model, (x, y), "squared")
    assert explicit_penalty(model.tail, x[:, None]).value > 0.01


def test_an_audited_model_is_not_kept_alive():
    model = Decides()
    audit(model, numbers(), "squared")
    gone = weakref.ref(model.tail[0])
    del model
    gc.collect()
    assert gone() is None


def test_layers_that_drop_nothing_add_nothing():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 8),
        nn.Dropout(0.0),
        nn.Tanh(),
        nn.Dropout(0.4),
        nn.Linear(8, 3),
        nn.Tanh(),
    )
    x, y = numbers()
    (loud,) = audit(model, (x, y), "squared").noises
    assert loud.name == "3"
    assert loud.penalty > 0


def test_sampled_rows_are_spread_over_the_data():
    """Sorted data: the rows at the end have a penalty a hundred times that of those before."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 1), nn.Tanh())
    x = torch.cat([torch.full((9000, 2), 0.1), torch.ones(9000, 2)])
    data = batches(x, torch.zeros(18000, 1), size=300)
    known = audit(model, data, "squared")
    first = audit(model, (pair for pair in data), "squared")
    assert known.noises[0].penalty > 5 * abs(first.noises[0].penalty)


@pytest.mark.parametrize(
    "coin", [random.random, np.random.rand, lambda: torch.rand(())]
)
def test_a_seed_decides_what_is_sampled_from_any_global_generator(coin):
    torch.manual_seed(0)
    model = Uses(Foreign(coin))
    first, again = (
        [audit(model, [(X, Y)] * 9, "squared", seed=i).objective for i in range(4)]
        for _ in range(2)
    )
    assert first == again
    assert len(set(first)) > 1


def test_the_price_is_bounded_and_errors_stand_beside_sampled_numbers():
    calls = []
    torch.manual_seed(0)
    model = nn.Sequential(
        *(
            layer
            for _ in range(40)
            for layer in (nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.2))
        ),
        nn.Linear(8, 3),
    )
    model.register_forward_hook(lambda module, args, output: calls.append(len(output)))
    x, y = torch.randn(4000, 8), torch.randint(3, (4000,))
    report = audit(model, batches(x, y, size=500), "cross_entropy")
    assert sum(calls) <= 6 * len(x)
    assert len(report.noises) == 40
    assert all(n.penalty_error > 0 for n in report.noises)
    del calls[:]
    # The budget is spent, also beyond what is sampled by default.
    audit(model, batches(x, y, size=500), "cross_entropy", passes=40)
    assert 40 * len(x) <= sum(calls) <= 43 * len(x)


def test_shared_dropout_modules_are_sampled_not_taken_for_exact():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.drop = (
                nn.Linear(5, 8),
                nn.Linear(8, 3),
                nn.Dropout(0.4),
            )

        def forward(self, x):
            return self.b(self.drop(torch.relu(self.a(self.drop(x)))))

    torch.manual_seed(0)
    model, (x, y) = Twice(), numbers(400)
    report = audit(model, batches(x, y), "squared")
    (noise,) = report.noises
    assert not noise.exact
    with torch.no_grad():
        values = [
            float(((model.train()(x) - y) ** 2).sum(1).mean()) for _ in range(200)
        ]
    error = np.hypot(np.std(values) / np.sqrt(200), report.objective_error)
    assert abs(np.mean(values) - report.objective) <= 5 * error
    assert report.head.lower_bound < report.objective


@pytest.mark.filterwarnings("ignore:dropout")
@pytest.mark.parametrize(
    ("drop", "shape"),
    [(nn.Dropout2d, (3, 4)), (nn.Dropout1d, (12,)), (nn.Dropout3d, (1, 3, 4))],
    ids=["2d", "1d", "3d"],
)
def test_channel_dropout_of_inputs_with_an_axis_less(drop, shape):
    """An audit of Dropout2d on (batch, tokens, features) failed: it wanted four axes."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Unflatten(1, shape), drop(0.5), nn.Flatten(), nn.Linear(12, 2)
    ).double()
    x, y = torch.randn(6, 12).double(), torch.randn(6, 2).double()
    (noise,) = audit(model, (x, y), "squared").noises
    penalty = explicit_penalty(model, x).value.item()
    assert (noise.penalty, noise.exact) == (pytest.approx(penalty, rel=1e-9), True)


def test_a_layer_that_drops_everything_is_a_noise_of_its_own():
    """It was listed twice, once for the whole model, and said to be called again."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(1.0)
    ).append(nn.Linear(8, 3))
    x, y = numbers()
    report = audit(model, (x, y), "squared")
    assert [noise.name for noise in report.noises] == ["1", "3"]
    assert report.noises[0].penalty == 0
    off = model[4].bias.detach() - y
    assert report.objective == pytest.approx(off.square().sum(1).mean().item())
    assert "3 drops everything" in dict(report.skipped)["the last layer"]


def test_tokens_under_cross_entropy_are_to_be_flattened():
    """The message about logits of (batch, tokens, classes) told the user to use one logit."""
    with pytest.raises(ValueError, match=r"flatten tokens or pixels to points"):
        audit(
            nn.Linear(5, 3),
            (torch.ones(2, 4, 5), torch.ones(2, 4).long()),
            "cross_entropy",
        )
