"""Two-layer ReLU networks under dropout: bounds, the optimum with one output, and training.

What only the thesis's theorems need (retentivity, complexity, margins, widths) is in
`overt.papers.relu_capacity` and `overt.papers.relu_lazy`.
"""

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
from overt.relu.network import TwoLayer, escaping_weights
from overt.relu.one_output import OneOutputOptimum, one_output_optimum
from overt.relu.training import LazyRun, train_lazy

__all__ = [
    "LazyRun",
    "OneOutputOptimum",
    "RiskBound",
    "TwoLayer",
    "capacity",
    "coadaptation",
    "escaping_weights",
    "flows",
    "one_output_optimum",
    "positive_norm",
    "rademacher_lower",
    "rademacher_upper",
    "risk_bound",
    "symmetrized_bound",
    "train_lazy",
]
