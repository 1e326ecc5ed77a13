"""Mean and variance of a model's output by sampling: Monte Carlo dropout."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt import _check
from overt._check import InputError
from overt._io import as_numpy
from overt._progress import meter
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
from overt.results import Result

LEVEL = 2.0
"""Standard errors in an error estimate, which should hold for about 95 of 100 outputs."""

SHOW_PROGRESS_FROM = 256
"""Samples from which on progress is shown."""

ENOUGH_TO_SEE_NOISE = 64
"""Passes of which one shows noise if there is any; fewer may agree by chance."""

MAX_GROUPS = 64
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
    linearized
        Operations that overt has no rule for, whose moments come from a few local samples.
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
    linearized: tuple[str, ...] = ()
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
        sd, *errors = (
            np.asarray(
                as_numpy(value.double() if hasattr(value, "double") else value)
            ).ravel()
            for value in (self.std, self.mean_error, self.std_error)
        )
        varies = sd > 0
        relative = np.maximum(*errors)[varies] / sd[varies]
        return float(np.quantile(relative, 0.9)) if relative.size else 0.0

    def __iter__(self) -> Iterator[Any]:
        return iter((self.mean, self.variance))


class SampleSums:
    """Sums over samples in double precision, from which all moments and their errors come.

    The sums of first and second powers are stored by group, about a common shift.
    """

    def __init__(
        self, *, covariance: bool = False, shift: Tensor | None = None
    ) -> None:
        self.count = 0
        self.shift = None if shift is None else shift.detach().double()
        self.groups: list[tuple[int, Tensor, Tensor]] = []
        self.group_size = 1
        self._third = self._fourth = self._products = torch.zeros(())
        self._covariance = covariance
        self.low = math.inf
        self.high = -math.inf

    def add(self, y: Tensor) -> None:
        """Add samples of shape (samples, *output)."""
        if self.shift is None:
            self.shift = y[0]
        z = y - self.shift
        self.count += len(z)
        self.low = min(self.low, float(y.amin()))
        self.high = max(self.high, float(y.amax()))
        self._add_to_groups(z)
        self._third = self._third + (z**3).sum(0)
        self._fourth = self._fourth + (z**4).sum(0)
        if self._covariance:
            flat = z.reshape(len(z), len(z[0]) if z[0].ndim else 1, -1)
            self._products = self._products + torch.einsum("nrk,nrl->rkl", flat, flat)

    def _add_to_groups(self, z: Tensor) -> None:
        """Fill groups up; only the last one may be incomplete."""
        while len(z):
            if not self.groups or self.groups[-1][0] >= self.group_size:
                self.groups.append((0, torch.zeros_like(z[0]), torch.zeros_like(z[0])))
            count, first, second = self.groups[-1]
            part = z[: self.group_size - count]
            z = z[len(part) :]
            sums = (first + part.sum(0), second + (part * part).sum(0))
            self.groups[-1] = (count + len(part), *sums)
            if len(self.groups) > MAX_GROUPS:
                self._merge_groups()

    def _merge_groups(self) -> None:
        self.group_size *= 2
        pairs = zip(self.groups[::2], self.groups[1::2], strict=False)
        rest = self.groups[len(self.groups) // 2 * 2 :]
        self.groups = [
            tuple(a + b for a, b in zip(*pair, strict=True)) for pair in pairs
        ] + rest

    def _power(self, k: int) -> Tensor:
        """Return the mean k-th power about the shift."""
        if k <= 2:
            return torch.stack([group[k] for group in self.groups]).sum(0) / self.count
        return (self._third if k == 3 else self._fourth) / self.count

    @property
    def mean(self) -> Tensor:
        """The mean of all samples."""
        assert self.shift is not None  # noqa: S101 (for the type checker)
        return self.shift + self._power(1)

    @property
    def variance(self) -> Tensor:
        """The unbiased variance."""
        square = self._power(2)
        centered = square - self._power(1) ** 2
        # The difference of equal numbers is rounding, not variance.
        centered = torch.where(centered > 1e-13 * square, centered, 0.0)
        return centered * self.count / max(self.count - 1, 1)

    @property
    def covariance(self) -> Tensor:
        """The unbiased covariances of each row's outputs, (rows, outputs, outputs)."""
        away = self._power(1)
        away = away.reshape(len(away) if away.ndim else 1, -1)
        outer = away[:, :, None] * away[:, None, :]
        return (
            (self._products / self.count - outer) * self.count / max(self.count - 1, 1)
        )

    @property
    def kurtosis(self) -> Tensor:
        """E (y - m)^4 / Var(y)^2 of each output, at least that of a typical one."""
        d = self._power(1)
        fourth = (
            self._power(4)
            - 4 * d * self._power(3)
            + 6 * d**2 * self._power(2)
            - 3 * d**4
        )
        variance = self.variance
        varies = variance > 0
        if not bool(varies.any()):
            return torch.full_like(variance, 3.0)
        found = torch.where(varies, fourth / variance.clamp(min=1e-300) ** 2, 0.0)
        typical = float(found[varies].mean())
        return found.clamp(min=max(typical, 1.5))

    @property
    def relative_errors(self) -> tuple[float, Tensor]:
        """Standard errors of mean and standard deviation, over the standard deviation."""
        free = max(self.count - 1, 1)
        return 1 / math.sqrt(self.count), ((self.kurtosis - 1) / 4 / free).sqrt()

    @property
    def errors(self) -> tuple[Tensor, Tensor]:
        """How far mean and standard deviation may be off, in about 95 of 100 outputs."""
        of_mean, of_std = self.relative_errors
        free = max(self.count - 1, 1)
        # Few samples do not know their standard deviation: Student's quantiles.
        sd = (1 + 1.24 / free + 4 / free**3) * LEVEL * self.variance.sqrt()
        # What was always the same may still be random, by the range of what was seen.
        rare = min(NEVER_SEEN / self.count, 1.0)
        scale = self.high - self.low
        constant = self.variance == 0
        mean_error = torch.where(constant, rare * scale, sd * of_mean)
        return mean_error, torch.where(constant, math.sqrt(rare) * scale, sd * of_std)

    def moments(self, like: Tensor, **how: Any) -> Moments:
        """Return the result, in the number format of `like`."""
        mean_error, std_error = (error.to(like) for error in self.errors)
        variance = self.covariance if self._covariance else self.variance
        return Moments(
            self.mean.to(like),
            variance.to(like),
            exact=False,
            draws=self.count,
            mean_error=mean_error,
            std_error=std_error,
            **how,
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
    n = _check.whole("n", n, minimum=2)
    seed = None if seed is None else _check.whole("seed", seed, minimum=0)
    sums = SampleSums(covariance=covariance)
    shown = (
        meter("Monte Carlo dropout", n) if n >= SHOW_PROGRESS_FROM else nullcontext()
    )
    with untouched(model) as saved, torch.inference_mode(False), shown as bar:
        seed_all(secrets.randbits(62) if seed is None else seed)
        like = take_samples(saved, x, output, n, sums, bar)
        if not bool(sums.variance.any()) and n < ENOUGH_TO_SEE_NOISE:
            more = SampleSums()
            take_samples(saved, x, output, ENOUGH_TO_SEE_NOISE, more)
            _check_noise(more)
        else:
            _check_noise(sums)
    return sums.moments(like, drawn=("all",))


def _check_noise(sums: SampleSums) -> None:
    if not bool(sums.variance.any()):
        raise InputError(
            "model has no noise that any of the passes has shown: nothing to sample"
        )


def record_to_sample(saved: SavedState, x: Any, output: Output) -> Recording | None:
    """Return a recording that can be sampled from, None if the model must be called."""
    try:
        recording = record(saved, x, output)
        check_for_hidden_noise(recording, saved, x, output, "running")
    except UnsupportedError:
        return None
    return recording


def take_samples(
    saved: SavedState,
    x: Any,
    output: Output,
    count: int,
    sums: SampleSums,
    progress: Any = None,
) -> Tensor:
    """Add samples to the sums; return an empty tensor in the number format of the output."""
    recording = record_to_sample(saved, x, output)
    try:
        like = saved.plain_pass(x, output) if recording is None else recording.output
        for part in sample(saved, recording, x, output, count):
            sums.add(part)
            if progress is not None:
                progress.advance(len(part))
    except InputError:
        raise
    except UnsupportedError as error:
        raise InputError(f"model cannot be sampled: {error}") from error
    except Exception as error:
        raise_if_model_fails(saved.model, x, output, error)
        raise
    if saved.interrupts.pending:
        raise KeyboardInterrupt
    return like.detach()
