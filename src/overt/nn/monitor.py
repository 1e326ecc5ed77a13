"""Numbers to log while a network with dropout trains: penalty, predicted variance, audit."""

from __future__ import annotations

from typing import Any

from torch import nn

from overt.nn.auditing import audit
from overt.nn.data.batches import Batches, Output
from overt.nn.data.losses import Loss
from overt.nn.moments.predictive import predictive_moments
from overt.nn.penalties import explicit_penalty

ROWS = 64
"""Rows on which the penalty and the variance are computed: a few passes of a small batch."""


def noise_metrics(
    model: nn.Module,
    data: Any,
    loss: Loss,
    *,
    output: Output = None,
    seed: int = 0,
) -> dict[str, float]:
    """Return what a network's noise does on some data, as numbers to log.

    Parameters
    ----------
    model, data, loss, output, seed
        As in `audit`. The penalty and the standard deviation are those on the first 64 rows of the
        first batch.

    Returns
    -------
    "penalty", what the noise adds to the loss; "std", the root mean variance of the outputs under
    it; "loss", without noise; "objective", with noise; where the audit finds them "accuracy", or
    "lower_bound" and "gap" for a squared loss.
    """
    batch = next(iter(Batches(data, model, output=output)))
    inputs = batch.inputs.first(ROWS)
    given = inputs.given
    y = None if batch.y is None else batch.y[:ROWS]
    penalty = explicit_penalty(model, given, y, loss=loss, output=output, seed=seed)
    moments = predictive_moments(model, given, output=output, seed=seed)
    report = audit(model, data, loss, output=output, seed=seed)
    found = {
        "penalty": float(penalty.value.detach()),
        "std": float(moments.variance.detach().clamp(min=0).mean().sqrt()),
        "loss": report.plain_loss,
        "objective": report.objective,
    }
    if report.head is not None:
        found["lower_bound"] = report.head.lower_bound
        found["gap"] = report.head.gap
    if report.accuracy is not None:
        found["accuracy"] = report.accuracy
    return found
