"""Mean and variance of a network's output under its noise, without sampling where possible."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from overt import _check
from overt.nn.moments.carry import DRAWS, Output, checked, passes
from overt.nn.moments.result import Moments


def predictive_moments(
    model: nn.Module,
    x: Any,
    *,
    output: Output = None,
    covariance: bool = False,
    draws: int = DRAWS,
) -> Moments:
    """Return the mean and variance of model(x) when its noise is on.

    Forward, each tensor has a mean and a variance per entry, and a non-linear function is replaced
    by the affine map of least squares at N(mean, variance) plus a rest; backward, the gradients of
    the outputs at all sources of noise, with those slopes, are squared and summed. For noise before
    a last affine part both moments are exact: for a linear layer U on activations a,
    Var(o_k) = sum_ij Cbar_ij U_ki a_i U_kj a_j (structured dropout, Lemma 3.1; thesis, Proposition
    5). What is random and cannot be carried (dropout inside an LSTM, a coin that decides what runs)
    is drawn, the rest being carried in each draw; the result says so.

    Parameters
    ----------
    model
        Any network; whatever is random in training mode counts as its noise. Normalization keeps
        its statistics.
    x
        A batch of inputs, or a tuple or dictionary of several.
    output
        Picks the output that counts, such as `lambda o: o.logits`.
    covariance
        Return the covariance of the (flattened) outputs of each row instead of the variance.
    draws
        In how many passes to draw what cannot be carried.

    Examples
    --------
    >>> import torch
    >>> from overt.nn import predictive_moments
    >>> model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(2, 1, bias=False))
    >>> _ = torch.nn.init.ones_(model[1].weight)
    >>> mean, variance = predictive_moments(model, torch.tensor([[3.0, 1.0]]))
    >>> mean.item(), variance.item()  # 1 * (3^2 + 1^2)
    (4.0, 10.0)
    """
    model, draws = checked(model, x), _check.whole("draws", draws, minimum=2)
    found = passes(model, x, output=output, draws=draws)
    means = torch.stack([one.output.mean for one in found])
    with torch.inference_mode(False):
        spreads = [one.covariances() if covariance else one.variances() for one in found]
    mean, spread = means.mean(0), torch.stack(spreads).mean(0)
    if len(found) > 1:
        away = (means - mean).flatten(2)
        squares = torch.einsum("nbk,nbl->bkl", away, away) if covariance else (away**2).sum(0)
        spread = spread + squares.reshape(spread.shape) / (len(found) - 1)
    noises, drawn, linearized = (
        tuple(dict.fromkeys(name for one in found for name in getattr(one.tape, which)))
        for which in ("met", "was_drawn", "linearized")
    )
    count = len(found) if len(found) > 1 else 0
    exact = found[0].output.exact and not count
    carried = tuple(name for name in noises if name not in drawn)
    return Moments(mean, spread, exact, carried, drawn, linearized, count)
