"""Adversarial training: descend on what the attack makes of each batch.

    min over weights of  mean_i  (1 - c) l(f(x_i + delta_i), y_i) + c l(f(x_i), y_i)

with l the cross-entropy or another loss, delta_i the attack's perturbation of x_i and c the clean
fraction. With an attack that ascends the reflected loss this is the thesis's Algorithm 6 for any
network.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt._check import InputError, InputTypeError, choice, instance, number, whole
from overt._progress import meter
from overt._types import Floats
from overt.results import Result, Status
from overt.robust.attack.base import Attack
from overt.robust.losses import Deviates
from overt.robust.models import (
    BATCH_SIZE,
    ModelAdapter,
    classes,
    evaluation_mode,
    examples,
    split_labeled,
)
from overt.robust.threats import tensor
from overt.robust.training.checkpoints import TrainingCheckpoint
from overt.robust.training.epoch import Epoch, Recipe, count_hits
from overt.robust.training.losses import TrainingLoss

MAX_LOSS = 100.0
"""Mean training loss of an epoch from which training has diverged: beyond any guessing."""

COLUMNS = (
    "loss",
    "clean_accuracy",
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
        Weight of the second term of the losses "trades" and "mart".
    clean_fraction
        Weight of the clean loss, 0 to 1.
    step_scheduler_each
        Whether the scheduler is stepped after each "epoch" or each "batch".
    autocast, scaler
        The number format that the model is run in, such as torch.bfloat16, and a torch GradScaler.
    checkpoint_every
        Also save the checkpoint after every this many batches; 0: after epochs only.
    on_epoch
        Called with each epoch's numbers.
    """

    beta: float = 6.0
    clean_fraction: float = 0.0
    step_scheduler_each: str = "epoch"
    autocast: torch.dtype | None = None
    scaler: Any = None
    checkpoint_every: int = 0
    on_epoch: Callable[[dict[str, float]], None] | None = None

    def __post_init__(self) -> None:
        number("beta", self.beta)
        if number("clean_fraction", self.clean_fraction) > 1:
            raise InputError(
                f"clean_fraction must lie in [0, 1], got {self.clean_fraction!r}"
            )
        choice("step_scheduler_each", self.step_scheduler_each, ("epoch", "batch"))
        if self.autocast is not None:
            instance(
                "autocast",
                self.autocast,
                torch.dtype,
                "a torch.dtype such as torch.bfloat16",
            )
        if self.scaler is not None and not callable(
            getattr(self.scaler, "scale", None)
        ):
            raise InputTypeError(
                f"scaler must be a torch.amp.GradScaler, got {self.scaler!r:.60}"
            )
        whole("checkpoint_every", self.checkpoint_every, minimum=0)
        if self.on_epoch is not None and not callable(self.on_epoch):
            raise InputTypeError(
                f"on_epoch must be a function of a row, got {self.on_epoch!r:.60}"
            )


@dataclass(frozen=True, repr=False, eq=False)
class Training(Result):
    """How adversarial training went, one entry for each epoch; the model itself is in place.

    Attributes
    ----------
    loss
        Mean of the training loss.
    clean_accuracy, robust_accuracy
        On the training batches just before their steps: of the inputs (in evaluation mode and on
        one batch in ten unless they are trained on), and of what the attack made of them (equal
        without an attack).
    holdout_clean_accuracy, holdout_robust_accuracy
        The same on the holdout after the epoch; NaN without it.
    epochs
        Epochs that were finished, resumed ones included.
    best_epoch
        The epoch, counted from 1, of the best robust accuracy on the holdout; 0 without one.
    status
        "finished", "interrupted", or "diverged": the loss of an epoch was beyond 100.
    """

    loss: Floats
    clean_accuracy: Floats
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
        classes under "labels", "y" or the like, inputs a dict of the model's arguments, and
        classes may be rows of probabilities.
    attack
        What each batch is attacked with, on all points to the end (early_exit does not apply), its
        last iterate counting; None for standard training. FGSM starts at random by default.
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
        its own loss) or "mart", or a function (logits, y) -> mean.
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
        Further settings: weights of losses, mixed precision, schedules by batch, callbacks.
    """
    instance("model", model, nn.Module, "a torch module")
    if attack is not None and not isinstance(attack, Attack):
        raise InputTypeError(
            f"attack must be FGSM, BIM, PGD or None, got {type(attack).__name__}"
        )
    if attack is not None and isinstance(attack.criterion, Deviates):
        raise InputError(
            "attack must have a criterion of classes in training, got Deviates"
        )
    whole("epochs", epochs)
    whole("seed", seed, minimum=0)
    config = TrainingConfig() if config is None else config
    instance("config", config, TrainingConfig, "a TrainingConfig")
    _check_scheduler(scheduler, config)
    batches = _batches(data, batch_size)
    held = None if holdout is None else _Holdout(model, holdout)
    attack = _with_data_bounds(attack, batches, held)
    recipe = Recipe(
        model=model,
        optimizer=_optimizer(optimizer, model),
        attack=attack,
        loss=TrainingLoss.of(loss, config.beta),
        clean_fraction=float(config.clean_fraction),
        scaler=config.scaler,
        autocast=config.autocast,
    )
    parts = {
        "model": model,
        "optimizer": recipe.optimizer,
        "scheduler": scheduler,
        "scaler": config.scaler,
    }
    saved = TrainingCheckpoint(checkpoint, parts, _settings(recipe, seed))
    run = _Run(recipe, batches, scheduler, held, saved, seed, config)
    modes = {module: module.training for module in model.modules()}
    if not model.training:
        model.train()  # what was frozen on purpose is known only inside a model in training mode
    try:
        with torch.random.fork_rng(devices=list(range(torch.cuda.device_count()))):
            status = run(epochs)
    finally:
        for module, mode in modes.items():
            module.training = mode
    columns = {name: np.array([row[name] for row in run.history]) for name in COLUMNS}
    best = 0 if held is None else _best(run.history)
    return Training(**columns, epochs=len(run.history), best_epoch=best, status=status)


@dataclass(eq=False)
class _Run:
    """The epochs of one training, and their numbers so far."""

    recipe: Recipe
    batches: Iterable[Any]
    scheduler: Any
    held: _Holdout | None
    saved: TrainingCheckpoint
    seed: int
    config: TrainingConfig

    def __post_init__(self) -> None:
        self.history: list[dict[str, float]] = []

    def __call__(self, epochs: int) -> Status:
        """Train until there are this many epochs; return how it ended."""
        done, sums = self.saved.load(self.history)
        try:
            with meter("adversarial training", epochs) as bar:
                bar.advance(len(self.history))
                while len(self.history) < epochs:
                    row = self._epoch(done, sums)
                    done, sums = 0, None
                    clean, robust = row["clean_accuracy"], row["robust_accuracy"]
                    bar.advance(note=f"clean {clean:.3f} robust {robust:.3f}")
        except KeyboardInterrupt:
            return Status.INTERRUPTED
        diverged = any(not row["loss"] <= MAX_LOSS for row in self.history)
        return Status.DIVERGED if diverged else Status.FINISHED

    def _epoch(self, done: int, sums: list[float] | None) -> dict[str, float]:
        number = len(self.history)
        every = self.config.checkpoint_every
        epoch = Epoch(self.recipe, sums)
        for count, batch in self._left(number, done):
            epoch.step(batch, _mix(self.seed, number, count), count)
            self._step_scheduler("batch")
            if every and count % every == 0:
                self.saved.save(self.history, count, epoch.sums)
        row = epoch.summary()
        self._step_scheduler("epoch", row["loss"])
        row |= _holdout_accuracy(self.recipe, self.held)
        self.history.append(row)
        self.saved.save(self.history, 0, None)
        if self.held is not None and _best(self.history) == len(self.history):
            self.saved.save_best()
        if self.config.on_epoch is not None:
            self.config.on_epoch(row)
        return row

    def _left(self, number: int, done: int) -> Iterator[tuple[int, Any]]:
        """Yield the epoch's batches after those done, numbered from 1, as if never stopped."""
        seed = _mix(self.seed, number)
        torch.manual_seed(seed)
        generator = getattr(self.batches, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)
        for count, batch in enumerate(self.batches, 1):
            if count > done:
                yield count, batch
            elif count == done:
                self.saved.restore_random()

    def _step_scheduler(self, after: str, *loss: float) -> None:
        if self.scheduler is None or self.config.step_scheduler_each != after:
            return
        by_loss = isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
        self.scheduler.step(*(loss if by_loss else ()))


@dataclass(frozen=True, eq=False)
class _Shuffled:
    """Arrays as batches, in an order that each pass samples from torch's generator."""

    x: Tensor
    y: Tensor
    batch_size: int

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.randperm(len(self.x)).split(self.batch_size):
            yield self.x[rows], self.y[rows]


def _batches(data: Any, batch_size: int) -> Iterable[Any]:
    """Return the data as batches (inputs, classes): a pair of arrays is shuffled and cut."""
    batch_size = whole("batch_size", batch_size)
    if not isinstance(data, Iterable) or hasattr(data, "__array__"):
        raise InputTypeError(
            f"data must give batches (inputs, classes), got {data!r:.60}"
        )
    if (
        not isinstance(data, (tuple, list))
        or not data
        or not hasattr(data[0], "__array__")
    ):
        return data
    lengths = [part.shape[0] if getattr(part, "shape", ()) else None for part in data]
    if len(lengths) != 2 or lengths[0] != lengths[1]:
        raise InputError(
            "data must be one array of inputs and one of classes of the same length, got lengths "
            + ", ".join(map(str, lengths))
        )
    return _Shuffled(tensor("data", data[0]), tensor("data", data[1]), batch_size)


def _best(history: list[dict[str, float]]) -> int:
    """Return the epoch, from 1, of the best robust accuracy on the holdout; clean breaks ties."""
    score = [
        (row["holdout_robust_accuracy"], row["holdout_clean_accuracy"])
        for row in history
    ]
    return score.index(max(score)) + 1 if score else 0


def _settings(recipe: Recipe, seed: int) -> dict[str, str]:
    """Return what a checkpoint must agree in with the call that resumes it, in words."""
    loss = recipe.loss
    kind = (
        loss.kind
        if isinstance(loss.kind, str)
        else getattr(loss.kind, "__name__", "own")
    )
    return {
        "seed": str(seed),
        "attack": repr(recipe.attack),
        "loss": f"{kind}, beta {loss.beta:g}",
        "clean_fraction": f"{recipe.clean_fraction:g}",
    }


def _check_scheduler(scheduler: Any, config: TrainingConfig) -> None:
    if scheduler is not None and not callable(getattr(scheduler, "step", None)):
        raise InputTypeError(f"scheduler must be a torch scheduler, got {scheduler!r}")
    by_loss = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
    if by_loss and config.step_scheduler_each == "batch":
        raise InputError(
            "step_scheduler_each must be 'epoch' for ReduceLROnPlateau, got 'batch'"
        )


def _optimizer(optimizer: Any, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer, which must be one of this model's parameters, or the default one."""
    if optimizer is None:
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputTypeError(f"optimizer must be a torch optimizer, got {optimizer!r}")
    own = {id(weight) for weight in model.parameters()}
    if not any(
        id(weight) in own
        for group in optimizer.param_groups
        for weight in group["params"]
    ):
        raise InputError(
            "optimizer must hold parameters of the model, it holds none of them"
        )
    return optimizer


class _Holdout:
    """Data not used in training, checked before any time is spent on it."""

    def __init__(self, model: nn.Module, given: Any) -> None:
        arrays = isinstance(given, (tuple, list)) and len(given) == 2
        batches = isinstance(given, Iterable) and not isinstance(given, dict)
        if not arrays and (hasattr(given, "__array__") or not batches):
            raise InputTypeError(
                "holdout must be a pair (inputs, classes) or give such batches, got "
                f"{type(given).__name__}"
            )
        self.inputs, y, _ = examples(*given) if arrays else examples(given, None)
        adapter = ModelAdapter(model, self.inputs, {})
        with evaluation_mode(model):
            count = adapter.all_logits(adapter.x[:1], 1).shape[1]
        self.x = adapter.x
        self.y = classes(y, adapter.x, count)


def _with_data_bounds(
    attack: Attack | None, batches: Iterable[Any], held: _Holdout | None
) -> Attack | None:
    """Return the attack with bounds from all of the data, where they are "data"."""
    if attack is None or not isinstance(attack.threat.bounds, str):
        return attack
    with torch.random.fork_rng():
        ranges = [
            tensor("data", split_labeled(batch)[0]).aminmax() for batch in batches
        ]
    if held is not None:
        ranges.append(held.x.aminmax())
    if not ranges:
        return attack
    bounds = min(float(r.min) for r in ranges), max(float(r.max) for r in ranges)
    return replace(attack, threat=replace(attack.threat, bounds=bounds))


def _holdout_accuracy(recipe: Recipe, held: _Holdout | None) -> dict[str, float]:
    """Return clean and robust accuracy on the holdout, NaN without one."""
    clean = robust = float("nan")
    if held is not None:
        with evaluation_mode(recipe.model):
            logits = ModelAdapter(recipe.model, held.inputs, {}).clean_logits(
                BATCH_SIZE
            )
        clean = robust = count_hits(logits, held.y) / len(held.y)
        if recipe.attack is not None:
            attack = replace(recipe.attack, early_exit=True)
            found = attack(recipe.model, held.inputs, held.y, warn=False)
            if found.status is Status.INTERRUPTED:
                raise KeyboardInterrupt
            robust = found.robust_accuracy
    return {"holdout_clean_accuracy": clean, "holdout_robust_accuracy": robust}


def _mix(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1)[0])
