"""Attention whose maps are layers, so that heads can be removed and maps rewritten.

`torch.nn.MultiheadAttention` stores its maps in one tensor and takes the width of a head from that
of its inputs: it cannot have fewer heads. It is replaced before a network is made smaller, and put
back where its shapes have not changed.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from overt.nn.compression.loader import Attention


def open_attention(model: nn.Module) -> nn.Module:
    """Put `Attention` in the place of torch's attention where it is plain; change in place.

    Linear layers that hold their weights transposed (Conv1D of transformers) become linear layers.
    """
    for name, module in list(model.named_modules()):
        if name and (linear := _as_linear(module)) is not None:
            model.set_submodule(name, linear)
        if type(module) is not nn.MultiheadAttention or not name:
            continue
        hooks = module._forward_pre_hooks or module._forward_hooks
        special = module.bias_k is not None or module.add_zero_attn or hooks
        if not special and not nn.utils.parametrize.is_parametrized(module):
            model.set_submodule(name, _open(module))
    for module in model.modules():
        inside = any(isinstance(part, Attention) for part in module.modules())
        if inside and getattr(module, "use_nested_tensor", False):
            module.use_nested_tensor = False
    return model


def close_attention(model: nn.Module, before: nn.Module) -> nn.Module:
    """Put torch's attention back where all maps have their old shapes; change in place."""
    found = [
        name for name, part in model.named_modules() if isinstance(part, Attention)
    ]
    whole = []
    for name in found:
        present = model.get_submodule(name)
        original = before.get_submodule(name)
        if _shapes(present) == _shapes(_open(original)):
            whole.append(name)
            model.set_submodule(name, _close(present, original))
    if whole == found:
        modules = dict(before.named_modules())
        for name, module in model.named_modules():
            if "use_nested_tensor" in vars(module):
                module.use_nested_tensor = modules[name].use_nested_tensor
    return model


def _open(module: Any) -> Attention:
    width = module.embed_dim
    if module.in_proj_weight is not None:
        weights = module.in_proj_weight.detach().split(width)
    else:
        weights = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    biases = (
        [None] * 3
        if module.in_proj_bias is None
        else module.in_proj_bias.detach().split(width)
    )
    layers = [_linear(W, b) for W, b in zip(weights, biases, strict=True)]
    out = _linear(module.out_proj.weight, module.out_proj.bias)
    q, k, v = layers
    sizes = (module.head_dim, module.dropout, module.batch_first)
    opened = Attention(q, k, v, out, *sizes)  # type: ignore[no-untyped-call]
    opened.train(module.training)
    learned = next(module.parameters()).requires_grad
    return opened.requires_grad_(learned)


def _close(opened: Any, original: Any) -> nn.Module:
    """Return torch's attention with the weights of the opened one, which may have been trained."""
    module = copy.deepcopy(original)
    maps = (opened.q, opened.k, opened.v)
    weights = [layer.weight for layer in maps]
    with torch.no_grad():
        if module.in_proj_weight is not None:
            module.in_proj_weight.copy_(torch.cat(weights))
        else:
            for name, weight in zip("qkv", weights, strict=True):
                getattr(module, f"{name}_proj_weight").copy_(weight)
        if module.in_proj_bias is not None:
            module.in_proj_bias.copy_(torch.cat([layer.bias for layer in maps]))
        module.out_proj.weight.copy_(opened.out_proj.weight)
        if module.out_proj.bias is not None:
            module.out_proj.bias.copy_(opened.out_proj.bias)
    return module.train(opened.training)


def _as_linear(module: Any) -> nn.Linear | None:
    """Return the linear layer that a module with weights (inputs, outputs) is, None if it isn't."""
    if type(module).__name__ != "Conv1D" or [*module._parameters] != ["weight", "bias"]:
        return None
    layer = _linear(module.weight.detach().T, module.bias)
    x = torch.eye(
        layer.in_features, dtype=layer.weight.dtype, device=layer.weight.device
    )
    with torch.no_grad():
        same = torch.allclose(module(x), layer(x), atol=1e-5)
    learned = module.weight.requires_grad
    return layer.train(module.training).requires_grad_(learned) if same else None


def _linear(weight: Any, bias: Any) -> nn.Linear:
    outputs, inputs = weight.shape
    where = {"device": weight.device, "dtype": weight.dtype}
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs, bias is not None, **where)
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer


def _shapes(module: nn.Module) -> dict[str, Any]:
    return {name: tuple(part.shape) for name, part in module.named_parameters()}
