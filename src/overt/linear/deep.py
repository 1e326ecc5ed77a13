"""Deep linear networks x -> W_(k+1) ... W_1 x with dropout on every hidden layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from overt import _check, equalize, penalty, spectral
from overt._check import InputError
from overt._types import Floats
from overt.linear.bounds import (
    Envelope,
    certificate,
    numerical_rank,
    shrink,
    spectral_bound,
    status_of,
)
from overt.linear.descent import descend
from overt.linear.kernels import LIMIT
from overt.linear.problem import problem
from overt.linear.runs import Rate, gradient_descent, initial_weights, run_seeds
from overt.results import Certificate, DeepSolution, Trace

RANDOM_STARTS = 4


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
        Data instead of a target, samples x features.
    second_moment
        E[x x'] for a target; the identity if None.

    Examples
    --------
    >>> import numpy as np, overt
    >>> net = overt.DeepLinearNetwork(target=np.diag([4.0, 1.0]), widths=(2, 2), drop_prob=0.5)
    >>> best = net.solve()
    >>> str(best.status), np.round(best.product, 4)[0, 0].item()
    ('optimal', 1.7778)
    """

    def __init__(
        self,
        target: Any = None,
        widths: Sequence[int] | None = None,
        drop_prob: Any = None,
        *,
        X: Any = None,
        Y: Any = None,
        second_moment: Any = None,
    ) -> None:
        if widths is None or drop_prob is None:
            raise InputError("widths and drop_prob must be given, as in widths=(50, 50)")
        if isinstance(widths, (int, np.integer)):
            widths = (int(widths),)
        self.nu = spectral.nu(widths, drop_prob)
        self.widths = tuple(int(d) for d in widths)
        self.drop_probs = _check.drop_probs(drop_prob, len(self.widths))
        self.problem = problem(target, X, Y, second_moment)
        self.quadratic = self.problem.dense("train a deep network")
        self.shapes = [
            (after, before)
            for before, after in zip(
                (self.quadratic.inputs, *self.widths),
                (*self.widths, self.quadratic.outputs),
                strict=True,
            )
        ]

    def penalty(self, weights: Sequence[Any]) -> float:
        """Return what dropout adds to the expected squared error."""
        return float(penalty.deep(self._whitened(self._checked(weights)), self.drop_probs))

    def objective(self, weights: Sequence[Any]) -> float:
        """Return the expected squared error under dropout, exactly."""
        layers = self._checked(weights)
        head, tail = layers[0], layers[1]
        for W in layers[2:]:
            tail = W @ tail
        return self.quadratic.loss(tail, head.T) + self.penalty(layers)

    def certify(self, weights: Sequence[Any]) -> Certificate:
        """Return how far the weights are from the global optimum."""
        layers = self._checked(weights)
        product = _product(self._whitened(layers))
        return certificate(
            self.objective(layers),
            self._bound,
            self.quadratic.scale,
            self._imbalance(layers),
            float(np.linalg.norm(product - self._best_map)),
        )

    @property
    def gap_condition(self) -> bool:
        """s_1 - s_2 >= s_2 / nu: the optimum has rank one and is known (thesis, Theorem 10)."""
        s = self.quadratic.svd[1]
        second = s[1] if len(s) > 1 else 0.0
        return bool(self.nu * (s[0] - second) >= second)

    def solve(self) -> DeepSolution:
        """Return the best weights that are known, and a certificate.

        Exact under the gap condition, with one hidden layer, and where only one layer is noisy.
        Otherwise the convex envelope gives a lower bound, the weights come from descent, and the
        certificate reports the gap.
        """
        layers = self._factors()
        certified = self.certify(layers)
        s = np.linalg.svd(_product(self._whitened(layers)), compute_uv=False)
        return DeepSolution(
            tuple(layers),
            certified.objective,
            numerical_rank(np.asarray(s)),
            status_of(certified),
            certified,
        )

    def train(
        self,
        steps: int = 5_000,
        learning_rate: Rate = 1e-2,
        seeds: int | Sequence[int] = 1,
        *,
        batch_size: int = 100,
        noise: str = "sampled",
        init: Any = None,
        init_scale: float | None = None,
        checkpoints: int = 40,
        workers: int | None = None,
    ) -> Trace:
        """Run minibatch descent with sampled masks; see `LinearNetwork.train`.

        The trace's imbalance is the equalization gap R / (nu |W C^(1/2)|_*^2) - 1.
        """
        _check.choice("noise", noise, ("sampled", "expected"))
        batch_size = _check.whole("batch_size", batch_size)
        pair = self.problem.sampling()
        if init_scale is None:
            # Each layer keeps the size of what passes through it.
            init_scale = 1 / np.sqrt(np.mean([d for _, d in self.shapes]))
        begin = initial_weights(self.shapes, float(init_scale), init)
        largest = float(self.quadratic.svd[1][0])

        def measure(weights: list[Floats]) -> tuple[float, float, int]:
            s = np.linalg.svd(_product(self._whitened(weights)), compute_uv=False)
            return (
                self.objective(weights),
                self._imbalance(weights),
                int(np.sum(s > 0.01 * largest)),
            )

        def sampled(weights: list[Floats], rates: Floats, rng: np.random.Generator) -> int:
            for step, rate in enumerate(rates):
                x, y = _batch(pair, batch_size, rng)
                gradients = _sampled_gradients(weights, x, y, self.drop_probs, rng)
                if gradients is None:
                    return step
                for W, gradient in zip(weights, gradients, strict=True):
                    W -= rate * gradient
            return len(rates)

        def value(*weights: Floats) -> tuple[float, Sequence[Floats]]:
            objective, (first, *others) = self._value(*self._whitened(weights))
            L = self.quadratic.L
            return objective, (first if L is None else first @ L.T, *others)

        return run_seeds(
            begin,
            sampled if noise == "sampled" else gradient_descent(value),
            measure,
            steps=steps,
            learning_rate=learning_rate,
            seeds=seeds,
            checkpoints=checkpoints,
            workers=workers,
            optimum=self._bound,
        )

    @property
    def _most(self) -> int:
        """The largest rank that the architecture lets through."""
        return min(self.widths)

    @cached_property
    def _envelope(self) -> Envelope:
        return self.nu, spectral.SquaredNuclear()

    @cached_property
    def _bound(self) -> float:
        top = self.quadratic.leading(self._most, self._envelope)
        return self.quadratic.residual + spectral_bound(top.s, top.rest, self._envelope)

    @cached_property
    def _best_map(self) -> Floats:
        top = self.quadratic.leading(self._most, self._envelope)
        return (top.left * shrink(top.s, self._envelope)) @ top.right.T

    def _factors(self) -> list[Floats]:
        top = self.quadratic.leading(self._most, self._envelope)
        a = shrink(top.s, self._envelope)
        kept = a > 1e-14 * a[0]
        left, a, right = top.left[:, kept], a[kept], top.right[:, kept]
        if len(a) == 0:
            return [np.zeros(shape) for shape in self.shapes]
        if len(a) == 1:
            u, v = left[:, 0] * np.sqrt(a[0]), right[:, 0] * np.sqrt(a[0])
            return self._unwhitened(equalize.rank_one_deep(u, v, self.widths))
        start = _chained(left, a, right, self.widths)
        if sum(p > 0 for p in self.drop_probs) <= 1:
            return self._unwhitened(start)
        return self._unwhitened(self._refined(start))

    def _refined(self, start: list[Floats]) -> list[Floats]:
        """Return the best descent from the bound's map, the best rank one, or random weights."""
        left, s, right = self.quadratic.svd
        root = np.sqrt(s[0] / (1 + self.nu))
        rng = np.random.default_rng(0)
        scale = [np.sqrt(np.mean(W**2)) for W in start]
        starts = [start, equalize.rank_one_deep(left[:, 0] * root, right[:, 0] * root, self.widths)]
        # A saddle is left only by a nudge.
        starts[1] = [
            W + 0.01 * size * rng.standard_normal(W.shape)
            for W, size in zip(starts[1], scale, strict=True)
        ]
        starts += [
            [size * rng.standard_normal(W.shape) for W, size in zip(start, scale, strict=True)]
            for _ in range(RANDOM_STARTS)
        ]
        found = [descend(self._value, weights) for weights in starts]
        return min(found, key=lambda weights: self._value(*weights)[0])

    def _value(self, *layers: Floats) -> tuple[float, Sequence[Floats]]:
        """Return the objective and its gradients in whitened coordinates (W_1 L in place of W_1).

        E|y|^2 - 2 <T, W> + tr S_(k+1), S_i = W_i (S_(i-1) + lam_(i-1) diag(S_(i-1))) W_i'.
        """
        T = self.quadratic.T
        lams = [p / (1 - p) for p in self.drop_probs]
        heads, noisy = [np.eye(layers[0].shape[1])], [np.eye(layers[0].shape[1])]
        for W, lam in zip(layers[:-1], lams, strict=True):
            heads.append(W @ heads[-1])
            S = W @ noisy[-1] @ W.T
            noisy.append(S + lam * np.diag(np.diag(S)))
        last = layers[-1]
        value = self.quadratic.scale - 2 * np.sum(T * (last @ heads[-1]))
        value += np.sum((last @ noisy[-1]) * last)
        gradients, tail, G = [], np.eye(T.shape[0]), np.eye(T.shape[0])
        for i in range(len(layers) - 1, -1, -1):
            W = layers[i]
            gradients.append(2 * (G @ W @ noisy[i] - tail.T @ T @ heads[i].T))
            if i:
                tail = tail @ W
                G = W.T @ G @ W
                G = G + lams[i - 1] * np.diag(np.diag(G))
        return float(value), gradients[::-1]

    def _imbalance(self, layers: Sequence[Floats]) -> float:
        """R / (nu |W C^(1/2)|_*^2) - 1, zero iff the noisy layers are equalized."""
        nuclear = np.linalg.norm(_product(self._whitened(layers)), "nuc")
        least = self.nu * float(nuclear) ** 2
        return self.penalty(layers) / least - 1 if least > 0 else 0.0

    def _whitened(self, layers: Sequence[Floats]) -> list[Floats]:
        first = layers[0] if self.quadratic.L is None else layers[0] @ self.quadratic.L
        return [first, *layers[1:]]

    def _unwhitened(self, layers: Sequence[Floats]) -> list[Floats]:
        inverse = self.quadratic.L_inverse
        return [layers[0] if inverse is None else layers[0] @ inverse, *layers[1:]]

    def _checked(self, weights: Sequence[Any]) -> list[Floats]:
        layers = [np.asarray(W, dtype=float) for W in _check.chain(list(weights))]
        shapes = [W.shape for W in layers]
        if shapes != self.shapes:
            raise InputError(f"weights must have the shapes {self.shapes}, got {shapes}")
        return layers


def _product(layers: Sequence[Floats]) -> Floats:
    product = layers[0]
    for W in layers[1:]:
        product = W @ product
    return product


def _chained(left: Floats, a: Floats, right: Floats, widths: Sequence[int]) -> list[Floats]:
    """Return weights of left diag(a) right' with every single-layer term of the penalty balanced.

    W_1 = Q_1' S^(1/2) Y', W_i = Q_i' Q_(i-1), W_(k+1) = W S^(1/2) Q_k, Q_i equalizing S at width
    d_i. Exact where one layer is noisy; otherwise a start for descent.
    """
    unit = np.eye(len(a))
    root = np.sqrt(a)
    frames = [
        np.asarray(equalize.balanced_factors(unit, a, unit, d)[0]) / root[:, None] for d in widths
    ]
    first, last = frames[0].T @ (right * root).T, (left * root) @ frames[-1]
    middle = [after.T @ before for before, after in pairwise(frames)]
    return [first, *middle, last]


def _batch(
    pair: tuple[Floats, Floats, Floats, Floats], size: int, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    M, L, X, Y = pair
    if len(X):
        rows = rng.integers(0, len(X), size)
        return X[rows], Y[rows]
    x = rng.standard_normal((size, L.shape[1] if len(L) else M.shape[1]))
    x = x @ L.T if len(L) else x
    return x, x @ M.T


def _sampled_gradients(
    weights: list[Floats],
    x: Floats,
    y: Floats,
    drop_probs: Sequence[float],
    rng: np.random.Generator,
) -> list[Floats] | None:
    """Return the gradients of half the mean squared error under one mask per sample."""
    inputs, masks, a = [x], [], x
    for W, p in zip(weights[:-1], drop_probs, strict=True):
        mask = (rng.random((len(x), W.shape[0])) >= p) / (1 - p)
        a = (a @ W.T) * mask
        masks.append(mask)
        inputs.append(a)
    delta = (a @ weights[-1].T - y) / len(x)
    if not np.sum(delta**2) < LIMIT:
        return None
    gradients = []
    for i in range(len(weights) - 1, -1, -1):
        gradients.append(delta.T @ inputs[i])
        if i:
            delta = (delta @ weights[i]) * masks[i - 1]
    return gradients[::-1]
