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
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from overt._check import Floats, InputError
from overt.nn.data.batches import first_line

# What a node computes is named by a module's exact type, by a function, or by a method's name.
SUMS = frozenset(
    {
        operator.add,
        operator.sub,
        operator.iadd,
        operator.isub,
        torch.add,
        torch.sub,
        torch.cat,
        "add",
        "sub",
        "add_",
        "sub_",
    }
)
"""Affine in several values that depend on the inputs."""

FRESH = SUMS | {
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.ZeroPad2d,
    operator.neg,
    operator.mul,
    operator.truediv,
    torch.mul,
    torch.div,
    torch.mean,
    torch.sum,
    functional.linear,
    functional.conv2d,
    functional.avg_pool2d,
    functional.adaptive_avg_pool2d,
    functional.pad,
    "mean",
    "sum",
}
"""Affine in one value in evaluation mode; the result is a new tensor."""

ALIASES = frozenset(
    {
        nn.Flatten,
        nn.Unflatten,
        nn.Identity,
        nn.Dropout,
        nn.Dropout2d,
        operator.getitem,
        torch.flatten,
        functional.dropout,
        "view",
        "reshape",
        "flatten",
        "permute",
        "transpose",
        "squeeze",
        "contiguous",
    }
)
"""The result may be the value itself, or a view of it."""

RECTIFIERS = frozenset(
    {
        nn.ReLU,
        nn.LeakyReLU,
        torch.relu,
        functional.relu,
        functional.leaky_relu,
        "relu",
        "relu_",
    }
)
MAXIMA = frozenset({nn.MaxPool1d, nn.MaxPool2d})
SOFTMAXES = frozenset({nn.Softmax, functional.softmax, "softmax"})
FINAL = SOFTMAXES | {
    nn.LogSoftmax,
    functional.log_softmax,
    torch.log_softmax,
    "log_softmax",
}
IN_PLACE: dict[Any, Any] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    "add_": torch.add,
    "sub_": torch.sub,
}
"""Functions that return new tensors in place of those that change one."""

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
        try:
            traced = fx.GraphModule(model, _Tracer().trace(model))
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                "certify reads models with torch.fx, which cannot read this one: "
                + first_line(error)
            ) from None
        # Parts keep the modes that the model is attacked in: a forward may depend on them.
        traced = copy.deepcopy(traced).double().requires_grad_(False)
        if model.training:
            traced.eval()
        final = _check_nodes(traced)
        if mean is not None:
            mean = mean.double().cpu()
            std = std.double().cpu()
        shape = tuple(x.shape[1:])
        normalized = final is not None
        return cls(traced, shape, mean, std, normalized, final in SOFTMAXES)

    def run(self, x: Tensor, activation: Activation) -> Tensor:
        """Return the logits of inputs (points, ...), with `activation` in place of rectifiers."""
        if self.mean is not None and self.std is not None:
            x = (x - self.mean) / self.std
        out: Tensor = _Interpreter(self.graph, activation).run(x)
        out = out.reshape(len(x), -1)
        if out.shape[1] == 1:  # one logit stands for two, the first of them 0
            out = torch.cat([torch.zeros_like(out), out], 1)
        return out

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits of inputs in double precision."""
        return self.run(x, lambda z, slope: torch.maximum(slope * z, z))

    def outputs(self, x: Tensor) -> Tensor:
        """Return what the model itself returns: logits, or their log-softmax."""
        logits = self.logits(x)
        if self.normalized:
            return logits.log_softmax(1)
        return logits

    @cached_property
    def units(self) -> list[tuple[torch.Size, float]]:
        """The shape and the slope of each layer of rectifiers."""
        found: list[tuple[torch.Size, float]] = []

        def record(z: Tensor, slope: float) -> Tensor:
            found.append((z.shape[1:], slope))
            return z

        self.run(torch.zeros(1, *self.shape).double(), record)
        return found

    @cached_property
    def classes(self) -> int:
        """The number of logits."""
        return self.logits(torch.zeros(1, *self.shape).double()).shape[1]

    def transposed(
        self, depth: int, weights: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return weights . z of layer `depth` as a function of what feeds it.

        Nothing is rectified: hidden units are variables.
        That is a constant, weights of the inputs, and weights of the hidden units of each earlier
        layer, one row for each row of weights.
        """
        rows = len(weights)
        x = torch.zeros(rows, *self.shape).double().requires_grad_()
        hidden = [
            torch.zeros(rows, *shape).double().requires_grad_()
            for shape, _ in self.units
        ]
        layers: list[Tensor] = []

        def replace(z: Tensor, slope: float) -> Tensor:
            layers.append(z.flatten(1))
            return hidden[len(layers) - 1]

        with torch.enable_grad():
            layers.append(self.run(x, replace))
            z = layers[depth]
            # What is added gives constant layers a gradient, too.
            value = (z * weights).sum() + 0 * x.sum()
        constant = (z.detach() * weights).sum(1)
        fed = [x, *hidden[:depth]]
        found = torch.autograd.grad(value, fed, materialize_grads=True)
        first, *rest = (part.flatten(1) for part in found)
        return constant, first, rest

    @cached_property
    def dense(self) -> tuple[list[dict[int, Floats]], list[Floats]]:
        """For each layer its matrices by what they act on (0: inputs, k: layer k), and offsets."""
        maps: list[dict[int, Floats]] = []
        offsets: list[Floats] = []
        sizes = [*(shape.numel() for shape, _ in self.units), self.classes]
        for depth, size in enumerate(sizes):
            constant, first, rest = self.transposed(depth, torch.eye(size).double())
            offsets.append(constant.numpy())
            parts = enumerate([first, *rest])
            maps.append({k: part.numpy() for k, part in parts if bool(part.any())})
        return maps, offsets


def _recorded(function: Any) -> Any:
    """Return a method that records a function of two values."""
    return lambda self, other: self.tracer.create_proxy(
        "call_function", function, (self, other), {}
    )


class _Proxy(fx.Proxy):  # type: ignore[misc]
    """Records operations in place as what they are; torch's own proxies record new values."""

    __iadd__ = _recorded(operator.iadd)
    __isub__ = _recorded(operator.isub)
    __imul__ = _recorded(operator.imul)
    __itruediv__ = _recorded(operator.itruediv)


class _Tracer(fx.Tracer):  # type: ignore[misc]
    """Treats modules of known types as single operations, and reads the forward of all others."""

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Return what stands for a node's value while the model is read."""
        return _Proxy(node, self)

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

    def run_node(self, n: fx.Node) -> Any:
        """Run one node; what changes a tensor in place returns a new one."""
        kind = _kind(n)
        args, _ = self.fetch_args_kwargs_from_env(n)
        if kind in FINAL:
            return args[0]
        if kind in RECTIFIERS:
            return self._activation(args[0], _slope(n))
        if kind in MAXIMA:
            return self._pool(args[0], _module(n))
        if kind in IN_PLACE:
            return IN_PLACE[kind](*args)
        return super().run_node(n)

    def _pool(self, z: Tensor, pool: nn.Module) -> Tensor:
        """Return maxima over windows, by a tournament of pairs."""
        axes = [-1]
        if isinstance(pool, nn.MaxPool2d):
            axes = [-2, -1]
        sizes = np.broadcast_to(pool.kernel_size, len(axes)).tolist()
        steps = np.broadcast_to(pool.stride, len(axes)).tolist()
        rank = z.ndim
        for axis, size, step in zip(axes, sizes, steps, strict=True):
            z = z.unfold(rank + axis, size, step)
        players = z.flatten(rank)
        while players.shape[-1] > 1:
            half = players.shape[-1] // 2
            a = players[..., :half]
            b = players[..., half : 2 * half]
            rest = players[..., 2 * half :]
            winners = a + self._activation(b - a, 0.0)
            players = torch.cat([winners, rest], -1)
        return players.squeeze(-1)


def _refuse_hidden_code(module: nn.Module) -> None:
    """Refuse modules that may compute something else than their forward shows."""
    kind = type(module)
    hooks = module._forward_hooks or module._forward_pre_hooks
    traced = isinstance(module, fx.GraphModule)  # by torch, which gives it another call
    called = kind.__call__ is not nn.Module.__call__ and not traced
    if hooks or called or "forward" in vars(module):
        raise InputError(
            f"certify does not model hooks or a replaced forward or call, {kind.__name__} has one; "
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


def _module(node: fx.Node) -> nn.Module:
    """Return the module that a node calls."""
    return node.graph.owning_module.get_submodule(str(node.target))


def _kind(node: fx.Node) -> Any:
    """Return what a node computes, as the tables above name it."""
    if node.op == "call_module":
        return type(_module(node))
    return node.target


def _argument(node: fx.Node, name: str, default: Any) -> Any:
    """Return a setting of a module, or the second or a named argument of a function."""
    if node.op == "call_module":
        return getattr(_module(node), name, default)
    if len(node.args) > 1:
        return node.args[1]
    return node.kwargs.get(name, default)


def _slope(node: fx.Node) -> float:
    """Return the slope of a rectifier for negative inputs."""
    if _kind(node) not in (nn.LeakyReLU, functional.leaky_relu):
        return 0.0
    slope = _argument(node, "negative_slope", 0.01)
    if not isinstance(slope, (int, float)) or slope > 1:
        raise InputError(f"certify needs slopes of at most 1, got {slope}")
    return float(slope)


def _check_nodes(traced: fx.GraphModule) -> Any:
    """Refuse what is not modelled, by name; return the softmax that the graph ends in, if any."""
    varying: set[fx.Node] = set()  # whose values are tensors that depend on x
    final = None
    for node in traced.graph.nodes:
        inputs = varying.intersection(node.all_input_nodes)
        if node.op == "placeholder":
            if varying:
                raise InputError("certify needs a model with one input")
            varying.add(node)
        elif node.op == "output":
            if not isinstance(node.args[0], fx.Node):
                raise InputError(
                    "certify needs a model that returns one tensor of logits"
                )
        elif inputs and final is not None:
            raise InputError("certify models a softmax only where the model ends in it")
        elif inputs and not _is_shape(node):
            _check_node(node, varying)
            varying.add(node)
            final = _kind(node) if _kind(node) in FINAL else None
    return final


def _is_shape(node: fx.Node) -> bool:
    shapes = node.target is getattr and node.args[1] in ("shape", "ndim")
    return shapes or node.target in ("size", "dim")


def _check_node(node: fx.Node, varying: set[fx.Node]) -> None:
    """Refuse an operation that is not modelled."""
    kind = _kind(node)
    name = kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
    if kind not in FRESH | ALIASES | RECTIFIERS | MAXIMA | FINAL:
        raise _not_modelled(name)
    arguments = (*node.args, *node.kwargs.values())
    given = [arg for arg in arguments if isinstance(arg, fx.Node) and arg in varying]
    of_one = len(given) == 1 and varying.intersection(node.all_input_nodes) == {*given}
    first = kind in (operator.mul, torch.mul) or given[:1] == [*node.args[:1]]
    if kind not in SUMS and not (of_one and first):
        raise _not_modelled(f"{name} of two values that depend on the inputs")
    functions = kind is functional.dropout and node.kwargs.get("training", True)
    if functions or (kind in (nn.Dropout, nn.Dropout2d) and _module(node).training):
        raise _not_modelled("dropout that is switched on")
    if kind in RECTIFIERS:
        _slope(node)
    if kind in FINAL and _argument(node, "dim", None) not in (1, -1):
        raise _not_modelled("a softmax that is not over the classes")
    if kind in MAXIMA:
        pool = _module(node)
        plain = pool.padding in (0, (0, 0)) and pool.dilation in (1, (1, 1))
        if not plain or pool.ceil_mode or pool.return_indices:
            raise _not_modelled(f"{name} with padding, dilation, ceil_mode or indices")
    in_place = kind in IN_PLACE or kind == "relu_"
    in_place = in_place or (kind in RECTIFIERS and _inplace(node))
    if in_place and not _is_used_once(node.args[0]):
        raise _not_modelled(f"{name} in place, on a value that is used elsewhere")


def _is_used_once(value: fx.Node) -> bool:
    """Return whether a value is a new tensor that nothing else sees, or a view of one."""
    while _kind(value) in ALIASES and len(value.users) == 1:
        value = value.args[0]
    return _kind(value) in FRESH | MAXIMA and len(value.users) == 1


def _inplace(node: fx.Node) -> bool:
    module = _module(node) if node.op == "call_module" else None
    return bool(getattr(module, "inplace", node.kwargs.get("inplace")))


def _not_modelled(what: str) -> InputError:
    return InputError(
        f"certify does not model {what}; it models linear and convolution layers, batch "
        "normalization, pooling, additions, ReLU and LeakyReLU, exactly of PyTorch's own classes"
    )
