"""A model as a list of steps, so that moments can be carried through it in place of values."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, fx, nn

from overt._check import InputError
from overt.nn.layers.recognized import is_silent, known_noise
from overt.nn.noisy import Noisy
from overt.nn.rules import Unsupported, call, module_call


@dataclass(frozen=True)
class Step:
    """One operation: what it is, on which earlier results, and whether the model returns it."""

    op: str
    target: Any
    args: Any
    kwargs: Any
    name: str
    last_use_of: tuple[str, ...]


class Program:
    """The steps of a model's forward pass, found by symbolic tracing."""

    def __init__(self, model: nn.Module) -> None:
        try:
            graph = _Tracer().trace(model)
        except (fx.proxy.TraceError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise Unsupported(f"its forward pass cannot be traced ({error})") from None
        self._steps: list[Step] = []
        nodes = list(graph.nodes)
        last = {user: node for node in nodes for user in [node, *node.all_input_nodes]}
        for node in nodes:
            done = tuple(user.name for user, at in last.items() if at is node)
            args, kwargs = _names(node.args), _names(node.kwargs)
            self._steps.append(Step(node.op, node.target, args, kwargs, node.name, done))
        inputs = [step for step in self._steps if step.op == "placeholder"]
        required = [step for step in inputs if not step.args]
        if len(required) > 1 or not inputs:
            raise Unsupported("its forward pass takes more than one input")

    def noises(self, model: nn.Module) -> list[str]:
        """Return the names of the active noise modules in the order in which they are met."""
        called = [step.target for step in self._steps if step.op == "call_module"]
        modules = {name: model.get_submodule(name) for name in called}
        return [
            name for name in called if known_noise(modules[name]) and not is_silent(modules[name])
        ]

    def run(
        self, model: nn.Module, x: Tensor, active: Collection[str], budget: int
    ) -> Tensor | Noisy:
        """Carry x through the model with the named noise modules on; give back its output.

        `budget` limits the entries of a layer's covariance matrices; TooManySamples is raised
        where the batch has to be split.
        """
        values: dict[str, Any] = {}
        given = False
        for step in self._steps:
            args, kwargs = _look_up(step.args, values), _look_up(step.kwargs, values)
            match step.op:
                case "placeholder":
                    value = args[0] if given else x
                    given = True
                case "get_attr":
                    value = attrgetter(step.target)(model)
                case "call_module":
                    module = model.get_submodule(step.target)
                    on = step.target in active
                    value = module_call(module, args, kwargs, on=on, budget=budget)
                case "call_function":
                    value = call(step.target, args, kwargs, budget=budget)
                case "call_method":
                    function = _method(step.target)
                    value = call(function, args, kwargs, budget=budget, method=step.target)
                case _:
                    output = args[0]
                    if not isinstance(output, (Tensor, Noisy)):
                        raise InputError(
                            f"model must return one tensor, got {type(output).__name__}"
                        )
                    return output
            values[step.name] = value
            for name in step.last_use_of:
                values.pop(name, None)
        raise Unsupported("its forward pass returns nothing")


def program_of(model: nn.Module) -> Program:
    """Return the model's steps, traced once for each structure and mode of it."""
    signature = tuple(
        (name, type(module), module.training) for name, module in model.named_modules()
    )
    known = _programs.get(model)
    if known is None or known[0] != signature:
        known = (signature, Program(model))
        _programs[model] = known
    return known[1]


_programs: WeakKeyDictionary[nn.Module, tuple[Any, Program]] = WeakKeyDictionary()


class _Tracer(fx.Tracer):  # type: ignore[misc]
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Look into torch's own modules where they hold noise, as its transformer layers do."""
        if known_noise(m):
            return True
        return super().is_leaf_module(m, module_qualified_name) and not any(
            known_noise(part) for part in m.modules()
        )


@dataclass(frozen=True)
class _Name:
    """A reference to an earlier result."""

    of: str


def _names(args: Any) -> Any:
    return fx.node.map_arg(args, lambda node: _Name(node.name))


def _look_up(args: Any, values: dict[str, Any]) -> Any:
    match args:
        case _Name():
            return values[args.of]
        case tuple() | list():
            return type(args)(_look_up(a, values) for a in args)
        case dict():
            return {key: _look_up(a, values) for key, a in args.items()}
        case slice():
            return slice(*(_look_up(a, values) for a in (args.start, args.stop, args.step)))
    return args


def _method(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, name)(*args, **kwargs)

    return method
