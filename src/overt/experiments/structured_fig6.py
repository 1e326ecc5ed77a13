"""Structured dropout, Figure 6: DropConnect beside Dropout at other drop probabilities."""

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
    id="structured-fig6",
    title="DropConnect beside Dropout at other drop probabilities",
    source="On the Regularization Properties of Structured Dropout, Figure 6",
    claim="DropConnect has an exact objective, Dropout's only where the inputs are uncorrelated",
    grids={
        size: {"drop_prob": [0.3, 0.7], "correlation": [0.0, 0.5], **grid}
        for size, grid in (("toy", TOY), ("full", FULL))
    },
    run=run_dropconnect,
    check=check_dropconnect,
    plot=plot_dropconnect,
)
