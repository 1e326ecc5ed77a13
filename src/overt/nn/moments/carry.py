"""Means and variances, carried forward through a model as it runs.

Each tensor that noise has reached is a `Moment`: a mean, a variance per entry, and a **tangent**,
the deviation from the mean in the linearized network as a function of the noise's sources. Rules
(`rules` for what a model computes, `noises` for what it draws) say what becomes of a moment in each
operation. A non-linear function becomes the affine map of least squares at N(mean, variance), plus
a source of its own for the variance that is left. Paths are summed in the tangent before anything
is squared, so that correlations are those of the linearized network, exactly; the variances per
entry, which ignore them, only choose the slopes.

The tangent is a function either of one `step` per source, which starts at 0 and is differentiated
(see `adjoint`), or of a draw (`probe`), whose squares have the right expectation: then one pass
does for training.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from overt._check import InputError, InputTypeError
from overt.nn.data.models import Statistics, modes, unwrap_model
from overt.nn.data.rng import python_rng_states, repeat_pass, seeded, torch_rng_bytes
from overt.nn.layers.base import NoiseLayer
from overt.nn.moments.adjoint import Layouts, Sources
from overt.nn.moments.rules import apply
from overt.nn.moments.tape import Moment, Tape, Uncarried
from overt.nn.recording.watching import called, is_noise, mapped, tensors, watch

Output = Callable[[Any], Any] | None
DRAWS = 100
"""Passes in which noise that cannot be carried is drawn."""

UNSEEN = "noise that is not seen"
"""The name of what is random without a call that was seen to draw."""

FAR = 100.0
"""Standard deviations from the mean that no sample is, whatever the noise."""


@dataclass(frozen=True, eq=False)
class Carried:
    """A model's output with its moments; of variance 0 if no noise reaches it.

    `tape` knows the noises that were `met`, in order, those that were `drawn`, operations that were
    `linearized` at local draws, and `coarse` noises, which have but one number for a row.
    """

    output: Moment
    tape: Tape

    @property
    def noises(self) -> tuple[str, ...]:
        """All noises that were met, in order."""
        return tuple(self.tape.met)

    @property
    def drawn(self) -> tuple[str, ...]:
        """The noises that were drawn."""
        return tuple(self.tape.was_drawn)

    @property
    def to_draw(self) -> set[str]:
        """The noises to draw: what was, and coins for whole rows where a linear map is far off."""
        reached = self.output.noises.intersection(self.tape.coarse)
        return {*self.drawn, *(() if self.output.exact else reached)}

    @property
    def tangent(self) -> Tensor:
        """The output's deviation as a function of the sources, or a draw of it."""
        return self.tape.tangent(self.output)

    def variances(self) -> Tensor:
        """Return the variance of each output, exact in the linearized network."""
        if self.output.known:
            return self.output.variance
        return self.tape.sources.variances(self.tangent)

    def parts(self) -> tuple[Tensor, Tensor]:
        """Return the variance of each output, and how much of it linear maps leave out."""
        if self.output.known:
            return self.output.variance, torch.zeros_like(self.output.variance)
        return self.tape.sources.parts(self.tangent)

    def covariances(self) -> Tensor:
        """Return the covariances of each row's outputs, (rows, outputs, outputs)."""
        grad = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.set_grad_enabled(grad):
            return self.tape.sources.covariances(self.tangent)

    def along(self, direction: Tensor) -> Tensor:
        """Var(w'output) for the row w of `direction` that belongs to each row."""
        return self.tape.sources.along(self.tangent, direction)


def carry(
    model: nn.Module,
    inputs: Any,
    *,
    output: Output = None,
    active: Collection[str] | None = None,
    drawn: Collection[str] = (),
    probe: bool = False,
    statistics: Statistics = "running",
    update: bool = False,
    layouts: Layouts | None = None,
) -> Carried:
    """Carry moments through one pass; what cannot be carried is drawn, and the rest carried.

    `active` names the noises that are on (None: all), `drawn` those of them that are drawn. Running
    statistics and counters of draws move on only if `update`; `layouts` are kept from pass to pass.
    """
    model, differentiable = unwrap_model(model), torch.is_grad_enabled()
    drawn, put_off = set(drawn), None if update else False
    while True:
        sources = Sources({} if layouts is None else layouts)
        tape = Tape(active, drawn, probe, differentiable, sources, put_off=put_off)
        try:
            with torch.inference_mode(False), modes(model, noise=True, statistics=statistics,
                                                    update=update):  # fmt: skip
                moment = _pass(model, own(inputs), output, tape, check=not update)
        except Uncarried as error:
            if not error.noises - drawn:
                raise
            drawn |= error.noises
            continue
        except InputError:
            raise
        except Exception as error:
            said(model, inputs, output, error)
            raise
        if not (tape.put_off and moment.exact):
            return Carried(moment, tape)
        put_off = None  # it is exact if covariances are worked out


def said(model: nn.Module, inputs: Any, output: Output, error: Exception) -> None:
    """Say so if the model cannot be run on its inputs at all."""
    try:
        repeat_pass(model, lambda: [picked(called(unwrap_model(model), own(inputs)), output)], 1)
    except InputError:
        raise
    except Exception:  # whatever the model's code raises
        shapes = ", ".join(f"{tuple(t.shape)} {t.dtype}" for t in tensors(inputs))
        kind, reason = type(error).__name__, (str(error).splitlines() or ["no reason given"])[0]
        raise InputError(f"the model cannot be run on x of {shapes}: {kind}: {reason}") from error


def passes(
    model: nn.Module,
    inputs: Any,
    *,
    output: Output = None,
    active: Collection[str] | None = None,
    statistics: Statistics = "running",
    draws: int = DRAWS,
) -> list[Carried]:
    """Carry one pass, or several where something is to be drawn."""
    settings: Any = {"output": output, "active": active, "statistics": statistics}
    first = carry(model, inputs, **settings)
    hidden = hidden_randomness(model, inputs, output, first)
    if not first.to_draw and not hidden:
        return [first]
    found = [carry(model, inputs, **settings, drawn=first.to_draw) for _ in range(draws)]
    if hidden:
        found[0].tape.was_drawn[UNSEEN] = None
    return found


def _pass(model: nn.Module, inputs: Any, output: Output, tape: Tape, *, check: bool) -> Moment:
    layers = [module for module in model.modules() if isinstance(module, NoiseLayer)]
    for module in layers:  # overt's layers are asked for their moments, not run
        module.training = False
    before = (torch_rng_bytes(), python_rng_states()) if check else None
    with torch.set_grad_enabled(tape.differentiable):
        result = watch(
            model, inputs, lambda call: apply(tape, call), output=output,
            leaves=lambda _, module: isinstance(module, NoiseLayer),
        )  # fmt: skip
        result = picked(result, None)
    if check and not tape.was_drawn and (torch_rng_bytes(), python_rng_states()) != before:
        tape.was_drawn[UNSEEN] = None
    return tape.of(result)


def own(inputs: Any) -> Any:
    """Return inputs that a pass may write to."""
    return mapped(inputs, Tensor.clone)


def picked(result: Any, output: Output) -> Tensor:
    """Return the output that counts."""
    result = result if output is None else output(result)
    if not isinstance(result, Tensor) or result.ndim < 1 or not result.is_floating_point():
        kind = f"{result.dtype}" if isinstance(result, Tensor) else type(result).__name__
        raise InputError(
            f"model must return one tensor of numbers with a row for each input, got {kind}; say "
            "which output counts, such as output=lambda o: o.logits"
        )
    return result


def checked(model: Any, x: Any, output: Any = None) -> nn.Module:
    """Return the model, as a container if it is a bare noise layer, after checking its input."""
    if output is not None and not callable(output):
        raise InputTypeError(f"output must be a function that picks an output, got {output!r:.60}")
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    given = list(tensors(x)) if isinstance(x, (Tensor, tuple, list, dict)) else []
    if not given:
        raise InputTypeError(
            f"x must be a tensor, or a tuple or dictionary of them, got {type(x).__name__}; "
            "torch.as_tensor makes one of an array"
        )
    weights = [w for m in model.modules() for w in m._parameters.values() if w is not None]
    if any(nn.parameter.is_lazy(weight) or weight.is_meta for weight in weights):
        raise InputError("model must have its weights: run a lazy module on a batch, load others")
    if any(weight.is_complex() for weight in weights):
        raise InputTypeError("model must have real weights, got complex ones: noise is real here")
    odd = [t for t in given if t.layout != torch.strided or t.is_meta or t.is_nested]
    if odd:
        raise InputTypeError(
            f"x must be dense and hold numbers, got {odd[0].layout} on {odd[0].device}"
        )
    if isinstance(x, Tensor) and (len(x.shape) < 1 + x.is_floating_point() or len(x) == 0):
        raise InputError(f"x must have a batch axis and at least one row, got {tuple(x.shape)}")
    return nn.Sequential(model) if is_noise(model) else model


def plain_output(
    model: nn.Module, inputs: Any, output: Output, statistics: Statistics = "running",
    *, grad: bool = False,
) -> Tensor:  # fmt: skip
    """Return the output without noise, also of a model whose noise is always on."""
    with torch.inference_mode(False), torch.set_grad_enabled(grad), seeded(0):
        before = torch_rng_bytes()
        with modes(model, noise=False, statistics=statistics):
            result = picked(called(unwrap_model(model), own(inputs)), output)
        if torch_rng_bytes() != before:
            one = carry(model, inputs, output=output, active=(), statistics=statistics)
            result = one.output.mean
        return result


def hidden_randomness(model: nn.Module, inputs: Any, output: Output, one: Carried) -> bool:
    """Whether something is random that was not seen in a pass.

    Two passes from the same states of generators differ if it has one of its own; a pass is far
    from what was carried if it was missed. Asked once for each structure of a model.
    """

    def ask() -> bool:
        inner = unwrap_model(model)

        def run() -> list[Tensor]:
            return [picked(called(inner, own(inputs)), output)]

        (first,), hidden = repeat_pass(model, run, 2)
        if not hidden and one.output.known and not one.drawn:
            mean, sd = one.output.mean.detach(), one.output.variance.detach().clamp(min=0).sqrt()
            away = first - mean
            hidden = bool((away.abs() > FAR * sd + 0.01 * away.square().mean().sqrt()).any())
            hidden &= not torch.allclose(first, mean, 1e-2, 1e-2)
        return hidden

    return bool(remembered(model, output, "hidden", ask))


def remembered(model: nn.Module, output: Output, what: Any, ask: Callable[[], Any]) -> Any:
    """Return the answer to a question that is asked once for each structure of a model.

    Settings that are numbers or words, such as a probability or a switch, belong to the structure.
    """
    signature = ([_settings(m) for m in model.modules()], getattr(output, "__code__", output))
    known = _answers.get(model)
    if known is None or known[0] != signature:
        known = _answers[model] = (signature, {})
    if what not in known[1]:
        known[1][what] = ask()
    return known[1][what]


def _settings(module: nn.Module) -> list[Any]:
    told, own = [type(module), *module._modules.keys()], vars(module)
    told += [*own.get("_forward_hooks", ()), *own.get("_forward_pre_hooks", ())]
    for name, value in own.items():
        if name[0] != "_" and name != "training" and isinstance(value, _TELLING):
            told.append(value if type(value) is not FunctionType else id(value))
    return told


_TELLING = (bool, int, float, str, FunctionType)


_answers: WeakKeyDictionary[nn.Module, tuple[Any, dict[Any, Any]]] = WeakKeyDictionary()
