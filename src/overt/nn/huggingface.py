"""A callback for the Trainer of Hugging Face that logs what dropout does while a model trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from overt._check import MissingExtraError
from overt.nn.data.losses import Loss
from overt.nn.monitor import noise_metrics

try:
    from transformers import TrainerCallback
except ModuleNotFoundError:
    raise MissingExtraError("transformers", "transformers") from None


class NoiseMonitor(TrainerCallback):
    """Record penalty, predicted standard deviation and the audit's numbers after every epoch.

    They stand in `trainer.state.log_history` as noise_penalty, noise_std and so on. With
    `monitor.log = trainer.log` they also reach TensorBoard and the like.

    Parameters
    ----------
    data
        Data to measure on, as in `overt.nn.audit`: batches that are dicts with "labels" are fine.
    loss
        What the model is trained for, as in `overt.nn.audit`.
    output
        Which output counts; the logits by default.

    Examples
    --------
    >>> from overt.nn.huggingface import NoiseMonitor  # doctest: +SKIP
    >>> trainer.add_callback(NoiseMonitor(loader, "cross_entropy"))  # doctest: +SKIP
    """

    def __init__(
        self,
        data: Any,
        loss: Loss = "cross_entropy",
        *,
        output: Callable[[Any], Any] = lambda result: result.logits,
    ) -> None:
        self._data = data
        self._loss = loss
        self._output = output
        self.log: Callable[[dict[str, float]], Any] | None = None

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure the model, and record the numbers."""
        found = noise_metrics(
            kwargs["model"], self._data, self._loss, output=self._output
        )
        logs = {f"noise_{name}": value for name, value in found.items()}
        if self.log is not None:
            self.log(logs)
        else:
            state.log_history.append(
                {**logs, "epoch": state.epoch, "step": state.global_step}
            )
