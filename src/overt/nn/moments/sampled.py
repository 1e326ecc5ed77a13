"""Mean and variance of a model's output by sampling: Monte Carlo dropout."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from torch import nn

from overt import _check
from overt._check import InputError
from overt._progress import meter
from overt.nn.data.rng import seeded
from overt.nn.moments.carry import Output, checked, said
from overt.nn.moments.result import Moments
from overt.nn.moments.samples import Samples

LONG, SEEN = 256, 64
"""Samples from which on progress is shown, and passes of which one shows noise if there is any."""


def mc_moments(
    model: nn.Module,
    x: Any,
    n: int = 100,
    *,
    output: Output = None,
    covariance: bool = False,
    seed: int | None = None,
) -> Moments:
    """Return the mean and variance of model(x) over n samples with all that is random on.

    The sampling twin of `predictive_moments`: everything is in training mode but normalization,
    which keeps its statistics. Several copies of x go through the model at once where its rows do
    not meet, with draws that are balanced among them: each unit is dropped in its share of every 10
    or 20 samples, so that the mean is closer than that of as many independent ones. Sums are in
    double precision; the variance is unbiased. `seed` seeds torch's generator for the call, whose
    state is restored afterwards, as are the counters of layers with their own seed.
    """
    model = checked(model, x, output)
    n = _check.whole("n", n, minimum=2)
    samples = Samples(model, x, output, covariance=covariance)
    seed = None if seed is None else _check.whole("seed", seed, minimum=0)
    shown = meter("Monte Carlo dropout", n) if n >= LONG else nullcontext()
    with seeded(seed), shown as bar:
        try:
            samples.draw(n, bar)
        except InputError:
            raise
        except Exception as error:
            said(model, x, output, error)
            raise
        quiet = not bool(samples.variance.any())
        if quiet and n < SEEN:  # few passes may agree by chance
            more = Samples(model, x, output, covariance=False, alone=True)
            more.draw(SEEN)
            quiet = not bool(more.variance.any())
    if quiet:
        raise InputError("model has no noise that any of the passes has shown: nothing to sample")
    return samples.moments()
