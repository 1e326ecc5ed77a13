"""What so many passes of a model buy: samples alone, what is carried, or both.

Errors of samples fall with the root of their number; what is carried is off by as much as some
samples showed when prices were measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn

from overt.nn.data.models import modes, unwrap_model
from overt.nn.moments.balance import GROUPS
from overt.nn.moments.carry import Output, own
from overt.nn.moments.errors import Found, doubted
from overt.nn.moments.result import LEVEL, Moments
from overt.nn.moments.samples import Samples
from overt.nn.recording.watching import called, tensors

FEW, MANY = 10, 80
"""Samples by which their price is measured."""

LONG, LEAST = 200, 1.5
"""The most passes that a measurement may take, and the least that samples may cost, over what a
call costs without any."""

Price = tuple[tuple[float, float], ...]
"""Points (samples, seconds) of a line that bends."""


class Costs(NamedTuple):
    """Seconds: of a pass, of carrying and of samples.

    `off` and `stated` are the errors of mean and standard deviation as carried, as seen and by
    themselves; `spread` what they are of samples, times the root of how many.
    """

    one: float
    carried: float
    samples: Price
    off: tuple[float, float]
    stated: tuple[float, float]
    spread: tuple[float, float]

    def choice(self, passes: float) -> tuple[bool, int]:
        """Return whether to carry, and how many samples to take."""
        (few, low), (many, high) = self.samples[:2]
        fixed = low - few * (high - low) / (many - few)
        left = passes * self.one
        least = max(left, LEAST * fixed)  # what samples cost, so that carrying may as well
        n = max(2, _bought(least, self.samples))
        options = [(math.hypot(*self.spread) / math.sqrt(n), False, n)]
        if self.carried <= least:
            options.append((math.hypot(*self.off), True, 0))
        if (n := _bought(left - self.carried, self.samples)) >= FEW:
            both = map(partial(_both, n), self.off, self.stated, self.spread)
            options.append((math.hypot(*both), True, n))
        return min(options)[1:]


def _both(n: int, off: float, stated: float, spread: float) -> float:
    """Return the error of what was carried and n samples together, as `corrected` weighs them."""
    s2 = spread * spread / n
    share = stated * stated / (stated * stated + s2)
    return math.hypot(share * math.sqrt(s2), (1 - share) * off)


def costs(model: nn.Module, x: Any, output: Output, carry: Callable[[], Found]) -> Costs:
    """Return what things cost for inputs of this form, measured once for each."""

    def drawn(n: int) -> Samples:
        samples = Samples(model, x, output, covariance=False, quick=True)
        samples.draw(n)
        samples.moments(shrunk=True)
        return samples

    def ask() -> Costs:
        found, price, samples = carry(), list[tuple[float, float]](), drawn(2 * MANY)
        with torch.no_grad(), modes(model, noise=True):
            times = [_seconds(x, lambda: called(unwrap_model(model), own(x)), 1) for _ in range(9)]
        one = sorted(times)[4]  # some may skip layers
        for n in (FEW, MANY, 6 * MANY, 24 * MANY):
            price.append((n, _seconds(x, partial(drawn, n))))
            if n > FEW and 8 * price[-1][1] > LONG * one:
                break
        samples = drawn(n) if n > 2 * MANY else samples
        root = math.sqrt(samples.count)
        sampled = _stated(samples.moments(shrunk=True))
        spread = sampled[0] * root, sampled[1] * root
        if found.moments is None:
            never = math.inf, math.inf
            return Costs(one, math.inf, tuple(price), never, never, spread)
        stated = doubted(found.moments, found.drawn) if found.drawn else found.moments
        least, off = _stated(found.moments), _off(found.moments, samples)
        off = max(off[0], least[0] / 4), max(off[1], least[1] / 4)
        return Costs(one, _seconds(x, carry), tuple(price), off, _stated(stated), spread)

    known = _known.setdefault(model, {})
    key = (*((t.shape, t.dtype) for t in tensors(x)), torch.is_grad_enabled())
    if key not in known:
        known[key] = ask()
    return known[key]


_known: WeakKeyDictionary[nn.Module, dict[Any, Costs]] = WeakKeyDictionary()


def _stated(found: Moments) -> tuple[float, float]:
    """Return what typical errors are stated to be, over the standard deviation."""
    sd = found.std.clamp(min=torch.finfo(found.std.dtype).tiny)
    errors = found.mean_error, found.std_error
    of_mean, of_std = (float((e / sd).detach().median()) for e in errors)
    return max(of_mean, 1e-6) / LEVEL, max(of_std, 1e-6) / LEVEL


def _off(found: Moments, samples: Samples) -> tuple[float, float]:
    """Return how far what was carried is off samples, in squares less what these are off by.

    A standard error of that over a few rows is added: what looks exact need not be.
    """
    sampled, some = samples.moments(), found.std > 0
    if found.exact or not some.any():
        return 0.0, 0.0
    sd = found.std[some]
    away = (sampled.mean - found.mean)[some] / sd, sampled.std[some] / sd - 1
    pairs = zip(away, samples.errors, strict=True)
    squares = (max(float((a * a).mean()) - e * e, 0.0) + 0.4 * e * e for a, e in pairs)
    of_mean, of_std = map(math.sqrt, squares)
    return of_mean, of_std


def _bought(seconds: float, price: Price) -> int:
    """Return how many samples that buys, as many as divide into two good groups or more."""
    for (few, low), (many, high) in pairwise(price):
        # One more costs something, also where a clock went the other way by chance.
        each = max((high - low) / (many - few), high / many / 50, 1e-9)
        found = few + (seconds - low) / each
        if seconds <= high:
            break
    n = int(max(0.0, found))
    return n - n % next((size for size in GROUPS if n >= 2 * size), 1)


def _seconds(x: Any, run: Callable[[], Any], repeat: int = 5) -> float:
    """Return the least CPU time of a call after a first one, or time where another device works."""
    cuda = any(t.is_cuda for t in tensors(x))

    def now() -> float:
        if not cuda:
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    run()
    best = math.inf
    for _ in range(repeat):
        start = now()
        run()
        best = min(best, now() - start)
    return best
