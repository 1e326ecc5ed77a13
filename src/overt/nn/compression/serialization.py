"""Save a compressed network to one file, and load it into the model as it was built.

The file has the weights, and for every module its class and the numbers that describe its shape.
"""

from __future__ import annotations

import json
import os
from typing import Any

from torch import nn

from overt._check import InputError, MissingExtraError
from overt.nn.compression.loader import load_into, read_file


def save_compressed(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write a compressed network to a safetensors file.

    Parameters
    ----------
    model
        The first result of `compress`, perhaps trained further.
    path
        File to write. Load it with `load_compressed`.
    """
    try:
        from safetensors.torch import save_file
    except ModuleNotFoundError:
        raise MissingExtraError("safetensors", "torch") from None

    modules = {
        name: [type(module).__name__, _numbers(module)] for name, module in model.named_modules()
    }
    metadata = {"modules": json.dumps(modules)}
    config = getattr(model, "config", None)
    if config is not None and hasattr(config, "to_json_string"):  # a model of Hugging Face
        metadata["config"] = config.to_json_string(use_diff=False)
    # Copies, because the file format has no shared tensors.
    state = model.state_dict()
    copies = {key: tensor.detach().clone().contiguous() for key, tensor in state.items()}
    save_file(copies, path, metadata)


def load_compressed(path: str | os.PathLike[str], model: nn.Module | None = None) -> nn.Module:
    """Return a compressed network, in evaluation mode, from a file of `save_compressed`.

    Parameters
    ----------
    path
        The file.
    model
        The original model as it is built, with any weights; it becomes the compressed one. Models
        of Hugging Face are built from the configuration in the file if None.
    """
    try:
        metadata, state = read_file(path)
    except ModuleNotFoundError:
        raise MissingExtraError("safetensors", "torch") from None
    if "modules" not in metadata:
        raise InputError(f"{os.fspath(path)} was not written by save_compressed")
    if model is None:
        if "config" not in metadata:
            raise InputError("pass model=, the original model as it is built")
        model = _from_config(metadata)
    try:
        return load_into(model, metadata, state)
    except ValueError as error:
        raise InputError(str(error)) from None


def _numbers(module: nn.Module) -> dict[str, Any]:
    """Return the numbers, words and sizes among a module's attributes."""
    simple = (int, float, bool, str, tuple)
    return {
        key: value
        for key, value in vars(module).items()
        if type(value) in simple and key[0] != "_" and key != "training"
    }


def _from_config(metadata: dict[str, str]) -> nn.Module:
    """Build a model of Hugging Face."""
    import transformers

    settings = json.loads(metadata["config"])
    config = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
    kind, _ = json.loads(metadata["modules"])[""]
    model: nn.Module = getattr(transformers, kind)(config)
    return model
