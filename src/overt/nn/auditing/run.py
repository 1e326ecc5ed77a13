"""`audit`: what noise does to a network, and what theory promises."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt import _check
from overt._check import InputError
from overt._progress import meter
from overt._types import Floats
from overt.nn.auditing.last_layer import Head, LastLayer, find_head
from overt.nn.auditing.noises import (
    drop_prob_of,
    find_noises,
    realized_share,
    silence_always_on_dropout,
)
from overt.nn.auditing.norms import LAYERS, LayerNorms, path_norms
from overt.nn.auditing.report import AuditReport, Measure, NoiseFindings, Suggestion
from overt.nn.auditing.sampling import Estimate, Flow, SampledPenalties
from overt.nn.auditing.streaming import ArrayMean, Mean, coadaptation
from overt.nn.auditing.structure import Structure, record_structure
from overt.nn.data.batches import Batch, Batches, Inputs, name_failing_inputs
from overt.nn.data.losses import Loss, Targets, check_loss, is_squared, loss_name
from overt.nn.data.models import check_model, hook_modules, modes
from overt.nn.data.rng import seeded
from overt.nn.graph.record import UnsupportedError
from overt.nn.graph.state import hold_interrupts
from overt.results import Status

TORCH_LOSSES = (nn.MSELoss, nn.CrossEntropyLoss)

MAX_OUTPUTS = 1024
"""The most outputs whose second moments are stored: 34 MB."""


def audit(
    model: nn.Module,
    data: Any,
    loss: Loss,
    *,
    holdout: Any = None,
    output: Callable[[Any], Any] | None = None,
    passes: float = 30,
    seed: int = 0,
) -> AuditReport:
    """Measure what a network's noise does on some data, and compare it with what theory promises.

    One pass over the data; memory does not depend on the number of rows. Ctrl-C ends the pass,
    and the report is on the rows seen so far. The model, its mode, its gradients and torch's random
    state are left as they were.

    Per noise layer: the drop probability that sampled masks realize, what the noise adds to the
    loss, the flow through each unit and their co-adaptation. Other modules that sample in training
    mode (functional dropout, stochastic depth, dropout inside attention, custom noise) are
    found by a pass in that mode, and what they add is sampled. For the last layer: the spectrum of
    the outputs beside that of the optimum under its noise, and a proved lower bound on the training
    objective (the guide on auditing has the proofs). For the whole network: norms of its layers,
    path norms, dead units. And a drop probability for the last layer with the holdout error and
    rank that speak for it.

    Parameters
    ----------
    model
        A network with or without noise. `skipped` names parts that are not understood.
    data
        A pair of arrays or tensors (inputs, targets), a DataLoader, or any iterable of batches:
        pairs (inputs, targets), or dicts with the targets under a name such as "labels". Inputs are
        one tensor, a tuple of them, or a dict by name. Give the training data: the bounds are on
        the objective that training descends.
    loss
        "squared" (summed over outputs), "mse" (their mean), "cross_entropy" (on logits or on
        log_softmax) or "logistic" (summed over outputs); or a plain torch.nn.MSELoss or
        CrossEntropyLoss. Whole class numbers become one-hot targets of a squared loss; targets of
        cross-entropy are class numbers or rows of probabilities. Any other function (output,
        target) -> mean loss is sampled, and has no bounds.
    holdout
        Data that the network was not trained on, to choose the drop probability with. Without it a
        fifth of the rows is withheld from the last layer, which is not the same: the features
        before it have seen those rows.
    output
        Which of the model's outputs counts, such as `lambda o: o.logits`.
    passes
        About how many forward passes over the data the audit may cost on data of some size. What
        noise adds is exact before the last layer of a squared loss; elsewhere it is sampled, on
        fewer rows where there are many layers, and stands beside its standard error.
    seed
        Seed of the sampled masks.

    Examples
    --------
    >>> import torch
    >>> from overt.nn import audit
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(
    ...     torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(32, 3)
    ... )
    >>> x = torch.randn(200, 8)
    >>> report = audit(model, (x, x[:, :3]), "squared")
    >>> report.objective > report.head.lower_bound > 0
    True
    >>> report.noises[0].exact, report.skipped
    (True, ())
    """
    model = check_model(model)
    # Rows have equal weights here: a torch loss with class weights is refused.
    checked = loss_name(loss) if isinstance(loss, TORCH_LOSSES) else check_loss(loss)
    seed = _check.whole("seed", seed, minimum=0)
    start = time.perf_counter()
    passes = _check.number("passes", passes, exclusive=True)
    batches = Batches(data, model, output=output)
    others = (
        None
        if holdout is None
        else Batches(holdout, model, name="holdout", output=output)
    )
    count = batches.count + (0 if others is None else others.count)
    measured: _Audit | None = None
    status = Status.FINISHED
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(seeded(seed))
        stack.enter_context(modes(model, noise=False))
        try:
            with hold_interrupts() as interrupts, meter("audit", count) as bar:
                for is_holdout, batch in _both(batches, others):
                    if measured is None:
                        few = _few_rows(model, batch)
                        stack.enter_context(silence_always_on_dropout(model, few))
                        sampling = (batches.count, passes, few is batch.inputs)
                        measured = _Audit(model, few, batch, checked, sampling)
                    if is_holdout:
                        measured.add_holdout(batch)
                    else:
                        measured.add(batch, split=others is None)
                    bar.advance()
                    if interrupts.pending:
                        break
        except KeyboardInterrupt:
            if measured is None or measured.samples == 0:
                raise
            status = Status.INTERRUPTED
        assert measured is not None  # noqa: S101 (Batches refuses data without batches)
        return measured.report(status, start, own_rows=others is None)


def _both(batches: Batches, others: Batches | None) -> Iterator[tuple[bool, Batch]]:
    """Yield the training data, then the holdout data."""
    for batch in batches:
        yield False, batch
    for batch in others or ():
        yield True, batch


def _few_rows(model: nn.Module, batch: Batch) -> Inputs:
    """Return two rows, or the whole batch where the model fixes the number of rows."""
    few = batch.inputs.first(2)
    try:
        with torch.no_grad():
            few.run(model)
    except Exception:  # as of a graph's nodes; or the model is wrong
        with name_failing_inputs(batch.inputs, batch.where), torch.no_grad():
            batch.inputs.run(model)
        return batch.inputs
    return few


@dataclass(frozen=True, eq=False)
class Seen:
    """A batch in the model: outputs (n, outputs), checked targets, losses without noise (n,).

    `units` are the inputs of the noise layers and of the last layer, by name.
    """

    inputs: Inputs
    output: Tensor
    targets: Targets
    losses: Tensor
    units: dict[str, Tensor]


class _Audit:
    """The measurements on the rows seen so far."""

    def __init__(
        self,
        model: nn.Module,
        few: Inputs,
        batch: Batch,
        loss: Loss,
        sampling: tuple[int, float, bool],
    ) -> None:
        self._model = model
        self._loss = loss
        self._outputs = _count_outputs(model, few)
        self._noises = find_noises(model, few)
        self._sources = list(self._noises.sources.values())
        self._skipped = list(self._noises.skipped)
        self._measures: list[Measure] = []
        self.samples = 0
        head = self._study_structure(few)
        self._last: LastLayer | None = None
        if head is not None:
            self._last = LastLayer(head, loss, self._outputs, batch.inputs.only)
            self._skipped += self._last.skipped
        self._exact = head is not None and self._is_exact(head)
        self._plain = Mean()
        self._correct = Mean()
        self._holdout = Mean()
        # Two passes tell the error of noise that stays on in evaluation mode.
        self._evaluation_noise = Estimate(shared=True)
        names = [source.name for source in self._sources if source.example is not None]
        if head is not None:
            names.append(head.name)
        self._squares = {name: ArrayMean() for name in names}
        self._layers = LayerNorms()
        self._watched = {
            module: name
            for name, module in model.named_modules()
            if name in self._squares or isinstance(module, LAYERS)
        }
        batches, passes, whole = sampling
        self._sampled = SampledPenalties(
            model,
            [] if self._nothing_to_sample(head) else self._sources,
            batches=batches,
            size=len(batch.inputs),
            passes=passes,
            whole=whole,
        )

    def add(self, batch: Batch, *, split: bool) -> None:
        """Add a batch of the training data; `split` holds a fifth of its rows out."""
        seen = self._forward(batch)
        if self._noises.always_on:
            again = self._forward(batch)
            self._evaluation_noise.add(
                (again.losses - seen.losses)[None] / math.sqrt(2)
            )
        self.samples += len(seen.losses)
        self._plain.add(seen.losses)
        if seen.targets.classes is not None:
            self._correct.add((seen.output.argmax(1) == seen.targets.classes).double())
        for name, mean in self._squares.items():
            h = seen.units[name]
            mean.add(h.double().square() if h.numel() < 2**18 else h.float().square())
        if self._last is not None:
            h = seen.units[self._last.head.name]
            self._last.add(h, seen.inputs.only, seen.targets, seen.output, split=split)
        self._sampled.add(seen.inputs, seen.targets, seen.losses, self._loss)

    def add_holdout(self, batch: Batch) -> None:
        """Add rows that the network was not trained on."""
        seen = self._forward(batch)
        self._holdout.add(seen.losses)
        if self._last is not None:
            self._last.add_holdout(seen.units[self._last.head.name], seen.targets)

    def report(self, status: Status, start: float, *, own_rows: bool) -> AuditReport:
        """Return the report; `own_rows` says that the holdout rows are training data."""
        objective, error = self._objective()
        head = None
        suggestion: Suggestion | None = None
        if self._last is not None:
            head = self._last.findings(
                objective, self._mean_squares(self._last.head.name)
            )
            suggested = self._last.suggest(own_rows=own_rows)
            if isinstance(suggested, Suggestion):
                suggestion = suggested
            else:
                self._skipped.append(("suggestion", suggested))
        if self._sampled.no_flows is not None:
            self._skipped.append(
                ("flows", f"there is no gradient: {self._sampled.no_flows}")
            )
        layers, without_norms = self._layers.findings(self._model)
        self._skipped += without_norms
        loss = self._loss
        return AuditReport(
            model=type(self._model).__name__,
            loss=loss
            if isinstance(loss, str)
            else getattr(loss, "__name__", repr(loss)),
            samples=self.samples,
            outputs=self._outputs,
            parameters=sum(p.numel() for p in self._model.parameters()),
            plain_loss=self._plain.value,
            objective=objective,
            objective_error=math.hypot(error, self._evaluation_noise.error),
            accuracy=self._correct.value
            if self._correct.count == self.samples
            else None,
            holdout_loss=self._holdout.value if self._holdout.count else None,
            noises=tuple(self._noise(i, objective) for i in range(len(self._sources))),
            layers=tuple(layers),
            head=head,
            measures=tuple(self._measures),
            suggestion=suggestion,
            skipped=tuple(self._skipped),
            status=status,
            seconds=time.perf_counter() - start,
        )

    def _forward(self, batch: Batch) -> Seen:
        """Run the model on a batch, and check what it returns."""
        where = batch.where
        inputs = batch.inputs
        units: dict[str, Tensor] = {}

        def hook(module: Any, args: Any, output: Tensor) -> None:
            name = self._watched[module]
            h = args[0].detach()
            if name in self._squares:
                units[name] = h.clone()  # later layers may work in place
            if isinstance(module, LAYERS):
                self._layers.add(
                    name, module, h, from_data=_is_one_of(h, inputs.tensors)
                )

        with (
            hook_modules(self._watched, after=hook),
            torch.no_grad(),
            name_failing_inputs(inputs, where),
        ):
            output = inputs.run(self._model)
        self._check_output(output, where, len(inputs))
        assert batch.y is not None  # noqa: S101 (Batches refuses batches without targets)
        targets = Targets(batch.y, output, self._loss, where)
        losses = targets.losses(output, self._loss)
        return Seen(inputs, output.reshape(len(output), -1), targets, losses, units)

    def _check_output(self, output: Any, where: str, rows: int) -> None:
        if not isinstance(output, Tensor) or not output.is_floating_point():
            raise InputError(
                f"model must return one tensor of numbers, got {type(output).__name__}; say which "
                "output counts, such as output=lambda o: o.logits"
            )
        if output.ndim < 1 or len(output) != rows or output.numel() == 0:
            raise InputError(
                "model must return a row for each row of x, got shape "
                f"{tuple(output.shape)} for {rows} rows"
            )
        if not bool(torch.isfinite(output).all()):
            raise InputError(f"{where}: the model returns NaN or infinity")
        if output[0].numel() != self._outputs:
            raise InputError(
                f"{where}: the model returns {output[0].numel()} outputs, and "
                f"{self._outputs} before; pad the inputs to one shape"
            )

    def _study_structure(self, few: Inputs) -> Head | None:
        """Record a pass; find path norms and the last layers, None if nothing is known of these."""
        structure: Structure | None = None
        no_paths: str | None = None
        head: Head | str = "the loss is a custom function, of which nothing is proved"
        try:
            structure = record_structure(self._model, few)
            self._measures, no_paths = path_norms(structure)
        except UnsupportedError as error:
            head = no_paths = f"the pass cannot be recorded: {error}"
        if no_paths is not None:
            self._skipped.append(("path norm", no_paths))
        if structure is not None and isinstance(self._loss, str):
            log_softmax = self._loss == "cross_entropy"
            head = find_head(
                self._model, structure, self._noises, log_softmax=log_softmax
            )
        if self._outputs > MAX_OUTPUTS:
            head = f"{self._outputs} outputs are too many (at most {MAX_OUTPUTS}) for a spectrum"
        if isinstance(head, str):
            self._skipped.append(("the last layer", head))
            return None
        return head

    def _is_exact(self, head: Head) -> bool:
        """Return whether what the last noise adds to the loss is known exactly."""
        if not head.noisy or not is_squared(self._loss):
            return False
        uses = self._noises.training.calls[head.name]
        last = self._sources[-1].name == head.name
        return last and uses == 1 and not self._noises.decides

    def _nothing_to_sample(self, head: Head | None) -> bool:
        """Return whether the only noise has an exact penalty and exact flows."""
        if head is None or len(self._sources) != 1:
            return False
        return self._exact and not head.shares_multipliers

    def _objective(self) -> tuple[float, float]:
        """Return the training objective and its standard error."""
        plain = self._plain.value
        if not self._sources:
            return plain, 0.0
        if not self._exact or self._last is None:
            return plain + self._sampled.total.value, self._sampled.total.error
        others = self._sampled.before_last  # zero where nothing was sampled
        error = others.error if len(self._sources) > 1 else 0.0
        return plain + self._last.penalty + others.value, error

    def _noise(self, i: int, objective: float) -> NoiseFindings:
        """Return what is known of one source of noise."""
        source = self._sources[i]
        squares = self._mean_squares(source.name)
        exact = self._exact and i == len(self._sources) - 1
        if exact and self._last is not None:
            penalty = self._last.penalty
            error = 0.0
        else:
            penalty = self._sampled.added[i].value
            error = self._sampled.added[i].error
        flow = self._exact_flow(squares) if exact else None
        exact_flows = flow is not None
        if flow is None and self._sampled.added:
            flow = self._sampled.flow(i)
        realized, realized_error = realized_share(source)
        return NoiseFindings(
            name=source.name,
            kind=source.kind,
            units=None if squares is None else int(squares.size),
            drop_prob=drop_prob_of(source.module),
            realized=realized,
            realized_error=realized_error,
            penalty=penalty,
            penalty_error=error,
            exact=exact,
            share=penalty / objective if objective else 0.0,
            flows=None if flow is None else flow.psi,
            flows_error=None if flow is None else flow.error,
            exact_flows=exact_flows,
            coadaptation=None if flow is None else coadaptation(flow.psi),
            coadaptation_error=None if flow is None else flow.coadaptation_error,
            dead=None if squares is None else int(np.sum(squares == 0)),
        )

    def _exact_flow(self, squares: Floats | None) -> Flow | None:
        """Return the flow before the last layer, None where a mask's unit is a group of units."""
        if self._last is None or squares is None or self._last.head.shares_multipliers:
            return None
        psi = self._last.head.flow(squares)
        return Flow(psi, np.zeros(len(psi)), 0.0)

    def _mean_squares(self, name: str) -> Floats | None:
        """Return E h_j^2 of the units at a place, None if they change or are not known."""
        mean = self._squares.get(name)
        return None if mean is None else mean.value


def _count_outputs(model: nn.Module, inputs: Inputs) -> int:
    """Return the number of outputs for a row."""
    with torch.no_grad():
        output = inputs.run(model)
    if not isinstance(output, Tensor):
        raise InputError(
            f"model must return one tensor of numbers, got a {type(output).__name__}; say which "
            "output counts, such as output=lambda o: o.logits"
        )
    return output.numel() // len(inputs)


def _is_one_of(h: Tensor, inputs: tuple[Tensor, ...]) -> bool:
    """Return whether a tensor is one of the model's inputs."""
    return any(h.data_ptr() == x.data_ptr() and h.numel() == x.numel() for x in inputs)
