"""How each operation of a model acts on a random tensor.

Affine operations are exact, and so is max pooling right after dropout. Functions of single entries
take the moments of normal inputs (see `gaussian`). Any other operation is replaced by its
linearization at the mean (delta method).
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from overt._check import InputError
from overt.nn.gaussian import covariance_after, elementwise_moments, relu_moments
from overt.nn.layers.dropconnect import DropConnectConv2d
from overt.nn.layers.recognized import (
    is_weight_noise,
    known_noise,
    mask_covariance_of,
    plain_dropout,
)
from overt.nn.noisy import Function, Map, Noisy
from overt.nn.pooling import max_of_dropped, pool_windows
from overt.nn.spread import Dense, Independent, KernelNoise, Spread, masked, summed

MAX_UNITS = 2048
"""The widest layer whose covariance matrix is carried through a non-linearity."""


class Unsupported(Exception):  # noqa: N818
    """Moments cannot be carried through the model; the message completes "because ..."."""


class TooManySamples(Exception):  # noqa: N818
    """The covariance matrices of a layer with this many units do not fit for the whole batch."""

    def __init__(self, units: int) -> None:
        super().__init__(units)
        self.units = units


def module_call(module: nn.Module, args: Any, kwargs: Any, *, on: bool, budget: int) -> Any:
    """Return module(*args); a noise module adds its noise where it is `on`."""
    if known_noise(module):
        return _noise(module, args[0], on=on)
    if not any(isinstance(arg, Noisy) for arg in (*args, *kwargs.values())):
        return module(*args, **kwargs)
    if len(args) != 1 or kwargs or not isinstance(args[0], Noisy):
        raise Unsupported(f"{type(module).__name__} has several inputs")
    x = args[0]
    linear = _linear_map(module, x)
    if linear is not None:
        after = x.through(linear, module)
        trained = isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training
        return Noisy(*_fields(after), exact=x.exact and not trained)
    if type(module) in _ENTRYWISE_MODULES:
        return _entrywise(module, x, isinstance(module, nn.ReLU), budget)
    windows = pool_windows(module, x.mean) if x.dropped is not None else None
    if windows is not None:
        mean, variance = max_of_dropped(windows, x.dropped or 0.0)
        return Noisy(module(x.clean), mean, Independent(variance))
    return _linearized(module, x)


def call(function: Any, args: Any, kwargs: Any, *, budget: int, method: str = "") -> Any:
    """Return function(*args, **kwargs) for a function, or a method of its first argument."""
    if function in _DROPOUT_FUNCTIONS:
        raise InputError(
            "model calls torch.nn.functional.dropout, which overt cannot switch; use a "
            "torch.nn.Dropout or overt.nn.Dropout module in its place"
        )
    noisy = [arg for arg in (*_flat(args), *_flat(kwargs.values())) if isinstance(arg, Noisy)]
    if not noisy:
        return function(*args, **kwargs)
    if len(noisy) == 2 and len(args) == 2 and function in _SUMS:
        return _added(_SUMS[function], *noisy)
    if len(noisy) > 1:
        raise Unsupported("two noisy branches meet")
    x = noisy[0]
    if method in _QUERIES or function is getattr:
        return function(*_replaced(args, x, x.mean), **_replaced(kwargs, x, x.mean))

    def of_one(value: Tensor) -> Any:
        return function(*_replaced(args, x, value), **_replaced(kwargs, x, value))

    if function in _FLATTEN or method == "flatten":
        start = args[1] if len(args) > 1 else kwargs.get("start_dim", 0)
        if start == 1:
            return x.through(Map(of_one, of_one, shared=True, permutes=True), of_one)
    divides = function in _DIVISIONS and args[0] is not x
    if (function in _AFFINE or method in _AFFINE_METHODS) and not divides:
        offset = of_one(torch.zeros_like(x.mean))
        after = x.through(Map(lambda value: of_one(value) - offset), of_one)
        if after.mean.ndim < 2 or len(after.mean) != len(x.mean):
            raise Unsupported(f"{method or function.__name__} acts across the batch")
        return after
    if function in _ENTRYWISE or method in _ENTRYWISE_METHODS:
        is_relu = function in _RELU or method in ("relu", "relu_")
        return _entrywise(of_one, x, is_relu, budget)
    return _linearized(of_one, x)


def _noise(module: nn.Module, x: Tensor | Noisy, *, on: bool) -> Tensor | Noisy:
    if is_weight_noise(module):
        return _weight_noise(module, x, on=on)
    if not on:
        return x
    clean, mean, before, exact = _parts(x)
    spread = masked(mean, before, mask_covariance_of(module, tuple(mean.shape)))
    dropped = plain_dropout(module) if before is None else None
    return Noisy(clean, mean, spread, exact=exact, dropped=dropped)


def _weight_noise(module: Any, x: Tensor | Noisy, *, on: bool) -> Tensor | Noisy:
    """Add lam W^2 E[x^2] to what a linear map does to the spread of its input."""
    plain = _plain_map(module)
    affine = partial(_affine_of, module)
    after = x.through(plain, affine) if isinstance(x, Noisy) else affine(x)
    if not on:
        return after
    lam = module.strength
    _, mean, before, exact = _parts(x)
    out_clean, out_mean, carried, _ = _parts(after)
    variance = lam * module.weight * module.weight
    if isinstance(module, DropConnectConv2d):
        shape = tuple(out_mean.shape[1:])
        w = variance.reshape(module.groups, -1, variance[0].numel())
        added: Spread = KernelNoise(module.patches(mean), w, shape)
        if before is not None:
            added = Dense(added.matrix() + _kernel_noise(module, mean, before, w), shape)
        return Noisy(out_clean, out_mean, _both(carried, added), exact=exact)
    square = mean * mean if before is None else mean * mean + before.variance()
    if mean.ndim > 2:
        raise Unsupported("DropConnectLinear acts on an input with more than two axes")
    added = Independent(functional.linear(square, variance))
    return Noisy(out_clean, out_mean, _both(carried, added), exact=exact)


def _kernel_noise(module: Any, mean: Tensor, before: Spread, w: Tensor) -> Tensor:
    """sum_k w_ok Cov(x_kp, x_kq) among the positions p, q of each output channel o."""
    index = torch.arange(1, mean[0].numel() + 1, dtype=mean.dtype, device=mean.device)
    where = module.patches(index.reshape(1, *mean.shape[1:]))[0].round().long()  # 0: padding
    S = functional.pad(before.matrix(), (1, 0, 1, 0))
    moments = S[:, where[..., :, None], where[..., None, :]]  # (batch, groups, K, P, P)
    blocks = torch.einsum("gok,bgkpq->bgopq", w, moments).flatten(1, 2)
    channels = torch.eye(blocks.shape[1], dtype=blocks.dtype, device=blocks.device)
    full = torch.einsum("bopq,oc->bopcq", blocks, channels)
    return full.reshape(len(full), full.shape[1] * full.shape[2], -1)


def _both(carried: Spread | None, added: Spread) -> Spread:
    total = summed(carried, added)
    assert total is not None  # noqa: S101 (for the type checker)
    return total


def _parts(x: Tensor | Noisy) -> tuple[Tensor, Tensor, Spread | None, bool]:
    if isinstance(x, Noisy):
        return x.clean, x.mean, x.settled(), x.exact
    return x, x, None, True


def _fields(x: Noisy) -> tuple[Tensor, Tensor, Spread, tuple[Map, ...]]:
    return x.clean, x.mean, x.spread, x.maps


def _affine_of(module: Any, x: Tensor) -> Tensor:
    if isinstance(module, DropConnectConv2d):
        return module.convolve(x, module.weight, module.bias)
    return functional.linear(x, module.weight, module.bias)


def _plain_map(module: Any) -> Map:
    W = module.weight
    if isinstance(module, DropConnectConv2d):
        return Map(
            lambda v: module.convolve(v, W, None), lambda v: module.convolve(v, W * W, None),
            shared=True,
        )  # fmt: skip
    return _dense_map(W)


def _dense_map(W: Tensor) -> Map:
    return Map(
        lambda v: functional.linear(v, W), lambda v: functional.linear(v, W * W), W, shared=True
    )


def _linear_map(module: nn.Module, x: Noisy) -> Map | None:
    """Return the linear part of an affine module, None if it is not affine."""
    if isinstance(module, nn.Linear):
        return _dense_map(module.weight)
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        offset = module(torch.zeros_like(x.mean[:1]))
        return Map(lambda v: module(v) - offset, shared=True)
    if isinstance(module, nn.modules.conv._ConvNd):
        W = module.weight
        square = module.padding_mode == "zeros"  # elsewhere a window may see a unit twice
        return Map(
            lambda v: module._conv_forward(v, W, None),
            (lambda v: module._conv_forward(v, W * W, None)) if square else None,
            shared=True,
        )
    if isinstance(module, nn.Flatten) and module.start_dim == 1:
        return Map(module, module, shared=True, permutes=True)
    if isinstance(module, nn.Identity):
        return Map(module, module, shared=True, permutes=True)
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return _batch_norm_map(module, x)
    if isinstance(module, _LINEAR_MODULES):
        return Map(module, shared=True)
    return None


def _batch_norm_map(module: Any, x: Noisy) -> Map:
    """Return v weight / sqrt(var + eps), var that of the noise-free batch in training mode."""
    shape = [1, -1, *(1 for _ in x.shape[1:])]
    if module.training or module.running_var is None:
        variance = x.clean.transpose(0, 1).flatten(1).var(1, unbiased=False)
    else:
        variance = module.running_var
    scale = torch.rsqrt(variance + module.eps)
    scale = (scale if module.weight is None else scale * module.weight).reshape(shape)
    return Map(lambda v: v * scale, lambda v: v * scale * scale, shared=True)


def _entrywise(f: Function, x: Noisy, is_relu: bool, budget: int) -> Noisy:
    """Return f(x) entry by entry, as if x were normal."""
    if x.units > MAX_UNITS:
        raise Unsupported(
            f"a non-linearity acts on {x.units} noisy units, and {MAX_UNITS} is the most whose "
            "covariances are kept"
        )
    if len(x.mean) * x.units**2 > budget and len(x.mean) > 1:
        raise TooManySamples(x.units)
    covariance = x.covariance()
    variance = covariance.diagonal(dim1=1, dim2=2).reshape(x.mean.shape)
    if is_relu:
        coefficients, after = relu_moments(x.mean, variance)
    else:
        coefficients, after = elementwise_moments(f, x.mean, variance)
    spread = Dense(covariance_after(coefficients, after, covariance), x.shape)
    # The copy keeps functions that work in place from changing the mean.
    return Noisy(f(x.clean.clone()), coefficients[0], spread, exact=False)


def _linearized(f: Function, x: Noisy) -> Noisy:
    """Return f(mean) + f'(mean) (x - mean)."""
    mean = x.mean

    def derivative(v: Tensor) -> Tensor:
        with warnings.catch_warnings():  # torch loads code on first use that it deprecates itself
            warnings.simplefilter("ignore", DeprecationWarning)
            tangent: Tensor = torch.func.jvp(f, (mean,), (v,))[1]
        return tangent

    after = x.through(Map(derivative), f)
    if not isinstance(after.mean, Tensor):
        raise Unsupported("an operation on a noisy tensor gives several results")
    return Noisy(*_fields(after), exact=False)


def _added(sign: float, a: Noisy, b: Noisy) -> Noisy:
    """Return a + sign b where both are linear in the same noise."""
    if a.spread is not b.spread or a.mean.shape != b.mean.shape:
        raise Unsupported("two branches with noise of different origin meet")
    linear = Map(
        lambda v: a.push(v) + sign * b.push(v),
        shared=all(m.shared for m in (*a.maps, *b.maps)),
    )
    clean = a.clean + sign * b.clean
    unchanged = a.mean is a.clean and b.mean is b.clean
    mean = clean if unchanged else a.mean + sign * b.mean
    return Noisy(clean, mean, a.spread, (linear,), exact=a.exact and b.exact)


def _flat(values: Any) -> list[Any]:
    out = []
    for value in values:
        out += _flat(value) if isinstance(value, (tuple, list)) else [value]
    return out


def _replaced(args: Any, old: Any, new: Any) -> Any:
    if args is old:
        return new
    if isinstance(args, (tuple, list)):
        return type(args)(_replaced(a, old, new) for a in args)
    if isinstance(args, dict):
        return {key: _replaced(a, old, new) for key, a in args.items()}
    return args


_LINEAR_MODULES = (
    nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
    nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle, nn.Upsample,
    nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.ReflectionPad1d, nn.ReflectionPad2d,
    nn.ReplicationPad1d, nn.ReplicationPad2d, nn.CircularPad1d, nn.CircularPad2d,
    nn.Fold, nn.Unfold,
)  # fmt: skip
_ENTRYWISE_MODULES = (
    nn.CELU, nn.ELU, nn.GELU, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU,
    nn.LogSigmoid, nn.Mish, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus,
    nn.Softsign, nn.Tanh,
)  # fmt: skip
_RELU = (functional.relu, torch.relu, functional.relu_, torch.relu_)
_ENTRYWISE = (
    *_RELU, functional.celu, functional.elu, functional.gelu, functional.hardsigmoid,
    functional.hardswish, functional.hardtanh, functional.leaky_relu, functional.logsigmoid,
    functional.mish, functional.relu6, functional.selu, functional.silu, functional.softplus,
    functional.softsign, torch.erf, torch.exp, torch.sigmoid, torch.sin, torch.cos,
    torch.square, torch.tanh, functional.sigmoid, functional.tanh,
)  # fmt: skip
_ENTRYWISE_METHODS = ("relu", "relu_", "sigmoid", "tanh", "exp", "square")
_AFFINE: tuple[Callable[..., Any], ...] = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, operator.getitem,
    operator.matmul, operator.iadd, operator.imul, operator.isub, operator.itruediv,
    torch.add, torch.sub, torch.mul, torch.div, torch.neg, torch.matmul, torch.mean, torch.sum,
    torch.flatten, torch.reshape, torch.permute, torch.transpose, torch.squeeze, torch.unsqueeze,
    functional.linear, torch.conv1d, torch.conv2d, torch.conv3d, functional.conv1d,
    functional.conv2d, functional.conv3d, functional.avg_pool1d, functional.avg_pool2d,
    functional.avg_pool3d, functional.adaptive_avg_pool1d, functional.adaptive_avg_pool2d,
    functional.pad, functional.interpolate,
)  # fmt: skip
_AFFINE_METHODS = (
    "add", "sub", "mul", "div", "neg", "matmul", "mean", "sum", "reshape", "view", "permute",
    "transpose", "squeeze", "unsqueeze", "contiguous", "flatten", "unflatten", "expand", "to",
    "float", "double", "clone",
)  # fmt: skip
_SUMS: dict[Any, float] = {
    operator.add: 1.0, operator.iadd: 1.0, torch.add: 1.0, operator.sub: -1.0, torch.sub: -1.0,
}  # fmt: skip
_DIVISIONS = (operator.truediv, operator.itruediv, torch.div)
_FLATTEN = (torch.flatten,)
_QUERIES = ("size", "dim", "numel")
_DROPOUT_FUNCTIONS = (
    functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d,
    functional.alpha_dropout, functional.feature_alpha_dropout, torch.dropout,
)  # fmt: skip
