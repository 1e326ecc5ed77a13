"""The graph of a model's forward pass, or of the parts of it that can be traced."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from overt.nn.layers.base import NoiseLayer
from overt.nn.recording.modes import slow_attention

Inputs = tuple[Any, ...]


@dataclass(frozen=True)
class Region:
    """A part of the model (all of it, if `prefix` is empty) as a graph with shapes on its nodes."""

    prefix: str
    module: nn.Module
    graph: fx.Graph


@dataclass(frozen=True)
class Calls:
    """How often each module was called on the example, and with what, if by place alone."""

    count: Counter[str]
    inputs: dict[str, Inputs]


def regions(model: nn.Module, inputs: Inputs, calls: Calls) -> tuple[list[Region], dict[str, str]]:
    """Return the traceable parts of a model, and the parts that are not, with reasons."""
    found: list[Region] = []
    failed: dict[str, str] = {}

    def visit(prefix: str, module: nn.Module, given: Inputs | None) -> None:
        if not any(True for _ in module.children()):
            return
        if given is not None:
            try:
                found.append(Region(prefix, module, _traced(module, given)))
                return
            except Exception as error:  # forward passes raise anything on symbols
                failed[prefix or type(module).__name__] = str(error).splitlines()[0][:160]
        for name, child in module.named_children():
            path = f"{prefix}.{name}" if prefix else name
            visit(path, child, calls.inputs.get(path) if calls.count[path] == 1 else None)

    visit("", model, inputs)
    return found, failed


def record_calls(model: nn.Module, inputs: Inputs) -> Calls:
    """Run the example and note every call of a module."""
    count: Counter[str] = Counter()
    seen: dict[str, Inputs] = {}

    def hook(name: str) -> Any:
        def note(module: nn.Module, args: Any, kwargs: Any) -> None:
            count[name] += 1
            if not kwargs:
                seen[name] = args

        return note

    handles = [
        module.register_forward_pre_hook(hook(name), with_kwargs=True)
        for name, module in model.named_modules(remove_duplicate=False)
        if name
    ]
    with observing(handles), slow_attention():
        model(*inputs)
    return Calls(count, seen)


@contextmanager
def observing(handles: Iterable[Any]) -> Iterator[None]:
    """Run without gradients while hooks watch, and remove them afterwards."""
    try:
        with torch.no_grad():
            yield
    finally:
        for handle in handles:
            handle.remove()


class _Tracer(fx.Tracer):  # type: ignore[misc]
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, NoiseLayer) or super().is_leaf_module(m, module_qualified_name)


class _Shapes(fx.Interpreter):  # type: ignore[misc]
    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        n.meta["shape"] = tuple(result.shape) if isinstance(result, Tensor) else None
        return result


def _traced(module: nn.Module, inputs: Inputs) -> fx.Graph:
    """Trace with the arguments that the example leaves out at their defaults."""
    parameters = list(inspect.signature(module.forward).parameters.values())
    concrete = {
        p.name: p.default
        for p in parameters[len(inputs) :]
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    graph = _Tracer().trace(module, concrete_args=concrete or None)
    given = [*inputs, *concrete.values()]
    with torch.no_grad(), slow_attention():
        output = _Shapes(module, graph=graph).run(*given)
        expected = module(*inputs)
    if not same(output, expected):
        raise ValueError("its trace does not give the module's output")
    return graph


def same(a: Any, b: Any, tolerance: float = 1e-4) -> bool:
    """Whether two outputs agree up to rounding, relative to their size."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape:
            return False
        if not a.is_floating_point():
            return bool(torch.equal(a, b))
        scale = float(b.abs().max()) if b.numel() else 0.0
        tolerance = max(tolerance, 20 * torch.finfo(a.dtype).eps)
        return bool(torch.allclose(a, b, rtol=tolerance, atol=tolerance * max(scale, 1e-30)))
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b) or (a is None and b is None)
