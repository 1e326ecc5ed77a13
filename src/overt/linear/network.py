"""What shallow, tied and deep networks share: evaluation, certificate, bound and training."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, overload

import numpy as np

from overt import _check
from overt._check import Floats, InputError, bounded, seed_numbers
from overt._running import checked_engine, mapped_seeds, thread_count
from overt.linear.bounds import EXACT, Relaxation, numerical_rank
from overt.linear.descent import VISIBLE, Advance, Rate, gradient_descent, run_seeds
from overt.linear.regression import Regression, from_data, from_target
from overt.noise import Noise, check
from overt.noise.checking import is_built_in
from overt.results import Certificate, RankCertificate, Status, Trace

if TYPE_CHECKING:
    from overt.proofs.proofs import Proof


class NoiseEffect(ABC):
    """The expected squared error of a network under noise, and what is known about it.

    Weights come one by one, shaped as `shapes` says: (U, V) for x -> U V'x, (U,) where they are
    tied, (W_1, ..., W_(k+1)) in a deep network.
    """

    regression: Regression
    shapes: Sequence[tuple[int, int]]
    least: float = 1e-10
    """Share of E|y|^2 below which an objective counts as zero: gaps are compared with no less."""
    max_rank: int | None = None
    """The rank of the maps that are allowed; None: any."""

    def limited(self, rank: int | None) -> Self:
        """Return the same problem over weights whose map has at most this rank.

        Only the target's first singular values can then be used: among maps A of rank q,
        <T, A> = <P T, A> with P of rank q, and the singular values of P T are at most the first q
        of T, while noise costs A as before.
        """
        if rank is None:
            return self
        effect = copy(self)
        for name in vars(self):
            if isinstance(getattr(type(self), name, None), cached_property):
                delattr(effect, name)
        effect.max_rank = rank
        return effect

    @property
    def rank_range(self) -> tuple[int, int] | None:
        """The least and the largest rank of an optimum, where they are known."""
        return None

    @property
    @abstractmethod
    def relaxation(self) -> Relaxation:
        """A proved lower bound on the objective over all weights, and the map that attains it."""

    @abstractmethod
    def best_weights(self) -> Sequence[Floats]:
        """Return the best weights that are known."""

    @abstractmethod
    def evaluate(self, *weights: Floats) -> tuple[Floats, Floats, float]:
        """Return (U, V, penalty): the map is U V', and what noise adds to the squared error."""

    @abstractmethod
    def imbalance(self, found: Evaluation) -> float:
        """Return how unevenly the map is distributed over what is masked; 0 at the optimum."""

    @abstractmethod
    def value(self, *weights: Floats) -> tuple[float, Sequence[Floats]]:
        """Return the objective, error plus penalty, and its gradients."""

    @abstractmethod
    def witness(self, s: Floats) -> dict[str, Any]:
        """Return what a proof of the bound rests on, for a target with singular values s."""

    @abstractmethod
    def steps(self, rng: np.random.Generator, batch_size: int = 1) -> Advance:
        """Return stochastic gradient descent that samples what it masks, in batches."""


class Evaluation:
    """Weights and their exact objective, with quantities that are computed once.

    Attributes
    ----------
    U, V, P
        Factors of the map, U V', and P = L'V in whitened coordinates.
    penalty, objective
        What noise adds, and the expected squared error under noise.
    """

    def __init__(self, effect: NoiseEffect, *weights: Floats) -> None:
        self.effect = effect
        self.U, self.V, self.penalty = effect.evaluate(*weights)
        self.P = effect.regression.whiten(self.V)
        self.objective = effect.regression.loss(self.U, self.V) + self.penalty

    @cached_property
    def spectrum(self) -> Floats:
        """The singular values of the map in whitened coordinates."""
        product = _triangle(self.U) @ _triangle(self.P).T
        return np.asarray(np.linalg.svd(product, compute_uv=False))

    @cached_property
    def distance(self) -> float:
        """|U P' - A|_F to the map A that attains the bound, up to rounding."""
        left, a, right = self.effect.relaxation.kept
        left = np.hstack([self.U, left * a])
        right = np.hstack([self.P, -right])
        return float(np.linalg.norm(_triangle(left) @ _triangle(right).T))


def _triangle(A: Floats) -> Floats:
    """Return R of the decomposition A = Q R, or A itself if R would not be smaller."""
    rows, columns = A.shape
    return A if rows <= columns else np.asarray(np.linalg.qr(A, mode="r"))


@bounded
def certify(effect: NoiseEffect, *weights: Floats) -> tuple[Certificate, Evaluation]:
    """Return how far the weights are from the global optimum."""
    found = Evaluation(effect, *weights)
    bound = effect.relaxation.bound
    gap = found.objective - bound
    # A bound of zero, as without noise, leaves only the scale of the data to compare with.
    relative = gap / max(bound, effect.least * effect.regression.scale, 1e-300)
    imbalance = effect.imbalance(found)
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


MAX_ENTRIES = 2**28
"""Entries of a sparse target that is made dense: 2 GB, whose decomposition takes hours."""

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
        task = from_data(X, Y, input_noise)
        given = {"X": X, "Y": Y}
    else:
        if hasattr(target, "toarray"):  # a scipy sparse matrix
            if np.prod(target.shape) > MAX_ENTRIES:
                raise InputError(
                    f"target of shape {target.shape} is too large to be made dense; solve for its "
                    "leading singular values instead (see the page on large sparse matrices)"
                )
            target = target.toarray()
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

    def _checked(self, *weights: Any) -> Sequence[Floats]:
        """Return the weights as arrays of the right shapes."""
        arrays = [_check.doubles("weights", W, ndim=2) for W in weights]
        shapes = [W.shape for W in arrays]
        expected = list(self.effect.shapes)
        if shapes != expected:
            raise InputError(f"weights must have the shapes {expected}, got {shapes}")
        return arrays

    def penalty(self, *weights: Any) -> float:
        """Return what the noise adds to the expected squared error."""
        return self._evaluate(*self._checked(*weights)).penalty

    def objective(self, *weights: Any) -> float:
        """Return the expected squared error under noise, exactly.

        Weights are U, V for two layers, U where they are tied, a list for a deep network.
        """
        return self._evaluate(*self._checked(*weights)).objective

    @bounded
    def _evaluate(self, *weights: Floats) -> Evaluation:
        return Evaluation(self.effect, *weights)

    @overload
    def certify(
        self, *weights: Any, rigorous: Literal[False] = False
    ) -> Certificate: ...
    @overload
    def certify(self, *weights: Any, rigorous: Literal[True]) -> Proof: ...
    def certify(self, *weights: Any, rigorous: bool = False) -> Certificate | Proof:
        """Return how far weights, as `objective` takes them, are from the global optimum.

        The objective is recomputed from the data; the lower bound holds for all weights. With
        `rigorous` both are proved in exact arithmetic (extra `proofs`), for a checker to read.
        """
        arrays = self._checked(*weights)
        if not rigorous:
            return certify(self.effect, *arrays)[0]
        from overt.proofs.proofs import prove

        effect = self.effect
        given = effect.regression.given
        return prove(self.kind, self.noise, arrays, given, effect.witness)

    def _start(self, init: Any) -> Sequence[Floats]:
        """Return the weights that a user gave as `init`, checked."""
        return self._checked(init)

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
        _check.choice("gradient", gradient, ("sampled", "expected"))
        effect = self.effect
        task = effect.regression
        largest = float(task.svd[1][0])
        start = None if init is None else self._start(init)
        if init_scale is None:  # the initial product is as large as the target
            paths = task.outputs * task.inputs * effect.shapes[0][1]
            init_scale = float((np.sum(task.T**2) / paths) ** 0.25) or 1.0
        init_scale = _check.number("init_scale", init_scale)

        def begin(rng: np.random.Generator) -> list[Floats]:
            if start is not None:
                return [W.copy() for W in start]
            return [init_scale * rng.standard_normal(shape) for shape in effect.shapes]

        def measure(weights: Sequence[Floats]) -> tuple[float, float, int]:
            found = Evaluation(effect, *weights)
            rank = int(np.sum(found.spectrum > VISIBLE * largest))
            return found.objective, effect.imbalance(found), rank

        sampled = partial(
            effect.steps, batch_size=_check.whole("batch_size", batch_size)
        )
        run = partial(
            run_seeds,
            begin,
            sampled if gradient == "sampled" else gradient_descent(effect.value),
            measure,
            steps=steps,
            learning_rate=learning_rate,
            records=records,
            optimum=effect.relaxation.bound,
        )
        if checked_engine(engine) == "local":
            return run(seeds=seeds, n_jobs=n_jobs)
        found: Trace = mapped_seeds(
            lambda seed: run(seeds=[seed], n_jobs=1),
            [(seed,) for seed in seed_numbers(seeds)],
            engine,
            thread_count(n_jobs),
            ("steps", "optimum"),
        )
        return found
