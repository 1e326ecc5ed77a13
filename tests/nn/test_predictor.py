"""A model that says how sure it is: against closed forms, sampling, and as trainers use it."""

from collections import UserDict

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from overt import InputError
from overt.nn import Predictive, mc_moments, predictive_moments


def network(outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 32), nn.ReLU(), nn.Dropout(0.4), nn.Linear(32, outputs)
    )


def test_mean_std_and_interval_of_a_batch_and_of_a_loader():
    model, x = network(), torch.randn(50, 4)
    sure, (mean, variance) = Predictive(model).eval(), predictive_moments(model, x)
    loader = DataLoader(TensorDataset(x, torch.zeros(50)), batch_size=16)
    for given in (x, loader):
        torch.testing.assert_close(sure.mean(given), mean.detach())
        torch.testing.assert_close(sure.std(given), variance.detach().sqrt())
        low, high = sure.interval(given, level=0.6826895)
        torch.testing.assert_close(high - low, 2 * variance.detach().sqrt())
    torch.testing.assert_close(sure(x), mean.detach())


def test_inputs_by_name_may_be_any_mapping():
    """What a tokenizer returns was refused."""
    model, x = network(), torch.randn(5, 4)
    sure = Predictive(model).eval()
    torch.testing.assert_close(sure.mean(UserDict(input=x)), sure.mean(x))


def test_probabilities_are_those_of_sampled_passes():
    model, x = network(), 2 * torch.randn(6, 4)
    model[3].weight.data *= 4
    sure = Predictive(model, loss="cross_entropy").eval()
    found = sure.probabilities(x)
    sampled = mc_moments(nn.Sequential(model, nn.Softmax(-1)), x, 4000, seed=0)
    assert (found - sampled.mean).abs().max() < 0.03
    torch.testing.assert_close(found.sum(1), torch.ones(6))
    torch.testing.assert_close(sure(x).exp(), found)
    one = Predictive(network(1), loss="logistic")
    sampled = mc_moments(nn.Sequential(one.model, nn.Sigmoid()), x, 4000, seed=0)
    assert (one.probabilities(x) - sampled.mean).abs().max() < 0.02


def test_recalibration_finds_the_noise_of_targets_and_the_temperature_of_logits():
    x = torch.randn(2000, 4)
    model = network(1)
    sure = Predictive(model)
    mean, variance = (t.detach() for t in predictive_moments(model, x))
    y = mean + (variance + 0.25).sqrt() * torch.randn_like(mean)
    sure.recalibrate((x, y))
    assert float(sure.noise_variance) == pytest.approx(0.25, rel=0.1)
    low, high = sure.interval(x, level=0.9)
    assert float(((y >= low) & (y <= high)).float().mean()) == pytest.approx(
        0.9, abs=0.02
    )
    x, sure = x[:1000], Predictive(network(), loss="cross_entropy")
    sure.temperature.fill_(1 / 3)
    labels = torch.distributions.Categorical(probs=sure.probabilities(x)).sample()
    sure.temperature.fill_(1.0)
    assert float(sure.recalibrate((x, labels)).temperature) == pytest.approx(
        1 / 3, rel=0.2
    )
    again = Predictive(network(), loss="cross_entropy")
    again.load_state_dict(sure.state_dict())
    torch.testing.assert_close(again.probabilities(x[:5]), sure.probabilities(x[:5]))


def test_it_trains_as_the_model_does_and_predicts_under_inference_mode():
    model, x, y = network(), torch.randn(64, 4), torch.randint(3, (64,))
    sure = Predictive(model, loss="cross_entropy").train()
    torch.nn.functional.cross_entropy(sure(x), y).backward()
    assert model[0].weight.grad is not None
    assert not torch.equal(sure(x), sure(x))  # its noise is on
    sure.eval()
    with torch.inference_mode():
        torch.testing.assert_close(sure(x).exp(), sure.probabilities(x))


def maps():
    model = nn.Sequential(nn.Dropout(0.5), nn.Conv2d(1, 2, 1))
    return Predictive(model, loss="cross_entropy").probabilities(
        torch.randn(2, 1, 3, 3)
    )


def no_probabilities():
    data = (torch.randn(5, 4), 4 * torch.rand(5, 3))
    return Predictive(network(), loss="cross_entropy").recalibrate(data)


MISTAKES = {
    "model": (lambda: Predictive("net"), "model must be"),
    "loss": (lambda: Predictive(network(), loss="hinge"), "loss must be"),
    "level": (
        lambda: Predictive(network()).interval(torch.randn(2, 4), level=1.0),
        "level",
    ),
    "maps": (maps, "classes"),
    "numbers": (
        lambda: Predictive(network()).probabilities(torch.randn(2, 4)),
        "cross_entropy",
    ),
    "no probabilities": (no_probabilities, "probabilities"),
    "data": (lambda: Predictive(network()).recalibrate(3), "data must be"),
}


@pytest.mark.parametrize(("wrong", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_named(wrong, message):
    with pytest.raises((InputError, TypeError), match=message):
        wrong()
