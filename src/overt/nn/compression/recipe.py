"""Plain torch statements that rebuild a smaller network, so that its state loads without overt."""

from __future__ import annotations

from typing import Any

from torch import nn

from overt.nn.compression.layers import constructor


def recipe(before: nn.Module, after: nn.Module) -> tuple[str, ...]:
    """Return statements that turn `model`, as it was built, into the smaller one.

    They need `torch` and `nn`; what they make has the right shapes, and takes the saved state.
    """
    lines: list[str] = []
    rebuilt: dict[int, str] = {}
    for name, module in after.named_modules(remove_duplicate=False):
        if any(name.startswith(f"{home}.") for home in rebuilt.values()):
            continue
        if id(module) in rebuilt:
            lines.append(f"model.set_submodule({name!r}, {_place(rebuilt[id(module)])})")
            continue
        old = before.get_submodule(name)
        if _shapes(module) == _shapes(old) and type(module) is type(old):
            continue
        expression = constructor(module)
        if expression is not None:
            rebuilt[id(module)] = name
            lines.append(f"model.set_submodule({name!r}, {expression})")
            continue
        for key, shape in _shapes(module).items():
            if shape != _shapes(old)[key]:
                empty = f"torch.empty({shape})"
                fresh = f"nn.Parameter({empty})" if key in module._parameters else empty
                lines.append(f"{_place(name)}.{key} = {fresh}")
    return (*lines, *(_ties(after) if lines else ()))


def _ties(model: nn.Module) -> list[str]:
    """Return statements that share again the weights that different layers share."""
    homes: dict[int, str] = {}
    lines = []
    for name, module in model.named_modules():
        for key, tensor in module._parameters.items():
            if tensor is None:
                continue
            if id(tensor) in homes:
                lines.append(f"{_place(name)}.{key} = {homes[id(tensor)]}")
            homes.setdefault(id(tensor), f"{_place(name)}.{key}")
    return lines


def _place(name: str) -> str:
    return f"model.get_submodule({name!r})" if name else "model"


def _shapes(module: nn.Module) -> dict[str, Any]:
    tensors = {**module._parameters, **module._buffers}
    return {key: None if t is None else tuple(t.shape) for key, t in tensors.items()}
