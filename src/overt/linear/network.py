"""The base of shallow, tied and deep networks: evaluate, certify, bound and train."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from overt import _check
from overt._check import bounded
from overt._types import Floats
from overt.linear.certificate import certify
from overt.linear.effect import Evaluation, NoiseEffect
from overt.linear.training import Rate, train
from overt.noise import Noise
from overt.results import Certificate, Trace

if TYPE_CHECKING:
    from overt.proofs import Proof


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
