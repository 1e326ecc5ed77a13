"""Noises over units or weights: Dropout, KeepExactly, DropConnect."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np

from overt import _check
from overt._check import InputError
from overt._types import Floats, Seed

Width = int | tuple[int, ...]


class Noise(ABC):
    """A random mask over units (or weights) with known mean and covariance."""

    #: What one entry of the mask multiplies.
    masks: Literal["units", "weights"] = "units"

    @abstractmethod
    def mean(self, width: Width) -> Floats:
        """mu = E[z], one entry per unit."""

    @abstractmethod
    def characteristic(self, width: Width) -> Floats:
        """Cbar_ij = K_ij / (mu_i mu_j), units x units."""

    @abstractmethod
    def sample(self, width: Width, size: int = 1, seed: Seed = None) -> Floats:
        """Draw `size` masks z (not divided by their mean), shape (size, *width)."""

    @property
    def independent(self) -> bool:
        """Whether different units are masked independently, so that Cbar is diagonal."""
        return False

    def relative_variance(self, width: Width) -> Floats:
        """Cbar_ii = Var(z_i) / mu_i^2, one entry per unit."""
        return np.diag(self.characteristic(width)).copy()

    def covariance(self, width: Width) -> Floats:
        """K = Cov(z), units x units."""
        mu = self.mean(width)
        return self.characteristic(width) * np.outer(mu, mu)

    def multipliers(self, width: Width, size: int = 1, seed: Seed = None) -> Floats:
        """Draw what the units are multiplied by, z / mu, shape (size, *width)."""
        shape = shape_of(width)
        return self.sample(width, size, seed) / self.mean(width).reshape(shape)


@dataclass(frozen=True)
class Dropout(Noise):
    """Each unit is dropped on its own: Cbar = diag(lam), lam = drop_prob / (1 - drop_prob).

    Parameters
    ----------
    drop_prob
        Probability in [0, 1) that a unit is dropped, or one probability per unit.

    Examples
    --------
    >>> import overt
    >>> overt.Dropout(0.5).characteristic(2)
    array([[1., 0.],
           [0., 1.]])
    """

    drop_prob: Any = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.drop_prob, (list, tuple)) and np.ndim(self.drop_prob) == 0:
            object.__setattr__(self, "drop_prob", _check.drop_prob(self.drop_prob))
            return
        values = np.ravel(_check.floating("drop_prob", self.drop_prob, ndim=1))
        probs = tuple(_check.drop_prob(v, f"drop_prob[{i}]") for i, v in enumerate(values))
        object.__setattr__(self, "drop_prob", probs)

    @property
    def strength(self) -> Any:
        """lam = drop_prob / (1 - drop_prob); an array where drop_prob is one per unit."""
        if isinstance(self.drop_prob, tuple):
            probs = np.array(self.drop_prob)
            return probs / (1 - probs)
        return self.drop_prob / (1 - self.drop_prob)

    @property
    def independent(self) -> bool:
        """True: units are dropped independently."""
        return True

    def mean(self, width: Width) -> Floats:
        """1 - drop_prob for every unit."""
        return 1 - self._per_unit(width)

    def relative_variance(self, width: Width) -> Floats:
        """lam for every unit."""
        probs = self._per_unit(width)
        return probs / (1 - probs)

    def characteristic(self, width: Width) -> Floats:
        """diag(lam)."""
        return np.diag(self.relative_variance(width))

    def sample(self, width: Width, size: int = 1, seed: Seed = None) -> Floats:
        """Draw Bernoulli(1 - drop_prob) masks, shape (size, *width)."""
        shape = shape_of(width)
        probs = self._per_unit(width).reshape(shape)
        draws = _check.generator(seed).random((_check.whole("size", size), *shape))
        return (draws >= probs).astype(float)

    def at_width(self, width: int) -> Self:
        """Width-adjusted noise whose strength grows as lam * width (structured dropout, eq. 7).

        With it the induced penalty no longer vanishes as the network grows.
        """
        return replace(self, drop_prob=width_adjusted(self.drop_prob, width, 1))

    def _per_unit(self, width: Width) -> Floats:
        units = math.prod(shape_of(width))
        if isinstance(self.drop_prob, tuple):
            if len(self.drop_prob) != units:
                raise InputError(
                    f"drop_prob has {len(self.drop_prob)} entries but there are {units} units"
                )
            return np.array(self.drop_prob)
        return np.full(units, self.drop_prob)


@dataclass(frozen=True)
class KeepExactly(Noise):
    """Exactly `count` of the d units are kept, every choice of them equally likely.

    Never is everything dropped, and the number of active units does not vary. Cbar = lam d/(d-1) I
    - lam/(d-1) 1 1' with lam = d/count - 1: units are dropped at the expense of each other.

    Examples
    --------
    >>> import overt
    >>> overt.KeepExactly(2).sample(4, 3, seed=0).sum(axis=1)
    array([2., 2., 2.])
    """

    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", _check.whole("count", self.count))

    def mean(self, width: Width) -> Floats:
        """count / d for every unit."""
        units = self._fitting(width)
        return np.full(units, self.count / units)

    def characteristic(self, width: Width) -> Floats:
        """Lam on the diagonal, -lam/(d-1) elsewhere."""
        units = self._fitting(width)
        lam = units / self.count - 1
        Cbar = np.full((units, units), -lam / max(units - 1, 1))
        np.fill_diagonal(Cbar, lam)
        return Cbar

    @property
    def independent(self) -> bool:
        """False: a unit that is kept takes another's place."""
        return False

    def sample(self, width: Width, size: int = 1, seed: Seed = None) -> Floats:
        """Draw masks with exactly `count` ones, shape (size, *width)."""
        units = self._fitting(width)
        draws = _check.generator(seed).random((_check.whole("size", size), units))
        kept = np.argsort(draws, axis=1) < self.count  # a random permutation of 0..d-1
        return kept.astype(float).reshape(-1, *shape_of(width))

    def _fitting(self, width: Width) -> int:
        units = math.prod(shape_of(width))
        if self.count > units:
            raise InputError(f"count must be at most the width {width}, got {self.count}")
        return units


@dataclass(frozen=True)
class DropConnect(Noise):
    """Each weight, not unit, is dropped on its own with probability `drop_prob`.

    Its penalty differs from Dropout's unless the inputs are uncorrelated: see
    `overt.penalty.dropconnect`. Here `width` counts the weights, or is the weight matrix's shape.
    """

    drop_prob: float = 0.5
    masks = "weights"

    def __post_init__(self) -> None:
        object.__setattr__(self, "drop_prob", _check.drop_prob(self.drop_prob))

    @property
    def strength(self) -> float:
        """lam = drop_prob / (1 - drop_prob)."""
        return self.drop_prob / (1 - self.drop_prob)

    @property
    def independent(self) -> bool:
        """True: weights are dropped independently."""
        return True

    def mean(self, width: Width) -> Floats:
        """1 - drop_prob for every weight."""
        return np.full(math.prod(shape_of(width)), 1 - self.drop_prob)

    def characteristic(self, width: Width) -> Floats:
        """lam times the identity over the weights."""
        return self.strength * np.eye(math.prod(shape_of(width)))

    def sample(self, width: Width, size: int = 1, seed: Seed = None) -> Floats:
        """Draw Bernoulli(1 - drop_prob) masks over the weights, shape (size, *width)."""
        return Dropout(self.drop_prob).sample(width, size, seed)


def shape_of(width: Width) -> tuple[int, ...]:
    """Return the units' shape, one number per axis."""
    if isinstance(width, tuple) and width:
        return tuple(_check.whole("width", n) for n in width)
    return (_check.whole("width", width),)


def width_adjusted(drop_prob: Any, width: int, block_size: int) -> float:
    """1 - theta(d), theta(d) = tb b / (tb b + (1 - tb) d), with 1 - tb = drop_prob."""
    tb = 1 - _check.drop_prob(drop_prob)
    d, b = _check.whole("width", width), block_size
    return (1 - tb) * d / (tb * b + (1 - tb) * d)
