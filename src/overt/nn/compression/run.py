"""`compress`: a physically smaller network, and a report of what it cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt import _check
from overt._check import InputError, InputTypeError
from overt.nn.compression.attention import open_attention
from overt.nn.compression.graph import build_graph
from overt.nn.compression.lowrank import by_spectrum
from overt.nn.compression.problem import (
    TOLERANCE,
    Keep,
    Outcome,
    Problem,
    copy_model,
    count_parameters,
    multiply_adds,
    relative_change,
    run_plain,
    score,
    with_own_statistics,
)
from overt.nn.compression.report import Compression, Size
from overt.nn.compression.units import by_units
from overt.nn.data.batches import (
    Batch,
    Batches,
    Inputs,
    Output,
    name_failing_inputs,
)
from overt.nn.data.losses import LOSSES, Loss, check_loss, guess_loss, loss_text
from overt.nn.data.models import check_model, preserve_rng

METHODS = ("auto", "flow", "spectrum")
OF = ("parameters", "multiply_adds", "units")
MAX_ROWS = 4096
"""Rows of data that units and methods are chosen on: more would not change the choice."""


def compress(
    model: nn.Module,
    keep: Keep,
    example: Any,
    data: Any = None,
    by: str = "auto",
    *,
    of: str = "parameters",
    output: Output = None,
    loss: Loss = "auto",
    holdout: Any = None,
) -> tuple[nn.Module, Compression]:
    """Return a smaller copy of a network, and a report; the model itself is not changed.

    by="flow"
        Units with the greatest flow psi_i = |u_i| sqrt(E a_i^2) stay, u_i the weights that read
        unit i and a_i its activation; the contribution of the others is predicted from them by
        least squares and added to the weights and biases that read them.
    by="spectrum"
        Linear and convolutional layers become products of two of low rank wherever that saves
        something; the report states the error of each.
    by="auto"
        "flow" and "spectrum" are tried; of those that meet `keep` the one with the least loss on
        `data` is taken, or without targets the one that changes the outputs least; `report.tried`
        has the numbers. Before training further "flow" is the better choice where much is lost:
        layers of low rank begin better and recover worse.

    Units are followed through the forward pass as it runs: channels that are added together are
    removed together, flattened and concatenated ones are followed, and normalizations shrink with
    their units. Attention loses whole heads (with grouped queries, whole groups of heads), a
    convolution in groups loses whole groups. What cannot be removed stays whole and is named in
    the report with the reason. The smaller network is checked against the large one with the same
    units masked. Then its batch normalizations get their own statistics on `data`, if that
    lowers the loss there.

    Parameters
    ----------
    model
        Any module; its mode does not matter, and the result has the same.
    keep
        In (0, 1]: the share that stays of the whole network's parameters, or of what `of` names.
        It is met as closely as whole units allow, up to 5 % above. Where too little can be removed
        for that, this share of what can be removed stays: `report.met` is then False, and
        `report.shortfall` says why.
        Or {layer: share}, the share of the units of these layers, by "flow".
    example
        A batch of inputs (a tensor, a tuple of them, or a dict by name) on which the model runs.
    data
        A pair of arrays or tensors (inputs, targets), a DataLoader, or any iterable of batches that
        can be iterated again: pairs (inputs, targets), or dicts with the targets under a name such
        as "labels". Activations are measured on it (inputs alone are enough); without data "flow"
        uses the example, and "spectrum" the weights alone.
    by
        "auto", "flow" or "spectrum".
    of
        What `keep` is a share of: "parameters", "multiply_adds" (as torch.utils.flop_counter
        counts them, attention included), or "units": that share of the units of every layer.
    output
        Which of the model's outputs counts, such as `lambda o: o.logits`; needed where it returns
        no tensor and `data` has targets.
    loss
        "auto" (cross-entropy or logistic for classes, else mean square), "cross_entropy",
        "logistic", "mse", "squared", or a function (output, target) -> mean loss.
    holdout
        Data for loss and accuracy in the report; `data` by default, on which "auto" has chosen.

    Returns
    -------
    The smaller module, a copy of the same class made of plain torch layers, and the report. It can
    be trained further like any other.

    Examples
    --------
    >>> import torch
    >>> from overt.nn.compression import compress
    >>> model = torch.nn.Sequential(
    ...     torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(64, 3)
    ... )
    >>> unseen = torch.randn(50, 8), torch.randint(3, (50,))
    >>> small, report = compress(model, 0.5, torch.randn(1, 8), unseen, by="flow")
    >>> small[0], report.before.parameters, report.after.parameters
    (Linear(in_features=8, out_features=32, bias=True), 771, 387)
    """
    wrapped = model
    model = check_model(model)
    if isinstance(model, torch.jit.ScriptModule):
        raise InputTypeError(
            "model must be a module of Python's, not a scripted one: its layers cannot be "
            "replaced; give what it was made from"
        )
    _check.choice("by", by, METHODS)
    _check.choice("of", of, OF)
    if isinstance(keep, Mapping):
        keep = {str(k): _check_share(f"keep[{k!r}]", v) for k, v in keep.items()}
    else:
        keep = _check_share("keep", keep)
    if by == "spectrum" and (of == "units" or isinstance(keep, Mapping)):
        raise InputError(
            "by='spectrum' removes no units: keep must be one share, of parameters or "
            "multiply-adds"
        )
    loss = check_loss(loss, ("auto", *LOSSES))
    inputs = Inputs.of(example, "example", output).like(model)
    with preserve_rng(), torch.inference_mode(False):
        torch.manual_seed(0)  # for models that sample in evaluation mode
        base = open_attention(copy_model(model).eval())
        judge = _batches("data", data, base, inputs)
        report_on = _batches("holdout", holdout, base, inputs) or judge
        few = None if judge is None else _first_rows(judge)
        guessed = loss == "auto"
        graph = build_graph(base, inputs)
        if guessed:
            loss = _guess_loss(base, few or report_on)
        problem = Problem(base, graph, keep, of, inputs, few, loss)
        done = _best(problem) if by == "auto" else _run(problem, by)
        if not done.changes:
            done.model = copy_model(model).eval()  # with torch's own attention
        report = _report(problem, done, report_on, guessed=guessed)
    _restore_modes(wrapped, done.model)
    return done.model, report


def _check_share(name: str, value: Any) -> float:
    share = 2.0 if value is True else _check.number(name, value, exclusive=True)
    if share > 1:
        raise InputError(f"{name} must be a number in (0, 1], got {value!r}")
    return share


def _batches(name: str, data: Any, base: nn.Module, inputs: Inputs) -> Batches | None:
    """Return data as batches for the model, None if there is none."""
    if data is None:
        return None
    return Batches(
        data,
        base,
        name=name,
        repeated=True,
        unlabeled=True,
        output=inputs.output,
    )


def _first_rows(batches: Batches) -> list[Batch]:
    """Return at most MAX_ROWS rows, from all batches where their number is known."""
    per_batch = max(1, MAX_ROWS // (batches.count or 1))
    found: list[Batch] = []
    for where, inputs, y in batches:
        n = min(per_batch, MAX_ROWS - sum(len(batch.inputs) for batch in found))
        if n == 0:
            break
        targets = None if y is None else y[:n]
        found.append(Batch(where, inputs.first(n), targets))
    return found


def _guess_loss(base: nn.Module, batches: Iterable[Batch] | None) -> Loss:
    """Return the loss that the targets look made for; "auto" where there are none to judge by."""
    for where, inputs, y in batches or ():
        if y is not None:
            with name_failing_inputs(inputs, where):
                output = run_plain(base, inputs)
            return guess_loss(y, output) if isinstance(output, Tensor) else "auto"
    return "auto"


def _run(problem: Problem, by: str) -> Outcome:
    """Compress by one method; normalizations get their own statistics if that lowers the loss."""
    done = by_spectrum(problem) if by == "spectrum" else by_units(problem)
    if problem.judge is not None and done.changes:
        candidate = with_own_statistics(done.model, problem.judge)
        if candidate and _value(problem, candidate) < _value(problem, done.model):
            done.model = candidate
    return done


def _best(problem: Problem) -> Outcome:
    """Try both methods; take the better of those that are small enough, or nearly the smallest."""
    flow = _run(problem, "flow")
    if problem.of_units or isinstance(problem.keep, Mapping):
        return flow
    found = {"flow": flow, "spectrum": _run(problem, "spectrum")}
    sizes = {by: problem.size_of(outcome.model) for by, outcome in found.items()}
    limit = TOLERANCE * problem.keep * problem.total
    if min(sizes.values()) > limit:
        limit = TOLERANCE * min(sizes.values())
    small = [by for by in found if sizes[by] <= limit]
    values = {by: _value(problem, found[by].model) for by in small}
    best = min(values, key=values.__getitem__)
    found[best].tried = tuple(values.items())
    return found[best]


def _value(problem: Problem, model: nn.Module) -> float:
    """Return the loss on the data, or without targets how much the outputs change."""
    found = score(model, problem.judge, problem.loss)
    if found is not None:
        return found[0]
    changes = [
        relative_change(run_plain(problem.base, inputs), run_plain(model, inputs))
        for _, inputs, _ in problem.batches
    ]
    return float(np.nan_to_num(np.mean(changes), nan=np.inf))


def _report(
    problem: Problem, done: Outcome, report_on: Batches | None, *, guessed: bool
) -> Compression:
    keep = problem.keep
    skipped = dict(done.skipped)
    for path in problem.graph.random_modules:
        why = "it samples in evaluation mode too: losses and changes here are of single samples"
        skipped[path or "forward"] = why
    sizes = []
    for model in (problem.base, done.model):
        judged = score(model, report_on, problem.loss) or (None, None)
        operations = multiply_adds(model, problem.inputs)
        sizes.append(Size(count_parameters(model), operations, *judged))
    before, after = sizes
    reached = None
    if not problem.of_units:
        reached = problem.size_of(done.model) / (problem.total or 1)
    why_not = _shortfall(problem, done, reached)
    return Compression(
        by=done.by,
        keep=keep,
        of=problem.of,
        reached=reached,
        met=why_not is None,
        shortfall=why_not,
        loss=None if before.loss is None else loss_text(problem.loss),
        loss_guessed=guessed,
        before=before,
        after=after,
        changes=tuple(done.changes),
        skipped=tuple(skipped.items()),
        tried=done.tried,
        output_change=relative_change(
            problem.graph.outputs, run_plain(done.model, problem.inputs)
        ),
    )


def _shortfall(problem: Problem, done: Outcome, reached: float | None) -> str | None:
    """Return why the share is not reached, None if the network is small enough."""
    keep = problem.keep
    if isinstance(keep, Mapping):
        return None
    if problem.of_units and keep < 1 and not done.changes:
        return "no layer lost units (report.skipped has the reasons)"
    if reached is None or reached <= TOLERANCE * keep:
        return None
    what = problem.of.replace("_", "-")
    text = f"keep={keep:g} of the {what} is not reached, {reached:.3g} is left"
    if done.least is not None and done.least > TOLERANCE * keep:
        text += (
            f": {done.least:.3g} would be left with a single unit or rank in every layer, so "
            f"{keep:g} of what can be removed stays"
        )
    return f"{text}; {len(done.skipped)} layers are left whole (report.skipped has the reasons)"


def _restore_modes(model: nn.Module, small: nn.Module) -> None:
    """Give every module of the result the mode that it has in the model."""
    modes = {name: module.training for name, module in model.named_modules()}
    for name, module in small.named_modules():
        original = name
        while original not in modes:  # a new part of a module that was replaced
            original = original.rpartition(".")[0]
        module.training = modes[original]
