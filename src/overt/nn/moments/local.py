"""Operations that the table does not know: linearized at local draws, which also give moments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from overt.nn.data.rng import torch_rng_bytes
from overt.nn.moments.tape import Moment, Tape, Uncarried
from overt.nn.recording.watching import Call, mapped, tensors

LOCAL_DRAWS = 16
"""Draws at which an operation is linearized."""


def with_first(tape: Tape, call: Call, first: Any) -> Any:
    """Run a call out of place on another first argument, means in the place of all others."""
    kwargs = {k: v for k, v in call.kwargs.items() if k != "inplace"}
    return plain(call)(first, *tape.mean(call.args[1:]), **tape.mean(kwargs))


def plain(call: Call) -> Callable[..., Any]:
    """Return the function that a call names, in the spelling that does not work in place."""
    if call.name == "view" and not any(isinstance(a, torch.dtype) for a in call.args):
        return Tensor.reshape  # variances need not lie in memory as values do
    if not call.inplace or "inplace" in call.kwargs:
        return call.function
    home = next(place for place in (Tensor, torch, functional) if hasattr(place, call.name))
    return getattr(home, call.name)


def noises_of(tape: Tape, call: Call) -> frozenset[str]:
    """Return the names of the noises that reach a call."""
    return frozenset().union(*(m.noises for m in tape.noisy((call.args, call.kwargs))))


def unknown(tape: Tape, call: Call) -> Any:
    """Any differentiable function: moments and mean slope from local draws."""
    handles = [t for t in tensors((call.args, call.kwargs)) if tape.get(t) is not None]
    given = [tape.of(t) for t in handles]
    places = {id(t): i for i, t in enumerate(handles)}

    def f(*values: Tensor) -> Any:
        def fill(t: Tensor) -> Tensor:
            return values[places[id(t)]] if id(t) in places else t

        kwargs = mapped({k: v for k, v in call.kwargs.items() if k != "inplace"}, fill)
        return plain(call)(*mapped(call.args, fill), **kwargs)

    before = torch_rng_bytes()
    results = f(*(m.mean for m in given))
    parts = list(tensors(results))
    drawn = torch_rng_bytes() != before
    if drawn or not any(part.is_floating_point() for part in parts):
        raise Uncarried(noises_of(tape, call), call.name)
    tape.linearized[call.name] = None
    order = {id(part): i for i, part in enumerate(parts)}

    def moment(part: Tensor) -> Any:
        if not part.is_floating_point():
            return part
        return _from_draws(tape, lambda *v: list(tensors(f(*v)))[order[id(part)]], given)

    if isinstance(results, Tensor):
        return moment(results)
    return mapped(results, lambda part: tape.put(m) if isinstance(m := moment(part), Moment) else m)


def _from_draws(tape: Tape, f: Callable[..., Tensor], given: list[Moment]) -> Moment:
    """Pairs of draws of opposite signs; the slope is the mean of those at the first of each."""
    half = LOCAL_DRAWS // 2
    generator = torch.Generator(device=given[0].mean.device).manual_seed(0)

    def deviations() -> list[Tensor]:
        return [
            m.variance.detach().clamp(min=0).sqrt()
            * torch.randn(m.mean.shape, generator=generator, device=m.mean.device).to(m.mean.dtype)
            for m in given
        ]

    means, pairs = [m.mean for m in given], [deviations() for _ in range(half)]
    draws = torch.stack([
        torch.stack([f(*(m + sign * d for m, d in zip(means, away, strict=True)))
                     for sign in (1, -1)])
        for away in pairs
    ])  # fmt: skip
    slopes = [_slope(tape, f, [m + d for m, d in zip(means, away, strict=True)]) for away in pairs]

    def linear(t: list[Tensor]) -> Tensor:
        return torch.stack([slope(t) for slope in slopes]).mean(0)

    mean, variance = draws.mean((0, 1)), draws.flatten(0, 1).var(0, unbiased=False)
    followed = torch.stack([linear(away).detach() for away in pairs])
    rest = (draws - mean - torch.stack([followed, -followed], 1)).square().mean((0, 1))
    tangent = tape.later(
        lambda: linear([m.tangent() for m in given]) + tape.source(rest, rest=True)
    )
    noises = frozenset[str]().union(*(m.noises for m in given))
    return Moment(mean, variance, tangent, noises, False, False, False)


def _slope(
    tape: Tape, f: Callable[..., Tensor], points: list[Tensor]
) -> Callable[[list[Tensor]], Tensor]:
    """Return t -> f'(points) t: the derivative of the derivative's transpose, which any f has."""
    create = tape.differentiable
    with torch.enable_grad():
        x = [p if create and p.requires_grad else p.detach().requires_grad_() for p in points]
        y = f(*x)
        u = torch.zeros_like(y, requires_grad=True)
        back = torch.autograd.grad(y, x, u, create_graph=True, allow_unused=True)

    def forward(t: list[Tensor]) -> Tensor:
        pairs = [(b, s) for b, s in zip(back, t, strict=True) if b is not None]
        if not pairs:
            return torch.zeros_like(y)
        firsts, seconds = zip(*pairs, strict=True)
        (made,) = torch.autograd.grad(firsts, u, seconds, create_graph=True, allow_unused=True)
        return torch.zeros_like(y) if made is None else made

    return forward
