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

from overt.nn.curvature import curvature
from overt.nn.data.losses import is_squared
from overt.nn.data.models import is_normalization, modes, restore_training, unwrap_model
from overt.nn.data.rng import torch_rng_bytes
from overt.nn.layers.base import UnitNoise
from overt.nn.layers.recognized import mask_covariance_of
from overt.nn.moments.carry import Carried, Output
from overt.nn.recording.hooks import hooked
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
        still = (m for m in model.modules() if not m.training and m is not self.noise)
        if not (all(map(_plain, parts)) and all(map(is_normalization, still))):
            return None
        before = torch_rng_bytes()
        with (
            hooked(parts, after=lambda *told: seen.append(told)),
            restore_training([self.noise], training=False),
        ):
            result = called(model, x)
            out = result if output is None else output(result)
        if tuple(m for m, *_ in seen) != parts or torch_rng_bytes() != before:
            return None
        (_, _, a), (_, given, last) = seen
        whole = a.ndim > 1 and a.dtype == out.dtype
        if not (len(given) == 1 and given[0] is a and last is out and whole):
            return None
        law = mask_covariance_of(self.noise, a.shape)
        if not law.independent:
            return None
        if loss == "cross_entropy" and out.ndim == 2 and out.shape[1] > 1:
            return out, _Curved.apply(a, self.linear.weight, out, 0.5 * law.strength / len(out))
        d, _, scale = curvature(out, loss)
        a, U, weight = a.flatten(0, -2), self.linear.weight, scale * law.strength / len(out)
        if is_squared(loss):
            return out, weight * ((a * a).sum(0) @ (U * U).sum(0))
        return out, weight * torch.dot((a * a).flatten(), (d.flatten(0, -2) @ (U * U)).flatten())


class _Curved(torch.autograd.Function):  # type: ignore[misc]
    """Weight times the sum over rows of sum_j a_j^2 (sum_k p_k U_kj^2 - (p'U)_j^2), p = softmax(z).

    In few passes over the rows.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, U: Tensor, z: Tensor, weight: float) -> Tensor:
        """Return the sum."""
        p = torch.softmax(z, 1)
        M, UU = p @ U, U * U
        D = (p @ UU).addcmul_(M, M, value=-1).mul_(a)
        ctx.weight = weight
        ctx.save_for_backward(a, U, z, p, M, UU, D)
        return torch.dot(a.reshape(-1), D.reshape(-1)).mul_(weight)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients, through the formula itself where they need gradients in turn."""
        a, U, z, p, M, UU, D = ctx.saved_tensors
        if torch.is_grad_enabled():
            q = torch.softmax(z, 1)
            value = (a * a * (q @ (U * U) - (q @ U) ** 2)).sum() * ctx.weight
            return *torch.autograd.grad(value, (a, U, z), g, create_graph=True), None
        A, c = a * a, ctx.weight * (g if g.is_cuda else float(g))
        T = A * M
        in_U = (p.T @ A).mul_(U).addmm_(p.T, T, alpha=-1).mul_(2 * c)
        in_p = (A @ UU.T).addmm_(T, U.T, alpha=-2).mul_(p)
        in_z = in_p.addcmul_(p, in_p.sum(1, keepdim=True), value=-1).mul_(c)
        return D * (2 * c), in_U, in_z, None


def last_linear(model: nn.Module, x: Any, output: Output, first: Carried) -> LastLinear | None:
    """Return how a model ends whose moments were carried once, None if it is another way."""
    noise = dict(model.named_modules()).get(first.noises[0]) if len(first.noises) == 1 else None
    known = type(noise) is nn.Dropout or isinstance(noise, UnitNoise)
    if not known or first.drawn or unwrap_model(model) is not model:
        return None
    made: list[tuple[nn.Module, Any, Any]] = []
    layers = [m for m in model.modules() if type(m) is nn.Linear]
    with hooked(layers, after=lambda *told: made.append(told)), modes(model, noise=False):
        result = called(model, x)
        out = result if output is None else output(result)
    ends = [module for module, _, value in made if value is out]
    return LastLinear(noise, ends[0]) if ends else None


def _plain(module: nn.Module) -> bool:
    """Whether the layer does what its class does."""
    changed = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    return not changed and getattr(module, "p", 0.0) != 1  # where all is dropped there is no law
