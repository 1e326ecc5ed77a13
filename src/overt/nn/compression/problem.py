"""A network to be made smaller: its size and loss, the data it is judged by, and what comes out."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import flop_registry

from overt._check import InputError
from overt.nn.compression.dependencies import DependencyGraph
from overt.nn.compression.graph import DispatchMode, tensors
from overt.nn.compression.report import Change
from overt.nn.data.batches import Batch, Inputs, first_line, name_failing_inputs
from overt.nn.data.losses import Loss, mean_loss
from overt.nn.data.models import disable_fast_attention, modes, restore_training

Keep = float | Mapping[str, float]
"""One share for all layers, or a share for each of those named."""

TOLERANCE = 1.05
"""A network is small enough up to this factor above `keep`: units are whole."""

MIN_ROWS = 64
"""Rows that statistics of normalizations need: fewer make a variance that is 20 % off."""

MIN_BATCH = 8
"""Rows of a batch that statistics of normalizations need."""

BISECTIONS = 16
"""Steps of a search: a share of units is then known to 1.5e-5, below one unit in 65,000."""

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True, eq=False)
class Problem:
    """A network to be made smaller, in evaluation mode, and the data it is judged by."""

    base: nn.Module
    graph: DependencyGraph
    keep: Keep
    of: str
    inputs: Inputs
    judge: list[Batch] | None
    loss: Loss

    @cached_property
    def total(self) -> int:
        """The parameters, or the multiply-adds of one example."""
        return self.size_of(self.base)

    @property
    def of_units(self) -> bool:
        """Whether shares are of the units of single layers, and not of a cost of the whole."""
        return isinstance(self.keep, Mapping) or self.of == "units"

    @property
    def batches(self) -> list[Batch]:
        """What activations are measured on: the data, or else the example."""
        return self.judge or [Batch("example", self.inputs, None)]

    def aim(self, least: float) -> float:
        """Return the share of the whole that is to stay, where at least `least` has to.

        That is `keep`, or if it is out of reach, `keep` of what can be removed: to cut down to
        single units would cost much and miss it all the same.
        """
        keep = self.keep
        assert not isinstance(keep, Mapping)  # noqa: S101 (for the type checker)
        return keep if least <= TOLERANCE * keep else least + keep * (1 - least)

    def size_of(self, model: nn.Module) -> int:
        """Return a network's size in what `keep` limits."""
        if self.of == "multiply_adds":
            return multiply_adds(model, self.inputs)
        return count_parameters(model)


@dataclass(eq=False)
class Outcome:
    """The result of a method: the network, what changed, what did not and why.

    `least` is the smallest share that the method could leave, None where it was not needed.
    """

    by: str
    model: nn.Module
    changes: list[Change]
    skipped: dict[str, str]
    least: float | None
    tried: tuple[tuple[str, float], ...] = ()


def bisect(fits: Callable[[float], bool], low: float, high: float) -> float:
    """Return the largest number from `low` on that fits, where smaller ones fit too."""
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def check_layers(keep: Mapping[str, float], layers: Iterable[str]) -> None:
    """Refuse shares for modules that have no units."""
    known = set(layers)
    unknown = [name for name in keep if name not in known]
    if unknown:
        raise InputError(
            f"keep must name layers that have units, got {', '.join(unknown)}; there are "
            f"{', '.join(sorted(known))}"
        )


def copy_model(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return a deep copy in which some tensors are replaced: memo has them by the old ones' ids."""
    try:
        return copy.deepcopy(model, {} if memo is None else memo)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise InputError(
            f"model must be a module that can be copied: {error}"
        ) from None


@torch.no_grad()
def relative_change(old: Any, new: Any) -> float:
    """Return |new - old| / |old| over all outputs: 0 where none has changed, inf from zero."""
    both = zip(tensors(old), tensors(new), strict=True)
    pairs = [(a.double(), b.double()) for a, b in both if a.is_floating_point()]
    change = math.hypot(*(float((b - a).norm()) for a, b in pairs))
    size = math.hypot(*(float(a.norm()) for a, _ in pairs))
    if change == 0:
        return 0.0
    return change / size if size else math.inf


def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters, shared ones counted once."""
    return sum(p.numel() for p in model.parameters())


def run_plain(model: nn.Module, inputs: Inputs) -> Any:
    """Return the model's output, without gradients and without torch's fused attention."""
    with torch.no_grad(), disable_fast_attention():
        return inputs.run(model)


def why_it_fails(model: nn.Module, inputs: Inputs, base: nn.Module) -> str | None:
    """Return why a pass fails, in training mode too if a pass of the base does not, else None."""
    for noise in (False, True):
        try:
            with torch.no_grad(), modes(model, noise=noise):
                inputs.run(model)
        except Exception as error:  # the forward pass may use a layer's weight or size
            if not noise or model is base or why_it_fails(base, inputs, base) is None:
                return first_line(error)
    return None


def multiply_adds(model: nn.Module, inputs: Inputs) -> int:
    """Return the multiply-adds for one example: half of the operations that torch counts."""
    counter = _OperationCounter()
    # The counter does not know attention where it is one operation on the CPU.
    with sdpa_kernel(SDPBackend.MATH), counter:
        run_plain(model, inputs)
    return counter.operations // 2 // len(inputs)


class _OperationCounter(DispatchMode):
    """Torch's own counts of operations.

    torch's FlopCounterMode also tracks modules, which fails on models that expand a parameter.
    """

    operations = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.operations += count(*args, **kwargs, out_val=result)
        return result


def score(
    model: nn.Module, batches: Iterable[Batch] | None, loss: Loss
) -> tuple[float, float | None] | None:
    """Return mean loss and share of right classes, if there are classes; None without targets."""
    total = 0.0
    rows = 0
    right: list[Tensor] = []
    classes = True
    for where, inputs, y in batches or ():
        with name_failing_inputs(inputs, where):
            output = run_plain(model, inputs)
        if y is None:
            return None
        if not callable(loss) and not isinstance(output, Tensor):
            raise InputError(
                f"{where}: the model returns a {type(output).__name__}; say which output "
                "counts, such as output=lambda o: o.logits"
            )
        total += float(mean_loss(output, y, loss)) * len(y)
        rows += len(y)
        found = _correct(output, y, loss)
        if found is None:
            classes = False
        else:
            right.append(found.flatten())
    if not rows:
        return None
    value = math.inf if math.isnan(total) else total / rows
    if not classes:
        return value, None
    return value, float(torch.cat(right).double().mean())


def _correct(output: Any, y: Tensor, loss: Loss) -> Tensor | None:
    """Return which predicted classes are right, None where targets are not classes."""
    if not isinstance(output, Tensor):
        return None
    if loss == "cross_entropy" and y.shape == output.shape:  # rows of probabilities
        y = y.argmax(1)
    if output.ndim >= 2 and output.shape[1] > 1:
        predicted = output.argmax(1)
    else:
        predicted = (output.flatten() > 0).long()
    if y.is_floating_point() or predicted.shape != y.shape:
        return None
    return predicted == y


def with_own_statistics(model: nn.Module, batches: list[Batch]) -> nn.Module | None:
    """Return a copy whose batch normalizations have the statistics of these rows in it.

    The large network's statistics do not fit the smaller one. None where there are no such
    layers, or too few rows.
    """
    small = copy.deepcopy(model)
    norms = [
        m
        for m in small.modules()
        if type(m) in BATCH_NORMS and m.running_var is not None
    ]
    rows = [len(batch.inputs) for batch in batches]
    if not norms or min(rows) < MIN_BATCH or sum(rows) < MIN_ROWS:
        return None
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over batches
    with restore_training(norms, True):
        for batch in batches:
            run_plain(small, batch.inputs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return small
