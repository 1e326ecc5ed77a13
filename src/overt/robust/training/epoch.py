"""One pass over the data: attack each batch, and step on what comes out."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from overt._check import InputError, InputTypeError, whole
from overt.robust.attack.base import Attack, Batch
from overt.robust.attack.pgd import FGSM
from overt.robust.keyed_random import keys_of
from overt.robust.losses import Targeted, find_loss, objective_of
from overt.robust.models import ModelAdapter, classes, evaluation_mode, pair
from overt.robust.threats import Region, tensor
from overt.robust.training.losses import Target, TrainingLoss

SEEN = 10
"""One in so many batches has its clean accuracy measured where clean inputs are not trained on."""


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
    batch_size = whole("batch_size", batch_size)
    if not isinstance(data, Iterable) or hasattr(data, "__array__"):
        raise InputTypeError(f"data must give batches (inputs, classes), got {data!r:.60}")
    if not isinstance(data, (tuple, list)) or not data or not hasattr(data[0], "__array__"):
        return data
    lengths = [part.shape[0] if getattr(part, "shape", ()) else None for part in data]
    if len(lengths) != 2 or lengths[0] != lengths[1]:
        raise InputError(
            "data must be one array of inputs and one of classes of the same length, got lengths "
            + ", ".join(map(str, lengths))
        )
    return _Shuffled(tensor("data", data[0]), tensor("data", data[1]), batch_size)


class WarmStarts:
    """The last perturbation of each input, found again by its content whatever its place.

    What two epochs have not seen again, as under augmentation, is forgotten.
    """

    def __init__(self) -> None:
        self._deltas: dict[int, Tensor] = {}
        self._before: dict[int, Tensor] = {}

    def recall(self, x: Tensor) -> Tensor:
        """Return x with the perturbations that are known."""
        moved = x.clone()
        for i, key in enumerate(keys_of(x, 0).tolist()):
            delta = self._deltas.get(key, self._before.get(key))
            if delta is not None:
                moved[i] += delta.to(x)
        return moved

    def store(self, x: Tensor, moved: Tensor) -> None:
        """Remember moved - x for each input."""
        for key, delta in zip(keys_of(x, 0).tolist(), (moved - x).detach(), strict=True):
            self._deltas[key] = delta.cpu()

    def next_epoch(self) -> None:
        """Forget what this epoch has not stored."""
        self._before, self._deltas = self._deltas, {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the content as tensors to be saved."""
        known = self._before | self._deltas
        if not known:
            return {}
        keys = torch.tensor(list(known), dtype=torch.int64)
        return {"keys": keys, "deltas": torch.stack(list(known.values()))}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Take over saved content."""
        if tensors:
            self._before = dict(zip(tensors["keys"].tolist(), tensors["deltas"], strict=True))


@dataclass(frozen=True, eq=False)
class Recipe:
    """What does not change from batch to batch."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    attack: Attack | None
    loss: TrainingLoss
    clean_fraction: float
    warm_starts: WarmStarts | None
    scaler: Any = None
    autocast: torch.dtype | None = None

    def casting(self, device: torch.device) -> Any:
        """Return the context in which the model is run."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(device.type, self.autocast)


class Epoch:
    """One pass over the data, with the sums of what happened so far.

    `sums` holds points, loss, robust hits, clean hits and the points that these are of; those of a
    pass that was cut short may be given. `radius_share` is the share of the attack's radius.
    """

    def __init__(self, recipe: Recipe, radius_share: float, sums: list[float] | None) -> None:
        self._recipe, self.sums = recipe, sums or [0.0] * 5
        if recipe.attack is not None:
            threat = recipe.attack.threat.with_radius(recipe.attack.threat.radius * radius_share)
            self._attack = dataclasses.replace(recipe.attack, threat=threat, early_exit=False)
            self._targeted = isinstance(recipe.attack.criterion, Targeted)
            self._objective = recipe.loss.inner or objective_of(
                find_loss(recipe.attack.loss), targeted=self._targeted
            )

    def step(self, batch: Any, seed: int, number: int) -> None:
        """Attack a batch (inputs, classes) and take one step of the optimizer."""
        given, r = pair(batch), self._recipe
        adapter = ModelAdapter(r.model, given[0], {})
        x, rows = adapter.x.to(adapter.device), torch.arange(len(adapter.x))
        y = _target(x, given[1])
        moved = x if r.attack is None else self._perturb(adapter, x, rows, y, seed)
        seen: list[tuple[float, int, int | None]] = []

        def closure() -> Tensor:
            r.optimizer.zero_grad()
            with r.casting(x.device):
                value, clean, robust = self._loss(adapter, x, moved, rows, y, number)
            if not torch.isfinite(value):
                raise InputError(
                    "training diverged: the loss is not finite; lower the learning rate"
                )
            (value if r.scaler is None else r.scaler.scale(value)).backward()
            seen.append((float(value.detach()), hits(robust, y.classes),
                         None if clean is None else hits(clean, y.classes)))  # fmt: skip
            return value

        if r.scaler is None:
            r.optimizer.step(closure)
        else:
            closure()
            r.scaler.step(r.optimizer)
            r.scaler.update()
        n, (loss, robust, clean) = len(x), seen[0]
        amounts = (n, n * loss, robust, clean or 0, n if clean is not None else 0)
        for i, amount in enumerate(amounts):
            self.sums[i] += amount

    def summary(self) -> dict[str, float]:
        """Return the means over the epoch."""
        n, loss, robust, clean, looked = self.sums
        if n == 0:
            raise InputError(
                "data must not be empty in any epoch; a generator is used up after one pass, a "
                "DataLoader or a list is not"
            )
        clean /= max(looked, 1)
        return {"loss": loss / n, "clean_accuracy": clean, "robust_accuracy": robust / n}

    def _loss(
        self, adapter: ModelAdapter, x: Tensor, moved: Tensor, rows: Tensor, y: Target, number: int
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return the loss of a batch, the logits of x, if known, and of the moved points."""
        r, clean = self._recipe, None
        c = r.clean_fraction if r.attack is not None else 0.0
        if moved is x:
            f = adapter.logits(x, rows)
            return r.loss.plain(f, y), f, f
        if c > 0 or r.loss.needs_clean:
            clean = adapter.logits(x, rows)
        robust = adapter.logits(moved, rows)
        check(y.classes, robust)
        value = r.loss.value(clean, robust, y)
        if clean is not None:
            return ((1 - c) * value + c * r.loss.plain(clean, y) if c > 0 else value), clean, robust
        if number % SEEN == 1:
            # In evaluation mode: no trace in batch normalization.
            with evaluation_mode(r.model, hidden=False), torch.no_grad():
                clean = adapter.logits(x, rows)
        return value, clean, robust

    def _perturb(
        self, adapter: ModelAdapter, x: Tensor, rows: Tensor, y: Target, seed: int
    ) -> Tensor:
        """Return what the attack makes of x, on all points to the end."""
        r, attack, target = self._recipe, self._attack, y.classes
        region = attack.threat.region(x)
        fast = isinstance(attack, FGSM) and attack.random_start is None
        with evaluation_mode(r.model, hidden=False), r.casting(x.device):
            if self._targeted:
                columns = adapter.logits(x[:1], rows[:1]).shape[1]
                target = attack.criterion.targets(y.classes, columns)
            if r.loss.inner is not None:
                with torch.no_grad():
                    target = r.loss.reference(adapter.logits(x, rows))
            delta = torch.zeros_like(region.x)
            if attack.random_start or fast:
                delta = _start(region, seed)
            elif r.loss.inner is not None:  # no slope at x itself
                delta = 1e-3 * _start(region, seed)
            known = None if r.warm_starts is None else r.warm_starts.recall(x)
            if known is not None and not torch.equal(known, x):
                delta = region.project((known - x).flatten(1))
            batch = Batch(
                adapter, rows, y.classes, target, region, self._objective, attack.criterion
            )
            draws = itertools.count(seed + 1)
            delta = attack.perturb(batch, delta, lambda: _start(region, next(draws)))
            moved = region.perturbed(delta).view_as(x)
        if r.warm_starts is not None:
            r.warm_starts.store(x, moved)
        return moved


def _target(x: Tensor, y: Any) -> Target:
    """Return classes, and rows of probabilities where those are given."""
    given = tensor("y", y).to(x.device)
    if given.ndim == 2 and given.shape[1] > 1:
        return Target(given.argmax(1), given.to(x))
    signed = not given.numel() or bool((given < 0).any())  # -1 and 1
    return Target(classes(y, x, 2 if signed else max(int(given.max()) + 1, 2)), None)


def _start(region: Region, seed: int) -> Tensor:
    """Return random allowed perturbations; in a cube by torch's own, faster generator."""
    if region.threat.order != torch.inf:
        return region.draw(seed)
    source = torch.Generator(region.x.device).manual_seed(seed)
    size = torch.empty_like(region.x).uniform_(-1, 1, generator=source)
    return region.project(size.mul_(region.threat.radius))


def check(y: Tensor, f: Tensor) -> None:
    """Refuse classes that the model does not have."""
    if int(y.max()) >= f.shape[1]:
        raise InputError(
            f"y must lie in 0..{f.shape[1] - 1} for a model of {f.shape[1]} classes, got up to "
            f"{int(y.max())}"
        )


def hits(f: Tensor, y: Tensor) -> int:
    """Return how many points have their own class as the largest logit."""
    return int((f.argmax(1) == y).sum())
