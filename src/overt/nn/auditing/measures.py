"""Norms of layers, and norm-based complexity measures of networks (thesis, section 1.1.1).

For a network of k hidden layers, weights W_1, ..., W_(k+1), width d, inputs in R^d0, n samples:

    path norm      psi_p = |products of weights along each path|_p, in sqrt((2 d^(1/p*))^(2k) psi_p^2 log(d0) / n)   (1.1)
    spectral       prod |W_i|_2 (sum (|W_i'|_(2,1) / |W_i|_2)^(2/3))^(3/2) / sqrt(n)                               (1.2)
    PAC-Bayes      prod |W_i|_2 sqrt(d k^2 sum |W_i|_F^2 / |W_i|_2^2) / sqrt(n)                                    (1.3)
    Frobenius      sqrt(k) prod |W_i|_F / sqrt(n)                                                                  (1.4)

each up to a constant, so that they compare networks and bound nothing.
"""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from overt._types import Floats
from overt.nn.auditing.report import LayerFindings, Measure
from overt.nn.layers.dropconnect import DropConnectConv2d, DropConnectLinear
from overt.nn.layers.recognized import is_weight_noise, known_noise
from overt.nn.recording.recorder import Operation, Recording, Value
from overt.nn.recording.watching import mapped, tensors

LAYERS = (nn.Linear, nn.modules.conv._ConvNd, DropConnectLinear, DropConnectConv2d)


class Layers:
    """The linear and convolutional layers of a model, and which of their inputs were always 0."""

    def __init__(self) -> None:
        self._largest: dict[str, Tensor] = {}
        self._from_data: set[str] = set()
        self.spectral: dict[Tensor, float] = {}  # the norms of weights that were met

    def add(self, name: str, module: Any, h: Tensor, *, from_data: bool) -> None:
        """Take in what a layer was given, and whether it is the model's own input."""
        axis = h.ndim - 1 if module.weight.ndim == 2 else 1
        largest = h.abs().movedim(axis, 0).flatten(1).amax(1).cpu()
        before = self._largest.get(name)
        self._largest[name] = largest if before is None else torch.maximum(before, largest)
        if from_data:
            self._from_data.add(name)

    def findings(self, model: nn.Module) -> tuple[list[LayerFindings], list[tuple[str, str]]]:
        """Return the layers that were met, and other modules with weights, with the reason."""
        found, silent = [], []
        for name, module in model.named_modules():
            own = next(module.parameters(recurse=False), None)
            if isinstance(module, LAYERS):
                if name in self._largest:
                    found.append(self._layer(name, module))
            elif own is not None and not isinstance(module, torch.nn.modules.batchnorm._NormBase):
                silent.append((name or type(model).__name__, type(module).__name__))
        skipped = []
        for kind in dict.fromkeys(kind for _, kind in silent):
            names = ", ".join(name for name, other in silent if other == kind)
            skipped.append((names, f"{kind}: its weights are not among the layers' norms"))
        return found, skipped

    def _layer(self, name: str, module: Any) -> LayerFindings:
        W = module.weight.detach().double().cpu().flatten(1).numpy()
        spectral, frobenius = _largest(W), float(np.linalg.norm(W))
        self.spectral[module.weight] = spectral
        return LayerFindings(
            name=name, shape=tuple(module.weight.shape), spectral=spectral, frobenius=frobenius,
            stable_rank=(frobenius / spectral) ** 2 if spectral else 0.0,
            inputs=len(self._largest[name]), dead=int((self._largest[name] == 0).sum()),
            from_data=name in self._from_data,
        )  # fmt: skip


def _largest(W: Floats) -> float:
    """Return the largest singular value, of large matrices from their Gram matrix's powers."""
    if W.size <= 2**14:
        return float(np.linalg.svd(W, compute_uv=False)[0])
    from scipy.sparse.linalg import ArpackError, eigsh

    gram = W @ W.T if len(W) <= W.shape[1] else W.T @ W
    size = float(gram.trace())
    if len(gram) > 96 and 0 < size < np.inf:
        try:
            found = eigsh(gram, 1, v0=np.diag(gram) + size, return_eigenvectors=False, tol=1e-12)
            return math.sqrt(float(found[0]))
        except ArpackError:  # it did not converge
            pass
    return math.sqrt(max(float(np.linalg.eigvalsh(gram)[-1]), 0.0))


class NoPath(Exception):  # noqa: N818
    """An operation whose paths are not defined; the message names it."""


def path_norm(recording: Recording, p: int) -> float:
    """Psi_p: a recorded pass again, on ones, with weights |w|^p for w and no activation.

    Batch normalization in evaluation mode is a weight, residual sums join paths, average pooling
    has weights 1/K and max pooling weights 1. Biases are on no path from an input. Raises NoPath
    where paths are not defined. The first row alone is ones, for models that add rows up.
    """
    (x,), paths = recording.inputs, _Paths(p)
    ones = torch.zeros_like(x.tensor, dtype=torch.float64)
    ones[:1] = 1.0
    now = {x: ones}

    def at(value: Value) -> Any:
        return now.get(value, value.tensor)

    with torch.no_grad():
        for op in recording.operations:
            args, given = mapped(op.args, at, Value), mapped(op.kwargs, at, Value)
            # What picks the output is no part of the network.
            made = paths.follow(op, args, given) if op.frames else op.function(*args, **given)
            now.update(zip(op.outputs, tensors(made), strict=False))
    return float(at(recording.output)[:1].sum()) ** (1 / p)


def norm_measures(
    weights: list[Floats], n: int, known: Sequence[float | None] = ()
) -> list[Measure]:
    """Return (1.2), (1.3) and (1.4) for a chain of linear layers; `known` are spectral norms."""
    pairs = zip_longest(weights, known)
    spectral = [_largest(W) if norm is None else norm for W, norm in pairs]
    if min(spectral) == 0:
        return []
    frobenius = [float(np.linalg.norm(W)) for W in weights]
    mixed = [float(np.linalg.norm(W, axis=1).sum()) for W in weights]
    k, d = len(weights) - 1, max(W.shape[0] for W in weights)
    root, product = math.sqrt(n), math.prod(spectral)
    ratios = sum((a / s) ** (2 / 3) for a, s in zip(mixed, spectral, strict=True)) ** 1.5
    stable = sum((f / s) ** 2 for f, s in zip(frobenius, spectral, strict=True))
    return [
        Measure(
            "spectral", product * ratios / root,
            "prod |W_i|_2 (sum (|W_i'|_(2,1)/|W_i|_2)^(2/3))^(3/2) / sqrt(n), eq. 1.2",
        ),
        Measure(
            "PAC-Bayes", product * math.sqrt(d * k**2 * stable) / root,
            "prod |W_i|_2 (d k^2 sum |W_i|_F^2/|W_i|_2^2)^(1/2) / sqrt(n), eq. 1.3",
        ),
        Measure(
            "Frobenius", math.sqrt(k) * math.prod(frobenius) / root,
            "sqrt(k) prod |W_i|_F / sqrt(n), eq. 1.4",
        ),
    ]  # fmt: skip


def path_measures(norms: dict[int, float], weights: list[Floats] | None, n: int) -> list[Measure]:
    """Return the path norms, and (1.1) where depth and width are those of a chain."""
    found = []
    for p, norm in norms.items():
        found.append(Measure(f"l{p} path norm", norm, f"|products of weights along paths|_{p}"))
        if weights is None:
            continue
        k, d = len(weights) - 1, max(W.shape[0] for W in weights)
        growth = (2 * d ** (1 - 1 / p)) ** k  # 1/p* = 1 - 1/p
        value = growth * norm * math.sqrt(math.log(max(weights[0].shape[1], 2)) / n)
        formula = f"((2 d^(1/p*))^(2k) psi_{p}^2 log(d0) / n)^(1/2), eq. 1.1"
        found.append(Measure(f"l{p} path bound", value, formula))
    return found


class _Paths:
    """Runs a network on path weights |w|^p instead of its own."""

    def __init__(self, p: int) -> None:
        self._p = p

    def follow(self, op: Operation, args: Any, given: dict[str, Any]) -> Any:
        """Return what path weights make of an operation's arguments."""
        name, kind = op.name, op.kind
        if op.leaf is not None and known_noise(op.leaf):
            return self._noise(op.leaf, next(tensors((args, given))))
        if kind.values == "linear":
            return self._linear(op.function, *args, **given)
        if name == "batch_norm":
            return self._batch_norm(*args, **given)
        if (kind.values == "entrywise" and kind.units == "pass") or "dropout" in name:
            return args[0]
        if (kind.values == "move" and name not in ("to", "float")) or name == "sum":
            return op.function(*args, **given)
        if name in ("add", "sub") and op.argument(2, "alpha", 1) == 1:
            # What does not depend on the inputs is a bias, and on no path.
            parts = [a for a, v in zip(args, op.args, strict=True) if _depends(v)]
            return sum(parts).expand(op.output.shape)
        if name in ("cat", "stack"):
            joined = op.argument(0, "tensors")
            pairs = zip(args[0], joined, strict=True)
            parts = [a if _depends(v) else torch.zeros_like(a) for a, v in pairs]
            return op.function(parts, *args[1:], **given)
        if "avg_pool" in name:
            return op.function(*args, **given) / self._averaged(name, args, given) ** (self._p - 1)
        if "max_pool" in name:
            return self._summed(name, args, given)
        raise NoPath(name)

    def _noise(self, layer: Any, x: Tensor) -> Any:
        if not is_weight_noise(layer):
            return x
        kernel = isinstance(layer, DropConnectConv2d)
        return self._linear(layer.convolve if kernel else functional.linear, x, layer.weight)

    def _linear(self, func: Any, x: Tensor, weight: Tensor, bias: Any = None, *rest: Any) -> Any:
        return func(x, weight.detach().double().abs() ** self._p, None, *rest)

    def _batch_norm(
        self, x: Tensor, mean: Any, variance: Any, weight: Any = None, bias: Any = None,
        training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
    ) -> Tensor:  # fmt: skip
        if variance is None:
            raise NoPath("batch_norm without running statistics")
        scale = torch.rsqrt(variance.double() + eps)
        scale = scale if weight is None else scale * weight.detach().double()
        return x * (scale.abs() ** self._p).reshape(1, -1, *(1 for _ in x.shape[2:]))

    def _averaged(self, name: str, args: Any, given: dict[str, Any]) -> int:
        """Return K, the entries in a window: weights 1/K become K^-p, K^(p-1) times smaller."""
        axes = int(name[-2])
        if "adaptive" in name:
            wanted: Any = given.get("output_size", args[1] if len(args) > 1 else None)
            sizes = (wanted,) * axes if isinstance(wanted, int) else tuple(wanted)
            before = args[0].shape[-axes:]
            if any(m is None or n % m for n, m in zip(before, sizes, strict=True)):
                raise NoPath("adaptive average pooling with windows of several sizes")
            return math.prod(n // m for n, m in zip(before, sizes, strict=True))
        names = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad",
                 "divisor_override")  # fmt: skip
        bound = dict(zip(names, args[1:], strict=False)) | given
        cut = bound.get("ceil_mode") or not bound.get("count_include_pad", True)
        if cut or bound.get("divisor_override") is not None:
            raise NoPath("average pooling with windows of several sizes")
        kernel = bound["kernel_size"]
        return math.prod((kernel,) * axes if isinstance(kernel, int) else tuple(kernel))

    def _summed(self, name: str, args: Any, given: dict[str, Any]) -> Tensor:
        axes = next((int(c) for c in name if c.isdigit()), 0)
        if "adaptive" in name or axes not in (1, 2, 3):
            raise NoPath(name)
        kernel, stride, padding = _window(args, given)
        sizes = (kernel,) * axes if isinstance(kernel, int) else tuple(kernel)
        average = getattr(functional, f"avg_pool{axes}d")
        return average(args[0], kernel, stride, padding) * math.prod(sizes)


def _depends(value: Any) -> bool:
    return isinstance(value, Value) and value.depends


def _window(args: Any, given: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return kernel, stride and padding of a call of max pooling."""
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    bound = dict(zip(names, args[1:], strict=False)) | given
    if bound.get("ceil_mode") or bound.get("dilation", 1) not in (1, (1, 1)):
        raise NoPath("max pooling with dilation or ceil_mode")
    kernel = bound["kernel_size"]
    return kernel, bound.get("stride") or kernel, bound.get("padding", 0)
