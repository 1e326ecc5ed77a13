"""Attacks: one final call that checks, batches, restarts and reports, around one inner `run`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, final

import torch
from torch import Tensor

from overt._check import InputTypeError, whole
from overt.robust import diagnose
from overt.robust.ascent import Outcome, Problem
from overt.robust.criteria import Criterion, Misclassified
from overt.robust.losses import Loss, find_loss
from overt.robust.model import Model, classes, clean_logits, evaluation, inputs, starts
from overt.robust.outcome import AttackResult
from overt.robust.search import Search
from overt.robust.threat import Threat, check_threat


@dataclass(frozen=True)
class Attack(ABC):
    """A search for perturbations that change a model's predictions.

    Parameters
    ----------
    threat
        What is allowed: L1, L2 or Linf with a radius and, if wanted, bounds.
    loss
        What is ascended: "cross_entropy", "dlr", "margin", "reflected" (against the most likely
        wrong class, then the nearest ones in turn), "reflected_greedy" (the most likely only),
        "reflected_all" (each wrong class in a run of its own) or "reflected_lse".
    criterion
        When a point counts as fooled; by default when it is misclassified.
    restarts
        Number of runs; those after the first start at random, by turns at an extreme point of the
        ball and inside it, on the points not fooled yet.
    random_start
        Whether the first run starts at random, too, instead of at the inputs.
    early_exit
        Whether fooled points leave at once. Without it every point gets all steps ("reflected" is
        greedy then), and the iterate of the largest loss among those that fool the model is
        returned.
    batch_size
        Points that go through the model together. The result does not depend on it.
    seed
        Seed of the random starts, which belong to a point's content and not to its place.
    """

    threat: Threat
    _: KW_ONLY
    loss: str | Loss = "reflected"
    criterion: Criterion = Misclassified()  # noqa: RUF009  (immutable)
    restarts: int = 1
    random_start: bool = False
    early_exit: bool = True
    batch_size: int = 1024
    seed: int = 0

    def __post_init__(self) -> None:
        check_threat(self.threat)
        if not isinstance(self.criterion, Criterion):
            raise InputTypeError(
                "criterion must be Misclassified(), Targeted(class) or Effective(beta), "
                f"got {self.criterion!r}"
            )
        find_loss(self.loss)
        whole("restarts", self.restarts)
        whole("batch_size", self.batch_size)
        whole("seed", self.seed, minimum=0)

    @property
    @abstractmethod
    def length(self) -> int:
        """Number of gradients of a run."""

    @abstractmethod
    def run(
        self, problem: Problem, start: Tensor, steps: int, escape: Callable[[], Tensor]
    ) -> Outcome:
        """Take so many steps on one batch from `start`; `escape` draws random perturbations."""

    @final
    def __call__(
        self, model: Model, x: Any, y: Any, *, start: Any = None, warn: bool = True
    ) -> AttackResult:
        """Attack `model` at the inputs x (points, ...) with true classes y (points,).

        Parameters
        ----------
        model
            A torch module or any function from inputs to logits: (points, classes), or one logit
            for two classes, (points, 1) or (points,), positive for class 1.
        x, y
            Tensors or arrays; y holds class numbers, or -1 and 1 for two classes.
        start
            Perturbed inputs to start from, shaped like x.
        warn
            Whether to warn of gradients that cannot be trusted.
        """
        x = inputs(model, x)
        threat, loss = self.threat.within(x), find_loss(self.loss)
        with torch.inference_mode(False), evaluation(model):
            clean = clean_logits(model, x, self.batch_size)
            y = classes(y, x, clean.shape[1])
            search = Search(self, model, threat, loss, x, y, clean)
            if warn:
                random = diagnose.randomness(model, x[:64])
                known = diagnose.saturation(loss, clean, y) | random
            result = search.result(search.run(starts(model, start, x)))
            if warn:
                diagnose.gradients(result, x, threat.radius, known)
            return result
