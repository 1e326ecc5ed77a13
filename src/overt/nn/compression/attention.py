"""Attention whose maps are layers, so that heads can be removed and maps rewritten.

`torch.nn.MultiheadAttention` stores its maps in one tensor and takes the width of a head from that
of its inputs: it cannot have fewer heads. It is replaced before a network is made smaller.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from overt.nn.compression.loader import Attention


def open_attention(model: nn.Module) -> nn.Module:
    """Put `Attention` in the place of torch's attention where it is plain; change in place."""
    for name, module in list(model.named_modules()):
        if type(module) is not nn.MultiheadAttention or not name:
            continue
        hooks = module._forward_pre_hooks or module._forward_hooks
        special = module.bias_k is not None or module.add_zero_attn or hooks
        if not special and module._parameters.get("in_proj_weight") is not None:
            model.set_submodule(name, _open(module))
    for module in model.modules():
        inside = any(isinstance(part, Attention) for part in module.modules())
        if inside and hasattr(module, "use_nested_tensor"):
            module.use_nested_tensor = False
    return model


def _open(module: Any) -> Attention:
    bias = module.in_proj_bias
    biases = (None,) * 3 if bias is None else bias.detach().chunk(3)
    weights = module.in_proj_weight.detach().chunk(3)
    q, k, v = (_linear(W, b) for W, b in zip(weights, biases, strict=True))
    out = _linear(module.out_proj.weight, module.out_proj.bias)
    sizes = {
        key: getattr(module, key) for key in ("head_dim", "dropout", "batch_first")
    }
    opened = Attention(q=q, k=k, v=v, out_proj=out, **sizes)
    opened.requires_grad_(module.in_proj_weight.requires_grad)
    return opened.train(module.training)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(*weight.shape[::-1], bias=False)
    layer.weight = nn.Parameter(weight.clone())
    layer.bias = None if bias is None else nn.Parameter(bias.clone())
    return layer
