"""Plans that are kept for a model, and the pass of it that shows whether one still holds.

A plan is asked for by the form of the inputs. Before it is used the model itself runs once, noise
and all, and the calls that it makes are compared one by one with those that it made when the plan
was recorded: the functions, all numbers among their arguments (probabilities, switches, sizes), and
the very tensors from outside (parameters, buffers, constants). Values of tensors may have changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _get_current_dispatch_mode

from overt.nn.data.models import modes, unwrap_model
from overt.nn.data.rng import seeded
from overt.nn.moments.carry import own
from overt.nn.moments.plans import Plan, Recorder, Unplanned
from overt.nn.recording import operations
from overt.nn.recording.watching import called, tensors

STRIKES, FORMS = 4, 16
"""Plans in a row that did not hold before none is made; forms of inputs that have one."""

_LEAVING = ("numpy", "tolist", "array", "data_ptr", "dlpack")
_PLAIN = (bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format,
          type(None), type(...))  # fmt: skip


@dataclass
class _Kept:
    """A plan with what it takes to believe it: `build` makes an answer of its tensors."""

    plan: Plan | None = None
    calls: Any = None
    outside: Any = None  # whose ids are in the notes
    build: Any = None
    strikes: int = 0

    def again(self, model: nn.Module, x: Any, output: Any) -> list[Tensor] | None:
        """Return the tensors of an answer, None where the plan does not hold."""
        try:
            if self.plan is None or _noted(model, x, output)[0] != self.calls:
                return None
        except Exception:  # it holds no more, or an input does not fit: said where it is carried
            return None
        found = self.plan(list(tensors(x)))
        self.strikes = self.strikes if found is None else 0
        return found

    def record(self, model: nn.Module, x: Any, output: Any, make: Any, split: Any) -> Any:
        """Return an answer and its tensors, None if there are none to plan; keep a plan."""
        self.plan, self.strikes = None, self.strikes + 1
        with Recorder() as recorder:
            made = make()
        if (apart := split(made)) is None:
            self.strikes = STRIKES
            return made, None
        values, self.build = apart
        try:
            self.calls, self.outside = _noted(model, x, output)
            plan = Plan(recorder, list(tensors(x)), values)
            self.plan = None if _unseen(model, x, plan.outside, self.outside) else plan
        except Exception:  # it is done by Python, then
            self.strikes = STRIKES
        return made, values


_kept: WeakKeyDictionary[nn.Module, dict[Any, _Kept]] = WeakKeyDictionary()


def replayed(
    model: nn.Module, x: Any, output: Any,
    make: Callable[[], Any], split: Callable[[Any], tuple[list[Tensor], Any] | None],
) -> Any:  # fmt: skip
    """Return make(), by the plan of an earlier call if there is one that holds.

    `split` takes an answer apart: its tensors, and a function that makes an answer of others; None
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
        values = kept.again(model, x, output)
        if values is None:
            made, values = kept.record(model, x, output, make, split)
    if values is None:
        return make() if weights else made
    if weights:
        values[:2] = _Later.apply(lambda: split(make()), values[:2], *weights)
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


def _noted(model: nn.Module, x: Any, output: Any) -> tuple[Any, dict[int, Tensor]]:
    """Return what a pass calls and which call gave its result, and the tensors from outside."""
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise Unplanned  # what it does is not seen
    x = own(x)
    mode = _Noting(x, model)
    with seeded(0), modes(model, noise=True):
        mode.lend(model)
        with mode:
            result = called(unwrap_model(model), x)
            result = result if output is None else output(result)
    return (mode.notes, mode.place(result)), mode.outside


def _buffers(model: nn.Module) -> list[Tensor]:
    return [b for part in model.modules() for b in part._buffers.values() if b is not None]


class _Noting(TorchFunctionMode):  # type: ignore[misc]
    """Notes the calls of a pass: tensors from outside by their ids, those made on the way by ()."""

    def __init__(self, given: Any, model: nn.Module) -> None:
        super().__init__()
        self.notes: list[Any] = []
        self.outside: dict[int, Tensor] = {}
        self._made = {id(t): (t, -1) for t in tensors(given)}
        self._buffers = _buffers(model)
        self.lent: dict[int, Tensor] = {}

    def lend(self, model: nn.Module) -> None:
        """Note which buffers stand for which while the model is in another mode."""
        self.lent = dict(zip(map(id, _buffers(model)), self._buffers, strict=True))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if operations.canonical(func)[0] in _LEAVING:
            raise Unplanned  # values that are not followed
        note = func, [self._note(value) for value in args], self._note(kwargs)
        result = func(*args, **kwargs)
        made, at = self._made, len(self.notes)
        for t in tensors(result):
            made.setdefault(id(t), (t, at))
        self.notes.append(note)
        return result

    def place(self, t: Any) -> int:
        """Return the number of the call that a tensor came from, -1 for an input; or KeyError."""
        return self._made[id(t)][1]

    def _note(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) in self._made:
                return ()
            value = self.lent.get(id(value), value)
            self.outside[id(value)] = value
            return (id(value),)
        if isinstance(value, _PLAIN):
            return type(value), value
        if isinstance(value, dict):
            return {key: self._note(part) for key, part in value.items()}
        kind = type(value)
        if kind is slice:
            value = value.start, value.stop, value.step
        if isinstance(value, (list, tuple)):
            return kind, [self._note(part) for part in value]
        raise Unplanned


def _unseen(model: nn.Module, x: Any, read: list[Tensor], seen: dict[int, Tensor]) -> bool:
    """Whether a plan reads tensors of the model that its calls do not show, or an input is one."""
    own = {id(t) for m in model.modules() for t in tensors([m._parameters, m._buffers, vars(m)])}
    return any(id(t) in own and id(t) not in seen for t in read) or any(
        id(t) in own for t in tensors(x)
    )
