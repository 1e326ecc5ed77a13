"""Random calls of a model: coins, uniform and normal numbers, masks of known covariance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from overt.nn.graph.record import Call, LayerNoise, UnsupportedError, op_info
from overt.nn.moments.backward import output_covariances
from overt.nn.moments.values import (
    SETTINGS,
    Derived,
    Law,
    Propagation,
    RandomTensor,
    Value,
    hermite,
)


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
    """Return the moments of a random call."""
    info = op_info(call.func)
    if isinstance(call.func, LayerNoise):
        if call.noise in run.off:
            return args[0]
        return masked_by_layer(run, call.func.layer, args[0])
    off = call.noise in run.off
    out = call.out
    if not isinstance(out, Tensor) or not (
        out.is_floating_point() or info.name == "bernoulli"
    ):
        raise UnsupportedError(f"{info.name} returns random whole numbers")
    if out.dtype != torch.float64:
        out = out.to(torch.promote_types(torch.float32, run.dtype))
    if out.numel() <= (len(out) if out.ndim else 1):  # one number for a row
        run.coarse.add(run.draws + 1)
    if info.name == "bernoulli":
        return _coins(run, args, out, off=off)
    if info.name not in _DRAWS:
        raise UnsupportedError(
            f"{info.name} returns random numbers of a law without a rule"
        )
    mean, var, law = _DRAWS[info.name]
    return run.draw(torch.full_like(out, mean), torch.full_like(out, var), law, off=off)


def _coins(run: Propagation, args: Any, like: Tensor, *, off: bool) -> Value:
    """Coins with one probability, or with one for each entry."""
    p = args[1] if len(args) > 1 else args[0]
    if isinstance(p, Value):
        raise UnsupportedError("a probability is random itself")
    if isinstance(p, Tensor):
        p = p.to(like).expand(like.shape)
        return run.draw(p, p * (1 - p), None, off=off)
    law = Law(torch.tensor([0.0, 1.0]), torch.tensor([1 - p, p], dtype=torch.float64))
    var = torch.full_like(like, p * (1 - p))
    return run.draw(torch.full_like(like, p), var, law, off=off)


@dataclass(frozen=True, eq=False)
class RowCovariance:
    """Covariances of the units of each row, (rows, units, units)."""

    matrix: Tensor

    def apply(self, g: Tensor) -> Tensor:
        """Return Cov @ g for gradients g of shape (n, rows, *units)."""
        return torch.einsum("rkl,nrl->nrk", self.matrix, g.flatten(2)).reshape(g.shape)


def masked_by_layer(run: Propagation, layer: Any, given: Any) -> Value:
    """x o m with a mask m of mean 1 and covariance Gamma: Cov = S + Gamma o (S + E[x] E[x]')."""
    random = isinstance(given, Value)
    x = given.moments(run) if random else None
    mean = x.mean if x is not None else given
    covariance = layer.mask_covariance(tuple(mean.shape))
    strength = covariance.relative_variance(mean).expand(mean.shape)
    run.draws += 1
    noises = frozenset({run.draws})
    fixed = run.fixed(mean)
    if run.sampled:
        away = layer(torch.ones_like(mean)) - 1
        own = fixed * away
    else:
        away = None
        own = fixed * run.source(strength, covariance=covariance)
    var = strength * mean * mean
    if x is None:
        return Value(RandomTensor(mean, var, own, noises, independent=False))
    both = strength * x.var
    dev = x.dev + own
    exact = x.exact and x.known and x.independent
    if away is not None:
        dev = dev + x.dev * away
    elif x.exact and not exact and mean[0].numel() <= SETTINGS.max_units:
        # Gamma o S for few correlated units: each row has another mask.
        S = output_covariances(x.dev, run.sources, graph=run.grad)
        product = RowCovariance(covariance.dense(mean) * S)
        both = product.matrix.diagonal(dim1=1, dim2=2).reshape(mean.shape)
        dev = dev + run.source(both, covariance=product)
        var_x = S.diagonal(dim1=1, dim2=2).reshape(mean.shape)
        x = replace(x, var=var_x)
        exact = True
    else:
        dev = dev + run.source(both, rest=not exact)
    return Value(
        replace(
            x,
            mean=mean,
            var=x.var + var + both,
            dev=dev,
            noises=x.noises | noises,
            law=None,
            product=None,
            exact=exact,
            known=exact,
            derived=x.derived | {Derived(x.noises | noises, (x.noises, noises))},
            independent=False,
        )
    )
