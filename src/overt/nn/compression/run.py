"""`compress`: a physically smaller network, and a report of what it cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from overt import _check
from overt._check import InputError, InputTypeError
from overt._types import Seed
from overt.nn.compression.attention import Attention, closed, opened
from overt.nn.compression.lowrank import by_spectrum
from overt.nn.compression.measuring import (
    failure,
    latencies,
    multiply_adds,
    output_of,
    parameters,
    recalibrated,
    score,
)
from overt.nn.compression.measuring import recover as train_on
from overt.nn.compression.narrowing import by_units
from overt.nn.compression.report import Compression, Size, recipe_of
from overt.nn.compression.structure import structure_of
from overt.nn.compression.task import (
    MET,
    Keep,
    Outcome,
    Task,
    checked_keep,
    duplicate,
    relative_change,
    shortfall_of,
    some_of,
)
from overt.nn.data.batches import Batch, Batches, Inputs, name_failing_inputs
from overt.nn.data.losses import LOSSES, Loss, check_loss, guess_loss, loss_text
from overt.nn.data.models import check_model
from overt.results import Status

WAYS = ("auto", "mask", "flow", "spectrum")
OF = ("parameters", "multiply_adds", "latency", "units")


def compress(
    model: nn.Module, keep: Keep, example: Any, data: Any = None, by: str = "auto", *,
    of: str = "parameters", output: Callable[[Any], Any] | None = None, draws: int = 32,
    loss: Loss = "auto", holdout: Any = None, recover: int = 0, train: Any = None,
    learning_rate: float = 1e-3, seed: Seed = 0,
) -> tuple[nn.Module, Compression]:  # fmt: skip
    """Return a smaller copy of a network, and what became of it; the model itself is not touched.

    by="flow"
        Units with the greatest flow psi_i = |u_i| sqrt(E a_i^2) stay, u_i the weights that read
        unit i and a_i its activation; what the others contribute is predicted from them by least
        squares and added to the weights and biases that read them.
    by="spectrum"
        Linear and convolutional layers become products of two of low rank wherever that saves
        something; the report states the error of each.
    by="mask"
        The best of `draws` sub-networks that dropout draws (thesis, Theorem 15 and section 5.5):
        units on which a dropout layer acts are removed at random, survivors are scaled by
        all / kept, as in training, and the sub-network with the least loss on `data` stays.
    by="auto"
        "flow" and "spectrum" are tried; of those that meet `keep` the one with the least loss on
        `data` is taken, or without targets the one that changes the outputs least. Where recovery
        follows and has something to mend (a loss more than 5 per cent above the whole network's) it
        is "flow": layers of low rank begin better and recover worse. `report.tried` has the
        numbers, before recovery.

    Removing units follows the forward pass as it runs: channels that are added together are removed
    together, flattened and concatenated ones are followed, batch, layer and group normalization
    shrink along. Attention loses whole heads, a convolution in groups loses whole groups. What
    cannot be removed stays whole and is named in the report with the reason. The smaller network
    is checked against the large one with the same units masked; then its batch normalizations take
    statistics of their own on `data`, where that serves its loss there.

    Parameters
    ----------
    model
        Any module; its mode does not matter, and the result has the same.
    keep
        In (0, 1]: the share that stays of the whole network's parameters, or of what `of` names.
        It is met as closely as whole units allow, up to 5 per cent above; where it cannot be,
        `report.met` is False and `report.shortfall` says why.
        Or {layer: share}, the share of units (of multiply-adds for "spectrum") of these layers.
    example
        A batch of inputs (a tensor, a tuple of them, or a dict by name) on which the model runs.
    data
        A pair of arrays or tensors (inputs, targets), a DataLoader, or anything else that gives
        batches (inputs, targets) each time it is run through. Required for "mask", where it must
        hold examples that training has not seen; the other ways measure activations on it (the
        inputs alone are enough), and do without: "flow" with the example, "spectrum" with weights
        alone.
    by
        "auto", "mask", "flow" or "spectrum".
    of
        What `keep` is a share of: "parameters", "multiply_adds" (as torch.utils.flop_counter
        counts them, attention included), "latency" (measured on the example), or "units": that
        share of the units of every layer.
    output
        Which of the model's outputs counts, such as `lambda o: o.logits`; needed where it returns
        no tensor and `data` has targets.
    draws
        Sub-networks tried by "mask".
    loss
        "auto" (cross-entropy or logistic for classes, else mean square), "cross_entropy",
        "logistic", "mse", "squared", or a function (output, target) -> mean loss.
    holdout
        Data for loss and accuracy in the report; `data` by default, on which "mask" and "auto" have
        chosen.
    recover, train, learning_rate
        Steps of Adam after the cut, the data for them (`data` by default) and the rate; the best
        state on `data` is kept.
    seed
        Int or numpy Generator.

    Returns
    -------
    The smaller module, a copy of the same class made of plain torch layers, and the report.
    Ctrl-C during the search or recovery returns the best so far.

    Examples
    --------
    >>> import torch
    >>> from overt.nn.compression import compress
    >>> model = torch.nn.Sequential(
    ...     torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(64, 3)
    ... )
    >>> unseen = torch.randn(50, 8), torch.randint(3, (50,))
    >>> small, report = compress(model, 0.5, torch.randn(1, 8), unseen, by="mask")
    >>> small[0], report.before.parameters, report.after.parameters
    (Linear(in_features=8, out_features=32, bias=True), 771, 387)
    """
    model, wrapped = check_model(model), model
    if isinstance(model, torch.jit.ScriptModule):
        raise InputTypeError("model must be a module of Python's, not a scripted one: its layers "
                             "cannot be replaced; give what it was made from")  # fmt: skip
    _check.choice("by", by, WAYS)
    _check.choice("of", of, OF)
    keep = checked_keep(keep)
    if of == "units" and by == "spectrum" and not isinstance(keep, Mapping):
        raise InputError("by='spectrum' removes no units: of must be another than 'units'")
    draws = _check.whole("draws", draws)
    steps = _check.whole("recover", recover, minimum=0)
    rate = _check.number("learning_rate", learning_rate, exclusive=True)
    loss, rng = check_loss(loss, ("auto", *LOSSES)), _check.generator(seed)
    inputs = Inputs.of(example, "example", output).like(model)
    if by == "mask" and data is None:
        raise InputError(
            "by='mask' judges sub-networks by their loss on held-out examples: pass data, batches "
            "(inputs, targets) that training has not seen; by='flow' does without"
        )
    base = opened(duplicate(model, {id(p): p for p in model.parameters()}).eval())
    judge, report_on, train_data = _read(base, inputs, data, holdout, train)
    if steps and (train_data is None or judge is None):
        raise InputError("recover needs data, batches (inputs, targets), and maybe train")
    with torch.random.fork_rng():
        torch.manual_seed(int(rng.integers(2**31)))
        few = None if judge is None else list(some_of(judge))
        guessed = loss == "auto"
        if guessed:
            loss = _guess_loss(base, few or report_on)
        for training in (False, True):  # again where the code of that mode has sizes of its own
            found = structure_of(base, inputs, training=training)
            task = Task(base, found, keep, of, inputs, few, loss, draws, rng)
            done = _best(task, recovers=steps > 0) if by == "auto" else _run(task, by)
            if training or failure(done.model, inputs, base) is None:
                break

        if steps and not done.interrupted:
            done.recovery, done.interrupted = train_on(
                done.model, train_data, judge, loss, steps=steps, learning_rate=rate
            )
        done.model = _closed(done.model, model, inputs)
        report = _report(task, done, report_on, model, guessed=guessed)
    _same_modes(wrapped, done.model)
    return done.model, report


def _read(base: nn.Module, inputs: Inputs, data: Any, holdout: Any, train: Any) -> Any:
    """Return the data to judge by, to report on and to train on, each None if there is none."""
    arity = len(inputs.given) if isinstance(inputs.given, tuple) else 1

    def batches(name: str, given: Any, default: Batches | None = None) -> Batches | None:
        if given is None:
            return default
        return Batches(
            given, base, name=name, arity=arity, repeated=True, unlabeled=True, output=inputs.output
        )

    judge = batches("data", data)
    return judge, batches("holdout", holdout, judge), batches("train", train, judge)


def _guess_loss(base: nn.Module, batches: Iterable[Batch] | None) -> Loss:
    """Return the loss that the targets look made for; "auto" where there are none to judge by."""
    labeled = [batch for batch in batches or () if batch.y is not None]
    if not labeled:
        return "auto"
    y = torch.cat([batch.y for batch in labeled])
    first = labeled[0]
    with torch.no_grad(), name_failing_inputs(first.inputs, first.where):
        output = first.inputs.run(base)
    if not isinstance(output, Tensor):
        return "auto"
    return guess_loss(y, output.new_empty(len(y), *output.shape[1:]))


def _run(task: Task, by: str) -> Outcome:
    """Compress one way; normalizations get statistics of their own if that serves the data."""
    done = by_spectrum(task) if by == "spectrum" else by_units(task, by)
    if by != "mask" and task.judge is not None and done.changes:
        twin = recalibrated(done.model, task.judge)
        if twin is not None and _value(task, twin) < _value(task, done.model):
            done.model, done.output = twin, None
    return done


def _best(task: Task, *, recovers: bool) -> Outcome:
    """Try the ways, and take the best of those that are small enough, or else the smallest."""
    found = {"flow": _run(task, "flow")}
    if not isinstance(task.keep, Mapping) and task.of != "units":
        found["spectrum"] = _run(task, "spectrum")
    if len(found) == 1:
        return found["flow"]
    sizes = {way: task.within(outcome.model) for way, outcome in found.items()}
    small = [way for way in found if sizes[way] <= MET * cast(float, task.keep)]
    if not small:
        least = min(sizes.values())
        small = [way for way in found if sizes[way] <= MET * least]
    values = {way: _value(task, found[way].model) for way in small}
    best = min(values, key=values.__getitem__)
    if recovers and "flow" in small and values[best] > MET * _value(task, task.base):
        best = "flow"  # low rank begins better and recovers worse
    found[best].tried = tuple(values.items())
    return found[best]


def _value(task: Task, model: nn.Module) -> float:
    """Return the loss on the data, or without targets how much the outputs change."""
    found = score(model, task.judge, task.loss)
    if found is not None:
        return found.loss if np.isfinite(found.loss) else np.inf
    with torch.no_grad():
        changes = [
            relative_change(x.run(task.base), x.run(model)) for x in (b.inputs for b in task.rows)
        ]
    return float(np.nan_to_num(np.mean(changes), nan=np.inf))


def _closed(small: nn.Module, model: nn.Module, inputs: Inputs) -> nn.Module:
    """Return the network with torch's own attention wherever it still fits."""
    if not any(isinstance(module, Attention) for module in small.modules()):
        return small
    candidate = closed(duplicate(small), model)
    try:
        with torch.no_grad():
            inputs.run(candidate)
    except Exception:  # torch's fast path needs plain layers beside its attention
        return small
    return candidate


def _report(
    task: Task, done: Outcome, judge: Batches | None, model: nn.Module, *, guessed: bool
) -> Compression:
    after = done.output
    if after is None or len(done.recovery) or task.structure.drawing:
        after = output_of(done.model, task.inputs)
    reason = "it draws in evaluation mode too: losses and changes here are those of single draws"
    drawing = {path or "forward": reason for path in task.structure.drawing}
    models, inputs = (task.base, done.model), task.inputs
    scores = [score(m, judge, task.loss) for m in models]
    sizes = [
        Size(parameters(m), 0, 0.0, *((None, None) if s is None else (s.loss, s.accuracy)))
        for m, s in zip(models, scores, strict=True)
    ]
    sizes[0].measured_with(
        sizes[1],
        latency=lambda: latencies(*models, inputs=inputs),
        multiply_adds=lambda: (task.total, multiply_adds(done.model, inputs)[0]),
    )
    reached = None
    if not task.of_units:
        old, new = (getattr(size, task.of) for size in sizes)
        reached = new / old if old else 1.0
    shortfall = shortfall_of(task, done, reached)
    return Compression(
        by=done.by, keep=dict(task.keep) if isinstance(task.keep, Mapping) else task.keep,
        of=task.of, reached=reached, met=shortfall is None, shortfall=shortfall,
        loss=None if scores[0] is None else loss_text(task.loss), loss_guessed=guessed,
        before=sizes[0], after=sizes[1], changes=tuple(done.changes),
        skipped=tuple({**done.skipped, **drawing}.items()), tried=done.tried,
        output_change=relative_change(task.structure.outputs, after),
        losses=done.losses, recovery=done.recovery, recipe=recipe_of(model, done.model),
        status=Status.INTERRUPTED if done.interrupted else Status.FINISHED,
    )  # fmt: skip


def _same_modes(model: nn.Module, small: nn.Module) -> None:
    """Give every module of the result the mode that it has in the model."""
    modes = {name: module.training for name, module in model.named_modules()}
    for name, module in small.named_modules():
        home = name
        while home not in modes:
            home = home.rpartition(".")[0]
        module.training = modes[home]
