"""Attention whose maps are layers, so that heads can be removed and maps rewritten.

`torch.nn.MultiheadAttention` keeps its maps in one tensor and takes the width of a head from that
of its inputs: it cannot have fewer heads. It is opened before a network is made smaller, and closed
again where nothing in it has changed.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


class Attention(nn.Module):  # type: ignore[misc]
    """What torch.nn.MultiheadAttention computes, from four layers and the width of a head."""

    in_proj_bias = None  # torch's transformer layers look here whether they may pass it by
    _qkv_same_embed_dim = False

    def __init__(self, q, k, v, out_proj, head_dim, dropout, batch_first):  # type: ignore[no-untyped-def]
        super().__init__()
        self.q, self.k, self.v, self.out_proj = q, k, v, out_proj
        self.head_dim, self.dropout, self.batch_first = head_dim, dropout, batch_first

    def forward(  # type: ignore[no-untyped-def]
        self, query, key, value, key_padding_mask=None, need_weights=True, attn_mask=None,
        average_attn_weights=True, is_causal=False,
    ):  # fmt: skip
        """Return the outputs, and the weights or None, as torch.nn.MultiheadAttention does."""
        axis = 0 if query.dim() == 2 else 1 - self.batch_first
        alone = query.dim() == 2
        parts = [x.unsqueeze(0) if alone else x.transpose(0, axis) for x in (query, key, value)]
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for layer, x in zip((self.q, self.k, self.v), parts, strict=True)
        )
        mask = None
        for part, own in ((attn_mask, False), (key_padding_mask, True)):
            if part is not None:
                if part.dtype == torch.bool:
                    part = torch.zeros_like(part, dtype=q.dtype).masked_fill(part, float("-inf"))
                if own:
                    part = part.reshape(-1, 1, 1, part.shape[-1])
                elif part.dim() == 3:
                    part = part.unflatten(0, (len(q), -1))
                mask = part if mask is None else mask + part
        drop = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            weights = q @ k.transpose(-2, -1) / self.head_dim**0.5
            weights = torch.softmax(weights if mask is None else weights + mask, -1)
            weights = nn.functional.dropout(weights, drop)
            h = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights[0] if alone else weights
        else:
            h = nn.functional.scaled_dot_product_attention(q, k, v, mask, drop)
        h = self.out_proj(h.transpose(1, 2).flatten(2))
        return (h[0] if alone else h.transpose(0, axis)), weights


def opened(model: nn.Module) -> nn.Module:
    """Put `Attention` in the place of torch's attention where it is plain; change in place.

    Linear layers that hold their weights transposed (Conv1D of transformers) become linear layers.
    """
    for name, module in list(model.named_modules()):
        if name and (linear := _turned(module)) is not None:
            model.set_submodule(name, linear)
        if type(module) is not nn.MultiheadAttention or not name:
            continue
        hooks = module._forward_pre_hooks or module._forward_hooks
        special = module.bias_k is not None or module.add_zero_attn or hooks
        if not special and not nn.utils.parametrize.is_parametrized(module):
            model.set_submodule(name, _opened(module))
    for module in model.modules():
        inside = any(isinstance(part, Attention) for part in module.modules())
        if inside and getattr(module, "use_nested_tensor", False):
            module.use_nested_tensor = False
    return model


def closed(model: nn.Module, before: nn.Module) -> nn.Module:
    """Put torch's attention back where all maps have kept their shapes; change in place."""
    found = [name for name, part in model.named_modules() if isinstance(part, Attention)]
    whole = [name for name in found if _size(model.get_submodule(name)) ==
             _size(_opened(before.get_submodule(name)))]  # fmt: skip
    for name in whole:
        model.set_submodule(name, _closed(model.get_submodule(name), before.get_submodule(name)))
    if whole == found:
        modules = dict(before.named_modules())
        for name, module in model.named_modules():
            if "use_nested_tensor" in vars(module):
                module.use_nested_tensor = modules[name].use_nested_tensor
    return model


def _opened(module: Any) -> Attention:
    width = module.embed_dim
    if module.in_proj_weight is not None:
        weights = module.in_proj_weight.detach().split(width)
    else:
        weights = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    biases = (
        [None] * 3 if module.in_proj_bias is None else module.in_proj_bias.detach().split(width)
    )
    layers = [_linear(W, b) for W, b in zip(weights, biases, strict=True)]
    out = _linear(module.out_proj.weight, module.out_proj.bias)
    q, k, v = layers
    sizes = (module.head_dim, module.dropout, module.batch_first)
    opened = Attention(q, k, v, out, *sizes)  # type: ignore[no-untyped-call]
    opened.train(module.training)
    learned = next(module.parameters()).requires_grad
    return opened.requires_grad_(learned)


def _closed(opened: Any, original: Any) -> nn.Module:
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


def _turned(module: Any) -> nn.Linear | None:
    """Return the linear layer that a module with weights (inputs, outputs) is, None if it isn't."""
    if type(module).__name__ != "Conv1D" or [*module._parameters] != ["weight", "bias"]:
        return None
    layer = _linear(module.weight.detach().T, module.bias)
    x = torch.eye(layer.in_features, dtype=layer.weight.dtype, device=layer.weight.device)
    with torch.no_grad():
        same = torch.allclose(module(x), layer(x), atol=1e-5)
    learned = module.weight.requires_grad
    return layer.train(module.training).requires_grad_(learned) if same else None


def _linear(weight: Any, bias: Any) -> nn.Linear:
    layer = nn.utils.skip_init(
        nn.Linear, weight.shape[1], weight.shape[0], bias is not None,
        device=weight.device, dtype=weight.dtype,
    )  # fmt: skip
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer


def _size(module: nn.Module) -> dict[str, Any]:
    return {name: tuple(part.shape) for name, part in module.named_parameters()}
