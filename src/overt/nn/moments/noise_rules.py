"""Random calls of a model: coins, uniform and normal numbers, masks of known covariance."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from overt.nn.graph.record import Call, LayerNoise, UnsupportedError, op_info
from overt.nn.moments.values import Law, Propagation, RandomTensor, Value, hermite


def _uniform_law(n: int = 64) -> Law:
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return Law(
        torch.as_tensor((nodes + 1) / 2), torch.as_tensor(weights / 2), lambda u: u
    )


UNIFORM = _uniform_law()
NORMAL = Law(*hermite(32), torch.special.ndtri)

_DRAWS = {
    "rand": (0.5, 1 / 12, UNIFORM),
    "rand_like": (0.5, 1 / 12, UNIFORM),
    "randn": (0.0, 1.0, NORMAL),
    "randn_like": (0.0, 1.0, NORMAL),
}
"""Mean, variance and law of the entries."""


def draw(run: Propagation, call: Call, args: Any) -> Any:
    """Return the moments of a random call; at its mean if it is off."""
    off = call.noise in run.off
    if isinstance(call.func, LayerNoise):
        return args[0] if off else masked_by_layer(run, call.func.layer, args[0])
    name = op_info(call.func).name
    out = call.out
    if name != "bernoulli" and name not in _DRAWS:
        raise UnsupportedError(f"{name} returns random numbers of a law without a rule")
    out = out.to(torch.promote_types(torch.float32, run.dtype))
    if out.numel() <= (len(out) if out.ndim else 1):  # one number for a row
        run.coarse.add(run.draws + 1)
    if name == "bernoulli":
        p = args[1] if len(args) > 1 else args[0]
        if isinstance(p, Value):
            raise UnsupportedError("a probability is random itself")
        law = None
        if not isinstance(p, Tensor):
            weights = torch.tensor([1 - p, p], dtype=torch.float64)
            law = Law(torch.tensor([0.0, 1.0]), weights)
        mean = torch.as_tensor(p, dtype=out.dtype, device=out.device).expand(out.shape)
        var = mean * (1 - mean)
    else:
        center, size, law = _DRAWS[name]
        mean = torch.full_like(out, center)
        var = torch.full_like(out, size)
    if not off:
        return run.draw(mean, var, law)
    if law is not UNIFORM:
        return mean
    # A comparison may still make a coin of it, whose mean counts then.
    zero = torch.zeros_like(mean)
    return Value(RandomTensor(mean, zero, zero, frozenset(), law))


def masked_by_layer(run: Propagation, layer: Any, given: Any) -> Value:
    """x o m with a mask m of mean 1 and covariance Gamma: Cov = S + Gamma o (S + E[x] E[x]')."""
    x = given.moments(run) if isinstance(given, Value) else None
    mean = given if x is None else x.mean
    covariance = layer.mask_covariance(tuple(mean.shape))
    strength = covariance.relative_variance(mean).expand(mean.shape)
    run.draws += 1
    noises = frozenset({run.draws})
    if run.sampled:
        away = layer(torch.ones_like(mean)) - 1
    else:
        away = run.source(strength, covariance=covariance)
    own = run.fixed(mean) * away
    var = strength * mean * mean
    if x is None:
        return Value(RandomTensor(mean, var, own, noises, independent=False))
    both = strength * x.var
    exact = x.exact and x.known and x.independent
    extra = x.dev * away if run.sampled else run.source(both, rest=not exact)
    dev = x.dev + own + extra
    if not exact:  # the last part counts as independent entries, which it is not
        dev = run.doubt(dev, both)
    return Value(
        x.changed(
            var=x.var + var + both,
            dev=dev,
            noises=x.noises | noises,
            exact=exact,
            known=exact,
            derived=max(1, x.derived),
            independent=False,
        )
    )
