"""The base of shallow, tied and deep networks: evaluate, certify, bound and train."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from overt import _check
from overt._check import InputError, bounded
from overt._types import Floats
from overt.linear.bounds import EXACT, numerical_rank
from overt.linear.effect import Evaluation, NoiseEffect
from overt.linear.regression import Regression, from_data, from_target
from overt.linear.training import Rate, train
from overt.noise import Noise, check
from overt.noise.checking import is_built_in
from overt.results import Certificate, RankCertificate, Status, Trace

if TYPE_CHECKING:
    from overt.proofs import Proof


@bounded
def certify(effect: NoiseEffect, *weights: Floats) -> tuple[Certificate, Evaluation]:
    """Return how far the weights are from the global optimum."""
    found = Evaluation(effect, *weights)
    bound = effect.relaxation.bound
    gap = found.objective - bound
    # A bound of zero, as without noise, leaves only the scale of the data to compare with.
    relative = gap / max(bound, effect.least * effect.regression.scale, 1e-300)
    imbalance = found.imbalance
    return Certificate(
        found.objective, bound, gap, relative, imbalance, found.distance
    ), found


def grade(
    effect: NoiseEffect, *weights: Floats
) -> tuple[float, int, Status, Certificate, RankCertificate | None]:
    """Return (objective, rank, status, certificate, rank certificate) of weights.

    The status is "optimal" only where the bound is reached.
    """
    certified, found = certify(effect, *weights)
    optimal = certified.relative_gap <= EXACT
    rank = effect.relaxation.rank if optimal else None
    if rank is None:
        rank = numerical_rank(found.spectrum)
    status = Status.OPTIMAL if optimal else Status.LOWER_BOUND
    # Among maps of limited rank the certificate would speak of the limited problem only.
    unlimited = effect.max_rank is None
    ranks = _rank_certificate(effect) if optimal and unlimited else None
    return found.objective, rank, status, certified, ranks


def _rank_certificate(effect: NoiseEffect) -> RankCertificate | None:
    """Return between which ranks every optimum lies, and the bound that excludes lower ones."""
    if effect.rank_range is None:
        return None
    least, most = effect.rank_range
    if least == 0:
        return RankCertificate(least, most)
    if least == 1:  # the zero map
        return RankCertificate(least, most, effect.regression.scale)
    below = effect.limited(least - 1).relaxation.bound
    return RankCertificate(least, most, below)


SMALLEST = 1e-150
"""Size of the largest entry of a target, below which its square has lost digits."""

R = TypeVar("R")


@bounded
def regression_of(
    target: Any, X: Any, Y: Any, second_moment: Any, input_noise: Noise | None = None
) -> Regression:
    """Return what the arguments of a network ask it to fit."""
    if (target is None) == (X is None and Y is None):
        raise InputError("give either target, or both X and Y (samples x features)")
    if target is None:
        if X is None or Y is None:
            raise InputError("X and Y (samples x features) must be given together")
        if second_moment is not None:
            raise InputError("second_moment belongs to a target; data have their own")
        task, given = from_data(X, Y, input_noise), {"X": X, "Y": Y}
    else:
        if not isinstance(target, (np.ndarray, list, tuple)):
            from overt.linear.sparse import (
                ImplicitRegression,
                is_implicit,
            )  # loads scipy

            if is_implicit(target):
                if second_moment is not None or input_noise is not None:
                    raise InputError(
                        "second_moment and input_noise need a dense target"
                    )
                return ImplicitRegression(target)
        task = from_target(target, second_moment, input_noise)
        given = {"target": target, "C": second_moment}
    if 0 < np.abs(task.T).max() < SMALLEST:
        raise InputError(
            f"the target must be 0 or have entries above {SMALLEST:g}, as squares of smaller "
            f"numbers vanish, got at most {np.abs(task.T).max():.3g}; multiply it by a constant"
        )
    if input_noise is None:  # a proof is about the numbers as they were given
        task.given = {name: value for name, value in given.items() if value is not None}
    return task


def target_or_data(function: Callable[..., R]) -> Callable[..., R]:
    """Let a function of (target, width, ...) be called on data, X= and Y=, without a target."""
    position = list(inspect.signature(function).parameters).index("target")

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> R:
        if len(args) <= position:
            kwargs.setdefault("target", None)
        return function(*args, **kwargs)

    return call


def require_consistent(noise: Noise, width: int) -> None:
    """Check a noise that is not one of overt's own, before anything is claimed about it."""
    if not is_built_in(noise):
        check(noise, width)


class NoisyNetwork(ABC):
    """A linear network with noise on its hidden layers."""

    kind: ClassVar[str]
    """The name of this network in proof files."""

    noise: Noise | tuple[Noise, ...]
    effect: NoiseEffect

    @abstractmethod
    def _start(self, init: Any) -> Sequence[Floats]:
        """Return the weights that a user gave as `init`, checked."""

    @bounded
    def _penalty(self, *weights: Floats) -> float:
        return self.effect.penalty(*weights)

    @bounded
    def _objective(self, *weights: Floats) -> float:
        return Evaluation(self.effect, *weights).objective

    def _certify(
        self, weights: Sequence[Floats], rigorous: bool
    ) -> Certificate | Proof:
        if rigorous:
            from overt.proofs import Question, prove

            effect = self.effect
            given = effect.regression.given
            return prove(
                Question(self.kind, self.noise, weights, given, effect.witness)
            )
        return certify(self.effect, *weights)[0]

    def _limited(self, rank: int | None) -> NoiseEffect:
        return self.effect.limited(_check.optional_whole("rank", rank))

    def bound(self, rank: int | None = None) -> float:
        """Return a lower bound on the objective of all weights, or of maps of this rank or less."""
        return self._limited(rank).relaxation.bound

    def train(
        self,
        steps: int = 20_000,
        learning_rate: Rate = 1e-3,
        seeds: int | Sequence[int] = 1,
        *,
        batch_size: int = 1,
        gradient: str = "sampled",
        init: Any = None,
        init_scale: float | None = None,
        records: int | Sequence[int] = 40,
        n_jobs: int | None = None,
        engine: str = "local",
    ) -> Trace:
        """Run stochastic gradient descent with sampled masks from many seeds at once.

        Parameters
        ----------
        steps, learning_rate
            Each step is along the gradient of half the mean squared error of a batch.
            `learning_rate` is a number or a function of an array of step numbers.
        seeds
            The number of runs (seeds 0, 1, ...), or the list of seeds.
        batch_size
            Samples in a step, each with its mask.
        gradient
            "sampled", or "expected": gradient descent on the exact objective.
        init, init_scale
            The weights to start from, as `certify` takes them ((U, V) for two layers), or the
            standard deviation of Gaussian entries; by default the initial product is about as
            large as the target.
        records
            How often the exact objective is recorded, on a logarithmic grid of steps, or at which
            steps.
        n_jobs, engine
            Threads, of this process ("local"); or "dask" for the current `distributed.Client` or
            processes started here, or a scheduler's address, with a task for each seed. The result
            depends on neither.
        """
        return train(
            self.effect,
            steps=steps,
            learning_rate=learning_rate,
            seeds=seeds,
            batch_size=batch_size,
            gradient=gradient,
            init_scale=init_scale,
            records=records,
            init=None if init is None else self._start(init),
            n_jobs=n_jobs,
            engine=engine,
        )
