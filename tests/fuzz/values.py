"""Values that functions are called with, by the kind of argument.

A kind says what an argument takes: array, index, size, count, number, prob, word, seed, weights (a
list of matrices), batch (a tensor that a network takes), thing (an object of some class), flag.
"""

from __future__ import annotations

import enum
import pathlib
import warnings
from array import array
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from scipy import sparse

import overt

try:  # not among what overt needs, and what many of its users have
    import pandas as pd
except ImportError:
    pd = None


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


class Exposed:
    """An array behind one of the doors that NumPy knows."""

    def __init__(self, X):
        self.__array_interface__ = X.__array_interface__
        self._kept = X


class Own(np.ndarray):
    """A subclass that says nothing of itself."""


class Wrapped(torch.Tensor):
    """A subclass of a tensor."""


def _doubled(X):
    """A sparse array in which each entry is listed as two halves."""
    rows, cols = np.indices(X.shape).reshape(2, -1)
    values = np.tile(X.ravel() / 2, 2)
    return sparse.coo_array(
        (values, (np.tile(rows, 2), np.tile(cols, 2))), shape=X.shape
    )


def _zeros_stored(X):
    """A sparse array that stores every zero, indexed by 64 bits and out of order."""
    found = sparse.csr_array(np.ones(X.shape))
    found.data = np.ascontiguousarray(X[:, ::-1]).ravel().astype(float)
    found.indices = (
        np.ascontiguousarray(found.indices.reshape(X.shape)[:, ::-1])
        .ravel()
        .astype(np.int64)
    )
    found.indptr = found.indptr.astype(np.int64)
    return found


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
    "subclass": lambda X: X.view(Own),
    "an interface": Exposed,
    "a memoryview": lambda X: memoryview(np.ascontiguousarray(X)),
    "an array of Python": lambda X: array("d", X.tolist()),
    "a parameter": lambda X: torch.nn.Parameter(torch.tensor(X, dtype=torch.float64)),
    "a tensor's subclass": lambda X: torch.tensor(X).as_subclass(Wrapped),
    "tensor with strides": lambda X: torch.tensor(X).repeat_interleave(2, 0)[::2],
    "list of arrays": list,
    "list of tensors": lambda X: [torch.tensor(x) for x in X],
    "fractions": lambda X: [[Fraction(v) for v in x] for x in X.tolist()],
    "doubled": _doubled,
    "stored zeros": _zeros_stored,
    **{
        kind: lambda X, kind=kind: getattr(sparse, kind)(np.atleast_2d(X))
        for kind in (
            "csr_array",
            "csc_array",
            "coo_array",
            "lil_array",
            "dok_array",
            "bsr_array",
            "dia_array",
            "csr_matrix",
            "coo_matrix",
        )
    },
}
"""Forms that hold the same numbers."""

if pd is not None:
    SAME |= {
        "pandas": lambda X: pd.DataFrame(X) if X.ndim == 2 else pd.Series(X),
        "pandas, nullable": lambda X: (
            pd.DataFrame(X) if X.ndim == 2 else pd.Series(X)
        ).convert_dtypes(),
        "pandas, an odd index": lambda X: pd.DataFrame(
            X, index=[9] * len(X), columns=list("zzyx")[: X.shape[1]]
        ),
        "pandas, single": lambda X: pd.DataFrame(X).astype("float32"),
        "pandas, sparse": lambda X: pd.DataFrame(X).astype(pd.SparseDtype(float)),
    }

WHOLE = {
    f"whole {t}": lambda X, t=t: np.round(X).astype(t)
    for t in ("int8", "uint64", "int32")
}


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
    **{
        f"times {c:g}": lambda X, c=c: X * c
        for c in (-1.0, 0.0, 1e-320, 1e-300, 1e-154, 1e-30, 1e30, 1e154, 1e300)
    },
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
    "bytes": lambda X: X.astype("S8"),
    "lengths of time": lambda X: np.zeros(X.shape, "m8[s]"),
    "void": lambda X: np.zeros(X.shape, "V8"),
    "beyond 64 bits": lambda X: [[2**70 for _ in x] for x in np.atleast_2d(X)],
    "decimals": lambda X: [[Decimal(v) for v in x] for x in X.tolist()],
    "large and unsigned": lambda X: np.full(X.shape, 2**64 - 1, np.uint64),
    "most negative": lambda X: np.full(X.shape, -(2**63), np.int64),
    "beyond doubles": lambda X: np.full(X.shape, np.longdouble("1e4000")),
    "broadcast": lambda X: np.broadcast_to(X[:1], X.shape),
    "bools in a list": lambda X: (X > 0).tolist(),
    "words in a list": lambda X: X.astype(str).tolist(),
    "deep": lambda X: np.ones((1,) * 30),
    "too deep a list": lambda X: _nested(70),
    "NaN in a list": lambda X: _with(X, np.nan).tolist(),
    "a set": lambda X: set(X.ravel().tolist()),
    "a map": lambda X: map(float, X.ravel()),
    "float8 tensor": lambda X: torch.tensor(X).to(torch.float8_e4m3fn),
    "whole tensor": lambda X: torch.tensor(X).to(torch.int8),
    "bool tensor": lambda X: torch.tensor(X) > 0,
    "csr tensor": lambda X: torch.tensor(X).to_sparse_csr(),
    "nested tensor": lambda X: torch.nested.nested_tensor([torch.tensor(x) for x in X]),
    "empty tensor": lambda X: torch.tensor(X)[:0],
    "NaN tensor": lambda X: torch.tensor(X) * torch.nan,
    "sparse of bools": lambda X: sparse.csr_array(X > 0),
    "sparse of complex": lambda X: sparse.coo_array(X + 0j),
    "sparse, empty": lambda X: sparse.csr_array(X.shape),
    "sparse, no rows": lambda X: sparse.csr_array((0, 3)),
    "sparse, huge": lambda X: sparse.coo_array(X * 1e300),
}
"""Forms that hold other numbers, or none."""

if pd is not None:
    OTHER |= {
        "pandas with NA": lambda X: (
            pd.DataFrame(X).convert_dtypes().mask(pd.DataFrame(X > 1))
        ),
        "pandas of categories": lambda X: (
            pd.DataFrame(X).astype(str).astype("category")
        ),
        "pandas of text": lambda X: pd.DataFrame(X).astype(str),
        "pandas of dates": lambda X: pd.DataFrame(X.astype("M8[D]").astype("M8[s]")),
        "pandas, a series": lambda X: pd.Series(X.ravel()),
        "pandas, empty": lambda X: pd.DataFrame(),
        "pandas, mixed": lambda X: pd.DataFrame({"a": X[:, 0], "b": ["x"] * len(X)}),
    }


def _nested(depth):
    found: Any = 1.0
    for _ in range(depth):
        found = [found]
    return found


class Word(str):
    """A subclass of a builtin."""


class Broken:
    """What looks like a number and like an array, and is neither."""

    def __float__(self):
        raise RuntimeError("no number")

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("no array")

    def __len__(self):
        return 3

    def __getitem__(self, at):
        raise KeyError(at)


Numbered = enum.IntEnum("Numbered", "one two")


def _itself():
    found: list[Any] = [1.0]
    found.append(found)
    return found


ODD = [
    lambda: None,
    lambda: True,
    lambda: "text",
    lambda: "",
    lambda: b"x",
    lambda: 3.5,
    lambda: -1,
    lambda: 0,
    lambda: float("nan"),
    lambda: float("inf"),
    lambda: 1e300,
    lambda: 10**30,
    lambda: -(10**30),
    lambda: 1j,
    list,
    dict,
    lambda: (),
    object,
    lambda: set(),
    lambda: np.array(5.0),
    lambda: np.array([]),
    lambda: np.zeros((0, 3)),
    lambda: np.zeros((2, 2, 2)),
    lambda: [[1, 2], [3]],
    lambda: np.array(["a"]),
    lambda: np.array([None]),
    lambda: np.datetime64("2020"),
    lambda: np.ma.masked,
    lambda: int,
    lambda: lambda *_: 0,
    lambda: torch.tensor(3.0),
    lambda: torch.zeros(0),
    lambda: Decimal("0.5"),
    lambda: Fraction(1, 2),
    lambda: np.float16(0.5),
    lambda: range(3),
    lambda: [None],
    lambda: "\0",
    lambda: ["a"],
    lambda: {"a": 1},
    lambda: np.array([True]),
    lambda: "ü" * 50,
    lambda: [[]],
    lambda: np.float32("nan"),
    lambda: np.int64(-(2**63)),
    lambda: np.uint64(2**64 - 1),
    lambda: np.bool_(True),
    lambda: np.str_("x"),
    lambda: np.void(b"ab"),
    lambda: -np.inf,
    lambda: complex(np.nan, 0),
    lambda: memoryview(b"abc"),
    lambda: bytearray(b"ab"),
    lambda: Ellipsis,
    lambda: NotImplemented,
    lambda: slice(2),
    lambda: ValueError("x"),
    lambda: (v for v in (1, 2)),
    lambda: pathlib.Path("."),
    lambda: pathlib.Path("/dev/null"),
    lambda: "/proc/self",
    lambda: "a\nb",
    lambda: "~",
    lambda: Word("mse"),
    Broken,
    _itself,
    lambda: Numbered.two,
    lambda: frozenset([1]),
    lambda: np.longdouble("1e4000"),
    lambda: np.timedelta64(3, "s"),
    lambda: torch.tensor(2),
    lambda: torch.tensor(np.nan),
    lambda: torch.tensor(True),
    lambda: torch.tensor([[1.0, 2.0]]),
    lambda: torch.float32,
    lambda: torch.nn.Linear(3, 2),
    torch.nn.Identity,
    lambda: overt.Dropout(0.5),
    lambda: overt.DropConnect(0.5),
    lambda: overt.KeepExactly(2),
    lambda: overt.CovarianceNoise([1.0], [[0.5]]),
    lambda: overt.Dropout([0.1, 0.2]),
    lambda: overt.Dropout,
    lambda: np.random.default_rng(0),
    lambda: np.random.RandomState(0),
    lambda: np.random.SeedSequence(1),
    lambda: overt.Entries([0], [0], [1.0]),
    lambda: sparse.csr_array((2, 2)),
    lambda: np.eye(2),
    lambda: [1, 2],
    lambda: (0.5, 0.25, 0.75),
    lambda: [0.5, "a"],
    lambda: (1,),
    lambda: [True],
    lambda: [np.nan],
    lambda: "0.5",
    lambda: "1e999",
    lambda: "1_0",
    lambda: {0.5},
    lambda: {1: 2},
    lambda: max,
    lambda: np,
    lambda: 1e-300,
    lambda: 2**63,
]

NUMBERS = [
    0.0,
    -0.0,
    5e-324,
    1e-300,
    1e-154,
    1e-30,
    1e154,
    1e300,
    -1e300,
    1.0,
    2,
    0.5,
    1 - 2**-53,
]


def hostile(kind: str, good: Any, rng) -> tuple[str, Any, Any]:
    """Return a name, a hostile value, and the plain value it is to equal, or None."""

    def one(values):
        return values[int(rng.integers(len(values)))]

    if kind == "flag" and rng.random() < 0.5:
        return ("flag", not good, None)
    if kind == "flag":  # asked for its truth, as everywhere in Python
        value = one([None, 0, 1, 3.5, "text", np.bool_(True), [], "", object()])
        return (f"{value!r:.30}", value, None)
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
        value = one(
            [good.upper(), good + " ", good[:-1], f"{good}x", [good], good.encode()]
        )
        return (repr(value), value, None)
    return _scalar(kind, good, one)


def _scalar(kind, good, one):
    forms = {
        "NumPy": np.asarray(good)[()],
        "0-d": np.array(good),
        "tensor": torch.tensor(good),
        "one in a list": [good],
        "text": str(good),
        "fraction": Fraction(good),
        "decimal": Decimal(good),
        "half": np.float16(good),
        "single": np.float32(good),
        "big-endian": np.array(good).astype(np.array(good).dtype.newbyteorder(">"))[()],
        "negative": -good,
        "complex": complex(good),
    }
    if kind in ("size", "count", "seed"):
        forms |= {
            "int8": np.int8(good % 100),
            "uint64": np.uint64(good),
            "float": float(good),
        }
        others = [0, -1, 1, 2, good + 1, -(10**30), float(good) + 0.5, 1e300]
        others += {
            "size": [10**12, 10**30, 2**63],
            "seed": [10**30, 2**64],
            "count": [],
        }[kind]
    else:
        others = [*NUMBERS, -good, 2 * good, 10**30]
    if one([True, False]):
        name = one(sorted(forms))
        value = forms[name]
        others = (
            "negative",
            "complex",
            "text",
            "one in a list",
            "half",
            "single",
            "int8",
        )
        same = name not in others
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
    **{
        f"times {c:g}": lambda x, c=c: x * c
        for c in (-1.0, 0.0, 1e-45, 1e-30, 1e30, 1e38)
    },
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
    "complex": lambda x: x + 0j,
    "array": lambda x: x.numpy(),
    "double array": lambda x: x.double().numpy(),
    "float8": lambda x: x.to(torch.float8_e4m3fn),
    "subclass": lambda x: x.as_subclass(Wrapped),
    "expanded": lambda x: x[:1].expand(x.shape),
    "reversed": lambda x: x.numpy()[::-1],
    "csr": lambda x: x.to_sparse_csr(),
    "one NaN": lambda x: torch.where(x == x.flatten()[0], torch.nan, x),
    "in a tuple": lambda x: (x,),
    "in a dictionary": lambda x: {"input": x},
    "twice": lambda x: (x, x),
    "generator": lambda x: (v for v in x),
}


def _quiet(function, value):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with np.errstate(all="ignore"):
                return function(value)
    except Exception:  # a form that this array cannot take
        return None
