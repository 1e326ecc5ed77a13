"""Adversarial training: descend on what the attack makes of each batch.

    min over weights of  mean_i  (1 - c) l(f(x_i + delta_i), y_i) + c l(f(x_i), y_i)

with l the cross-entropy or another loss, delta_i the attack's perturbation of x_i and c the clean
fraction. With an attack that ascends the reflected loss this is the thesis's Algorithm 6 for any
network.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from overt._check import InputError, InputTypeError, choice, instance, number, whole
from overt._progress import meter
from overt._types import Floats
from overt.results import Result, Status
from overt.robust.attack.base import Attack
from overt.robust.losses import Deviates
from overt.robust.models import BATCH_SIZE, ModelAdapter, classes, evaluation_mode, examples, pair
from overt.robust.threats import tensor
from overt.robust.training.checkpoints import TrainingCheckpoint
from overt.robust.training.epoch import Epoch, Recipe, WarmStarts, batches, hits
from overt.robust.training.losses import TrainingLoss

MAX_LOSS = 100.0
"""Mean training loss of an epoch that only weights that ran away have."""


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
    model: nn.Module, data: Any, attack: Attack | None, *, batch_size: int = 64, epochs: int = 10,
    optimizer: torch.optim.Optimizer | None = None, scheduler: Any = None,
    step_scheduler_each: str = "epoch", loss: Any = "cross_entropy", beta: float = 6.0,
    clean_fraction: float = 0.0, warm_start: bool = False, ramp_epochs: int = 0,
    holdout: Any = None, scaler: Any = None, autocast: torch.dtype | None = None,
    checkpoint: str | os.PathLike[str] | None = None, checkpoint_every: int = 0,
    on_epoch: Callable[[dict[str, float]], None] | None = None, seed: int = 0,
) -> Training:  # fmt: skip
    """Train `model` in place on attacked batches; start again with the same call after a kill.

    Parameters
    ----------
    model
        Any module that returns logits; one logit is trained as two classes.
    data
        A pair (inputs, classes) of arrays or tensors, a DataLoader, or any iterable of batches
        (inputs, classes), the same number in each epoch. Its order and whatever else draws from
        torch's generator follow from the seed and the epoch. A batch may be a dict with the
        classes under "labels", "y" or the like, inputs a dict of the model's arguments, and
        classes may be rows of probabilities.
    attack
        What each batch is attacked with, on all points to the end (early_exit does not apply), its
        last iterate counting; None for standard training. FGSM starts at random unless told not to.
    batch_size
        Points of a batch, where the data are a pair of arrays.
    epochs
        Passes over the data in all, resumed ones included.
    optimizer
        Any torch optimizer of the model's parameters; by default SGD, rate 0.1, momentum 0.9.
    scheduler, step_scheduler_each
        A torch learning-rate scheduler of that optimizer, stepped after each "epoch" or "batch";
        ReduceLROnPlateau goes by the epoch's training loss.
    loss, beta
        What is descended on: "cross_entropy" of the attacked inputs, "trades" or "mart" with the
        weight beta of their second term ("trades" also climbs its own loss), or a function (logits,
        y) -> mean.
    clean_fraction
        Weight of the clean loss, 0 to 1.
    warm_start
        Whether each input's attack starts from its perturbation in the epoch before.
    ramp_epochs
        Epochs over which the radius grows from 0 to its full size.
    holdout
        Inputs and classes, or a DataLoader, kept from training, on which to report clean and
        robust accuracy after each epoch.
    scaler, autocast
        A torch GradScaler, and the number format that the model is run in, such as torch.bfloat16.
    checkpoint
        File (.safetensors) written after each epoch. If it exists, training goes on from it and
        reaches the same weights as if it had never stopped; another seed, attack or loss is
        refused. With a holdout the weights of the best epoch are kept beside it, in a file whose
        name ends in .best.safetensors.
    checkpoint_every
        Also save after every so many batches; 0 for not.
    on_epoch
        Called with each epoch's numbers.
    seed
        Seed of the order, of dropout and of the attack's random starts.
    """
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"model must be a torch module, got {model!r}")
    if attack is not None and not isinstance(attack, Attack):
        raise InputTypeError(f"attack must be FGSM, BIM, PGD or None, got {type(attack).__name__}")
    whole("epochs", epochs)
    whole("ramp_epochs", ramp_epochs, minimum=0)
    whole("checkpoint_every", checkpoint_every, minimum=0)
    whole("seed", seed, minimum=0)
    if not 0 <= (clean_fraction := float(number("clean_fraction", clean_fraction))) <= 1:
        raise InputError(f"clean_fraction must lie in [0, 1], got {clean_fraction!r}")
    if on_epoch is not None and not callable(on_epoch):
        raise InputTypeError(f"on_epoch must be a function of a row, got {on_epoch!r:.60}")
    if autocast is not None:
        instance("autocast", autocast, torch.dtype, "a torch.dtype such as torch.bfloat16")
    if scaler is not None and not callable(getattr(scaler, "scale", None)):
        raise InputTypeError(f"scaler must be a torch.amp.GradScaler, got {scaler!r:.60}")
    if attack is not None and isinstance(attack.criterion, Deviates):
        raise InputError("attack must have a criterion of classes in training, got Deviates")
    step_rates = _rates(scheduler, step_scheduler_each)
    descent = TrainingLoss.of(loss, beta)
    data = batches(data, batch_size)
    optimizer = _optimizer(optimizer, model)
    held = None if holdout is None else _Holdout(model, holdout)
    attack = _settle(attack, data, held)
    warm_starts = WarmStarts() if warm_start and attack is not None else None
    recipe = Recipe(
        model, optimizer, attack, descent, clean_fraction, warm_starts, scaler, autocast
    )
    saved = TrainingCheckpoint(checkpoint, recipe, scheduler, _settings(recipe, seed, ramp_epochs))
    history: list[dict[str, float]] = []
    status = Status.FINISHED
    before = {module: module.training for module in model.modules()}
    if not model.training:
        model.train()  # what was frozen on purpose is known only inside a model in training mode
    with torch.random.fork_rng(devices=list(range(torch.cuda.device_count()))):
        done, sums = saved.load(history)
        try:
            with meter("adversarial training", epochs) as bar:
                bar.advance(len(history))
                for epoch in range(len(history), epochs):
                    run = Epoch(recipe, min(1.0, (epoch + 1) / (ramp_epochs + 1)), sums)
                    for count, batch in _left(data, _mix(seed, epoch), done, saved):
                        run.step(batch, _mix(seed, epoch, count), count)
                        step_rates("batch")
                        if checkpoint_every and count % checkpoint_every == 0:
                            saved.save(history, count, run.sums)
                    row = run.summary()
                    step_rates("epoch", row["loss"])
                    if warm_starts is not None:
                        warm_starts.next_epoch()
                    history.append(row | _accuracy(model, attack, held))
                    done, sums = 0, None
                    saved.save(history, 0, None)
                    if held is not None and _best(history) == len(history):
                        saved.keep_best()
                    if on_epoch is not None:
                        on_epoch(history[-1])
                    clean, robust = row["clean_accuracy"], row["robust_accuracy"]
                    bar.advance(note=f"clean {clean:.3f} robust {robust:.3f}")
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        finally:
            for module, mode in before.items():
                module.training = mode
    if status is Status.FINISHED and _diverged(history):
        status = Status.DIVERGED
    names = [f.name for f in dataclasses.fields(Training)][:-3]  # all that epochs have one of
    columns = {name: np.array([row[name] for row in history]) for name in names}
    best = 0 if held is None else _best(history)
    return Training(**columns, epochs=len(history), best_epoch=best, status=status)


def _diverged(history: list[dict[str, float]]) -> bool:
    """Return whether an epoch's loss is far beyond that of guessing among a million classes."""
    return any(not row["loss"] <= MAX_LOSS for row in history)


def _best(history: list[dict[str, float]]) -> int:
    """Return the epoch, from 1, of the best robust accuracy on the holdout; clean breaks ties."""
    score = [(row["holdout_robust_accuracy"], row["holdout_clean_accuracy"]) for row in history]
    return score.index(max(score)) + 1 if score else 0


def _settings(recipe: Recipe, seed: int, ramp_epochs: int) -> dict[str, str]:
    """Return what a checkpoint must agree in with the call that resumes it, in words."""
    loss = recipe.loss
    kind = loss.kind if isinstance(loss.kind, str) else getattr(loss.kind, "__name__", "own")
    return {
        "seed": str(seed), "attack": repr(recipe.attack), "loss": f"{kind}, beta {loss.beta:g}",
        "clean_fraction": f"{recipe.clean_fraction:g}", "ramp_epochs": str(ramp_epochs),
        "warm_start": str(recipe.warm_starts is not None),
    }  # fmt: skip


def _rates(scheduler: Any, each: str) -> Callable[..., None]:
    """Return what steps a scheduler, checked, after a "batch" or an "epoch" of so much loss."""
    choice("step_scheduler_each", each, ("epoch", "batch"))
    if scheduler is not None and not callable(getattr(scheduler, "step", None)):
        raise InputTypeError(f"scheduler must be a torch scheduler, got {scheduler!r}")
    by_loss = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
    if by_loss and each == "batch":
        raise InputError("step_scheduler_each must be 'epoch' for ReduceLROnPlateau, got 'batch'")

    def after(part: str, *loss: float) -> None:
        if scheduler is not None and each == part:
            scheduler.step(*(loss if by_loss else ()))

    return after


def _left(
    data: Iterable[Any], seed: int, done: int, saved: TrainingCheckpoint
) -> Iterator[tuple[int, Any]]:
    """Yield the epoch's batches after those done, numbered from 1, as if it had never stopped."""
    torch.manual_seed(seed)
    if isinstance(generator := getattr(data, "generator", None), torch.Generator):
        generator.manual_seed(seed)
    for count, batch in enumerate(data, 1):
        if count > done:
            yield count, batch
        elif count == done:
            saved.restore_random()


def _optimizer(optimizer: Any, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer, which must be one of this model's parameters, or the default one."""
    if optimizer is None:
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputTypeError(f"optimizer must be a torch optimizer, got {optimizer!r}")
    own = {id(weight) for weight in model.parameters()}
    if not any(id(weight) in own for group in optimizer.param_groups for weight in group["params"]):
        raise InputError("optimizer must hold parameters of the model, it holds none of them")
    return optimizer


class _Holdout:
    """Data kept from training, checked before any time is spent on it."""

    def __init__(self, model: nn.Module, given: Any) -> None:
        whole_arrays = isinstance(given, (tuple, list)) and len(given) == 2
        batches = isinstance(given, Iterable) and not isinstance(given, dict)
        if not whole_arrays and (hasattr(given, "__array__") or not batches):
            raise InputTypeError(
                "holdout must be a pair (inputs, classes) or give such batches, got "
                f"{type(given).__name__}"
            )
        x, y, _ = examples(*given) if whole_arrays else examples(given, None)
        adapter = ModelAdapter(model, x, {})
        with evaluation_mode(model):
            count = adapter.all_logits(adapter.x[:1], 1).shape[1]
        self.given, self.x, self.y = x, adapter.x, classes(y, adapter.x, count)


def _settle(attack: Attack | None, data: Iterable[Any], held: _Holdout | None) -> Attack | None:
    """Return the attack with bounds from all of the data, where it asks for them."""
    if attack is None or not isinstance(attack.threat.bounds, str):
        return attack
    with torch.random.fork_rng():
        ranges = [tensor("data", pair(batch)[0]).aminmax() for batch in data]
    if held is not None:
        ranges.append(held.x.aminmax())
    if not ranges:
        return attack
    bounds = min(float(r.min) for r in ranges), max(float(r.max) for r in ranges)
    return dataclasses.replace(attack, threat=dataclasses.replace(attack.threat, bounds=bounds))


def _accuracy(model: nn.Module, attack: Attack | None, held: _Holdout | None) -> dict[str, float]:
    """Return clean and robust accuracy on the holdout, NaN without one."""
    clean = robust = float("nan")
    if held is not None:
        with evaluation_mode(model):
            logits = ModelAdapter(model, held.given, {}).clean_logits(BATCH_SIZE)
        clean = robust = hits(logits, held.y) / len(held.y)
        if attack is not None:
            attack = dataclasses.replace(attack, early_exit=True)
            found = attack(model, held.given, held.y, warn=False)
            if found.status is Status.INTERRUPTED:
                raise KeyboardInterrupt
            robust = found.robust_accuracy
    return {"holdout_clean_accuracy": clean, "holdout_robust_accuracy": robust}


def _mix(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1)[0])
