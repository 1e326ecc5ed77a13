"""The papers' figures and tables, one file each or with their kin; toy sizes run in the tests."""

from __future__ import annotations

from importlib import import_module

from overt._check import unknown
from overt.experiments.base import Experiment
from overt.experiments.runner import report, run
from overt.experiments.verdicts import Finding

IDS = (
    "dropout-fig1", "dropout-fig2", "dropout-fig3",
    "structured-fig1", "structured-fig2", "structured-fig3", "structured-fig4", "structured-fig5",
    "structured-fig6", "thesis-fig3-2", "thesis-fig3-3", "thesis-fig4-1", "thesis-table4-1",
    "thesis-fig4-2", "thesis-fig5-2", "thesis-fig5-3", "thesis-fig6-1", "thesis-fig6-2",
    "thesis-table6-1", "thesis-table6-2",
    "jumps-fig1", "jumps-fig2", "jumps-fig3", "jumps-fig4", "jumps-minima",
    "nn-realized", "robust-greedy",
)  # fmt: skip
SHARED = {
    "dropout_landscape": ("dropout-fig1", "dropout-fig2"),
    "structured": ("structured-fig1", "structured-fig3", "structured-fig5", "structured-fig6"),
    "thesis_completion": ("thesis-fig4-1", "thesis-table4-1"),
    "thesis_deep": ("thesis-fig3-2", "thesis-fig3-3"),
    "thesis_reflection": ("thesis-fig6-1", "thesis-fig6-2"),
    "thesis_subnetworks": ("thesis-fig5-2", "thesis-fig5-3"),
}
"""Modules with several experiments; any other is named after its experiment's id."""

__all__ = ["IDS", "Experiment", "Finding", "find", "report", "run"]


def find(experiment_id: str) -> Experiment:
    """Return the experiment with this id."""
    if experiment_id not in IDS:
        raise unknown("experiment", experiment_id, IDS)
    own = experiment_id.replace("-", "_")
    name = next((module for module, ids in SHARED.items() if experiment_id in ids), own)
    found = vars(import_module(f"overt.experiments.{name}")).values()
    return next(e for e in found if isinstance(e, Experiment) and e.id == experiment_id)
