"""What `compress` tells about what it did, and statements that rebuild what it made.

The recipe is plain torch, so that the state of a smaller network loads without overt.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from overt._types import Floats
from overt.nn.compression.attention import Attention
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
class Size(Result):
    """A network in numbers.

    Attributes
    ----------
    parameters
        Number of parameters, shared ones once.
    multiply_adds
        For one example, as torch.utils.flop_counter counts them (half of its operations):
        convolutions and products of matrices, attention included; recurrent layers are not.
    latency
        Least seconds of a pass of the example, measured in turns with the other network.
    loss, accuracy
        On the batches given; None without them (or without classes).

    Multiply-adds and latency that `compress` does not need are measured when they are first read
    (printing, `to_dict` and `save` do), of both networks as they are then; until that the report
    refers to the networks.
    """

    parameters: int
    multiply_adds: int
    latency: float
    loss: float | None
    accuracy: float | None

    def __getattr__(self, name: str) -> Any:  # only for what is not there
        if name not in type(self).__dataclass_fields__ or "_later" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        vars(self)["_later"](name)
        return vars(self)[name]

    def measured_with(self, *others: Size, **later: Callable[[], Sequence[float]]) -> None:
        """Take fields away until one of them is read: then what is given measures all sizes."""
        sizes = (self, *others)

        def measured(name: str) -> None:
            for size, value in zip(sizes, later[name](), strict=True):
                vars(size)[name] = value

        for size in sizes:
            for name in later:
                vars(size).pop(name)
            vars(size)["_later"] = measured

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


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
    loss, loss_guessed
        What `before.loss` and `after.loss` are, None without targets; and whether it was guessed
        from the targets (loss="auto").
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
    loss: str | None
    loss_guessed: bool
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
        if self.loss is not None:
            guess = ", guessed from the targets; loss= chooses another" if self.loss_guessed else ""
            lines.append(f"  the loss is {self.loss}{guess}")
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
    parts = dict(before.named_modules(remove_duplicate=False))
    for name, module in after.named_modules(remove_duplicate=False):
        if any(name.startswith(f"{home}.") for home in rebuilt.values()):
            continue
        if id(module) in rebuilt:
            lines.append(f"model.set_submodule({name!r}, {_place(rebuilt[id(module)])})")
            continue
        old, shapes = parts[name], _shapes(module)
        changed = {k: n for k, n in _numbers(module).items() if vars(old).get(k, n) != n}
        same = type(module) is type(old) and shapes == _shapes(old)
        if same and not changed:
            continue
        expression = _constructor(module)
        if expression is not None:
            rebuilt[id(module)] = name
            lines.append(f"model.set_submodule({name!r}, {expression})")
            continue
        lines += [f"{_place(name)}.{key} = {n!r}" for key, n in changed.items()]
        known = _shapes(old)
        for key, shape in shapes.items():
            if shape != known[key]:
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


def _numbers(module: nn.Module) -> dict[str, Any]:
    """Return the numbers and sizes among a module's attributes, which may count its units."""
    own = vars(module).items()
    return {k: v for k, v in own if type(v) in (int, tuple) and k != "training"}


def _place(name: str) -> str:
    return f"model.get_submodule({name!r})" if name else "model"


def _shapes(module: nn.Module) -> dict[str, Any]:
    tensors = {**module._parameters, **module._buffers}
    return {key: None if t is None else tuple(t.shape) for key, t in tensors.items()}


def _constructor(module: nn.Module) -> str | None:
    """Return the plain torch expression that builds a layer like this one, None if it has none."""
    match module:
        case Attention() | nn.Sequential() if type(module) in (Attention, nn.Sequential):
            parts = [_constructor(part) for part in module.children()]
            if None in parts:
                return None
            if isinstance(module, Attention):
                parts += map(repr, (module.head_dim, module.dropout, module.batch_first))
            kind = "Attention" if isinstance(module, Attention) else "nn.Sequential"
            return f"{kind}({', '.join(map(str, parts))})"
        case DropConnectLinear():
            return f"nn.Linear({nn.Linear.extra_repr(module)})"
        case DropConnectConv2d():
            names = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation")
            sizes = *(getattr(module, n) for n in names), module.groups, module.bias is not None
            return f"nn.Conv2d{sizes}"
    own = type(module).__module__.startswith("torch.nn.modules") and not [*module.children()]
    return f"nn.{_words(repr(module))}" if own else None


def _words(settings: str) -> str:
    """Return settings as torch prints them, with quotes around words."""
    return re.sub(r"=([a-z]\w*)", r"='\1'", settings)
