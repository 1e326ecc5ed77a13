"""Split-conformal intervals and sets: their coverage, what they refuse, and saving."""

import math

import pytest
import torch
from torch import nn

from overt import InputError
from overt.nn import Predictive


def network(outputs):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, outputs)
    )


def regression(n):
    x = torch.randn(n, 3)
    noise = torch.distributions.StudentT(2.0).sample(
        (n, 2)
    )  # heavy tails: no normal interval fits
    return x, torch.stack([x[:, 0], 3 * x[:, 1] ** 2], 1) + (
        0.2 + x[:, :1].abs()
    ) * noise


def classes(n, outputs):
    x = torch.randn(n, 3)
    count = max(outputs, 2)
    y = (x[:, 0] * 2 + torch.randn(n)).abs().floor().clamp(max=count - 1).long()
    return x, y


def repeated(sure, draw, covered, level, n=39, repetitions=60):
    """Return the mean coverage over calibration sets, and its standard error."""
    torch.manual_seed(1)
    found = []
    for _ in range(repetitions):
        sure.conformalize(draw(n))
        found.append(covered(*draw(200), level).double().mean(0))
    found = torch.stack(found)
    return found.mean(0), found.std(0) / math.sqrt(repetitions)


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_intervals_cover_each_output_as_often_as_they_say(level):
    sure = Predictive(network(2)).eval()

    def covered(x, y, level):
        low, high = sure.conformal_interval(x, level)
        return (low <= y) & (y <= high)

    mean, error = repeated(sure, regression, covered, level)
    expected = math.ceil(40 * level) / 40  # of 39 scores: exact, as there are no ties
    assert expected >= level
    assert (mean.sub(expected).abs() <= 5 * error).all()


@pytest.mark.parametrize(("outputs", "loss"), [(3, "cross_entropy"), (1, "logistic")])
def test_sets_hold_the_class_as_often_as_they_say(outputs, loss):
    sure = Predictive(network(outputs), loss=loss).eval()

    def covered(x, y, level):
        inside = sure.conformal_set(x, level)
        assert inside.shape == (200, max(outputs, 2))
        return inside.gather(1, y[:, None])[:, 0]

    mean, error = repeated(sure, lambda n: classes(n, outputs), covered, 0.8)
    assert abs(mean - 32 / 40) <= 5 * error


def test_scores_are_saved_with_the_model(tmp_path):
    sure = Predictive(network(2)).eval().conformalize(regression(50))
    torch.save(sure.state_dict(), tmp_path / "s.pt")
    again = Predictive(network(2)).eval()
    again.load_state_dict(torch.load(tmp_path / "s.pt", weights_only=True))
    x, _ = regression(5)
    for a, b in zip(
        sure.conformal_interval(x), again.conformal_interval(x), strict=True
    ):
        assert torch.equal(a, b)


def few(loss="mse", outputs=2, n=8):
    data = regression(n) if loss == "mse" else classes(n, outputs)
    return Predictive(network(outputs), loss=loss).eval().conformalize(data)


X = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda: Predictive(network(2)).conformal_interval(X),
            "at least 9 rows.*got 0.*conformal",
        ),
        (
            lambda: few().conformal_interval(X, 0.9),
            "at least 9 rows of held-out data, got 8",
        ),
        (lambda: few().conformal_interval(X, 1.0), "level must be below 1"),
        (lambda: few().conformal_set(X, 0.5), "use conformal_interval"),
        (lambda: few("cross_entropy").conformal_interval(X, 0.5), "use conformal_set"),
        (
            lambda: few("cross_entropy").conformalize((X, torch.tensor([0, 7]))),
            "in 0..1",
        ),
        (
            lambda: few().conformalize((X, torch.zeros(2, 5))),
            r"as many numbers.*\(2, 2\)",
        ),
    ],
)
def test_mistakes_are_named(wrong, message):
    with pytest.raises(InputError, match=message):
        wrong()


def test_scores_are_forgotten_when_their_scale_changes():
    """Intervals of level .9 covered everything after `recalibrate`, or too little."""
    sure = Predictive(network(2)).eval().conformalize(regression(50))
    sure.conformal_interval(torch.randn(3, 3))
    sure.recalibrate(regression(50))
    with pytest.raises(InputError, match=r"call conformalize\(data\) first"):
        sure.conformal_interval(torch.randn(3, 3))


def test_fractions_are_no_classes():
    """They were rounded down without a word."""
    sure = Predictive(network(3), loss="cross_entropy").eval()
    with pytest.raises(InputError, match="class numbers"):
        sure.conformalize((torch.randn(50, 3), torch.rand(50)))
    one = Predictive(network(1), loss="logistic").eval()
    bits = torch.arange(50).remainder(2).float()[:, None]
    assert one.conformalize((torch.randn(50, 3), bits)).scores.shape == (50,)
