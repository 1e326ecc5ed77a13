"""A computation written down once, as torch's own operations, and done again without its Python.

What runs under a `Recorder` becomes a straight line of operations: what the results do not need is
left out (all tangents, as gradients of linear maps need none of their values), constants are worked
out, equal operations are done once. Parameters and other tensors that were there before are read
anew each time. Numbers that Python took out of tensors on the way are taken out again: where one
differs, the plan does not hold.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from overt.nn.data.rng import torch_rng_bytes
from overt.nn.recording.watching import tensors

MOST, STEPS = 2**27, 2**14
"""The most numbers and steps that a recording may hold before it is given up."""

_aten: Any = torch.ops.aten
_PRECISE = (torch.float32, torch.float64)
_READ = _aten._local_scalar_dense.default


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Writes down all operations of a pass, those of its gradients too."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, Any, Any, Any, bool]] = []
        self.paused, self._size = False, 0

    @property
    def complete(self) -> bool:
        """Whether all was kept."""
        return self._size <= MOST


def _written_down(self: Recorder, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    kwargs = kwargs or {}
    before = torch_rng_bytes() if torch.Tag.nondeterministic_seeded in func.tags else None
    result = func(*args, **kwargs)
    if not self.paused and self.complete:
        drew = before is not None and torch_rng_bytes() != before
        self.steps.append((func, args, kwargs, result, drew))
        self._size += sum(t.numel() for t in tensors(result) if t._base is None)
        if self._size > MOST or len(self.steps) > STEPS:
            self._size = MOST + 1
            self.steps.clear()
    return result


# Assigned here: within the class, torch would wrap it and load its whole compiler at the first use.
Recorder.__torch_dispatch__ = _written_down


@contextmanager
def unrecorded() -> Iterator[None]:
    """Leave out what no result depends on but by numbers that stay the same."""
    recorder: Any = _get_current_dispatch_mode()
    before = getattr(recorder, "paused", None)
    try:
        if before is not None:
            recorder.paused = True
        yield
    finally:
        if before is not None:
            recorder.paused = before


class Unplanned(Exception):  # noqa: N818
    """What was recorded cannot be done again."""


class Plan:
    """A recorded computation as a function of its inputs; `outside` are tensors it reads beside."""

    def __init__(self, recorder: Recorder, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        if not recorder.complete:
            raise Unplanned
        line = _Line(inputs)
        for step in recorder.steps:
            line.add(*step)
        given, self._run = line.function(outputs)
        places = {id(t): i for i, t in enumerate(inputs)}
        self._inputs = [(i, places[id(t)]) for i, t in enumerate(given) if id(t) in places]
        self._given = [None if id(t) in places else t for t in given]
        self.outside = [t for t in self._given if t is not None]
        self._forms = [_form(t) for t in self.outside]
        self._reads = [value for _, value in line.reads]
        pairs = zip(outputs, self(inputs) or (), strict=True)
        if not all(torch.allclose(a, b, 1e-3, 1e-6, equal_nan=True) for a, b in pairs):
            raise Unplanned

    def __call__(self, inputs: list[Tensor]) -> list[Tensor] | None:
        """Return the outputs for other inputs of the same form, None where the plan fails."""
        if [_form(t) for t in self.outside] != self._forms:
            return None
        given = list(self._given)
        for place, i in self._inputs:
            given[place] = inputs[i]
        found = self._run(*given)
        n = len(self._reads)
        if [t.item() for t in found[:n]] != self._reads:
            return None
        return list(found[n:])


def _form(t: Tensor) -> Any:
    return t.shape, t.stride(), t.dtype, t.device


class _Line:
    """Steps of a straight line; each tensor has a name."""

    def __init__(self, inputs: list[Tensor]) -> None:
        self._names: dict[int, str] = {}
        self._outside: dict[str, Tensor] = {}
        self._made: dict[str, Tensor] = {}
        self._fresh: set[int] = set()  # storages that came up on the way
        self._constants: dict[str, Any] = {}
        self._written: set[int] = set()
        self._steps: list[tuple[Any, list[str], list[str], bool, Any]] = []
        self.reads: list[tuple[str, Any]] = []
        for t in inputs:
            self._name(t)

    def _name(self, t: Tensor) -> str:
        """Return the name of a tensor that is read, new if it comes from outside."""
        if id(t) not in self._names:
            if _storage(t) in self._fresh:
                raise Unplanned  # made on the way, but not seen
            name = f"x{len(self._outside)}"
            self._names[id(t)], self._outside[name], self._made[name] = name, t, t
        return self._names[id(t)]

    def add(self, func: Any, args: Any, kwargs: Any, result: Any, drew: bool) -> None:
        """Write down a step; `drew` says whether it moved torch's generators on."""
        given = list(tensors((args, kwargs)))
        read = [self._name(t) for t in given]
        made = list(tensors(result))
        known = all(name in self._constants for name in read)
        if func is _READ and not known:
            self.reads.append((read[0], result))
        if not made:
            if func is not _READ and not known:
                raise Unplanned  # an answer that is no tensor
            return
        writes = func._schema.is_mutable
        if writes:
            self._written.update(map(_storage, _targets(func, args, kwargs)))
        elif len(made) == 1 and given and _is_same(made[0], given[0]):
            self._names.setdefault(id(made[0]), read[0])
            return
        names = []
        for t in made:
            if id(t) not in self._names:
                self._names[id(t)] = f"v{len(self._made)}"
                self._made[self._names[id(t)]] = t
            names.append(self._names[id(t)])
            if _storage(t) not in map(_storage, given):
                self._fresh.add(_storage(t))
        if known and not writes and not drew:
            self._constants.update(zip(names, made, strict=True))
        self._steps.append((func, read, names, drew, (args, kwargs, result)))

    def function(self, outputs: list[Tensor]) -> tuple[list[Tensor], Callable[..., Any]]:
        """Return tensors from outside, and the function of them that gives reads and outputs."""
        touched = self._written
        constants = {n: t for n, t in self._constants.items() if _storage(t) not in touched}
        for t in outputs:
            self._name(t)
        wanted = [name for name, _ in self.reads] + [self._names[id(t)] for t in outputs]
        steps = self._live(wanted, constants)
        names: dict[str, Any] = {**constants, "__name__": __name__}
        lines, renamed, seen = [], dict[str, str](), dict[Any, list[str]]()
        for i, (func, read, made, drew, (args, kwargs, result)) in enumerate(steps):
            if drew:
                raise Unplanned

            def named(t: Tensor) -> str:
                return renamed.get(name := self._names.get(id(t), ""), name)

            args = _ready(func, args, made and self._made[made[0]])
            told = [_shown(value, named, names) for value in args]
            told += [f"{k}={_shown(value, named, names)}" for k, value in kwargs.items()]
            text = ", ".join(told)
            pure = not any(_storage(self._made[n]) in touched for n in (*read, *made))
            if pure and (func, text) in seen:
                renamed.update(zip(made, seen[func, text], strict=True))
                continue
            if pure:
                seen[func, text] = made
            names[f"f{i}"] = func
            kept = _shown(result, lambda t: self._names[id(t)], {}, "_")
            lines.append(f"    {kept} = f{i}({text})")
        used = {name for _, read, *_ in steps for name in read}.union(wanted)
        given = [name for name in self._outside if name in used]
        if any(_storage(self._outside[name]) in touched for name in given):
            raise Unplanned  # what is not its own is not written to
        held = {_storage(t) for t in (*constants.values(), *self._outside.values())}
        ends = [".clone()" if _storage(self._made[name]) in held else "" for name in wanted]
        results = ", ".join(renamed.get(n, n) + end for n, end in zip(wanted, ends, strict=True))
        source = "\n".join([f"def run({', '.join(given)}):", *lines, f"    return ({results},)"])
        exec(source, names)  # noqa: S102
        values = [self._outside[name] for name in given]
        return values, _quick(names["run"], tuple(values))

    def _live(self, wanted: list[str], constants: dict[str, Any]) -> list[Any]:
        """Return the steps that what is wanted needs, constants apart."""
        live, kept = set(wanted), []
        storages = {_storage(self._made[name]) for name in live}
        for step in reversed(self._steps):
            func, read, made, _, (args, kwargs, _) = step
            if all(name in constants for name in made):
                continue
            targets = map(_storage, _targets(func, args, kwargs))
            if not live.isdisjoint(made) or not storages.isdisjoint(targets):
                kept.append(step)
                live.update(read)
                storages.update(_storage(self._made[name]) for name in read)
        return kept[::-1]


def _quick(run: Callable[..., Any], given: tuple[Tensor, ...]) -> Callable[..., Any]:
    """Return the function as torch's interpreter runs it, itself where that cannot be had."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            traced = torch.jit.trace(run, given, check_trace=False)
        except Exception:  # not every operation can be traced
            return run

    def quick(*args: Tensor) -> Any:
        with torch.jit.optimized_execution(False):
            return traced(*args)

    return quick


def _ready(func: Any, args: Any, like: Tensor) -> Any:
    """Return arguments with numbers in the format of tensors, which torch makes of them anew."""
    named = func in (_aten.mul.Tensor, _aten.add.Tensor, _aten.sub.Tensor, _aten.div.Tensor)
    if not named or not isinstance(args[1], (int, float)) or like.dtype not in _PRECISE:
        return args
    return args[0], torch.tensor(args[1], dtype=like.dtype, device=like.device), *args[2:]


def _storage(t: Tensor) -> int:
    return int(t.untyped_storage()._cdata)


def _is_same(new: Tensor, old: Tensor) -> bool:
    """Whether a result is its argument under another name."""
    return (
        _storage(new) == _storage(old) and _form(new) == _form(old)
        and new.storage_offset() == old.storage_offset()
    )  # fmt: skip


def _targets(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Return the tensors that a call writes into."""
    found = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += list(tensors(args[i] if i < len(args) else kwargs.get(argument.name)))
    return found


def _shown(value: Any, name: Callable[[Tensor], str], names: dict[str, Any], no: str = "") -> str:
    """Return an argument as source, by a name of its own where it has none."""
    if isinstance(value, Tensor) and (found := name(value)):
        return found
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_shown(part, name, names, no) for part in value)}]"
    if value is None and no:
        return no
    if value is None or isinstance(value, (bool, int, str)):
        return repr(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    key = f"c{id(value)}"  # which is held here
    names[key] = value
    return key
