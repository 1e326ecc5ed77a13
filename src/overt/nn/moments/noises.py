"""What a model draws: dropout of all kinds, coins, uniform and normal numbers, overt's layers.

A noise is carried (its moments), drawn (its values, the rest being carried), or off. Dropout is a
product of its input and a mask, so that entries that share a factor are summed before they are
squared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from overt.nn.layers.base import UnitNoise
from overt.nn.layers.dropconnect import DropConnectConv2d
from overt.nn.layers.mask_covariance import MaskCovariance
from overt.nn.moments.bilinear import linear_map, product, scaled
from overt.nn.moments.entries import leaky_relu_moments, relu_moments
from overt.nn.moments.tape import Moment, Tape, Uncarried
from overt.nn.recording.watching import Call

_ALPHA = -1.7580993408473766
"""What alpha dropout sets dropped units to: -scale alpha of SELU."""


def random(tape: Tape, call: Call) -> Any:
    """Return what comes out of a call that draws."""
    name = tape.names.of(call, True) or call.name
    if call.name in _DROPOUTS:
        return _dropped(tape, call, name)
    if call.name == "rrelu":
        return _leaking(tape, call, name)
    law = _LAWS.get(call.name)
    given = () if call.name.endswith("_like") else (call.args, call.kwargs)
    if law is None or tape.noisy(given):
        return _drawn(tape, call, name)
    before = torch.get_rng_state()
    value = call.run()
    found = law(call, value)
    if found is None or not value.is_floating_point():
        torch.set_rng_state(before)
        return _drawn(tape, call, name)
    if not drawn_now(tape, name):
        torch.set_rng_state(before)
    mean, variance, cdf = found
    moment = fresh(tape, name, value, mean, variance, cdf)
    return tape.put(moment, value if call.inplace else None)


def _drawn(tape: Tape, call: Call, name: str) -> Any:
    """Run a call that is not carried; noise that is off and cannot be switched stays."""
    if noisy := tape.noisy((call.args, call.kwargs)):
        raise Uncarried(frozenset().union(*(m.noises for m in noisy)), call.name)
    tape.met[name] = None
    if tape.active is not None and name not in tape.active:
        return quiet(call)
    tape.was_drawn[name] = None
    return call.run()


def quiet(call: Call) -> Any:
    """Run a call in evaluation mode, if it can be told."""
    named = call.named()
    if "training" in named or "train" in named:
        named["training" if "training" in named else "train"] = False
        return call.function(**named) if call.kwargs else call.function(*named.values())
    return call.run()


def drawn_now(tape: Tape, name: str) -> bool:
    """Whether the values of a noise are drawn in this pass."""
    return name in tape.drawn and (tape.active is None or name in tape.active)


def fresh(
    tape: Tape, name: str, value: Tensor, mean: Tensor, variance: Tensor,
    cdf: Callable[[float], float] | None = None,
) -> Moment:  # fmt: skip
    """Return new independent numbers of these moments; `value` is one draw of them."""
    tape.met[name] = None
    mean, variance = (t.to(value).expand(value.shape) for t in (mean, variance))
    if tape.active is not None and name not in tape.active:
        return tape.certain(mean)
    if name in tape.drawn:
        tape.was_drawn[name] = None
        return tape.certain(value)
    if value.numel() <= max(1, *value.shape[:1]):
        tape.coarse[name] = None
    value = value.detach().clone()
    tangent = tape.later(lambda: value - mean if tape.probe else tape.source(variance))
    return Moment(mean, variance, tangent, frozenset({name}), law=cdf)


def coin(tape: Tape, x: Moment, prob: float, handle: Tensor | None) -> Tensor:
    """Return coins that are 1 with a probability, in the place of draws that they were made of."""
    mean, variance = (torch.full_like(x.mean, p) for p in (prob, prob * (1 - prob)))

    def tangent() -> Tensor:
        if tape.probe:
            return torch.empty_like(mean).bernoulli_(prob) - mean
        return tape.source(variance)

    return tape.put(Moment(mean, variance, tape.later(tangent), x.noises), handle)


def multiplied(
    tape: Tape, x: Moment, law: MaskCovariance, name: str, draw: Callable[[], Tensor]
) -> Moment:
    """x o m, m a mask of mean 1: Cov = S + Cbar o (S + E[x] E[x]'), S = Cov(x)."""
    tape.met[name] = None
    if tape.active is not None and name not in tape.active:
        return x
    if name in tape.drawn:
        tape.was_drawn[name] = None
        return product(tape, torch.mul, x, tape.certain(draw()))
    x = tape.settled(x)
    m, v, fixed = x.mean, x.variance, tape.fixed(x.mean)
    c = law.strength if law.matrix is None else law.relative_variance(m)
    added = c * (m * m + v) if x.noises else c * (m * m)
    S = None if law.independent or x.independent else tape.covariance(x)
    exact = x.exact and x.known and (law.independent or x.independent or S is not None)

    def tangent() -> Tensor:
        if tape.probe:
            z = draw()
            return x.tangent() * z + m * (z - 1)
        if law.independent:
            own = tape.source(added)
            return x.tangent() + own if x.noises else own
        own = fixed * tape.masks(law, len(m), m)
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
    if not p <= 1:
        return call.run()
    x = tape.of(handle)
    alpha = "alpha" in call.name
    if p == 1:
        out = tape.certain(torch.zeros_like(x.mean))
        return tape.put(out, handle if call.inplace else None)
    law = MaskCovariance(tuple(x.mean.shape[1:]), p / (1 - p), shared=_shared(call.name, x.mean))

    def draw() -> Tensor:
        shape = list(x.mean.shape)
        for axis in law.shared:
            shape[1 + axis] = 1
        keep = torch.empty(shape, dtype=x.mean.dtype, device=x.mean.device).bernoulli_(1 - p)
        return keep / (1 - p)

    if not alpha:
        out = multiplied(tape, x, law, name, draw)
        if law.independent and not x.noises and out.noises:
            out = replace(out, dropped=(x.mean, p))
        return tape.put(out, handle if call.inplace else None)
    if tape.active is not None and name not in tape.active:
        tape.met[name] = None
        return handle
    a = ((1 - p) * (1 + p * _ALPHA**2)) ** -0.5
    masked = multiplied(tape, scaled(tape, x, 1.0, -_ALPHA), law, name, draw)
    out = scaled(tape, masked, a * (1 - p), a * _ALPHA - a * _ALPHA * p)
    return tape.put(out, handle if call.inplace else None)


def _shared(name: str, x: Tensor) -> tuple[int, ...]:
    """Return the axes of a sample along which a mask is shared."""
    spatial = _DROPOUTS[name]
    if spatial is None or x.ndim < 2:
        return ()
    unbatched = spatial in (1, 3) and x.ndim == spatial + 1
    return tuple(range(0 if unbatched else 1, x.ndim - 1))


def _leaking(tape: Tape, call: Call, name: str) -> Any:
    """RReLU: negative entries times a uniform slope."""
    given = call.named()
    low, high = float(given.get("lower", 1 / 8)), float(given.get("upper", 1 / 3))
    x = tape.of(call.args[0])
    middle, spread = (low + high) / 2, (high - low) ** 2 / 12
    e, s, variance = leaky_relu_moments(x.mean, x.variance, middle)
    below, _, rest = relu_moments(-x.mean, x.variance)
    on = bool(call.training) and (tape.active is None or name in tape.active)
    if call.training:
        tape.met[name] = None
    own = spread * (below * below + rest) if on else torch.zeros_like(e)
    if on and name in tape.drawn:
        tape.was_drawn[name] = None
        values = torch.empty_like(e).uniform_(low, high) - middle
        e, own = e - values * below, torch.zeros_like(e)

    def tangent() -> Tensor:
        left = (variance - s * s * x.variance).clamp(min=0) + own
        return tape.fixed(s) * x.tangent() + tape.source(left)

    noises = x.noises | ({name} if on and name not in tape.drawn else frozenset())
    certain = not x.noises
    out = Moment(e, variance + own, tape.later(tangent), noises, certain, certain, x.independent)
    return tape.put(out if noises else tape.certain(e), call.args[0] if call.inplace else None)


Law = tuple[Tensor, Tensor, Callable[[float], float] | None]


def _number(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(float(value))


def _coins(call: Call, value: Tensor) -> Law | None:
    q = call.argument(1, "p")
    q = _number(call.args[0] if q is None and not call.inplace else 0.5 if q is None else q)
    return q, q * (1 - q), None


def _uniform(low: float, high: float) -> Law:
    def cdf(x: float) -> float:
        return min(max((x - low) / (high - low), 0.0), 1.0)

    return _number((low + high) / 2), _number((high - low) ** 2 / 12), cdf


def _normal(mean: Any, sd: Any) -> Law:
    m, s = _number(mean), _number(sd)
    cdf = None
    if m.numel() == 1 and s.numel() == 1:
        mu, sigma = float(m), float(s)

        def cdf(x: float) -> float:
            return 0.5 * math.erfc((mu - x) / (sigma * math.sqrt(2)))

    return m, s * s, cdf


def _normals(call: Call, value: Tensor) -> Law | None:
    if call.inplace:
        return _normal(call.argument(1, "mean", 0.0), call.argument(2, "std", 1.0))
    return _normal(call.argument(0, "mean", 0.0), call.argument(1, "std", 1.0))


def _exponential(call: Call, value: Tensor) -> Law | None:
    rate = float(call.argument(1, "lambd", 1.0))
    return _number(1 / rate), _number(rate**-2), lambda x: -math.expm1(-rate * max(x, 0.0))


_LAWS: dict[str, Callable[[Call, Tensor], Law | None]] = {
    "bernoulli": _coins,
    "rand": lambda call, value: _uniform(0.0, 1.0),
    "rand_like": lambda call, value: _uniform(0.0, 1.0),
    "randn": lambda call, value: _normal(0.0, 1.0),
    "randn_like": lambda call, value: _normal(0.0, 1.0),
    "uniform": lambda call, value: _uniform(
        float(call.argument(1, "from", 0.0)), float(call.argument(2, "to", 1.0))
    ),
    "normal": _normals,
    "exponential": _exponential,
}


def layer(tape: Tape, call: Call) -> Any:
    """Return what comes out of one of overt's layers."""
    module, name = call.leaf, call.module
    x = tape.of(call.args[0])
    if isinstance(module, UnitNoise):
        if module.silent:
            return call.args[0]
        shape = tuple(x.mean.shape)
        out = multiplied(tape, x, module.mask_covariance(shape), name,
                         lambda: module._multiplied(torch.ones_like(x.mean)))  # fmt: skip
        plain = getattr(module, "shared_axes", None) == () and hasattr(module, "drop_prob")
        if plain and not x.noises and out.noises and out.independent:
            out = replace(out, dropped=(x.mean, module.drop_prob))
        return tape.put(out)
    return tape.put(_connected(tape, module, x, name))


def _connected(tape: Tape, module: Any, x: Moment, name: str) -> Moment:
    """Apply a linear map whose weights are dropped: its own noise is lam W^2 E[x x']."""
    W = module.weight
    f = _map_of(module)
    silent = module.drop_prob == 0
    if not silent:
        tape.met[name] = None
    off = silent or (tape.active is not None and name not in tape.active)
    drawn = not off and name in tape.drawn
    if drawn:
        tape.was_drawn[name] = None
    used = module._noisy_weight().to(x.mean.dtype) if drawn or (tape.probe and not off) else W
    w, fixed = tape.fixed((used, x.mean))
    x = x if off or drawn else tape.settled(x)
    square = W * W if not drawn else used * used
    after = linear_map(
        tape, x, lambda t: f(t, used if drawn else W, module.bias), lambda t: f(t, w, None),
        lambda t: f(t, square, None),
    )  # fmt: skip
    if off or drawn:
        return after
    lam = module.strength * W * W
    own = f(x.mean**2 + x.variance, lam, None)
    simple = not isinstance(module, DropConnectConv2d) and fixed.ndim < 3
    exact = x.exact and x.known and (simple or x.independent)

    def tangent() -> Tensor:
        before = after.tangent()
        if tape.probe:
            return before + f(fixed, used - W, None)
        if simple:
            return before + tape.source(own)
        before = before + _first_order(tape, module, fixed)
        return before + tape.source(f(x.variance, lam, None)) if x.noises else before

    return replace(
        after, variance=after.variance + own, tangent=tape.later(tangent), exact=exact,
        noises=x.noises | {name}, known=exact and after.known, independent=simple and not x.noises,
    )  # fmt: skip


def _map_of(module: Any) -> Callable[..., Tensor]:
    if isinstance(module, DropConnectConv2d):
        return module.convolve
    return functional.linear


def _first_order(tape: Tape, module: Any, x: Tensor) -> Tensor:
    """Return the tangent of masks on weights, one set for each row, at a known input."""
    W = module.weight if tape.differentiable else module.weight.detach()
    lam = module.strength
    if isinstance(module, DropConnectConv2d):
        patches = module.patches(x)  # (rows, groups, K, positions)
        weight = W.reshape(module.groups, -1, patches.shape[2])
        step = tape.source(x.new_full((len(x), *weight.shape), lam))
        y = torch.einsum("bgok,bgkp->bgop", step * weight, patches)
        sizes = module.convolve(x[:1], module.weight, None).shape[2:]
        return y.flatten(1, 2).unflatten(2, sizes)
    step = tape.source(x.new_full((len(x), *W.shape), lam))
    flat = x.reshape(len(x), -1, x.shape[-1])
    return (flat @ (step * W).mT).reshape(*x.shape[:-1], W.shape[0])
