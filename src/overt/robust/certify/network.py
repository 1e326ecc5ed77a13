"""A PyTorch model as affine maps with rectifiers between them, read by torch.fx.

    z_k = A_k(x, h_1, ..., h_(k-1)),   h_k = max(slope_k z_k, z_k),   logits = A(x, h_1, ..., h_n)

Every A is affine. Residual additions are affine maps of several h. A maximum is an affine map and a
rectifier, max(a, b) = a + max(b - a, 0), so that max pooling is a tournament of such pairs. What is
not on the lists below is refused by name; what is on them is compared with the model itself before
anything is certified.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from overt._check import InputError
from overt._types import Floats

AFFINE_MODULES = frozenset(
    {
        nn.Linear,
        nn.Conv1d,
        nn.Conv2d,
        nn.Conv3d,
        nn.ConvTranspose1d,
        nn.ConvTranspose2d,
        nn.BatchNorm1d,
        nn.BatchNorm2d,
        nn.BatchNorm3d,
        nn.AvgPool1d,
        nn.AvgPool2d,
        nn.AdaptiveAvgPool1d,
        nn.AdaptiveAvgPool2d,
        nn.ConstantPad2d,
        nn.ZeroPad2d,
        nn.Upsample,
    }
)
"""Exact types whose output is a new tensor, affine in the input in evaluation mode."""

ALIAS_MODULES = frozenset(
    {nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout, nn.Dropout2d}
)
"""Exact types whose output may be the input itself, or a view of it."""

MAXIMUM_MODULES = frozenset({nn.MaxPool1d, nn.MaxPool2d})
FINAL_MODULES = frozenset({nn.LogSoftmax, nn.Softmax})

SUMS = frozenset(
    {operator.add, operator.sub, operator.iadd, operator.isub, torch.add, torch.sub}
)
PRODUCTS = frozenset({operator.mul, operator.truediv, torch.mul, torch.div})
AFFINE_FUNCTIONS = frozenset(
    {
        operator.neg,
        torch.cat,
        torch.mean,
        torch.sum,
        functional.linear,
        functional.conv1d,
        functional.conv2d,
        functional.avg_pool2d,
        functional.adaptive_avg_pool2d,
        functional.pad,
    }
)
ALIAS_FUNCTIONS = frozenset({operator.getitem, torch.flatten, functional.dropout})
RECTIFIERS = frozenset({torch.relu, functional.relu, functional.leaky_relu})
FINAL_FUNCTIONS = frozenset(
    {functional.log_softmax, torch.log_softmax, functional.softmax}
)
SUM_METHODS = frozenset({"add", "sub", "add_", "sub_"})
AFFINE_METHODS = frozenset({"mean", "sum", "neg", "contiguous"})
ALIAS_METHODS = frozenset(
    {"view", "reshape", "flatten", "permute", "transpose", "squeeze"}
)
SHAPE_METHODS = frozenset({"size", "dim"})

Activation = Callable[[Tensor, float], Tensor]
"""Takes the inputs of rectifiers and their slope, and returns what stands for the outputs."""


@dataclass(frozen=True, eq=False)
class ReluNetwork:
    """A model as an fx graph of affine operations and rectifiers, in double precision.

    `mean` and `std` are taken from the inputs first. A network with one logit counts as two with
    logits (0, f). `normalized` says that the model ends in a (log-)softmax, which is left out.
    """

    graph: fx.GraphModule
    shape: tuple[int, ...]  # of one input
    mean: Tensor | None
    std: Tensor | None
    normalized: bool
    probabilities: bool  # whether it ends in a softmax, and not in its logarithm

    @classmethod
    def trace(
        cls, model: Any, x: Tensor, mean: Any = None, std: Any = None
    ) -> ReluNetwork:
        """Read a model, or refuse it with the name of what is not modelled."""
        for module in model.modules():
            _refuse_hidden_code(module)
        model = copy.deepcopy(model).double().eval().requires_grad_(False)
        try:
            traced = fx.GraphModule(model, _Tracer().trace(model))
        except InputError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(
                f"certify reads models with torch.fx, which cannot read this one: {reason}"
            ) from None
        final = _check_nodes(traced)
        softmax = final is not None and _is_softmax(final, traced)
        if mean is not None:
            mean, std = mean.double().cpu(), std.double().cpu()
        found = cls(traced, tuple(x.shape[1:]), mean, std, final is not None, softmax)
        try:
            found.logits(x[:1].cpu().double())
        except InputError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"certify cannot evaluate this model: {reason}") from None
        return found

    def run(self, x: Tensor, activation: Activation) -> Tensor:
        """Return the logits of inputs (points, ...), with `activation` in place of rectifiers."""
        if self.mean is not None and self.std is not None:
            x = (x - self.mean) / self.std
        out: Tensor = _Interpreter(self.graph, activation).run(x)
        out = out.flatten(1)
        if out.shape[1] == 1:  # one logit stands for two, the first of them 0
            out = torch.cat([torch.zeros_like(out), out], 1)
        return out

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits of inputs in double precision."""
        return self.run(x, lambda z, slope: torch.maximum(slope * z, z))

    def outputs(self, x: Tensor) -> Tensor:
        """Return what the model itself returns: logits, or their log-softmax."""
        logits = self.logits(x)
        return logits.log_softmax(1) if self.normalized else logits

    @cached_property
    def units(self) -> list[tuple[torch.Size, float]]:
        """The shape and the slope of each layer of rectifiers."""
        found: list[tuple[torch.Size, float]] = []

        def record(z: Tensor, slope: float) -> Tensor:
            found.append((z.shape[1:], slope))
            return z

        self.run(torch.zeros(1, *self.shape).double(), record)
        return found

    @property
    def slopes(self) -> tuple[float, ...]:
        """The slope of each layer of rectifiers for negative inputs."""
        return tuple(slope for _, slope in self.units)

    @cached_property
    def classes(self) -> int:
        """The number of logits."""
        return self.logits(torch.zeros(1, *self.shape).double()).shape[1]

    def entries(self) -> int:
        """Return an upper bound on the number of entries of all matrices."""
        sizes = [
            torch.Size(self.shape).numel(),
            *(shape.numel() for shape, _ in self.units),
        ]
        total = 0
        for k, size in enumerate([*sizes[1:], self.classes]):
            total += size * sum(sizes[: k + 1])
        return total

    def affine(self, depth: int, x: Tensor, hidden: Sequence[Tensor]) -> Tensor:
        """Return z of layer `depth`, or the logits after the last, as a map of x and hidden units.

        Nothing is rectified: hidden units are the given ones.
        """
        count = 0

        def given(z: Tensor, slope: float) -> Tensor:
            nonlocal count
            if count == depth:
                raise _Reached(z)
            count += 1
            return hidden[count - 1]

        try:
            return self.run(x, given)
        except _Reached as reached:
            return reached.z.flatten(1)

    def zeros(self, rows: int, depth: int) -> tuple[Tensor, list[Tensor]]:
        """Return inputs and hidden units that are 0, with gradients, for the layers before one."""
        x = torch.zeros(rows, *self.shape).double().requires_grad_()
        hidden = [
            torch.zeros(rows, *shape).double().requires_grad_()
            for shape, _ in self.units[:depth]
        ]
        return x, hidden

    def transposed(
        self, depth: int, weights: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor | None]]:
        """Return weights . z of layer `depth` as a function of what feeds it.

        That is a constant, weights of the inputs, and weights of the hidden units of each earlier
        layer (None for layers that do not feed it), one row for each row of weights.
        """
        x, hidden = self.zeros(len(weights), depth)
        with torch.enable_grad():
            z = self.affine(depth, x, hidden)
            value = (z * weights).sum()
        constant = (z.detach() * weights).sum(1)
        if not value.requires_grad:
            return constant, torch.zeros_like(x).flatten(1), [None] * depth
        found = torch.autograd.grad(value, [x, *hidden], allow_unused=True)
        first = torch.zeros_like(x) if found[0] is None else found[0]
        rest = [None if part is None else part.flatten(1) for part in found[1:]]
        return constant, first.flatten(1), rest

    def dense(self) -> tuple[list[dict[int, Floats]], list[Floats]]:
        """Return matrices by what they act on (0: inputs, k: hidden layer k), and offsets."""
        maps: list[dict[int, Floats]] = []
        offsets: list[Floats] = []
        sizes = [*(shape.numel() for shape, _ in self.units), self.classes]
        for depth, size in enumerate(sizes):
            constant, first, rest = self.transposed(depth, torch.eye(size).double())
            offsets.append(constant.numpy().copy())
            found = {0: first.numpy().copy()}
            found |= {
                k + 1: part.numpy().copy()
                for k, part in enumerate(rest)
                if part is not None and bool(part.any())
            }
            maps.append({k: part for k, part in found.items() if part.any() or k == 0})
        return maps, offsets


class _Reached(Exception):  # noqa: N818  (ends an evaluation, and is no error)
    def __init__(self, z: Tensor) -> None:
        super().__init__()
        self.z = z


class _Tracer(fx.Tracer):  # type: ignore[misc]
    """Treats modules of known types as single operations, and reads the forward of all others."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module is one operation."""
        return (
            m.__class__.__module__.startswith("torch.nn")
            and type(m) is not nn.Sequential
        )


class _Interpreter(fx.Interpreter):  # type: ignore[misc]
    """Runs a graph with rectifiers and maxima replaced; a final softmax is left out."""

    def __init__(self, graph: fx.GraphModule, activation: Activation) -> None:
        super().__init__(graph)
        self._activation = activation

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Run a module."""
        module = self.fetch_attr(target)
        kind = type(module)
        if kind in FINAL_MODULES:
            return args[0]
        if kind in (nn.ReLU, nn.LeakyReLU):
            return self._activation(
                args[0], float(getattr(module, "negative_slope", 0.0))
            )
        if kind in MAXIMUM_MODULES:
            return self._pool(
                args[0], module.kernel_size, module.stride, kind is nn.MaxPool2d
            )
        return super().call_module(target, args, kwargs)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Run a function; what changes a tensor in place returns a new one."""
        if target in FINAL_FUNCTIONS:
            return args[0]
        if target in RECTIFIERS:
            slope = 0.0
            if target is functional.leaky_relu:
                slope = float(
                    args[1] if len(args) > 1 else kwargs.get("negative_slope", 0.01)
                )
            return self._activation(args[0], slope)
        target = {operator.iadd: operator.add, operator.isub: operator.sub}.get(
            target, target
        )
        return super().call_function(target, args, kwargs)

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Run a method; what changes a tensor in place returns a new one."""
        if target in ("relu", "relu_"):
            return self._activation(args[0], 0.0)
        if target in ("softmax", "log_softmax"):
            return args[0]
        return super().call_method(target.rstrip("_"), args, kwargs)

    def _pool(self, z: Tensor, kernel: Any, stride: Any, plane: bool) -> Tensor:
        """Return maxima over windows, by a tournament of pairs."""
        axes = (-2, -1) if plane else (-1,)
        sizes = kernel if isinstance(kernel, tuple) else (kernel,) * len(axes)
        steps = stride if isinstance(stride, tuple) else (stride,) * len(axes)
        rank = z.ndim
        for axis, size, step in zip(axes, sizes, steps, strict=True):
            z = z.unfold(rank + axis, size, step)
        players = z.flatten(rank)
        while players.shape[-1] > 1:
            half = players.shape[-1] // 2
            a, b = players[..., :half], players[..., half : 2 * half]
            winners = a + self._activation(b - a, 0.0)
            players = torch.cat([winners, players[..., 2 * half :]], -1)
        return players.squeeze(-1)


def _refuse_hidden_code(module: nn.Module) -> None:
    """Refuse modules that may compute something else than their forward shows."""
    kind = type(module)
    hooks = module._forward_hooks or module._forward_pre_hooks
    if hooks or "forward" in vars(module):
        raise InputError(
            f"certify does not model hooks or a replaced forward, {kind.__name__} has one; "
            "remove it, or the reparametrization that added it"
        )
    if getattr(module, "running_mean", 0) is None:
        raise InputError(
            f"certify needs running statistics, {kind.__name__} uses those of the batch"
        )
    plain = (Tensor, nn.Parameter, nn.Buffer)
    if any(
        type(t) not in plain
        for t in (*module.parameters(False), *module.buffers(False))
    ):
        raise InputError(f"certify needs plain tensors as weights of {kind.__name__}")


def _check_nodes(traced: fx.GraphModule) -> fx.Node | None:
    """Refuse what is not modelled, by name; return the softmax that the graph ends in, if any."""
    depends: dict[
        fx.Node, bool
    ] = {}  # whether a node's value is a tensor that varies with x
    final: fx.Node | None = None
    for node in traced.graph.nodes:
        given = [depends[arg] for arg in node.all_input_nodes]
        if node.op == "placeholder":
            if any(depends.values()):
                raise InputError("certify needs a model with one input")
            depends[node] = True
        elif node.op == "get_attr":
            depends[node] = False
        elif node.op == "output":
            if not isinstance(node.args[0], fx.Node):
                raise InputError(
                    "certify needs a model that returns one tensor of logits"
                )
            if final is not None and node.args[0] is not final:
                raise InputError(
                    "certify models a softmax only where the model ends in it"
                )
        elif not any(given):  # shapes and constants
            depends[node] = False
        elif final is not None:
            raise InputError("certify models a softmax only where the model ends in it")
        else:
            depends[node] = _check_node(node, traced, depends)
            if _is_final(node, traced):
                final = node
    return final


def _check_node(
    node: fx.Node, traced: fx.GraphModule, depends: dict[fx.Node, bool]
) -> bool:
    """Refuse an operation that is not modelled; return whether its value varies with x."""
    if node.op == "call_module":
        _check_module(node, traced.get_submodule(str(node.target)))
        return True
    target = node.target
    name = (
        target if isinstance(target, str) else getattr(target, "__name__", str(target))
    )
    if node.op == "call_method":
        if target in SHAPE_METHODS:
            return False
        in_place = target in ("add_", "sub_", "relu_")
        known = (
            SUM_METHODS | AFFINE_METHODS | ALIAS_METHODS | {"relu", "relu_", "softmax"}
        )
        if target not in known | {"log_softmax"}:
            raise _not_modelled(name)
    else:
        if target is getattr and node.args[1] in ("shape", "ndim"):
            return False
        in_place = target in (operator.iadd, operator.isub) or bool(
            node.kwargs.get("inplace")
        )
        known_functions = (
            SUMS | AFFINE_FUNCTIONS | ALIAS_FUNCTIONS | RECTIFIERS | FINAL_FUNCTIONS
        )
        if target in PRODUCTS:
            divides = target in (operator.truediv, torch.div)
            varying = [
                arg for arg in node.args if isinstance(arg, fx.Node) and depends[arg]
            ]
            if len(varying) > 1 or node.kwargs or (divides and node.args[1] in varying):
                raise _not_modelled(f"{name} of two values that depend on the inputs")
        elif target not in known_functions:
            raise _not_modelled(name)
        if target is functional.dropout and node.kwargs.get("training", True):
            raise _not_modelled("dropout that is switched on")
        others = (*node.args[1:], *node.kwargs.values())
        weights = [arg for arg in others if isinstance(arg, fx.Node)]
        weighted = (functional.linear, functional.conv1d, functional.conv2d)
        if target in weighted and any(depends[arg] for arg in weights):
            raise _not_modelled(f"{name} with weights that depend on the inputs")
        if target is functional.leaky_relu:
            slope = (
                node.args[1]
                if len(node.args) > 1
                else node.kwargs.get("negative_slope", 0.01)
            )
            _check_slope(slope)
    if in_place and not _owned(node.args[0], traced):
        raise _not_modelled(f"{name} in place, on a value that is used elsewhere")
    return True


def _check_module(node: fx.Node, module: nn.Module) -> None:
    kind = type(module)
    if kind in MAXIMUM_MODULES:
        plain = module.padding in (0, (0, 0)) and module.dilation in (1, (1, 1))
        if not plain or module.ceil_mode or module.return_indices:
            raise _not_modelled(
                f"{kind.__name__} with padding, dilation, ceil_mode or indices"
            )
    elif kind in (nn.ReLU, nn.LeakyReLU):
        _check_slope(getattr(module, "negative_slope", 0.0))
        if module.inplace and not _owned(node.args[0], node.graph.owning_module):
            raise _not_modelled(
                f"{kind.__name__} in place, on a value that is used elsewhere"
            )
    elif kind not in AFFINE_MODULES | ALIAS_MODULES | FINAL_MODULES:
        raise _not_modelled(kind.__name__)


def _check_slope(slope: Any) -> None:
    if not isinstance(slope, (int, float)) or slope > 1:
        raise InputError(f"certify needs slopes of at most 1, got {slope}")


def _owned(node: Any, traced: fx.GraphModule) -> bool:
    """Return whether changing a node's value in place changes nothing else that is used."""
    if not isinstance(node, fx.Node) or len(node.users) > 1:
        return False
    if node.op == "call_module":
        kind = type(traced.get_submodule(str(node.target)))
        if kind in ALIAS_MODULES:
            return _owned(node.args[0], traced)
        return kind in AFFINE_MODULES | MAXIMUM_MODULES
    if node.op == "call_method" and node.target in ALIAS_METHODS:
        return _owned(node.args[0], traced)
    if node.op == "call_function" and node.target in ALIAS_FUNCTIONS:
        return _owned(node.args[0], traced)
    fresh = node.op == "call_function" and node.target in SUMS | AFFINE_FUNCTIONS
    return fresh or (
        node.op == "call_method" and node.target in ("add", "sub", "mean", "sum")
    )


def _is_final(node: fx.Node, traced: fx.GraphModule) -> bool:
    """Return whether a node is a softmax over the classes."""
    if node.op == "call_module":
        module = traced.get_submodule(str(node.target))
        if type(module) not in FINAL_MODULES:
            return False
        axis = module.dim
    elif node.target in FINAL_FUNCTIONS or node.target in ("softmax", "log_softmax"):
        axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    else:
        return False
    if axis not in (1, -1):
        raise _not_modelled("a softmax that is not over the classes")
    return True


def _is_softmax(node: fx.Node, traced: fx.GraphModule) -> bool:
    if node.op == "call_module":
        return type(traced.get_submodule(str(node.target))) is nn.Softmax
    return node.target in (functional.softmax, "softmax")


def _not_modelled(what: str) -> InputError:
    return InputError(
        f"certify does not model {what}; it models linear and convolution layers, batch "
        "normalization, pooling, additions, ReLU and LeakyReLU, exactly of PyTorch's own classes"
    )
