"""Mean and variance of a network's output under its dropout: in one pass, and by sampling."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from overt import _check
from overt._check import InputError
from overt._progress import meter
from overt.nn.delta import Linearized
from overt.nn.engine import Outcome, active_noises, checked, outcomes
from overt.nn.noisy import Noisy
from overt.nn.sources import modes, noise_modules


class Moments(NamedTuple):
    """Mean, and variance of the same shape; or covariance (batch, outputs, outputs)."""

    mean: Tensor
    variance: Tensor


def predictive_moments(
    model: nn.Module, x: Tensor, *, covariance: bool = False, method: str = "auto"
) -> Moments:
    """Return the mean and variance of model(x) when its dropout is on, without sampling.

    For dropout before a last affine part both are exact: the mean is the plain output, and for a
    linear layer U on activations a, Var(o_k) = sum_ij Cbar_ij U_ki a_i U_kj a_j (structured
    dropout, Lemma 3.1; thesis, Proposition 5). Noise further down is carried on: exactly through
    affine operations and further noise, as that of a normal vector through functions of single
    entries, by linearization through all else. All modules but the noise are in evaluation mode.

    Parameters
    ----------
    model
        A network with noise layers of overt.nn or torch.nn (Dropout, Dropout1d, 2d, 3d).
    x
        A batch of inputs.
    covariance
        Return the covariance of the (flattened) outputs of each sample instead of the variance.
    method
        "gaussian" carries moments as said above; "delta" linearizes the whole network at its
        noise-free point, which serves any model, costs a backward pass for each output, and ignores
        what noise does to the mean; "auto" is "gaussian" where the model allows it.

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
    model = checked(model, x)
    with modes(model, noise=False, others=False):
        parts = list(outcomes(model, x, active_noises(model), method))
        read = [_moments(part, covariance) for part in parts]
    return Moments(*(torch.cat(column) for column in zip(*read, strict=True)))


def mc_moments(
    model: nn.Module,
    x: Tensor,
    n: int = 100,
    *,
    covariance: bool = False,
    seed: int | None = None,
) -> Moments:
    """Return the mean and variance of model(x) over n passes with only the noise layers random.

    The sampling twin of `predictive_moments` (Monte Carlo dropout). Means and variances are summed
    in double precision; the variance has the divisor n - 1. `seed` seeds torch's generator for the
    call, whose state is restored afterwards, as are the counters of layers with their own seed.
    """
    model = checked(model, x)
    n = _check.whole("n", n, minimum=2)
    if not noise_modules(model):
        raise InputError("model has no noise layer of overt.nn or torch.nn, so nothing to sample")
    mean = spread = torch.zeros((), dtype=torch.float64)
    with (
        torch.no_grad(),
        torch.random.fork_rng(enabled=seed is not None),
        modes(model, noise=True, others=False),
        meter("Monte Carlo dropout", n) as bar,
    ):
        if seed is not None:
            torch.manual_seed(_check.whole("seed", seed, minimum=0))
        for i in range(1, n + 1):
            out = model(x)
            y = out.double()
            before = y - mean
            mean = mean + before / i
            after = y - mean
            if covariance:
                spread = spread + before.flatten(1)[:, :, None] * after.flatten(1)[:, None, :]
            else:
                spread = spread + before * after
            bar.advance()
    return Moments(mean.to(out.dtype), (spread / (n - 1)).to(out.dtype))


def _moments(outcome: Outcome, covariance: bool) -> Moments:
    match outcome:
        case Noisy():
            spread = outcome.covariance() if covariance else outcome.variance()
            return Moments(outcome.mean, spread)
        case Linearized():
            spread = outcome.covariance() if covariance else outcome.variance()
            return Moments(outcome.clean, spread)
    if covariance:
        K = outcome[0].numel()
        return Moments(outcome, outcome.new_zeros(len(outcome), K, K))
    return Moments(outcome, torch.zeros_like(outcome))
