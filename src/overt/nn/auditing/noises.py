"""The noise of a model: which layers it is in, what masks drawn from them realize and add.

What noise adds to a loss, and what units contribute, come from sampled masks and directions.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from overt.nn.auditing.sums import Average, Mean
from overt.nn.auditing.trace import Trace
from overt.nn.given.batches import Inputs
from overt.nn.given.losses import Loss, Targets
from overt.nn.layers.recognized import is_silent, is_weight_noise, known_noise, mask_covariance_of
from overt.nn.recording.modes import modes, switched_on
from overt.nn.recording.recorder import Operation, record

MASK_ENTRIES, MASK_ROWS = 2**19, 256
"""How many entries of masks are drawn at most, and rows at least, to measure what is dropped."""

ROWS, MAX_DRAWS, SHARED_DRAWS = 8192, 16, 8
"""Rows on which masks are sampled, how often at most for each row of small data, and the fewest
passes where the rows of a batch share a mask."""

Skipped = list[tuple[str, str]]
"""(name, reason) of what is left out."""


def find_noises(model: nn.Module, trace: Trace) -> tuple[dict[str, Operation], Skipped]:
    """Return the first use of each noise layer that is known, and what is left out, with reasons.

    A pass in training mode shows what else draws random numbers there.
    """
    met = trace.noises
    skipped = [
        (name, "not reached by the forward pass")
        for name, module in model.named_modules()
        if known_noise(module) and name not in met
    ]
    on = Counter(op.module for op in trace.operations if op.random and op.noise not in met)
    for path, calls in on.items():
        skipped.append(
            (path or "forward", f"{calls} call(s) of functions that draw, such as functional "
             "dropout, are on in evaluation mode too: their noise is in every number here; use "
             "modules")
        )  # fmt: skip
    try:
        with torch.random.fork_rng(), modes(model, noise=True):
            training = record(
                model, trace.inputs.given, leaves=lambda _, module: known_noise(module), keep=False
            )
    except Exception as error:  # whatever the model's code raises in training mode
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        skipped.append(("training mode", f"noise of other kinds is not looked for: {reason}"))
        return met, skipped
    drawn = [op for op in training.operations if op.random and op.noise not in met]
    for path, calls in Counter(op.module for op in drawn if op.module not in on).items():
        skipped.append((path or "forward", _left_out(model.get_submodule(path), path, calls)))
    return met, skipped


def _left_out(module: nn.Module, path: str, calls: int) -> str:
    """Return why noise that is drawn in a module's forward pass is left out."""
    kind = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule):
        return f"{kind}: noise inside cannot be seen; it is left out"
    if isinstance(module, (nn.AlphaDropout, nn.FeatureAlphaDropout)):
        return f"{kind}: its mean is not its input; its noise is left out"
    if isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
        return f"{kind}: the dropout inside cannot be seen; it is left out"
    if not path or list(module.children()):
        return (
            f"{calls} call(s) of functions that draw in training mode, such as functional dropout, "
            "which stay off; use modules"
        )
    return f"{kind}: not a noise overt knows; it is left out"


def drop_prob(module: Any) -> float | None:
    """Return the nominal drop probability, None for noise that has none."""
    value = getattr(module, "drop_prob", getattr(module, "p", None))
    return None if value is None else float(value)


def with_drop_prob(module: Any, p: float) -> Any:
    """Return a copy of the noise with another drop probability; None if it has none."""
    twin = copy.deepcopy(module)
    if hasattr(twin, "drop_prob"):
        twin.drop_prob = p
    elif hasattr(twin, "p"):
        twin.p = p
    else:
        return None
    return twin


def realized(module: Any, shape: tuple[int, ...], like: Tensor) -> tuple[float, float]:
    """Return the share of zeros among drawn multipliers (or weights), and its standard error.

    `shape` is that of a sample at the layer's input.
    """
    if is_weight_noise(module):
        twin = copy.deepcopy(module)
        torch.nn.init.ones_(twin.weight)
        rows = max(MASK_ROWS, min(4096, MASK_ENTRIES // twin.weight.numel()))
        with torch.no_grad():
            values = (twin._noisy_weight(rows) == 0).double().flatten(1).mean(1).cpu()
    else:
        rows = max(MASK_ROWS, min(4096, MASK_ENTRIES // max(math.prod(shape), 1)))
        dropped = []
        with switched_on([module]):
            for _ in range(0, rows, 64):  # a mask may be shared by a batch: many small ones
                ones = torch.ones(64, *shape, device=like.device)
                dropped.append((module(ones) == 0).double().flatten(1).mean(1).cpu())
        values = torch.cat(dropped)
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))


class Estimate:
    """A mean over rows with its standard error.

    Rows that share a mask are not independent; then it is passes whose spread tells the error.
    """

    def __init__(self, *, shared: bool) -> None:
        self._shared, self._rows, self._passes = shared, Mean(), Mean()

    def add(self, values: Tensor) -> None:
        """Add numbers (passes, rows)."""
        self._rows.add(values.mean(0))
        self._passes.add(values.mean(1))

    @property
    def value(self) -> float:
        """The mean."""
        return self._rows.value

    @property
    def error(self) -> float:
        """Its standard error."""
        return (self._passes if self._shared else self._rows).error


class Sampled:
    """Running estimates for some noise modules, in the order in which they are met.

    `added[i]` is what layer i adds to the loss with all layers behind it on, `total` what all of
    them add, `before_last` what all but the last add to the loss under the last one's noise.

    ROWS rows are spread over the `batches` of `size` rows; the first ones are taken where the
    number of batches is not known (0).
    """

    def __init__(
        self, model: nn.Module, modules: Sequence[nn.Module], batches: int, size: int
    ) -> None:
        self._most = -(-ROWS // batches) if batches else ROWS
        self._draws = min(max(self._most // size, 1), MAX_DRAWS) if batches else 1
        self._model, self._modules = model, list(modules)
        shared = any(_one_mask_for_a_batch(module) for module in self._modules)
        passes = -(-SHARED_DRAWS // max(batches, 1))
        if shared and self._draws < passes:
            self._draws, self._most = passes, -(-self._most // passes)
        self.added = [Estimate(shared=shared) for _ in modules]
        self.total, self.before_last = Estimate(shared=shared), Estimate(shared=shared)
        self._flows: list[Average | None] = [Average() for _ in modules]
        self.rows = 0
        self.no_flows: str | None = None

    def add(self, inputs: Inputs, targets: Targets, clean: Tensor, loss: Loss) -> None:
        """Sample masks for each row of a batch and each layer, `draws` times."""
        if self.rows >= ROWS or not self._modules:
            return
        inputs, clean = inputs.first(self._most), clean[: self._most]
        targets = targets.first(self._most)
        self.rows += len(clean) * self._draws
        last = later = clean = clean.expand(self._draws, -1)
        for i in reversed(range(len(self._modules))):
            values = later
            if not is_silent(self._modules[i]):  # else it adds nothing
                with torch.no_grad(), switched_on(self._modules[i:]):
                    values = torch.stack(
                        [targets.losses(inputs.run(self._model), loss) for _ in range(self._draws)]
                    )
            self.added[i].add(values - later)
            later = values
            last = values if i == len(self._modules) - 1 else last
        self.total.add(later - clean)
        self.before_last.add(later - last)
        for _ in range(self._draws):
            if self.no_flows is None:
                try:
                    self._add_flows(inputs)
                except RuntimeError as error:  # a forward pass may have no gradient
                    self.no_flows = str(error).splitlines()[0]

    def flows(self, i: int) -> Any:
        """Return psi of layer i, None where its units change, or where there is no gradient."""
        average = self._flows[i]
        if self.no_flows is not None or average is None or average.value is None:
            return None
        return average.value**0.5

    def _add_flows(self, inputs: Inputs) -> None:
        with torch.enable_grad(), _steps(self._modules) as met:
            output = inputs.run(self._model)
            signs = torch.randint(0, 2, output.shape, device=output.device).to(output) * 2 - 1
            steps = [step for _, _, step in met]
            if not steps:
                return
            grads = torch.autograd.grad((output * signs).sum(), steps, materialize_grads=True)
        for i, module in enumerate(self._modules):
            uses = [(h, g) for (m, h, _), g in zip(met, grads, strict=True) if m is module]
            if uses:
                self._keep(i, [_squared_flows(module, h, g) for h, g in uses], len(inputs))

    def _keep(self, i: int, uses: list[Tensor | None], n: int) -> None:
        """Add the flows of all uses of a layer, or give up where they do not match."""
        average = self._flows[i]
        known = [flows for flows in uses if flows is not None]
        shapes = {tuple(flows.shape) for flows in known}
        fits = len(known) == len(uses) and len(shapes) == 1
        if average is None or not fits or average.shape not in (None, *shapes):
            self._flows[i] = None
        else:
            average.add(torch.stack(known).sum(0), n)


@contextmanager
def _steps(modules: Sequence[nn.Module]) -> Iterator[list[tuple[nn.Module, Tensor, Tensor]]]:
    """Add zeros that ask for gradients to what the modules give out, and note their inputs."""
    met: list[tuple[nn.Module, Tensor, Tensor]] = []

    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        step = torch.zeros_like(output, requires_grad=True)
        met.append((module, args[0].detach(), step))
        return output + step

    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_hook(hook).remove)
        yield met


def _one_mask_for_a_batch(module: Any) -> bool:
    if is_weight_noise(module):
        return not getattr(module, "per_sample", False)
    return 0 in getattr(module, "shared_axes", ())


def _squared_flows(module: Any, h: Tensor, grad: Tensor) -> Tensor | None:
    """Return the sum over the batch of (h_j df/dh_j)^2, entries that share a mask added up."""
    if is_weight_noise(module):
        if h.ndim != 2 or module.weight.ndim != 2:
            return None
        return ((grad**2) @ (module.weight.detach() ** 2) * h**2).double().sum(0)
    flow = (grad * h).double()
    shared = mask_covariance_of(module, tuple(h.shape)).shared
    if shared:
        flow = flow.sum([1 + axis for axis in shared])
    return (flow**2).sum(0).flatten()
