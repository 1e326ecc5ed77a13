"""Structured dropout, Figure 3: DropConnect beside Dropout."""

from __future__ import annotations

from overt.experiments._structured import (
    FULL,
    TOY,
    check_dropconnect,
    plot_dropconnect,
    run_dropconnect,
)
from overt.experiments.base import Experiment

EXPERIMENT = Experiment(
    id="structured-fig3",
    title="DropConnect beside Dropout",
    source="On the Regularization Properties of Structured Dropout, Figure 3",
    claim="DropConnect has an exact objective, Dropout's only where the inputs are uncorrelated",
    grids={
        size: {"drop_prob": [0.5], "correlation": [0.0, 0.5], **grid}
        for size, grid in (("toy", TOY), ("full", FULL))
    },
    run=run_dropconnect,
    check=check_dropconnect,
    plot=plot_dropconnect,
)
