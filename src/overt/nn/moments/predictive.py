"""Mean and variance of a network's output under its noise, without sampling where possible.

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
from typing import Any

import torch
from torch import Tensor, nn

from overt._check import InputError, number, whole
from overt.nn.graph.record import Recording, UnsupportedError, record_noise
from overt.nn.graph.state import (
    Output,
    check_call,
    never_compiled,
    raise_if_model_fails,
    seed_all,
    untouched,
)
from overt.nn.moments.monte_carlo import LEVEL, Moments, SampleSums, add_samples
from overt.nn.moments.propagate import (
    PropagatedOutput,
    decompose,
    propagate_with_corrections,
)


@dataclass(frozen=True)
class SamplingPlan:
    """Default numbers of samples."""

    alone: int = 400
    """Where a model cannot be propagated: standard deviations are then 3 to 4 % off."""
    check: int = 200
    """Where propagated moments are doubtful: standard deviations are corrected to 5 %."""
    doubtful: float = 0.38
    """Error estimate, in standard deviations, above which they are taken. Of the 12 networks of
    benchmarks/zoo.py that are off by 5 % or .1 standard deviations as propagated, all are above,
    and 9 of the 64 others."""
    most: int = 12_800
    """The most that `tol` may cost."""


PLAN = SamplingPlan()


@never_compiled
def predictive_moments(
    model: nn.Module,
    x: Any,
    *,
    output: Output = None,
    covariance: bool = False,
    tol: float | None = None,
    draws: int | None = None,
    seed: int = 0,
    differentiable: bool = False,
) -> Moments:
    """Return the mean and variance of model(x) when its noise is on.

    One pass is recorded as a list of ATen operations. Forward, each tensor has a mean and a
    variance per entry, and a non-linear function is replaced by the affine map of least squares at
    N(mean, variance) plus a rest. Backward, the gradients of the outputs at all sources of noise
    are squared and summed. For noise before a last affine part both moments are exact: for a linear
    layer U on activations a, Var(o_k) = sum_ij Gamma_ij U_ki a_i U_kj a_j (structured dropout,
    Lemma 3.1; thesis, Proposition 5).

    A model that cannot be propagated (noise decides what runs, or comes from NumPy) is sampled, for
    the `reason` in the result. Where the error estimate is large, samples check what was
    propagated, and correct it if they contradict it. The model, the inputs
    and all random generators are left as they were.

    Parameters
    ----------
    model
        Any network; whatever is random in training mode counts as its noise. Normalization uses
        its running statistics.
    x
        A batch of inputs, or a tuple or mapping of several.
    output
        Selects the output that counts, such as `lambda o: o.logits`.
    covariance
        Return the covariance of the (flattened) outputs of each row instead of the variance.
    tol
        Sample until the error estimates of mean and standard deviation are at most this many
        standard deviations in 90 of 100 outputs; the result's `reached` says what they are.
    draws
        How many samples to take, 0 for none; or with `tol` the most (12,800). By default 400 where
        the model cannot be propagated; where the error estimate is above .38 standard deviations,
        or the recorded pass contradicts it, 200; else none.
    seed
        Of the samples: the same seed gives the same result.
    differentiable
        Return moments with gradients at the model's parameters and at x. Only what is propagated
        has them.

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
    model = check_call(model, x, output)
    tol = None if tol is None else number("tol", tol, exclusive=True)
    draws = None if draws is None else whole("draws", draws, minimum=0)
    seed = whole("seed", seed, minimum=0)
    if draws == 1:
        raise InputError("draws must be 0 or at least 2, got 1")
    propagated_only = draws == 0 or differentiable
    recording = found = None
    reason = ""
    with untouched(model) as saved, torch.inference_mode(False):
        seed_all(seed)
        try:
            recording = record_noise(saved, x, output, decompose=decompose)
            clean = saved.plain_pass(x, output, noise=False)
            found = _propagated(recording, clean, covariance, differentiable)
        except UnsupportedError as error:
            reason = str(error)
            if propagated_only:
                raise_if_model_fails(model, x, output, error)
                raise InputError(
                    f"the model's moments cannot be propagated, because {reason}; take samples "
                    "with draws=400, and differentiable=False"
                ) from error
        sums = SampleSums(covariance=covariance)
        most = draws or (PLAN.alone if tol is None else PLAN.most)
        if found is not None and recording is not None:
            enough = found.exact or propagated_only
            if draws is None and tol is None:
                most = PLAN.check
                enough = enough or not is_doubtful(found, recording.output)
            elif draws is None and tol is not None:
                enough = enough or _reaches(found, tol)
            if enough:
                return found
            sums = SampleSums(covariance=covariance, shift=found.mean)
        while True:
            step = most if tol is None else max(PLAN.check, sums.count)
            add_samples(sums, saved, recording, x, output, min(step, most - sums.count))
            result = sums.moments(reason)
            if found is not None:
                result = combine_with_samples(found, sums)
            if sums.count >= most or (tol is not None and _reaches(result, tol)):
                return result


def _propagated(
    recording: Recording, clean: Tensor, covariance: bool, grad: bool
) -> Moments:
    """Return the propagated moments of a recording; `clean` is the output without noise."""
    found = propagate_with_corrections(recording, grad)
    if not found.finite:
        raise UnsupportedError("moments leave the range of numbers")
    mean_error, std_error = estimate_errors(found, clean)
    return Moments(
        found.mean,
        found.covariances() if covariance else found.variances.total,
        found.exact,
        recording.noises,
        mean_error=mean_error,
        std_error=std_error,
    )


def _reaches(found: Moments, tol: float) -> bool:
    return found.reached is not None and found.reached <= tol


# -- error estimates and samples ----------------------------------------------------------------


@dataclass(frozen=True)
class ErrorModel:
    """Error estimates of propagated moments beforehand, in standard deviations of an output.

    Fitted to the 76 networks of benchmarks/zoo.py that are propagated, where they hold for 99 of
    100 means and standard deviations, and to 1,300 small ones (dropout of 4 to 40 units behind one
    of 16 functions), where they hold for 97. Smaller numbers would take fewer samples and hold
    less often.
    """

    least: float = 0.04
    """Of everything that is not exact."""
    mean_shift: float = 0.4
    """Per standard deviation that the mean moves from the output without noise."""
    mean_shared: float = 0.12
    """Per standard deviation that products of factors with common noise may miss."""
    mean_far: float = 1.0
    """Per share of the variance that linear maps leave out, for a single random number."""
    mean_doubt: float = 0.5
    """Where second-order effects of softmax and norms would add as much variance as there is,
    for a single random number."""
    std_shift: float = 0.14
    """These four are those of the mean, for the standard deviation."""
    std_rest: float = 0.15
    std_far: float = 3.0
    std_doubt: float = 2.0


ERRORS = ErrorModel()

UNEVEN = 2.0
"""Factor on the squared bias that samples show on average, because outputs differ in theirs."""

SIGNIFICANT = 3.0
"""Standard errors of the estimated squared bias from which on samples are used."""


def estimate_errors(found: PropagatedOutput, clean: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far mean and standard deviation may be off, before any sample.

    `clean` is the output without noise. Sums of n random numbers count as normal, which they are
    the less the smaller n is: by n^(-1/2). A linear function of them is right all the same.
    """
    mean = found.mean.detach()
    variance, rest, doubt, concentration = (t.detach() for t in found.variances)
    sd = variance.clamp(min=0).sqrt()
    rounding = 8 * torch.finfo(mean.dtype).eps * (mean.abs() + sd)
    if found.exact:
        return rounding, rounding
    shift = row_shifts(mean, variance, clean).clamp(max=4)
    positive = variance.clamp(min=torch.finfo(variance.dtype).tiny)
    rest = rest / positive
    far = rest * concentration.sqrt()
    doubt = (concentration * doubt / positive).sqrt()
    of_mean = ERRORS.least + ERRORS.mean_shift * shift + ERRORS.mean_far * far
    of_mean = (
        of_mean + ERRORS.mean_shared * found.run.shared + ERRORS.mean_doubt * doubt
    )
    of_std = ERRORS.least + ERRORS.std_shift * shift + ERRORS.std_far * far
    of_std = of_std + ERRORS.std_rest * rest + ERRORS.std_doubt * doubt
    return of_mean * sd + rounding, of_std * sd + rounding


def row_shifts(mean: Tensor, variance: Tensor, clean: Tensor) -> Tensor:
    """Return how far noise moves the mean of each row, in standard deviations."""
    return (_row_sums((mean - clean.to(mean)) ** 2) / _row_sums(variance)).sqrt()


def _row_sums(t: Tensor) -> Tensor:
    """Return sums over the outputs of each row, at least the smallest number."""
    outputs = tuple(range(1, t.ndim))
    total = t.sum(outputs, keepdim=True) if outputs else t
    return total.clamp(min=torch.finfo(t.dtype).tiny)


def is_doubtful(found: Moments, sample: Tensor) -> bool:
    """Whether propagated moments are to be compared with samples.

    `sample` is the one sample that a recording is: its squared distance in standard deviations is
    1 on average; rows count as independent.
    """
    mean = found.mean.detach()
    sd = found.std.detach()
    distance = float((((sample - mean) / sd)[sd > 0] ** 2).mean())
    rows = len(sd) if sd.ndim else 1
    contradicted = distance > 1 + SIGNIFICANT * math.sqrt(2 / rows)
    return contradicted or not _reaches(found, PLAN.doubtful)


def group_deviations(found: Moments, sums: SampleSums) -> list[Tensor]:
    """Return how far each group of samples is from propagated moments: (groups, outputs) of both.

    Outputs that never varied count as right.
    """
    mean, sd = found.mean.double(), found.std.double()
    seen = sums.variance > 0
    both = sums.group_deviations(mean, sd.where(sd > 0, 1.0))
    return [torch.where(seen, groups, 0.0).flatten(1) for groups in both]


def squared_bias(groups: Tensor) -> tuple[float, float]:
    """Return the mean squared bias by products of different groups, and its standard error."""
    count = len(groups)
    gram = groups @ groups.T / groups.shape[1]
    products = gram.fill_diagonal_(0.0) / (count * (count - 1))
    return float(products.sum()), math.sqrt(2) * float(products.norm())


def combine_with_samples(found: Moments, sums: SampleSums) -> Moments:
    """Return the weighted mean of propagated and sampled moments, with its error estimate.

    With b the standard error of what was propagated and s that of what was sampled, the error that
    is left is e = (1 / b^2 + 1 / s^2)^(-1/2), and the sampled value has the weight e^2 / s^2.
    """
    mean, sd = found.mean.double(), found.std.double()
    sampled_sd = sums.variance.sqrt()
    if bool((sampled_sd[sd == 0] > 0).any()):
        return sums.moments("samples vary where no noise was propagated")
    seen = sampled_sd > 0
    unit = torch.where(sd > 0, sd, 1.0)
    firsts, squares = group_deviations(found, sums)
    of_mean, of_std = sums.relative_errors
    of_mean = of_mean * torch.where(seen, sampled_sd / unit, 1.0)
    away = torch.where(seen, (sums.mean - mean) / unit, 0.0)
    move, mean_left = _weigh(away, firsts, found.mean_error / unit / LEVEL, of_mean)
    away = torch.where(seen, sampled_sd / unit, 1.0).log()
    log, std_left = _weigh(away, squares, found.std_error / unit / LEVEL, of_std)
    scale = log.exp()
    # What no sample moved may be certain.
    mean_error = LEVEL * mean_left * unit
    mean_error = torch.where(
        seen, mean_error, mean_error.maximum((sums.mean - mean).abs())
    )
    std_error = LEVEL * std_left * scale * unit
    std_error = torch.where(seen, std_error, std_error.maximum(sd))
    like = found.mean
    if found.variance.shape == like.shape:
        variance = (scale * sd) ** 2
    else:  # covariances
        rows = scale.reshape(len(found.variance), -1)
        variance = found.variance * rows[:, :, None] * rows[:, None, :]
    return replace(
        found,
        mean=(mean + move * unit).to(like),
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
    squared, chance = squared_bias(groups)
    before = max(float((bias * bias).mean()), 1e-300)
    away = d.abs()
    if squared > SIGNIFICANT * chance:
        believe = torch.ones_like(d, dtype=torch.bool)
        bias = bias * math.sqrt(UNEVEN * squared / before)
        # Outputs differ in their bias: that of one may be as large as what is seen of it.
        bias = torch.maximum(bias, away)
    else:
        # A single output is believed if neither chance nor its error estimate explains it.
        farthest = math.sqrt(2 * math.log(20 * max(d.numel(), 1)))
        believe = away > torch.hypot(farthest * s, LEVEL * bias)
        # Samples can confirm that the bias is small, and say no more than that it may be larger.
        most = UNEVEN * (max(squared, 0.0) + 2 * chance)
        confirmed = bias * math.sqrt(min(most / before, 1.0))
        seen = torch.minimum(bias, away - LEVEL * s)
        bias = torch.where(believe, away, torch.maximum(confirmed, seen))
    left = (1 / bias**2 + 1 / s**2) ** -0.5
    return torch.where(believe, (left / s) ** 2 * d, 0.0), left.where(believe, bias)
