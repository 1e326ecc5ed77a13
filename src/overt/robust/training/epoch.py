"""One pass over the data: attack each batch, and step on what comes out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from overt._check import InputError, InputTypeError, whole
from overt.results import Status
from overt.robust.attacks.base import Attack
from overt.robust.attacks.models import classes, evaluating, inputs, logits
from overt.robust.attacks.results import AttackResult
from overt.robust.threats.base import tensor
from overt.robust.threats.keyed_random import keys_of


@dataclass(frozen=True, eq=False)
class _Shuffled:
    """Arrays as batches, in an order that each pass draws from torch's generator."""

    x: Tensor
    y: Tensor
    batch_size: int

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.randperm(len(self.x)).split(self.batch_size):
            yield self.x[rows], self.y[rows]


def batches(data: Any, batch_size: int) -> Iterable[Any]:
    """Return the data as batches (inputs, classes): a pair of arrays is shuffled and cut."""
    whole("batch_size", batch_size)
    if not isinstance(data, Iterable):
        raise InputTypeError(f"data must give batches (inputs, classes), got {data!r}")
    if not isinstance(data, (tuple, list)) or not data or not hasattr(data[0], "__array__"):
        return data
    if len(data) != 2 or len(data[0]) != len(data[1]):
        raise InputError(
            "data must be one array of inputs and one of classes of the same length, got lengths "
            + ", ".join(str(len(part)) for part in data)
        )
    return _Shuffled(tensor("data", data[0]), tensor("data", data[1]), batch_size)


class WarmStarts:
    """The last perturbation of each input, found again by its content whatever its place."""

    def __init__(self) -> None:
        self._deltas: dict[int, Tensor] = {}

    def recall(self, x: Tensor) -> Tensor:
        """Return x with the perturbations that are known."""
        moved = x.clone()
        for i, key in enumerate(keys_of(x, 0).tolist()):
            if key in self._deltas:
                moved[i] += self._deltas[key].to(x)
        return moved

    def store(self, x: Tensor, moved: Tensor) -> None:
        """Remember moved - x for each input."""
        for key, delta in zip(keys_of(x, 0).tolist(), (moved - x).detach(), strict=True):
            self._deltas[key] = delta.cpu()

    def tensors(self) -> dict[str, Tensor]:
        """Return the content as tensors to be saved."""
        if not self._deltas:
            return {}
        return {
            "keys": torch.tensor(list(self._deltas), dtype=torch.int64),
            "deltas": torch.stack(list(self._deltas.values())),
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take over saved content."""
        if tensors:
            self._deltas = dict(zip(tensors["keys"].tolist(), tensors["deltas"], strict=True))


class Epoch:
    """One pass over the data, with the sums of what happened so far.

    `sums` holds points, loss, clean hits and robust hits; those of a pass that was cut short may be
    given. `radius_share` is the share of the attack's radius that is used.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, attack: Attack | None,
        clean_fraction: float, warm_starts: WarmStarts | None, radius_share: float,
        sums: list[float] | None,
    ) -> None:  # fmt: skip
        self._model, self._optimizer, self._attack = model, optimizer, attack
        self._clean_fraction = clean_fraction if attack is not None else 0.0
        self._warm_starts, self._radius_share = warm_starts, radius_share
        self.sums = sums or [0.0, 0.0, 0.0, 0.0]

    def step(self, batch: Any, seed: int) -> None:
        """Attack a batch (inputs, classes) and take one step of the optimizer."""
        if not isinstance(batch, (tuple, list)) or len(batch) < 2:
            raise InputError("data must give batches (inputs, classes)")
        x = inputs(self._model, batch[0])
        self._model.train()
        moved = x if self._attack is None else self._perturb(self._attack, x, batch[1], seed)
        seen: list[tuple[float, int, int]] = []

        def closure() -> Tensor:
            self._optimizer.zero_grad()
            loss, clean, robust, y = self._loss(x, moved, batch[1])
            if not torch.isfinite(loss):
                raise InputError(
                    "training diverged: the loss is not finite; lower the learning rate"
                )
            loss.backward()
            seen.append((float(loss.detach()), hits(clean, y), hits(robust, y)))
            return loss

        self._optimizer.step(closure)
        n, (loss, clean, robust) = len(x), seen[0]
        for i, amount in enumerate((n, n * loss, clean, robust)):
            self.sums[i] += amount

    def summary(self) -> dict[str, float]:
        """Return the means over the epoch."""
        n, loss, clean, robust = self.sums
        if n == 0:
            raise InputError(
                "data must not be empty in any epoch; a generator is used up after one pass, a "
                "DataLoader or a list is not"
            )
        return {"loss": loss / n, "clean_accuracy": clean / n, "robust_accuracy": robust / n}

    def _loss(self, x: Tensor, moved: Tensor, y: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the loss of a batch, the logits of x and of the moved points, and the classes."""
        c, robust = self._clean_fraction, logits(self._model, moved)
        y = classes(y, x, robust.shape[1])
        loss = cross_entropy(robust, y)
        if c > 0:
            clean = logits(self._model, x)
            return (1 - c) * loss + c * cross_entropy(clean, y), clean, robust, y
        if moved is x:
            return loss, robust, robust, y
        with evaluating(self._model), torch.no_grad():  # no trace in batch normalization
            return loss, logits(self._model, x), robust, y

    def _perturb(self, attack: Attack, x: Tensor, y: Any, seed: int) -> Tensor:
        """Return what the attack makes of x, on all points to the end."""
        threat = attack.threat.at(attack.threat.radius * self._radius_share)
        attack = dataclasses.replace(
            attack, threat=threat, early_exit=False, batch_size=len(x), seed=seed
        )
        start = None if self._warm_starts is None else self._warm_starts.recall(x)
        if start is not None and torch.equal(start, x):  # nothing known: as the attack would
            start = None
        moved = finished(attack(self._model, x, y, start=start, warn=False)).x
        if self._warm_starts is not None:
            self._warm_starts.store(x, moved)
        return moved


def finished(result: AttackResult) -> AttackResult:
    """Pass an interruption of the attack on: half-attacked points are not to be trained on."""
    if result.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    return result


def hits(f: Tensor, y: Tensor) -> int:
    """Return how many points have their own class as the largest logit."""
    return int((f.argmax(1) == y).sum())
