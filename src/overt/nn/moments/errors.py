"""How far carried moments may be off, and what samples do about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt.nn.moments.carry import Carried, Output, plain_output
from overt.nn.moments.result import LEVEL, Moments
from overt.nn.moments.samples import Samples

DOUBT = 0.2
"""Standard deviations that a linear map may be off where few numbers decide much."""


@dataclass(frozen=True, eq=False)
class Found:
    """What carrying gives: moments, None where there are none.

    `drawn` names the noises that call for samples, `one` is the pass itself if it was not replayed.
    """

    moments: Moments | None
    noises: tuple[str, ...]
    drawn: tuple[str, ...]
    linearized: tuple[str, ...]
    one: Carried | None = None

    def apart(self) -> tuple[list[Tensor], Callable[[list[Tensor]], Found]] | None:
        """Return all tensors, and a function that makes the same of others."""
        m = self.moments
        if m is None:
            return None

        def build(values: list[Tensor]) -> Found:
            names = ("mean", "variance", "mean_error", "std_error")
            return replace(light, moments=replace(blank, **dict(zip(names, values, strict=True))))

        # No tensor of this answer is held on to.
        blank = replace(m, mean=None, variance=None, mean_error=None, std_error=None)
        light = replace(self, moments=None, one=None)
        return [m.mean, m.variance, m.mean_error, m.std_error], build


def judged(model: nn.Module, x: Any, output: Output, one: Carried) -> Moments:
    """Return what was carried, and how far off it may be.

    The error grows with what non-linear functions do: the part of the variance that linear maps
    leave out, and how far the mean moves from the output without noise, over a row's outputs.
    """
    mean, exact, grad = one.output.mean, one.output.exact, torch.is_grad_enabled()
    noises, linearized = one.noises, tuple(one.tape.linearized)
    with torch.inference_mode(False), torch.set_grad_enabled(grad):
        variance, rest = one.parts()
        v, rest, m = variance.detach(), rest.detach(), mean.detach()
        sd = v.clamp(min=0).sqrt()
        rounding = 8 * torch.finfo(m.dtype).eps * (m.abs() + sd)
        errors = rounding, rounding
        if not exact:
            moved = (m - plain_output(model, x, output)) ** 2
            tiny = torch.finfo(v.dtype).tiny
            rows = v.reshape(len(v), -1).sum(1).clamp(min=tiny)
            shift = (moved.reshape(len(v), -1).sum(1) / rows).sqrt()
            shift = shift.reshape(-1, *[1] * (m.ndim - 1))
            bent = 0.2 * rest / v.clamp(min=tiny) + 0.25 * shift
            scale = sd * (3 if linearized else 1)
            errors = (0.05 + bent) * scale + rounding, (0.03 + bent) * scale + rounding
    return Moments(mean, variance, exact, noises, (), linearized, 0, *errors)


def corrected(carried: Found, samples: Samples) -> Moments:
    """Weigh what was carried and what was sampled by their errors.

    In units of the standard deviation, with d what was sampled minus what was carried, s the
    sampled standard error and b the carried one, d moves the result by the share b^2 / (b^2 + s^2),
    whose error is b s / sqrt(b^2 + s^2). The d of all outputs together say whether b was too small.
    Standard deviations are those that are nearer to what they have in common, with what was carried
    or with each other, where that should leave less.
    """
    found, drawn = carried.moments, carried.drawn
    how: Any = {"drawn": drawn, "linearized": carried.linearized}
    if found is None or found.mean_error is None:
        return samples.moments(shrunk=True, **how)
    sampled = samples.moments(**how)
    m0, m1, sd0, sd1 = map(_numbers, (found.mean, sampled.mean, found.std, sampled.std))
    sure, some = (sd0 > 0) & (sd1 > 0), sd1 > 0
    sd0, sd1 = (np.where(sure, sd, np.where(some, sd1, 1.0)) for sd in (sd0, sd1))
    errors = (_numbers(e) / sd0 / LEVEL for e in (found.mean_error, found.std_error))
    if drawn:
        errors = (np.maximum(3 * e, DOUBT) for e in errors)
    given = zip(((m1 - m0) / sd0, np.log(sd1 / sd0)), errors, samples.errors, strict=True)
    least = 0.25 if drawn else 1.0
    (away, of_mean), (ratio, of_std) = (_moved(*one, least, some) for one in given)
    if sure.all():
        for center in (np.log(sd0), 0.0):
            log, error = samples.shrunk(center)
            if error < of_std.mean():
                ratio, of_std = log - np.log(sd0), np.full_like(ratio, error)
    like = found.mean

    def back(value: Any) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(value)).to(like)

    scale = np.exp(2 * ratio) * some
    before = found.variance
    if not sure.all():
        before = torch.where(torch.from_numpy(sure).to(like.device), before, sampled.variance)
    variance = before * back(scale)
    sd = LEVEL * np.sqrt(np.maximum(_numbers(variance), 0.0))
    return Moments(like + back(away * sd0), variance, False, carried.noises, draws=samples.count,
                   mean_error=back(of_mean * sd), std_error=back(of_std * sd), **how)  # fmt: skip


def doubted(found: Moments, drawn: tuple[str, ...]) -> Moments:
    """Return what was carried where some noise calls for samples, and none are taken."""
    least = LEVEL * DOUBT * found.std
    errors = (torch.maximum(3 * e, least) for e in (found.mean_error, found.std_error))
    of_mean, of_std = errors
    return replace(found, drawn=drawn, mean_error=of_mean, std_error=of_std)


def _numbers(value: Tensor) -> Any:
    return value.detach().double().cpu().numpy()


def _moved(d: Any, b: Any, s: float, least: float, some: Any) -> tuple[Any, Any]:
    """Return the part of d to believe, and the error that is left; b^2 shrinks to `least` b^2.

    All of d where samples do not vary: only `some` outputs say how large b is.
    """
    if not some.any():
        return d, 0.0 * d
    rows = len(d) * min(3, d[0].size)  # outputs of a row are not independent
    b2, s2, prior = b * b, s * s, 3
    seen = ((d * d)[some].mean() - s2) / b2[some].mean()
    scale = 1.0
    for _ in range(4):  # the more b proves too small, the more d is worth
        worth = rows * (scale * b2 / (scale * b2 + s2))[some].mean() ** 2
        scale = max((prior + worth * seen) / (prior + worth), least)
    b2 = scale * b2
    return np.where(some, b2 / (b2 + s2), 1.0) * d, np.sqrt(b2 * s2 / (b2 + s2))
