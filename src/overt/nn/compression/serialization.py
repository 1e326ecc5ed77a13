"""Save a compressed network to one file, and load it into the model as it was built.

The file has the weights, and for every module its class and the numbers that describe its shape.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
from torch import Tensor, nn

from overt._check import InputError
from overt._io import as_path, digest, reading, safetensors, write_whole
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
    save = safetensors("torch", "torch").torch.save
    modules = {
        name: [type(module).__name__, _numbers(module)]
        for name, module in model.named_modules()
    }
    metadata = {"modules": json.dumps(modules)}
    config = getattr(model, "config", None)
    if config is not None and hasattr(
        config, "to_json_string"
    ):  # a model of Hugging Face
        metadata["config"] = config.to_json_string(use_diff=False)
    # Copies, because the file format has no shared tensors.
    state = model.state_dict()
    copies = {
        key: tensor.detach().clone().contiguous() for key, tensor in state.items()
    }
    metadata["checksum"] = _checksum(metadata, copies)
    write_whole(as_path("path", path), save(copies, metadata))


def load_compressed(
    path: str | os.PathLike[str], model: nn.Module | None = None
) -> nn.Module:
    """Return a compressed network, in evaluation mode, from a file of `save_compressed`.

    Parameters
    ----------
    path
        The file.
    model
        The original model as it is built, with any weights; it becomes the compressed one. Models
        of Hugging Face are built from the configuration in the file if None.
    """
    safetensors("torch", "torch")
    path = as_path("path", path)
    with reading(path, "cannot be read as a compressed network"):
        metadata, state = read_file(path)
    if "modules" not in metadata:
        raise InputError(f"{path} was not written by save_compressed")
    if metadata.pop("checksum", "") != _checksum(metadata, state):
        raise InputError(f"{path} was changed or damaged: its checksum does not fit")
    if model is None:
        if "config" not in metadata:
            raise InputError("pass model=, the original model as it is built")
        model = _from_config(metadata)
    try:
        return load_into(model, metadata, state)
    except ValueError as error:
        raise InputError(str(error)) from None


def _checksum(metadata: dict[str, str], state: dict[str, Tensor]) -> str:
    data = safetensors("torch", "torch").torch.save(state)
    return digest([metadata], {"tensors": np.frombuffer(data, np.uint8)})


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
