"""What is measured of a network: size, speed, loss, moments of its layers; and training it on."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
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
from overt.nn.compression.layers import LINEAR, TRANSPOSED, WEIGHTED, is_a
from overt.nn.given.batches import Batch, Inputs, running
from overt.nn.given.losses import Loss, mean_loss
from overt.nn.recording.modes import slow_attention, switched

WIDEST = 4096
"""The most features of which the whole second moment is kept; beyond, its diagonal."""
ROWS = 8192
"""The most rows of a batch (positions of a convolution count) on which moments are measured."""
SHRINKAGE = 0.01
"""Ridge of a prediction, in units of the mean variance times units / examples."""
CHECKS = 8
"""How often the loss is looked at during recovery."""


def parameters(model: nn.Module) -> int:
    """Return the number of parameters, shared ones counted once."""
    return sum(p.numel() for p in model.parameters())


def output_of(model: nn.Module, inputs: Inputs) -> Any:
    """Return what the model makes of the inputs, its parts called one by one."""
    with torch.no_grad(), slow_attention():
        return inputs.run(model)


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

    handles = [
        module.register_forward_hook(hook(name))
        for name, module in model.named_modules()
        if isinstance(module, WEIGHTED)
    ]
    counter = _Counter()
    # Where attention is one operation on the processor the counter does not know it.
    with (
        _observing(handles), torch.random.fork_rng(), switched(model.modules(), False),
        sdpa_kernel(SDPBackend.MATH), counter,
    ):  # fmt: skip
        output_of(model, inputs.like(model))
    return counter.operations // 2 // size, spent


class _Counter(TorchDispatchMode):  # type: ignore[misc]
    """Torch's own counts of operations, without its books of modules, which take longer."""

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
            stack.enter_context(switched(model.modules(), False))
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
            with running(inputs, where):
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


class Moments:
    """Mean and second moments of rows (samples, features) that come in batches.

    The rows themselves are kept while there are fewer than features, which is less to compute with.
    """

    def __init__(self) -> None:
        self.count = 0
        self._sum: Any = 0.0
        self._squares: Any = 0.0
        self._outer: Any = None
        self._rows: list[Tensor] = []

    def add(self, x: Tensor) -> None:
        """Add rows; of very many, some that are spread over all."""
        if len(x) > ROWS:
            x = x[torch.linspace(0, len(x) - 1, ROWS, device=x.device).long()]
        wide, width = x.double(), x.shape[1]
        self.count += len(x)
        self._sum = self._sum + wide.sum(0)
        if width > WIDEST:
            self._squares = self._squares + (wide * wide).sum(0)
        elif self.count < width:
            self._rows.append(wide)
        else:
            wide, self._rows = torch.cat([*self._rows, wide]), []
            # Sums of products of the given format are dear in a wider one, and round little.
            few = len(wide) * width**2 < 2**26
            outer = wide.T @ wide if few else (wide.to(x).T @ wide.to(x)).double()
            self._outer = outer if self._outer is None else self._outer + outer

    def mean(self) -> Tensor:
        """E x."""
        return self._sum / self.count

    def squares(self) -> Tensor:
        """E x_i^2."""
        if self._rows:
            return torch.cat(self._rows).square().sum(0) / self.count
        squares = self._squares if self._outer is None else self._outer.diagonal()
        return squares / self.count

    def covariance(self) -> Tensor | None:
        """E (x - E x)(x - E x)', None for very wide rows."""
        if self._rows:
            rows = torch.cat(self._rows) - self.mean()
            return rows.T @ rows / self.count
        if self._outer is None:
            return None
        return self._outer / self.count - torch.outer(self.mean(), self.mean())

    def prediction(self, S: Tensor, R: Tensor, *, centered: bool) -> tuple[Tensor, ...]:
        """Return the factors of B in x_R ~ B x_S, shrunk where rows are few; () if there is none.

        With M the second moments, or covariances if `centered`, B = M_RS (M_SS + t I)^-1; and
        B = A_R' (A_S A_S' + n t I)^-1 A_S from fewer rows A than units.
        """
        shift, n = (self.mean() if centered else torch.zeros_like(self._sum)), self.count
        if not len(S) or (self._outer is None and not self._rows):
            return ()
        if self._rows:
            A = torch.cat(self._rows) - shift
            left, right = A.index_select(1, R).T / n, A.index_select(1, S)
            inner, trace = right @ right.T / n, float(right.square().sum()) / n
        else:
            rows = self._outer.index_select(0, S)
            inner = rows.index_select(1, S) / n - torch.outer(shift[S], shift[S])
            right = rows.index_select(1, R) / n - torch.outer(shift[S], shift[R])
            trace = float(inner.trace())
        ridge = trace / len(S) * max(1e-6, SHRINKAGE * len(S) / n)
        if ridge <= 0:
            return ()
        inner.diagonal().add_(ridge)
        solved = torch.linalg.solve(inner, right)
        return (left, solved) if self._rows else (solved.T,)


def collect(
    model: nn.Module, names: Mapping[str, int] | Iterable[str], batches: Iterable[Batch], *,
    outputs: bool,
) -> dict[str, Moments]:  # fmt: skip
    """Run batches through the model; return moments of the named layers' inputs or outputs.

    Features are the last axis of linear layers and the channels of the others; with a number n
    for a layer, n of them in turn are one feature at n places.
    """
    moments = {name: Moments() for name in names}
    places = names if isinstance(names, Mapping) else {}

    def hook(name: str) -> Any:
        def note(module: nn.Module, args: tuple[Tensor, ...], output: Any = None) -> None:
            axis = -1 if is_a(module, LINEAR) else 1
            x = output if outputs else args[0]
            x, n = x.movedim(axis, -1).flatten(0, -2), places.get(name, 1)
            moments[name].add(x if n == 1 else x.unflatten(-1, (-1, n)).mT.flatten(0, -2))

        return note

    handles = []
    for name in moments:
        module = model.get_submodule(name)
        register = module.register_forward_hook if outputs else module.register_forward_pre_hook
        handles.append(register(hook(name)))
    with _observing(handles), slow_attention():
        for where, inputs, _ in batches:
            with running(inputs, where):
                inputs.run(model)
    return moments


@contextmanager
def _observing(handles: Iterable[Any]) -> Iterator[None]:
    """Run without gradients while hooks watch, and remove them afterwards."""
    try:
        with torch.no_grad():
            yield
    finally:
        for handle in handles:
            handle.remove()


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
