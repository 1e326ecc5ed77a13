"""Whether copies of a model's inputs may go through it side by side, as samples of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from overt.nn.data.models import unwrap_model
from overt.nn.data.rng import (
    preserve_rng,
    python_rng_states,
    repeat_pass,
    seed_torch,
    torch_rng_bytes,
)
from overt.nn.moments.balance import Balance
from overt.nn.moments.carry import Output, carry, own, picked, plain_output
from overt.nn.recording import operations
from overt.nn.recording.watching import called, mapped, tensors

MANY, GRID = 512, 64
"""Numbers that rows share whose effect a few passes show; and values at which that of few is."""


def rows_of(x: Any) -> int | None:
    """Return the number of rows, None if the tensors do not agree on it."""
    counts = {len(t) for t in tensors(x) if t.ndim}
    whole = all(t.ndim for t in tensors(x))
    return counts.pop() if whole and len(counts) == 1 else None


def copied(x: Any, copies: int) -> Any:
    """Return all rows so many times."""
    return x if copies == 1 else mapped(x, lambda t: torch.cat([t] * copies))


def rows_apart(model: nn.Module, x: Any, output: Output) -> bool:
    """Whether rows do not meet, noise aside: with copies beside them, and with other rows.

    Copies alone do not move what is averaged over rows. The model is in training mode, where that
    can be had without noise.
    """
    rows = rows_of(x)

    def silent(given: Any) -> Tensor:
        return carry(model, given, output=output, active=()).output.mean

    with preserve_rng():
        plain, again = silent(x), silent(x)
    if not torch.equal(plain, again):
        plain = plain_output(model, x, output)
    if rows is None or len(plain) != rows:
        return False
    others = mapped(x, lambda t: torch.cat([t, t[:1].roll(1, -1).expand_as(t)]))
    try:
        if torch.equal(plain, again):
            twice, more = (silent(given) for given in (copied(x, 2), others))
        else:
            twice, more = (plain_output(model, given, output) for given in (copied(x, 2), others))
    except Exception:  # a model that wants its number of rows
        return False
    pairs = (twice, torch.cat([plain, plain])), (more[:rows], plain)
    close = 64 * torch.finfo(plain.dtype).eps * (1 + float(plain.abs().max()))
    apart = all(a.shape == b.shape and bool(((a - b).abs() <= close).all()) for a, b in pairs)
    return apart and _scales_apart(model, x, output, others)


def _scales_apart(model: nn.Module, x: Any, output: Output, others: Any) -> bool:
    """Whether the noise of rows is as large beside others, as far as it is carried."""
    alone, beside = (carry(model, given, output=output) for given in (x, others))
    if any(one.drawn or one.tape.linearized for one in (alone, beside)):
        return True
    a, b = alone.output.variance, beside.output.variance[: len(alone.output.variance)]
    return bool(((a - b).abs() <= 1e-2 * (a + float(a.mean()))).all())


def draws_apart(model: nn.Module, x: Any, output: Output) -> bool | None:
    """Whether all that is drawn is seen, and twice as many numbers are for twice as many rows.

    Numbers between 0 and 1 that rows share do not count where the outputs are the same at both
    ends and on a grid between them, as where layers are dropped with probability 0. None if what
    rows share is many numbers, whose effect a few passes show; that of a coin may be rare. What is
    read of random tensors decides for all rows, unless many passes read the same.
    """
    found: list[list[Any]] = []
    reads: list[list[str]] = []
    for given in (x, copied(x, 2)):
        moved = [False]

        def run(given: Any = given, moved: Any = moved) -> list[Tensor]:
            start, noting = python_rng_states(), _Noting()
            with noting:
                y = _outputs(model, given, output)
            moved[0] |= python_rng_states() != start or not noting.complete
            found.append(noting.notes)
            reads.append(noting.reads)
            return [y]

        if repeat_pass(model, run, 2)[1] or moved[0]:
            return False

    def decide() -> list[Tensor]:
        seed_torch(len(reads))
        with _Noting() as noting:
            _outputs(model, x, output)
        reads.append(noting.reads)
        return []

    if reads[0]:
        repeat_pass(model, decide, GRID)
        if any(read != reads[0] for read in reads[4:]):
            return False
    one, two = found[1], found[3]
    if len(one) != len(two):
        return False
    pairs = [(name, a, b) for (name, a), (_, b) in zip(one, two, strict=True)]
    shared = [i for i, (_, a, b) in enumerate(pairs) if [2 * n for n in a] != b]
    coins = [i for i in shared if max(pairs[i][1]) < MANY]
    low, high = (dict.fromkeys(coins, value) for value in (0.0, 1.0 - 1e-6))
    # Between them each coin has a value of its own: two may be compared with each other.
    grid = [{i: (k / GRID + 0.618 * j) % 1 for j, i in enumerate(coins)} for k in range(GRID)]

    def differ(values: list[dict[int, float]]) -> bool:
        left = iter(values)

        def run() -> list[Tensor]:
            with _Noting(next(left)):
                return [_outputs(model, x, output)]

        return repeat_pass(model, run, len(values))[1]

    odd = any(pairs[i][0] != "rand" for i in coins)
    if coins and (odd or differ([low, high]) or differ([low, *grid])):
        return False
    return None if len(shared) > len(coins) else True


def beside(model: nn.Module, x: Any, output: Output) -> bool:
    """Whether copies may stand in one pass though they share draws, as independent for the rest.

    What others are given must not move a copy, noise on, and what Python reads of random tensors
    must be single numbers that were drawn alone: a mean of noisy rows would be one of all copies.
    """
    rows, wide = rows_of(x), False
    others = mapped(x, lambda t: torch.cat([t, t[:1].roll(1, -1).expand_as(t)]))
    for seed in range(8):
        given = iter((copied(x, 2), others))

        def first(given: Any = given, seed: int = seed) -> list[Tensor]:
            nonlocal wide
            seed_torch(seed)
            with _Noting() as noting:
                y = _outputs(model, next(given), output)[:rows]
            wide |= noting.wide
            return [y]

        try:
            if repeat_pass(model, first, 2)[1] or wide:
                return False
        except Exception:  # a model that wants its number of rows
            return False
    return True


def balanced(model: nn.Module, x: Any, output: Output) -> Balance:
    """Return what balances draws among copies, where it is shown how draws belong to copies.

    A draw counts whose first axis grows with the copies, and if a copy's outputs stay the same when
    others exchange what they draw.
    """
    rows, balance = rows_of(x), Balance(used=None)

    def shapes(copies: int) -> list[Any]:
        balance.begin(copies, copies)
        with balance:
            _outputs(model, copied(x, copies), output)
        return balance.seen

    def first() -> list[Tensor]:
        balance.swapped = not balance.swapped
        balance.begin(3, 3)
        with balance:
            return [_outputs(model, copied(x, 3), output)[:rows]]

    try:
        with preserve_rng():
            few, many = shapes(3), shapes(5)
        if len(few) == len(many):
            balance.forms = [
                (a[0] // 3, *a[1:]) if a and b and 5 * a[0] == 3 * b[0] and a[1:] == b[1:] else None
                for a, b in zip(few, many, strict=True)
            ]
        if repeat_pass(model, first, 2)[1]:
            balance.forms = ()
    except Exception:  # a model that wants its number of rows
        balance.forms = ()
    balance.used, balance.swapped = balance.called, None
    return balance


class _Noting(TorchFunctionMode):  # type: ignore[misc]
    """Notes how many numbers come out of calls that draw; those of some calls are fixed.

    `reads` are what Python read of tensors that depend on draws, `wide` is whether any of these
    depends on more than single numbers that were drawn.
    """

    def __init__(self, fixed: dict[int, float] | None = None) -> None:
        super().__init__()
        self.notes: list[tuple[str, list[int]]] = []
        self.reads: list[str] = []
        self.wide = False
        self._noisy: Any = WeakTensorKeyDictionary()
        self._fixed, self._state, self._seen = fixed or {}, torch_rng_bytes(), True

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, inplace = operations.canonical(func)
        values, notes = operations.kind(name).values, len(self.notes)
        given = list(tensors((args, kwargs or {})))
        noisy, wide = (
            any(t in self._noisy for t in given),
            any(self._noisy.get(t, True) for t in given),
        )
        result = self._run(func, name, values, args, kwargs or {})
        if noisy and values == "read":
            self.reads.append(repr(result))
            self.wide |= wide
        if noisy or len(self.notes) > notes:
            for t in tensors((result, args[0] if inplace else None)):
                self._noisy[t] = wide or t.numel() > 1
        return result

    def _run(self, func: Any, name: str, values: str, args: Any, kwargs: dict[str, Any]) -> Any:
        if values not in ("random", "attention", "unknown"):
            return func(*args, **kwargs)
        self._seen &= torch_rng_bytes() == self._state
        result = func(*args, **kwargs)
        if (state := torch_rng_bytes()) != self._state:
            self._state = state
            mixes = func in (torch.randperm,)  # rows among each other
            if len(self.notes) in self._fixed:
                result.fill_(self._fixed[len(self.notes)])
            self.notes.append((name, [1 if mixes else t.numel() for t in tensors(result)] or [1]))
        return result

    @property
    def complete(self) -> bool:
        """Whether torch's generators moved on in these calls alone."""
        return self._seen and torch_rng_bytes() == self._state


def _outputs(model: nn.Module, given: Any, output: Output) -> Tensor:
    return picked(called(unwrap_model(model), own(given)), output)
