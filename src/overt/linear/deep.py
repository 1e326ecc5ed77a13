"""Deep linear networks x -> W_(k+1) ... W_1 x with dropout on every hidden layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import numpy as np

from overt import _check, spectral
from overt._check import InputError, bounded
from overt._types import Floats
from overt.linear import grading
from overt.linear.arguments import regression, target_or_data
from overt.linear.layers import DeepNoise
from overt.linear.proofs import Proof, prove
from overt.linear.training import Rate, train
from overt.noise import Dropout, Noise
from overt.results import Certificate, DeepSolution, Trace


class DeepLinearNetwork:
    """A deep linear network trained with dropout on its hidden layers.

    The objective is E|y - W_(k+1) D_k W_k ... D_1 W_1 x|^2 with D_i dropout multipliers: the
    squared error plus `penalty.deep`, which is at least nu |W C^(1/2)|_*^2 for the map W.

    Parameters
    ----------
    target
        M (outputs x inputs) with y = M x.
    widths
        Widths of the hidden layers.
    drop_prob
        One probability, or one per hidden layer.
    X, Y
        Data in place of a target, samples x features.
    second_moment
        E[x x'] for a target; the identity if None.
    input_noise
        A noise on the inputs too, as in `LinearNetwork`.

    Examples
    --------
    >>> import numpy as np, overt
    >>> net = overt.DeepLinearNetwork(target=np.diag([4.0, 1.0]), widths=(2, 2), drop_prob=0.5)
    >>> best = net.solve()
    >>> str(best.status), np.round(best.product, 4)[0, 0].item()
    ('optimal', 1.7778)
    """

    @target_or_data
    def __init__(
        self, target: Any, widths: Sequence[int], drop_prob: Any, *, X: Any = None, Y: Any = None,
        second_moment: Any = None, input_noise: Noise | None = None,
    ) -> None:  # fmt: skip
        self.widths = tuple(_check.widths(widths))
        self.nu = spectral.nu(self.widths, drop_prob)
        self.drop_probs = _check.drop_probs(drop_prob, len(self.widths))
        task = regression(target, X, Y, second_moment, input_noise).dense("train a deep network")
        self.effect = DeepNoise(task, self.widths, self.drop_probs)
        self.shapes = self.effect.shapes

    def __repr__(self) -> str:
        task = self.effect.regression
        sizes = " -> ".join(map(str, (task.inputs, *self.widths, task.outputs)))
        return f"DeepLinearNetwork({sizes}, drop_prob={list(map(float, self.drop_probs))})"

    @bounded
    def penalty(self, weights: Sequence[Any]) -> float:
        """Return what dropout adds to the expected squared error."""
        return self.effect.penalty(*self._checked(weights))

    @bounded
    def objective(self, weights: Sequence[Any]) -> float:
        """Return the expected squared error under dropout, exactly."""
        return grading.objective(self.effect, *self._checked(weights))

    @overload
    def certify(self, weights: Sequence[Any], rigorous: Literal[False] = False) -> Certificate: ...
    @overload
    def certify(self, weights: Sequence[Any], rigorous: Literal[True]) -> Proof: ...
    def certify(self, weights: Sequence[Any], rigorous: bool = False) -> Certificate | Proof:
        """Return how far the weights are from the global optimum; with `rigorous`, as a proof."""
        layers = self._checked(weights)
        if rigorous:
            return prove("deep", Dropout(self.drop_probs), layers, self.effect)
        return grading.certificate(self.effect, *layers)

    @property
    def gap_condition(self) -> bool:
        """s_1 - s_2 >= s_2 / nu: the optimum has rank one and is known (thesis, Theorem 10)."""
        s = self.effect.regression.svd[1]
        second = s[1] if len(s) > 1 else 0.0
        return bool(self.nu * (s[0] - second) >= second)

    def solve(self) -> DeepSolution:
        """Return optimal weights, and a certificate of their gap to a dual bound.

        The least objective is |s|^2 - max sum_p s_p^2 prod_l pi^l_p / (pi^l_p + lam_l / d_l) over
        shares pi^l in the simplex, one for each hidden layer; see the page on optima for a proof.
        """
        weights = self.effect.best_weights()
        return DeepSolution(tuple(weights), *grading.grade(self.effect, *weights))

    def train(
        self, steps: int = 5_000, learning_rate: Rate = 1e-2, seeds: int | Sequence[int] = 1, *,
        batch_size: int = 100, gradient: str = "sampled", init: Any = None,
        init_scale: float | None = None, records: int | Sequence[int] = 40,
        n_jobs: int | None = None, engine: str = "local",
    ) -> Trace:  # fmt: skip
        """Run minibatch descent with sampled masks; see `LinearNetwork.train`.

        The trace's imbalance is the equalization gap R / (nu |W C^(1/2)|_*^2) - 1.
        """
        if init_scale is None:  # each layer keeps the size of what passes through it
            init_scale = float(1 / np.sqrt(np.mean([inputs for _, inputs in self.shapes])))
        return train(
            self.effect, steps=steps, learning_rate=learning_rate, seeds=seeds,
            batch_size=batch_size, gradient=gradient, init_scale=init_scale, records=records,
            init=None if init is None else self._checked(init), n_jobs=n_jobs, engine=engine,
        )  # fmt: skip

    def _checked(self, weights: Sequence[Any]) -> list[Floats]:
        layers = [_check.doubles("weights", W) for W in _check.chain(weights)]
        shapes = [W.shape for W in layers]
        if shapes != self.shapes:
            raise InputError(f"weights must have the shapes {self.shapes}, got {shapes}")
        return layers
