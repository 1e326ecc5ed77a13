"""Training losses, given the logits at the inputs and at the attacked inputs.

    cross_entropy   l(f(x'), y)
    trades          l(f(x), y) + beta KL(p(x) | p(x'))                      (Zhang et al. 2019)
    mart            l(f(x'), y) - log(1 - max_{j != y} p_j(x'))
                    + beta (1 - p_y(x)) KL(p(x) | p(x'))                    (Wang et al. 2020)

with l the cross-entropy, means over the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from overt._check import InputError, InputTypeError, choice, number
from overt.robust.losses import Objective

NAMES = ("cross_entropy", "trades", "mart")


@dataclass(frozen=True, eq=False)
class Target:
    """True classes (points,), and rows of probabilities (points, classes) where given."""

    classes: Tensor
    soft: Tensor | None

    @property
    def given(self) -> Tensor:
        """Arguments of a loss."""
        return self.classes if self.soft is None else self.soft


@dataclass(frozen=True)
class TrainingLoss:
    """A loss of training: a name with its weight beta, or a function (logits, y) -> mean."""

    kind: str | Callable[[Tensor, Tensor], Tensor] = "cross_entropy"
    beta: float = 6.0

    @classmethod
    def of(cls, loss: Any, beta: float) -> TrainingLoss:
        """Return the loss of this name, or a function, checked."""
        if not isinstance(loss, str) and not callable(loss):
            raise InputTypeError(f"loss must be a name or a function, got {loss!r}")
        kind = choice("loss", loss, NAMES) if isinstance(loss, str) else loss
        return cls(kind, number("beta", beta))

    @property
    def needs_clean(self) -> bool:
        """Whether logits of the inputs themselves take part."""
        return self.kind in ("trades", "mart")

    @property
    def inner(self) -> Objective | None:
        """The attack's loss in place of its default: KL(p(x) | p(x')) for trades."""
        return _divergence if self.kind == "trades" else None

    def reference(self, clean: Tensor) -> Tensor:
        """Return what the inner objective compares with."""
        return clean.detach().log_softmax(1)

    def plain(self, logits: Tensor, y: Target) -> Tensor:
        """Return the loss at the inputs themselves."""
        if not isinstance(self.kind, str):
            return _scalar(self.kind(logits, y.given))
        return cross_entropy(logits, y.given)

    def value(self, clean: Tensor | None, robust: Tensor, y: Target) -> Tensor:
        """Return the loss of a batch."""
        if clean is None or not self.needs_clean:
            return self.plain(robust, y)
        apart = _divergence(robust, y.classes, clean.log_softmax(1))
        if self.kind == "trades":
            return cross_entropy(clean, y.given) + self.beta * apart.mean()
        own = y.classes[:, None]
        rival = robust.softmax(1).scatter(1, own, 0).amax(1)
        unsure = 1 - clean.softmax(1).gather(1, own).squeeze(1)
        boosted = cross_entropy(robust, y.given) - torch.log(1.0001 - rival).mean()
        return boosted + self.beta * (unsure * apart).mean()


def _divergence(robust: Tensor, y: Tensor, clean: Tensor) -> Tensor:
    """Return KL(p(x) | p(x')) for each point; `clean` are logarithms of p(x)."""
    return kl_div(robust.log_softmax(1), clean, log_target=True, reduction="none").sum(
        1
    )


def _scalar(value: Tensor) -> Tensor:
    if value.ndim:
        raise InputError(f"loss must return a mean, got shape {tuple(value.shape)}")
    return value
