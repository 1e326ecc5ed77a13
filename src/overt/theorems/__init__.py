"""The papers' statements as code: each can be run, and fails if it is wrong.

>>> from overt.theorems import verify
>>> [v.verdict for v in verify(["path-norm"])]
['holds']
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from overt.theorems.base import (
    SIZES,
    Evidence,
    Theorem,
    Verdict,
    distinct,
    registered,
    theorem,
    verify,
)

# Importing a module registers its statements: first along the line of the papers' argument, then
# those of the applications.
_LINE = (
    "noises", "penalties", "norms", "balance", "optima", "deep", "linear", "shrinkage",
    "parametrization",
)  # fmt: skip
_FOUND = sorted(found.name for found in pkgutil.iter_modules(__path__))
for _module in sorted(_FOUND, key=lambda name: _LINE.index(name) if name in _LINE else len(_LINE)):
    if _module != "base" and not _module.startswith("_"):
        import_module(f"overt.theorems.{_module}")

__all__ = ["SIZES", "Evidence", "Theorem", "Verdict", "distinct", "registered", "theorem", "verify"]
