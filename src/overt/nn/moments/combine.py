"""How far propagated moments may be off, and what samples do about it.

Propagated moments have a bias that is estimated beforehand from what was met on the way: rests of
non-linear functions, the shift of the mean, strong noise before a softmax or a norm, products of
factors that share noise. Samples have a known standard error and no bias. In units of the standard
deviation, with d = sampled - propagated, E[d d'] of two independent samples is the squared bias,
so that the products of different groups of samples estimate it without a model.

Samples are used only if this estimate is significantly above 0: otherwise they would add their own
noise to a better answer. They also scale the error estimate, down where they confirm the moments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from overt.nn.moments.monte_carlo import LEVEL, Moments, SampleSums
from overt.nn.moments.propagate import PropagatedOutput


@dataclass(frozen=True)
class ErrorModel:
    """Error estimates of propagated moments beforehand, in standard deviations of an output.

    Chosen on the networks of benchmarks/zoo.py, where they hold for 98 of 100 means and standard
    deviations. Smaller numbers would take fewer samples and hold less often.
    """

    mean_least: float = 0.04
    """Of every mean that is not exact."""
    mean_shift: float = 0.35
    """Per standard deviation that the mean moves from the output without noise."""
    mean_shared: float = 0.12
    """Per standard deviation that products of factors with common noise may miss."""
    mean_coarse: float = 0.1
    """Where one number decides on a whole row, which is far from normal."""
    std_least: float = 0.04
    """Of every standard deviation that is not exact."""
    std_shift: float = 0.1
    """Per standard deviation that the mean moves from the output without noise."""
    std_rest: float = 0.15
    """Per share of the variance that linear maps leave out."""
    std_doubt: float = 2.5
    """Per share of the variance that second-order effects of softmax and norms would add."""
    std_coarse: float = 0.2
    """Where one number decides on a whole row."""
    unknown: float = 3.0
    """Factor where an operation without a rule was sampled locally."""


ERRORS = ErrorModel()

UNEVEN = 2.0
"""Factor on the squared bias that samples show on average, because outputs differ in theirs."""

SIGNIFICANT = 3.0
"""Standard errors of the estimated squared bias from which on samples are used."""


def estimate_errors(found: PropagatedOutput, clean: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far mean and standard deviation may be off, before any sample.

    `clean` is the output without noise.
    """
    mean = found.mean.detach()
    variance, rest, doubt = (t.detach() for t in found.variances)
    sd = variance.clamp(min=0).sqrt()
    rounding = 8 * torch.finfo(mean.dtype).eps * (mean.abs() + sd)
    if found.exact:
        return rounding, rounding
    run = found.run
    coarse = bool(run.coarse & found.output.noises)
    moved = _row_sums((mean - clean.to(mean)) ** 2) / _row_sums(variance)
    shift = moved.sqrt().clamp(max=4)
    positive = variance.clamp(min=torch.finfo(variance.dtype).tiny)
    of_mean = ERRORS.mean_least + ERRORS.mean_shift * shift
    of_mean = of_mean + ERRORS.mean_shared * run.shared + ERRORS.mean_coarse * coarse
    of_std = ERRORS.std_least + ERRORS.std_shift * shift + ERRORS.std_coarse * coarse
    of_std = of_std + (ERRORS.std_rest * rest + ERRORS.std_doubt * doubt) / positive
    factor = ERRORS.unknown if run.unknown else 1.0
    return factor * of_mean * sd + rounding, factor * of_std * sd + rounding


def _row_sums(t: Tensor) -> Tensor:
    """Return sums over the outputs of each row, at least the smallest number."""
    outputs = tuple(range(1, t.ndim))
    total = t.sum(outputs, keepdim=True) if outputs else t
    return total.clamp(min=torch.finfo(t.dtype).tiny)


def contradicts(found: Moments, sample: Tensor) -> bool:
    """Whether the one sample that a recording is lies too far from the propagated moments.

    Its squared distance in standard deviations is 1 on average; rows count as independent.
    """
    sd = found.std
    distance = ((sample - found.mean) / sd)[sd > 0] ** 2
    rows = len(sd) if sd.ndim else 1
    return bool(distance.mean() > 1 + SIGNIFICANT * math.sqrt(2 / rows))


def combine_with_samples(found: Moments, sums: SampleSums) -> Moments:
    """Return the weighted mean of propagated and sampled moments, with its error estimate.

    With b the standard error of what was propagated and s that of what was sampled, the sampled
    value has the weight b^2 / (b^2 + s^2), and b s / sqrt(b^2 + s^2) is left.
    """
    mean, sd = found.mean.double(), found.std.double()
    mean_error, std_error = found.mean_error.double(), found.std_error.double()
    sampled_sd = sums.variance.sqrt()
    both = (sd > 0) & (sampled_sd > 0)
    unit = torch.where(both, sd, 1.0)
    of_mean, of_std = sums.relative_errors
    firsts, squares = (
        torch.where(both, groups, 0.0).flatten(1)
        for groups in sums.group_deviations(mean, unit)
    )
    away = torch.where(both, (sums.mean - mean) / unit, 0.0)
    move, mean_left = _weigh(away, firsts, mean_error / unit / LEVEL, of_mean)
    away = torch.where(both, sampled_sd / unit, 1.0).log()
    log, std_left = _weigh(away, squares, std_error / unit / LEVEL, of_std)
    scale = torch.where(both, log.exp(), 1.0)
    mean = mean + torch.where(both, move * unit, 0.0)
    mean_error = torch.where(both, LEVEL * mean_left * unit, mean_error)
    std_error = torch.where(both, LEVEL * std_left * scale * unit, std_error)
    # Where samples vary and nothing was propagated, they decide, with their own errors.
    missed = (sd == 0) & (sampled_sd > 0)
    mean = torch.where(missed, sums.mean, mean)
    mean_error = torch.where(missed, sums.errors[0], mean_error)
    std_error = torch.where(missed, sums.errors[1], std_error)
    like = found.mean
    if found.variance.shape == like.shape:
        variance = torch.where(missed, sampled_sd, scale * sd) ** 2
    else:  # covariances
        scale = scale.reshape(len(scale) if scale.ndim else 1, -1)
        variance = found.variance * scale[:, :, None] * scale[:, None, :]
    return replace(
        found,
        mean=mean.to(like),
        variance=variance.to(like),
        draws=sums.count,
        mean_error=mean_error.to(like),
        std_error=std_error.to(like),
    )


def _weigh(d: Tensor, groups: Tensor, bias: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Return the part of d to believe, and the standard error that is left.

    `bias` is the standard error of the propagated value beforehand. The squared bias by products
    of different groups replaces its size, not its pattern over outputs.
    """
    count = len(groups)
    gram = groups @ groups.T / groups.shape[1]
    products = gram.fill_diagonal_(0.0) / (count * (count - 1))
    squared = float(products.sum())
    chance = math.sqrt(2) * float(products.norm())
    before = max(float((bias * bias).mean()), 1e-300)
    if squared <= SIGNIFICANT * chance:
        # Samples can confirm that the bias is small, and say no more than that it may be larger.
        most = UNEVEN * (max(squared, 0.0) + 2 * chance)
        return torch.zeros_like(d), bias * math.sqrt(min(most / before, 1.0))
    bias = bias * math.sqrt(UNEVEN * squared / before)
    total = bias**2 + s**2
    return bias**2 / total * d, bias * s / total.sqrt()
