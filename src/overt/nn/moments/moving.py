"""Operations that move, select, mask and join entries of random tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from overt.nn.moments.bilinear import added, linear_map, product, scaled
from overt.nn.moments.local import noises_of, unknown, with_first
from overt.nn.moments.tape import Moment, Tangent, Tape, Uncarried
from overt.nn.recording.watching import Call

# Selections that give out no entry twice, so that independent entries stay so.
_ONCE = frozenset(("select", "narrow", "unbind", "chunk", "split", "split_with_sizes",
                   "tensor_split", "tril", "triu", "masked_fill", "diagonal"))  # fmt: skip
# Operations that take no more than a shape or a type from their second argument.
_LIKE = frozenset(("view_as", "reshape_as", "expand_as", "type_as", "to"))


def moved(tape: Tape, call: Call) -> Any:
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
    changed = x.with_(independent=keeps, dropped=x.dropped if passes else None,
                      law=x.law if passes else None)  # fmt: skip
    if isinstance(mean, Tensor):
        cut = call.name in ("detach", "data")  # from parameters, not from noise
        tangent = x.tangent if cut else tape.later(lambda: with_first(tape, zeroed, x.tangent()))
        return changed.with_(mean=mean, variance=variance, tangent=tangent)

    def part(i: int) -> Tangent:
        return tape.later(lambda: with_first(tape, zeroed, x.tangent())[i])

    parts = zip(mean, variance, strict=True)
    return type(mean)(
        changed.with_(mean=m, variance=v, tangent=part(i)) for i, (m, v) in enumerate(parts)
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


def looked_up(tape: Tape, call: Call) -> Any:
    """Look up rows of random weights."""

    def f(W: Tensor) -> Tensor:
        return functional.embedding(call.args[0], W)

    return linear_map(tape, tape.of(call.args[1]), f, f, f)


def masked(tape: Tape, call: Call) -> Any:
    """x where the mask is 0, a value where it is 1; mask and value may be random."""
    x, mask, value = call.args[0], call.argument(1, "mask"), call.argument(2, "value")
    if not tape.noisy((mask, value)):
        return moved(tape, call)
    if isinstance(value, (int, float)) and not math.isfinite(value):
        raise Uncarried(noises_of(tape, call), call.name)
    return where(tape, replace(call, args=(mask, value, x), kwargs={}))


def where(tape: Tape, call: Call) -> Any:
    """mask a + (1 - mask) b."""
    mask, a, b = call.args
    if mask.dtype != torch.bool:  # a.where(mask, b)
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


def set_item(tape: Tape, call: Call) -> None:
    """Overwrite some entries."""
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
    tape.views.change(target)
    tape.put(replace(moment, independent=False), target)


def copied(tape: Tape, call: Call) -> Any:
    """Overwrite all entries by others."""
    shape = call.args[0].shape
    return linear_map(tape, tape.of(call.args[1]), *[lambda t: t.expand(shape)] * 3)


def filled(tape: Tape, call: Call) -> Any:
    """Make a tensor, or overwrite one: it is certain."""
    if call.inplace:
        blank = call.args[0].detach().clone()
        return tape.certain(call.function(blank, *call.args[1:], **call.kwargs))
    return call.function(*tape.mean(call.args), **tape.mean(call.kwargs))


def joined(tape: Tape, call: Call) -> Any:
    """Put tensors side by side."""
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
