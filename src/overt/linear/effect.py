"""The effect of a noise on a linear network: the contract of solver, certificate and training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import Any, Self

import numpy as np

from overt._types import Floats
from overt.linear.bounds import Relaxation
from overt.linear.regression import Regression
from overt.linear.sampling import Advance


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
    def product(self, *weights: Floats) -> tuple[Floats, Floats]:
        """Return (U, V): the network's map is U V'."""

    @abstractmethod
    def penalty(self, *weights: Floats) -> float:
        """Return what the noise adds to the expected squared error."""

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
        self.U, self.V = effect.product(*weights)
        self.P = effect.regression.whiten(self.V)
        self.penalty = effect.penalty(*weights)
        self.objective = effect.regression.loss(self.U, self.V) + self.penalty

    @cached_property
    def spectrum(self) -> Floats:
        """The singular values of the map in whitened coordinates."""
        product = _triangle(self.U) @ _triangle(self.P).T
        return np.asarray(np.linalg.svd(product, compute_uv=False))

    @property
    def imbalance(self) -> float:
        """How unevenly the map is distributed over what is masked; 0 at the optimum."""
        return self.effect.imbalance(self)

    @property
    def distance(self) -> float:
        """|U P' - A|_F to the map A that attains the bound."""
        best = self.effect.relaxation
        left = np.hstack([self.U, best.left * best.spectrum])
        right = np.hstack([self.P, -best.right])
        return float(np.linalg.norm(_triangle(left) @ _triangle(right).T))


def _triangle(A: Floats) -> Floats:
    """Return R of the decomposition A = Q R, or A itself if R would not be smaller."""
    rows, columns = A.shape
    return A if rows <= columns else np.asarray(np.linalg.qr(A, mode="r"))
