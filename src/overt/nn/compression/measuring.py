"""What is measured of a network: size, speed, loss; and training it on."""

from __future__ import annotations

import copy
import math
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from overt._check import InputError
from overt._progress import meter
from overt._types import Floats
from overt.nn.compression.layers import TRANSPOSED, WEIGHTED
from overt.nn.data.batches import Batch, Inputs, first_line, name_failing_inputs
from overt.nn.data.losses import Loss, mean_loss
from overt.nn.data.models import disable_fast_attention, modes, restore_training
from overt.nn.data.rng import preserve_rng

CHECKS = 8
"""How often the loss is looked at during recovery."""
FEWEST_ROWS, SMALLEST_BATCH = 64, 8
"""The fewest rows, and rows of a batch, that statistics of normalizations are taken from."""
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def parameters(model: nn.Module) -> int:
    """Return the number of parameters, shared ones counted once."""
    return sum(p.numel() for p in model.parameters())


def output_of(model: nn.Module, inputs: Inputs) -> Any:
    """Return what the model makes of the inputs, its parts called one by one."""
    with torch.no_grad(), disable_fast_attention():
        return inputs.run(model)


def failure(model: nn.Module, inputs: Inputs, base: nn.Module) -> str | None:
    """Return why a pass fails, in training mode too if one of the base does not, else None."""
    for noise in (False, True):
        try:
            with torch.no_grad(), preserve_rng(), modes(model, noise=noise):
                inputs.run(model)
        except Exception as error:  # the forward pass may reach for a layer's weight or size
            if not noise or model is base or failure(base, inputs, base) is None:
                return first_line(error)
    return None


def multiply_adds(model: nn.Module, inputs: Inputs) -> tuple[int, Counter[str]]:
    """Return the multiply-adds for one example, and those of each weighted layer.

    They are half of what torch's own counter of operations finds, attention included.
    """
    spent: Counter[str] = Counter()
    size = len(inputs)

    def hook(name: str) -> Any:
        def count(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            # Each output (input, if transposed) meets one slice of the weight.
            meets = args[0] if isinstance(module, TRANSPOSED) else output
            spent[name] += meets.numel() * math.prod(module.weight.shape[1:]) // size

        return count

    counter = _Counter()
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if isinstance(module, WEIGHTED):
                stack.callback(module.register_forward_hook(hook(name)).remove)
        # Where attention is one operation on the processor the counter does not know it.
        math_only = sdpa_kernel(SDPBackend.MATH)
        for part in (
            torch.random.fork_rng(),
            restore_training(model.modules(), False),
            math_only,
            counter,
        ):
            stack.enter_context(part)
        output_of(model, inputs.like(model))
    return counter.operations // 2 // size, spent


class _Counter(TorchDispatchMode):  # type: ignore[misc]
    """Torch's own counts of operations, without its books of modules: they fail on some models."""

    operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        count = flop_registry.get(func._overloadpacket)
        if count is None and torch.is_inference_mode_enabled():
            with self:  # operations come whole there
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        result = func(*args, **kwargs)
        if count is not None:
            self.operations += count(*args, **kwargs, out_val=result)
        return result


def latencies(*models: nn.Module, inputs: Inputs, seconds: float = 0.02) -> list[float]:
    """Return the least time of a pass of each model; they take turns, so that noise hits all."""
    times: list[list[float]] = [[] for _ in models]
    given = [inputs.like(model) for model in models]
    with ExitStack() as stack:
        for context in (torch.no_grad(), torch.random.fork_rng()):
            stack.enter_context(context)
        for model in models:
            stack.enter_context(restore_training(model.modules(), False))
        start = time.perf_counter()
        while len(times[0]) < 2 or time.perf_counter() - start < seconds:
            for model, x, taken in zip(models, given, times, strict=True):
                before = time.perf_counter()
                x.run(model)
                if x.tensors[0].is_cuda:
                    torch.cuda.synchronize()
                taken.append(time.perf_counter() - before)
            if len(times[0]) >= 1000:
                break
    return [min(taken) for taken in times]


@dataclass(frozen=True)
class Score:
    """Mean loss over all examples, and the share of right classes where targets are classes."""

    loss: float
    accuracy: float | None


def score(model: nn.Module, batches: Iterable[Batch] | None, loss: Loss) -> Score | None:
    """Return how a model does on all batches, None without targets or outputs to judge."""
    if batches is None:
        return None
    total, right, count, places, classes = 0.0, 0, 0, 1, True
    with torch.no_grad():
        for where, inputs, y in batches:
            with name_failing_inputs(inputs, where):
                output = inputs.run(model)
            if y is None:
                return None
            if not callable(loss) and not isinstance(output, Tensor):
                raise InputError(
                    f"{where}: the model returns a {type(output).__name__}; say which output "
                    "counts, such as output=lambda o: o.logits"
                )
            total += float(mean_loss(output, y, loss)) * len(y)
            count += len(y)
            guesses = _guesses(output) if isinstance(output, Tensor) else None
            if loss == "cross_entropy" and guesses is not None and y.shape == output.shape:
                y = y.argmax(1)
            classes = classes and not y.is_floating_point()
            classes = classes and guesses is not None and guesses.shape == y.shape
            if classes and guesses is not None:
                right += int((guesses == y).sum())
                places = y.numel() // len(y)
    return Score(total / count, right / (count * places) if classes else None)


def loss_of(found: Score | None) -> float:
    """Return the loss, infinite where there is none."""
    return math.inf if found is None or math.isnan(found.loss) else found.loss


def _guesses(output: Tensor) -> Tensor:
    if output.ndim >= 2 and output.shape[1] > 1:
        return output.argmax(1)
    return (output.flatten() > 0).long()


def recalibrated(model: nn.Module, batches: list[Batch]) -> nn.Module | None:
    """Return a copy whose batch normalizations have the statistics of these rows in it.

    Those of the large network are not those of the smaller one. None where there are no such
    layers, or too few rows.
    """
    twin = copy.deepcopy(model)
    norms = [m for m in twin.modules() if type(m) in _NORMS and m.running_var is not None]
    rows = [len(batch.inputs) for batch in batches]
    if not norms or min(rows) < SMALLEST_BATCH or sum(rows) < FEWEST_ROWS:
        return None
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over batches
    with torch.no_grad(), restore_training(norms, True), disable_fast_attention():
        for where, inputs, _ in batches:
            with name_failing_inputs(inputs, where):
                inputs.run(twin)
    for norm, momentum in zip(norms, before, strict=True):
        norm.momentum = momentum
    return twin


def recover(
    model: nn.Module, train: Iterable[Batch], judge: Iterable[Batch], loss: Loss, *, steps: int,
    learning_rate: float,
) -> tuple[Floats, bool]:  # fmt: skip
    """Train in place with Adam; end with the best weights seen, the first ones included.

    Returns the losses on `judge` at each look, and whether Ctrl-C ended it early.
    """
    seen: list[float] = []
    best: dict[str, Tensor] = {}

    def look() -> None:
        model.eval()
        value = loss_of(score(model, judge, loss))
        if not seen or value < min(seen):
            best.update({k: v.detach().clone() for k, v in model.state_dict().items()})
        seen.append(value)
        model.train()

    interrupted = False
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise InputError("recover needs a model with parameters that require gradients")
    optimizer = torch.optim.Adam(trained, lr=learning_rate)
    try:
        with meter("recover", steps) as bar:
            look()
            done = 0
            while done < steps:
                for _, inputs, y in train:
                    if y is None:
                        raise InputError("recover needs batches (inputs, targets) to train on")
                    optimizer.zero_grad()
                    mean_loss(inputs.run(model), y, loss).backward()
                    optimizer.step()
                    done += 1
                    bar.advance()
                    if done % max(1, steps // CHECKS) == 0 or done == steps:
                        look()
                    if done == steps:
                        break
    except KeyboardInterrupt:
        interrupted = True
    if best:
        model.load_state_dict(best)
    model.eval()
    return np.array(seen), interrupted
