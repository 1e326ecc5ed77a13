"""What so many passes of a model buy: samples alone, what is carried, or both.

In standard deviations, n samples are off by about sqrt(3 / (2 n)) in mean and standard deviation
together, and what is carried by as much as some samples showed when prices were measured.
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

from overt.nn.moments.carry import Output, own
from overt.nn.moments.errors import Found, doubted
from overt.nn.moments.result import LEVEL, Moments
from overt.nn.moments.samples import Samples
from overt.nn.recording.modes import modes, unwrapped
from overt.nn.recording.watching import called, tensors

LONG = 200
"""The most passes that a measurement may take."""

FEW, MANY = 8, 64
"""Samples by which their price is measured."""

Price = tuple[tuple[float, float], ...]
"""Points (samples, seconds) of a line that bends."""


class Costs(NamedTuple):
    """Seconds: of a pass, of carrying, of samples alone and beside it.

    `off` and `stated` are the errors of what is carried, as seen and by itself; `followed` is the
    share of variance that it explains.
    """

    one: float
    carried: float
    alone: Price
    beside: Price
    off: float
    stated: float
    followed: float

    def choice(self, passes: float) -> tuple[bool, int]:
        """Return whether to carry, and how many samples to take."""
        left = passes * self.one
        options = [(math.sqrt(1.5 / n), False, n) for n in [max(2, _bought(left, self.alone))]]
        if self.carried <= left:
            options.append((self.off, True, 0))
        if (n := _bought(left - self.carried, self.beside)) >= FEW:
            alone = 1 - self.followed
            b2, s2 = self.stated**2, alone * (4 - alone) / 2 / n
            share = b2 / (b2 + s2)  # of what samples show, as `corrected` weighs it
            both = math.hypot(share * math.sqrt(s2), (1 - share) * self.off)
            options.append((both, True, n))
        return min(options)[1:]


def costs(model: nn.Module, x: Any, output: Output, carry: Callable[[], Found]) -> Costs:
    """Return what things cost for inputs of this form, measured once for each."""

    def ask() -> Costs:
        found = carry()

        def line(control: Any) -> tuple[Price, Samples]:
            def drawn(n: int) -> Samples:
                samples = Samples(model, x, output, covariance=False, control=control)
                samples.draw(n)
                samples.moments()
                return samples

            price: list[tuple[float, float]] = []
            for n in (FEW, MANY, 8 * MANY, 24 * MANY):
                price.append((n, _seconds(x, partial(drawn, n))))
                if n > FEW and 8 * price[-1][1] > LONG * one:
                    break
            return tuple(price), drawn(2 * MANY)

        with torch.no_grad(), modes(model, noise=True):
            one = _seconds(x, lambda: called(unwrapped(model), own(x)), 9)
        alone, _ = line(None)
        if found.moments is None:
            return Costs(one, math.inf, alone, alone, math.inf, math.inf, 0.0)
        beside, samples = line(found.control)
        stated = doubted(found.moments, found.drawn) if found.drawn else found.moments
        least = (found.moments.reached or 0.0) / LEVEL / 4
        return Costs(
            one, _seconds(x, carry), alone, beside, max(_off(found.moments, samples), least),
            max(stated.reached or 0.0, 1e-6) / LEVEL, samples.followed,
        )  # fmt: skip

    known = _known.setdefault(model, {})
    key = (*((t.shape, t.dtype) for t in tensors(x)), torch.is_grad_enabled())
    if key not in known:
        known[key] = ask()
    return known[key]


_known: WeakKeyDictionary[nn.Module, dict[Any, Costs]] = WeakKeyDictionary()


def _off(found: Moments, samples: Samples) -> float:
    """Return how far what was carried is off samples, in squares less what these are off by."""
    if found.exact:
        return 0.0
    sampled, sd = samples.moments(), found.std.clamp(min=torch.finfo(found.std.dtype).tiny)
    away = ((sampled.mean - found.mean) / sd) ** 2 + (sampled.std / sd - 1) ** 2
    return math.sqrt(max(float(away.mean()) - sum(e * e for e in samples.errors), 0.0))


def _bought(seconds: float, price: Price) -> int:
    """Return how many samples that buys, as many as divide into equal batches."""
    found = 0.0
    for (few, low), (many, high) in pairwise(price):
        each = max((high - low) / (many - few), 1e-9)
        if seconds > low or not found:
            found = few + (seconds - low) / each
        if seconds <= high:
            break
    n = int(max(0.0, found))
    whole = next((size for size in (8 * MANY, MANY, FEW) if n >= size), 1)
    return n - n % whole


def _seconds(x: Any, run: Callable[[], Any], repeat: int = 3) -> float:
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
