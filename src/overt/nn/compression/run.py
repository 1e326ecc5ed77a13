"""`compress`: a physically smaller network, and a report of what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from overt import _check
from overt._check import InputError, InputTypeError
from overt._types import Floats, Seed
from overt.nn.compression.cutting import Keep, Outcome, Task, duplicate
from overt.nn.compression.lowrank import by_spectrum, share_within
from overt.nn.compression.measuring import Score, latencies, multiply_adds, parameters, score
from overt.nn.compression.measuring import recover as train_on
from overt.nn.compression.narrowing import by_units
from overt.nn.compression.report import Compression, Size, recipe_of
from overt.nn.given.batches import Batches, Inputs, running
from overt.nn.given.losses import LOSSES, Loss, checked_loss
from overt.results import Status

WAYS = ("auto", "mask", "flow", "spectrum")


def compress(
    model: nn.Module, keep: Keep, example: Any, data: Any = None, by: str = "auto", *,
    draws: int = 32, loss: Loss = "auto", holdout: Any = None, recover: int = 0, train: Any = None,
    learning_rate: float = 1e-3, seed: Seed = 0,
) -> tuple[nn.Module, Compression]:  # fmt: skip
    """Return a smaller copy of a network, and what became of it; the model itself is not touched.

    by="mask"
        The best of `draws` sub-networks that dropout draws (thesis, Theorem 15 and section 5.5):
        units on which a dropout layer acts are removed at random, survivors are scaled by
        all / kept, as in training, and the sub-network with the least loss on `data` stays.
    by="flow"
        Units with the greatest flow psi_i = |u_i| sqrt(E a_i^2) stay, u_i the weights that read
        unit i and a_i its activation; what the others contribute is predicted from them by least
        squares and added to the weights and biases that read them.
    by="spectrum"
        Linear and convolutional layers become products of two of low rank wherever that saves
        multiply-adds; the report states the error of each.
    by="auto"
        Units are removed by flow, and the other ways are tried at the multiply-adds that this
        leaves; the one with the least loss on `data` is taken, or without targets the one that
        changes the outputs least. `report.tried` has the numbers.

    Removing units follows the forward pass as it runs: channels that are added together are removed
    together, flattened and concatenated ones are followed, batch, layer and group normalization
    shrink along. What cannot be removed stays whole and is named in the report with the reason.
    The smaller network is checked against the large one with the same units masked.

    Parameters
    ----------
    model
        Any module; its mode does not matter, and the result has the same.
    keep
        In (0, 1]: the share of units that stays in each layer, or of the multiply-adds of all
        rewritten layers for "spectrum". Or {layer: share}, for these layers only.
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
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    _check.choice("by", by, WAYS)
    keep = _checked_keep(model, keep)
    draws = _check.whole("draws", draws)
    steps = _check.whole("recover", recover, minimum=0)
    rate = _check.number("learning_rate", learning_rate, exclusive=True)
    loss, rng = checked_loss(loss, ("auto", *LOSSES)), _check.generator(seed)
    base = duplicate(model).eval()
    inputs = Inputs.of(example, "example").like(base)
    with torch.no_grad(), running(inputs, "example"):
        inputs.run(base)
    if by == "mask" and data is None:
        raise InputError(
            "by='mask' judges sub-networks by their loss on held-out examples: pass data, batches "
            "(inputs, targets) that training has not seen; by='flow' does without"
        )
    judge, report_on, train_data = _read(base, inputs, data, holdout, train)
    if steps and (train_data is None or judge is None):
        raise InputError("recover needs data, batches (inputs, targets), and maybe train")
    with torch.random.fork_rng():
        torch.manual_seed(int(rng.integers(2**31)))
        task = Task(base, keep, inputs, judge, loss, draws, rng)
        done = _best(task) if by == "auto" else _run(task, by)
        losses = np.zeros(0)
        if steps and train_data is not None and judge is not None and not done.interrupted:
            losses, done.interrupted = train_on(
                done.model, train_data, judge, loss, steps=steps, learning_rate=rate
            )
        report = _report(task, done, report_on, losses)
    _same_modes(model, done.model)
    return done.model, report


def _read(base: nn.Module, inputs: Inputs, data: Any, holdout: Any, train: Any) -> Any:
    """Return the data to judge by, to report on and to train on, each None if there is none."""
    arity = len(inputs.given) if isinstance(inputs.given, tuple) else 1

    def batches(name: str, given: Any, default: Batches | None = None) -> Batches | None:
        if given is None:
            return default
        return Batches(given, base, name=name, arity=arity, again=True, alone=True)

    judge = batches("data", data)
    return judge, batches("holdout", holdout, judge), batches("train", train, judge)


def _run(task: Task, by: str) -> Outcome:
    return by_spectrum(task) if by == "spectrum" else by_units(task, by)


def _best(task: Task) -> Outcome:
    """Try the ways at the multiply-adds that removing units by flow leaves."""
    found = {"flow": _run(task, "flow")}
    budget: float = _cost(task, found["flow"].model)
    if not found["flow"].changes and not isinstance(task.keep, Mapping):
        budget *= task.keep
    if score(task.base, task.judge, task.loss) is not None:
        found["mask"] = _run(task, "mask")
    share = share_within(task.base, task.inputs, budget)
    if share is not None and not isinstance(task.keep, Mapping):
        found["spectrum"] = _run(replace(task, keep=share), "spectrum")
    values = {
        way: _value(task, outcome.model)
        for way, outcome in found.items()
        if outcome.changes and _cost(task, outcome.model) <= 1.01 * budget
    }
    done = found[min(values, key=values.__getitem__, default="flow")]
    done.tried = tuple(values.items())
    done.interrupted = any(outcome.interrupted for outcome in found.values())
    return done


def _cost(task: Task, model: nn.Module) -> int:
    return sum(multiply_adds(model, task.inputs).values())


def _value(task: Task, model: nn.Module) -> float:
    """Return the loss on the data, or without targets how much the outputs change."""
    found = score(model, task.judge, task.loss)
    if found is not None:
        return found.loss if np.isfinite(found.loss) else np.inf
    batches = [task.inputs] if task.judge is None else (b.inputs for b in task.judge)
    with torch.no_grad():
        changes = [_relative_change(x.run(task.base), x.run(model)) for x in batches]
    return float(np.nan_to_num(np.mean(changes), nan=np.inf))


def _report(task: Task, done: Outcome, judge: Batches | None, recovery: Floats) -> Compression:
    models, inputs = (task.base, done.model), task.inputs
    times = latencies(*models, inputs=inputs)
    scores = [score(m, judge, task.loss) for m in models]
    before, after = (
        Size(
            parameters(m), _cost(task, m), t,
            *((s.loss, s.accuracy) if isinstance(s, Score) else (None, None)),
        )
        for m, t, s in zip(models, times, scores, strict=True)
    )  # fmt: skip
    with torch.no_grad():
        change = _relative_change(*(inputs.run(m) for m in models))
    return Compression(
        by=done.by, keep=dict(task.keep) if isinstance(task.keep, Mapping) else task.keep,
        before=before, after=after, changes=tuple(done.changes),
        skipped=tuple(done.skipped.items()), tried=done.tried, output_change=change,
        losses=done.losses, recovery=recovery, recipe=recipe_of(*models),
        status=Status.INTERRUPTED if done.interrupted else Status.FINISHED,
    )  # fmt: skip


def _relative_change(old: Any, new: Any) -> float:
    if not isinstance(old, Tensor) or not old.is_floating_point():
        return float("nan")
    size = float(old.norm())
    return float((new - old).norm()) / size if size else float("nan")


def _checked_keep(model: nn.Module, keep: Any) -> Keep:
    if not isinstance(keep, Mapping):
        return _share("keep", keep)
    names = {name for name, _ in model.named_modules() if name}
    unknown = [str(name) for name in keep if name not in names]
    if unknown:
        layers = sorted(
            n for n, m in model.named_modules() if getattr(m, "weight", None) is not None
        )
        raise InputError(
            f"keep must name layers of the model, got {', '.join(unknown)}; there are "
            f"{', '.join(layers)}"
        )
    return {str(name): _share(f"keep[{name!r}]", share) for name, share in keep.items()}


def _share(name: str, value: Any) -> float:
    share = _check.number(name, value, exclusive=True) if not isinstance(value, bool) else None
    if share is None or share > 1:
        raise InputError(f"{name} must be a number in (0, 1], got {value!r}")
    return share


def _same_modes(model: nn.Module, small: nn.Module) -> None:
    """Give every module of the result the mode that it has in the model."""
    modes = {name: module.training for name, module in model.named_modules()}
    for name, module in small.named_modules():
        home = name
        while home not in modes:
            home = home.rpartition(".")[0]
        module.training = modes[home]
