"""Mean and variance of a model's output by sampling: Monte Carlo dropout."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from overt._check import InputError, whole
from overt.nn.graph.record import Recording, UnsupportedError, record_noise, sample
from overt.nn.graph.state import (
    Output,
    SavedState,
    check_call,
    never_compiled,
    raise_if_model_fails,
    seed_all,
    untouched,
)
from overt.results import Result

LEVEL = 2.0
"""Standard errors in an error estimate, which should hold for about 95 of 100 outputs."""

ENOUGH_TO_SEE_NOISE = 64
"""Passes of which one shows noise if there is any; fewer may agree by chance."""

GROUPS = 16
"""Groups of samples whose sums are stored: they show how far results are off by chance."""

NEVER_SEEN = 3.0
"""An event that n samples do not show has a probability of at most 3 / n, in 95 of 100 cases."""


@dataclass(frozen=True, repr=False, eq=False)
class Moments(Result):
    """Mean and variance of an output; unpacks as (mean, variance).

    Attributes
    ----------
    mean, variance
        Shaped like the output; the variance is (batch, outputs, outputs) with
        `covariance=True`.
    exact
        Whether both are exact: only affine maps follow the noise.
    method
        "propagated", "propagated and sampled" (samples correct what was propagated) or "sampled".
    propagated, drawn
        Names of the noises that were propagated, and of those that were sampled: ("all",) if the
        model cannot be propagated.
    draws
        Number of samples; 0 if none were taken.
    mean_error, std_error
        Error estimates of mean and standard deviation, shaped like the output: the true value is
        no farther away in about 95 of 100 outputs.
    reason
        Why the model had to be sampled, in words; empty if it was propagated.
    """

    mean: Tensor
    variance: Tensor
    exact: bool
    propagated: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()
    draws: int = 0
    mean_error: Tensor | Any = None
    std_error: Tensor | Any = None
    reason: str = ""

    @property
    def method(self) -> str:
        """How the moments were obtained."""
        if not self.draws:
            return "propagated"
        return "propagated and sampled" if self.propagated else "sampled"

    @property
    def std(self) -> Any:
        """Standard deviations."""
        variance = self.variance
        if variance.shape != self.mean.shape:
            variance = variance.diagonal(0, -2, -1).reshape(self.mean.shape)
        return variance.clip(min=0) ** 0.5

    @property
    def reached(self) -> float | None:
        """The error estimates over the standard deviation: at most this in 90 of 100 outputs."""
        if self.mean_error is None:
            return None
        # A result that was loaded has arrays.
        parts = (self.std, self.mean_error, self.std_error)
        sd, *errors = (torch.as_tensor(part).detach().double() for part in parts)
        relative = (torch.maximum(*errors) / sd)[sd > 0].sort().values
        return float(relative[int(0.9 * len(relative))]) if len(relative) else 0.0

    def __iter__(self) -> Iterator[Any]:
        return iter((self.mean, self.variance))


class SampleSums:
    """Sums over samples in double precision, from which all moments and their errors come.

    Sums of y and y^2 are about a common shift, and by group; `low` and `high` are the extremes of
    all outputs.
    """

    def __init__(
        self, *, covariance: bool = False, shift: Tensor | None = None
    ) -> None:
        self.count = 0
        self.shift = shift
        self.dtype = torch.float32
        self.low = math.inf
        self.high = -math.inf
        self._covariance = covariance
        self._products: Any = 0.0
        self._sums: list[Any] = [0.0, 0.0]

    def add(self, y: Tensor) -> None:
        """Add samples of shape (samples, *output)."""
        # Variances of half-precision outputs overflow at outputs of 256.
        self.dtype = torch.promote_types(torch.float32, y.dtype)
        y = y.double()
        if self.shift is None:
            self.shift = y[0]
        z = y - self.shift.detach().double()
        group = (self.count + torch.arange(len(z), device=z.device)) % GROUPS
        empty = z.new_zeros(GROUPS, *z.shape[1:])
        self._sums[0] = self._sums[0] + empty.index_add(0, group, z)
        self._sums[1] = self._sums[1] + empty.index_add(0, group, z * z)
        self.count += len(z)
        self.low = min(self.low, float(y.amin()))
        self.high = max(self.high, float(y.amax()))
        if self._covariance:
            flat = z.reshape(len(z), len(z[0]) if z[0].ndim else 1, -1)
            self._products = self._products + torch.einsum("nrk,nrl->rkl", flat, flat)

    def group_deviations(self, mean: Tensor, sd: Tensor) -> tuple[Tensor, Tensor]:
        """Return how far each group is from other moments, in standard deviations.

        Both are of shape (groups, *output): of means, and of squared distances over 2.
        """
        counts = (torch.arange(self.count) % GROUPS).bincount().to(sd)
        counts = counts.reshape(-1, *[1] * sd.ndim)
        first, second = (sums[: len(counts)] / counts for sums in self._sums)
        center = self._move
        about_mean = second - 2 * center * first + center**2
        ratio = about_mean * self.count / (self.count - 1) / sd**2
        return (self.shift + first - mean) / sd, (ratio - 1) / 2

    @property
    def _move(self) -> Tensor:
        """The mean about the shift."""
        move: Tensor = self._sums[0].sum(0) / self.count
        return move

    @property
    def mean(self) -> Tensor:
        """The mean of all samples."""
        return self.shift + self._move

    @property
    def variance(self) -> Tensor:
        """The unbiased variance."""
        square = self._sums[1].sum(0) / self.count
        centered = square - self._move**2
        # The difference of equal numbers is rounding, not variance; NaN stays NaN.
        centered = torch.where(centered <= 1e-13 * square, 0.0, centered)
        return centered * self.count / (self.count - 1)

    @property
    def covariance(self) -> Tensor:
        """The unbiased covariances of each row's outputs, (rows, outputs, outputs)."""
        away = self._move.reshape(len(self._products), -1)
        outer = self.count * away[:, :, None] * away[:, None, :]
        return (self._products - outer) / (self.count - 1)

    @property
    def relative_errors(self) -> tuple[Tensor, Tensor]:
        """Standard errors of mean and standard deviation, over the standard deviation.

        The latter is seen between groups, and is at least that of a typical output; outputs that
        never varied have none.
        """
        sd = self.variance.sqrt()
        varies = sd > 0
        _, squares = self.group_deviations(self.mean, sd.where(varies, 1.0))
        of_std = squares.std(0) / math.sqrt(len(squares))
        typical = float((of_std[varies] ** 2).mean().sqrt()) if varies.any() else 0.0
        of_mean = torch.full_like(sd, 1 / math.sqrt(self.count))
        unseen = torch.full_like(sd, math.inf)
        return of_mean.where(varies, unseen), of_std.clamp(min=typical).where(
            varies, unseen
        )

    @property
    def errors(self) -> tuple[Tensor, Tensor]:
        """How far mean and standard deviation may be off, in about 95 of 100 outputs."""
        free = self.count - 1
        # Few samples do not know their standard deviation: Student's quantiles.
        sd = (1 + 1.24 / free + 4 / free**3) * LEVEL * self.variance.sqrt()
        # What was always the same may still be random, by the range of what was seen.
        rare = min(NEVER_SEEN / self.count, 1.0)
        scale = self.high - self.low
        of_mean, of_std = self.relative_errors
        mean_error = torch.where(sd == 0, rare * scale, sd * of_mean)
        return mean_error, torch.where(sd == 0, math.sqrt(rare) * scale, sd * of_std)

    def moments(self, reason: str = "") -> Moments:
        """Return the result, in the samples' number format, at least single precision."""
        variance = self.covariance if self._covariance else self.variance
        found = (self.mean, variance, *self.errors)
        mean, variance, mean_error, std_error = (t.to(self.dtype) for t in found)
        return Moments(
            mean,
            variance,
            exact=False,
            drawn=("all",),
            draws=self.count,
            mean_error=mean_error,
            std_error=std_error,
            reason=reason,
        )


@never_compiled
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
    which uses its running statistics. One pass is recorded, and only what is random runs n times,
    many samples at once; a model whose noise decides what runs is called n times. Sums are in
    double precision, and the variance is unbiased. The model and all random generators are left as
    they were.

    Parameters
    ----------
    model, x, output, covariance
        As in `predictive_moments`.
    n
        Number of samples.
    seed
        The same seed gives the same samples; None: others in each call.

    Examples
    --------
    >>> import torch
    >>> from overt.nn import mc_moments
    >>> model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(2, 1, bias=False))
    >>> _ = torch.nn.init.ones_(model[1].weight)
    >>> found = mc_moments(model, torch.tensor([[3.0, 1.0]]), 1000, seed=0)
    >>> abs(found.variance.item() - 10) < found.std_error.item() * 2 * 10**0.5
    True
    """
    model = check_call(model, x, output)
    n = whole("n", n, minimum=2)
    seed = None if seed is None else whole("seed", seed, minimum=0)
    sums = SampleSums(covariance=covariance)
    seen = sums
    with untouched(model) as saved, torch.inference_mode(False):
        seed_all(secrets.randbits(62) if seed is None else seed)
        try:
            recording = record_noise(saved, x, output)
        except UnsupportedError:
            recording = None
        add_samples(sums, saved, recording, x, output, n)
        if not bool(sums.variance.any()) and n < ENOUGH_TO_SEE_NOISE:
            seen = SampleSums()
            add_samples(seen, saved, recording, x, output, ENOUGH_TO_SEE_NOISE)
    # Noise may also be multiplied by 0 for every input given, as where all units are closed.
    noisy = recording is not None and any(call.noise for call in recording.calls)
    if not noisy and not bool(seen.variance.any()):
        raise InputError(
            "model has no noise that any of the passes has shown: nothing to sample"
        )
    return sums.moments()


def add_samples(
    sums: SampleSums,
    saved: SavedState,
    recording: Recording | None,
    x: Any,
    output: Output,
    count: int,
) -> None:
    """Add samples over a recording, or of passes of the model if there is none, to the sums."""
    try:
        for part in sample(saved, recording, x, output, count):
            sums.add(part)
    except InputError:
        raise
    except UnsupportedError as error:
        raise InputError(f"model cannot be sampled: {error}") from error
    except Exception as error:
        raise_if_model_fails(saved.model, x, output, error)
        raise
    if saved.interrupts.pending:
        raise KeyboardInterrupt
