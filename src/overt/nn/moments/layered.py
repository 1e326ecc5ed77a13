"""What overt's own layers do to moments: masks of known covariance, and dropped weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from overt.nn.layers.base import RatedNoise, UnitNoise
from overt.nn.layers.dropconnect import DropConnectConv2d
from overt.nn.moments.bilinear import linear_map
from overt.nn.moments.noises import multiplied
from overt.nn.moments.tape import Moment, Tape
from overt.nn.recording.watching import Call


def layer(tape: Tape, call: Call) -> Any:
    """Return what comes out of one of overt's layers."""
    module, name = call.leaf, call.module
    x = tape.of(call.args[0])
    if isinstance(module, UnitNoise):
        if module.silent:
            return call.args[0]
        shape = tuple(x.mean.shape)
        out = multiplied(tape, x, module.mask_covariance(shape), name,
                         lambda: module._apply_mask(torch.ones_like(x.mean)))  # fmt: skip
        if isinstance(module, RatedNoise) and not x.noises and out.noises and out.independent:
            out = replace(out, dropped=(x.mean, module.drop_prob))
        return tape.put(out)
    return tape.put(_connected(tape, module, x, name))


def _connected(tape: Tape, module: Any, x: Moment, name: str) -> Moment:
    """Apply a linear map whose weights are dropped: its own noise is lam W^2 E[x x']."""
    W = module.weight
    f = module.convolve if isinstance(module, DropConnectConv2d) else functional.linear
    state = "off" if module.drop_prob == 0 else tape.state(name)
    dropped = module._noisy_weight().to(x.mean.dtype) if state == "drawn" or tape.probe else W
    x = tape.settled(x) if state == "carried" else x
    used = dropped if state == "drawn" else W
    fixed, along = tape.fixed((x.mean, W if state == "off" else dropped))
    after = linear_map(tape, x, lambda t: f(t, used, module.bias), lambda t: f(t, along, None),
                       lambda t: f(t, used * used, None))  # fmt: skip
    if state != "carried":
        return after
    lam = module.strength * W * W
    own = f(x.mean**2 + x.variance, lam, None)
    simple = fixed.ndim < 3  # maps have more axes
    exact = x.exact and x.known and (simple or x.independent)

    def tangent() -> Tensor:
        before = after.tangent()
        if tape.probe:
            return before + f(fixed, dropped - W, None)
        if simple:
            return before + tape.source(own)
        before = before + _first_order(tape, module, fixed)
        return before + tape.source(f(x.variance, lam, None)) if x.noises else before

    return replace(
        after, variance=after.variance + own, tangent=tape.later(tangent), exact=exact,
        noises=x.noises | {name}, known=exact and after.known, independent=simple and not x.noises,
    )  # fmt: skip


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
