"""Mean and variance of a model's output: apply the rules to a recording, go back to the sources."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from overt.nn.graph.record import (
    RERUN_AS,
    Call,
    LayerNoise,
    Recording,
    UnsupportedError,
    aten,
    decompose_draw,
    decompositions,
    map_tree,
    op_info,
    store_results,
    tensors,
)
from overt.nn.moments import linear_rules, norm_rules  # noqa: F401 (registers its rules)
from overt.nn.moments.backward import (
    OutputVariances,
    output_covariances,
    output_variances,
    variance_along,
)
from overt.nn.moments.pointwise_rules import is_pointwise, pointwise
from overt.nn.moments.registry import (
    EXACT_OPERATIONS,
    RULES,
    Rule,
    find_values,
    refuse,
)
from overt.nn.moments.values import (
    NORMAL,
    SETTINGS,
    UNIFORM,
    Law,
    Propagation,
    RandomTensor,
    Value,
    coin_law,
)

HALF_PRECISION = (torch.float16, torch.bfloat16)


@cache
def decompose(func: Any) -> Callable[..., Any] | None:
    """Return an operation's parts, None where there is a rule for the whole."""
    parts = decompose_draw(func)
    if parts is not None:
        return parts
    if func.overloadpacket in RULES or op_info(func).draws or is_pointwise(func):
        return None
    return decompositions().get(func)


IDENTITY = {aten.alias, aten.clone, aten.detach, aten.lift_fresh, aten.lift_fresh_copy}
"""Operations whose result is a function of the same root: the argument itself."""


def identity(run: Propagation, func: Any, x: Value, **options: Any) -> Value:
    """Return the argument itself."""
    return x


def entrywise(run: Propagation, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply an entrywise function, in single precision at least."""
    if kwargs.get("dtype") in HALF_PRECISION:
        kwargs["dtype"] = torch.float32
    return pointwise(run, func, *args, **kwargs)


@cache
def rule_for(func: Any) -> tuple[Rule | None, bool]:
    """Return an operation's rule, None for random calls, and whether it may be called exact."""
    exact = op_info(func).name in EXACT_OPERATIONS
    if op_info(func).draws:
        return None, exact
    if func.overloadpacket in IDENTITY:
        return identity, exact
    if is_pointwise(func):
        return entrywise, exact
    return RULES.get(func.overloadpacket, refuse), exact


def apply_rule(run: Propagation, call: Call, args: Any, kwargs: Any) -> Any:
    """Return what comes out of a call: a value, a tensor, or a list of them."""
    rule, exact = rule_for(call.func)
    run.enumerated &= exact
    if rule is None:
        return draw(run, call, args)
    return rule(run, call.func, *args, **kwargs)


# -- random calls ---------------------------------------------------------------------------------


_DRAWS = {
    "rand": (0.5, 1 / 12, UNIFORM),
    "rand_like": (0.5, 1 / 12, UNIFORM),
    "randn": (0.0, 1.0, NORMAL),
    "randn_like": (0.0, 1.0, NORMAL),
}
"""Mean, variance and law of the entries."""


def draw(run: Propagation, call: Call, args: Any) -> Any:
    """Return the moments of a random call; at its mean if it is off."""
    off = call.noise in run.off
    if isinstance(call.func, LayerNoise):
        return args[0] if off else masked_by_layer(run, call.func.layer, args[0])
    name = op_info(call.func).name
    out = call.out
    if name != "bernoulli" and name not in _DRAWS:
        raise UnsupportedError(f"{name} returns random numbers of a law without a rule")
    out = out.to(torch.promote_types(torch.float32, run.dtype))
    if name == "bernoulli":
        p = args[1] if len(args) > 1 else args[0]
        if isinstance(p, Value):
            raise UnsupportedError("a probability is random itself")
        law = None if isinstance(p, Tensor) else coin_law(p)
        mean = torch.as_tensor(p, dtype=out.dtype, device=out.device).expand(out.shape)
        var = (mean * (1 - mean)).expand(out.shape)
    else:
        center, size, law = _DRAWS[name]
        mean = torch.full_like(out, center)
        var = torch.full_like(out, size)
    if not off:
        return run.draw(mean, var, law)
    if law is not UNIFORM:
        return mean
    # A comparison may still make a coin of it, whose mean counts then.
    zero = torch.zeros_like(mean)
    return Value(RandomTensor(mean, zero, zero, frozenset(), law))


@dataclass(frozen=True, eq=False)
class RowCovariance:
    """Covariances of the units of each row, (rows, units, units)."""

    matrix: Tensor

    def apply(self, g: Tensor) -> Tensor:
        """Return Cov @ g for gradients g of shape (n, rows, *units)."""
        return torch.einsum("rkl,nrl->nrk", self.matrix, g.flatten(2)).reshape(g.shape)


def masked_by_layer(run: Propagation, layer: Any, given: Any) -> Any:
    """x o m with a mask m of mean 1 and covariance Gamma: Cov = S + Gamma o (S + E[x] E[x]')."""
    x = given.moments(run) if isinstance(given, Value) else None
    mean = given if x is None else x.mean
    covariance = layer.mask_covariance(tuple(mean.shape))
    strength = covariance.relative_variance(mean).expand(mean.shape)
    run.draws += 1
    noises = frozenset({run.draws})
    if run.sampled:
        away = layer(torch.ones_like(mean)) - 1
    else:
        away = run.source(strength, covariance=covariance)
    coins = None
    if layer.two_valued:
        # Functions of x o m are functions of the coins m, 0 or 1 / P(m > 0) = 1 + strength.
        ones = torch.ones_like(mean)
        nodes = torch.stack([torch.zeros_like(mean), 1 + strength])
        law = Law(nodes, torch.stack([strength, ones]) / (1 + strength))
        coins = RandomTensor(ones, strength, away, noises, law, independent=False)
        if x is None:
            return pointwise(run, aten.mul.Tensor, Value(coins), mean)
    own = run.fixed(mean) * away
    var = strength * mean * mean
    if x is None:
        return Value(RandomTensor(mean, var, own, noises, independent=False))
    exact = x.exact and x.known and x.independent
    product = None
    few = x.units <= SETTINGS.max_units
    if x.exact and not exact and few and not run.sampled:
        S = output_covariances(x.dev, run.sources, graph=run.grad)
        product = RowCovariance(covariance.dense(mean) * S)
        x = x.changed(var=S.diagonal(dim1=1, dim2=2).reshape(mean.shape))
        exact = True
    both = strength * x.var
    extra = (
        x.dev * away
        if run.sampled
        else run.source(both, covariance=product, rest=not exact)
    )
    dev = x.dev + own + extra
    if not exact:  # the last part counts as independent entries, which it is not
        dev = run.doubt(dev, both)
    return Value(
        x.changed(
            var=x.var + var + both,
            dev=dev,
            noises=x.noises | noises,
            exact=exact,
            known=exact,
            derived=max(1, x.derived),
            independent=False,
            roots=() if coins is None else ((given.root, coins),),
            function=lambda points, cache: given.at(points, cache) * points[coins],
        )
    )


# -- a whole recording -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PropagatedOutput:
    """A model's output as a random tensor, and the pass that it comes from."""

    output: RandomTensor
    run: Propagation

    @property
    def exact(self) -> bool:
        """Whether mean and variance are exact but for rounding."""
        return self.output.exact and self.run.enumerated

    @property
    def mean(self) -> Tensor:
        """The mean, without gradients unless the pass has them."""
        mean: Tensor = self.run.fixed(self.output.mean)
        return mean

    @cached_property
    def variances(self) -> OutputVariances:
        """The variance of each output, and what is known of its parts."""
        if self.output.known:
            var = self.run.fixed(self.output.var)
            return OutputVariances(var, *[torch.zeros_like(var)] * 3)
        return self._differentiated(output_variances)

    def covariances(self) -> Tensor:
        """Return the covariances of each row's outputs, (rows, outputs, outputs)."""
        return self._differentiated(output_covariances)

    def along(self, direction: Tensor) -> Tensor:
        """Return Var(w'output) over the classes, axis 1, with weights w in `direction`."""
        if self.output.product is not None:
            var, weight = self.output.product
            return (var * (direction @ weight.mT) ** 2).sum(1)
        return self._differentiated(variance_along, direction)

    def _differentiated(self, function: Any, *args: Any) -> Any:
        graph = self.run.grad
        try:
            found = function(self.output.dev, self.run.sources, *args, graph=graph)
        except RuntimeError as error:  # a derivative that an operation does not have
            raise UnsupportedError(str(error).splitlines()[0][:100]) from error
        if graph:
            return found
        if isinstance(found, Tensor):
            return found.detach()
        return OutputVariances(*(part.detach() for part in found))

    @property
    def finite(self) -> bool:
        """Whether mean and variances are numbers."""
        means = torch.isfinite(self.mean).all()
        return bool(means & torch.isfinite(self.variances.total).all())


def propagate(recording: Recording, run: Propagation | None = None) -> PropagatedOutput:
    """Return the output of a recorded pass as a random tensor; UnsupportedError: sample instead."""
    run = run or Propagation()
    found = interpret(recording, run)
    if isinstance(found, Tensor):
        run.sources = []
        zero = torch.zeros_like(found)
        found = RandomTensor(found, zero, zero, frozenset())
    return PropagatedOutput(found, run)


def propagate_with_corrections(
    recording: Recording, grad: bool = False
) -> PropagatedOutput:
    """Propagate; where it is cheap, products of factors that share noise have the right mean.

    The covariance of the factors comes from a few random directions.
    """
    found = propagate(recording, Propagation(grad=grad))
    calls = sum(call.noisy for call in recording.calls)
    if not found.run.shared or calls > SETTINGS.max_direction_calls:
        return found
    count = SETTINGS.directions
    passes: list[list[Tensor]] = [[] for _ in range(count)]
    with torch.no_grad():
        for cross in passes:
            interpret(recording, Propagation(sampled=True, cross=cross))
    samples = (torch.stack(values) for values in zip(*passes, strict=True))
    corrections = ((t.mean(0), t.std(0) / count**0.5) for t in samples)
    return propagate(recording, Propagation(grad=grad, corrections=corrections))


def interpret(recording: Recording, run: Propagation) -> RandomTensor | Tensor:
    """Apply the rules in the recorded order; return a tensor if nothing random reaches the output.

    What is certain is as recorded, or with `run.grad` worked out again with gradients.
    """
    run.dtype = recording.output.dtype
    made: dict[int, Any] = {}
    if run.grad:
        made = {id(inner): given for inner, given in recording.inputs}

    def now(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        found = made.get(id(leaf), leaf)
        if found is None:
            raise UnsupportedError("noise decides on places")
        if isinstance(found, Tensor):
            if found.dtype in HALF_PRECISION:
                found = found.float()
            if not run.grad and found.requires_grad:
                found = found.detach()
        return found

    def at_mean(leaf: Any) -> Any:
        """Return the mean of a noise that is off, anything else as it is."""
        if not isinstance(leaf, Value) or leaf.root.noises:
            return leaf
        if leaf.found is not None or _is_coin(leaf):
            return leaf.moments(run).mean
        return leaf.at({leaf.root: leaf.root.mean}, {})

    with torch.set_grad_enabled(run.grad or not run.sampled):
        for call in recording.calls:
            if not call.noisy and not run.grad:
                continue
            args = map_tree(tuple(call.args), now)
            kwargs = map_tree(call.kwargs, now)
            given = find_values((*args, *kwargs.values()))
            if given and not (call.noise or is_pointwise(call.func)):
                linear_rules.refuse_random_places(call.func, args)
            if run.off and not (call.noise or _still_off(call, given)):
                args = map_tree(args, at_mean)
                kwargs = map_tree(kwargs, at_mean)
                given = find_values((*args, *kwargs.values()))
            if not call.noisy:
                # What depends on other inputs than those recorded is worked out again.
                again = recording.reused and any(id(t) in made for t in call.inputs)
                if given or not (again or needs_grad(args, kwargs)):
                    continue  # only a shape is used, or there is nothing to differentiate
            if call.noise or given:
                out = apply_rule(run, call, args, kwargs)
            else:
                out = RERUN_AS.get(call.func, call.func)(*args, **kwargs)
            if run.off and _is_coin(out) and call.out.is_floating_point():
                out = at_mean(out)
            store_results(made, call.out, out)
        found = at_mean(now(recording.output))
        return found.moments(run) if isinstance(found, Value) else found


def _still_off(call: Call, given: list[Value]) -> bool:
    """Whether an entrywise function of noises that are off alone may become a coin."""
    same = is_pointwise(call.func) or call.func.overloadpacket in IDENTITY
    return same and not any(value.root.noises for value in given)


def _is_coin(out: Any) -> bool:
    law = out.root.law if isinstance(out, Value) else None
    return law is not None and law.is_coin


def needs_grad(args: Any, kwargs: Any) -> bool:
    """Whether a result would have gradients; what has none is as recorded."""
    return any(tensor.requires_grad for tensor in tensors((*args, *kwargs.values())))
