"""Mean and variance of a model's output: record, apply the rules, go back to the sources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from overt.nn.graph.record import Recording, UnsupportedError, record, tensors
from overt.nn.graph.state import Output, Statistics, checked_model, untouched
from overt.nn.propagation.backward import output_covariances, output_variances
from overt.nn.propagation.linear_rules import RERUN_AS
from overt.nn.propagation.registry import find_values, map_tree
from overt.nn.propagation.rules import HALF_PRECISION, apply_rule, decompose
from overt.nn.propagation.values import Propagation, RandomTensor, Value


@dataclass(frozen=True, eq=False)
class PropagatedMoments:
    """Moments of an output.

    Attributes
    ----------
    exact
        Whether mean and variance are exact but for rounding.
    covariance
        (rows, outputs, outputs), if it was asked for.
    noises
        Names of the noises that reach the output.
    sampled_operations
        Operations without a rule, whose moments are from a few local samples.
    """

    mean: Tensor
    variance: Tensor
    exact: bool
    covariance: Tensor | None
    noises: tuple[str, ...]
    sampled_operations: tuple[str, ...]


def propagated_moments(
    model: nn.Module,
    x: Any,
    *,
    output: Output = None,
    covariance: bool = False,
    statistics: Statistics = "running",
) -> PropagatedMoments:
    """Return moments of the model's output under its noise; UnsupportedError: sample instead."""
    model = checked_model(model, x, output)
    with untouched(model) as saved, torch.inference_mode(False):
        recording = record(saved, x, output, decompose=decompose, statistics=statistics)
        return moments_of(recording, covariance=covariance)


def moments_of(recording: Recording, *, covariance: bool = False) -> PropagatedMoments:
    """Return moments of the output of a recorded pass."""
    run = Propagation()
    found = interpret(recording, run)
    if isinstance(found, Tensor):
        run.sources = []
        zero = torch.zeros_like(found)
        found = RandomTensor(found, zero, zero, frozenset())
    mean = found.mean.detach()
    try:
        variance = found.var if found.known else output_variances(found.dev, run.sources)
        matrix = output_covariances(found.dev, run.sources) if covariance else None
    except RuntimeError as error:  # a derivative that an operation does not have
        raise UnsupportedError(str(error).splitlines()[0][:100]) from error
    if not bool(torch.isfinite(variance).all() & torch.isfinite(mean).all()):
        raise UnsupportedError("moments leave the range of numbers")
    return PropagatedMoments(
        mean,
        variance.detach(),
        found.exact,
        matrix,
        recording.noises,
        tuple(run.unknown),
    )


def interpret(recording: Recording, run: Propagation) -> RandomTensor | Tensor:
    """Apply the rules in the recorded order; return a tensor if nothing random reaches the output.

    What is certain is as recorded, or with `run.grad` worked out again with gradients.
    """
    made: dict[int, Any] = {}

    def now(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        found = made.get(id(leaf), leaf)
        if found is None:
            raise UnsupportedError("noise decides on places")
        if isinstance(found, Tensor):
            if found.dtype in HALF_PRECISION:
                found = found.float()
            if not run.grad:
                found = found.detach()
        return found

    with torch.enable_grad():
        for call in recording.calls:
            if not call.noisy and not run.grad:
                continue
            args = map_tree(tuple(call.args), now)
            kwargs = map_tree(call.kwargs, now)
            rerun = call.noise in run.sampled_noises and bool(call.noise)
            if rerun or not (call.noise or find_values((args, kwargs))):
                out = RERUN_AS.get(call.func, call.func)(*args, **kwargs)
            else:
                run.current = call.noise
                out = apply_rule(run, call, args, kwargs)
                if call.noise in run.off:
                    out = out.moments(run).mean
            _store(made, call.out, out)
        found = now(recording.output)
        return found.moments(run) if isinstance(found, Value) else found


def _store(made: dict[int, Any], recorded: Any, out: Any) -> None:
    """Note the values of a call's results; results without a value may not be used."""
    before = tensors((recorded,))
    after = list(out) if isinstance(out, (list, tuple)) else [out]
    after += [None] * (len(before) - len(after))
    made.update(zip(map(id, before), after, strict=True))
