"""Training on what a model's noise adds to its expected loss, in place of sampling it."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from overt._check import InputError, InputTypeError
from overt.nn.curvature import divergence
from overt.nn.data.losses import Loss, loss_name
from overt.nn.graph.record import Recording, UnsupportedError, check_for_hidden_noise, record
from overt.nn.graph.state import (
    Output,
    call_model,
    check_call,
    raise_if_model_fails,
    select_output,
    untouched,
)
from overt.nn.moments.propagate import propagate
from overt.nn.moments.rules import decompose
from overt.nn.moments.values import Propagation
from overt.nn.penalties import curved_variance


def has_own_gradient(output: Tensor) -> bool:
    """Whether a custom autograd function takes part, whose gradient a recording does not show."""
    todo = [output.grad_fn]
    seen = set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        checkpoint = type(node).__name__ == "CheckpointFunctionBackward"
        if isinstance(node, torch.autograd.function.BackwardCFunction) and not checkpoint:
            return True
        todo += [parent for parent, _ in node.next_functions]
    return False


class WithoutNoise(nn.Module):  # type: ignore[misc]
    """A model whose noise is not sampled; see `without_noise`.

    Attributes
    ----------
    penalty
        What the noise adds to the loss on the batch of the last training pass.
    sampled
        Why the last training pass had to sample its noise, in words; empty if it was propagated.
    """

    def __init__(self, model: nn.Module, loss: Loss, output: Output) -> None:
        super().__init__()
        self.model = model
        self.loss = loss_name(loss)
        self.output = output
        self.sampled = ""
        self._penalty: Tensor | None = None
        # Whether a recorded list of operations has a closed form.
        self._closed: dict[int, bool] = {}

    @property
    def penalty(self) -> Tensor:
        """What the noise adds to the loss on the batch of the last training pass."""
        if self._penalty is None:
            raise InputError(
                "there is no penalty yet: it comes with a forward pass in training mode"
            )
        return self._penalty

    # Compiled, the pass would not be seen and dropout would be sampled: it runs as it is.
    @torch.compiler.disable
    def forward(self, x: Any) -> Tensor:
        """Return the mean output under the noise (training mode) or the plain output."""
        if not self.training:
            self._penalty = None
            result = call_model(self.model, x)
            return result if self.output is None else self.output(result)
        try:
            recording = self._record(x)
            mean, penalty = self._propagate(recording)
        except UnsupportedError as error:
            return self._sample(x, error)
        with torch.no_grad():
            for buffer, after in recording.buffers:  # running statistics, counters of noise layers
                if buffer.shape == after.shape:
                    buffer.copy_(after)
        self.sampled = ""
        self._penalty = penalty
        return mean

    def _record(self, x: Any) -> Recording:
        model = check_call(self.model, x, self.output)
        with untouched(model) as saved, torch.inference_mode(False):
            recording = record(saved, x, self.output, decompose=decompose, statistics="as set")
            if hash(recording.signature) not in self._closed:
                check_for_hidden_noise(recording, saved, x, self.output, "as set")
                plain = saved.plain_pass(x, self.output, statistics="as set", grad=True)
                if has_own_gradient(plain):
                    raise UnsupportedError("it has a torch.autograd.Function with its own gradient")
        return recording

    def _propagate(self, recording: Recording) -> tuple[Tensor, Tensor]:
        """Return the mean output and the penalty, in closed form or in one random direction."""
        key = hash(recording.signature)
        if key not in self._closed:
            with torch.no_grad():
                self._closed[key] = self._has_closed_form(recording)
        closed = self._closed[key]
        found = propagate(recording, Propagation(grad=True, sampled=not closed))
        mean = found.output.mean
        if closed:
            return mean, curved_variance(found, self.loss)
        return mean, divergence(found.output.dev, mean, self.loss)

    def _has_closed_form(self, recording: Recording) -> bool:
        """Whether the covariances that the loss needs come without a backward pass."""
        found = propagate(recording)
        if not (found.exact and found.output.known):
            return False
        return self.loss != "cross_entropy" or found.output.product is not None

    def _sample(self, x: Any, error: UnsupportedError) -> Tensor:
        """Return the output of an ordinary training pass, whose noise is sampled."""
        if not self.sampled:
            raise_if_model_fails(self.model, x, self.output, error)
            warnings.warn(
                f"the noise is sampled, as in ordinary training, because {error}", stacklevel=4
            )
        self.sampled = str(error)
        found = select_output(call_model(self.model, x), self.output)
        self._penalty = found.new_zeros(())
        return found

    def extra_repr(self) -> str:
        """Return the settings, for printing."""
        return f"loss={self.loss}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_penalty": None}


def without_noise(
    model: nn.Module, *, loss: Loss = "squared", output: Output = None
) -> WithoutNoise:
    """Return a module that shares the model's parameters and replaces sampling by a penalty.

    In training mode a pass gives the mean of the output under the noise and leaves in `penalty`
    what the noise adds to the loss around it, so that loss(net(x), y) + net.penalty is the expected
    loss: exactly for a squared loss where only affine maps follow the noise, else as approximated
    by `explicit_penalty`. Where working the penalty out would take a backward pass for each output,
    it comes from one random draw t of the output's deviation in the linearized network: the loss at
    mean + t, less that at the mean and what is linear in t, so that its expectation is that of the
    loss and not of its expansion. Its gradient takes the variances inside the network as they are,
    and is some per cent off for it (second derivatives take them so, too, and are up to some 15 per
    cent off). A model that cannot be propagated is trained as usual, with sampled noise and a
    penalty of 0; a warning and `sampled` say so. In evaluation mode it is the model.

    Parameters
    ----------
    model
        Any network; it is not copied.
    loss
        The loss that the penalty is added to: "squared", "mse", "cross_entropy" or "logistic".
    output
        Selects the output that counts, such as `lambda o: o.logits`.

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
    return WithoutNoise(model, loss, output)
