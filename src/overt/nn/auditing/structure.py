"""The structure of a recorded forward pass: where the network is affine, and where noise is.

Walking back from the output answers two questions. Through which affine operations, and which noise
layers among them, does the output depend on what came before (the **tail**)? Is what comes before
affine in the inputs, or even the inputs themselves (the **trunk**)?
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from overt.nn.data.batches import Inputs
from overt.nn.graph.record import (
    RERUN_AS,
    Call,
    Recording,
    WholeModule,
    map_tree,
    op_info,
    record,
    store_results,
    tensors,
)
from overt.nn.graph.state import untouched
from overt.nn.layers.recognized import is_weight_noise, known_noise


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


MOVES = _names(
    "view _unsafe_view t transpose permute squeeze unsqueeze clone alias detach lift_fresh flip "
    "roll pixel_shuffle pixel_unshuffle channel_shuffle _to_copy"
)
"""Operations that give each entry once, in another order, shape or number format."""

SELECTS = _names(
    "slice select split split_with_sizes unbind index index_select gather diagonal tril triu "
    "unfold constant_pad_nd masked_fill where slice_scatter select_scatter index_put copy cat "
    "stack"
)
"""Operations that leave entries out, or put constants beside them."""

SUMS = frozenset(("add", "sub", "rsub", "addmm", "baddbmm"))
"""Operations that add a constant, where only one argument depends on the inputs."""

LINEAR = _names(
    "expand repeat mm bmm mv dot convolution mean sum cumsum mul neg div avg_pool2d avg_pool3d "
    "_adaptive_avg_pool2d _adaptive_avg_pool3d upsample_nearest1d upsample_nearest2d "
    "upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d "
    "upsample_trilinear3d"
)
"""Other operations that are linear in one argument, all others being fixed."""


@dataclass(frozen=True, eq=False)
class Point:
    """A place in the tail: the input `features` of a noise layer or of a linear layer.

    `module` is None where the linear map is no torch.nn.Linear. `shifted` says that a bias is added
    behind the place. `narrowest` is the fewest units that anything from here to the output passes
    through: no map behind this place has a larger rank.
    """

    call: Call
    module: nn.Module | None
    features: Tensor
    shifted: bool
    narrowest: int


@dataclass(frozen=True, eq=False)
class Tail:
    """The affine operations at the end of a network, one after another."""

    noises: tuple[Point, ...]  # the one nearest the output first
    linear: Point | None  # the last linear map
    stopped: str  # the operation in front of the tail, or "the input"


@dataclass(frozen=True, eq=False)
class Trunk:
    """What lies before a place: "fixed" (the inputs themselves), "affine", or "any".

    `shifted` and `narrowest` are as for a Point, for the way from the inputs to the place.
    """

    kind: str
    shifted: bool
    narrowest: int


def record_structure(model: nn.Module, inputs: Inputs) -> Structure:
    """Record a pass without noise; noise layers and linear layers are one operation each."""
    with untouched(model) as saved:
        recording = record(
            saved, inputs.given, inputs.output, noise=False, whole=_is_whole
        )
    return Structure(recording, len(inputs))


def _is_whole(module: nn.Module, args: Any) -> bool:
    """Whether a module is one operation: nothing but its own code runs on its one input."""
    known = known_noise(module) or type(module).forward is nn.Linear.forward
    changed = "forward" in vars(module) or module._forward_pre_hooks
    return known and not changed and len(args) == 1 and isinstance(args[0], Tensor)


class Structure:
    """A recorded pass of some rows, and which of its tensors depend on the inputs."""

    def __init__(self, recording: Recording, rows: int) -> None:
        self.recording = recording
        self.calls = recording.calls
        self.output = recording.output
        self._rows = rows
        self._dependent = {id(tensor) for tensor, _ in recording.inputs}
        self._makers: dict[int, Call] = {}
        for call in self.calls:
            if self.given(call):
                made = tensors((call.out,))
                self._dependent.update(map(id, made))
                self._makers.update((id(tensor), call) for tensor in made)

    def given(self, call: Call) -> list[Tensor]:
        """Return the arguments of an operation that depend on the inputs."""
        return [t for t in _arguments(call) if id(t) in self._dependent]

    def depends(self, tensor: Any) -> bool:
        """Return whether a value depends on the inputs."""
        return id(tensor) in self._dependent

    def units(self, tensor: Tensor) -> int:
        """Return the number of entries per sample."""
        return tensor.numel() // self._rows

    def uses(self, module: nn.Module | None) -> list[Call]:
        """Return the calls of a module that is one operation."""
        return [call for call in self.calls if module_of(call) is module]

    def logits(self, *, log_softmax: bool) -> Tensor:
        """Return the output, before a final log_softmax if that is to be skipped."""
        maker = self._makers.get(id(self.output))
        if (
            log_softmax
            and maker is not None
            and op_info(maker.func).name == "_log_softmax"
        ):
            (before,) = self.given(maker)
            return before
        return self.output

    def back(self, tensor: Tensor) -> Iterator[Call]:
        """Yield the operations that lead to a tensor, nearest first, while there is one path."""
        while id(tensor) in self._makers:
            call = self._makers[id(tensor)]
            yield call
            given = self.given(call)
            if len(given) != 1:
                return
            (tensor,) = given

    def tail(self, output: Tensor) -> Tail:
        """Walk back from the output through affine operations of one input."""
        noises: list[Point] = []
        linear = None
        stopped = "the input"
        shifted = False
        narrowest = self.units(output)
        for call in self.back(output):
            if not self._is_affine(call):
                stopped = op_info(call.func).name.lstrip("_")
                break
            (features,) = self.given(call)
            shifted |= _adds_constant(call)
            narrowest = min(narrowest, self.units(features))
            module = module_of(call)
            place = Point(call, module, features, shifted, narrowest)
            if module is not None and known_noise(module):
                noises.append(place)
            if linear is None and _is_linear_map(call):
                linear = place
        return Tail(tuple(noises), linear, stopped)

    def trunk(self, point: Point) -> Trunk:
        """Return what leads from the inputs to a place in the tail."""
        kind = "fixed"
        shifted = False
        source = point.features
        narrowest = self.units(source)
        for call in self.back(source):
            if not self._is_affine(call):
                return Trunk("any", shifted, narrowest)
            if not _only_moves(call):
                kind = "affine"
            shifted |= _adds_constant(call)
            (source,) = self.given(call)
            narrowest = min(narrowest, self.units(source))
        return Trunk(kind, shifted, narrowest)

    def only_weight(self, point: Point, output: Tensor) -> Tensor | None:
        """Return the weight of the one linear layer behind a place, None if there is more."""
        behind: list[Call] = []
        for call in self.back(output):
            if call is point.call:
                break
            behind.append(call)
        if point.module is None or not is_unit_noise(point.module):
            behind.append(point.call)
        module = module_of(behind[0]) if len(behind) == 1 else None
        if module is None or module.weight.shape[1:] != (self.units(point.features),):
            return None
        return module.weight

    def jacobian(self, features: Tensor, output: Tensor) -> Tensor:
        """Return d output / d features of the first row, outputs x units, in double precision."""
        x = features.detach().clone().requires_grad_()
        with torch.enable_grad():
            outputs = self.rerun({id(features): x}, _run_again)[id(output)][0].flatten()
            rows = [
                torch.autograd.grad(
                    value, x, retain_graph=True, materialize_grads=True
                )[0]
                for value in outputs
            ]
        return torch.stack([row[0].flatten() for row in rows]).double().cpu()

    def rerun(self, made: dict[int, Any], run: Callable[..., Any]) -> dict[int, Any]:
        """Run what depends on other values of some tensors; return the new values by id.

        `run(call, args, kwargs)` returns what an operation gives.
        """

        def now(leaf: Any) -> Any:
            return made.get(id(leaf), leaf) if isinstance(leaf, Tensor) else leaf

        for call in self.calls:
            if any(id(tensor) in made for tensor in _arguments(call)):
                args = map_tree(tuple(call.args), now)
                store_results(
                    made, call.out, run(call, args, map_tree(call.kwargs, now))
                )
        return made

    def _is_affine(self, call: Call) -> bool:
        """Return whether an operation is affine in the one tensor that depends on the data."""
        given = self.given(call)
        if len(given) != 1:
            return False
        if module_of(call) is not None:
            return True
        made = tensors((call.out,))
        if not all(tensor.is_floating_point() for tensor in (*given, made[0])):
            return False
        name = op_info(call.func).name
        if name == "div":
            return given[0] is call.args[0]
        if name == "native_batch_norm":
            return given[0] is call.args[0] and not call.args[5]
        return name in MOVES or name in SELECTS or name in SUMS or name in LINEAR


def _arguments(call: Call) -> list[Tensor]:
    return tensors((*call.args, *call.kwargs.values()))


def _run_again(call: Call, args: Any, kwargs: Any) -> Any:
    return RERUN_AS.get(call.func, call.func)(*args, **kwargs)


def module_of(call: Call) -> Any:
    """Return the module that an operation stands for, None for an operation of torch."""
    return call.func.module if isinstance(call.func, WholeModule) else None


def is_unit_noise(module: nn.Module) -> bool:
    """Return whether a module multiplies units by noise whose moments are known."""
    return known_noise(module) and not is_weight_noise(module)


def _is_linear_map(call: Call) -> bool:
    """Return whether an operation applies a weight."""
    module = module_of(call)
    if module is not None:
        return not is_unit_noise(module)
    return op_info(call.func).name in ("mm", "addmm", "convolution")


def _adds_constant(call: Call) -> bool:
    """Return whether an affine operation may add a constant."""
    module = module_of(call)
    if module is not None:
        return getattr(module, "bias", None) is not None
    name = op_info(call.func).name
    if name == "convolution":
        return call.args[2] is not None
    return name in SUMS or name in SELECTS or name == "native_batch_norm"


def _only_moves(call: Call) -> bool:
    """Return whether an operation only moves entries, or multiplies them by noise in training."""
    module = module_of(call)
    return op_info(call.func).name in MOVES if module is None else is_unit_noise(module)
