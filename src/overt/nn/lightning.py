"""A callback for Lightning that logs what dropout does while a network trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from overt._check import MissingExtraError, whole
from overt.nn.data.batches import Output
from overt.nn.data.losses import Loss
from overt.nn.monitor import noise_metrics

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError:
    raise MissingExtraError("lightning", "lightning") from None


class NoiseMonitor(Callback):
    """Log penalty, predicted standard deviation and the audit's numbers after training epochs.

    Parameters
    ----------
    data
        Data to measure on, as in `overt.nn.audit`: some hundred rows are enough.
    loss
        What the network is trained for, as in `overt.nn.audit`.
    network
        Returns the network of a LightningModule, such as `lambda module: module.net`; by default
        the module itself, whose forward pass then counts.
    output
        Which output counts, such as `lambda o: o.logits`.
    every
        Epochs from one measurement to the next.

    Examples
    --------
    >>> from overt.nn.lightning import NoiseMonitor  # doctest: +SKIP
    >>> Trainer(callbacks=[NoiseMonitor((x, y), "cross_entropy")])  # doctest: +SKIP
    """

    def __init__(
        self,
        data: Any,
        loss: Loss,
        *,
        network: Callable[[LightningModule], nn.Module] | None = None,
        output: Output = None,
        every: int = 1,
    ) -> None:
        self._data = data
        self._loss = loss
        self._network = network
        self._output = output
        self._every = whole("every", every)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the numbers as noise/penalty, noise/std and so on."""
        if (trainer.current_epoch + 1) % self._every:
            return
        network = pl_module if self._network is None else self._network(pl_module)
        found = noise_metrics(network, self._data, self._loss, output=self._output)
        pl_module.log_dict({f"noise/{name}": value for name, value in found.items()})
