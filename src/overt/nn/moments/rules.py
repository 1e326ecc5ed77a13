"""What becomes of a random tensor in each operation of a model: dispatch, and moved entries.

Affine operations are exact; see `bilinear`, `nonlinear` and `noises` for the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from overt.nn.layers.base import NoiseLayer
from overt.nn.moments import noises, nonlinear
from overt.nn.moments.bilinear import added, averaged, linear_map, product, scaled, weighted
from overt.nn.moments.nonlinear import noises_of, unknown, with_first
from overt.nn.moments.tape import Moment, Tangent, Tape, Uncarried
from overt.nn.recording.watching import Call, generator_state

Rule = Callable[[Tape, Call], Any]

# Selections that give out no entry twice, so that independent entries stay so.
_ONCE = frozenset(("select", "narrow", "unbind", "chunk", "split", "split_with_sizes",
                   "tensor_split", "tril", "triu", "masked_fill", "diagonal"))  # fmt: skip
# Operations that take no more than a shape or a type from their second argument.
_LIKE = frozenset(("view_as", "reshape_as", "expand_as", "type_as", "to"))


def apply(tape: Tape, call: Call) -> Any:
    """Return what comes out of a call: moments where noise has reached it."""
    if isinstance(call.leaf, NoiseLayer):
        return noises.layer(tape, call)
    if call.leaf is not None:  # a scripted module
        call = replace(call, function=call.leaf.forward, leaf=None)
    values = call.kind.values
    tape.check(call.name, (call.args, call.kwargs))
    if values == "random":
        return noises.random(tape, call)
    noisy = tape.noisy((call.args, call.kwargs))
    if values == "attention" and (noisy or nonlinear.drops(call)):
        return nonlinear.opened(tape, call)
    if not noisy:
        args, kwargs = tape.mean(call.args), tape.mean(call.kwargs)
        call = replace(call, args=args, kwargs=kwargs)
        return _certain(tape, call) if values == "unknown" else call.run()
    rule = _RULES.get(call.name) or _BY_VALUES.get(values, unknown)
    result = rule(tape, call)
    if isinstance(result, Moment) and call.inplace:
        tape.outdate(call.args[0])
        return tape.put(result, call.args[0])
    view = call.args[0] if call.args and values in ("move", "select") else None
    if isinstance(result, Moment):
        return tape.put(result, view=view)
    if isinstance(result, (tuple, list)):
        parts = [tape.put(p, view=view) if isinstance(p, Moment) else p for p in result]
        return type(result)(parts)
    return result


def _certain(tape: Tape, call: Call) -> Any:
    """Run an operation that the table does not know; note it if it draws."""
    before = generator_state()
    result = call.run()
    if generator_state() == before:
        return result
    name = tape.names.of(call, True) or call.name
    tape.met[name] = None
    if tape.active is not None and name not in tape.active:
        return noises.quiet(call)
    tape.was_drawn[name] = None
    return result


def _moved(tape: Tape, call: Call) -> Any:
    """Entries in another order, shape or format; the same for each part where there are several."""
    x = tape.get(call.args[0])
    others = tape.noisy((call.args[1:], call.kwargs))
    if others and call.name not in _LIKE:
        if call.name in ("getitem", "index_select", "gather"):
            raise Uncarried(noises_of(tape, call), call.name)
        return unknown(tape, call)
    if x is None:
        return call.function(*tape.mean(call.args), **tape.mean(call.kwargs))
    mean = with_first(tape, call, x.mean)
    if isinstance(mean, Tensor) and not mean.is_floating_point():
        raise Uncarried(x.noises, call.name)
    zeroed = _zeroed(call)
    variance = with_first(tape, zeroed, x.variance)
    keeps = x.independent and (call.kind.values == "move" or _once(call))
    passes = call.kind.units == "pass"
    changed = replace(x, independent=keeps, dropped=x.dropped if passes else None,
                      law=x.law if passes else None)  # fmt: skip
    if isinstance(mean, Tensor):
        cut = call.name in ("detach", "data")  # from parameters, not from noise
        tangent = x.tangent if cut else tape.later(lambda: with_first(tape, zeroed, x.tangent()))
        return replace(changed, mean=mean, variance=variance, tangent=tangent)

    def part(i: int) -> Tangent:
        return tape.later(lambda: with_first(tape, zeroed, x.tangent())[i])

    parts = zip(mean, variance, strict=True)
    return type(mean)(
        replace(changed, mean=m, variance=v, tangent=part(i)) for i, (m, v) in enumerate(parts)
    )


def _once(call: Call) -> bool:
    if call.name == "getitem":
        index = call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
        return all(part is None or isinstance(part, (int, slice, type(...))) for part in index)
    if call.name == "pad":
        return bool(call.argument(2, "mode", "constant") == "constant")
    return call.name in _ONCE


def _zeroed(call: Call) -> Call:
    """Return a call with the constants that it puts in replaced by 0."""
    if call.name == "pad":
        kwargs = {k: v for k, v in call.kwargs.items() if k != "value"}
        return replace(call, args=call.args[:3], kwargs=kwargs)
    if call.name in ("masked_fill", "index_fill"):
        place = 2 if call.name == "masked_fill" else 3
        if "value" in call.kwargs:
            return replace(call, kwargs={**call.kwargs, "value": 0.0})
        return replace(call, args=(*call.args[:place], 0.0))
    return call


def _looked_up(tape: Tape, call: Call) -> Any:
    """Look up rows of random weights."""

    def f(W: Tensor) -> Tensor:
        return functional.embedding(call.args[0], W)

    return replace(linear_map(tape, tape.of(call.args[1]), f, f, f), known=False)


def _masked(tape: Tape, call: Call) -> Any:
    """x where the mask is 0, a value where it is 1; mask and value may be random."""
    x, mask, value = call.args[0], call.argument(1, "mask"), call.argument(2, "value")
    if not tape.noisy((mask, value)):
        return _moved(tape, call)
    if isinstance(value, (int, float)) and not math.isfinite(value):
        raise Uncarried(noises_of(tape, call), call.name)
    return _where(tape, replace(call, args=(mask, value, x), kwargs={}))


def _where(tape: Tape, call: Call) -> Any:
    """mask a + (1 - mask) b."""
    if len(call.args) < 3:
        raise Uncarried(noises_of(tape, call), call.name)
    mask, a, b = call.args
    if not (isinstance(mask, Tensor) and mask.dtype == torch.bool):  # a.where(mask, b)
        mask, a = a, mask
    dtype = next(m.mean.dtype for m in tape.noisy((a, b, mask)))
    x, y = (tape.of(t if isinstance(t, Tensor) else torch.tensor(t, dtype=dtype)) for t in (a, b))
    drawn = tape.get(mask)
    if drawn is None:
        return _entries_of_two(tape, lambda s, t: torch.where(mask, s, t), x, y)
    kept = product(tape, torch.mul, scaled(tape, drawn, -1.0, 1.0), y)
    taken = product(tape, torch.mul, drawn, x)
    if not taken.noises or not bool(x.mean.any()):
        return kept
    return replace(added(tape, taken, kept), exact=False, known=False)


def _entries_of_two(
    tape: Tape, f: Callable[[Tensor, Tensor], Tensor], x: Moment, y: Moment
) -> Moment:
    """Each output entry is one of x or one of y."""
    tangent = tape.later(lambda: f(x.tangent(), y.tangent()))
    mean = f(x.mean, y.mean)
    full = x.mean.shape == mean.shape == y.mean.shape and not (x.noises & y.noises)
    return Moment(
        mean, f(x.variance, y.variance), tangent, x.noises | y.noises, x.exact and y.exact,
        x.known and y.known, x.independent and y.independent and full,
    )  # fmt: skip


def _set_item(tape: Tape, call: Call) -> None:
    target, index, value = call.args
    if tape.noisy((index,)):
        raise Uncarried(noises_of(tape, call), call.name)
    x = tape.of(target)
    value = value if isinstance(value, Tensor) else torch.tensor(value).to(x.mean)

    def put(to: Tensor, what: Tensor) -> Tensor:
        changed = to.clone()
        changed[index] = what
        return changed

    moment = _entries_of_two(tape, put, x, tape.of(value))
    tape.put(replace(moment, independent=False), target)


def _copied(tape: Tape, call: Call) -> Any:
    shape = call.args[0].shape
    return linear_map(tape, tape.of(call.args[1]), *[lambda t: t.expand(shape)] * 3)


def _filled(tape: Tape, call: Call) -> Any:
    """Make a tensor, or overwrite one: it is certain."""
    if call.inplace:
        blank = call.args[0].detach().clone()
        return tape.certain(call.function(blank, *call.args[1:], **call.kwargs))
    return call.function(*tape.mean(call.args), **tape.mean(call.kwargs))


def _joined(tape: Tape, call: Call) -> Any:
    given = [tape.of(part) for part in call.argument(0, "tensors")]
    rest, kwargs = call.args[1:], {k: v for k, v in call.kwargs.items() if k != "tensors"}

    def join(values: list[Tensor]) -> Tensor:
        result: Tensor = call.function(values, *rest, **kwargs)
        return result

    tangent = tape.later(lambda: join([m.tangent() for m in given]))
    noisy = [m.noises for m in given if m.noises]
    together = frozenset[str]().union(*noisy)
    apart = sum(map(len, noisy)) == len(together)
    return Moment(
        join([m.mean for m in given]), join([m.variance for m in given]), tangent, together,
        all(m.exact for m in given), all(m.known for m in given),
        all(m.independent for m in given) and apart,
    )  # fmt: skip


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
        case "addmm" | "baddbmm" | "addmv" if not {"alpha", "beta"} & set(call.kwargs):
            made = product(tape, torch.matmul, tape.of(args[1]), tape.of(args[2]))
            return added(tape, made, tape.of(args[0]))
        case "matmul" | "mm" | "bmm" | "mv" | "dot" if len(args) == 2:
            return product(tape, torch.matmul, tape.of(args[0]), tape.of(args[1]))
    return unknown(tape, call)


def _averaged(tape: Tape, call: Call) -> Any:
    x = tape.get(call.args[0])
    if x is None:
        return unknown(tape, call)
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
    if call.name == "floor" and x.law(0.0) == 0 and x.law(2.0) == 1:
        handle = call.args[0] if call.inplace else None
        return noises.coin(tape, x, 1 - x.law(1.0), handle)
    if call.name in ("gt", "ge", "lt", "le") and isinstance(bound, (int, float)):
        below = x.law(float(bound))
        handle = torch.zeros(x.mean.shape, dtype=torch.bool, device=x.mean.device)
        return noises.coin(tape, x, 1 - below if call.name[0] == "g" else below, handle)
    raise Uncarried(noises_of(tape, call), call.name)


def _read(tape: Tape, call: Call) -> Any:
    raise Uncarried(noises_of(tape, call), call.name)


_RULES: dict[str, Rule] = {
    "copy": _copied,
    "embedding": _looked_up,
    "masked_fill": _masked,
    "setitem": _set_item,
    "where": _where,
}
_BY_VALUES: dict[str, Rule] = {
    "move": _moved,
    "select": _moved,
    "join": _joined,
    "linear": weighted,
    "average": _averaged,
    "sum": _sum,
    "product": _product,
    "quotient": _quotient,
    "matmul": _matmul,
    "entrywise": nonlinear.entrywise,
    "maximum": nonlinear.pooled,
    "norm": nonlinear.normalized,
    "softmax": nonlinear.softmax,
    "compare": _compared,
    "create": _filled,
    "read": _read,
}
