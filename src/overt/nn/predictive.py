"""Mean and variance of a network's output under its noise, without sampling where possible."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from overt import _check
from overt._check import InputError
from overt.nn.data.rng import seeded
from overt.nn.moments.budget import costs
from overt.nn.moments.carry import (
    UNSEEN,
    Carried,
    Output,
    carry,
    checked,
    hidden_randomness,
)
from overt.nn.moments.errors import Found, corrected, doubted, judged
from overt.nn.moments.plans import unrecorded
from overt.nn.moments.replays import replayed
from overt.nn.moments.result import Moments
from overt.nn.moments.samples import Samples

DRAWS, MOST = 400, 12_800
"""Samples where some noise cannot be carried, and the most that a tolerance may cost."""

CHECKS = 40
"""Samples of a few rows that check what was carried; half as many of more rows."""

OPEN, SURE = 0.12, 0.1
"""The stated error, in standard deviations, above which what was carried calls for samples, and
that at which samples end that are called for."""


def predictive_moments(
    model: nn.Module,
    x: Any,
    *,
    output: Output = None,
    covariance: bool = False,
    tol: float | None = None,
    draws: int | None = None,
    passes: float | None = None,
) -> Moments:
    """Return the mean and variance of model(x) when its noise is on.

    Forward, each tensor has a mean and a variance per entry, and a non-linear function is replaced
    by the affine map of least squares at N(mean, variance) plus a rest; backward, the gradients of
    the outputs at all sources of noise, with those slopes, are squared and summed. For noise before
    a last affine part both moments are exact: for a linear layer U on activations a,
    Var(o_k) = sum_ij Gamma_ij U_ki a_i U_kj a_j (structured dropout, Lemma 3.1; thesis, Proposition
    5). Where something random cannot be carried (dropout inside an LSTM, a coin that decides what
    runs, coins for whole rows) the model is sampled, many copies to a pass with draws balanced
    among them, what was carried is weighed with that, and the result says so. What is not exact is
    checked by a few samples, which show biases that outputs have in common. Sampled standard
    deviations are drawn towards what rows and outputs have in common, by two standard errors at
    most. The result also says how far off it may be.

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
    tol
        Sample until the stated errors of mean and standard deviation are at most this many standard
        deviations in 90 of 100 outputs; the result's `reached` says what they are.
    draws
        How many samples to take, 0 for none; or with `tol` the most (12,800). By default what was
        carried is checked by 20 or 40, and up to 400 are taken where these or the noise call for
        more.
    passes
        Spend about what so many passes of the model on x cost: on samples alone, on carrying, or on
        both, whichever should come closest. Prices are measured in the first call.

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
    model = checked(model, x, output)
    tol = None if tol is None else _check.number("tol", tol, exclusive=True)
    draws = None if draws is None else _check.whole("draws", draws, minimum=0)
    if draws == 1:
        raise InputError("draws must be 0 or at least 2, got 1")
    carried = None
    if passes is not None:
        passes = _check.number("passes", passes, exclusive=True)
        if tol is not None or draws is not None:
            raise InputError(f"passes must come without tol and draws, got passes={passes:g} too")
        paid = costs(model, x, output, lambda: _carried(model, x, output, False))
        wanted, draws = paid.choice(passes)
        carried = None if wanted else Found(None, (), ("all",), ())
    carried = carried or _carried(model, x, output, covariance)
    found, drawn = carried.moments, carried.drawn
    if passes is not None and draws == 0 and found is None:  # prices were of another model
        draws = max(2, int(passes))
    if found is not None and found.exact and not drawn:
        return replace(found, variance=carried.one.covariances()) if carried.one else found
    if draws == 0 and found is None:
        raise InputError(
            f"draws must be at least 2 where {', '.join(drawn)} cannot be carried, got 0"
        )
    together = covariance and (found is None or bool(drawn))
    if together:
        carried = replace(carried, moments=None)
    samples = Samples(model, x, output, covariance=together, quick=passes is not None)
    # What was carried is corrected by the same draws each time.
    with seeded(None if found is None else 0):
        result = _sampled(carried, samples, tol, draws)
    if covariance and found is not None and carried.one is not None and not together:
        return _joint(result, found, carried.one)
    return result


def _carried(model: nn.Module, x: Any, output: Output, covariance: bool) -> Found:
    """Carry moments through the model, as it was done before where that holds."""

    def make() -> Found:
        one = carry(model, x, output=output)
        with unrecorded():
            hidden = hidden_randomness(model, x, output, one)
        drawn = tuple(name for name in one.noises if name in one.to_draw | set(one.tape.rough))
        drawn += (UNSEEN,) if hidden and not one.drawn else ()
        drawn += tuple(name for name in one.drawn if name not in drawn)
        found = None
        if not one.drawn and not hidden:
            found = _judged(model, x, output, one)
            drawn = drawn if found is not None else one.noises
        return Found(found, one.noises, drawn, tuple(one.tape.linearized), one)

    if covariance:
        return make()
    found: Found = replayed(model, x, output, make, Found.apart)
    return replace(found, one=None)


def _judged(model: nn.Module, x: Any, output: Output, one: Carried) -> Moments | None:
    """Return what was carried, None where it leaves a function's range or cannot come back."""
    try:
        found = judged(model, x, output, one)
    except RuntimeError:  # a derivative that an operation does not have
        return None
    return found if bool(torch.isfinite(found.variance).all()) else None


def _sampled(carried: Found, samples: Samples, tol: float | None, draws: int | None) -> Moments:
    """Correct what was carried by as many samples as are asked for, or as the goal needs."""
    found, drawn = carried.moments, carried.drawn
    few = found is not None and not drawn
    if found is not None and draws == 0:
        return doubted(found, drawn) if drawn else found
    if draws is not None and tol is None:
        samples.draw(draws)
        return corrected(carried, samples)
    most = draws or (DRAWS if tol is None else MOST)
    goal = tol if tol is not None else OPEN if few else SURE
    if found is not None and not drawn:
        samples.draw(min(most, CHECKS if len(found.mean) <= 8 else CHECKS // 2))
    else:
        samples.draw(min(most, 160))
    result = corrected(carried, samples)
    if few and _within(result, goal):
        return replace(result, draws=0, checks=samples.count)
    while not _within(result, goal):
        more = min(samples.count, most - samples.count)
        if not (more := more - more % samples.copies):
            break
        samples.draw(more)
        result = corrected(carried, samples)
    return result


def _joint(result: Moments, found: Moments, one: Carried) -> Moments:
    """Return covariances as carried, with the deviations that samples have corrected."""
    scale = result.std / found.std.clamp(min=torch.finfo(found.std.dtype).tiny)
    scale = scale.reshape(len(scale), -1)
    return replace(result, variance=one.covariances() * scale[:, :, None] * scale[:, None, :])


def _within(found: Moments, tol: float) -> bool:
    return found.exact or (found.reached is not None and found.reached <= tol)
