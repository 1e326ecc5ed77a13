"""Adversarial training: descend on what the attack makes of each batch.

    min over weights of  mean_i  l(f(x_i + delta_i), y_i)

with l the cross-entropy or another loss and delta_i the attack's perturbation of x_i. With an
attack that ascends the reflected loss this is the thesis's Algorithm 6 for any network.

The loss "trades" is l(f(x_i), y_i) + beta KL(p(x_i) | p(x_i + delta_i)) instead, and the attack
climbs its divergence (Zhang et al. 2019).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from operator import itemgetter
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div

from overt._check import (
    Floats,
    InputError,
    InputTypeError,
    choice,
    instance,
    number,
    whole,
)
from overt._running import meter
from overt.nn.data.batches import Batches, Inputs, as_tensor, is_pair
from overt.nn.data.models import modes, preserve_rng, restore_training
from overt.results import Result, Status
from overt.robust.attack.base import Attack, Batch
from overt.robust.losses import Objective, find_loss, find_targets, objective_of
from overt.robust.models import (
    BATCH_SIZE,
    ModelAdapter,
    classes,
    examples,
)
from overt.robust.training.checkpoints import TrainingCheckpoint

MAX_LOSS = 100.0
"""Mean training loss of an epoch from which training has diverged: beyond any guessing."""

COLUMNS = (
    "loss",
    "robust_accuracy",
    "holdout_clean_accuracy",
    "holdout_robust_accuracy",
)
"""What each epoch has one number of."""


@dataclass(frozen=True)
class TrainingConfig:
    """Settings of adversarial training that few runs change.

    Parameters
    ----------
    beta
        Weight of the second term of the loss "trades".
    step_scheduler_each
        Whether the scheduler is stepped after each "epoch" or each "batch".
    """

    beta: float = 6.0
    step_scheduler_each: str = "epoch"

    def __post_init__(self) -> None:
        number("beta", self.beta)
        choice("step_scheduler_each", self.step_scheduler_each, ("epoch", "batch"))


@dataclass(frozen=True, repr=False, eq=False)
class Training(Result):
    """How adversarial training went, one entry for each epoch; the model itself is in place.

    Attributes
    ----------
    loss
        Mean of the training loss.
    robust_accuracy
        On the training batches just before their steps: of what the attack made of them.
    holdout_clean_accuracy, holdout_robust_accuracy
        On the holdout after the epoch, without and with the attack; NaN without a holdout.
    epochs
        Epochs that were finished, resumed ones included.
    best_epoch
        The epoch, counted from 1, of the best robust accuracy on the holdout; 0 without one.
    status
        "finished", "interrupted", or "diverged": the loss of an epoch was beyond 100, and
        training stopped.
    """

    loss: Floats
    robust_accuracy: Floats
    holdout_clean_accuracy: Floats
    holdout_robust_accuracy: Floats
    epochs: int
    best_epoch: int
    status: Status


def adversarial_train(
    model: nn.Module,
    data: Any,
    attack: Attack | None,
    *,
    epochs: int = 10,
    batch_size: int = 64,
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: Any = None,
    loss: Any = "cross_entropy",
    holdout: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    seed: int = 0,
    config: TrainingConfig | None = None,
) -> Training:
    """Train `model` in place on attacked batches; start again with the same call after a kill.

    Parameters
    ----------
    model
        Any module that returns logits; one logit is trained as two classes. It is returned in the
        mode in which it was given.
    data
        A pair (inputs, classes) of arrays or tensors, a DataLoader, or any iterable of batches
        (inputs, classes), the same number in each epoch. Its order and whatever else samples from
        torch's generator follow from the seed and the epoch. A batch may be a dict with the
        classes under "labels", "y" or the like, and inputs a dict of the model's arguments.
    attack
        What each batch is attacked with, on all points to the end (early_exit does not apply), its
        last iterate counting; None for standard training.
    epochs
        Passes over the data in all, resumed ones included.
    batch_size
        Points of a batch, where the data are a pair of arrays.
    optimizer
        Any torch optimizer of the model's parameters; by default SGD, rate 0.1, momentum 0.9.
    scheduler
        A torch learning-rate scheduler of that optimizer, stepped after each epoch;
        ReduceLROnPlateau goes by the epoch's training loss.
    loss
        What is descended on: "cross_entropy" of the attacked inputs, "trades" (which also climbs
        its own loss), or a function (logits, y) -> mean.
    holdout
        Inputs and classes, or a DataLoader, not used in training, on which to report clean and
        robust accuracy after each epoch.
    checkpoint
        File (.safetensors) written after each epoch. If it exists, training resumes from it and
        reaches the same weights as if it had never stopped; another seed, attack or loss is
        refused. With a holdout the weights of the best epoch are stored beside it, in a file whose
        name ends in .best.safetensors.
    seed
        Seed of the order, of dropout and of the attack's random starts.
    config
        Further settings: weights of losses, schedules by batch.
    """
    instance("model", model, nn.Module, "a torch module")
    whole("epochs", epochs)
    whole("seed", seed, minimum=0)
    config = TrainingConfig() if config is None else config
    instance("config", config, TrainingConfig, "a TrainingConfig")
    if attack is not None:
        instance("attack", attack, Attack, "FGSM, BIM, PGD or None")
    if not callable(loss):
        choice("loss", loss, ("cross_entropy", "trades"))
    if scheduler is not None and not callable(getattr(scheduler, "step", None)):
        raise InputTypeError(f"scheduler must be a torch scheduler, got {scheduler!r}")
    optimizer = _optimizer(optimizer, model)
    batches = Batches(_shuffled(data, batch_size), model, repeated=True)
    held = None if holdout is None else examples(holdout, None, name="holdout")
    trainer = _Trainer(model, optimizer, attack, loss, config)
    settings = {
        "seed": str(seed),
        "attack": repr(attack),
        "loss": loss if isinstance(loss, str) else getattr(loss, "__name__", "own"),
        "config": repr(config),
    }
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    saved = TrainingCheckpoint(checkpoint, parts, settings)
    history: list[dict[str, float]] = saved.load()
    status = Status.FINISHED
    # What was frozen on purpose is known only inside a model in training mode.
    modules = () if model.training else tuple(model.modules())
    try:
        with (
            preserve_rng(),
            restore_training(modules, True),
            meter("adversarial training", epochs) as bar,
        ):
            bar.advance(len(history))
            while len(history) < epochs and status is Status.FINISHED:
                row = trainer.epoch(batches, scheduler, seed, len(history))
                row |= trainer.holdout_accuracy(held)
                history.append(row)
                if not row["loss"] <= MAX_LOSS:
                    status = Status.DIVERGED
                    break
                saved.save(history, best=held is not None and _best(history))
                mean = row["loss"]
                accuracy = row["robust_accuracy"]
                bar.advance(note=f"loss {mean:.3f} robust {accuracy:.3f}")
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    columns = {name: np.array([row[name] for row in history]) for name in COLUMNS}
    best = 0 if held is None else _best(history)
    return Training(**columns, epochs=len(history), best_epoch=best, status=status)


@dataclass(eq=False)
class _Trainer:
    """Attacks batches, and steps on what comes out."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    attack: Attack | None
    loss: Any
    config: TrainingConfig
    columns: int = 0  # of the model's logits, known after the first batch

    def __post_init__(self) -> None:
        if self.attack is not None:  # every point is attacked to the end
            self.attack = replace(self.attack, early_exit=False)

    def epoch(
        self, batches: Batches, scheduler: Any, seed: int, number: int
    ) -> dict[str, float]:
        """Train on all batches; return loss and accuracy, which follow from seed and number."""
        first = _mix(seed, number)
        torch.manual_seed(first)
        batches.seed(first)
        each = self.config.step_scheduler_each
        points = hits = 0
        total = 0.0
        for k, batch in enumerate(batches, 1):
            loss, right = self.step(batch.inputs, batch.y, _mix(seed, number, k))
            count = len(batch.inputs)
            points += count
            hits += right
            total += count * loss
            if not math.isfinite(loss):
                break
            if scheduler is not None and each == "batch":
                scheduler.step()
        mean = total / points
        if scheduler is not None and each == "epoch":
            if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                scheduler.step(mean)
            else:
                scheduler.step()
        return {"loss": mean, "robust_accuracy": hits / points}

    def step(self, inputs: Inputs, y: Any, seed: int) -> tuple[float, int]:
        """Attack a batch and step on it; return the mean loss and how many points were right."""
        adapter = ModelAdapter(self.model, inputs)
        x = adapter.x
        rows = torch.arange(len(x))
        if not self.columns:
            if self.attack is not None:  # refuse limits for single points
                self.attack.threat.input_bounds(x[:1])
            with modes(self.model, noise=False):
                self.columns = adapter.all_logits(x[:1], 1).shape[1]
        y = classes(y, x, self.columns)
        moved = x
        if self.attack is not None:
            moved = self._perturb(self.attack, adapter, x, y, seed)
        robust = adapter.logits(moved, rows)
        clean = adapter.logits(x, rows) if self.loss == "trades" else None
        loss = self._mean_loss(clean, robust, y)
        value = float(loss.detach())
        if math.isfinite(value):
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return value, _hits(robust, y)

    def holdout_accuracy(self, held: Any) -> dict[str, float]:
        """Return clean and robust accuracy on the holdout, NaN without one."""
        clean = robust = float("nan")
        if held is not None:
            adapter = ModelAdapter(self.model, held[0])
            with modes(self.model, noise=False):
                logits = adapter.clean_logits(BATCH_SIZE)
            y = classes(held[1], adapter.x, logits.shape[1])
            clean = robust = _hits(logits, y) / len(y)
            if self.attack is not None:
                attack = replace(self.attack, early_exit=True)
                found = attack(self.model, held[0], y, warn=False)
                if found.status is Status.INTERRUPTED:
                    raise KeyboardInterrupt
                robust = found.robust_accuracy
        return {"holdout_clean_accuracy": clean, "holdout_robust_accuracy": robust}

    def _perturb(
        self, attack: Attack, adapter: ModelAdapter, x: Tensor, y: Tensor, seed: int
    ) -> Tensor:
        """Return what the attack makes of x, on all points to the end."""
        region = attack.threat.region(x)
        rows = torch.arange(len(x))
        seeds = count(seed)
        target = attack.target
        if target is not None:
            # One class for all: batches are shuffled.
            target = find_targets(target, y[:1], self.columns).expand_as(y)
        objective: Objective = _divergence

        def draw() -> Tensor:
            return region.draw(next(seeds), shared=False)

        with modes(self.model, noise=False):
            start = draw() if attack.random_start else torch.zeros_like(region.x)
            if self.loss == "trades":
                with torch.no_grad():
                    target = adapter.logits(x, rows).log_softmax(1)
                if not attack.random_start:  # there is no slope at x itself
                    start = 1e-3 * draw()
            else:
                own = find_loss(attack.loss)
                objective = objective_of(own, targeted=target is not None)
            batch = Batch(
                adapter=adapter,
                rows=rows,
                y=y,
                target=y if target is None else target,
                region=region,
                objective=objective,
                targeted=self.loss != "trades" and attack.target is not None,
            )
            delta = attack.perturb(batch, start, draw)
        return region.perturbed(delta).view_as(x)

    def _mean_loss(self, clean: Tensor | None, robust: Tensor, y: Tensor) -> Tensor:
        """Return the loss of a batch from the logits of its inputs, attacked and clean."""
        if clean is not None:
            divergence = _divergence(robust, y, clean.log_softmax(1)).mean()
            return cross_entropy(clean, y) + self.config.beta * divergence
        if isinstance(self.loss, str):
            return cross_entropy(robust, y)
        value: Tensor = self.loss(robust, y)
        if value.ndim:
            raise InputError(f"loss must return a mean, got shape {tuple(value.shape)}")
        return value


def _divergence(robust: Tensor, y: Tensor, clean: Tensor) -> Tensor:
    """Return KL(p(x) | p(x')) for each point; `clean` are logarithms of p(x)."""
    logs = robust.log_softmax(1)
    return kl_div(logs, clean, log_target=True, reduction="none").sum(1)


def _hits(logits: Tensor, y: Tensor) -> int:
    """Return how many points have their own class as the largest logit."""
    return int((logits.argmax(1) == y).sum())


@dataclass(frozen=True, eq=False)
class _Shuffled:
    """Arrays as batches, in an order that each pass samples from torch's generator."""

    inputs: Inputs
    y: Tensor
    batch_size: int

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        for rows in torch.randperm(len(self.y)).split(self.batch_size):
            part = self.inputs.map(itemgetter(rows))
            yield part.given, self.y[rows]


def _shuffled(data: Any, batch_size: int) -> Iterable[Any]:
    """Return the data as batches (inputs, classes): a pair of arrays is shuffled and cut."""
    batch_size = whole("batch_size", batch_size)
    if not is_pair(data):
        return data
    inputs = Inputs.of(data[0], "data")
    y = as_tensor("data", data[1])
    if len(inputs) != len(y):
        raise InputError(
            f"data must have a class for each input, got {len(inputs)} inputs and {len(y)} classes"
        )
    return _Shuffled(inputs, y, batch_size)


def _best(history: list[dict[str, float]]) -> int:
    """Return the epoch, from 1, of the best robust accuracy on the holdout; clean breaks ties."""
    names = ("holdout_robust_accuracy", "holdout_clean_accuracy")
    score = [tuple(row[name] for name in names) for row in history]
    if not score:
        return 0
    return score.index(max(score)) + 1


def _optimizer(optimizer: Any, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer, which must be one of this model's parameters, or the default one."""
    if optimizer is None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    instance("optimizer", optimizer, torch.optim.Optimizer, "a torch optimizer")
    own = {id(weight) for weight in model.parameters() if weight.requires_grad}
    held = [weight for group in optimizer.param_groups for weight in group["params"]]
    if not any(id(weight) in own for weight in held):
        raise InputError(
            "optimizer must hold parameters of the model that require a gradient, it holds none "
            "of them"
        )
    return optimizer


def _mix(*parts: int) -> int:
    return crc32(repr(parts).encode())
