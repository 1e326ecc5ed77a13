"""Mean and variance of a model's output by sampling: Monte Carlo dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from overt import _check
from overt._check import InputError
from overt._progress import meter
from overt.nn.moments.carry import Output, checked, picked
from overt.nn.moments.result import Moments
from overt.nn.recording.modes import modes, unwrapped
from overt.nn.recording.watching import called


def mc_moments(
    model: nn.Module,
    x: Any,
    n: int = 100,
    *,
    output: Output = None,
    covariance: bool = False,
    seed: int | None = None,
) -> Moments:
    """Return the mean and variance of model(x) over n passes with all that is random on.

    The sampling twin of `predictive_moments`: everything is in training mode but normalization,
    which keeps its statistics. Means and variances are summed in double precision; the variance has
    the divisor n - 1. `seed` seeds torch's generator for the call, whose state is restored
    afterwards, as are the counters of layers with their own seed.
    """
    model = checked(model, x)
    n = _check.whole("n", n, minimum=2)
    mean = spread = torch.zeros((), dtype=torch.float64)
    with (
        torch.no_grad(),
        torch.random.fork_rng(enabled=seed is not None),
        modes(model, noise=True),
        meter("Monte Carlo dropout", n) as bar,
    ):
        if seed is not None:
            torch.manual_seed(_check.whole("seed", seed, minimum=0))
        first = None
        for i in range(1, n + 1):
            out = picked(called(unwrapped(model), x), output)
            first = out if first is None else first
            y = out.double()
            before = y - mean
            mean = mean + before / i
            after = y - mean
            if covariance:
                spread = spread + before.flatten(1)[:, :, None] * after.flatten(1)[:, None, :]
            else:
                spread = spread + before * after
            bar.advance()
    if not bool(spread.any()):
        raise InputError("model has no noise that any of the passes has shown: nothing to sample")
    variance = (spread / (n - 1)).to(out.dtype)
    return Moments(mean.to(out.dtype), variance, exact=False, drawn=("all",), draws=n)
