"""Draws for copies that go through a model side by side, balanced among them.

Of g copies in a group each unit is dropped in g drop_prob (rounded at random). Every copy's draws
are independent and follow their law, but what an output owes to single units cancels in the mean
over the group, which is off by what units do together alone (Latin hypercube sampling). A table of
patterns is drawn once, and a unit picks one of them: a random number to a group, where torch takes
one to a copy. Passes of one copy each make groups in the same way, one after the other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import lru_cache, partial
from threading import get_ident
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import has_torch_function_unary

from overt.nn.data.models import MODEL_LOCK
from overt.nn.moments.noises import ALPHA, coins
from overt.nn.moments.nonlinear import attention

GROUPS, PATTERNS = (20, 10), 4096
"""Good numbers of copies to a group (most probabilities are whole numbers of 20ths), the first that
divides all; and about how many patterns there are."""

FEW = 2**13
"""Numbers below which torch's own dropout is quicker than coins one by one."""

_QUICK = {"dropout", "scaled_dot_product_attention"}

_PRECISE = (torch.float32, torch.float64)

Form = tuple[int, ...]
"""A shape."""


@lru_cache(maxsize=16)
def _ranks(group: int) -> tuple[Tensor, Tensor]:
    """Return ranks 0 ... group - 1 of copies, (group, patterns), and a number in (0, 1) for each.

    With all rotations of each pattern, every copy has every rank equally often.
    """
    own, n = torch.Generator().manual_seed(group), -(-PATTERNS // group)
    first = torch.empty(n, group).uniform_(generator=own).argsort(1)
    ranks = (first[:, None] + torch.arange(group)[:, None]) % group
    within = ((torch.arange(n) + 0.5) / n)[:, None].expand(n, group)
    return ranks.reshape(-1, group).T.contiguous(), within.reshape(-1)


@lru_cache(maxsize=16)
def _listed(group: int) -> list[list[int]]:
    found: list[list[int]] = _ranks(group)[0].tolist()
    return found


@lru_cache(maxsize=64)
def _table(kind: str, group: int, a: float, b: float, dtype: Any, device: Any) -> Tensor:
    """Return patterns (group, patterns) of coins that are b with probability a, else 0.

    Or of numbers that are spread "evenly" from a to b, or of where each gth from a to b "begins".
    """
    ranks, within = _ranks(group)
    if kind == "coins":
        return ((ranks + within < group * a) * b).to(device, dtype)
    levels = ranks if kind == "begins" else ranks + within
    return (levels.double() * ((b - a) / group) + a).to(device, dtype)


class Balance:
    """Stands in for torch's dropout and random numbers while copies of a model's inputs run.

    `forms` are the shapes of what is drawn for one copy, in order, None where copies are not known
    to lie along the first axis; a draw of another shape is made as torch makes it. `seen` are the
    shapes of all draws of a pass, `called` the functions that drew; only those in `used` are stood
    in for, all if None. `swapped` exchanges what the second and third of three copies draw; unless
    it is None, all coins are fair, so that this shows.
    """

    def __init__(self, used: set[str] | None = _QUICK) -> None:
        self.forms: Sequence[Form | None] = ()
        self.called, self.used = set[str](), used
        self.swapped: bool | None = None
        self._own, self._state = torch.Generator(), 0
        self._before: list[tuple[Any, str, Any]] = []
        self.begin(1, 1)

    def begin(self, copies: int, group: int) -> None:
        """Note that a pass of so many copies begins, of which so many make a group."""
        self._copies, self._group, self._turn, self.seen = copies, group, -1, list[Form]()

    def take(self, turn: int, group: int, seed: int) -> None:
        """Note that one of a group of passes begins, which have their seed in common."""
        self._group, self._turn, self._state = group, turn, seed
        self._own.manual_seed(seed)

    def _units(self, shape: Form) -> int:
        """Return how many numbers a draw of this shape takes for a copy, 0 if that is unknown."""
        if self._turn >= 0:
            return math.prod(shape)
        i = len(self.seen)
        self.seen.append(shape)
        form = self.forms[i] if shape and i < len(self.forms) else None
        if form is None or self._group == 1 or shape[0] != self._copies * form[0]:
            return 0
        return math.prod(form) if shape[1:] == form[1:] else 0

    def _coins(self, shape: Form, prob: float) -> int:
        """Return the same for coins, 0 too if patterns do not have so small a probability."""
        units, some = self._units(shape), self._group * -(-PATTERNS // self._group)
        off = abs(round(prob * some) / some - prob)
        return units if off <= 0.002 * min(prob, 1 - prob) else 0

    def _picked(self, kind: str, like: Tensor, units: int, a: float, b: float) -> Tensor:
        """Return the pattern that each unit picks, or what is in turn of it, shaped like a draw."""
        table = _table(kind, self._group, a, b, like.dtype, like.device)
        if self._turn >= 0:
            index = torch.randint(table.shape[1], (units,), generator=self._own).to(like.device)
            return table[self._turn].index_select(0, index).view(like.shape)
        count = self._copies // self._group * units
        index = torch.randint(table.shape[1], (count,), device=like.device)
        found = table.index_select(1, index)  # (group, groups x units)
        return (found[[0, 2, 1]] if self.swapped else found).view(like.shape)

    def _masks(self, like: Tensor, units: int, prob: float, scale: float) -> Tensor:
        """Return numbers that are `scale` with a probability, else 0."""
        prob = prob if self.swapped is None else 0.5
        return self._picked("coins", like, units, prob, scale)

    def uniform(self, made: Tensor) -> Tensor:
        """Return uniform numbers in the place of these, one in each gth of (0, 1) to a group."""
        if not (units := self._units(made.shape)) or made.dtype not in _PRECISE:
            return made
        below = 1 - 64 * torch.finfo(made.dtype).eps  # 1 itself is no uniform number
        return self._picked("begins", made, units, 0.0, 1.0).add_(made, alpha=below / self._group)

    def normal(self, made: Tensor) -> Tensor:
        """Return normal numbers in the place of these, whose sum over each group is 0."""
        if self._turn >= 0 or not self._units(made.shape):
            return made
        if self.swapped:
            made = made.reshape(3, -1)[[0, 2, 1]].view(made.shape)
        parts = made.reshape(self._group, -1)
        away = (parts - parts.mean(0)).mul_(math.sqrt(self._group / (self._group - 1)))
        return away.view(made.shape)

    def __enter__(self) -> Balance:
        MODEL_LOCK.acquire()
        for place, name, stand_in in _STAND_INS:
            if self.used is None or name in self.used:
                old = getattr(place, name)
                self._before.append((place, name, vars(place).get(name)))
                setattr(place, name, self._in_place_of(old, name, stand_in))
        return self

    def __exit__(self, *_: Any) -> None:
        for place, name, old in self._before:
            delattr(place, name) if old is None else setattr(place, name, old)
        self._before.clear()
        MODEL_LOCK.release()

    def _in_place_of(self, old: Any, name: str, stand_in: Any) -> Any:
        here = get_ident()

        def instead(*args: Any, **kwargs: Any) -> Any:
            if get_ident() != here:  # what other threads do is not ours
                return old(*args, **kwargs)
            self.called.add(name)
            return stand_in(self, old, *args, **kwargs)

        return instead


def _dropout(
    axes: int | None, self: Balance, old: Any, input: Tensor,  # noqa: A002
    p: float = 0.5, training: bool = True, inplace: bool = False,
) -> Tensor:  # fmt: skip
    odd = not training or not 0.001 < p < 0.999 or axes not in (None, input.ndim)
    if odd or not _plain(input):
        return old(input, p, training, inplace)
    like = input if axes is None else input[(..., *[slice(1)] * (axes - 2))]
    units, scale = self._coins(like.shape, 1 - p), 1 / (1 - p)
    if not units and like.numel() < FEW:
        return old(input, p, training, inplace)
    mask = self._masks(like, units, 1 - p, scale) if units else coins(like, 1 - p).mul_(scale)
    return input.mul_(mask) if inplace else input * mask


def _alpha_dropout(
    self: Balance, old: Any, input: Tensor,  # noqa: A002
    p: float = 0.5, training: bool = False, inplace: bool = False,
) -> Tensor:  # fmt: skip
    odd = not training or inplace or not 0 < p < 1 or not _plain(input)
    if odd or not (units := self._coins(input.shape, 1 - p)):
        return old(input, p, training, inplace)
    a = ((1 - p) * (1 + p * ALPHA**2)) ** -0.5
    return self._masks(input, units, 1 - p, a).mul_(input - ALPHA).add_(a * (1 - p) * ALPHA)


def _rrelu(
    self: Balance, old: Any, input: Tensor,  # noqa: A002
    lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False,
) -> Tensor:  # fmt: skip
    odd = not training or inplace or not _plain(input)
    if odd or not (units := self._units(input.shape)):
        return old(input, lower, upper, training, inplace)
    slopes = self._picked("evenly", input, units, lower, upper)
    return torch.where(input >= 0, input, slopes.mul_(input))


def _attention(self: Balance, old: Any, query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    drops = kwargs.get("dropout_p") or (args[3] if len(args) > 3 else 0.0)
    return (attention if drops and _plain(query) else old)(query, *args, **kwargs)


def _made(how: Any, self: Balance, old: Any, *args: Any, **kwargs: Any) -> Tensor:
    found = old(*args, **kwargs)
    own = any(kwargs.get(name) is not None for name in ("out", "generator"))
    return how(self, found) if _plain(found) and not own else found


def _bernoulli_(self: Balance, old: Any, input: Tensor, p: Any = 0.5, **kwargs: Any) -> Tensor:  # noqa: A002
    if not isinstance(p, float) or not 0 < p < 1 or kwargs or not _plain(input):
        return old(input, p, **kwargs)
    if not (units := self._coins(input.shape, p)):
        return old(input, p)
    return input.copy_(self._masks(input, units, p, 1.0))


def _number(self: Balance, old: Any) -> float:
    """Return one of Python's own uniform numbers, which all copies in a pass would share."""
    made: float = old()
    if self._turn < 0:
        return made
    ranks = _listed(self._group)[self._turn]
    self._state = (self._state * 6364136223846793005 + 1442695040888963407) % 2**64
    return (ranks[(self._state >> 32) % len(ranks)] + made) / self._group


def _plain(x: Tensor) -> bool:
    batched = torch._C._functorch.is_functorch_wrapped_tensor(x)
    return x.is_floating_point() and not has_torch_function_unary(x) and not batched


_STAND_INS: list[tuple[Any, str, Any]] = [
    (functional, "dropout", partial(_dropout, None)),
    (functional, "dropout1d", partial(_dropout, 3)),
    (functional, "dropout2d", partial(_dropout, 4)),
    (functional, "dropout3d", partial(_dropout, 5)),
    (functional, "alpha_dropout", _alpha_dropout),
    (functional, "rrelu", _rrelu),
    (functional, "scaled_dot_product_attention", _attention),
    (torch, "rand", partial(_made, Balance.uniform)),
    (torch, "rand_like", partial(_made, Balance.uniform)),
    (torch, "randn", partial(_made, Balance.normal)),
    (torch, "randn_like", partial(_made, Balance.normal)),
    (Tensor, "bernoulli_", _bernoulli_),
    (random, "random", _number),
]
