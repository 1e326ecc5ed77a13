"""What a model draws: dropout of all kinds, coins, uniform and normal numbers.

A noise is carried (its moments), drawn (its values, the rest being carried), or off. Dropout is a
product of its input and a mask, so that entries that share a factor are summed before they are
squared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from overt.nn.layers.mask_covariance import MaskCovariance
from overt.nn.moments.bilinear import product, scaled
from overt.nn.moments.distributions import MOMENTS
from overt.nn.moments.entries import leaky_relu_moments, relu_moments, signs
from overt.nn.moments.tape import Law, Moment, Tape, Uncarried
from overt.nn.recording.watching import Call

FEW = 16
"""Factors to a row that, each shared by many entries, count as few."""

ALPHA = -1.7580993408473766
"""What alpha dropout sets dropped units to: -scale alpha of SELU."""


def random(tape: Tape, call: Call) -> Any:
    """Return what comes out of a call that draws."""
    name = tape.names.of(call, True) or call.name
    if torch._C._functorch.peek_interpreter_stack() is not None:  # rows are hidden inside vmap
        return drawn(tape, call, name)
    if call.name in _DROPOUTS:
        return _dropped(tape, call, name)
    if call.name == "rrelu":
        return _leaking(tape, call, name)
    moments = MOMENTS.get(call.name)
    given = () if call.name.endswith("_like") else (call.args, call.kwargs)
    if moments is None or tape.noisy(given):
        return drawn(tape, call, name)
    before = torch.get_rng_state()
    value = call.run()
    if not value.is_floating_point():
        return value
    state = tape.state(name)
    if state == "off" or (state == "carried" and not tape.probe):
        torch.set_rng_state(before)
    mean, variance, cdf = moments(call)
    mean, variance = (t.to(value).expand(value.shape) for t in (mean, variance))
    if state != "carried":
        moment = tape.certain(value if state == "drawn" else mean.contiguous())
        return tape.put(moment, value if call.inplace else None)
    if value.numel() <= max([1, *value.shape[:1]]):
        tape.coarse[name] = None
    draw = value.detach().clone()
    tangent = tape.later(lambda: draw - mean if tape.probe else tape.source(variance))
    law = None if cdf is None else Law(cdf)
    moment = Moment(mean, variance, tangent, frozenset({name}), law=law)
    return tape.put(moment, value if call.inplace else None)


def drawn(tape: Tape, call: Call, name: str) -> Any:
    """Run a call that is not carried, in evaluation mode if it is off and can be told."""
    if noisy := tape.noisy((call.args, call.kwargs)):
        raise Uncarried(frozenset().union(*(m.noises for m in noisy)), call.name)
    state, named = tape.state(name), call.named()
    told = next((key for key in ("training", "train") if key in named), None)
    if state == "off" and told is not None:
        args, kwargs = list(call.args), dict(call.kwargs)
        if told in kwargs:
            kwargs[told] = False
        else:
            args[list(named).index(told)] = False
        return call.function(*args, **kwargs)
    tape.was_drawn[name] = None
    return call.run()


def coin(tape: Tape, x: Moment, prob: float, handle: Tensor | None) -> Tensor:
    """Return coins that are 1 with a probability, in the place of draws that they are made of."""
    mean, variance = (torch.full_like(x.mean, p) for p in (prob, prob * (1 - prob)))

    def tangent() -> Tensor:
        if tape.probe:
            return torch.empty_like(mean).bernoulli_(prob) - mean
        return tape.source(variance)

    return tape.put(Moment(mean, variance, tape.later(tangent), x.noises), handle)


def multiplied(
    tape: Tape, x: Moment, law: MaskCovariance, name: str, draw: Callable[[], Tensor]
) -> Moment:
    """x o m, m a mask of mean 1: Cov = S + Gamma o (S + E[x] E[x]'), S = Cov(x)."""
    state = tape.state(name)
    z = draw() if state == "drawn" else None
    if state != "carried":
        if z is not None and not x.noises:
            return tape.certain(x.mean * z)
        return x if z is None else product(tape, torch.mul, x, tape.certain(z))
    if law.shared and math.prod(n for i, n in enumerate(law.shape) if i not in law.shared) <= FEW:
        tape.few[name] = None
    x = tape.settled(x)
    m, v, fixed = x.mean, x.variance, tape.fixed(x.mean)
    c = law.strength if law.matrix is None else law.relative_variance(m)
    added = tape.spread(lambda m, v: c * (torch.addcmul(v, m, m) if x.noises else m * m), m, v)
    S = None if law.independent or x.independent else tape.covariance(x)
    settled = law.independent or x.independent or S is not None or tape.put_off is not None
    exact = x.exact and x.known and settled

    def tangent() -> Tensor:
        if tape.probe:
            away = draw().sub_(1)
            t = x.tangent()
            return torch.addcmul(t, t + m, away) if x.noises else m * away
        if law.independent:
            own = tape.source(added)
            return x.tangent() + own if x.noises else own
        own = fixed * tape.masks(law, m)
        if not x.noises:
            return own
        both = tape.source(c * v) if S is None else tape.dense(law.dense(m) * S, m.shape)
        return x.tangent() + own + both

    return Moment(m, v + added if x.noises else added, tape.later(tangent), x.noises | {name},
                  exact, exact, x.independent and law.independent)  # fmt: skip


_DROPOUTS = {"dropout": None, "dropout1d": 1, "dropout2d": 2, "dropout3d": 3,
             "feature_dropout": 0, "alpha_dropout": None, "feature_alpha_dropout": 0}  # fmt: skip


def _dropped(tape: Tape, call: Call, name: str) -> Any:
    handle, p = call.argument(0, "input"), float(call.argument(1, "p", 0.5))
    if call.training is False or p == 0:
        return handle
    x, to = tape.of(handle), handle if call.inplace else None
    if p == 1:
        return tape.put(tape.certain(torch.zeros_like(x.mean)), to)
    law = MaskCovariance(tuple(x.mean.shape[1:]), p / (1 - p), shared=_shared(call.name, x.mean))

    def draw() -> Tensor:
        shape = [1 if axis - 1 in law.shared else n for axis, n in enumerate(x.mean.shape)]
        blank = x.mean.new_empty(shape)
        if tape.state(name) == "carried":  # second moments count in a probe, so that coins do
            return signs(blank).mul_(math.sqrt(law.strength)).add_(1)
        return coins(blank, 1 - p) / (1 - p)

    if "alpha" not in call.name:
        out = multiplied(tape, x, law, name, draw)
        if law.independent and not x.noises and out.noises:
            out = out.with_(dropped=(x.mean, p))
        return tape.put(out, to)
    if tape.state(name) == "off":
        return handle
    a = ((1 - p) * (1 + p * ALPHA**2)) ** -0.5
    masked = multiplied(tape, scaled(tape, x, 1.0, -ALPHA), law, name, draw)
    return tape.put(scaled(tape, masked, a * (1 - p), a * ALPHA * (1 - p)), to)


def coins(like: Tensor, prob: float) -> Tensor:
    """Return independent numbers that are 1 with a probability, to 2^-17, else 0.

    Sixteen bits of a random word decide on one, four times faster than torch, unless one is rare.
    """
    if like.device.type not in ("cpu", "cuda") or min(prob, 1 - prob) < 2**-7:
        return torch.empty_like(like).bernoulli_(prob)
    n = like.numel()
    words = torch.empty(n // 4 + 1, dtype=torch.int64, device=like.device).random_(-(2**63), None)
    limit = round(prob * 2**16) - 2**15
    return (words.view(torch.int16)[:n] < limit).reshape(like.shape).to(like.dtype)


def _shared(name: str, x: Tensor) -> tuple[int, ...]:
    """Return the axes of a sample along which a mask is shared."""
    spatial = _DROPOUTS[name]
    if spatial is None or x.ndim < 2:
        return ()
    unbatched = spatial in (1, 3) and x.ndim == spatial + 1
    return tuple(range(0 if unbatched else 1, x.ndim - 1))


def _leaking(tape: Tape, call: Call, name: str) -> Any:
    """RReLU: negative entries times a uniform slope."""
    given, x = call.named(), tape.of(call.args[0])
    low, high = float(given.get("lower", 1 / 8)), float(given.get("upper", 1 / 3))
    middle = (low + high) / 2
    e, s, variance = leaky_relu_moments(x.mean, x.variance, middle)
    below, _, rest = relu_moments(-x.mean, x.variance)
    state = tape.state(name) if call.training else "off"
    if state == "drawn":
        e = e - (torch.empty_like(e).uniform_(low, high) - middle) * below
    own = (high - low) ** 2 / 12 * (below * below + rest) * (state == "carried")

    def tangent() -> Tensor:
        left = (variance - s * s * x.variance).clamp(min=0) + own
        return tape.fixed(s) * x.tangent() + tape.source(left)

    noises = x.noises | ({name} if state == "carried" else frozenset())
    certain = not x.noises
    out = Moment(e, variance + own, tape.later(tangent), noises, certain, certain, x.independent)
    return tape.put(out if noises else tape.certain(e), call.args[0] if call.inplace else None)
