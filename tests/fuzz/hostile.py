"""Values that functions are called with, by the kind of argument, and how calls are judged.

A kind says what an argument takes: array, index, size, count, number, prob, word, seed, weights (a
list of matrices), batch (a tensor that a network takes), thing (an object of some class), flag.
"""

from __future__ import annotations

import resource
import signal
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from scipy import sparse

import overt

SECONDS = 20
"""Of the processor, after which a call is said to hang."""

MEMORY = 3 * 2**30
"""Bytes of address space that a call on a few numbers may add."""


@dataclass(frozen=True)
class Row:
    """A function, with a good value and the kind of each argument."""

    call: Any
    args: dict[str, tuple[str, Any]]
    infinite: bool = False
    """Whether infinity, or nothing (None or NaN), is among its honest answers."""
    unique: bool = True
    """Whether the same numbers in another form must give the same numbers."""
    warns: str = "$."
    """What its own warnings say, as a regular expression."""
    network: Any = None
    """Whose own errors are its users' business; `model` among the arguments otherwise."""


def _readonly(X):
    X = X.copy()
    X.flags.writeable = False
    return X


def _swapped(X):
    wide = np.zeros(tuple(2 * n for n in X.shape))
    wide[tuple(slice(None, None, 2) for _ in X.shape)] = X
    return wide[tuple(slice(None, None, 2) for _ in X.shape)]


class Frame:
    """What libraries of tables have in common."""

    def __init__(self, columns):
        self._columns = columns
        self.columns = list(columns)

    def __getitem__(self, name):
        return self._columns[name if name in self._columns else self.columns[name]]

    def __array__(self, dtype=None, copy=None):
        return np.stack(list(self._columns.values()), axis=1).astype(dtype or float)

    def __len__(self):
        return len(next(iter(self._columns.values())))


def _frame(X):
    return Frame({f"c{j}": X[:, j] for j in range(X.shape[1])})


SAME = {
    "big-endian": lambda X: X.astype(X.dtype.newbyteorder(">")),
    "read-only": _readonly,
    "strided": _swapped,
    "Fortran": np.asfortranarray,
    "reversed": lambda X: X[::-1].copy()[::-1],
    "list": lambda X: X.tolist(),
    "tuple": lambda X: tuple(X.tolist()),
    "half": lambda X: X.astype(np.float16),
    "single": lambda X: X.astype(np.float32),
    "long": lambda X: X.astype(np.longdouble),
    "tensor": lambda X: torch.tensor(X),
    "gradient": lambda X: torch.tensor(X, dtype=torch.float64, requires_grad=True),
    "bfloat16": lambda X: torch.tensor(X, dtype=torch.bfloat16),
    "float32 tensor": lambda X: torch.tensor(X, dtype=torch.float32),
    "frame": _frame,
    "objects": lambda X: X.astype(object),
    "matrix": lambda X: np.asmatrix(X),
    "unmasked": lambda X: np.ma.array(X),
    **{
        kind: lambda X, kind=kind: getattr(sparse, kind)(np.atleast_2d(X))
        for kind in (
            "csr_array", "csc_array", "coo_array", "lil_array", "dok_array", "bsr_array",
            "dia_array", "csr_matrix", "coo_matrix",
        )
    },
}  # fmt: skip
"""Forms that hold the same numbers."""

WHOLE = {f"whole {t}": lambda X, t=t: np.round(X).astype(t) for t in ("int8", "uint64", "int32")}


def _with(X, value):
    X = np.array(X, dtype=float)
    X.flat[X.size // 2] = value
    return X


OTHER = {
    "NaN": lambda X: _with(X, np.nan),
    "inf": lambda X: _with(X, np.inf),
    "-inf": lambda X: _with(X, -np.inf),
    "one huge": lambda X: _with(X, 1e300),
    "one tiny": lambda X: _with(X, 5e-324),
    **{f"times {c:g}": lambda X, c=c: X * c for c in (
        -1.0, 0.0, 1e-320, 1e-300, 1e-154, 1e-30, 1e30, 1e154, 1e300)},
    "masked": lambda X: np.ma.masked_less(X, np.max(X)),
    "all masked": lambda X: np.ma.masked_all(X.shape),
    "complex": lambda X: X + 0j,
    "complex tensor": lambda X: torch.tensor(X + 0j),
    "bool": lambda X: X > 0,
    "text": lambda X: X.astype(str),
    "dates": lambda X: np.zeros(X.shape, "M8[s]"),
    "structured": lambda X: np.zeros(X.shape, [("a", float)]),
    "None inside": lambda X: np.where(X.flat[0] == X, None, X),
    "scalar": lambda X: X.flat[0],
    "0-d": lambda X: np.array(X.flat[0]),
    "3-d": lambda X: X[None],
    "4-d": lambda X: X.reshape(1, 1, *X.shape),
    "raveled": np.ravel,
    "transposed": lambda X: X.T,
    "one row less": lambda X: X[1:],
    "one row more": lambda X: np.concatenate([X, X[:1]]),
    "no rows": lambda X: X[:0],
    "no columns": lambda X: X[..., :0],
    "one value": lambda X: np.full_like(X, X.flat[0]),
    "ones": lambda X: np.ones(X.shape),
    "negative zero": lambda X: -0.0 * X,
    "sparse tensor": lambda X: torch.tensor(X).to_sparse(),
    "meta tensor": lambda X: torch.tensor(X).to("meta"),
    "sparse NaN": lambda X: sparse.csr_array(np.atleast_2d(_with(X, np.nan))),
    "ragged": lambda X: [[1.0, 2.0], [3.0]],
    "generator": lambda X: iter(X.tolist()),
    "a dictionary": lambda X: dict(enumerate(X.tolist())),
}  # fmt: skip
"""Forms that hold other numbers, or none."""

ODD = [
    lambda: None, lambda: True, lambda: "text", lambda: "", lambda: b"x", lambda: 3.5, lambda: -1,
    lambda: 0, lambda: float("nan"), lambda: float("inf"), lambda: 1e300, lambda: 10**30,
    lambda: -(10**30), lambda: 1j, list, dict, lambda: (), object, lambda: set(),
    lambda: np.array(5.0), lambda: np.array([]), lambda: np.zeros((0, 3)),
    lambda: np.zeros((2, 2, 2)), lambda: [[1, 2], [3]], lambda: np.array(["a"]),
    lambda: np.array([None]), lambda: np.datetime64("2020"), lambda: np.ma.masked, lambda: int,
    lambda: (lambda *_: 0), lambda: torch.tensor(3.0), lambda: torch.zeros(0),
    lambda: Decimal("0.5"), lambda: Fraction(1, 2), lambda: np.float16(0.5), lambda: range(3),
    lambda: [None], lambda: "\0", lambda: ["a"], lambda: {"a": 1}, lambda: np.array([True]),
    lambda: "ü" * 50, lambda: [[]],
]  # fmt: skip

NUMBERS = [0.0, -0.0, 5e-324, 1e-300, 1e-154, 1e-30, 1e154, 1e300, -1e300, 1.0, 2, 0.5, 1 - 2**-53]


def hostile(kind: str, good: Any, rng) -> tuple[str, Any, Any]:
    """Return a name, a hostile value, and the plain value it is to equal, or None."""

    def one(values):
        return values[int(rng.integers(len(values)))]

    if kind == "flag":
        return ("flag", not good, None)
    if kind == "thing" or rng.random() < 0.2:
        value = one(ODD)()
        if kind in ("size", "count") and isinstance(value, int) and abs(value) > 2:
            value = -1
        return (f"{value!r:.30}", value, None)
    if kind in ("array", "index"):
        table = SAME if rng.random() < 0.5 else OTHER
        if rng.random() < 0.1 and np.isfinite(good).all():
            table = WHOLE
        name = one(sorted(table))
        base = np.round(good) if table is WHOLE else good
        if table is WHOLE and "uint" in name:
            base = np.abs(base)
        shown = _quiet(table[name], base)
        return (name, shown, None if table is OTHER or shown is None else base)
    if kind == "weights":
        at, value = int(rng.integers(len(good))), list(good)
        name, value[at], _ = hostile("array", good[at], rng)
        return (f"[{at}] {name}", value, None)
    if kind == "batch":
        name = one(sorted(BATCHES))
        return (name, _quiet(BATCHES[name], good), None)
    if kind == "word":
        value = one([good.upper(), good + " ", good[:-1], f"{good}x", [good], good.encode()])
        return (repr(value), value, None)
    return _scalar(kind, good, one)


def _scalar(kind, good, one):
    forms = {
        "NumPy": np.asarray(good)[()], "0-d": np.array(good), "tensor": torch.tensor(good),
        "one in a list": [good], "text": str(good), "fraction": Fraction(good),
        "decimal": Decimal(good), "half": np.float16(good), "single": np.float32(good),
        "big-endian": np.array(good).astype(np.array(good).dtype.newbyteorder(">"))[()],
        "negative": -good, "complex": complex(good),
    }  # fmt: skip
    if kind in ("size", "count", "seed"):
        forms |= {"int8": np.int8(good), "uint64": np.uint64(good), "float": float(good)}
        others = [0, -1, 1, 2, good + 1, -(10**30), float(good) + 0.5, 1e300]
        others += {"size": [10**12, 10**30, 2**63], "seed": [10**30, 2**64], "count": []}[kind]
    else:
        others = [*NUMBERS, -good, 2 * good, 10**30]
    if one([True, False]):
        name = one(sorted(forms))
        value = forms[name]
        same = name not in ("negative", "complex", "text", "one in a list", "half", "single")
        return (name, value, good if same else None)
    value = one(others)
    return (repr(value), value, None)


BATCHES = {
    "double": lambda x: x.double(),
    "half": lambda x: x.half(),
    "bfloat16": lambda x: x.bfloat16(),
    "whole": lambda x: x.round().long(),
    "bool": lambda x: x > 0,
    "gradient": lambda x: x.clone().requires_grad_(),
    "strided": lambda x: torch.stack([x, x], -1)[..., 0],
    "NaN": lambda x: x * torch.nan,
    "inf": lambda x: x / 0,
    **{f"times {c:g}": lambda x, c=c: x * c for c in (-1.0, 0.0, 1e-45, 1e-30, 1e30, 1e38)},
    "empty": lambda x: x[:0],
    "one row": lambda x: x[:1],
    "no features": lambda x: x[..., :0],
    "wrong width": lambda x: torch.cat([x, x], -1),
    "raveled": torch.ravel,
    "deeper": lambda x: x[None],
    "scalar": lambda x: x.flatten()[0],
    "sparse": lambda x: x.to_sparse(),
    "meta": lambda x: x.to("meta"),
    "list": lambda x: x.tolist(),
}


def _quiet(function, value):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with np.errstate(all="ignore"):
                return function(value)
    except Exception:  # a form that this array cannot take
        return None


class Hang(BaseException):
    """Not caught by what catches exceptions."""


@contextmanager
def limits():
    """Bound the time and the memory of a call."""

    def stop(*_):
        raise Hang

    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def numbers(found: Any) -> list[np.ndarray]:
    """Return all numbers in a result."""
    if isinstance(found, dict):
        return [a for value in found.values() for a in numbers(value)]
    if isinstance(found, (list, tuple)):
        return [a for value in found for a in numbers(value)]
    if hasattr(found, "to_dict"):
        return numbers({k: v for k, v in vars(found).items() if not k.startswith("_")})
    if hasattr(found, "detach"):
        found = found.detach().double().numpy() if not found.is_complex() else found.numpy()
    if sparse.issparse(found):
        found = found.toarray()
    if isinstance(found, (int, float, complex, np.ndarray, np.number)):
        found = np.asarray(found)
        return [np.atleast_1d(found)] if found.dtype.kind in "fciub" else []
    return []


def frozen(value: Any) -> Any:
    """Return what an argument holds, to see whether it was changed."""
    if isinstance(value, (list, tuple)):
        return [frozen(v) for v in value]
    if isinstance(value, np.ndarray):
        return None if value.dtype == object else np.asarray(value).tobytes()
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_meta:
        return repr(value.detach().clone().flatten().tolist())
    if sparse.issparse(value):
        return value.toarray().tobytes()
    return None


def assault(row: Row, rng) -> str:
    """Call once with one or two hostile arguments; return how the rule is broken, or nothing."""
    names = list(row.args)
    chosen = rng.permutation(len(names))[: 1 + (rng.random() < 0.15)]
    given = {name: good for name, (_, good) in row.args.items()}
    plain, told = dict(given), []
    for at in chosen:
        name = names[at]
        kind, good = row.args[name]
        how, given[name], same = hostile(kind, good, rng)
        told.append(f"{name}: {how}")
        plain[name] = same
    before = {name: frozen(value) for name, value in given.items()}
    told_so = ", ".join(told)
    kind, found = outcome(row, given)
    if kind == "refused":
        return ""
    if kind != "value":
        return "" if _own(row, given) else f"{told_so}: {kind} {found}"
    if {name: frozen(value) for name, value in given.items()} != before:
        return f"{told_so}: changed its argument"
    here = numbers(found)
    if _own(row, given):
        return ""
    if any(np.isnan(a).any() if a.dtype.kind in "fc" else False for a in here) and not row.infinite:
        return f"{told_so}: NaN"
    if any(np.isinf(a).any() if a.dtype.kind in "fc" else False for a in here) and not row.infinite:
        return f"{told_so}: infinite"
    if row.unique and all(plain[names[at]] is not None for at in chosen):
        kind, wanted = outcome(row, plain)
        if kind == "value" and not alike(here, numbers(wanted), told_so):
            return f"{told_so}: {_brief(here)} instead of {_brief(numbers(wanted))}"
    return ""


def _own(row, given) -> bool:
    """Whether the user's network itself fails, or gives no numbers, on what it is given."""
    model, x = row.network or given.get("model"), given.get("x", given.get("example"))
    if not isinstance(model, torch.nn.Module):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = model(x)
            return not bool((out.abs() < 1e15).all()) or not out.numel()  # squares overflow
    except Exception:
        return True


def alike(here, there, told) -> bool:
    rough = any(word in told for word in ("half", "single", "bfloat16", "float32"))
    rtol = 2e-2 if rough else 1e-6
    if len(here) != len(there):
        return False
    for a, b in zip(here, there, strict=True):
        if a.size != b.size:
            return False
        scale = np.abs(b[np.isfinite(b)]).max(initial=1e-300) if b.dtype.kind in "fc" else 1
        if not np.allclose(a.ravel(), b.ravel(), rtol=rtol, atol=rtol * scale, equal_nan=True):
            return False
    return True


def _brief(found):
    return " ".join(f"{a.ravel()[:4]}" for a in found)[:120]


def outcome(row: Row, given: dict[str, Any]) -> tuple[str, Any]:
    """Return ("value", found), ("refused", message) or (the fault, what it says)."""
    try:
        with warnings.catch_warnings(), limits():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", row.warns, UserWarning)
            found = row.call(**given)
    except overt.InputError as error:
        return ("refused", str(error)) if len(str(error)) > 20 else ("a short message", error)
    except Hang:
        return ("hang", "")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return (type(error).__name__, f"{error!s:.150}")
    return ("value", found)
