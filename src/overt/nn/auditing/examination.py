"""One pass over the data: everything an audit sums up, batch by batch, and the report on it."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt._check import InputError
from overt._types import Floats
from overt.nn.auditing import measures
from overt.nn.auditing.capacity import Capacity
from overt.nn.auditing.head import Head, find_head
from overt.nn.auditing.last_layer import LastLayer
from overt.nn.auditing.noises import decides, drawn_behind, drop_prob, find_noises, masks, obedient
from overt.nn.auditing.report import AuditReport, Measure, NoiseFindings
from overt.nn.auditing.sampling import Estimate, Sampled, all_findings, noise_findings
from overt.nn.auditing.sums import Average, Mean, Table
from overt.nn.auditing.trace import Trace, few_rows
from overt.nn.data.batches import Batch, first_line, name_failing_inputs
from overt.nn.data.losses import Loss, Targets, is_squared
from overt.nn.data.rng import torch_rng_states
from overt.nn.recording.hooks import hooked
from overt.results import Status

SAMPLING = 0.3
"""The share of the forward passes that may be spent on sampled masks."""
KEPT = 2**22
"""The most numbers that a report keeps to work out findings when they are read; else it is now."""
MAX_INPUTS, MAX_OUTPUTS = 2048, 1024
"""The most inputs and outputs whose second moments are kept."""


@dataclass(frozen=True, eq=False)
class Seen:
    """A batch in the model: outputs (n, outputs), checked targets, losses without noise (n,)."""

    output: Tensor
    targets: Targets
    losses: Tensor


class Examination:
    """What is known of a model on the rows seen so far.

    `batch` is the first one, `batches` how many will come, 0 if that is not known; `stack` ends
    what is changed in the model meanwhile.
    """

    def __init__(
        self, model: nn.Module, batch: Batch, loss: Loss, batches: int, passes: float,
        stack: ExitStack,
    ) -> None:  # fmt: skip
        self._model, self._loss, self.samples = model, loss, 0
        try:
            few = batch.inputs.first(2)
            trace = Trace(model, few)
        except Exception:  # the model wants its number of rows, or says what is wrong
            few = few_rows(model, batch)
            trace = Trace(model, few)
        self._trace = stack.enter_context(obedient(model, trace))
        self._outputs = self._trace.units(self._trace.output)
        self._noises, self._skipped = find_noises(model, self._trace)
        self._chain = self._trace.chain()
        head = self._find_head()
        self._last = None if head is None else LastLayer(head, loss, self._outputs)
        self._exact = head is not None and self._is_exact(head)
        self._capacity = None if self._chain is None else Capacity(self._chain, loss, self._outputs)
        inputs = self._input_columns(batch.inputs.only)
        self._table = Table(inputs, self._outputs) if self._outputs <= MAX_OUTPUTS else None
        self._plain, self._right, self._holdout = Mean(), Mean(), Mean()
        self._drawn = Estimate(shared=True)  # two draws tell how far off noise that stays on is
        known = [name for name, source in self._noises.items() if source.op is not None]
        watched = [*known, *([] if head is None else [head.name])]
        self._squares: dict[str, Average | None] = {name: Average() for name in watched}
        self._watched = {
            module: name
            for name, module in model.named_modules()
            if name in self._squares or isinstance(module, measures.LAYERS)
        }
        self._layers = measures.Layers()
        self._features: dict[str, Tensor] = {}
        self._preactivations: Tensor | None = None
        # Nothing is left to sample where a single noise has an exact penalty and exact flows.
        settled = self._exact and len(self._noises) == 1 and head is not None and not head.shares
        sources = [] if settled else list(self._noises.values())
        self._sampled = Sampled(model, sources, batches, len(batch.inputs), SAMPLING * passes,
                                whole=few is batch.inputs)  # fmt: skip

    def add(self, batch: Batch, *, hold: bool) -> None:
        """Take in a batch; with `hold` some of its rows are kept apart as held out."""
        seen, x = self._forward(batch), batch.inputs.only
        if self._trace.drawing:
            again = self._forward(batch).losses
            self._drawn.add((again - seen.losses)[None] / math.sqrt(2))
        self.samples += len(seen.losses)
        self._plain.add(seen.losses)
        if seen.targets.classes is not None:
            self._right.add((seen.output.argmax(1) == seen.targets.classes).double())
        if self._last is not None:
            self._last.add(self._features[self._last.head.name], seen.targets, hold=hold)
        for name, average in self._squares.items():
            if average is not None:
                self._add_squares(name, average)
        if self._capacity is not None:
            self._capacity.add(x, self._preactivations, seen.output, seen.targets)
        self._sampled.add(batch.inputs, seen.targets, seen.losses, self._loss)
        if self._table is not None:
            self._table.add(x, seen.targets.rows, seen.output)

    def add_holdout(self, batch: Batch) -> None:
        """Take in rows that the network was not trained on."""
        seen = self._forward(batch)
        self._holdout.add(seen.losses)
        if self._last is not None:
            self._last.add_holdout(self._features[self._last.head.name], seen.targets)

    def report(self, status: Status, start: float, *, own_data: bool) -> AuditReport:
        """Return the report; `own_data` says that rows held out are among those given."""
        objective, error = self._objective()
        error = math.hypot(error, self._drawn.error)
        last, table, later = self._last, self._table, dict[str, Any](head=None, suggestion=None)
        if last is not None and table is not None:
            squares, why = self._square(last.head.name), last.unsuggested()
            later["head"] = partial(last.findings, table, objective, squares)
            if why is None:
                later["suggestion"] = partial(last.suggestion, table, own_data=own_data)
            else:
                self._skipped.append(("suggestion", why))
        if self._sampled.no_flows is not None:
            self._skipped.append(("flows", f"there is no gradient: {self._sampled.no_flows}"))
        layers, silent = self._layers.findings(self._model)
        measured = self._measures()
        self._skipped += silent
        noises = [self._noise(i, objective) for i in range(len(self._noises))]
        later["noises"] = partial(all_findings, noises, torch_rng_states())
        later["bounds"] = ()
        if self._capacity is not None:
            later["bounds"] = partial(self._capacity.bounds, self.samples, table)
        kept = sum(part.size for part in (last, table) if part is not None)
        loss = self._loss
        report = AuditReport(
            model=type(self._model).__name__,
            loss=loss if isinstance(loss, str) else getattr(loss, "__name__", repr(loss)),
            samples=self.samples, outputs=self._outputs,
            parameters=sum(p.numel() for p in self._model.parameters()),
            plain_loss=self._plain.value, objective=objective, objective_error=error,
            accuracy=self._right.value if self._right.count == self.samples else None,
            holdout_loss=self._holdout.value if self._holdout.count else None,
            layers=tuple(layers), measures=tuple(measured), **later,
            skipped=tuple(self._skipped), status=status, seconds=time.perf_counter() - start,
        )  # fmt: skip
        return report if kept <= KEPT else copy.copy(report)

    def _forward(self, batch: Batch) -> Seen:
        where, inputs = batch.where, batch.inputs
        watch = self._watch(inputs.tensors)
        with (
            hooked(self._watched, after=watch),
            torch.no_grad(),
            name_failing_inputs(inputs, where),
        ):
            output = inputs.run(self._model)
        if not isinstance(output, Tensor) or not output.is_floating_point():
            kind = type(output).__name__
            raise InputError(
                f"model must return one tensor of numbers, got {kind}; say which output counts, "
                "such as output=lambda o: o.logits"
            )
        if output.ndim < 1 or len(output) != len(inputs) or output.numel() == 0:
            raise InputError(
                "model must return a row for each row of x, got shape "
                f"{tuple(output.shape)} for {len(inputs)} rows"
            )
        if not bool(torch.isfinite(output).all()):
            raise InputError(f"{where}: the model returns NaN or infinity")
        if output[0].numel() != self._outputs:
            raise InputError(
                f"{where}: the model returns {output[0].numel()} outputs, and "
                f"{self._outputs} before; pad the inputs to one shape"
            )
        assert batch.y is not None  # noqa: S101 (checked as the batch was read)
        targets = Targets(batch.y, output, self._loss, where)
        return Seen(output.reshape(len(output), -1), targets, targets.losses(output, self._loss))

    def _watch(self, inputs: tuple[Tensor, ...]) -> Any:
        def hook(module: Any, args: Any, output: Tensor) -> None:
            name, h = self._watched[module], args[0].detach()
            if name in self._squares:  # a copy: later layers may work in place
                self._features[name] = h.clone()
            if not isinstance(module, measures.LAYERS):
                return
            chain = self._chain
            if chain is not None and chain.two_layers and module.weight is chain.held[0]:
                self._preactivations = output.detach().clone()
            own = any(h.data_ptr() == x.data_ptr() and h.numel() == x.numel() for x in inputs)
            self._layers.add(name, module, h, from_data=own)

        return hook

    def _add_squares(self, name: str, average: Average) -> None:
        h = self._features[name]
        h = h.double() if h.numel() < 2**18 else h.float()  # wide numbers are dear
        if average.shape not in (None, tuple(h.shape[1:])):
            self._squares[name] = None
        else:
            average.add(h.square().sum(0), len(h))

    def _square(self, name: str) -> Floats | None:
        """Return the mean squares of the units at a place, None if they change."""
        average = self._squares[name]
        return None if average is None else average.value

    def _is_exact(self, head: Head) -> bool:
        """Whether what the last noise adds to the loss is known exactly."""
        if not head.noisy or not is_squared(self._loss):
            return False
        uses = sum(op.noise == head.name for op in self._trace.operations)
        last = list(self._noises)[-1] == head.name
        return last and uses == 1 and not decides(self._model, self._trace, head.name)

    def _find_head(self) -> Head | None:
        head: Head | str = "the loss is a function of one's own, of which nothing is proved"
        if isinstance(self._loss, str):
            log_softmax = self._loss == "cross_entropy"
            head = find_head(self._model, self._trace, log_softmax=log_softmax)
        if not isinstance(head, str) and drawn_behind(self._trace, head.name, self._noises):
            head = f"noise whose law is not known is drawn behind {head.name}: no bound is taken"
        if self._outputs > MAX_OUTPUTS:
            head = f"{self._outputs} outputs are more than the {MAX_OUTPUTS} whose spectrum is kept"
        if isinstance(head, str):
            self._skipped.append(("the last layer", head))
            return None
        return head

    def _input_columns(self, x: Tensor | None) -> int:
        """Return how many inputs the table holds: all, where a bound needs them, or none."""
        affine = self._last is not None and self._last.head.affine_trunk
        two_layers = self._chain is not None and self._chain.two_layers
        size = 0 if x is None else math.prod(x.shape[1:])
        if affine and size > MAX_INPUTS:
            self._skipped.append(
                ("the inputs", f"{size} are more than the {MAX_INPUTS} whose moments are kept: the "
                 "bound does not use that the network is linear")
            )  # fmt: skip
        return size if (affine or two_layers) and size <= MAX_INPUTS else 0

    def _objective(self) -> tuple[float, float]:
        """Return the training objective and its standard error."""
        if not self._noises:
            return self._plain.value, 0.0
        if not self._exact or self._last is None:
            total = self._sampled.total
            return self._plain.value + total.value, total.error
        others = self._sampled.before_last  # zero where nothing was sampled
        value = self._plain.value + self._last.penalty + others.value
        return value, others.error if len(self._noises) > 1 else 0.0

    def _noise(self, i: int, objective: float) -> Callable[[], NoiseFindings]:
        name, source = list(self._noises.items())[i]
        squares = self._square(name) if source.op is not None else None
        last = self._last if self._exact and i == len(self._noises) - 1 else None
        added = (last.penalty, 0.0) if last is not None else self._sampled.added[i].result
        exact = None if last is None or squares is None or last.head.shares else last.head
        told = {
            "name": name, "kind": source.kind, "drop_prob": drop_prob(source.module),
            "units": None if squares is None else int(squares.size),
            "penalty": added[0], "penalty_error": added[1], "exact": last is not None,
            "share": added[0] / objective if objective else 0.0, "exact_flows": exact is not None,
            "dead": None if squares is None else int(np.sum(squares == 0)),
        }  # fmt: skip
        if exact is None:
            return partial(noise_findings, told, masks(source), self._sampled.flows(i).value)
        return partial(noise_findings, told, masks(source), partial(exact.exact_flows, squares))

    def _measures(self) -> list[Measure]:
        trace, chain, norms = self._trace, self._chain, {}
        try:
            if trace.inputs.only is None:
                raise measures.NoPath("inputs that are not one tensor of numbers with a fraction")
            norms = {p: measures.path_norm(trace.recording, p) for p in (1, 2)}
        except measures.NoPath as error:
            self._skipped.append(("path norm", f"not defined through {error}"))
        except (RuntimeError, TypeError) as error:
            self._skipped.append(("path norm", first_line(error)))
        weights = None if chain is None else chain.weights
        found = measures.path_measures(norms, weights, self.samples)
        if chain is not None:
            known = [self._layers.spectral.get(weight) for weight in chain.held]
            return found + measures.norm_measures(chain.weights, self.samples, known)
        self._skipped.append(
            ("norm measures", "equations 1.2 to 1.4 are for chains of linear layers; see the norms "
             "of each layer")
        )  # fmt: skip
        return found
