"""Adversarial training: descend on what the attack makes of each batch.

    min over weights of  mean_i  (1 - c) l(f(x_i + delta_i), y_i) + c l(f(x_i), y_i)

with l the cross-entropy, delta_i the attack's perturbation of x_i and c the clean fraction. With
an attack that ascends the reflected loss this is the thesis's Algorithm 6 for any network.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from overt._check import InputError, InputTypeError, number, whole
from overt._progress import meter
from overt._types import Floats
from overt.results import Result, Status
from overt.robust.attack import Attack
from overt.robust.checkpoint import Checkpoint
from overt.robust.memory import Memory
from overt.robust.model import all_logits, classes, clean_logits, evaluation, inputs, logits
from overt.robust.outcome import AttackResult


@dataclass(frozen=True, repr=False)
class Training(Result):
    """How adversarial training went, one entry for each epoch; the model itself is in place.

    Attributes
    ----------
    loss
        Mean of the training loss.
    clean_accuracy, robust_accuracy
        On the training batches just before their steps: of the inputs (in evaluation mode unless
        they are trained on), and of what the attack made of them (equal without an attack).
    valid_clean_accuracy, valid_robust_accuracy
        The same on the validation data after the epoch; NaN without it.
    epochs
        Epochs that were finished, resumed ones included.
    status
        "finished" or "interrupted".
    """

    loss: Floats
    clean_accuracy: Floats
    robust_accuracy: Floats
    valid_clean_accuracy: Floats
    valid_robust_accuracy: Floats
    epochs: int
    status: Status


_COLUMNS = (
    "loss",
    "clean_accuracy",
    "robust_accuracy",
    "valid_clean_accuracy",
    "valid_robust_accuracy",
)


def adversarial_train(
    model: nn.Module,
    loader: Iterable[Any],
    attack: Attack | None,
    *,
    epochs: int = 10,
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: Any = None,
    step_scheduler_each: str = "epoch",
    clean_fraction: float = 0.0,
    warm_start: bool = False,
    ramp_epochs: int = 0,
    validation: tuple[Any, Any] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 0,
    on_epoch: Callable[[dict[str, float]], None] | None = None,
    seed: int = 0,
) -> Training:
    """Train `model` in place on attacked batches; start again with the same call after a kill.

    Parameters
    ----------
    model
        Any module that returns logits; one logit is trained as two classes.
    loader
        Gives batches (inputs, classes), the same number in each epoch. Its order and whatever else
        draws from torch's generator follow from the seed and the epoch.
    attack
        What each batch is attacked with, on all points to the end (early_exit does not apply);
        None for standard training.
    epochs
        Passes over the data in all, resumed ones included.
    optimizer
        Any torch optimizer of the model's parameters; by default SGD, rate 0.1, momentum 0.9.
    scheduler, step_scheduler_each
        A torch learning-rate scheduler of that optimizer, stepped after each "epoch" or "batch";
        ReduceLROnPlateau goes by the epoch's training loss.
    clean_fraction
        Weight of the clean loss, 0 to 1.
    warm_start
        Whether each input's attack starts from its perturbation in the epoch before.
    ramp_epochs
        Epochs over which the radius grows from 0 to its full size.
    validation
        Inputs and classes on which to report clean and robust accuracy after each epoch.
    checkpoint
        File (.safetensors) for the state after each epoch. If it exists, training goes on from it
        and reaches the same weights as if it had never stopped.
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
    if not 0 <= number("clean_fraction", clean_fraction) <= 1:
        raise InputError(f"clean_fraction must lie in [0, 1], got {clean_fraction!r}")
    if step_scheduler_each not in ("epoch", "batch"):
        raise InputError(
            f"step_scheduler_each must be 'epoch' or 'batch', got {step_scheduler_each!r}"
        )
    if not isinstance(loader, Iterable):
        raise InputTypeError(f"loader must give batches (inputs, classes), got {loader!r}")
    if scheduler is not None and not callable(getattr(scheduler, "step", None)):
        raise InputTypeError(f"scheduler must be a torch scheduler, got {scheduler!r}")
    by_loss = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
    if by_loss and step_scheduler_each == "batch":
        raise InputError("step_scheduler_each must be 'epoch' for ReduceLROnPlateau, got 'batch'")
    optimizer = _optimizer(optimizer, model)
    held_out = None if validation is None else _held_out(model, validation)
    attack = _settle(attack, model, loader, held_out)
    memory = Memory() if warm_start and attack is not None else None
    state = Checkpoint(checkpoint, model, optimizer, scheduler, memory)
    devices = list(range(torch.cuda.device_count()))
    history: list[dict[str, float]] = []
    status = Status.FINISHED
    with torch.random.fork_rng(devices=devices):
        done, sums = state.load(history)
        try:
            with meter("adversarial training", epochs) as bar:
                bar.advance(len(history))
                for epoch in range(len(history), epochs):
                    run = _Epoch(model, optimizer, attack, clean_fraction, memory, sums)
                    run.radius_share = min(1.0, (epoch + 1) / (ramp_epochs + 1))
                    torch.manual_seed(_mix(seed, epoch))
                    if isinstance(generator := getattr(loader, "generator", None), torch.Generator):
                        generator.manual_seed(_mix(seed, epoch))
                    for count, batch in enumerate(loader, 1):
                        if count <= done:
                            if count == done:
                                state.restore_random()
                            continue
                        run.step(batch, _mix(seed, epoch, count))
                        if scheduler is not None and step_scheduler_each == "batch":
                            scheduler.step()
                        if checkpoint_every and count % checkpoint_every == 0:
                            state.save(history, count, run.sums)
                    row = run.summary()
                    if by_loss:
                        scheduler.step(row["loss"])
                    elif scheduler is not None and step_scheduler_each == "epoch":
                        scheduler.step()
                    row |= _validate(model, attack, held_out)
                    history.append(row)
                    done, sums = 0, None
                    state.save(history, 0, None)
                    if on_epoch is not None:
                        on_epoch(row)
                    bar.advance(
                        note=f"clean {row['clean_accuracy']:.3f} "
                        f"robust {row['robust_accuracy']:.3f}"
                    )
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
    columns = {name: np.array([row[name] for row in history]) for name in _COLUMNS}
    return Training(**columns, epochs=len(history), status=status)


class _Epoch:
    """One pass: attacks each batch, steps on it, and sums up what happened."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        attack: Attack | None,
        clean_fraction: float,
        memory: Memory | None,
        sums: list[float] | None,
    ) -> None:
        self._model, self._optimizer, self._attack = model, optimizer, attack
        self._clean_fraction, self._memory = clean_fraction, memory
        self.radius_share = 1.0
        self.sums = sums or [0.0, 0.0, 0.0, 0.0]  # points, loss, clean hits, robust hits

    def step(self, batch: Any, seed: int) -> None:
        if not isinstance(batch, (tuple, list)) or len(batch) < 2:
            raise InputError("loader must give batches (inputs, classes)")
        x = inputs(self._model, batch[0])
        self._model.train()
        moved = x if self._attack is None else self._perturb(x, batch[1], seed)
        c = self._clean_fraction if self._attack is not None else 0.0
        seen: list[tuple[float, int, int]] = []

        def closure() -> Tensor:
            self._optimizer.zero_grad()
            robust = logits(self._model, moved)
            y = classes(batch[1], x, robust.shape[1])
            loss = cross_entropy(robust, y)
            if c > 0:
                clean = logits(self._model, x)
                loss = (1 - c) * loss + c * cross_entropy(clean, y)
            else:
                clean = robust if moved is x else self._report(x)
            if not torch.isfinite(loss):
                raise InputError(
                    "training diverged: the loss is not finite; lower the learning rate"
                )
            loss.backward()
            seen.append((float(loss.detach()), _hits(clean, y), _hits(robust, y)))
            return loss

        self._optimizer.step(closure)
        n, (loss, clean, robust) = len(x), seen[0]
        for i, amount in enumerate((n, n * loss, clean, robust)):
            self.sums[i] += amount

    def _report(self, x: Tensor) -> Tensor:
        """Return the logits of clean inputs, which leave no trace in batch normalization."""
        with evaluation(self._model), torch.no_grad():
            return logits(self._model, x)

    def summary(self) -> dict[str, float]:
        n, loss, clean, robust = self.sums
        if n == 0:
            raise InputError(
                "loader must not be empty in any epoch; a generator is used up after one pass, a "
                "DataLoader or a list is not"
            )
        return {"loss": loss / n, "clean_accuracy": clean / n, "robust_accuracy": robust / n}

    def _perturb(self, x: Tensor, y: Any, seed: int) -> Tensor:
        attack = self._attack
        assert attack is not None  # noqa: S101  (the caller has asked)
        threat = attack.threat.at(attack.threat.radius * self.radius_share)
        attack = dataclasses.replace(
            attack, threat=threat, early_exit=False, batch_size=len(x), seed=seed
        )
        start = None if self._memory is None else self._memory.recall(x)
        if start is not None and torch.equal(start, x):  # nothing known: as the attack would
            start = None
        moved = _finished(attack(self._model, x, y, start=start, warn=False)).x
        if self._memory is not None:
            self._memory.store(x, moved)
        return moved


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


def _held_out(model: nn.Module, validation: tuple[Any, Any]) -> tuple[Tensor, Tensor]:
    """Return the validation data, checked before any time is spent on training."""
    if not isinstance(validation, (tuple, list)) or len(validation) != 2:
        raise InputTypeError(
            f"validation must be a pair (inputs, classes), got {type(validation).__name__}"
        )
    x = inputs(model, validation[0])
    with evaluation(model):
        count = all_logits(model, x[:1], 1).shape[1]
    return x, classes(validation[1], x, count)


def _settle(
    attack: Attack | None,
    model: nn.Module,
    loader: Iterable[Any],
    held_out: tuple[Tensor, Tensor] | None,
) -> Attack | None:
    """Return the attack with bounds from all of the data, where it asks for them."""
    if attack is None or not isinstance(attack.threat.bounds, str):
        return attack
    with torch.random.fork_rng():
        ranges = [_range(inputs(model, batch[0])) for batch in loader]
    if held_out is not None:
        ranges.append(_range(held_out[0]))
    if not ranges:
        return attack
    low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
    return dataclasses.replace(
        attack, threat=dataclasses.replace(attack.threat, bounds=(low, high))
    )


def _validate(
    model: nn.Module, attack: Attack | None, held_out: tuple[Tensor, Tensor] | None
) -> dict[str, float]:
    clean = robust = float("nan")
    if held_out is not None:
        x, y = held_out
        with evaluation(model):
            f = clean_logits(model, x, 1024)
        clean = robust = _hits(f, y) / len(x)
        if attack is not None:
            attack = dataclasses.replace(attack, early_exit=True)
            robust = _finished(attack(model, x, y, warn=False)).robust_accuracy
    return {"valid_clean_accuracy": clean, "valid_robust_accuracy": robust}


def _finished(result: AttackResult) -> AttackResult:
    """Pass an interruption of the attack on: half-attacked points are not to be trained on."""
    if result.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    return result


def _range(x: Tensor) -> tuple[float, float]:
    return float(x.min()), float(x.max())


def _hits(f: Tensor, y: Tensor) -> int:
    return int((f.argmax(1) == y).sum())


def _mix(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1)[0])
