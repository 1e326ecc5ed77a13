"""Figures and tables of the papers, recomputed. Toy sizes run in the tests.

table.toml lists them: where each is printed, what it claims, and its settings at every size.
"""

from __future__ import annotations

import tomllib
from importlib import import_module
from importlib.resources import files
from typing import Any

from overt._check import unknown
from overt.experiments.base import SIZES, Experiment
from overt.experiments.runner import report, run
from overt.experiments.verdicts import Finding

_TABLE = tomllib.loads(files(__name__).joinpath("table.toml").read_text(encoding="utf-8"))
_EXTRAS = {"torch": "torch", "matplotlib": "plots"}
IDS = tuple(_TABLE)

__all__ = ["IDS", "Experiment", "Finding", "find", "report", "run"]


def find(experiment_id: str) -> Experiment:
    """Return the experiment with this id."""
    if not isinstance(experiment_id, str) or experiment_id not in IDS:
        raise unknown("experiment", str(experiment_id), IDS)
    entry = _TABLE[experiment_id]
    name, _, ending = entry["code"].partition(":")
    module = import_module(f"overt.experiments.{name}")
    run, check, plot = (getattr(module, f"{what}_{ending}".rstrip("_"))
                        for what in ("run", "check", "plot"))  # fmt: skip
    return Experiment(
        experiment_id, entry["title"], entry["source"], entry["claim"],
        grids={size: dict(map(_axis, entry[size].items())) for size in SIZES if size in entry},
        run=run, check=check, plot=plot, differs=entry.get("differs", {}),
        needs={package: _EXTRAS[package] for package in entry.get("needs", ())},
        revision=entry.get("revision", 1),
    )  # fmt: skip


def _axis(item: tuple[str, Any]) -> tuple[str, list[Any]]:
    """Return an axis and its values, of which one that is no list is the only one."""
    name, values = item
    if name == "runs":
        return "run", list(range(values))
    return name, values if isinstance(values, list) else [values]
