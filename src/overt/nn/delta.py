"""The delta method for any model: every noise is sent to the output by the derivative there.

With J_l = d output / d (what noise layer l gives out) at the noise-free point,

    Var(output) ~ sum_l J_l Cov(noise of layer l) J_l',

exact where all that follows is affine and there is one noise, of first order in the noise else.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from overt._check import InputError
from overt.nn.layers.dropconnect import DropConnectConv2d
from overt.nn.layers.recognized import is_weight_noise, mask_covariance_of
from overt.nn.spread import Independent, KernelNoise, Spread, masked


@dataclass(frozen=True, eq=False)
class Linearized:
    """A model's output without noise, and how each noise reaches it.

    `arrivals` holds for each use of a noise layer its name, its spread, and the derivative of the
    outputs with respect to it, (batch, outputs, units).
    """

    clean: Tensor
    arrivals: list[tuple[str, Spread, Tensor]]

    def variance(self) -> Tensor:
        """Return the variance of each output, summed over the noises."""
        total = torch.zeros_like(self.clean).flatten(1)
        for _, spread, rows in self.arrivals:
            total = total + spread.along(rows)
        return total.reshape(self.clean.shape)

    def covariance(self) -> Tensor:
        """Return the covariance of the flattened outputs, (batch, outputs, outputs)."""
        K = self.clean[0].numel()
        total = self.clean.new_zeros(len(self.clean), K, K)
        for _, spread, rows in self.arrivals:
            total = total + spread.between(rows)
        return total


def linearize(model: nn.Module, x: Tensor, active: Collection[str]) -> Linearized:
    """Run the model once without noise and differentiate its outputs, one after another."""
    create = torch.is_grad_enabled()
    met: list[tuple[str, Spread, Tensor]] = []

    def hook(name: str) -> Any:
        def after(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            h = args[0]
            with torch.set_grad_enabled(create):
                spread = _spread(module, h, output)
            step = torch.zeros_like(output, requires_grad=True)
            met.append((name, spread, step))
            return output + step

        return after

    hooks = [model.get_submodule(name).register_forward_hook(hook(name)) for name in active]
    try:
        with torch.inference_mode(False), torch.enable_grad():
            clean = model(x.clone() if x.is_inference() else x)
            if not isinstance(clean, Tensor) or clean.ndim < 1 or len(clean) != len(x):
                raise InputError("model must return one tensor with a row for each row of x")
            steps = [step for _, _, step in met]
            rows = [
                torch.autograd.grad(
                    out, steps, create_graph=create, retain_graph=True, materialize_grads=True
                )
                for out in clean.flatten(1).sum(0)
            ]
    finally:
        for handle in hooks:
            handle.remove()
    arrivals = [
        (name, spread, torch.stack([grads[i].flatten(1) for grads in rows], 1))
        for i, (name, spread, _) in enumerate(met)
    ]
    return Linearized(clean if create else clean.detach(), arrivals)


def _spread(module: Any, h: Tensor, output: Tensor) -> Spread:
    if not is_weight_noise(module):
        return masked(h, None, mask_covariance_of(module, tuple(h.shape)))
    variance = module.strength * module.weight * module.weight
    if isinstance(module, DropConnectConv2d):
        w = variance.reshape(module.groups, -1, variance[0].numel())
        return KernelNoise(module.patches(h), w, tuple(output.shape[1:]))
    if h.ndim > 2:
        raise InputError(
            "DropConnectLinear on an input with more than two axes has no closed moments here; "
            f"got shape {tuple(h.shape)}"
        )
    return Independent(nn.functional.linear(h * h, variance))
