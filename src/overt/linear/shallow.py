"""Two-layer linear networks x -> U V'x whose hidden units (or weights) are masked by noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

from overt import _check
from overt._check import InputError, bounded
from overt._types import Floats, Seed
from overt.linear import grading
from overt.linear.arguments import effect_of, regression, target_or_data
from overt.linear.floor import Floor, floor
from overt.linear.proofs import Proof, prove
from overt.linear.training import Rate, train
from overt.noise import Noise
from overt.results import Certificate, Solution, Trace


class LinearNetwork:
    """A two-layer linear network trained with noise on its hidden layer.

    The objective is E|y - U diag(z/mu) V'x|^2 = E|y - U V'x|^2 + penalty(U, V), without a factor
    1/2; for data the mean over samples.

    Parameters
    ----------
    target
        M (outputs x inputs) with y = M x: an array, a scipy sparse matrix or a LinearOperator.
    width
        Number of hidden units.
    noise
        Dropout, KeepExactly, DropBlock, DropConnect, CovarianceNoise, or a noise over units of
        your own.
        `noise.at_width(width)` is the width-adjusted form of structured dropout.
    X, Y
        Data in place of a target, samples x features.
    second_moment
        E[x x'] (inputs x inputs) for a dense target; the identity if None.
    input_noise
        A noise on the inputs too, such as Dropout(0.2): it adds Gamma o E[x x'] to their second
        moment, a ridge, and everything stays exact.
    weight_decay
        mu, which adds mu (|U|^2 + |V|^2). For isotropic inputs the optimum is exact: it is that
        of the noise alone for the target with its singular values lowered by mu.

    Examples
    --------
    >>> import numpy as np, overt
    >>> net = overt.LinearNetwork(target=np.diag([3.0, 1.0]), width=2, noise=overt.Dropout(0.5))
    >>> best = net.solve()
    >>> best.rank, str(best.status)
    (1, 'optimal')
    >>> np.round(best.product, 6)
    array([[2., 0.],
           [0., 0.]])
    """

    @overload
    def __init__(
        self,
        target: Any,
        width: int,
        noise: Noise,
        *,
        second_moment: Any = None,
        input_noise: Noise | None = None,
        weight_decay: float = 0.0,
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        X: Any,
        Y: Any,
        width: int,
        noise: Noise,
        input_noise: Noise | None = None,
        weight_decay: float = 0.0,
    ) -> None: ...
    @target_or_data
    def __init__(
        self,
        target: Any,
        width: int,
        noise: Noise,
        *,
        X: Any = None,
        Y: Any = None,
        second_moment: Any = None,
        input_noise: Noise | None = None,
        weight_decay: float = 0.0,
    ) -> None:
        self.width, self.noise = _check.whole("width", width), noise
        self.input_noise = input_noise
        self.weight_decay = _check.number("weight_decay", weight_decay)
        task = regression(target, X, Y, second_moment, input_noise)
        self.effect = effect_of(noise, self.width, task, self.weight_decay)

    def __repr__(self) -> str:
        task = self.effect.regression
        return f"LinearNetwork({task.inputs} -> {self.width} -> {task.outputs}, {self.noise!r})"

    @bounded
    def penalty(self, U: Any, V: Any) -> float:
        """Return what the noise adds to the expected squared error."""
        return self.effect.penalty(*self._checked(U, V))

    @bounded
    def objective(self, U: Any, V: Any) -> float:
        """Return E|y - U diag(z/mu) V'x|^2, exactly."""
        return grading.objective(self.effect, *self._checked(U, V))

    @overload
    def certify(self, U: Any, V: Any, rigorous: Literal[False] = False) -> Certificate: ...
    @overload
    def certify(self, U: Any, V: Any, rigorous: Literal[True]) -> Proof: ...
    def certify(self, U: Any, V: Any, rigorous: bool = False) -> Certificate | Proof:
        """Return how far (U, V) is from the global optimum.

        The objective is recomputed from the data; the lower bound holds for all weights. With
        `rigorous` both are proved in exact arithmetic (extra `proofs`), for a checker to read.
        """
        U, V = self._checked(U, V)
        if rigorous:
            return prove("two-layer", self.noise, (U, V), self.effect)
        return grading.certificate(self.effect, U, V)

    def bound(self, rank: int | None = None) -> float:
        """Return a lower bound on the objective of all weights, or of maps of this rank or less."""
        return self.effect.limited(_check.optional_whole("rank", rank)).relaxation.bound

    def solve(self, rank: int | None = None) -> Solution:
        """Return the best factors that are known, and a certificate.

        With `rank` they are the best whose map has at most that rank.

        The status is "optimal" where they reach the proved lower bound: always for Dropout, with
        one probability or one per unit, and for KeepExactly; for DropConnect unless correlated
        inputs meet too small a width, for DropBlock with enough blocks. Elsewhere it is
        "lower_bound", and the factors come from descent started at the bound's solution. For noises
        whose units are correlated the package Clarabel, if it is installed, raises the bound much
        (up to 32 units).
        """
        effect = self.effect.limited(_check.optional_whole("rank", rank))
        U, V = effect.best_weights()
        return Solution(U, V, *grading.grade(effect, U, V))

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
            How many runs (seeds 0, 1, ...), or the list of seeds.
        batch_size
            Samples in a step, each with a mask of its own.
        gradient
            "sampled", or "expected": gradient descent on the exact objective.
        init, init_scale
            (U, V) to start from, or the standard deviation of Gaussian entries; by default that at
            which the initial product is as large as the target.
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
            init=None if init is None else self._pair(init),
            n_jobs=n_jobs,
            engine=engine,
        )

    def floor(
        self,
        learning_rate: float,
        *,
        batch_size: int = 1,
        samples: int = 4000,
        seed: Seed = 0,
    ) -> Floor:
        """Return how low `train` gets at a constant learning rate, from a Lyapunov equation.

        The noise of steps keeps descent above the optimum, by an excess proportional to the rate
        and to 1 / batch_size; it is predicted around the weights of `solve`, from the objective's
        curvature and `samples` single steps, which draw from `seed`.

        Examples
        --------
        >>> import numpy as np, overt
        >>> net = overt.LinearNetwork(np.diag([2.0, 1.0]), 3, overt.Dropout(0.3))
        >>> run = net.train(4000, 0.01, 8, records=np.arange(2000, 4000, 20))
        >>> predicted = net.floor(0.01)
        >>> bool(abs(run.objective[:, 1:].mean() / predicted.objective - 1) < 0.1)
        True
        """
        weights = self.effect.best_weights()
        return floor(self.effect, weights, learning_rate, batch_size, samples, seed)

    def _pair(self, init: Any) -> tuple[Floats, Floats]:
        if not isinstance(init, (tuple, list)) or len(init) != 2:
            raise InputError(f"init must be a pair of weights (U, V), got {init!r:.60}")
        return self._checked(*init)

    def _checked(self, U: Any, V: Any) -> tuple[Floats, Floats]:
        U, V = _check.factors(U, V)
        U, V = _check.doubles("U", U), _check.doubles("V", V)
        expected = tuple(self.effect.shapes)
        if (U.shape, V.shape) != expected:
            raise InputError(
                f"U must be {expected[0][0]} x {expected[0][1]} and V {expected[1][0]} x "
                f"{expected[1][1]}, got {U.shape} and {V.shape}"
            )
        return U, V
