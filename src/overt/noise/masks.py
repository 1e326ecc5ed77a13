"""Noises over units or weights: Dropout, KeepExactly, DropConnect, CovarianceNoise."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np

from overt import _check
from overt._check import Floats, InputError, Seed, bounded

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
        """Gamma_ij = K_ij / (mu_i mu_j), units x units."""

    @abstractmethod
    def sample(self, width: Width, size: int = 1, seed: Seed = None) -> Floats:
        """Draw `size` masks z (not divided by their mean), shape (size, *width)."""

    @property
    def independent(self) -> bool:
        """Whether different units are masked independently, so that Gamma is diagonal."""
        return False

    def relative_variance(self, width: Width) -> Floats:
        """Gamma_ii = Var(z_i) / mu_i^2, one entry per unit."""
        return np.diag(self.characteristic(width)).copy()

    def covariance(self, width: Width) -> Floats:
        """K = Cov(z), units x units."""
        mu = self.mean(width)
        return self.characteristic(width) * np.outer(mu, mu)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({fields})"

    def multipliers(self, width: Width, size: int = 1, seed: Seed = None) -> Floats:
        """Draw what the units are multiplied by, z / mu, shape (size, *width)."""
        shape = shape_of(width)
        return self.sample(width, size, seed) / self.mean(width).reshape(shape)


DEFAULT = 0.5
"""Drop probability where neither that nor a strength is given."""

NOT_GIVEN: Any = object()
"""Stands for an argument that was left out; None is an input, and is refused."""


@dataclass(frozen=True, init=False, repr=False)
class Dropout(Noise):
    """Each unit is masked on its own: Gamma = diag(lam), lam = drop_prob / (1 - drop_prob).

    Parameters
    ----------
    drop_prob
        Probability in [0, 1) that a unit is dropped, or one probability per unit; 0.5 by default.
    strength
        Gaussian dropout in its place: multipliers are normal with mean 1 and variance `strength`,
        lam itself. Squared losses see no difference, as only means and variances matter to them.
    gaussian
        Whether multipliers are normal; True if `strength` is given.

    Examples
    --------
    >>> import overt
    >>> overt.Dropout(0.5).characteristic(2)
    array([[1., 0.],
           [0., 1.]])
    >>> overt.Dropout(strength=1.0).drop_prob
    0.5
    """

    drop_prob: Any
    gaussian: bool
    _lam: Any = field(
        init=False, compare=False
    )  # follows from drop_prob up to rounding

    def __init__(
        self,
        drop_prob: Any = NOT_GIVEN,
        *,
        strength: Any = None,
        gaussian: bool = False,
    ) -> None:
        if strength is not None and drop_prob is not NOT_GIVEN:
            raise InputError("give either drop_prob or strength, not both")
        if drop_prob is NOT_GIVEN:
            drop_prob = DEFAULT
        if strength is not None:
            gaussian = True
            lam = _one_or_many("strength", strength, _strength)
            prob = (
                tuple(x / (1 + x) for x in lam)
                if isinstance(lam, tuple)
                else lam / (1 + lam)
            )
        else:
            prob = _one_or_many("drop_prob", drop_prob, _check.drop_prob)
            lam = (
                tuple(x / (1 - x) for x in prob)
                if isinstance(prob, tuple)
                else prob / (1 - prob)
            )
        for name, value in (("drop_prob", prob), ("_lam", lam), ("gaussian", gaussian)):
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        given = (
            f"strength={self._lam}" if self.gaussian else f"drop_prob={self.drop_prob}"
        )
        return f"Dropout({given})"

    @property
    def strength(self) -> Any:
        """lam = drop_prob / (1 - drop_prob); an array where there is one per unit."""
        return np.array(self._lam) if isinstance(self._lam, tuple) else self._lam

    @property
    def independent(self) -> bool:
        """True: units are masked independently."""
        return True

    def mean(self, width: Width) -> Floats:
        """1 - drop_prob for every unit; 1 for Gaussian multipliers."""
        return 1 - self._per_unit(width, 0.0 if self.gaussian else self.drop_prob)

    def relative_variance(self, width: Width) -> Floats:
        """lam for every unit."""
        return self._per_unit(width, self._lam)

    def characteristic(self, width: Width) -> Floats:
        """diag(lam)."""
        return np.diag(self.relative_variance(width))

    def sample(self, width: Width, size: int = 1, seed: Seed = None) -> Floats:
        """Draw Bernoulli(1 - drop_prob), or Gaussian, masks, shape (size, *width)."""
        shape, rng = shape_of(width), _check.generator(seed)
        drawn = _check.whole("size", size), *shape
        if self.gaussian:
            deviation = np.sqrt(self._per_unit(width, self._lam)).reshape(shape)
            return np.asarray(1 + deviation * rng.standard_normal(drawn))
        dropped = self._per_unit(width, self.drop_prob).reshape(shape)
        return (rng.random(drawn) >= dropped).astype(float)

    def at_width(self, width: int) -> Self:
        """Width-adjusted noise whose strength grows as lam * width (structured dropout, eq. 7).

        With it the induced penalty no longer vanishes as the network grows.
        """
        if self.gaussian:
            return type(self)(
                strength=_check.whole("width", width) * _strength(self.strength)
            )
        return type(self)(width_adjusted(self.drop_prob, width, 1))

    def _units(self, width: Width) -> int:
        units, per_unit = math.prod(shape_of(width)), self.drop_prob
        if isinstance(per_unit, tuple) and len(per_unit) != units:
            name = "strength" if self.gaussian else "drop_prob"
            raise InputError(
                f"{name} has {len(per_unit)} entries but there are {units} units"
            )
        return units

    def _per_unit(self, width: Width, values: Any) -> Floats:
        return np.broadcast_to(np.array(values, dtype=float), self._units(width)).copy()


@dataclass(frozen=True)
class KeepExactly(Noise):
    """Exactly `count` of the d units are kept, every choice of them equally likely.

    Never is everything dropped, and the number of active units does not vary. Gamma = lam d/(d-1) I
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
        """-lam/(d-1) off the diagonal, lam on it."""
        units = self._fitting(width)
        lam = units / self.count - 1
        Gamma = np.full((units, units), -lam / max(units - 1, 1))
        np.fill_diagonal(Gamma, lam)
        return Gamma

    def sample(self, width: Width, size: int = 1, seed: Seed = None) -> Floats:
        """Draw masks with exactly `count` ones, shape (size, *width)."""
        units = self._fitting(width)
        draws = _check.generator(seed).random((_check.whole("size", size), units))
        kept = np.argsort(draws, axis=1) < self.count  # a random permutation of 0..d-1
        return kept.astype(float).reshape(-1, *shape_of(width))

    def _fitting(self, width: Width) -> int:
        units = math.prod(shape_of(width))
        if self.count > units:
            raise InputError(
                f"count must be at most the width {width}, got {self.count}"
            )
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


class CovarianceNoise(Noise):
    """Noise with any mean and covariance, drawn as Gaussian multipliers.

    Parameters
    ----------
    mean
        mu, one non-zero entry per unit.
    covariance
        K, units x units, symmetric and positive semi-definite.
    """

    def __init__(self, mean: Any, covariance: Any) -> None:
        mu = _check.doubles("mean", mean, ndim=1).copy()
        K = _check.doubles("covariance", covariance, ndim=2)
        if np.any(mu == 0):
            raise InputError(
                f"mean must have no zero entry, got 0 at {int(np.argmin(abs(mu)))}"
            )
        if K.shape != (mu.size, mu.size):
            raise InputError(f"covariance must be {mu.size} x {mu.size}, got {K.shape}")
        # Of the number format that the covariance was computed in; at least float16.
        form = np.result_type(_check.plain_array("covariance", covariance), np.float16)
        rounding = max(1e-10, mu.size * float(np.finfo(form).eps))
        apart = abs(K - K.T).max()
        if apart > rounding * abs(K).max():
            raise InputError(
                f"covariance must be symmetric, got entries that differ by {apart:.3g}"
            )
        K = (K + K.T) / 2
        eigenvalues, vectors = np.linalg.eigh(K)
        if eigenvalues[0] < -rounding * eigenvalues[-1]:
            raise InputError(
                "covariance must be positive semi-definite, got smallest eigenvalue "
                f"{eigenvalues[0]:.3g}"
            )
        self._mean, self._covariance = mu, K
        self._root = vectors * np.sqrt(np.maximum(eigenvalues, 0))

    def __repr__(self) -> str:
        return f"CovarianceNoise(mean={self._mean!r}, covariance={self._covariance!r})"

    def __eq__(self, other: object) -> bool:
        """Whether the other noise has the same mean and covariance."""
        if not isinstance(other, CovarianceNoise):
            return NotImplemented
        same_mean = np.array_equal(self._mean, other._mean)
        return same_mean and np.array_equal(self._covariance, other._covariance)

    def __hash__(self) -> int:
        return hash((self._mean.tobytes(), self._covariance.tobytes()))

    @property
    def units(self) -> int:
        """Number of units."""
        return len(self._mean)

    @property
    def independent(self) -> bool:
        """Whether the covariance is diagonal."""
        off_diagonal = self._covariance - np.diag(np.diag(self._covariance))
        return not np.any(off_diagonal)

    def mean(self, width: Width) -> Floats:
        """Return the mean as given."""
        self._fitting(width)
        return self._mean.copy()

    @bounded
    def characteristic(self, width: Width) -> Floats:
        """K_ij / (mu_i mu_j)."""
        self._fitting(width)
        return self._covariance / np.outer(self._mean, self._mean)

    def covariance(self, width: Width) -> Floats:
        """Return the covariance as given."""
        self._fitting(width)
        return self._covariance.copy()

    def sample(self, width: Width, size: int = 1, seed: Seed = None) -> Floats:
        """Draw Gaussian masks with the given moments, shape (size, *width)."""
        shape = self._fitting(width)
        normal = _check.generator(seed).standard_normal(
            (_check.whole("size", size), len(self._mean))
        )
        return np.asarray((self._mean + normal @ self._root.T).reshape(-1, *shape))

    def _fitting(self, width: Width) -> tuple[int, ...]:
        shape = shape_of(width)
        if math.prod(shape) != self._mean.size:
            raise InputError(
                f"the noise is over {self._mean.size} units but the width is {width}"
            )
        return shape


def _one_or_many(name: str, value: Any, check: Callable[[Any, str], float]) -> Any:
    """Return one checked number, or a tuple of them, one per unit."""
    if hasattr(value, "detach"):
        value = _check.plain_array(name, value)
    if _check.plain_array(name, value).ndim == 0:
        return check(value, name)
    values = np.ravel(_check.floating(name, value, ndim=1))
    return tuple(check(x, f"{name}[{i}]") for i, x in enumerate(values))


def _strength(value: Any, name: str = "strength") -> float:
    return _check.number(name, value)


def shape_of(width: Width) -> tuple[int, ...]:
    """Return the units' shape, one number per axis."""
    sizes = width if isinstance(width, tuple) and width else (width,)
    shape = tuple(_check.whole("width", n) for n in sizes)
    if math.prod(shape) >= 2**31:
        raise InputError(f"width must be below 2^31 units in all, got {width}")
    return shape


def width_adjusted(drop_prob: Any, width: int, block_size: int) -> float:
    """1 - theta(d), theta(d) = tb b / (tb b + (1 - tb) d), with 1 - tb = drop_prob."""
    tb = 1 - _check.drop_prob(drop_prob)
    d, b = _check.whole("width", width), block_size
    return (1 - tb) * d / (tb * b + (1 - tb) * d)
