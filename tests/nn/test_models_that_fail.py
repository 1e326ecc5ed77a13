"""Models that cannot be run are refused in words, not with a bare traceback."""

import pytest
import torch
from torch import nn

from overt import InputError
from overt.nn import explicit_penalty, mc_moments, predictive_moments, without_noise

CALLS = {
    "predictive_moments": predictive_moments,
    "mc_moments": mc_moments,
    "explicit_penalty": explicit_penalty,
    "without_noise": lambda model, x: without_noise(model).train()(x),
}


class Failing(nn.Module):
    def __init__(self, error, message):
        super().__init__()
        self.inner = nn.Linear(6, 3)
        self.error = error
        self.message = message

    def forward(self, x, *_):
        if self.training:
            raise self.error(self.message)
        return self.inner(x)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("error", [ValueError, KeyError, RuntimeError])
def test_the_error_of_a_model_is_in_the_message(call, error):
    with pytest.raises(
        InputError, match=rf"cannot be run on x of \(4, 6\).*{error.__name__}.*why"
    ):
        CALLS[call](Failing(error, "why\nand more"), torch.ones(4, 6))
    reason = "" if error is KeyError else "no reason given"
    with pytest.raises(InputError, match=f"{error.__name__}: {reason}"):
        CALLS[call](Failing(error, ""), (torch.ones(4, 6), torch.ones(3)))


@pytest.mark.parametrize("call", [predictive_moments, mc_moments, explicit_penalty])
def test_an_index_out_of_range_is_named_after_calls_that_ran(call):
    model = nn.Sequential(nn.EmbeddingBag(9, 6), nn.Dropout(0.2), nn.Linear(6, 3))
    x = torch.arange(6).reshape(3, 2)
    for _ in range(2):
        call(model, x)
    with pytest.raises(InputError, match="cannot be run on x"):
        call(model, x + 90)


def test_an_index_out_of_range_is_named_in_a_step_that_reuses_a_recording():
    net = without_noise(
        nn.Sequential(nn.EmbeddingBag(9, 6), nn.Dropout(0.2), nn.Linear(6, 3))
    ).train()
    x = torch.arange(6).reshape(3, 2)
    with torch.no_grad():
        for _ in range(2):
            net(x)
        with pytest.raises(InputError, match="cannot be run on x"):
            net(x + 90)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("device", ["lazy", "meta"])
def test_weights_without_values_are_refused(call, device):
    empty = nn.LazyLinear(3) if device == "lazy" else nn.Linear(6, 3, device="meta")
    with pytest.raises(InputError, match="must have its weights"):
        CALLS[call](nn.Sequential(nn.Dropout(0.3), empty), torch.ones(4, 6))
