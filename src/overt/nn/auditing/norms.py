"""Norms of weights: of single layers, and along paths from an input to an output.

The path norm psi_p is |products of weights along each path|_p. A recorded pass runs again on ones,
with weights |w|^p for w and without activations. Batch normalization in evaluation mode is a
weight, residual sums join paths, average pooling has weights 1/K and max pooling weights 1. A bias
is on no path from an input.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from overt._types import Floats
from overt.nn.auditing.report import LayerFindings, Measure
from overt.nn.auditing.structure import MOVES, Structure, is_unit_noise, module_of
from overt.nn.data.batches import first_line
from overt.nn.graph.record import RERUN_AS, Call, aten, op_info
from overt.nn.layers.dropconnect import DropConnectConv2d, DropConnectLinear

LAYERS = (nn.Linear, nn.modules.conv._ConvNd, DropConnectLinear, DropConnectConv2d)

MAX_DENSE = 512
"""Gram matrices up to this size are decomposed, larger ones have their top eigenvalue iterated."""


class LayerNorms:
    """The linear and convolutional layers of a model, and which of their inputs were always 0."""

    def __init__(self) -> None:
        self._largest: dict[str, Tensor] = {}
        self._from_data: set[str] = set()

    def add(self, name: str, module: Any, h: Tensor, *, from_data: bool) -> None:
        """Add what a layer was given; `from_data` says that it is the model's own input."""
        axis = h.ndim - 1 if module.weight.ndim == 2 else 1
        largest = h.abs().movedim(axis, 0).flatten(1).amax(1).cpu()
        before = self._largest.get(name)
        self._largest[name] = (
            largest if before is None else torch.maximum(before, largest)
        )
        if from_data:
            self._from_data.add(name)

    def findings(
        self, model: nn.Module
    ) -> tuple[list[LayerFindings], list[tuple[str, str]]]:
        """Return the layers that ran, and other modules with weights, with the reason."""
        found = []
        others: dict[str, list[str]] = {}
        for name, module in model.named_modules():
            if isinstance(module, LAYERS):
                if name in self._largest:
                    found.append(self._layer(name, module))
                continue
            has_weights = next(module.parameters(recurse=False), None) is not None
            if has_weights and not isinstance(module, nn.modules.batchnorm._NormBase):
                path = name or type(model).__name__
                others.setdefault(type(module).__name__, []).append(path)
        skipped = [
            (", ".join(names), f"{kind}: its weights are not among the layers' norms")
            for kind, names in others.items()
        ]
        return found, skipped

    def _layer(self, name: str, module: Any) -> LayerFindings:
        W = module.weight.detach().double().cpu().flatten(1).numpy()
        spectral = spectral_norm(W)
        frobenius = float(np.linalg.norm(W))
        return LayerFindings(
            name=name,
            shape=tuple(module.weight.shape),
            spectral=spectral,
            frobenius=frobenius,
            stable_rank=(frobenius / spectral) ** 2 if spectral else 0.0,
            inputs=len(self._largest[name]),
            dead=int((self._largest[name] == 0).sum()),
            from_data=name in self._from_data,
        )


def spectral_norm(W: Floats) -> float:
    """Return the largest singular value, from the smaller Gram matrix."""
    gram = W @ W.T if len(W) <= W.shape[1] else W.T @ W
    trace = float(gram.trace())
    if len(gram) > MAX_DENSE and 0 < trace < np.inf:
        from scipy.sparse.linalg import ArpackError, eigsh

        try:
            start = np.diag(gram) + trace
            top = eigsh(gram, 1, v0=start, return_eigenvectors=False, tol=1e-12)
            return math.sqrt(float(top[0]))
        except ArpackError:  # it did not converge
            pass
    return math.sqrt(max(float(np.linalg.eigvalsh(gram)[-1]), 0.0))


class NoPathError(Exception):
    """Raised at an operation through which paths are not defined; the message names it."""


def path_norms(structure: Structure) -> tuple[list[Measure], str | None]:
    """Return the l1 and l2 path norms, or none and the reason."""
    inputs = structure.recording.inputs
    if len(inputs) != 1 or not inputs[0][0].is_floating_point():
        return (
            [],
            "not defined through inputs that are not one tensor of numbers with a fraction",
        )
    found = []
    for p in (1, 2):
        try:
            value = path_norm(structure, p)
        except NoPathError as error:
            return [], f"not defined through {error}"
        except (RuntimeError, TypeError) as error:
            return [], first_line(error)
        found.append(
            Measure(f"l{p} path norm", value, f"|products of weights along paths|_{p}")
        )
    return found, None


def path_norm(structure: Structure, p: int) -> float:
    """Return psi_p of a recorded pass, or raise NoPathError."""
    x = structure.recording.inputs[0][0]
    ones = torch.zeros_like(x, dtype=torch.float64)
    ones[:1] = 1.0  # the first row alone, for models that add rows up
    with torch.no_grad():
        values = structure.rerun({id(x): ones}, partial(_follow, structure, p))
    return float(values[id(structure.output)][:1].sum()) ** (1 / p)


def _follow(
    structure: Structure, p: int, call: Call, args: Any, kwargs: dict[str, Any]
) -> Any:
    """Return the operation's result with weights |w|^p instead of w."""
    module = module_of(call)
    if module is not None:
        if is_unit_noise(module):
            return args[0]
        run = (
            module.convolve
            if isinstance(module, DropConnectConv2d)
            else functional.linear
        )
        return run(args[0], _path_weight(module.weight, p), None)
    info = op_info(call.func)
    name = info.name
    if name == "convolution":
        return call.func(args[0], _path_weight(args[1], p), None, *args[3:])
    if name in ("mm", "addmm"):
        x, weight = args[-2:]
        if not structure.depends(call.args[-1]):
            return x @ _path_weight(weight, p)
    if name == "native_batch_norm":
        return _batch_norm(p, *args)
    if name in MOVES - {"_to_copy"} or name == "sum":
        return RERUN_AS.get(call.func, call.func)(*args, **kwargs)
    if name in ("add", "sub") and kwargs.get("alpha", 1) == 1:
        # What does not depend on the inputs is a bias.
        pairs = zip(args[:2], call.args[:2], strict=True)
        return sum(a for a, own in pairs if structure.depends(own)).expand(
            call.out.shape
        )
    if name in ("cat", "stack"):
        pairs = zip(args[0], call.args[0], strict=True)
        parts = [
            a if structure.depends(own) else torch.zeros_like(a) for a, own in pairs
        ]
        return call.func(parts, *args[1:], **kwargs)
    if name == "mean" or "avg_pool" in name:
        return _average(name, call, args, kwargs, p)
    if "max_pool" in name and "adaptive" not in name:
        return _sum_pool(name, *args)
    activation = info.pointwise and name not in ("mul", "div", "neg", "sub", "rsub")
    if activation and [*map(id, structure.given(call))] == [id(call.args[0])]:
        return args[0]
    raise NoPathError(name.lstrip("_"))


def _path_weight(weight: Tensor, p: int) -> Tensor:
    return weight.detach().double().abs() ** p


def _batch_norm(
    p: int,
    x: Tensor,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    training: bool,
    *rest: Any,
) -> tuple[Tensor]:
    if training:
        raise NoPathError("batch_norm without running statistics")
    eps = rest[1]
    scale = torch.rsqrt(variance.double() + eps)
    if weight is not None:
        scale = scale * weight.detach().double()
    return (x * (scale.abs() ** p).reshape(1, -1, *(1 for _ in x.shape[2:])),)


def _average(name: str, call: Call, args: Any, kwargs: Any, p: int) -> Tensor:
    """Return averages over K entries with weights K^-p."""
    result = call.func(*args, **kwargs)
    x = args[0]
    if name == "mean":
        entries = x.numel() // result.numel()
    elif "adaptive" in name:
        sizes = list(zip(x.shape, result.shape, strict=True))
        if any(n % m for n, m in sizes):
            raise NoPathError("adaptive average pooling with windows of several sizes")
        entries = math.prod(n // m for n, m in sizes)
    else:
        _, kernel, _, _, ceil_mode, count_padding, divisor = _with_defaults(
            args, (None, None, [], 0, False, True, None)
        )
        if ceil_mode or not count_padding or divisor is not None:
            raise NoPathError("average pooling with windows of several sizes")
        entries = _window_entries(kernel, x)
    return result / entries ** (p - 1)


def _sum_pool(name: str, *args: Any) -> tuple[Tensor]:
    """Return sums over the windows of max pooling: every entry may be the largest."""
    x, kernel, stride, padding, dilation, ceil_mode = _with_defaults(
        args, (None, None, [], 0, 1, False)
    )
    if ceil_mode or any(
        d != 1 for d in ([dilation] if isinstance(dilation, int) else dilation)
    ):
        raise NoPathError("max pooling with dilation or ceil_mode")
    average = aten.avg_pool3d if "3d" in name else aten.avg_pool2d
    return (average(x, kernel, stride, padding) * _window_entries(kernel, x),)


def _with_defaults(args: Any, defaults: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*args, *defaults[len(args) :])


def _window_entries(kernel: Any, x: Tensor) -> int:
    return math.prod(kernel) if len(kernel) > 1 else kernel[0] ** (x.ndim - 2)
