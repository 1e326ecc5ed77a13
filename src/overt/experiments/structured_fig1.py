"""Structured dropout, Figure 1: DropBlock descends its exact objective to its exact minimum."""

from __future__ import annotations

from overt.experiments._structured import FULL, TOY, check_dropblock, plot_dropblock, run_dropblock
from overt.experiments.base import Experiment

EXPERIMENT = Experiment(
    id="structured-fig1",
    title="DropBlock descends its exact objective to its exact minimum",
    source="On the Regularization Properties of Structured Dropout, Figure 1",
    claim="the stochastic objective equals the exact one, and training ends at the global minimum",
    grids={
        "toy": {"drop_prob": [0.5], "block_size": [2], **TOY},
        "full": {"drop_prob": [0.5], "block_size": [5], **FULL},
    },
    run=run_dropblock,
    check=check_dropblock,
    plot=plot_dropblock,
)
