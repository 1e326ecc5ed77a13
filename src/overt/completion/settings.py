"""The estimator's parameters, validated once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from overt import _check
from overt._check import InputError, InputTypeError
from overt._parallel import checked_engine
from overt._types import Floats, Ints, Seed
from overt.completion.memory import n_bytes

LEAST = 0.01
"""Smallest drop probability whose equations are sound in single precision."""

SWEEPS = 100
"""Default number of sweeps after which to stop."""

FACTORS = 32
"""Default number of factors."""

MANY = 500_000
"""Entries from which a ranking gains by more factors (MovieLens 1M does, 100K does not)."""

WIDE = 64
"""Default number of factors of such a ranking."""

DRAWS = 60
"""Posterior samples of average="auto"."""

LEAST_DRAWS = 20
"""Fewer samples are not worth their noise: "auto" then takes none."""

ENOUGH = 1000
"""Entries below which "auto" takes no samples."""

WORK = 2e10
"""Multiplications that the samples of "auto" may take: some ten seconds on one core."""

RANKING = 200_000
"""Entries up to which `fit` also fits the model that ranks: half a second for 100,000, a tenth or
less of the fit with its averaged samples."""

STEPS = 20
"""Different numbers that a rating scale has at most."""

SHARE = 0.9
"""Share of the values that these numbers must make up."""

SAMPLE = 50_000
"""Values that are looked at to decide."""


@dataclass(frozen=True)
class Settings:
    """The estimator's parameters, checked."""

    n_factors: int | None
    drop_prob: Any
    biases: bool
    ridge: float
    method: str
    max_sweeps: int | None
    tol: float | None
    average: Any
    signals: Any
    clip: Any
    learning_rate: float
    batch_size: int
    seed: int
    n_jobs: int | None
    engine: str
    missing: str = "unknown"
    memory_limit: Any = None

    def __post_init__(self) -> None:
        if self.n_factors is not None:
            _check.whole("n_factors", self.n_factors, maximum=10**5)
        n_bytes(self.memory_limit)
        if str(self.average) != "auto":
            _check.whole("average", self.average, minimum=0)
        asked = 0 if str(self.average) == "auto" else self.average
        _check.whole("batch_size", self.batch_size)
        _check.whole("seed", self.seed, minimum=0)
        rate = _check.number("learning_rate", self.learning_rate, exclusive=True)
        object.__setattr__(self, "ridge", _check.number("ridge", self.ridge))
        object.__setattr__(self, "learning_rate", rate)
        _check.choice("method", self.method, ("alternating", "sgd"))
        if checked_engine(self.engine) != "local" and self.method == "sgd":
            raise InputError(f'method="sgd" needs engine="local", got {self.engine!r}')
        if self.max_sweeps is not None:
            _check.whole("max_sweeps", self.max_sweeps)
        if self.tol is not None:
            object.__setattr__(self, "tol", _check.number("tol", self.tol))
        if not isinstance(self.biases, (bool, np.bool_)):
            raise InputTypeError(f"biases must be True or False, got {self.biases!r}")
        for name in ("clip", "signals"):
            given = getattr(self, name)
            if not isinstance(given, (bool, np.bool_)) and str(given) != "auto":
                raise InputError(f"{name} must be 'auto', True or False, got {given!r}")
        if isinstance(self.drop_prob, str):
            _check.choice("drop_prob", self.drop_prob, ("learn", "auto"))
        elif _check.plain_array("drop_prob", self.drop_prob).ndim:
            _check.drop_probs(self.drop_prob, self.factors(0))
        else:
            object.__setattr__(self, "drop_prob", _check.drop_prob(self.drop_prob))
        _check.choice("missing", self.missing, ("unknown", "negative"))
        if self.missing == "negative" and (not self.learned or asked):
            raise InputError('missing="negative" needs drop_prob="learn" and average=0')
        if asked and not self.learned:
            raise InputError('average needs drop_prob="learn", whose posterior is drawn from')
        if self.method == "sgd" and (isinstance(self.drop_prob, str) or np.ndim(self.drop_prob)):
            raise InputError(f'method="sgd" needs drop_prob to be a number, got {self.drop_prob!r}')

    def chosen_factors(self, n_entries: int) -> int:
        """Return the width of the factors of the model of what was chosen."""
        return max(int(self.n_factors or 0), WIDE if n_entries >= MANY else FACTORS)

    def factors(self, n_entries: int) -> int:
        """Return the number of factors for a fit of `n_entries`."""
        if self.n_factors is not None:
            return int(self.n_factors)
        return self.chosen_factors(n_entries) if self.missing == "negative" else FACTORS

    def draws(self, ratings: int, shape: tuple[int, int]) -> int:
        """Return how many samples to average; "auto" takes as many as take seconds."""
        if str(self.average) != "auto":
            return int(self.average)
        if not self.learned or self.max_sweeps is not None or ratings < ENOUGH:
            return 0
        width = self.factors(ratings) + 2 * self.biases
        each = width**2 * (2 * ratings + width * sum(shape) / 3)
        return min(DRAWS, int(WORK / each)) if LEAST_DRAWS * each <= WORK else 0

    @property
    def learned(self) -> bool:
        """Whether the noise is learned."""
        return isinstance(self.drop_prob, str) and self.drop_prob == "learn"

    def fitted(self, drop_prob: Any) -> Settings:
        """Return them with the drop probability that was found, unless the noise is learned."""
        return self if self.learned else replace(self, drop_prob=drop_prob)

    @property
    def ill_posed(self) -> bool:
        """Whether next to nothing is dropped, so that rows with few entries are fitted exactly.

        Their factors then grow until the ridge holds them, beyond what single precision can tell.
        """
        if isinstance(self.drop_prob, str) or self.method == "sgd":
            return False
        return bool(np.min(self.drop_prob) < LEAST)

    @property
    def mapped(self) -> int:
        """Bytes of memory where data may be larger, 0 where no limit is set."""
        return n_bytes(self.memory_limit) or 0

    @property
    def sweeps(self) -> int:
        """Number of sweeps after which to stop."""
        return SWEEPS if self.max_sweeps is None else self.max_sweeps

    def tol_or(self, default: float) -> float:
        """Return when to stop, or the form's own default."""
        return default if self.tol is None else self.tol

    def limits(self, values: Floats) -> tuple[float, float]:
        """Return the range that predictions are clipped to."""
        clip = rating_scale(values) if self.clip == "auto" else self.clip
        return (float(values.min()), float(values.max())) if clip else (-np.inf, np.inf)


def rating_scale(values: Floats, often: Ints | None = None) -> bool:
    """Return whether at most STEPS different numbers make up most of (many of) the values."""
    counts = often
    if counts is None:
        counts = np.unique(values[:: max(1, len(values) // SAMPLE)], return_counts=True)[1]
    return int(counts.sum()) > STEPS and bool(
        np.sort(counts)[-STEPS:].sum() >= SHARE * counts.sum()
    )


def fresh_seed(seed: Seed, random_state: Any = None) -> int:
    """Return a whole number from a seed, or from scikit-learn's `random_state` if there is one."""
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(1 << 31))
    seed = seed if random_state is None else random_state
    if seed is None or isinstance(seed, np.random.Generator):
        return int(_check.generator(seed).integers(1 << 31))
    return _check.whole("seed" if random_state is None else "random_state", seed, minimum=0)
