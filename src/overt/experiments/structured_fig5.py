"""Structured dropout, Figure 5: DropBlock at other drop probabilities."""

from __future__ import annotations

from overt.experiments._structured import FULL, TOY, check_dropblock, plot_dropblock, run_dropblock
from overt.experiments.base import Experiment

EXPERIMENT = Experiment(
    id="structured-fig5",
    title="DropBlock at other drop probabilities",
    source="On the Regularization Properties of Structured Dropout, Figure 5",
    claim="the stochastic objective equals the exact one, and training ends at the global minimum",
    grids={
        "toy": {"drop_prob": [0.2, 0.4, 0.6, 0.8], "block_size": [2], **TOY},
        "full": {"drop_prob": [0.2, 0.4, 0.6, 0.8], "block_size": [5], **FULL},
    },
    run=run_dropblock,
    check=check_dropblock,
    plot=plot_dropblock,
)
