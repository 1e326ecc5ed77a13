"""Mean and variance of a network's output under its noise, without sampling where possible."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from overt import _check
from overt.nn.moments.adjoint import covariances, variances
from overt.nn.moments.carry import Carried, Output, carry, checked, hidden_randomness
from overt.nn.moments.result import Moments

DRAWS = 100
"""Passes in which noise that cannot be carried is drawn."""


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
    found = carry(model, x, output=output)
    hidden = hidden_randomness(model, x, output)
    coarse = () if found.output.exact else found.coarse
    if not (hidden or coarse or found.drawn):
        return _result(found, found.output.mean, spread(found, covariance))
    passes = [carry(model, x, output=output, drawn={*found.drawn, *coarse}) for _ in range(draws)]
    means = torch.stack([one.output.mean for one in passes])
    within = torch.stack([spread(one, covariance) for one in passes]).mean(0)
    away = (means - means.mean(0)).flatten(2)
    if covariance:
        between = torch.einsum("nbk,nbl->bkl", away, away) / (draws - 1)
    else:
        between = (away**2).sum(0).reshape(means.shape[1:]) / (draws - 1)
    return _result(passes[0], means.mean(0), within + between, draws, hidden)


def spread(found: Carried, covariance: bool = False) -> Tensor:
    """Return the variances of what was carried, or the covariances of each row."""
    out, create = found.output, torch.is_grad_enabled()
    with torch.inference_mode(False):
        if covariance:
            return covariances(out.tangent, found.sources, create=create)
        if out.known:
            return out.variance
        return variances(out.tangent, found.sources, create=create)


def _result(
    found: Carried, mean: Tensor, variance: Tensor, draws: int = 0, hidden: bool = False
) -> Moments:
    drawn = (*found.drawn, *(("a coin that is not torch's",) if hidden else ()))
    carried = tuple(name for name in found.noises if name not in found.drawn)
    exact = found.output.exact and not draws
    return Moments(mean, variance, exact, carried, drawn, found.linearized, draws)
