"""Two-layer ReLU networks under dropout: what they can fit, and how training finds it."""

from overt.relu.bounds import (
    RiskBound,
    capacity,
    coadaptation,
    flows,
    positive_norm,
    rademacher_lower,
    rademacher_upper,
    risk_bound,
    symmetrized_bound,
)
from overt.relu.complexity import Complexity, rademacher
from overt.relu.margins import Margin, margin
from overt.relu.network import TwoLayer, escaping_weights
from overt.relu.one_output import OneOutputOptimum, one_output_optimum
from overt.relu.requirements import Guarantee, guarantee, required
from overt.relu.retention import Retentivity, retained_share, retentivity, symmetrize
from overt.relu.training import LazyRun, train_lazy

__all__ = [
    "Complexity",
    "Guarantee",
    "LazyRun",
    "Margin",
    "OneOutputOptimum",
    "Retentivity",
    "RiskBound",
    "TwoLayer",
    "capacity",
    "coadaptation",
    "escaping_weights",
    "flows",
    "guarantee",
    "margin",
    "one_output_optimum",
    "positive_norm",
    "rademacher",
    "rademacher_lower",
    "rademacher_upper",
    "required",
    "retained_share",
    "retentivity",
    "risk_bound",
    "symmetrize",
    "symmetrized_bound",
    "train_lazy",
]
