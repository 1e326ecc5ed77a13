"""How each kind of layer reads, makes or passes on units, and which numbers describe its size."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import nn

from overt.nn.layers.dropconnect import DropConnectConv2d, DropConnectLinear

LINEAR = (nn.Linear, DropConnectLinear)
CONVOLUTION = (nn.Conv1d, nn.Conv2d, nn.Conv3d, DropConnectConv2d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
WEIGHTED = (*LINEAR, *CONVOLUTION, *TRANSPOSED)
PER_CHANNEL = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm,
    nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
)  # fmt: skip
ACROSS = (nn.LayerNorm, nn.RMSNorm)
ATTENTION = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
SEALED = (nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)
"""Modules that keep their maps inside."""
CHANNEL_DROPOUT = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
ELEMENTWISE = (
    nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU,
    nn.Mish, nn.Sigmoid, nn.LogSigmoid, nn.Tanh, nn.Softplus, nn.Softsign, nn.Tanhshrink,
    nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Hardshrink, nn.Softshrink, nn.Threshold,
    nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip
SPATIAL = (
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d, nn.LPPool1d, nn.LPPool2d, nn.Upsample,
    nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d, nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d,
    nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReplicationPad1d, nn.ReplicationPad2d,
    nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d, nn.CircularPad1d, nn.CircularPad2d,
)  # fmt: skip
"""Layers that act on the axes after the channels' (axis 1), each channel by itself."""


def is_a(module: nn.Module, kinds: tuple[Any, ...]) -> bool:
    """Whether a module is of one of these kinds, or inherits its forward pass unchanged."""
    return any(isinstance(module, kind) and type(module).forward is kind.forward for kind in kinds)


def hindrance(module: nn.Module) -> str | None:
    """Return why a layer's own weights cannot be replaced, None if they can."""
    if nn.utils.parametrize.is_parametrized(module):
        return "its weights are parametrized"
    if module._forward_pre_hooks or module._forward_hooks:
        return "it carries hooks"
    weight = getattr(module, "weight", None)
    if weight is not None and "weight" not in module._parameters:
        return "its weight is computed from other tensors"
    return None


def holders(model: nn.Module) -> Counter[int]:
    """Return how many modules hold each parameter, by its id: more than one where it is tied."""
    return Counter(
        id(tensor)
        for module in model.modules()
        for tensor in module._parameters.values()
        if tensor is not None
    )


def depthwise(module: nn.Module) -> bool:
    """Whether a convolution maps each channel by itself."""
    return bool(module.groups > 1 and module.groups == module.in_channels)


def axes(module: nn.Module) -> tuple[int, int]:
    """Return the axes of a layer's weight along which its inputs and its outputs lie."""
    return (0, 1) if isinstance(module, TRANSPOSED) else (1, 0)


def constructor(module: nn.Module) -> str | None:
    """Return the plain torch expression that builds a layer like this one, None if it has none."""
    bias = f"bias={getattr(module, 'bias', None) is not None}"
    match module:
        case nn.Sequential():
            parts = [constructor(part) for part in module]
            return None if None in parts else f"nn.Sequential({', '.join(map(str, parts))})"
        case nn.Linear() | DropConnectLinear():
            return f"nn.Linear({module.in_features}, {module.out_features}, {bias})"
        case DropConnectConv2d():
            return f"nn.Conv2d({_convolution(module)}, dilation={module.dilation}, {bias})"
        case _ if isinstance(module, TRANSPOSED):
            return (
                f"nn.{_kind(module)}({_convolution(module)}, dilation={module.dilation}, {bias}, "
                f"output_padding={module.output_padding})"
            )
        case _ if isinstance(module, CONVOLUTION):
            return (
                f"nn.{_kind(module)}({_convolution(module)}, dilation={module.dilation}, {bias}, "
                f"padding_mode={module.padding_mode!r})"
            )
        case _ if isinstance(module, PER_CHANNEL):
            return (
                f"nn.{_kind(module)}({module.num_features}, {module.eps}, {module.momentum}, "
                f"{module.affine}, {module.track_running_stats})"
            )
        case nn.LayerNorm():
            affine = f"{module.elementwise_affine}, {bias}"
            return f"nn.LayerNorm({module.normalized_shape}, {module.eps}, {affine})"
        case nn.RMSNorm():
            settings = f"{module.eps}, {module.elementwise_affine}"
            return f"nn.RMSNorm({module.normalized_shape}, {settings})"
        case nn.GroupNorm():
            sizes = f"{module.num_groups}, {module.num_channels}"
            return f"nn.GroupNorm({sizes}, {module.eps}, {module.affine})"
        case nn.PReLU():
            return f"nn.PReLU({module.num_parameters})"
        case nn.Embedding():
            sizes = f"{module.num_embeddings}, {module.embedding_dim}"
            return f"nn.Embedding({sizes}, {module.padding_idx})"
    return None


def _convolution(module: nn.Module) -> str:
    sizes = f"{module.in_channels}, {module.out_channels}, {module.kernel_size}, {module.stride}"
    return f"{sizes}, padding={module.padding!r}, groups={module.groups}"


def _kind(module: nn.Module) -> str:
    """Return the name of torch's own class that a layer is of."""
    kinds = (*CONVOLUTION, *TRANSPOSED, *PER_CHANNEL)
    return next(kind for kind in kinds if isinstance(module, kind)).__name__
