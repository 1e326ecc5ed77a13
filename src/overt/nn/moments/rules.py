"""What becomes of a random tensor in each operation of a model: the dispatch, and arithmetic.

See `moving`, `bilinear`, `nonlinear` and `noises` for the others; affine operations are exact.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from overt.nn.data.rng import torch_rng_bytes
from overt.nn.layers.base import NoiseLayer
from overt.nn.moments import moving, noises, nonlinear
from overt.nn.moments.bilinear import added, averaged, product, scaled, weighted
from overt.nn.moments.layered import layer
from overt.nn.moments.local import noises_of, unknown, with_first
from overt.nn.moments.pooling import pooled
from overt.nn.moments.tape import Moment, Tape, Uncarried
from overt.nn.recording.watching import Call, tensors

Rule = Callable[[Tape, Call], Any]


def apply(tape: Tape, call: Call) -> Any:
    """Return what comes out of a call: moments where noise has reached it."""
    if isinstance(call.leaf, NoiseLayer):
        return layer(tape, call)
    if call.leaf is not None:  # a scripted module
        call = replace(call, function=call.leaf.forward, leaf=None)
    values = call.kind.values
    given = list(tensors((call.args, call.kwargs))) if tape.holds else []
    tape.check(call.name, given)
    if values == "random":
        return noises.random(tape, call)
    noisy = tape.noisy(given)
    if values == "attention" and (noisy or nonlinear.drops(call)):
        return nonlinear.opened(tape, call)
    if not tape.holds and values != "unknown":
        return call.run()
    if not noisy:
        args, kwargs = tape.mean(call.args), tape.mean(call.kwargs)
        if values == "unknown":
            return _certain(tape, replace(call, args=args, kwargs=kwargs))
        return call.function(*args, **kwargs)
    if tape.differentiable and not torch.is_grad_enabled() and _own_backward():
        raise Uncarried(noises_of(tape, call), call.name)
    rule = _RULES.get(call.name) or _BY_VALUES.get(values, unknown)
    try:
        result = rule(tape, call)
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        raise Uncarried(noises_of(tape, call), call.name) from error
    if isinstance(result, Moment) and call.inplace:
        tape.views.change(call.args[0])
        return tape.put(result, call.args[0])
    view = call.args[0] if call.args and values in ("move", "select") else None
    if isinstance(result, Moment):
        return tape.put(result, view=view)
    if isinstance(result, (tuple, list)):
        reach = noises_of(tape, call)
        return type(result)([
            tape.put(p, view=view) if isinstance(p, Moment) else tape.place(p, reach)
            for p in result
        ])  # fmt: skip
    return result


def _own_backward() -> bool:
    """Whether this runs inside an autograd.Function, whose gradient is not that of its parts."""
    kinds: list[Any] = [torch.autograd.Function]
    for kind in kinds:  # which grows
        kinds += kind.__subclasses__()
    codes = {getattr(inspect.unwrap(kind.forward), "__code__", None) for kind in kinds}
    frame = inspect.currentframe()
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame is not None


def _certain(tape: Tape, call: Call) -> Any:
    """Run an operation that the table does not know; note it if it draws."""
    before = torch_rng_bytes()
    result = call.run()
    if torch_rng_bytes() == before:
        return result
    return noises.drawn(tape, call, tape.names.of(call, True) or call.name)


def _two(tape: Tape, call: Call) -> tuple[Moment, Moment]:
    a, b = call.args[0], call.argument(1, "other")
    like = tape.noisy((a, b))[0].mean
    x, y = (t if isinstance(t, Tensor) else torch.as_tensor(t).to(like) for t in (a, b))
    return tape.of(x), tape.of(y)


def _sum(tape: Tape, call: Call) -> Any:
    x, y = _two(tape, call)
    alpha = float(call.kwargs.get("alpha", 1.0))
    if call.name == "rsub":
        return added(tape, y, x, -alpha)
    return added(tape, x, y, alpha if call.name == "add" else -alpha)


def _product(tape: Tape, call: Call) -> Any:
    if call.name == "neg":
        return scaled(tape, tape.of(call.args[0]), -1.0)
    x, y = _two(tape, call)
    if call.args[0] is call.argument(1, "other"):
        return nonlinear.of_entries(tape, x, torch.square, "square")
    return product(tape, torch.mul, x, y)


def _quotient(tape: Tape, call: Call) -> Any:
    if call.kwargs.get("rounding_mode") is not None:
        raise Uncarried(noises_of(tape, call), call.name)
    x, y = _two(tape, call)
    if y.noises:
        y = nonlinear.of_entries(tape, y, torch.reciprocal, "reciprocal")
    else:
        y = tape.certain(1 / y.mean)
    return product(tape, torch.mul, x, y)


def _matmul(tape: Tape, call: Call) -> Any:
    args = call.args
    match call.name:
        case "einsum" if len(args) == 3 and isinstance(args[0], str):
            two = tape.of(args[1]), tape.of(args[2])
            return product(tape, lambda s, t: torch.einsum(args[0], s, t), *two)
        case "rmatmul":
            return product(tape, torch.matmul, tape.of(args[1]), tape.of(args[0]))
        case "addmm" | "baddbmm" | "addmv":
            start, x, y = (call.argument(i, n) for i, n in enumerate(_ADDED[call.name]))
            alpha, beta = (float(call.kwargs.get(k, 1)) for k in ("alpha", "beta"))
            made = product(tape, torch.matmul, tape.of(x), tape.of(y))
            if beta == 0:  # what is not to be added may be uninitialized
                return scaled(tape, made, alpha)
            return added(tape, scaled(tape, made, alpha), scaled(tape, tape.of(start), beta))
        case "matmul" | "mm" | "bmm" | "mv" | "dot" if len(args) == 2:
            return product(tape, torch.matmul, tape.of(args[0]), tape.of(args[1]))
    return unknown(tape, call)


_ADDED = {"addmm": ("input", "mat1", "mat2"), "baddbmm": ("input", "batch1", "batch2"),
          "addmv": ("input", "mat", "vec")}  # fmt: skip


def _averaged(tape: Tape, call: Call) -> Any:
    x = tape.of(call.args[0])
    return averaged(tape, x, call, lambda value: with_first(tape, call, value))


def _compared(tape: Tape, call: Call) -> Any:
    """Toss a coin for a fresh draw compared with a number; other comparisons need values."""
    x, bound = tape.get(call.args[0]), call.argument(1, "other")
    boolean = call.args[0].dtype == torch.bool
    if call.name in ("invert", "logical_not") and x is not None and boolean:
        handle = torch.zeros_like(call.args[0])
        return tape.put(scaled(tape, x, -1.0, 1.0), handle)
    if x is None or x.law is None:
        raise Uncarried(noises_of(tape, call), call.name)
    if isinstance(bound, Tensor) and bound.numel() == 1 and tape.get(bound) is None:
        bound = float(bound)
    if call.name == "floor" and x.law.below(0.0) == 0 and x.law.below(2.0) == 1:
        handle = call.args[0] if call.inplace else None
        return noises.coin(tape, x, 1 - x.law.below(1.0), handle)
    if call.name in ("gt", "ge", "lt", "le") and isinstance(bound, (int, float)):
        below = x.law.below(float(bound))
        handle = torch.zeros(x.mean.shape, dtype=torch.bool, device=x.mean.device)
        if below in (0.0, 1.0):  # as where layers are dropped with probability 0
            return torch.full_like(handle, (below == 1.0) != (call.name[0] == "g"))
        return noises.coin(tape, x, 1 - below if call.name[0] == "g" else below, handle)
    raise Uncarried(noises_of(tape, call), call.name)


def _read(tape: Tape, call: Call) -> Any:
    raise Uncarried(noises_of(tape, call), call.name)


_RULES: dict[str, Rule] = {
    "copy": moving.copied,
    "embedding": moving.looked_up,
    "glu": nonlinear.gated,
    "masked_fill": moving.masked,
    "setitem": moving.set_item,
    "where": moving.where,
}
_BY_VALUES: dict[str, Rule] = {
    "move": moving.moved,
    "select": moving.moved,
    "join": moving.joined,
    "linear": weighted,
    "average": _averaged,
    "sum": _sum,
    "product": _product,
    "quotient": _quotient,
    "matmul": _matmul,
    "entrywise": nonlinear.entrywise,
    "maximum": pooled,
    "norm": nonlinear.normalized,
    "softmax": nonlinear.softmax,
    "compare": _compared,
    "create": moving.filled,
    "read": _read,
}
