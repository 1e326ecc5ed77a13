"""Rebuild a compressed network from a file: plain torch, so that this file works without overt."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import nn


class Attention(nn.Module):  # type: ignore[misc]
    """What torch.nn.MultiheadAttention computes, from four layers and the width of a head."""

    in_proj_bias = (
        None  # torch's transformer layers look here whether they may pass it by
    )
    _qkv_same_embed_dim = False

    def __init__(self, **parts: Any) -> None:
        """Take q, k, v, out_proj, head_dim, dropout and batch_first, or let them follow."""
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(  # type: ignore[no-untyped-def]
        self,
        query,
        key,
        value,
        key_padding_mask=None,
        need_weights=True,
        attn_mask=None,
        average_attn_weights=True,
        is_causal=False,
    ):
        """Return the outputs, and the weights or None, as torch.nn.MultiheadAttention does."""
        if query.dim() != 3:
            raise ValueError("attention with fewer heads takes batches only")
        axis = 1 - self.batch_first
        q, k, v = (
            layer(x.transpose(0, axis)).unflatten(-1, (-1, self.head_dim))
            for layer, x in ((self.q, query), (self.k, key), (self.v, value))
        )
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        mask = None
        for part, own in ((attn_mask, False), (key_padding_mask, True)):
            if part is not None:
                if part.dtype == torch.bool:
                    part = torch.zeros_like(part, dtype=q.dtype).masked_fill(
                        part, float("-inf")
                    )
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
        else:
            h = nn.functional.scaled_dot_product_attention(q, k, v, mask, drop)
        h = self.out_proj(h.transpose(1, 2).flatten(2))
        return h.transpose(0, axis), weights


LAYERS = {"Linear": nn.Linear, "Conv1d": nn.Conv1d, "Conv2d": nn.Conv2d}
"""Layers that may stand in the place of others."""

EMPTY = {"Sequential": nn.Sequential, "Attention": Attention}
"""Modules in their place whose parts follow."""


def read_file(path: Any) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """Return metadata and tensors of a safetensors file."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        return file.metadata() or {}, state


def load_into(
    model: nn.Module, metadata: dict[str, str], state: dict[str, torch.Tensor]
) -> nn.Module:
    """Turn the original model, as it was built, into the compressed one; return it."""
    like = next(model.parameters(), torch.empty(0))
    for name, (kind, numbers) in json.loads(metadata["modules"]).items():
        set_shape(model, name, kind, numbers, like, has_bias=f"{name}.bias" in state)
    resize(model, state)
    model.load_state_dict(state)
    return model.eval()


def set_shape(
    model: nn.Module,
    name: str,
    kind: str,
    numbers: dict[str, Any],
    like: torch.Tensor,
    *,
    has_bias: bool,
) -> None:
    """Give a module its class and numbers in the compressed network; new ones are like `like`."""
    numbers = {
        key: tuple(n) if isinstance(n, list) else n for key, n in numbers.items()
    }
    parent, _, leaf = name.rpartition(".")
    module: Any = getattr(model.get_submodule(parent), leaf, None) if name else model
    if type(module).__name__ != kind:
        if not name or kind not in (*LAYERS, *EMPTY):
            raise ValueError(
                f"model must be the original as it was built: {name or 'it'} must be a {kind}, got "
                f"{type(module).__name__}"
            )
        if kind in EMPTY:
            module = EMPTY[kind]()
        else:
            names = ("kernel_size", "stride", "padding", "dilation", "padding_mode")
            kernel = {key: numbers[key] for key in names if key in numbers}
            module = LAYERS[kind](1, 1, bias=has_bias, **kernel).to(like)
        setattr(model.get_submodule(parent), leaf, module)
    vars(module).update(numbers)


def resize(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Replace tensors whose shapes differ from those in the file; tied ones stay tied."""
    replaced: dict[int, torch.Tensor] = {}
    for key, tensor in state.items():
        path, _, leaf = key.rpartition(".")
        module = model.get_submodule(path)
        old = getattr(module, leaf)
        if old.shape == tensor.shape:
            continue
        if id(old) not in replaced:
            new = torch.empty_like(tensor, dtype=old.dtype, device=old.device)
            if isinstance(old, nn.Parameter):
                new = nn.Parameter(new, old.requires_grad)
            replaced[id(old)] = new
        setattr(module, leaf, replaced[id(old)])
