"""One pass over the data: attack each batch, and step on what comes out."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from overt._check import InputError
from overt.robust.attack.base import Attack, Batch
from overt.robust.attack.pgd import FGSM
from overt.robust.losses import Targeted, find_loss, objective_of
from overt.robust.models import ModelAdapter, classes, evaluation_mode, split_labeled
from overt.robust.threats import Region, tensor
from overt.robust.training.losses import Target, TrainingLoss

CLEAN_PERIOD = 10
"""One batch in 10 has its clean accuracy measured where clean inputs are not trained on."""


@dataclass(frozen=True, eq=False)
class Recipe:
    """What does not change from batch to batch."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    attack: Attack | None
    loss: TrainingLoss
    clean_fraction: float
    scaler: Any = None
    autocast: torch.dtype | None = None

    def casting(self, device: torch.device) -> Any:
        """Return the context in which the model is run."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(device.type, self.autocast)


@dataclass(frozen=True, eq=False)
class _Points:
    """The inputs of a batch and their classes."""

    adapter: ModelAdapter
    x: Tensor
    rows: Tensor
    y: Target

    @classmethod
    def of(cls, model: nn.Module, batch: Any) -> _Points:
        inputs, y = split_labeled(batch)
        adapter = ModelAdapter(model, inputs, {})
        x = adapter.x.to(adapter.device)
        return cls(adapter, x, torch.arange(len(x)), _target(x, y))

    def logits(self, moved: Tensor) -> Tensor:
        found = self.adapter.logits(moved, self.rows)
        if int(self.y.classes.max()) >= found.shape[1]:
            raise InputError(
                f"y must lie in 0..{found.shape[1] - 1} for a model of {found.shape[1]} classes, "
                f"got up to {int(self.y.classes.max())}"
            )
        return found


class Epoch:
    """One pass over the data, with the sums of what happened so far.

    `sums` holds points, loss, robust hits, clean hits and the points that these are of; those of a
    pass that was cut short may be given.
    """

    def __init__(self, recipe: Recipe, sums: list[float] | None) -> None:
        self._recipe = recipe
        self.sums = sums or [0.0] * 5
        attack = recipe.attack
        if attack is not None:
            self._attack = replace(attack, early_exit=False)
            self._targeted = isinstance(attack.criterion, Targeted)
            own = objective_of(find_loss(attack.loss), targeted=self._targeted)
            self._objective = recipe.loss.inner or own

    def step(self, batch: Any, seed: int, number: int) -> None:
        """Attack a batch (inputs, classes) and take one step of the optimizer."""
        recipe = self._recipe
        points = _Points.of(recipe.model, batch)
        moved = points.x if recipe.attack is None else self._perturb(points, seed)
        seen: list[tuple[float, int, int | None]] = []

        def closure() -> Tensor:
            recipe.optimizer.zero_grad()
            with recipe.casting(points.x.device):
                value, clean, robust = self._loss(points, moved, number)
            if not torch.isfinite(value):
                raise InputError(
                    "training diverged: the loss is not finite; lower the learning rate"
                )
            scaled = value if recipe.scaler is None else recipe.scaler.scale(value)
            scaled.backward()
            y = points.y.classes
            right = None if clean is None else count_hits(clean, y)
            seen.append((float(value.detach()), count_hits(robust, y), right))
            return value

        if recipe.scaler is None:
            recipe.optimizer.step(closure)
        else:
            closure()
            recipe.scaler.step(recipe.optimizer)
            recipe.scaler.update()
        n = len(points.x)
        loss, robust, clean = seen[0]
        new = (n, n * loss, robust, clean or 0, 0 if clean is None else n)
        self.sums = [
            total + amount for total, amount in zip(self.sums, new, strict=True)
        ]

    def summary(self) -> dict[str, float]:
        """Return the means over the epoch."""
        n, loss, robust, clean, measured = self.sums
        if n == 0:
            raise InputError(
                "data must not be empty in any epoch; a generator is used up after one pass, a "
                "DataLoader or a list is not"
            )
        return {
            "loss": loss / n,
            "clean_accuracy": clean / max(measured, 1),
            "robust_accuracy": robust / n,
        }

    def _loss(
        self, points: _Points, moved: Tensor, number: int
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return the loss of a batch, the logits of x, if known, and of the moved points."""
        recipe = self._recipe
        loss = recipe.loss
        if recipe.attack is None:
            logits = points.logits(points.x)
            return loss.plain(logits, points.y), logits, logits
        share = recipe.clean_fraction
        clean = points.logits(points.x) if share > 0 or loss.needs_clean else None
        robust = points.logits(moved)
        value = loss.value(clean, robust, points.y)
        if clean is not None and share > 0:
            value = (1 - share) * value + share * loss.plain(clean, points.y)
        if clean is None and number % CLEAN_PERIOD == 1:
            # In evaluation mode: no trace in batch normalization.
            with evaluation_mode(recipe.model, hidden=False), torch.no_grad():
                clean = points.logits(points.x)
        return value, clean, robust

    def _perturb(self, points: _Points, seed: int) -> Tensor:
        """Return what the attack makes of x, on all points to the end."""
        recipe, attack = self._recipe, self._attack
        region = attack.threat.region(points.x)
        seeds = itertools.count(seed)

        def draw() -> Tensor:
            return _start(region, next(seeds))

        with (
            evaluation_mode(recipe.model, hidden=False),
            recipe.casting(points.x.device),
        ):
            target = self._target(points)
            start = torch.zeros_like(region.x)
            if attack.random_start or (
                isinstance(attack, FGSM) and attack.random_start is None
            ):
                start = draw()
            elif recipe.loss.inner is not None:  # no slope at x itself
                start = 1e-3 * draw()
            batch = Batch(
                points.adapter,
                points.rows,
                points.y.classes,
                target,
                region,
                self._objective,
                attack.criterion,
            )
            delta = attack.perturb(batch, start, draw)
            return region.perturbed(delta).view_as(points.x)

    def _target(self, points: _Points) -> Tensor:
        """Return what the objective compares with: classes to reach, or the clean outputs."""
        y = points.y.classes
        if self._recipe.loss.inner is not None:
            with torch.no_grad():
                return self._recipe.loss.reference(points.logits(points.x))
        if self._targeted:
            columns = points.adapter.logits(points.x[:1], points.rows[:1]).shape[1]
            return self._attack.criterion.targets(y, columns)
        return y


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


def count_hits(logits: Tensor, y: Tensor) -> int:
    """Return how many points have their own class as the largest logit."""
    return int((logits.argmax(1) == y).sum())
