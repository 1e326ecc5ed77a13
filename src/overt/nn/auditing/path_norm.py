"""Path norms: psi_p = |products of weights along each path from an input to an output|_p.

A recorded pass runs again on ones, with weights |w|^p for w and without activations. Batch
normalization in evaluation mode is a weight, residual sums join paths, average pooling has weights
1/K and max pooling weights 1. A bias is on no path from an input.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from overt.nn.auditing.report import Measure
from overt.nn.auditing.structure import Structure
from overt.nn.data.batches import first_line
from overt.nn.layers.dropconnect import DropConnectConv2d
from overt.nn.layers.recognized import is_weight_noise, known_noise
from overt.nn.recording.recorder import Operation, Recording, Value
from overt.nn.recording.watching import mapped, tensors


class NoPathError(Exception):
    """Raised at an operation through which paths are not defined; the message names it."""


def path_norms(structure: Structure) -> tuple[list[Measure], str | None]:
    """Return the l1 and l2 path norms, or none and the reason."""
    if structure.inputs.only is None:
        return [], "not defined through inputs that are not one tensor of numbers with a fraction"
    found = []
    for p in (1, 2):
        try:
            value = path_norm(structure.recording, p)
        except NoPathError as error:
            return [], f"not defined through {error}"
        except (RuntimeError, TypeError) as error:
            return [], first_line(error)
        found.append(Measure(f"l{p} path norm", value, f"|products of weights along paths|_{p}"))
    return found, None


def path_norm(recording: Recording, p: int) -> float:
    """Return psi_p of a recorded pass, or raise NoPathError."""
    (x,) = recording.inputs
    ones = torch.zeros_like(x.tensor, dtype=torch.float64)
    ones[:1] = 1.0  # the first row alone, for models that add rows up
    values: dict[Value, Any] = {x: ones}

    def value_of(value: Value) -> Any:
        return values.get(value, value.tensor)

    with torch.no_grad():
        for op in recording.operations:
            args = mapped(op.args, value_of, Value)
            kwargs = mapped(op.kwargs, value_of, Value)
            # An operation outside all modules selects the output, and is no part of the network.
            run = _follow(op, args, kwargs, p) if op.frames else op.function(*args, **kwargs)
            values.update(zip(op.outputs, tensors(run), strict=False))
    return float(value_of(recording.output)[:1].sum()) ** (1 / p)


def _follow(op: Operation, args: Any, kwargs: dict[str, Any], p: int) -> Any:
    """Return the operation's result with path weights |w|^p instead of its own."""
    name = op.name
    kind = op.kind
    if op.leaf is not None and known_noise(op.leaf):
        return _noise_layer(op.leaf, next(tensors((args, kwargs))), p)
    if kind.values == "linear":
        return _linear(op.function, p, *args, **kwargs)
    if name == "batch_norm":
        return _batch_norm(p, *args, **kwargs)
    if (kind.values == "entrywise" and kind.units == "pass") or "dropout" in name:
        return args[0]
    if (kind.values == "move" and name not in ("to", "float")) or name == "sum":
        return op.function(*args, **kwargs)
    if name in ("add", "sub") and op.argument(2, "alpha", 1) == 1:
        # What does not depend on the inputs is a bias.
        parts = [a for a, value in zip(args, op.args, strict=True) if _depends(value)]
        return sum(parts).expand(op.output.shape)
    if name in ("cat", "stack"):
        pairs = zip(args[0], op.argument(0, "tensors"), strict=True)
        parts = [a if _depends(value) else torch.zeros_like(a) for a, value in pairs]
        return op.function(parts, *args[1:], **kwargs)
    if "avg_pool" in name:
        entries = _averaged_entries(name, args, kwargs)
        return op.function(*args, **kwargs) / entries ** (p - 1)  # 1/K becomes K^-p
    if "max_pool" in name:
        return _sum_pool(name, args, kwargs)
    raise NoPathError(name)


def _depends(value: Any) -> bool:
    return isinstance(value, Value) and value.depends


def _noise_layer(layer: Any, x: Tensor, p: int) -> Any:
    if not is_weight_noise(layer):
        return x
    run = layer.convolve if isinstance(layer, DropConnectConv2d) else functional.linear
    return _linear(run, p, x, layer.weight)


def _linear(run: Any, p: int, input: Tensor, weight: Tensor, bias: Any = None, *rest: Any) -> Any:  # noqa: A002
    return run(input, weight.detach().double().abs() ** p, None, *rest)


def _batch_norm(
    p: int,
    x: Tensor,
    mean: Any,
    variance: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if variance is None:
        raise NoPathError("batch_norm without running statistics")
    scale = torch.rsqrt(variance.double() + eps)
    if weight is not None:
        scale = scale * weight.detach().double()
    return x * (scale.abs() ** p).reshape(1, -1, *(1 for _ in x.shape[2:]))


def _averaged_entries(name: str, args: Any, kwargs: dict[str, Any]) -> int:
    """Return K, the number of entries in a window of average pooling."""
    axes = int(name[-2])
    if "adaptive" in name:
        size: Any = kwargs.get("output_size", args[1] if len(args) > 1 else None)
        sizes = (size,) * axes if isinstance(size, int) else tuple(size)
        before = args[0].shape[-axes:]
        if any(m is None or n % m for n, m in zip(before, sizes, strict=True)):
            raise NoPathError("adaptive average pooling with windows of several sizes")
        return math.prod(n // m for n, m in zip(before, sizes, strict=True))
    names = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")
    given = dict(zip((*names, "divisor_override"), args[1:], strict=False)) | kwargs
    cut = given.get("ceil_mode") or not given.get("count_include_pad", True)
    if cut or given.get("divisor_override") is not None:
        raise NoPathError("average pooling with windows of several sizes")
    return _window_entries(given["kernel_size"], axes)


def _sum_pool(name: str, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """Return sums over the windows of max pooling: every entry may be the largest."""
    axes = next((int(c) for c in name if c.isdigit()), 0)
    if "adaptive" in name or axes not in (1, 2, 3):
        raise NoPathError(name)
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    given = dict(zip(names, args[1:], strict=False)) | kwargs
    if given.get("ceil_mode") or given.get("dilation", 1) not in (1, (1, 1)):
        raise NoPathError("max pooling with dilation or ceil_mode")
    kernel = given["kernel_size"]
    stride = given.get("stride") or kernel
    average = getattr(functional, f"avg_pool{axes}d")
    mean = average(args[0], kernel, stride, given.get("padding", 0))
    return mean * _window_entries(kernel, axes)


def _window_entries(kernel: Any, axes: int) -> int:
    return math.prod((kernel,) * axes if isinstance(kernel, int) else tuple(kernel))
