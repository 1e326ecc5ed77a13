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
    tiny = torch.finfo(variance.dtype).tiny
    rows = len(mean) if mean.ndim else 1
    moved = ((mean - clean.to(mean)) ** 2).reshape(rows, -1).sum(1)
    shift = (
        (moved / variance.reshape(rows, -1).sum(1).clamp(min=tiny)).sqrt().clamp(max=4)
    )
    shift = shift.reshape(-1, *[1] * (mean.ndim - 1)) if mean.ndim else shift[0]
    run = found.run
    coarse = bool(run.coarse & found.output.noises)
    of_mean = ERRORS.mean_least + ERRORS.mean_shift * shift
    of_mean = (
        of_mean + ERRORS.mean_shared * run.shared_products + ERRORS.mean_coarse * coarse
    )
    of_std = ERRORS.std_least + ERRORS.std_shift * shift
    of_std = of_std + ERRORS.std_rest * rest / variance.clamp(min=tiny)
    of_std = of_std + ERRORS.std_doubt * doubt / variance.clamp(min=tiny)
    of_std = of_std + ERRORS.std_coarse * coarse
    factor = ERRORS.unknown if run.unknown else 1.0
    return factor * of_mean * sd + rounding, factor * of_std * sd + rounding


def contradicts(found: Moments, sample: Tensor) -> bool:
    """Whether the one sample that a recording is lies too far from the propagated moments.

    Its squared distance in standard deviations is 1 on average; rows count as independent.
    """
    sd = found.std
    rows = len(sd) if sd.ndim else 1
    distance = ((sample - found.mean) / sd.clamp(min=torch.finfo(sd.dtype).tiny)) ** 2
    distance = torch.where(sd > 0, distance, 1.0).reshape(rows, -1).mean(1).double()
    scatter = float(distance.std()) if rows > 1 else 0.0
    least = math.sqrt(2 / min(3, max(1, sd.numel() // rows)))
    return float(distance.mean()) > 1 + SIGNIFICANT * max(scatter, least) / math.sqrt(
        rows
    )


def combine_with_samples(found: Moments, sums: SampleSums) -> Moments:
    """Return the weighted mean of propagated and sampled moments, with its error estimate.

    With b the standard error of what was propagated and s that of what was sampled, the sampled
    value has the weight b^2 / (b^2 + s^2), and b s / sqrt(b^2 + s^2) is left.
    """
    mean = found.mean.double()
    sd = found.std.double()
    sampled_sd = sums.variance.sqrt()
    sure = (sd > 0) & (sampled_sd > 0)
    unit = torch.where(sure, sd, 1.0)
    firsts, squares = _group_deviations(sums, mean, unit, sure)
    d_mean = torch.where(sure, (sums.mean - mean) / unit, 0.0)
    d_log = torch.where(sure, (sampled_sd.clamp(min=1e-300) / unit).log(), 0.0)
    of_mean, of_std = sums.relative_errors
    mean_error = found.mean_error.double() / unit / LEVEL
    std_error = found.std_error.double() / unit / LEVEL
    move, mean_left = _weigh(d_mean, firsts, mean_error, torch.full_like(unit, of_mean))
    log, std_left = _weigh(d_log, squares, std_error, of_std)
    new_sd = torch.where(sure, sd * log.exp(), sd)
    new_mean = mean + move * unit
    mean_error = torch.where(sure, LEVEL * mean_left * unit, found.mean_error.double())
    std_error = torch.where(sure, LEVEL * std_left * new_sd, found.std_error.double())
    # Where samples vary and nothing was propagated, they decide, with their own errors.
    missed = (sd == 0) & (sampled_sd > 0)
    if bool(missed.any()):
        error_mean, error_std = sums.errors
        new_sd = torch.where(missed, sampled_sd, new_sd)
        new_mean = torch.where(missed, sums.mean, new_mean)
        mean_error = torch.where(missed, error_mean, mean_error)
        std_error = torch.where(missed, error_std, std_error)
    like = found.mean
    variance = (new_sd**2).to(like)
    if found.variance.shape != found.mean.shape:  # covariances
        scale = torch.where(sure, log.exp(), 1.0).to(like)
        scale = scale.reshape(len(scale) if scale.ndim else 1, -1)
        variance = found.variance * scale[:, :, None] * scale[:, None, :]
    return replace(
        found,
        mean=new_mean.to(like),
        variance=variance,
        draws=sums.count,
        mean_error=mean_error.to(like),
        std_error=std_error.to(like),
    )


def _group_deviations(
    sums: SampleSums, mean: Tensor, unit: Tensor, sure: Tensor
) -> tuple[Tensor, Tensor]:
    """Return for each full group of samples how far it is from the propagated moments.

    (groups, outputs), in standard deviations for means, in logarithms for standard deviations.
    """
    full = [group for group in sums.groups if group[0] == sums.group_size]
    assert sums.shift is not None  # noqa: S101 (for the type checker)
    shift = sums.shift - mean
    center = sums.mean - sums.shift
    firsts = []
    squares = []
    for count, first, second in full:
        firsts.append(torch.where(sure, (first / count + shift) / unit, 0.0).flatten())
        about_mean = second / count - 2 * center * first / count + center**2
        ratio = about_mean * (sums.count / (sums.count - 1)) / unit**2
        squares.append(torch.where(sure, (ratio - 1) / 2, 0.0).flatten())
    return torch.stack(firsts), torch.stack(squares)


def _weigh(d: Tensor, groups: Tensor, bias: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Return the part of d to believe, and the standard error that is left.

    `bias` is the standard error of the propagated value beforehand. The squared bias by products
    of different groups replaces its size, not its pattern over outputs.
    """
    count, outputs = groups.shape
    gram = groups @ groups.T / outputs
    apart = gram - torch.diag(gram.diagonal())
    pairs = max(count * (count - 1), 1)
    squared = float(apart.sum()) / pairs
    chance = math.sqrt(2 * float((apart * apart).sum())) / pairs
    before = float((bias * bias).mean())
    significant = squared > SIGNIFICANT * chance
    # What the bias may be at most, given the samples.
    most = UNEVEN * (max(squared, 0.0) + 2 * chance)
    scale = most / max(before, 1e-300)
    if not significant:
        # Samples can confirm that the bias is small, and say no more than that it may be larger.
        return torch.zeros_like(d), bias * math.sqrt(min(scale, 1.0))
    bias = bias * math.sqrt(UNEVEN * squared / max(before, 1e-300))
    weight = bias**2 / (bias**2 + s**2)
    left = (bias * s / (bias**2 + s**2).sqrt()).clamp(min=0)
    return weight * d, left
