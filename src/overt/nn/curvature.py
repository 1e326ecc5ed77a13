"""The amount that a deviation of the outputs adds to a loss, and the loss's curvature."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from overt._check import InputError
from overt.nn.data.losses import is_squared


def quadratic(t: Tensor, mean: Tensor, loss: str) -> Tensor:
    """Return t' H t, averaged over rows."""
    diagonal, direction, scale = curvature(mean, loss)
    value = (diagonal * t * t).reshape(len(mean), -1).sum(1)
    if direction is not None:
        value = value - (direction * t).sum(1) ** 2
    return scale * value.mean()


def divergence(t: Tensor, mean: Tensor, loss: str) -> Tensor:
    """Return A(m + t) - A(m) - <A'(m), t>, averaged over rows; A is the loss but for -<y, m>.

    A is |m|^2, log sum_k exp(m_k) or sum_k log(1 + exp(m_k)). For t of mean 0 the expectation is
    what t adds to the loss, whatever y. t'Ht is the same to second order; it grows with |t|^2 where
    the loss grows with |t|, so that a few rows would rule its gradient.
    """
    if is_squared(loss):
        return quadratic(t, mean, loss)
    if loss == "logistic":
        value = functional.softplus(mean + t) - functional.softplus(mean) - torch.sigmoid(mean) * t
        return value.reshape(len(mean), -1).sum(1).mean()
    q = torch.log_softmax(_logits(mean), 1)  # A(m + t) - A(m) = log sum_k exp(q_k + t_k)
    return (torch.logsumexp(q + t, 1) - (q.exp() * t).sum(1)).mean()


def curvature(mean: Tensor, loss: str) -> tuple[Tensor, Tensor | None, float]:
    """Return H = scale (diag(d) - w w') as d, w (None: 0) and the scale."""
    if is_squared(loss):
        scale = 1.0 if loss == "squared" else 1 / mean[0].numel()
        return torch.ones_like(mean), None, scale
    if loss == "logistic":
        p = torch.sigmoid(mean)
        return p * (1 - p), None, 0.5
    p = torch.softmax(_logits(mean), 1)
    return p, p, 0.5


def _logits(mean: Tensor) -> Tensor:
    """Return logits if there are classes for them."""
    if mean.ndim != 2 or mean.shape[1] < 2:
        raise InputError(
            "loss='cross_entropy' needs a model that returns (batch, at least 2 classes), got "
            f"{tuple(mean.shape)}; for one logit use loss='logistic'"
        )
    return mean
