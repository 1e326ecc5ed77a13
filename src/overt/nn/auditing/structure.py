"""The structure of a recorded forward pass: where the network is affine, and where noise is.

Walking back from the output shows through which affine operations, and which noise layers among
them, the output depends on what came before: the **tail** of the network.
"""

from __future__ import annotations

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
from overt.nn.layers.recognized import is_unit_noise, known_noise


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


MOVES = _names(
    "view _unsafe_view t transpose permute squeeze unsqueeze clone alias detach lift_fresh flip "
    "roll pixel_shuffle pixel_unshuffle channel_shuffle _to_copy"
)
"""Operations that give each entry once, in another order, shape or number format."""

SHIFTS = _names(
    "add sub rsub addmm baddbmm "
    "slice select split split_with_sizes unbind index index_select gather diagonal tril triu "
    "unfold constant_pad_nd masked_fill where slice_scatter select_scatter index_put copy cat "
    "stack"
)
"""Operations that add a constant where one argument depends on the inputs, or that leave entries
out or put constants beside them."""

LINEAR = _names(
    "expand repeat mm bmm mv dot convolution mean sum cumsum mul neg div avg_pool2d avg_pool3d "
    "_adaptive_avg_pool2d _adaptive_avg_pool3d upsample_nearest1d upsample_nearest2d "
    "upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d "
    "upsample_trilinear3d native_batch_norm"
)
"""Other operations that are linear in one argument, all others being fixed."""


@dataclass(frozen=True, eq=False)
class Point:
    """A place on the way back from a tensor: the input `features` of an affine operation.

    `module` is None where that is no noise layer and no torch.nn.Linear. `shifted` says that a bias
    is added behind the place. `narrowest` is the fewest units that anything from here to the tensor
    passes through: no map behind this place has a larger rank.
    """

    call: Call
    module: nn.Module | None
    features: Tensor
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

    def units(self, tensor: Tensor) -> int:
        """Return the number of entries per sample."""
        return tensor.numel() // self._rows

    def uses(self, module: nn.Module | None) -> list[Call]:
        """Return the calls of a module that is one operation."""
        return [call for call in self.calls if module_of(call) is module]

    def before_log_softmax(self) -> Tensor:
        """Return the output, before a final log_softmax if there is one."""
        maker = self._makers.get(id(self.output))
        if maker is None or op_info(maker.func).name != "_log_softmax":
            return self.output
        (before,) = self.given(maker)
        return before

    def walk_back(self, tensor: Tensor) -> tuple[list[Point], str]:
        """Return the affine operations of one input that lead to a tensor, nearest first.

        The second result names the operation in front of them, "" if that is the input.
        """
        points: list[Point] = []
        shifted = False
        narrowest = self.units(tensor)
        while id(tensor) in self._makers:
            call = self._makers[id(tensor)]
            given = self.given(call)
            if not _is_affine(call, given):
                return points, op_info(call.func).name.lstrip("_")
            (tensor,) = given
            shifted |= _adds_constant(call)
            narrowest = min(narrowest, self.units(tensor))
            points.append(Point(call, module_of(call), tensor, shifted, narrowest))
        return points, ""

    def jacobian(self, features: Tensor, output: Tensor) -> Tensor:
        """Return d output / d features of the first row, outputs x units, in double precision."""

        def first_output(x: Tensor) -> Tensor:
            made: dict[int, Any] = {id(features): x}

            def now(leaf: Any) -> Any:
                return made.get(id(leaf), leaf) if isinstance(leaf, Tensor) else leaf

            for call in self.calls:
                if any(id(tensor) in made for tensor in _arguments(call)):
                    run = RERUN_AS.get(call.func, call.func)
                    args = map_tree(tuple(call.args), now)
                    result = run(*args, **map_tree(call.kwargs, now))
                    store_results(made, call.out, result)
            return made[id(output)][0].flatten()

        J = torch.autograd.functional.jacobian(first_output, features)
        return J[:, 0].flatten(1).double().cpu()


def _is_affine(call: Call, given: list[Tensor]) -> bool:
    """Return whether an operation is affine in the one tensor that depends on the inputs."""
    if len(given) != 1 or module_of(call) is not None:
        return len(given) == 1
    made = tensors((call.out,))
    if not all(tensor.is_floating_point() for tensor in (*given, made[0])):
        return False
    name = op_info(call.func).name
    if name in ("div", "native_batch_norm") and given[0] is not call.args[0]:
        return False
    if name == "native_batch_norm" and call.args[5]:  # the batch's statistics
        return False
    return name in MOVES or name in SHIFTS or name in LINEAR


def _arguments(call: Call) -> list[Tensor]:
    return tensors((*call.args, *call.kwargs.values()))


def module_of(call: Call) -> Any:
    """Return the module that an operation stands for, None for an operation of torch."""
    return call.func.module if isinstance(call.func, WholeModule) else None


def is_linear_map(call: Call) -> bool:
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
    return name in SHIFTS or name == "native_batch_norm"


def only_moves(call: Call) -> bool:
    """Return whether an operation only moves entries, or multiplies them by noise in training."""
    module = module_of(call)
    return op_info(call.func).name in MOVES if module is None else is_unit_noise(module)
