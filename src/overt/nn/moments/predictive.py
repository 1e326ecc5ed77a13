"""Mean and variance of a network's output under its noise, without sampling where possible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from overt import _check
from overt._check import InputError
from overt.nn.graph.record import (
    Recording,
    UnsupportedError,
    check_for_hidden_noise,
    record,
)
from overt.nn.graph.replay import sample
from overt.nn.graph.state import (
    Output,
    SavedState,
    check_call,
    never_compiled,
    raise_if_model_fails,
    seed_all,
    untouched,
)
from overt.nn.moments.combine import combine_with_samples, contradicts, estimate_errors
from overt.nn.moments.monte_carlo import Moments, SampleSums
from overt.nn.moments.propagate import decompose, propagate_with_corrections


@dataclass(frozen=True)
class SamplingPlan:
    """Default numbers of samples."""

    default: int = 400
    """Where a model cannot be propagated: standard deviations are then 3 to 4 % off."""
    most: int = 12_800
    """The most that `tol` may cost."""
    first: int = 100
    """Samples that check doubtful moments: more are taken only if these contradict them."""
    doubtful: float = 0.3
    """Error estimate, in standard deviations, above which samples are taken: below it 40 samples
    would be no better, and cost as much as propagating."""
    enough: float = 0.15
    """Error estimate at which these samples end."""


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
        the model cannot be propagated; 100 where the error estimate is above .3 standard
        deviations, and up to 400 if these contradict what was propagated.
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
    tol = None if tol is None else _check.number("tol", tol, exclusive=True)
    draws = None if draws is None else _check.whole("draws", draws, minimum=0)
    seed = _check.whole("seed", seed, minimum=0)
    if draws == 1:
        raise InputError("draws must be 0 or at least 2, got 1")
    with untouched(model) as saved, torch.inference_mode(False):
        seed_all(seed)
        call = _Call(saved, x, output, covariance)
        recording = None
        try:
            recording = call.record()
            found = call.propagate(recording, differentiable)
        except UnsupportedError as error:
            if draws == 0 or differentiable:
                raise_if_model_fails(model, x, output, error)
                raise InputError(
                    f"the model's moments cannot be propagated, because {error}; take samples with "
                    "draws=400, and differentiable=False"
                ) from error
            return call.sample_alone(recording, tol, draws, str(error))
        if found.exact or draws == 0 or differentiable:
            return found
        return call.correct(recording, found, tol, draws)


@dataclass(frozen=True)
class _Call:
    """The arguments of one call, and the steps that answer it."""

    saved: SavedState
    x: Any
    output: Output
    covariance: bool

    def record(self) -> Recording:
        """Return a recording of all that is random."""
        recording = record(self.saved, self.x, self.output, decompose=decompose)
        check_for_hidden_noise(recording, self.saved, self.x, self.output, "running")
        return recording

    def propagate(self, recording: Recording, grad: bool) -> Moments:
        """Return the propagated moments of a recording."""
        found = propagate_with_corrections(recording, grad)
        if not found.finite:
            raise UnsupportedError("moments leave the range of numbers")
        clean = recording.output
        if not found.exact:
            clean = self.saved.plain_pass(self.x, self.output, noise=False)
        mean_error, std_error = estimate_errors(found, clean)
        return Moments(
            found.mean,
            found.covariances() if self.covariance else found.variances[0],
            found.exact,
            recording.noises,
            linearized=tuple(found.run.unknown),
            mean_error=mean_error,
            std_error=std_error,
        )

    def sample_alone(
        self,
        recording: Recording | None,
        tol: float | None,
        draws: int | None,
        reason: str,
    ) -> Moments:
        """Return sampled moments of a model that cannot be propagated."""
        sums = SampleSums(covariance=self.covariance)
        like = self._first_pass()
        most = draws or (PLAN.default if tol is None else PLAN.most)
        self._add(sums, recording, most if tol is None else min(most, PLAN.default))
        found = sums.moments(like, drawn=("all",), reason=reason)
        while tol is not None and not _within(found, tol) and sums.count < most:
            self._add(sums, recording, min(sums.count, most - sums.count))
            found = sums.moments(like, drawn=("all",), reason=reason)
        return found

    def correct(
        self, recording: Recording, found: Moments, tol: float | None, draws: int | None
    ) -> Moments:
        """Return propagated moments, corrected by samples if requested or needed."""
        goal = PLAN.doubtful if tol is None else tol
        contradicted = contradicts(found, recording.output)
        if (
            draws is None
            and _within(found, goal)
            and not (contradicted and tol is None)
        ):
            return found
        sums = SampleSums(shift=found.mean)
        if draws is not None and tol is None:
            self._add(sums, recording, draws)
            return combine_with_samples(found, sums)
        most = draws or (PLAN.default if tol is None else PLAN.most)
        goal = PLAN.enough if tol is None else tol
        self._add(sums, recording, min(most, PLAN.first))
        result = combine_with_samples(found, sums)
        while not _within(result, goal) and sums.count < most:
            if tol is None and _unchanged(result, found):
                break
            self._add(sums, recording, min(sums.count, most - sums.count))
            result = combine_with_samples(found, sums)
        return result

    def _first_pass(self) -> Tensor:
        try:
            return self.saved.plain_pass(self.x, self.output)
        except Exception as error:
            raise_if_model_fails(self.saved.model, self.x, self.output, error)
            raise

    def _add(self, sums: SampleSums, recording: Recording | None, count: int) -> None:
        try:
            for part in sample(self.saved, recording, self.x, self.output, count):
                sums.add(part)
        except UnsupportedError as error:
            raise InputError(f"model cannot be sampled: {error}") from error
        if self.saved.interrupts.pending:
            raise KeyboardInterrupt


def _unchanged(result: Moments, found: Moments) -> bool:
    """Whether samples did not contradict what was propagated; there is rounding in between."""
    pairs = ((result.mean, found.mean), (result.std, found.std))
    return all(torch.allclose(a, b, rtol=1e-5, atol=0.0) for a, b in pairs)


def _within(found: Moments, tol: float) -> bool:
    return found.exact or (found.reached is not None and found.reached <= tol)
