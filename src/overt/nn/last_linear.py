"""Noise right before the linear layer that a model ends with: its penalty needs no tangents.

With a what the noise acts on, U the layer's weights and H = scale (diag(d) - w w') half the second
derivative of a row's loss at the output,

    <H, Cov(U (a o m))> = scale lam sum_j a_j^2 (sum_k d_k U_kj^2 - (w'U)_j^2).

That a model ends so is seen again at each pass; nothing is said here of one that does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from overt.nn.given.losses import is_squared
from overt.nn.layers.base import UnitNoise
from overt.nn.layers.recognized import mask_covariance_of
from overt.nn.moments.carry import Carried, Output
from overt.nn.penalties import curvature
from overt.nn.recording.generators import generator_state
from overt.nn.recording.modes import is_normalization, modes, switched
from overt.nn.recording.watching import called


@dataclass(frozen=True, eq=False)
class LastLinear:
    """The one noise of a model, and the layer after it, whose output is the model's."""

    noise: nn.Module
    linear: nn.Linear

    def run(self, model: nn.Module, x: Any, output: Output, loss: str) -> tuple[Tensor, ...] | None:
        """Return the output and the penalty, None if the pass did not end so."""
        seen: list[tuple[nn.Module, Any, Any]] = []
        parts = (self.noise, self.linear)
        others = (m for m in model.modules() if m is not self.noise and not is_normalization(m))
        if not (all(map(_plain, parts)) and all(m.training for m in others)):
            return None
        hooks = [m.register_forward_hook(lambda *told: seen.append(told)) for m in parts]
        before = generator_state()
        try:
            with switched([self.noise], training=False):
                result = called(model, x)
                out = result if output is None else output(result)
        finally:
            for hook in hooks:
                hook.remove()
        if tuple(m for m, *_ in seen) != parts or generator_state() != before:
            return None
        (_, _, a), (_, given, last) = seen
        whole = a.ndim > 1 and a.dtype == out.dtype
        if not (len(given) == 1 and given[0] is a and last is out and whole):
            return None
        law = mask_covariance_of(self.noise, a.shape)
        if not law.independent:
            return None
        d, w, scale = curvature(out, loss)
        a, U, weight = a.flatten(0, -2), self.linear.weight, scale * law.strength / len(out)
        if is_squared(loss):
            return out, weight * ((a * a).sum(0) @ (U * U).sum(0))
        D = d.flatten(0, -2) @ (U * U)
        if w is not None:
            M = w @ U
            D = D - M * M
        return out, weight * torch.dot((a * a).flatten(), D.flatten())


def last_linear(model: nn.Module, x: Any, output: Output, first: Carried) -> LastLinear | None:
    """Return how a model ends whose moments were carried once, None if it is another way."""
    noise = dict(model.named_modules()).get(first.noises[0]) if len(first.noises) == 1 else None
    if first.drawn or not (type(noise) is nn.Dropout or isinstance(noise, UnitNoise)):
        return None
    made: list[tuple[nn.Module, Any, Any]] = []
    layers = [m for m in model.modules() if type(m) is nn.Linear]
    hooks = [m.register_forward_hook(lambda *told: made.append(told)) for m in layers]
    try:
        with modes(model, noise=False):
            result = called(model, x)
            out = result if output is None else output(result)
    finally:
        for hook in hooks:
            hook.remove()
    ends = [module for module, _, value in made if value is out]
    return LastLinear(noise, ends[0]) if ends else None


def _plain(module: nn.Module) -> bool:
    """Whether the layer does what its class does."""
    changed = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    return not changed and getattr(module, "p", 0.0) != 1  # where all is dropped there is no law
