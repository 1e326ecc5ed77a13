"""Attacks: one final call that checks, batches, restarts and reports, around one inner `run`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Unpack, final

import torch
from torch import Tensor

from overt._check import InputTypeError, whole
from overt.robust.attacks import inputs, models
from overt.robust.attacks.criteria import Criterion, Misclassified
from overt.robust.attacks.losses import Loss, find_loss
from overt.robust.attacks.points import Draw, Found, Points
from overt.robust.attacks.results import AttackResult
from overt.robust.attacks.search import Search
from overt.robust.threats import Threat, check_threat


@dataclass(frozen=True)
class Attack(ABC):
    """A search for perturbations that change a model's predictions.

    Parameters
    ----------
    threat
        What is allowed: L0, L1, L2 or Linf with a radius and, if wanted, bounds.
    loss
        What is ascended: "cross_entropy", "dlr", "margin", "reflected" (against the most likely
        wrong class, then the nearest ones in turn), "reflected_greedy" (the most likely only),
        "reflected_all" (each wrong class in a run of its own), "reflected_lse", or a function
        (logits, y) -> (points,).
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
        Seed of the random starts, which belong to a point's content and not to its place; None for
        another one, from torch's generator, in each call.
    """

    threat: Threat
    _: KW_ONLY
    loss: str | Loss | Any = "reflected"
    criterion: Criterion = Misclassified()  # noqa: RUF009  (immutable)
    restarts: int = 1
    random_start: bool | None = False
    early_exit: bool = True
    batch_size: int = models.BATCH_SIZE
    seed: int | None = 0

    def __post_init__(self) -> None:
        check_threat(self.threat)
        if not isinstance(self.criterion, Criterion):
            raise InputTypeError(
                "criterion must be Misclassified(), Targeted(class), Effective(beta) or "
                f"Deviates(by), got {self.criterion!r}"
            )
        find_loss(self.loss)
        whole("restarts", self.restarts)
        object.__setattr__(self, "batch_size", whole("batch_size", self.batch_size))
        if self.seed is not None:
            whole("seed", self.seed, minimum=0)

    @property
    @abstractmethod
    def length(self) -> int:
        """Number of gradients of a run."""

    @abstractmethod
    def run(self, points: Points, start: Tensor, steps: int, escape: Draw) -> Found:
        """Take so many steps on one batch from `start`; `escape` draws random perturbations."""

    @abstractmethod
    def follow(self, points: Points, start: Tensor) -> Tensor:
        """Return the last perturbation of one run from `start`: what training asks for."""

    @final
    def __call__(
        self, model: models.Model, x: Any, y: Any = None, *, start: Any = None, warn: bool = True,
        **run: Unpack[models.Door],
    ) -> AttackResult:  # fmt: skip
        """Attack `model` at the inputs x (points, ...) with true classes y (points,).

        Parameters
        ----------
        model
            A torch module or any function from inputs to logits: (points, classes), or one logit
            for two classes, (points, 1) or (points,), positive for class 1. A list of models
            counts as one with the mean of their logits.
        x, y
            Tensors or arrays; y holds class numbers, or -1 and 1 for two classes. x may be a tuple
            or a dict of a model's inputs, the first of which is perturbed, or, without y, a
            DataLoader.
        start
            Perturbed inputs to start from, shaped like x.
        warn
            Whether to warn of gradients that cannot be trusted.
        output
            Function from what the model returns to its logits, such as `lambda o: o.logits`.
        mean, std
            The model is given (x - mean) / std: numbers, or one for each channel. Radius and
            bounds are in the units of x.
        samples
            Draws of a random model that logits, and with them gradients, are averaged over.
        """
        x, y, _ = inputs.examples(x, y)
        loss = find_loss(self.loss, raw=self.criterion.raw)
        search = Search(model, x, y, self.threat, self.criterion, loss, self.batch_size, run)
        fresh = int(torch.randint(1 << 31, ())) if self.seed is None else self.seed
        with search:
            search.note_saturation(self)
            search.stage(replace(self, seed=fresh), start=start)
            return search.result(warn=warn)
