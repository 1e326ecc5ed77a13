"""What `compress` tells about what it did, and statements that rebuild what it made.

The recipe is plain torch, so that the state of a smaller network loads without overt.
"""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import dataclass
from typing import Any

from torch import nn

from overt._types import Floats
from overt.nn.compression.attention import Attention
from overt.nn.compression.layers import CONVOLUTION, PER_CHANNEL, TRANSPOSED
from overt.nn.compression.size import Size
from overt.nn.layers.dropconnect import DropConnectConv2d, DropConnectLinear
from overt.results import Result, Status


@dataclass(frozen=True, repr=False, eq=False)
class Change(Result):
    """What became of one layer, or of the layers whose outputs are added together.

    Attributes
    ----------
    layers
        Their names.
    kind
        "units": fewer outputs; "rank": two layers in place of one.
    before, after
        Number of units; for a rank the largest rank of the layer, and the new one.
    operator_error, frobenius_error
        Norms of the difference between the old and the new map W; |y' - y| is at most
        operator_error times |x - (mean input)| for every input x (mean 0 without data).
    data_error
        Root of the mean squared difference |y' - y| of the layer's outputs on the batches given,
        when its inputs are unchanged.
    relative_error
        data_error against the outputs' spread, or frobenius_error against |W|.
    """

    layers: tuple[str, ...]
    kind: str
    before: int
    after: int
    operator_error: float | None = None
    frobenius_error: float | None = None
    data_error: float | None = None
    relative_error: float | None = None


@dataclass(frozen=True, repr=False, eq=False)
class Compression(Result):
    """What `compress` did, and what it cost.

    Attributes
    ----------
    by, keep, of
        The way that was taken, and what was asked for: which share of what.
    reached, met, shortfall
        The share that is left (None where `keep` is of units), whether that is what was asked
        for, up to 5 per cent of it, and if not, why.
    before, after
        Both networks in numbers.
    changes
        What became smaller.
    skipped
        What did not: (layer, reason).
    tried
        With by="auto", the ways compared: (way, loss on the data), or without targets (way,
        relative change of the outputs).
    output_change
        Relative root mean square change of the outputs on the example (inf from zero).
    losses
        Held-out loss of every sub-network that was drawn (by="mask").
    recovery
        Loss before and during recovery training, if there was any.
    recipe
        Plain torch statements that turn the model, as it was built, into the smaller one, so that
        its state can be loaded without overt.
    status
        "finished", or "interrupted": then it is the best found until then.
    """

    by: str
    keep: Any
    of: str
    reached: float | None
    met: bool
    shortfall: str | None
    before: Size
    after: Size
    changes: tuple[Change, ...]
    skipped: tuple[tuple[str, str], ...]
    tried: tuple[tuple[str, float], ...]
    output_change: float
    losses: Floats
    recovery: Floats
    recipe: tuple[str, ...]
    status: Status

    @property
    def speedup(self) -> float:
        """Latency before / after."""
        return self.before.latency / self.after.latency

    def __str__(self) -> str:
        lines = [f"compressed by {self.by}, status {self.status}"]
        rows: list[tuple[str, Any, Any]] = [
            ("parameters", self.before.parameters, self.after.parameters),
            ("multiply-adds", self.before.multiply_adds, self.after.multiply_adds),
            ("latency, ms", 1e3 * self.before.latency, 1e3 * self.after.latency),
            ("loss", self.before.loss, self.after.loss),
            ("accuracy", self.before.accuracy, self.after.accuracy),
        ]
        lines += [
            f"  {name:<14}{_number(a):>14} -> {_number(b):>14}"
            for name, a, b in rows
            if a is not None and b is not None
        ]
        for change in self.changes:
            line = f"{' + '.join(change.layers)}: {change.kind} {change.before} -> {change.after}"
            if change.relative_error is not None:
                line += f", relative error {change.relative_error:.3g}"
            lines.append(f"  {line}")
        if self.tried:
            lines.append("  compared: " + ", ".join(f"{way} {v:.4g}" for way, v in self.tried))
        if self.shortfall is not None:
            lines.append(f"  not met: {self.shortfall}")
        lines += [f"  left whole: {name}: {reason}" for name, reason in self.skipped]
        return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def recipe_of(before: nn.Module, after: nn.Module) -> tuple[str, ...]:
    """Return statements that turn `model`, as it was built, into the smaller one.

    They need `torch` and `nn`; what they make has the right shapes, and takes the saved state.
    """
    lines: list[str] = []
    rebuilt: dict[int, str] = {}
    if any(isinstance(module, Attention) for module in after.modules()):
        lines.append(inspect.getsource(Attention))
    for name, module in after.named_modules(remove_duplicate=False):
        if any(name.startswith(f"{home}.") for home in rebuilt.values()):
            continue
        if id(module) in rebuilt:
            lines.append(f"model.set_submodule({name!r}, {_place(rebuilt[id(module)])})")
            continue
        old = before.get_submodule(name)
        if _constructor(module) is None:
            known = _numbers(old)
            changed = {k: n for k, n in _numbers(module).items() if known.get(k, n) != n}
            lines += [f"{_place(name)}.{key} = {n}" for key, n in changed.items()]
        if _shapes(module) == _shapes(old) and type(module) is type(old):
            continue
        expression = _constructor(module)
        if expression is not None:
            rebuilt[id(module)] = name
            lines.append(f"model.set_submodule({name!r}, {expression})")
            continue
        for key, shape in _shapes(module).items():
            if shape != _shapes(old)[key]:
                empty = f"torch.empty({shape})"
                fresh = f"nn.Parameter({empty})" if key in module._parameters else empty
                lines.append(f"{_place(name)}.{key} = {fresh}")
    return (*lines, *(_ties(after) if lines else ()))


def loading(recipe: tuple[str, ...], build: str, weights: str) -> str:
    """Return a program that builds the smaller network and loads its weights, with plain torch.

    `build` is the statement that imports or defines the function build(), which makes the
    original model; `weights` is a .safetensors file beside the program.
    """
    body = textwrap.indent("\n".join(recipe), "    ")
    return (
        '"""The smaller network with its weights; needs torch and safetensors only."""\n\n'
        "from pathlib import Path\n\nimport torch\nfrom safetensors.torch import load_file\n"
        f"from torch import nn\n\n{build}\n\n\n"
        'def load():\n    """Return the smaller network, in evaluation mode."""\n'
        f"    model = build()\n{body}\n"
        f"    model.load_state_dict(load_file(Path(__file__).with_name({weights!r})))\n"
        "    return model.eval()\n"
    )


def _ties(model: nn.Module) -> list[str]:
    """Return statements that share again the weights that different layers share."""
    homes: dict[int, str] = {}
    lines = []
    for name, module in model.named_modules():
        for key, tensor in module._parameters.items():
            if tensor is None:
                continue
            if id(tensor) in homes:
                lines.append(f"{_place(name)}.{key} = {homes[id(tensor)]}")
            homes.setdefault(id(tensor), f"{_place(name)}.{key}")
    return lines


def _numbers(module: nn.Module) -> dict[str, int]:
    """Return the whole numbers among a module's own attributes, which may count its units."""
    own = vars(module).items()
    return {k: v for k, v in own if isinstance(v, int) and k != "training"}


def _place(name: str) -> str:
    return f"model.get_submodule({name!r})" if name else "model"


def _shapes(module: nn.Module) -> dict[str, Any]:
    tensors = {**module._parameters, **module._buffers}
    return {key: None if t is None else tuple(t.shape) for key, t in tensors.items()}


def _constructor(module: nn.Module) -> str | None:
    """Return the plain torch expression that builds a layer like this one, None if it has none."""
    bias = f"bias={getattr(module, 'bias', None) is not None}"
    match module:
        case Attention():
            parts = [_constructor(part) for part in module.children()]
            rest = (module.head_dim, module.dropout, module.batch_first)
            return None if None in parts else f"Attention({', '.join(map(str, (*parts, *rest)))})"
        case nn.Sequential():
            parts = [_constructor(part) for part in module]
            return None if None in parts else f"nn.Sequential({', '.join(map(str, parts))})"
        case nn.Linear() | DropConnectLinear():
            return f"nn.Linear({module.in_features}, {module.out_features}, {bias})"
        case DropConnectConv2d():
            return f"nn.Conv2d({_convolution(module)}, {bias})"
        case _ if isinstance(module, TRANSPOSED):
            padding = f"output_padding={module.output_padding}"
            return f"nn.{_kind(module)}({_convolution(module)}, {bias}, {padding})"
        case _ if isinstance(module, CONVOLUTION):
            padding = f"padding_mode={module.padding_mode!r}"
            return f"nn.{_kind(module)}({_convolution(module)}, {bias}, {padding})"
        case _ if isinstance(module, PER_CHANNEL):
            return (
                f"nn.{_kind(module)}({module.num_features}, {module.eps}, {module.momentum}, "
                f"{module.affine}, {module.track_running_stats})"
            )
        case nn.LayerNorm():
            affine = f"{module.elementwise_affine}, {bias}"
            return f"nn.LayerNorm({module.normalized_shape}, {module.eps}, {affine})"
        case nn.RMSNorm():
            settings = f"{module.eps}, {module.elementwise_affine}"
            return f"nn.RMSNorm({module.normalized_shape}, {settings})"
        case nn.GroupNorm():
            sizes = f"{module.num_groups}, {module.num_channels}"
            return f"nn.GroupNorm({sizes}, {module.eps}, {module.affine})"
        case nn.PReLU():
            return f"nn.PReLU({module.num_parameters})"
        case nn.Embedding():
            sizes = f"{module.num_embeddings}, {module.embedding_dim}"
            return f"nn.Embedding({sizes}, {module.padding_idx})"
    return None


def _convolution(module: nn.Module) -> str:
    sizes = f"{module.in_channels}, {module.out_channels}, {module.kernel_size}, {module.stride}"
    rest = f"padding={module.padding!r}, groups={module.groups}, dilation={module.dilation}"
    return f"{sizes}, {rest}"


def _kind(module: nn.Module) -> str:
    """Return the name of torch's own class that a layer is of."""
    kinds = (*CONVOLUTION, *TRANSPOSED, *PER_CHANNEL)
    return next(kind for kind in kinds if isinstance(module, kind)).__name__
