"""Plain torch statements that rebuild a smaller network, so that its state loads without overt."""

from __future__ import annotations

from typing import Any

from torch import nn

from overt.nn.compression.layers import CONVOLUTION, PER_CHANNEL, TRANSPOSED
from overt.nn.layers.dropconnect import DropConnectConv2d, DropConnectLinear


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
        expression = _constructor(module)
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


def loading(recipe: tuple[str, ...], build: str, weights: str) -> str:
    """Return a program that builds the smaller network and loads its weights, with plain torch.

    `build` is the statement that imports or defines the function build(), which makes the
    original model; `weights` is a .safetensors file beside the program.
    """
    body = "\n".join(f"    {line}" for line in recipe)
    return (
        '"""The smaller network with its weights; needs torch and safetensors only."""\n\n'
        "from pathlib import Path\n\nimport torch\nfrom safetensors.torch import load_file\n"
        f"from torch import nn\n\n{build}\n\n\n"
        'def load():\n    """Return the smaller network, in evaluation mode."""\n'
        f"    model = build()\n{body}\n"
        f"    model.load_state_dict(load_file(Path(__file__).with_name({weights!r})))\n"
        "    return model.eval()\n"
    )


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


def _constructor(module: nn.Module) -> str | None:
    """Return the plain torch expression that builds a layer like this one, None if it has none."""
    bias = f"bias={getattr(module, 'bias', None) is not None}"
    match module:
        case nn.Sequential():
            parts = [_constructor(part) for part in module]
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
