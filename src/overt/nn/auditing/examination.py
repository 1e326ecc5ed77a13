"""One pass over the data: everything an audit sums up, batch by batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from overt._check import InputError
from overt.nn.auditing.head import Head, find_head
from overt.nn.auditing.losses import Targets, entropies, is_squared, per_sample
from overt.nn.auditing.measures import chain_weights
from overt.nn.auditing.noises import found
from overt.nn.auditing.sampling import Sampled
from overt.nn.auditing.stream import Average, Mean, Parts, Triangle
from overt.nn.auditing.suggest import MAX_UNITS
from overt.nn.auditing.trace import DROPOUT, RESHAPE, record
from overt.nn.layers.dropconnect import DropConnectConv2d, DropConnectLinear

LAYERS = (nn.Linear, nn.modules.conv._ConvNd, DropConnectLinear, DropConnectConv2d)
MAX_INPUTS, MAX_OUTPUTS = 2048, 1024
"""The most inputs and outputs whose second moments are kept."""


class Examination:
    """What is known of a model on the rows seen so far.

    `batches` is how many will come, 0 if that is not known.
    """

    def __init__(self, model: nn.Module, x: Tensor, loss: str, batches: int) -> None:
        self.model, self.loss, self.samples = model, loss, 0
        with _explained(x, "batch 1 of the loader"):
            self.trace = record(model, x[:2])
        _check_output(self.trace.output, x[:2])
        self.outputs = self.trace.output[0].numel()
        known, self.skipped = found(model)
        self.names = [name for name in self.trace.noises if name in known]
        self.skipped += [
            (name, "not reached by the forward pass") for name in known if name not in self.names
        ]
        self._name_strays()
        self.modules = [known[name] for name in self.names]
        self.head = self._find_head()
        self.inputs = self._input_columns(x)
        columns = 1 + self.inputs + 2 * self.outputs
        self.triangle = Triangle(columns) if self.outputs <= MAX_OUTPUTS else None
        self.parts: Parts | None = None
        if self.head is not None and self.head.units <= MAX_UNITS:
            self.parts = Parts(self.head.units, self.outputs)
        self.plain, self.right, self.held_out = Mean(), Mean(), Mean()
        self.head_penalty, self.entropy, self.input_square = Mean(), Mean(), Mean()
        self.clipped, self.clipped_symmetrized = Mean(), Mean()
        self.squares: dict[str, Average | None] = {name: Average() for name in self.names}
        if self.head is not None:
            self.squares[self.head.name] = Average()
        self.preactivations, self.activations = Average(), Average()
        self.largest: dict[str, Tensor] = {}
        self.from_data: set[str] = set()
        # Nothing is left to sample where a single noise has an exact penalty and exact flows.
        settled = self.exact and len(self.names) == 1 and not self._shares()
        self.sampled = Sampled(model, [] if settled else self.names, batches, len(x))
        self.within_one = self.outputs == 1
        self._seen: dict[str, Tensor] = {}

    @property
    def exact(self) -> bool:
        """Whether what the last noise adds to the loss is known exactly."""
        if self.head is None or not self.head.noisy or not is_squared(self.loss):
            return False
        uses = [op.noise for op in self.trace.operations if op.noise == self.head.name]
        return self.names[-1] == self.head.name and len(uses) == 1

    @property
    def input_slice(self) -> slice:
        """Columns of the triangle that hold the inputs."""
        return slice(1, 1 + self.inputs)

    @property
    def target_slice(self) -> slice:
        """Columns of the triangle that hold the targets."""
        return slice(1 + self.inputs, 1 + self.inputs + self.outputs)

    @property
    def output_slice(self) -> slice:
        """Columns of the triangle that hold the outputs."""
        return slice(1 + self.inputs + self.outputs, 1 + self.inputs + 2 * self.outputs)

    def add(self, x: Tensor, y: Tensor, where: str, *, hold: bool) -> None:
        """Take in a batch; with `hold` some of its rows are kept apart as held out."""
        output, targets, losses = self._forward(x, y, where)
        self.samples += len(x)
        self.plain.add(losses)
        if targets.classes is not None:
            self.right.add((output.argmax(1) == targets.classes).double())
        if x.is_floating_point():
            self.input_square.add(x.double().reshape(len(x), -1).square().sum(1))
        self._add_head(targets, hold=hold)
        for name, average in self.squares.items():
            if average is not None:
                self._add_squares(name, average)
        self._add_two_layers(output, targets)
        self.entropy.add(entropies(targets, self.loss))
        self.sampled.add(x, targets, losses, self.loss)
        if self.triangle is not None:
            ones = torch.ones(len(x), 1, dtype=torch.float64, device=x.device)
            inputs = [x.double().reshape(len(x), -1)] if self.inputs else []
            self.triangle.add(torch.cat([ones, *inputs, targets.rows, output.double()], 1))

    def add_held_out(self, x: Tensor, y: Tensor, where: str) -> None:
        """Take in rows that the network was not trained on."""
        _, targets, losses = self._forward(x, y, where)
        self.held_out.add(losses)
        if self.parts is not None and self.head is not None:
            self.parts.add_held_out(self._seen[self.head.name].flatten(1), targets.rows)

    def _forward(self, x: Tensor, y: Tensor, where: str) -> tuple[Tensor, Targets, Tensor]:
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            raise InputError(f"{where}: inputs must be finite, got NaN or inf")
        with ExitStack() as stack, torch.no_grad():
            for name, module in self.model.named_modules():
                watched = name in self.squares
                if watched or isinstance(module, LAYERS):
                    hook = module.register_forward_hook(self._watch(name, watched, x))
                    stack.callback(hook.remove)
            with _explained(x, where):
                output = self.model(x)
        _check_output(output, x)
        if not bool(torch.isfinite(output).all()):
            raise InputError(f"{where}: the model returns NaN or infinity")
        if output[0].numel() != self.outputs:
            raise InputError(
                f"{where}: the model returns {output[0].numel()} outputs, and "
                f"{self.outputs} before; pad the inputs to one shape"
            )
        targets = Targets(y, output, self.loss, where)
        return output.reshape(len(x), -1), targets, per_sample(output, targets, self.loss)

    def _watch(self, name: str, keep: bool, x: Tensor) -> Any:
        def hook(module: Any, args: Any, output: Tensor) -> None:
            h = args[0].detach()
            if keep:  # a copy: later layers may work in place
                self._seen[name] = h.clone()
            if name == self._first_layer:
                self._seen["preactivations"] = output.detach().clone()
            if isinstance(module, LAYERS):
                axis = h.ndim - 1 if module.weight.ndim == 2 else 1
                largest = h.abs().movedim(axis, 0).flatten(1).amax(1).cpu()
                before = self.largest.get(name)
                self.largest[name] = largest if before is None else torch.maximum(before, largest)
                if h.data_ptr() == x.data_ptr() and h.numel() == x.numel():
                    self.from_data.add(name)

        return hook

    def _add_head(self, targets: Targets, *, hold: bool) -> None:
        if self.head is None:
            return
        h = self._seen[self.head.name]
        if is_squared(self.loss) and self.head.noisy:
            self.head_penalty.add(torch.full((len(h),), self.head.penalty(h), dtype=torch.float64))
        if self.parts is not None:
            add = self.parts.add if hold else self.parts.add_training
            add(h.flatten(1), targets.rows)

    def _add_squares(self, name: str, average: Average) -> None:
        h = self._seen[name].double()
        if average.shape not in (None, tuple(h.shape[1:])):
            self.squares[name] = None
        else:
            average.add((h * h).sum(0), len(h))

    def _add_two_layers(self, output: Tensor, targets: Targets) -> None:
        """Take in what the theorems on two-layer ReLU networks need, and clipped errors."""
        self.within_one &= bool(targets.rows.abs().max() <= 1)
        if self.outputs == 1:
            self.clipped.add(_clipped_error(output, targets))
        if self._first_layer is None:
            return
        z = self._seen["preactivations"].double()
        self.preactivations.add((z * z).sum(0), len(z))
        self.activations.add((torch.relu(z) ** 2).sum(0), len(z))
        signs = torch.randint(0, 2, (len(z), 1), device=z.device).double() * 2 - 1
        weight, bias = self._last_layer
        turned = torch.relu(signs * z) @ weight.T
        if bias is not None:  # the weight of a constant hidden unit
            turned = turned + torch.relu(signs) * bias
        if self.outputs == 1:
            self.clipped_symmetrized.add(_clipped_error(turned, targets))

    def _name_strays(self) -> None:
        strays = self.trace.stray_dropout()
        off = sum(op.training is False for op in strays)
        if off:
            self.skipped.append(
                ("forward", f"{off} call(s) of functional dropout, which stay off; use modules")
            )
        if len(strays) > off:
            self.skipped.append(
                ("forward", f"{len(strays) - off} call(s) of functional dropout that are on in "
                 "evaluation mode too: their noise is in every number here; use modules")
            )  # fmt: skip

    def _shares(self) -> bool:
        return self.head is not None and self.head.law_shares

    def _find_head(self) -> Head | None:
        head = find_head(self.model, self.trace, log_softmax=self.loss == "cross_entropy")
        if self.outputs > MAX_OUTPUTS:
            head = f"{self.outputs} outputs are more than the {MAX_OUTPUTS} whose spectrum is kept"
        if isinstance(head, str):
            self.skipped.append(("the last layer", head))
            return None
        return head

    def _input_columns(self, x: Tensor) -> int:
        """Return how many inputs the triangle holds: all, where a bound needs them, or none."""
        self._first_layer: str | None = None
        self._last_layer: tuple[Any, ...] = ()
        chain = self.trace.chain() or []
        steps = [op for op in chain if op.name not in RESHAPE | DROPOUT | {"noise"}]
        size = math.prod(x.shape[1:])
        names = [op.name for op in steps]
        if chain_weights(self.trace) and names == ["linear", "relu", "linear"]:
            first, last = steps[0].args[1], steps[2]
            for name, module in self.model.named_modules():
                if getattr(module, "weight", None) is first and size <= MAX_INPUTS:
                    self._first_layer = name
                    bias = last.args[2] if len(last.args) > 2 else None
                    self._last_layer = tuple(
                        None if t is None else t.detach().double() for t in (last.args[1], bias)
                    )
        affine = self.head is not None and any(
            stretch.trunk.kind != "any" for stretch in self.head.stretches
        )
        if affine and size > MAX_INPUTS:
            self.skipped.append(
                ("the inputs", f"{size} are more than the {MAX_INPUTS} whose moments are kept: the "
                 "bound does not use that the network is linear")
            )  # fmt: skip
        needed = (affine or self._first_layer is not None) and x.is_floating_point()
        return size if needed and size <= MAX_INPUTS else 0


@contextmanager
def _explained(x: Tensor, where: str) -> Iterator[None]:
    """Say on which inputs a model cannot be run."""
    try:
        yield
    except (RuntimeError, IndexError) as error:
        reason = str(error).splitlines()[0]
        advice = "; give inputs as floating-point numbers of the type of the model's weights"
        raise InputError(
            f"{where}: the model cannot be run on inputs of shape {tuple(x.shape)} and type "
            f"{x.dtype}: {reason}{advice if 'type' in reason else ''}"
        ) from error


def _clipped_error(output: Tensor, targets: Targets) -> Tensor:
    clipped = output.double().clamp(-1, 1)
    return ((clipped - targets.rows) ** 2).sum(1)


def _check_output(output: Any, x: Tensor) -> None:
    if not isinstance(output, Tensor) or not output.is_floating_point():
        raise InputError(f"model must return one tensor of numbers, got {type(output).__name__}")
    if output.ndim < 1 or len(output) != len(x) or output.numel() == 0:
        raise InputError(
            "model must return a row for each row of x, got shape "
            f"{tuple(output.shape)} for {len(x)} rows"
        )
