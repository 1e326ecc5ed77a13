"""Argument checks, and the types of arguments.

Every message names the argument, the value seen and what is accepted.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, wraps
from importlib import import_module
from itertools import pairwise
from typing import Any, ParamSpec, TypeVar

import numpy as np
from array_api_compat import array_namespace, is_array_api_obj
from numpy.typing import NDArray

Array = Any
"""A NumPy array of any type of number or, where documented, a PyTorch tensor."""

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Seed = int | np.random.Generator | None
"""An int, a numpy Generator, or None for fresh entropy."""

LARGE_NUMBER = 1e15
"""Numbers beyond this, or below its inverse, may overflow in products of a few layers."""

MAX_PARTS = 100
"""Parts of a list in which extreme numbers are looked for."""

P = ParamSpec("P")
T = TypeVar("T")


class InputError(ValueError):
    """An argument cannot be used; the message says which, why, and what is accepted."""

    __module__ = "overt"  # where users import it from, and what tracebacks show


class InputTypeError(InputError, TypeError):
    """An argument has the wrong type or number format."""


class InputFileError(OSError, InputError):
    """A file or folder cannot be used; the message says which, and what the system answers."""

    def __str__(self) -> str:
        return f"{self.filename} cannot be used: {self.strerror}"


class InternalError(RuntimeError):
    """Results of overt contradict each other: an error of overt, never of its input."""

    __module__ = "overt"


class MissingExtraError(ImportError):
    """An optional dependency is not installed; the message holds the command that installs it."""

    __module__ = "overt"

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"this needs {package}, which is not installed; install it with: "
            f"pip install 'overt[{extra}]'"
        )


FEW_NAMES = 12
"""Names that are listed where none is near what was typed; more would fill the screen."""


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """Return the error for an unknown name: it says the nearest ones, or all if they are few."""
    from difflib import get_close_matches

    known = list(known)
    near = get_close_matches(name, known, 3, 0.6)
    if near:
        rest = f"did you mean {' or '.join(near)}?"
    elif len(known) <= FEW_NAMES:
        rest = f"known are {', '.join(known)}"
    else:
        rest = f"{len(known)} are known, such as {', '.join(known[:3])}"
    return InputError(f"unknown {kind} {name}; {rest}")


def bounded(function: Callable[P, T]) -> Callable[P, T]:
    """Answer numbers whose squares or products overflow with a sentence, not with inf or NaN.

    Numbers are blamed only if some are extreme. Any other failure is an error of the code below,
    and is raised as it is.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with np.errstate(over="raise", invalid="raise", divide="raise"):
                found = function(*args, **kwargs)
            if _finite(found):
                return found
            reason: Exception | None = None
        except ZeroDivisionError:
            raise
        except (ArithmeticError, np.linalg.LinAlgError) as error:
            if not _extreme((args, kwargs)):
                raise
            reason = error
        except (MemoryError, RuntimeError) as error:  # the second is torch's
            if "not implemented for" in str(
                error
            ):  # a format that linear algebra lacks
                raise InputTypeError(
                    f"arrays must be float32 or float64: {error}"
                ) from None
            if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
                raise
            raise InputError(f"there is too little memory for it: {error}") from None
        name = function.__name__.strip("_")
        if reason is None and not _extreme((args, kwargs)):
            raise ArithmeticError(
                f"{name} computed NaN or infinite numbers from numbers of ordinary size; this is "
                "an error of overt, or of a function that was given to it"
            )
        raise InputError(
            f"{name} got numbers so large, or so different in size, that their products leave the "
            "range of floating point; divide them by a constant"
        ) from reason

    return call


def _extreme(value: Any, depth: int = 6) -> bool:
    """Whether some number in arguments, or in attributes of objects, is very large or small."""
    if depth == 0 or isinstance(value, (str, bytes, np.random.Generator)):
        return False
    if isinstance(value, (numbers.Real, np.ndarray)) or is_array_api_obj(value):
        with suppress(TypeError, ValueError):
            sizes = np.abs(np.asarray(plain_array("value", value), dtype=float))
            ordinary = (sizes < LARGE_NUMBER) & (sizes > 1 / LARGE_NUMBER)
            return bool(np.any(~ordinary & (sizes != 0)))
        return False
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, (list, tuple)):
        return any(_extreme(part, depth - 1) for part in value[:MAX_PARTS])
    return _extreme(getattr(value, "__dict__", ""), depth - 1)


def _finite(found: Any) -> bool:
    """Whether a tensor or number, or each in a list, is finite; torch overflows in silence."""
    if isinstance(found, (list, tuple)):
        return all(map(_finite, found))
    if not hasattr(found, "detach"):
        return not isinstance(found, (float, np.ndarray)) or bool(
            np.all(np.isfinite(found))
        )
    return bool(found.detach().isfinite().all())


def namespace(*arrays: Array) -> Any:
    """Return the functions of the arrays' library; at once for NumPy, the common case."""
    if all(type(array) is np.ndarray for array in arrays):
        return _numpy_namespace()
    return array_namespace(*arrays)


@cache
def _numpy_namespace() -> Any:
    # Imported on first use: it loads all of NumPy, which would double the time of `import overt`.
    return import_module("array_api_compat.numpy")


def floating(name: str, value: Any, *, ndim: int | None = None) -> Array:
    """Return `value` as a finite, non-empty, real floating-point array.

    Lists, arrays and tensors of whole numbers, series and data frames are converted to float64.
    """
    if type(value) is not np.ndarray:
        value = _from_library(name, value)
    if isinstance(value, (list, tuple)):
        try:
            entries = np.asarray(value)
        except (TypeError, ValueError) as error:
            raise InputTypeError(f"{name} must hold numbers only: {error}") from None
        if entries.dtype.kind not in "iuf":
            raise InputTypeError(f"{name} must hold numbers only, got {value!r}")
        value = _float64(entries)
    if type(value) is not np.ndarray and not _dense(value):
        raise InputTypeError(
            f"{name} must be a dense NumPy array, a PyTorch tensor, a list of numbers, a series or "
            f"a data frame, got {type(value).__name__}"
        )
    if isinstance(value, (np.ndarray, np.generic)):
        value = np.asarray(value)  # no subclass, no scalar
    xp = namespace(value)
    plain = type(value) is np.ndarray  # checked without the array API, the common case
    if not (
        value.dtype.kind == "f" if plain else xp.isdtype(value.dtype, "real floating")
    ):
        if not xp.isdtype(value.dtype, "integral"):
            raise InputTypeError(
                f"{name} must be an array of floating-point or whole numbers, got {value.dtype}"
            )
        value = xp.astype(value, xp.float64)
    elif plain and value.dtype not in (np.float32, np.float64):
        value = _float64(
            value
        )  # other sizes and byte orders, which linear algebra lacks
    if ndim is not None and value.ndim != ndim:
        raise InputError(
            f"{name} must have {ndim} dimension(s), got shape {tuple(value.shape)}"
        )
    if 0 in value.shape:
        raise InputError(f"{name} must not be empty, got shape {tuple(value.shape)}")
    finite = xp.isfinite(value)
    if not bool(xp.all(finite)):
        count = int(xp.sum(xp.astype(~finite, xp.int64)))
        raise InputError(f"{name} must be finite, got {count} NaN or infinite value(s)")
    return value


def _from_library(name: str, value: Any) -> Any:
    """Return a series, a data frame, or an object with `__array__` as an array of NumPy.

    Anything else is returned as it is.
    """
    if isinstance(value, np.ma.MaskedArray) and not np.ma.is_masked(value):
        return value.data
    if is_array_api_obj(value) or hasattr(value, "tocoo"):
        return value
    if not hasattr(value, "__array__"):
        return value
    value = plain_array(name, value)
    if value.dtype.kind == "O":  # columns of different types, or nulls
        try:
            value = value.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise InputTypeError(f"{name} must hold numbers only: {error}") from None
    return value


def _dense(value: Any) -> bool:
    """Whether a value is an array, or a tensor that has all its numbers, in a common format."""
    if not is_array_api_obj(value) or isinstance(value, (np.matrix, np.ma.MaskedArray)):
        return False
    return not hasattr(value, "detach") or (
        str(value.layout) == "torch.strided"
        and not (value.is_meta or value.is_nested)
        and "float8" not in str(value.dtype)
    )


def _float64(value: Floats) -> Floats:
    with np.errstate(
        over="ignore"
    ):  # what is beyond becomes infinite, and is refused as such
        return value.astype(np.float64)


def doubles(name: str, value: Any, *, ndim: int | None = None) -> Floats:
    """Return `floating` as a NumPy array of float64, cut off from any gradient."""
    return np.asarray(plain_array(name, floating(name, value, ndim=ndim)), dtype=float)


def plain_array(name: str, value: Any) -> Any:
    """Return what is like an array as one of NumPy; refuse masked entries and ragged lists."""
    if np.ma.is_masked(value):
        raise InputError(
            f"{name} must have no masked entries; leave them out, or fill them"
        )
    if hasattr(value, "tocoo"):
        raise InputTypeError(
            f"{name} must be dense, got a sparse {type(value).__name__}"
        )
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            value = (
                value.float() if str(value.dtype) == "torch.bfloat16" else value
            ).numpy()
        return np.asarray(value)
    except Exception as error:
        raise InputTypeError(
            f"{name} must be an array, got {value!r:.40} ({error})"
        ) from None


def matrix(name: str, value: Any) -> Array:
    """Return `value` as a finite, non-empty, two-dimensional floating-point array."""
    return floating(name, value, ndim=2)


def same_library(**arrays: Any) -> None:
    """Refuse NumPy arrays and PyTorch tensors mixed in one call."""
    if len({namespace(a) for a in arrays.values()}) > 1:
        seen = ", ".join(f"{name}: {type(a).__name__}" for name, a in arrays.items())
        raise InputTypeError(f"arrays must come from one library, got {seen}")


def factors(U: Any, V: Any) -> tuple[Array, Array]:
    """Return the two factors of a product U V' after checking that they share their width."""
    U, V = matrix("U", U), matrix("V", V)
    same_library(U=U, V=V)
    if U.shape[1] != V.shape[1]:
        raise InputError(
            "U (outputs x width) and V (inputs x width) must have the same number of columns, "
            f"got {tuple(U.shape)} and {tuple(V.shape)}"
        )
    return U, V


def chain(weights: Any) -> list[Array]:
    """Return the layers [W_1, ..., W_{k+1}] after checking that their shapes fit together."""
    if not isinstance(weights, Sequence) or len(weights) < 2:
        raise InputError(
            "weights must be a list of at least two matrices [W_1, ..., W_(k+1)], each outputs x "
            f"inputs, got {type(weights).__name__}"
            + (f" of length {len(weights)}" if isinstance(weights, Sequence) else "")
        )
    layers = [matrix(f"weights[{i}]", W) for i, W in enumerate(weights)]
    same_library(**{f"weights[{i}]": W for i, W in enumerate(layers)})
    for i, (W, after) in enumerate(pairwise(layers)):
        if W.shape[0] != after.shape[1]:
            raise InputError(
                f"weights[{i + 1}] must take the {W.shape[0]} outputs of weights[{i}], "
                f"got shape {tuple(after.shape)} (outputs x inputs)"
            )
    return layers


def second_moment(value: Any, inputs: int, like: Any = None) -> Array | None:
    """Return C = E[x x'] (inputs x inputs), or None, which stands for the identity."""
    if value is None:
        return None
    C = matrix("second_moment", value)
    if like is not None:
        same_library(second_moment=C, weights=like)
    if tuple(C.shape) != (inputs, inputs):
        raise InputError(
            f"second_moment must be {inputs} x {inputs} (inputs x inputs), got {tuple(C.shape)}"
        )
    xp = namespace(C)
    A = C.detach() if hasattr(C, "detach") else C
    asymmetry, scale = float(xp.max(xp.abs(A - A.T))), float(xp.max(xp.abs(A)))
    if asymmetry > 1e-6 * scale:
        raise InputError(
            f"second_moment must be symmetric, got entries that differ by {asymmetry:.3g}"
        )
    return C


def drop_prob(value: Any, name: str = "drop_prob") -> float:
    """Return a drop probability in [0, 1)."""
    if not isinstance(value, numbers.Real):
        with suppress(Exception):
            value = value.item()
    if isinstance(value, (bool, np.timedelta64)) or not isinstance(value, numbers.Real):
        raise InputTypeError(
            f"{name} must be a number in [0, 1), got {value!r} of type {type(value).__name__}"
        )
    result = float(value)
    if not 0 <= result < 1:
        raise InputError(f"{name} must be a number in [0, 1), got {value!r}")
    return result


def drop_probs(value: Any, count: int, name: str = "drop_prob") -> tuple[float, ...]:
    """Return one drop probability for each of `count` layers, from a number or a sequence."""
    scalar = isinstance(value, (str, bytes)) or (
        is_array_api_obj(value) and value.ndim == 0
    )
    if isinstance(value, Iterable) and not scalar:
        values = list(value)
        if len(values) != count:
            raise InputError(
                f"{name} must be one number or {count} (one per hidden layer), got {len(values)}"
            )
        return tuple(drop_prob(v, f"{name}[{i}]") for i, v in enumerate(values))
    return (drop_prob(value, name),) * count


def widths(value: Any) -> list[int]:
    """Return the widths of hidden layers, from one number or from several."""
    several = (
        isinstance(value, (Sequence, np.ndarray)) and getattr(value, "ndim", 1) == 1
    )
    found = [
        whole(f"widths[{i}]", d) for i, d in enumerate(value if several else (value,))
    ]
    if not found:
        raise InputError("widths must name at least one hidden layer, got none")
    return found


def optional_whole(name: str, value: Any) -> int | None:
    """Return a whole number that is at least 1, or None."""
    return None if value is None else whole(name, value)


def whole(name: str, value: Any, minimum: int = 1, maximum: float = 2**63 - 1) -> int:
    """Return a whole number that is at least `minimum`."""
    wrong = isinstance(value, (bool, np.bool_, np.timedelta64))
    if wrong or not isinstance(value, (int, np.integer)):
        raise InputTypeError(f"{name} must be a whole number, got {value!r}")
    if value < minimum:
        raise InputError(f"{name} must be at least {minimum}, got {value}")
    if value > maximum:
        raise InputError(f"{name} must be at most {maximum}, got {value}")
    return int(value)


def number(
    name: str, value: Any, minimum: float = 0.0, *, exclusive: bool = False
) -> float:
    """Return a finite number that is at least `minimum` (above it if `exclusive`)."""
    try:
        if isinstance(value, (str, bytes)) or value is np.ma.masked or np.ndim(value):
            raise TypeError
        result = float(value)
    except Exception:
        raise InputTypeError(f"{name} must be a number, got {value!r:.60}") from None
    if not np.isfinite(result) or result < minimum or (exclusive and result == minimum):
        least = f"{'above' if exclusive else 'at least'} {minimum:g}"
        raise InputError(f"{name} must be a finite number {least}, got {value!r}")
    return result


def instance(name: str, value: T, kind: Any, shown: str) -> T:
    """Return `value` if it is of a class, which is `shown` to who passed something else."""
    if not isinstance(value, kind):
        raise InputTypeError(f"{name} must be {shown}, got {value!r:.60}")
    return value


def choice(name: str, value: Any, accepted: Sequence[str]) -> str:
    """Return `value` if it is one of the accepted words."""
    if not isinstance(value, str) or value not in accepted:
        raise InputError(
            f"{name} must be one of {', '.join(map(repr, accepted))}, got {value!r}"
        )
    return str(value)


def generator(seed: Seed) -> np.random.Generator:
    """Return the random generator that `seed` stands for."""
    if seed is None or isinstance(seed, np.random.Generator):
        return np.random.default_rng(seed)
    return np.random.default_rng(whole("seed", seed, minimum=0, maximum=np.inf))


def seed_number(seed: Seed, random_state: Any = None) -> int:
    """Return a whole number from a seed, or from scikit-learn's `random_state` if there is one."""
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(1 << 31))
    name = "seed" if random_state is None else "random_state"
    given = seed if random_state is None else random_state
    if given is None or isinstance(given, np.random.Generator):
        return int(generator(given).integers(1 << 31))
    return whole(name, given, minimum=0)


def seed_numbers(seeds: Any) -> list[int]:
    """Return the numbers of runs: 0, 1, ... for a count, or those that are listed."""
    if not isinstance(seeds, (Sequence, np.ndarray)) or getattr(seeds, "ndim", 1) == 0:
        return list(range(whole("seeds", seeds)))
    if len(seeds) == 0:
        raise InputError(
            "seeds must be a number of runs or a list of at least one, got none"
        )
    return [whole("seeds", number, minimum=0) for number in seeds]


def record_steps(records: Any, steps: int, spaced: Callable[[int], Any]) -> list[int]:
    """Return the steps to record, in order: spaced(count) for a count, or those listed."""
    given = plain_array("records", records)
    if given.ndim:
        chosen = {whole("records", step, minimum=0) for step in given}
    else:
        chosen = set(
            np.round(spaced(whole("records", records, minimum=2))).astype(int).tolist()
        )
    if max(chosen, default=0) > steps:
        raise InputError(
            f"records must lie in 0..{steps}, the steps, got {max(chosen)}"
        )
    return sorted(chosen)
