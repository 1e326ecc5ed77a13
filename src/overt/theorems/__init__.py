"""The papers' statements as code: each can be run, and fails if it is wrong.

>>> from overt.theorems import verify
>>> [v.verdict for v in verify(["path-norm"])]
['holds']
"""

from __future__ import annotations

from importlib import import_module

from overt.theorems.base import SIZES, Evidence, Theorem, Verdict, registered, theorem, verify

# Importing a module registers its statements; the order is that of the papers' argument.
for _module in (
    "noises",
    "penalties",
    "norms",
    "balance",
    "optima",
    "deep",
    "linear",
    "completion",
    "decay",
    "nn",
    "audit",
    "compress",
    "relu",
    "robust",
):
    import_module(f"overt.theorems.{_module}")

__all__ = ["SIZES", "Evidence", "Theorem", "Verdict", "registered", "theorem", "verify"]
