"""Plans that are kept for a model, and the pass of it that shows whether one still holds.

A plan is asked for by the form of the inputs. Before it is used the model itself runs once, noise
and all, and the calls that it makes are compared one by one with those that it made when the plan
was recorded: the functions, all numbers among their arguments (probabilities, switches, sizes), and
the very tensors from outside (parameters, buffers, constants). Values of tensors may have changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _get_current_dispatch_mode

from overt.nn.moments.carry import own
from overt.nn.moments.plans import Plan, Recorder, Unplanned
from overt.nn.recording import operations
from overt.nn.recording.generators import seeded
from overt.nn.recording.modes import modes, unwrapped
from overt.nn.recording.watching import called, tensors

STRIKES, FORMS = 4, 16
"""Plans in a row that did not hold before none is made; forms of inputs that have one."""

_PLAIN = (bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format,
          type(None), type(...))  # fmt: skip


@dataclass
class _Kept:
    """A plan with what it takes to believe it: `build` makes an answer of its tensors."""

    plan: Plan | None = None
    notes: list[Any] = field(default_factory=list)
    last: int = -1
    build: Any = None
    strikes: int = 0

    def again(self, model: nn.Module, x: Any, output: Any) -> list[Tensor] | None:
        """Return the tensors of an answer, None where the plan does not hold."""
        mode = _Checking(self.notes, self.last)
        same = mode.ended(_run(model, own(x), output, mode))
        found = self.plan(list(tensors(x))) if same and self.plan is not None else None
        self.strikes = self.strikes if found is None else 0
        return found

    def record(self, model: nn.Module, x: Any, output: Any, make: Any, parts: Any) -> Any:
        """Return an answer and its tensors, None if there are none to plan; keep a plan."""
        self.plan, self.strikes = None, self.strikes + 1
        with Recorder() as recorder:
            made = make()
        if (apart := parts(made)) is None:
            self.strikes = STRIKES
            return made, None
        values, self.build = apart
        try:
            self.note(model, x, output)
            plan = Plan(recorder, list(tensors(x)), values)
            self.plan = None if _unseen(model, x, plan.outside, self.notes) else plan
        except Exception:  # it is done by Python, then
            self.strikes = STRIKES
        return made, values

    def note(self, model: nn.Module, x: Any, output: Any) -> None:
        """Note the calls of a pass."""
        if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
            raise Unplanned  # what it does is not seen
        x = own(x)
        mode = _Noting(list(tensors(x)))
        result = _run(model, x, output, mode)
        self.notes, self.last = mode.notes, mode.place(result)


_kept: WeakKeyDictionary[nn.Module, dict[Any, _Kept]] = WeakKeyDictionary()


def replayed(
    model: nn.Module, x: Any, output: Any,
    make: Callable[[], Any], parts: Callable[[Any], tuple[list[Tensor], Any] | None],
) -> Any:  # fmt: skip
    """Return make(), by the plan of an earlier call if there is one that holds.

    `parts` takes an answer apart: its tensors, and a function that makes an answer of others; None
    if it is not to be planned.
    """
    key, given = _key(x, output), list(tensors(x))
    plans = _kept.setdefault(model, {})
    kept = plans.setdefault(key, _Kept())
    if key is None or kept.strikes >= STRIKES or _get_current_dispatch_mode() is not None:
        return make()
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return make()
    if len(plans) > FORMS:
        plans.pop(next(iter(plans)))
    weights = [*given, *model.parameters()] if torch.is_grad_enabled() else []
    weights = [weight for weight in weights if weight.requires_grad]
    made = None
    with torch.inference_mode(False), torch.no_grad():
        values = kept.again(model, x, output) if kept.plan is not None else None
        if values is None:
            made, values = kept.record(model, x, output, make, parts)
    if values is None:
        return make() if weights else made
    if weights:
        values[:2] = _Later.apply(lambda: parts(make()), values[:2], *weights)
    return made if made is not None and not weights else kept.build(values)


class _Later(torch.autograd.Function):  # type: ignore[misc]
    """Values whose gradients are worked out when they are asked for, by doing it all again."""

    @staticmethod
    def forward(ctx: Any, make: Callable[[], Any], values: list[Tensor], *weights: Tensor) -> Any:
        """Return the values."""
        ctx.make = make
        ctx.save_for_backward(*weights)
        return tuple(value.view_as(value) for value in values)

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> Any:
        """Return gradients with respect to inputs and parameters."""
        weights, create = ctx.saved_tensors, torch.is_grad_enabled()
        with torch.enable_grad():
            made = ctx.make()[0][: len(g)]
            found = torch.autograd.grad(made, weights, g, create_graph=create, allow_unused=True)
        return None, None, *found


def _key(x: Any, output: Any) -> Any:
    """Return the form of the inputs and all else that decides what torch does with them."""
    try:
        cells = tuple(cell.cell_contents for cell in getattr(output, "__closure__", None) or ())
        code = getattr(output, "__code__", output)
        device = next(tensors(x)).device.type
        cast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
        ids = [id(t) for t in tensors(x)]
        same = tuple(map(ids.index, ids))
        key = _skeleton(x), same, code, cells, cast, torch.get_default_dtype()
        hash(key)
    except (TypeError, ValueError, RuntimeError):
        return None
    return key


def _skeleton(value: Any) -> Any:
    if isinstance(value, Tensor):
        if type(value) not in (Tensor, nn.Parameter) or value.is_inference():
            raise TypeError
        return value.shape, value.stride(), value.dtype, value.device
    if isinstance(value, dict):
        return tuple((k, _skeleton(part)) for k, part in value.items())
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(_skeleton, value))
    return type(value), value


def _run(model: nn.Module, x: Any, output: Any, mode: TorchFunctionMode) -> Any:
    buffers = list(model.buffers())
    with seeded(0), modes(model, noise=True):
        mode.renamed = dict(zip(map(id, model.buffers()), buffers, strict=True))
        with mode:
            result = called(unwrapped(model), x)
            return result if output is None else output(result)


class _Noting(TorchFunctionMode):  # type: ignore[misc]
    """Notes the calls of a pass."""

    def __init__(self, given: list[Tensor]) -> None:
        super().__init__()
        self.notes: list[Any] = []
        self._made = {id(t): (t, -1) for t in given}
        self.renamed: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if operations.canonical(func)[0] in ("numpy", "tolist", "array", "data_ptr", "dlpack"):
            raise Unplanned  # values that are not followed
        note = func, self._note(args), self._note(kwargs)
        result = func(*args, **kwargs)
        for t in tensors(result):
            self._made.setdefault(id(t), (t, len(self.notes)))
        self.notes.append(note)
        return result

    def place(self, t: Any) -> int:
        """Return the number of the call that a tensor came from; -1 for an input."""
        if id(t) not in self._made:
            raise Unplanned
        return self._made[id(t)][1]

    def _note(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return None if id(value) in self._made else self.renamed.get(id(value), value)
        if isinstance(value, (list, tuple)):
            return [self._note(part) for part in value]
        if isinstance(value, dict):
            return {key: self._note(part) for key, part in value.items()}
        if isinstance(value, slice):
            return [self._note(part) for part in (value.start, value.stop, value.step)]
        if isinstance(value, _PLAIN):
            return type(value), value
        raise Unplanned


class _Checking(TorchFunctionMode):  # type: ignore[misc]
    """Compares the calls of a pass with notes."""

    def __init__(self, notes: list[Any], last: int) -> None:
        super().__init__()
        self.renamed: dict[int, Tensor] = {}
        self._notes, self._last, self._at = notes, last, 0
        self.same, self.result = True, None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        at, self._at = self._at, self._at + 1
        if self.same:
            self.same = at < len(self._notes) and self._matches(self._notes[at], func, args, kwargs)
        result = func(*args, **(kwargs or {}))
        if at == self._last:
            self.result = result
        return result

    def _matches(self, note: Any, func: Any, args: Any, kwargs: Any) -> bool:
        if note[0] is not func and note[0] != func:
            return False
        for part, value in zip(note[1], args, strict=False):
            if part is None:
                if not isinstance(value, Tensor):
                    return False
            elif type(part) is tuple:
                if type(value) is not part[0] or value != part[1]:
                    return False
            elif not self._like(part, value):
                return False
        return len(note[1]) == len(args) and self._like(note[2], kwargs or {})

    def _like(self, note: Any, value: Any) -> bool:
        if note is None:
            return isinstance(value, Tensor)
        if isinstance(note, Tensor):
            return note is value or note is self.renamed.get(id(value))
        if isinstance(note, list):
            if isinstance(value, slice):
                value = value.start, value.stop, value.step
            return (
                isinstance(value, (list, tuple)) and len(note) == len(value)
                and all(map(self._like, note, value))
            )  # fmt: skip
        if isinstance(note, dict):
            return (
                isinstance(value, dict) and note.keys() == value.keys()
                and all(self._like(part, value[key]) for key, part in note.items())
            )  # fmt: skip
        return type(value) is note[0] and bool(value == note[1])

    def ended(self, result: Any) -> bool:
        """Whether all calls were made, and the result comes from the right one."""
        right = self._last < 0 or any(t is result for t in tensors(self.result))
        return self.same and self._at == len(self._notes) and right


def _unseen(model: nn.Module, x: Any, outside: list[Tensor], notes: Any) -> bool:
    """Whether a plan reads tensors of the model that its calls do not show, or an input is one."""
    own = {id(t) for m in model.modules() for t in tensors([m._parameters, m._buffers, vars(m)])}
    seen = {id(t) for t in _noted(notes)}
    return any(id(t) in own - seen for t in outside) or any(id(t) in own for t in tensors(x))


def _noted(note: Any) -> Any:
    if isinstance(note, Tensor):
        yield note
    elif isinstance(note, (list, tuple, dict)):
        for part in note.values() if isinstance(note, dict) else note:
            yield from _noted(part)
