"""Dropout without sampling: the noise-free pass, and the penalty that stands for the noise."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from overt import _check
from overt._check import InputError, InputTypeError
from overt.nn.delta import Linearized
from overt.nn.engine import METHODS, active_noises, checked, outcomes
from overt.nn.noisy import Noisy
from overt.nn.penalties import LOSSES, outcome_penalty
from overt.nn.sources import modes


class WithoutNoise(nn.Module):  # type: ignore[misc]
    """A model whose noise layers do not sample; see `without_noise`."""

    def __init__(self, model: nn.Module, loss: str, method: str) -> None:
        super().__init__()
        self.model = model
        self.loss = _check.choice("loss", loss, LOSSES)
        self.method = _check.choice("method", method, METHODS)
        self._penalty: Tensor | None = None

    @property
    def penalty(self) -> Tensor:
        """What the noise adds to the loss on the batch of the last training pass."""
        if self._penalty is None:
            raise InputError(
                "there is no penalty yet: it comes with a forward pass in training mode"
            )
        return self._penalty

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean output under the noise (training mode) or the plain output."""
        if not self.training:
            self._penalty = None
            return self.model(x)
        model = checked(self.model, x)
        with modes(model, noise=False, others=None, statistics=True):
            names = active_noises(model)
            (outcome,) = outcomes(model, x, names, self.method, split=False)
            self._penalty = outcome_penalty(outcome, self.loss)
        match outcome:
            case Noisy():
                return outcome.mean
            case Linearized():
                return outcome.clean
        return outcome

    def extra_repr(self) -> str:
        """Return the settings, for printing."""
        return f"loss={self.loss}, method={self.method}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_penalty": None}


def without_noise(model: nn.Module, *, loss: str = "squared", method: str = "auto") -> WithoutNoise:
    """Return a module that shares the model's parameters and replaces sampling by a penalty.

    In training mode a pass gives the mean of the output under the noise and leaves in `penalty`
    what the noise adds to the loss around it, so that loss(net(x), y) + net.penalty is the expected
    loss: exactly for a squared loss where only affine maps follow the noise, else as approximated
    by `explicit_penalty`. Both come from one pass. In evaluation mode it is the model.

    Parameters
    ----------
    model
        A network with noise layers of overt.nn or torch.nn; it is not copied.
    loss
        The loss that the penalty is added to: "squared", "mse", "cross_entropy" or "logistic".
    method
        "auto", "gaussian" or "delta", as for `predictive_moments`.

    Examples
    --------
    >>> import torch
    >>> from overt.nn import without_noise
    >>> model = torch.nn.Sequential(
    ...     torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(32, 1)
    ... )
    >>> net = without_noise(model, loss="mse")
    >>> step = torch.optim.SGD(net.parameters(), lr=0.01)
    >>> x, y = torch.randn(64, 8), torch.randn(64, 1)
    >>> for _ in range(10):
    ...     step.zero_grad()
    ...     objective = torch.nn.functional.mse_loss(net(x), y) + net.penalty
    ...     objective.backward()
    ...     step.step()
    """
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    return WithoutNoise(model, loss, method)
