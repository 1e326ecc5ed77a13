"""Mean and variance of a network's output under its noise, without sampling where possible."""

from __future__ import annotations

from dataclasses import dataclass
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
from overt.nn.moments.combine import combine_with_samples, contradicts, estimate_errors
from overt.nn.moments.monte_carlo import Moments, SampleSums, add_samples
from overt.nn.moments.propagate import decompose, propagate_with_corrections


@dataclass(frozen=True)
class SamplingPlan:
    """Default numbers of samples."""

    alone: int = 400
    """Where a model cannot be propagated: standard deviations are then 3 to 4 % off."""
    check: int = 200
    """Where propagated moments are doubtful: standard deviations are corrected to 5 %."""
    doubtful: float = 0.35
    """Error estimate, in standard deviations, above which these samples are taken: below it as many
    samples as cost the same would be no better."""
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
    propagated, and correct it if they contradict it. The model, the inputs and all random
    generators are left as they were.

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
        the model cannot be propagated, 200 where the error estimate is above .35 standard
        deviations or the recorded pass contradicts it, else none.
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
            enough = draws is None and _reaches(found, tol or PLAN.doubtful)
            if tol is None and contradicts(found, recording.output):
                enough = False
            if found.exact or propagated_only or enough:
                return found
            sums = SampleSums(shift=found.mean)
            if draws is None and tol is None:
                most = PLAN.check
        while True:
            step = most if tol is None else max(PLAN.check, sums.count)
            add_samples(sums, saved, recording, x, output, min(step, most - sums.count))
            result = (
                combine_with_samples(found, sums) if found else sums.moments(reason)
            )
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
        found.covariances() if covariance else found.variances[0],
        found.exact,
        recording.noises,
        linearized=tuple(found.run.unknown),
        mean_error=mean_error,
        std_error=std_error,
    )


def _reaches(found: Moments, tol: float) -> bool:
    return found.reached is not None and found.reached <= tol
