"""`audit`: what noise does to a network, and what theory promises."""

from __future__ import annotations

import math
import time
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from overt import _check
from overt._check import InputError
from overt._running import meter
from overt.nn.auditing.last_layer import Head, LastLayer, TailNoise, find_head
from overt.nn.auditing.measurements import (
    ActiveUnits,
    Estimate,
    Mean,
    SampledPenalties,
    Seen,
)
from overt.nn.auditing.report import AuditReport, NoiseFindings
from overt.nn.auditing.structure import drop_prob_of, inspect_batch
from overt.nn.data.batches import Batch, Batches, Output, name_failing_inputs
from overt.nn.data.losses import (
    Loss,
    Targets,
    check_loss,
    is_squared,
    loss_name,
    loss_text,
    unit,
)
from overt.nn.data.models import (
    check_model,
    disable_fast_attention,
    hook_modules,
    preserve_rng,
)
from overt.nn.graph.state import SavedState, seed_all, select_output, untouched
from overt.results import Status

TORCH_LOSSES = (nn.MSELoss, nn.CrossEntropyLoss)

MAX_OUTPUTS = 1024
"""The most outputs whose second moments are stored: 34 MB."""


def audit(
    model: nn.Module,
    data: Any,
    loss: Loss,
    *,
    output: Output = None,
    passes: float | None = None,
    seed: int = 0,
) -> AuditReport:
    """Measure what a network's noise does on some data, and compare it with what theory promises.

    One pass over the data; memory does not depend on the number of rows. Ctrl-C ends the pass,
    and the report is on the rows seen so far. The model, its mode, its gradients and torch's random
    state are left as they were.

    Per noise layer: its penalty, added to the loss, and the units that are always 0. Other modules
    that sample in training mode (functional dropout, stochastic depth, dropout inside attention,
    custom noise) are found by recording a pass in that mode, and what they add is sampled. For the
    last layer and a squared loss: the spectrum of the outputs beside that of the optimum under its
    noise, and a lower bound on the training objective (the guide on auditing has the proofs).

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
    output
        Which of the model's outputs counts, such as `lambda o: o.logits`.
    passes
        Forward passes over the data to spend on sampled masks, on all noises together. By default
        one for each noise, 3 at most, and no more than 8192 rows for each (an error of 1 % of a
        row's standard deviation). What noise before the last, affine layers adds to a squared loss
        is exact; elsewhere it is sampled, and stands beside its standard error.
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
    start = time.perf_counter()
    model = check_model(model)
    # Rows have equal weights here: a torch loss with class weights is refused.
    checked = loss_name(loss) if isinstance(loss, TORCH_LOSSES) else check_loss(loss)
    seed = _check.whole("seed", seed, minimum=0)
    if passes is not None:
        passes = _check.number("passes", passes, exclusive=True)
    batches = Batches(data, model, output=output)
    report = None
    try:
        with (
            torch.inference_mode(False),
            untouched(model) as saved,
            disable_fast_attention(),
        ):
            seed_all(seed)
            measured = _Audit(saved, batches, checked, passes)
            status = measured.measure()
            report = measured.finish(status, time.perf_counter() - start)
    except KeyboardInterrupt:
        if report is None:
            raise
    assert report is not None  # noqa: S101 (for the type checker)
    return report


class _Audit:
    """The measurements of an audit, and one pass of the model for each batch."""

    def __init__(
        self,
        saved: SavedState,
        batches: Batches,
        loss: Loss,
        passes: float | None,
    ) -> None:
        stream = iter(batches)
        batch = next(stream)
        self._data = chain([batch], stream)
        self._count = batches.count
        self._interrupts = saved.interrupts
        model = saved.model
        with preserve_rng():
            found = inspect_batch(saved, batch)
        saved.counters = {}
        saved.prepare(noise=False, copy_parameters=bool(saved.copy_parameters))
        self._model = model
        self._loss = loss
        self._inspection = found
        self._outputs = found.outputs
        self._skipped = found.skipped
        self._sources = found.sources
        self._plain = Mean()
        self._correct = Mean()
        self._units = ActiveUnits()
        # Two passes tell the error of noise that stays on in evaluation mode.
        self._evaluation_noise = Estimate(shared=True)
        watched = {source.name for source in self._sources if source.known}
        self._last: LastLayer | None = None
        self._exact: list[tuple[TailNoise, Mean]] = []
        head = self._find_head()
        if head is not None:
            watched.add(head.name)
            self._last = LastLayer(head, self._outputs)
            self._exact = [(noise, Mean()) for noise in self._exact_noises(head)]
        self._watched = {
            module: name for name, module in model.named_modules() if name in watched
        }
        self._sampled = SampledPenalties(
            model,
            self._sources,
            loss,
            exact=len(self._exact),
            batches=batches.count,
            size=len(batch.inputs),
            passes=passes,
            whole=found.inputs is batch.inputs,
        )

    def measure(self) -> Status:
        """Add all batches, or those until Ctrl-C."""
        try:
            with meter("audit", self._count) as bar:
                for batch in self._data:
                    self.add(batch)
                    bar.advance()
                    if self._interrupts.pending:
                        return Status.INTERRUPTED
        except KeyboardInterrupt:  # raised by the data
            return Status.INTERRUPTED
        return Status.FINISHED

    def add(self, batch: Batch) -> None:
        """Add a batch."""
        seen = self._forward(batch)
        if self._last is not None:
            self._last.add(seen)
        if self._inspection.always_on:
            again = self._forward(batch)
            difference = (again.losses - seen.losses) / math.sqrt(2)
            self._evaluation_noise.add(difference[None])
        self._plain.add(seen.losses)
        if seen.targets.classes is not None:
            self._correct.add(seen.output.argmax(1) == seen.targets.classes)
        for name, h in seen.units.items():
            self._units.add(name, h.flatten(1))
        for noise, penalty in self._exact:
            h = seen.units[noise.name]
            value = torch.tensor(noise.penalty(h), dtype=torch.float64)
            penalty.add(value.expand(len(h)))
        self._sampled.add(seen)

    def finish(self, status: Status, seconds: float) -> AuditReport:
        """Return the report."""
        scale = unit(self._loss, self._outputs)
        penalties = [(added.value, added.error, False) for added in self._sampled.added]
        for _, mean in reversed(self._exact):
            penalties.append((mean.value * scale, 0.0, True))
        known = sum(value for value, _, exact in penalties if exact)
        objective = self._plain.value + self._sampled.total.value + known
        error = math.hypot(self._sampled.total.error, self._evaluation_noise.error)
        noises = []
        for source, numbers in zip(self._sources, penalties, strict=True):
            penalty, penalty_error, exact = numbers
            units, dead = self._units.count(source.name) or (None, None)
            noises.append(
                NoiseFindings(
                    name=source.name,
                    kind=source.kind,
                    units=units,
                    drop_prob=drop_prob_of(source.module),
                    penalty=penalty,
                    penalty_error=penalty_error,
                    exact=exact,
                    share=penalty / objective if objective else 0.0,
                    dead=dead,
                )
            )
        head = None
        if self._last is not None:
            head = self._last.finish(objective, error, scale)
        classes = self._correct.count == self._plain.count
        return AuditReport(
            model=type(self._model).__name__,
            loss=loss_text(self._loss),
            samples=self._plain.count,
            outputs=self._outputs,
            parameters=sum(p.numel() for p in self._model.parameters()),
            plain_loss=self._plain.value,
            objective=objective,
            objective_error=error,
            accuracy=self._correct.value if classes else None,
            noises=tuple(noises),
            head=head,
            skipped=tuple(self._skipped),
            status=status,
            seconds=seconds,
        )

    def _forward(self, batch: Batch) -> Seen:
        """Run the model on a batch, and check what it returns."""
        where, inputs, y = batch
        units: dict[str, Tensor] = {}

        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            if not args:  # the input was given by name
                return
            # Later layers may work in place.
            units[self._watched[module]] = args[0].detach().clone()

        with (
            torch.no_grad(),
            hook_modules(self._watched, after=hook),
            name_failing_inputs(inputs, where),
        ):
            output = select_output(inputs.run(self._model), None)
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
        assert y is not None  # noqa: S101 (Batches refuses batches without targets)
        targets = Targets(y, output, self._loss, where)
        losses = targets.losses(output, self._loss)
        rows = output.reshape(len(output), -1)
        return Seen(inputs, rows, targets, losses, units)

    def _find_head(self) -> Head | None:
        """Return the last layers in a recorded pass, None if nothing is known of them."""
        structure = self._inspection.structure
        head: Head | str
        if not is_squared(self._loss):
            head = f"nothing is proved of the loss {loss_text(self._loss)}, only of a squared one"
        elif self._outputs > MAX_OUTPUTS:
            head = f"{self._outputs} outputs are too many (at most {MAX_OUTPUTS}) for a spectrum"
        elif isinstance(structure, str):
            head = structure
        else:
            head = find_head(self._model, structure, self._inspection)
        if isinstance(head, str):
            self._skipped.append(("the last layer", head))
            return None
        return head

    def _exact_noises(self, head: Head) -> list[TailNoise]:
        """Return the noises at the end of the pass whose penalties are exact, the last first."""
        exact: list[TailNoise] = []
        for noise, source in zip(head.noises, reversed(self._sources), strict=False):
            if noise.name != source.name or self._inspection.samples(noise.name) != 1:
                break
            exact.append(noise)
        return exact
