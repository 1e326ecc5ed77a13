"""A random tensor inside a network: its mean, and a linear map of something whose spread is known.

Linear maps are collected, not carried out on covariances, until a variance is asked for; then the
cheapest exact way is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from overt.nn.spread import Dense, Independent, Spread

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Map:
    """A linear map of each sample of a batch.

    Attributes
    ----------
    apply
        The map, batch in, batch out.
    squared
        The map with squared coefficients, if it has a simple form: it takes the variances of
        independent inputs to those of the outputs.
    weight
        The map as a matrix (outputs x inputs), if it acts on flat samples and is one.
    shared
        Whether it is the same for every sample, and takes any batch size.
    permutes
        Whether outputs are inputs in another order or shape.
    """

    apply: Function
    squared: Function | None = None
    weight: Tensor | None = None
    shared: bool = False
    permutes: bool = False


@dataclass(frozen=True, eq=False)
class Noisy:
    """A random tensor: mean + A e with e of mean 0 and known spread, A the maps one after another.

    `clean` is the value without any noise; it differs from the mean behind a non-linearity. `exact`
    says whether mean and spread are exact so far. `dropped` is a drop probability if this is known
    values under plain dropout, whose whole law is then known.
    """

    clean: Tensor
    mean: Tensor
    spread: Spread
    maps: tuple[Map, ...] = ()
    exact: bool = True
    dropped: float | None = None

    def through(self, linear: Map, affine: Function) -> Noisy:
        """Return the image under an affine function whose linear part is `linear`."""
        clean = affine(self.clean)
        mean = clean if self.mean is self.clean else affine(self.mean)
        if linear.permutes and not self.maps and isinstance(self.spread, Independent):
            spread = Independent(linear.apply(self.spread.variance()))
            return replace(self, clean=clean, mean=mean, spread=spread, dropped=None)
        return replace(self, clean=clean, mean=mean, maps=(*self.maps, linear), dropped=None)

    def push(self, x: Tensor) -> Tensor:
        """Return A x, the maps one after another."""
        for linear in self.maps:
            x = linear.apply(x)
        return x

    @property
    def shape(self) -> tuple[int, ...]:
        """A sample's shape."""
        return tuple(self.mean.shape[1:])

    @property
    def units(self) -> int:
        """The number of entries of a sample."""
        return math.prod(self.shape)

    def variance(self) -> Tensor:
        """Return the variance of each entry, shaped like the mean."""
        if not self.maps:
            return self.spread.variance()
        first = self.maps[0]
        if len(self.maps) == 1 and first.squared and isinstance(self.spread, Independent):
            return first.squared(self.spread.variance())
        return self.spread.along(self.rows()).reshape(self.mean.shape)

    def covariance(self) -> Tensor:
        """Return the covariance of the flattened entries, (batch, units, units)."""
        if not self.maps:
            return self.spread.matrix()
        return self.spread.between(self.rows())

    def total(self) -> Tensor:
        """Return the sum of the variances, averaged over the batch."""
        simple = self.maps and self.maps[0].squared and self.maps[0].weight is None
        independent = isinstance(self.spread, Independent)
        if not self.maps or (len(self.maps) == 1 and simple and independent):
            return self.variance().flatten(1).sum(1).mean()
        return self.spread.total(self.rows())

    def along(self, directions: Tensor) -> Tensor:
        """Var(w'x) for each row w of `directions` (batch, R, units): (batch, R)."""
        return self.spread.along(directions @ self.rows())

    def settled(self) -> Spread:
        """Return the spread of this tensor itself, the maps carried out."""
        return self.spread if not self.maps else Dense(self.covariance(), self.shape)

    def rows(self) -> Tensor:
        """Return A as rows over the spread's flattened units, (batch or 1, units, D)."""
        like = self.mean
        if not self.maps:
            return torch.eye(self.units, dtype=like.dtype, device=like.device)[None]
        if len(self.maps) == 1 and self.maps[0].weight is not None and len(self.shape) == 1:
            return self.maps[0].weight[None]
        if not all(linear.shared for linear in self.maps):
            return self._rows_by_sample()
        D = self.spread.units
        if self.units >= D:
            eye = torch.eye(D, dtype=like.dtype, device=like.device)
            return self.push(eye.reshape(D, *self.spread.shape)).flatten(1).T[None]
        # Row k of A is the gradient of output k; each output has a copy of the input of its own.
        K = self.units
        with torch.inference_mode(False), _gradients() as create:
            x = torch.zeros(K, *self.spread.shape, dtype=like.dtype, device=like.device)
            x.requires_grad_()
            total = self.push(x).reshape(K, K).diagonal().sum()
            return torch.autograd.grad(total, x, create_graph=create)[0].reshape(1, K, D)

    def _rows_by_sample(self) -> Tensor:
        with torch.inference_mode(False), _gradients() as create:
            x = torch.zeros(len(self.mean), *self.spread.shape, dtype=self.mean.dtype)
            x = x.to(self.mean.device).requires_grad_()
            outputs = self.push(x).flatten(1).sum(0)
            rows = [
                torch.autograd.grad(out, x, create_graph=create, retain_graph=True)[0].flatten(1)
                for out in outputs
            ]
        return torch.stack(rows, 1)


class _gradients:  # noqa: N801
    """Switch gradients on, and tell whether they were."""

    def __enter__(self) -> bool:
        self._before = torch.is_grad_enabled()
        self._on = torch.enable_grad()
        self._on.__enter__()
        return self._before

    def __exit__(self, *error: object) -> None:
        self._on.__exit__(*error)
