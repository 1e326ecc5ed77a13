"""Training on what a model's noise adds to its expected loss, in place of sampling it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from overt._check import InputError, InputTypeError
from overt.nn.comparing import compare
from overt.nn.curvature import divergence, quadratic
from overt.nn.data.losses import Loss, loss_name
from overt.nn.data.rng import preserve_rng
from overt.nn.last_linear import LastLinear, last_linear
from overt.nn.moments.adjoint import Layouts
from overt.nn.moments.carry import Output, carry, checked
from overt.nn.penalties import shares_of
from overt.nn.recording.watching import called

PROBES = 16
"""Random probes whose mean is compared with samples before training."""


class WithoutNoise(nn.Module):  # type: ignore[misc]
    """A model whose noise is not sampled; see `without_noise`."""

    def __init__(self, model: nn.Module, loss: Loss, output: Output) -> None:
        super().__init__()
        self.model = model
        self.loss, self.output = loss_name(loss), output
        self._penalty: Tensor | None = None
        self._dear: bool | None = None
        self._end: LastLinear | None = None
        self._drawn: set[str] = set()
        self._layouts: Layouts = {}

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
            result = called(self.model, x)
            return result if self.output is None else self.output(result)
        ended = None if self._end is None else self._ended(self._end, x)
        if ended is not None:
            return ended
        model = checked(self.model, x)
        settings: Any = {"output": self.output, "statistics": "as set", "layouts": self._layouts}
        if self._dear is None:  # a first look at what the noise meets
            with torch.no_grad():
                first = carry(model, x, **settings)
                self._drawn = first.to_draw
                self._dear = not (first.output.known and first.output.exact)
                if self._dear and not self._drawn:
                    self._look(model, x, settings)
            if not self._dear:
                self._end = last_linear(model, x, self.output, first)
                ended = None if self._end is None else self._ended(self._end, x)
                if ended is not None:
                    return ended
        one = carry(model, x, **settings, drawn=self._drawn, probe=self._dear, update=True)
        if self._dear:
            self._penalty = divergence(one.tangent, one.output.mean, self.loss)
        else:
            self._penalty = shares_of([one], self.loss)[0]
        return one.output.mean

    def _ended(self, end: LastLinear, x: Any) -> Tensor | None:
        """Return the output where the model ends as it did; else it is not asked again."""
        try:
            found = end.run(self.model, x, self.output, self.loss)
        except Exception:  # which the other way says in words
            found = None
        if found is None:
            self._end = None
            return None
        out, self.__dict__["_penalty"] = found  # attributes of modules are slow to set
        return out

    def _look(self, model: nn.Module, x: Any, settings: Any) -> None:
        """Compare the mean of some probes with samples."""
        with preserve_rng():
            probes = [carry(model, x, **settings, probe=True) for _ in range(PROBES)]
            values = [quadratic(one.tangent, one.output.mean, self.loss) for one in probes]
        found = torch.stack(values)
        doubt = float(found.std() / found.mean().clamp(min=1e-30)) / PROBES**0.5
        means = torch.stack([one.output.mean for one in probes]).mean(0)
        compare(model, x, self.output, found.mean(), self.loss, doubt, (means, None))

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
    cent off). Noise that cannot be carried is drawn, as in ordinary training. In evaluation mode it
    is the model.

    Parameters
    ----------
    model
        Any network; it is not copied.
    loss
        The loss that the penalty is added to: "squared", "mse", "cross_entropy" or "logistic".
    output
        Picks the output that counts, such as `lambda o: o.logits`.

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
