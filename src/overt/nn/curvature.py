"""The amount that a deviation of the outputs adds to a loss, and the loss's curvature.

A loss is averaged over positions: the rows of a batch, or for cross-entropy on outputs of shape
(batch, classes, ...) all tokens or pixels. Class weights and an index to ignore weigh them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from overt._check import InputError
from overt.nn.data.losses import Loss, is_squared, loss_name, mean_loss
from overt.nn.moments.propagate import PropagatedOutput


@dataclass(frozen=True)
class WeightedLoss:
    """A loss by name; for cross-entropy with torch's class weights and index to ignore."""

    name: str
    class_weights: Tensor | None = None
    ignore_index: int = -100

    @property
    def needs_targets(self) -> bool:
        """Whether positions count differently, by their targets."""
        return self.class_weights is not None or self.ignore_index != -100

    def mean(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the loss averaged over positions."""
        if not output.ndim:
            output = output.reshape(1, 1)
            y = y.reshape(-1, 1)
        if not self.needs_targets:
            return mean_loss(output, y, self.name)
        weights = self.position_weights(y, output)
        losses = functional.cross_entropy(
            output, y.long(), ignore_index=self.ignore_index, reduction="none"
        )
        return average(losses, weights)

    def position_weights(self, y: Tensor | None, output: Tensor) -> Tensor | None:
        """Return how much each position counts, None if all count the same."""
        if y is None:
            if self.needs_targets:
                raise InputError(
                    "a loss with class weights or ignore_index needs targets y"
                )
            return None
        if self.name != "cross_entropy" or y.is_floating_point():
            if self.needs_targets:
                raise InputError(
                    "class weights and ignore_index need class numbers as targets"
                )
            return None
        positions = _logits(output).shape[:1] + output.shape[2:]
        if y.shape != positions:
            raise InputError(
                f"targets for outputs of shape {tuple(output.shape)} (batch, classes, ...) must "
                f"have the shape {tuple(positions)}, got {tuple(y.shape)}; for outputs (batch, "
                "tokens, classes) use output=lambda o: o.logits.mT"
            )
        counted = y != self.ignore_index
        classes = y.long().where(counted, 0)
        if (
            y.numel()
            and not 0 <= int(classes.min()) <= int(classes.max()) < output.shape[1]
        ):
            raise InputError(
                f"targets must be class numbers in 0..{output.shape[1] - 1}"
            )
        weights = counted.to(output.dtype)
        if self.class_weights is None:
            return None if bool(counted.all()) else weights
        return weights * self.class_weights.to(weights)[classes]


def read_loss(loss: Loss) -> WeightedLoss:
    """Return a loss that has a name, with the settings of a torch.nn.CrossEntropyLoss."""
    usual = getattr(loss, "reduction", "") == "mean" and not getattr(
        loss, "label_smoothing", 0.0
    )
    if isinstance(loss, nn.CrossEntropyLoss) and usual:
        return WeightedLoss("cross_entropy", loss.weight, loss.ignore_index)
    return WeightedLoss(loss_name(loss))


def average(values: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean over positions; 0 if none counts."""
    if weights is None:
        return values.mean()
    return (weights * values).sum() / weights.sum().clamp(
        min=torch.finfo(values.dtype).tiny
    )


def quadratic(t: Tensor, mean: Tensor, loss: str) -> Tensor:
    """Return t' H t at each position."""
    diagonal, direction, scale = curvature(mean, loss)
    value = sum_outputs(diagonal * t * t, loss)
    if direction is not None:
        value = value - (direction * t).sum(1) ** 2
    return scale * value


def divergence(t: Tensor, mean: Tensor, loss: str) -> Tensor:
    """Return A(m + t) - A(m) - <A'(m), t> at each position; A is the loss but for -<y, m>.

    A is |m|^2, log sum_k exp(m_k) or sum_k log(1 + exp(m_k)). For t of mean 0 the expectation is
    what t adds to the loss, whatever y. t'Ht is the same to second order; it grows with |t|^2 where
    the loss grows with |t|, so that a few rows would rule its gradient.
    """
    if is_squared(loss):
        return quadratic(t, mean, loss)
    if loss == "logistic":
        value = (
            functional.softplus(mean + t)
            - functional.softplus(mean)
            - torch.sigmoid(mean) * t
        )
        return sum_outputs(value, loss)
    q = torch.log_softmax(
        _logits(mean), 1
    )  # A(m + t) - A(m) = log sum_k exp(q_k + t_k)
    return torch.logsumexp(q + t, 1) - (q.exp() * t).sum(1)


def curvature(mean: Tensor, loss: str) -> tuple[Tensor, Tensor | None, float]:
    """Return H = scale (diag(d) - w w') at each position as d, w (None: 0) and the scale."""
    if is_squared(loss):
        outputs = mean.numel() / (len(mean) if mean.ndim else 1)
        scale = 1.0 if loss == "squared" else 1 / outputs
        return torch.ones_like(mean), None, scale
    if loss == "logistic":
        p = torch.sigmoid(mean)
        return p * (1 - p), None, 0.5
    p = torch.softmax(_logits(mean), 1)
    return p, p, 0.5


def curved_variance(found: PropagatedOutput, loss: str) -> Tensor:
    """Return <H, Cov(output)> at each position, with H half the loss's second derivative."""
    diagonal, direction, scale = curvature(found.mean, loss)
    value = sum_outputs(diagonal * found.variances.total, loss)
    if direction is not None:
        value = value - found.along(direction)
    return scale * value


def sum_outputs(values: Tensor, loss: str) -> Tensor:
    """Sum over the outputs of each position: classes for cross-entropy, else all of a row."""
    if loss == "cross_entropy":
        return values.sum(1)
    return values.reshape(len(values) if values.ndim else 1, -1).sum(1)


def _logits(mean: Tensor) -> Tensor:
    """Return logits if there are classes for them."""
    if mean.ndim < 2 or mean.shape[1] < 2:
        raise InputError(
            "loss='cross_entropy' needs a model that returns (batch, at least 2 classes, ...), got "
            f"{tuple(mean.shape)}; for one logit use loss='logistic'"
        )
    return mean
