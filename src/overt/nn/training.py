"""Training on what a model's noise adds to its expected loss, in place of sampling it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from overt._check import InputError, InputTypeError, whole
from overt.nn.curvature import average, curved_variance, divergence, read_loss
from overt.nn.data.losses import Loss
from overt.nn.graph.record import (
    Recording,
    UnsupportedError,
    check_for_hidden_noise,
    record,
)
from overt.nn.graph.state import (
    Output,
    call_key,
    call_model,
    check_call,
    input_tensors,
    never_compiled,
    raise_if_model_fails,
    seed_all,
    select_output,
    untouched,
)
from overt.nn.moments.propagate import decompose, propagate
from overt.nn.moments.values import Propagation
from overt.results import Result

REUSES = 50
"""Steps for which a recording is kept: a model's state outside of its modules may change."""

GROUPS = 8
"""Groups of gradients whose products show the bias: two independent means differ by it alone."""


@dataclass(frozen=True, repr=False)
class GradientBias(Result):
    """How far the expected gradient is from that of sampled noise, over the norm of the latter.

    Attributes
    ----------
    value
        |E g - E g_sampled| / |E g_sampled|, estimated without the noise of either.
    upper
        What it is at most, in about 95 of 100 cases.
    samples
        Passes with sampled noise that it was compared with.
    """

    value: float
    upper: float
    samples: int


@dataclass(eq=False)
class _KeptRecording:
    """A recording that later steps use, and where its inputs stand among all."""

    key: Any
    recording: Recording
    places: list[int]
    uses: int = 0


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
        if (
            isinstance(node, torch.autograd.function.BackwardCFunction)
            and not checkpoint
        ):
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
        self._weighted = read_loss(loss)
        self.loss = self._weighted.name
        self.output = output
        self.sampled = ""
        self._mean: Tensor | None = None
        self._added: Tensor | None = None  # to the loss, at each position
        # Whether a recorded list of operations has a closed form.
        self._closed: dict[int, bool] = {}
        self._kept: _KeptRecording | None = None

    @property
    def penalty(self) -> Tensor:
        """The penalty on the batch of the last training pass."""
        if self._weighted.needs_targets:
            raise InputError(
                "the penalty of a loss with class weights or ignore_index depends on the targets: "
                "use penalty_for(y)"
            )
        return self._last()[1].mean()

    def penalty_for(self, y: Tensor) -> Tensor:
        """Return the penalty for these targets, which weigh tokens or pixels of a cross-entropy.

        Targets equal to `ignore_index` (-100) do not count, and class weights do.
        """
        mean, added = self._last()
        return average(added, self._weighted.position_weights(y, mean))

    def _last(self) -> tuple[Tensor, Tensor]:
        if self._mean is None or self._added is None:
            raise InputError(
                "there is no penalty yet: it comes with a forward pass in training mode"
            )
        return self._mean, self._added

    @never_compiled
    def forward(self, x: Any) -> Tensor:
        """Return the mean output under the noise (training mode) or the plain output."""
        if not self.training:
            self._mean = self._added = None
            result = call_model(self.model, x)
            return result if self.output is None else self.output(result)
        recording = None
        try:
            recording = self._record(x)
            mean, added = self._propagate(recording)
        except UnsupportedError as error:
            return self._sample(x, error)
        except (RuntimeError, IndexError):
            if recording is None or not recording.reused:
                raise
            self._kept = None  # the model itself says what is wrong with these inputs
            again: Tensor = self.forward(x)
            return again
        with torch.no_grad():
            for (
                buffer,
                after,
            ) in recording.buffers:  # running statistics, counters of noise layers
                if buffer.shape == after.shape:
                    buffer.copy_(after)
        for attributes, values in recording.values:
            attributes.update(values)
        self.sampled = ""
        self._mean = mean
        self._added = added
        return mean

    @never_compiled
    def gradient_bias(
        self, x: Any, y: Tensor, *, samples: int = 200, seed: int = 0
    ) -> GradientBias:
        """Measure how far the expected gradient of a step is from that of sampled noise.

        With g and h the differences between a gradient of loss + penalty and one of the loss with
        sampled noise, in two independent groups, E <g, h> is the squared bias. The model, its
        gradients and the random generators are left as they were.

        Parameters
        ----------
        x, y
            A batch and its targets.
        samples
            Passes with sampled noise, at least 16; as many steps are taken without it.
        seed
            Of both.
        """
        size = whole("samples", samples, minimum=2 * GROUPS) // GROUPS
        model = check_call(self.model, x, self.output)
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        loss = self._weighted
        try:
            recording = self._record(x)
        except UnsupportedError as reason:  # a training pass samples, too
            raise_if_model_fails(model, x, self.output, reason)
            return GradientBias(0.0, 0.0, 0)
        with (
            untouched(model) as saved,
            torch.inference_mode(False),
            torch.enable_grad(),
        ):
            seed_all(seed)

            def sampled() -> Tensor:
                if saved.interrupts.pending:
                    raise KeyboardInterrupt
                output = saved.plain_pass(
                    x, self.output, statistics="as set", grad=True
                )
                return _gradient(loss.mean(output, y), weights)

            def without_sampling() -> Tensor:
                mean, added = self._propagate(recording)
                penalty = average(added, loss.position_weights(y, mean))
                return _gradient(loss.mean(mean, y) + penalty, weights)

            target = _group_means(sampled, size)
            found = _group_means(without_sampling, size)
        squared, error = _squared_mean(found - target)
        norm = math.sqrt(max(_squared_mean(target)[0], 1e-300))
        value = math.sqrt(max(squared, 0.0)) / norm
        upper = math.sqrt(max(squared, 0.0) + 2 * error) / norm
        return GradientBias(value, upper, size * GROUPS)

    def _record(self, x: Any) -> Recording:
        """Return a recording of a pass: that of an earlier step while nothing else can run."""
        model = check_call(self.model, x, self.output)
        key = call_key(model, x)
        given = input_tensors(x)
        kept = self._kept
        if kept is not None and key == kept.key and kept.uses < REUSES:
            kept.uses += 1
            pairs = zip(kept.recording.inputs, kept.places, strict=True)
            inputs = [(inner, given[place]) for (inner, _), place in pairs]
            return replace(kept.recording, inputs=inputs, reused=True)
        self._kept = None
        with untouched(model) as saved, torch.inference_mode(False):
            recording = record(
                saved, x, self.output, decompose=decompose, statistics="as set"
            )
            recording.values = saved.changed_values()
            if hash(recording.signature) not in self._closed:
                check_for_hidden_noise(recording, saved, x, self.output, "as set")
                plain = saved.plain_pass(x, self.output, statistics="as set", grad=True)
                if has_own_gradient(plain):
                    raise UnsupportedError(
                        "it has a torch.autograd.Function with its own gradient"
                    )
        if recording.fixed and key is not None:
            where = {id(tensor): place for place, tensor in enumerate(given)}
            places = [where[id(tensor)] for _, tensor in recording.inputs]
            self._kept = _KeptRecording(key, recording, places)
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
                f"the noise is sampled, as in ordinary training, because {error}",
                stacklevel=4,
            )
        self.sampled = str(error)
        found = select_output(call_model(self.model, x), self.output)
        self._mean = found
        self._added = torch.zeros_like(divergence(found, found, self.loss))
        return found

    def extra_repr(self) -> str:
        """Return the settings, for printing."""
        return f"loss={self.loss}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mean": None, "_added": None, "_kept": None}


def _gradient(value: Tensor, weights: list[Tensor]) -> Tensor:
    """Return the gradient at all weights as one vector, in double precision."""
    found = torch.autograd.grad(value, weights, allow_unused=True)
    pairs = zip(found, weights, strict=True)
    return torch.cat(
        [(torch.zeros_like(w) if g is None else g).double().flatten() for g, w in pairs]
    )


def _group_means(sample: Callable[[], Tensor], size: int) -> Tensor:
    return torch.stack(
        [
            sum((sample() for _ in range(size)), torch.zeros(())) / size
            for _ in range(GROUPS)
        ]
    )


def _squared_mean(groups: Tensor) -> tuple[float, float]:
    """Return |E g|^2 from independent rows g, and its standard error by leaving out each row."""
    n = len(groups)
    gram = groups @ groups.T
    others = gram.sum(1) - gram.diagonal()
    total = float(others.sum())
    left_out = (total - 2 * others) / ((n - 1) * (n - 2))
    away = float(((left_out - left_out.mean()) ** 2).sum())
    error = math.sqrt((n - 1) / n * away)
    return total / (n * (n - 1)), error


def without_noise(
    model: nn.Module, *, loss: Loss = "squared", output: Output = None
) -> WithoutNoise:
    """Return a module that shares the model's parameters and replaces sampling by a penalty.

    In training mode a pass gives the mean of the output under the noise and leaves in `penalty`
    what the noise adds to the loss around it, so that loss(net(x), y) + net.penalty is the expected
    loss: exactly for a squared loss where only affine maps follow the noise, else as approximated
    by `explicit_penalty`. Where targets weigh tokens or pixels (class weights, targets of -100)
    it is loss(net(x), y) + net.penalty_for(y).

    Where working the penalty out would take a backward pass for each output, it comes from one
    random sample t of the output's deviation in the linearized network: the loss at mean + t, less
    that at the mean and what is linear in t, so that its expectation is that of the loss and not of
    its expansion. Its gradient takes the variances inside the network as they are, and is off for
    it, by 1 to 30 % from one network to another; `gradient_bias` measures it on a batch.

    A model that cannot be propagated is trained as usual, with sampled noise and a penalty of 0; a
    warning and `sampled` give the reason. In evaluation mode it is the model.

    Buffers advance in a training pass, and so do numbers and words among the model's attributes (a
    count of steps that its dropout depends on); lists and tensors that are none are put back.

    In training mode all dropout of the model counts, also in modules that were frozen with .eval();
    to leave one out, set its drop probability to 0.

    Parameters
    ----------
    model
        Any network; it is not copied.
    loss
        The loss that the penalty is added to: "squared", "mse", "cross_entropy" (logits of shape
        (batch, classes, ...)) or "logistic", or a torch.nn.MSELoss or CrossEntropyLoss.
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
        raise InputTypeError(
            f"model must be a torch.nn.Module, got {type(model).__name__}"
        )
    return WithoutNoise(model, loss, output)
