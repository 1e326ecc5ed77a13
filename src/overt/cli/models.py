"""Read models, weights and examples for the commands on PyTorch models."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from overt._check import InputError
from overt._io import open_npz, reading, safetensors

Model = Annotated[
    str, Argument(metavar="FILE.py:FUNCTION", help="A function that builds the model.")
]
Weights = Annotated[
    Path | None, Option(help="The model's weights: a .safetensors or .pt file.")
]
Points = Annotated[
    int, Option(min=0, help="Number of points to use, from the first; 0 for all.")
]

EXAMPLE_NAMES = (("x", "y"), ("x_test", "y_test"))
"""Names of the arrays in a file of examples, the first that are there."""

COMPILED, WRAPPERS = "_orig_mod.", ("module.", "model.")
"""What wrappers of a model put into the names of its weights, and before all of them."""


def build_model(text: str, weights: Path | None = None) -> Any:
    """Return what the function named by FILE.py:FUNCTION builds, with weights if given."""
    name, _, function = text.rpartition(":")
    path = Path(name)
    if not name or path.suffix != ".py" or not function.isidentifier():
        raise InputError(f"model must be FILE.py:FUNCTION, got {text!r}")
    if not path.exists():
        raise InputError(f"model must name a file that exists, got {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"model must name a Python file, got {path}")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise InputError(
            f"{path}, line {error.lineno}, is not Python: {error.msg}"
        ) from None
    if not callable(getattr(module, function, None)):
        raise InputError(f"{path} must define a function {function}, it does not")
    build = getattr(module, function)
    needed = [
        p.name for p in inspect.signature(build).parameters.values() if _needed(p)
    ]
    if needed:
        raise InputError(
            f"{function} must build the model without arguments, it needs {', '.join(needed)}"
        )
    net = build()
    if weights is not None:
        found = _read_weights(weights)
        try:
            net.load_state_dict(_named(found, net.state_dict()))
        except (RuntimeError, TypeError, AttributeError, ValueError) as error:
            raise InputError(f"weights do not fit the model: {error}") from None
    return net


def load_model(
    text: str, weights: Path | None = None, *, trust_pickle: bool = False
) -> Any:
    """Return a model from FILE.py:FUNCTION, a TorchScript file, or a pickled module."""
    path = Path(text)
    if path.suffix not in (".pt", ".pth", ".ts"):
        return build_model(text, weights)
    if not path.exists():
        raise InputError(f"model must name a file that exists, got {path}")
    if weights is not None:
        raise InputError(f"weights are for FILE.py:FUNCTION; {path} has its own")
    import torch

    if _is_torchscript(path):
        with reading(path, "cannot be read as TorchScript"), warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # the file is there all the same
            return torch.jit.load(path, map_location="cpu")
    if not trust_pickle:
        raise InputError(
            f"{path} is not TorchScript. A whole model that torch.save wrote runs code when it is "
            "loaded: pass --trust-pickle if you trust the file. Weights alone need "
            f"FILE.py:FUNCTION --weights {path}"
        )
    sys.path.insert(0, str(Path.cwd()))  # where the model's classes are defined
    with reading(path, "cannot be read as a model that torch.save wrote"):
        found = torch.load(path, map_location="cpu", weights_only=False)
    if not isinstance(found, torch.nn.Module):
        raise InputError(
            f"{path} must hold a torch module, it holds {type(found).__name__}"
        )
    return found


def _is_torchscript(path: Path) -> bool:
    """Return whether a file is a TorchScript archive: a zip file with a folder of code."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any("/code/" in name for name in archive.namelist())


def read_examples(path: Path, points: int = 0) -> tuple[Any, Any]:
    """Return x and y of an npz file, the first `points` of them unless that is 0."""
    if not path.exists():
        raise InputError(f"data must name a file that exists, got {path}")
    with path.open("rb") as stream:
        if stream.read(6) == b"\x93NUMPY":
            raise InputError(f"data must be an npz file, {path} is a single array")
    with open_npz(path, "must be an npz file with arrays x and y") as file:
        names = next((n for n in EXAMPLE_NAMES if set(n) <= set(file.files)), None)
        if names is None:
            raise InputError(
                "data must hold arrays x and y, or x_test and y_test, "
                f"{path} holds {', '.join(file.files) or 'nothing'}"
            )
        x, y = (file[name] for name in names)
    if not x.ndim or not y.ndim or len(x) != len(y):
        raise InputError(
            f"x and y must have one row per example, got shapes {x.shape} and {y.shape}"
        )
    for name, array in (("x", x), ("y", y)):
        if array.dtype.kind not in "biuf":
            raise InputError(
                f"{name} in {path} must hold numbers, it holds {array.dtype}"
            )
    if not len(x):
        raise InputError(f"{path} must hold at least one example, got none")
    stop = points or len(x)
    return x[:stop], y[:stop]


def _needed(parameter: inspect.Parameter) -> bool:
    """Return whether a function cannot be called without this argument."""
    various = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return (
        parameter.default is inspect.Parameter.empty and parameter.kind not in various
    )


def _read_weights(path: Path) -> Any:
    """Return the weights in a safetensors file, or in one that torch.save wrote."""
    if not path.exists():
        raise InputError(f"weights must name a file that exists, got {path}")
    otherwise = "must be a .safetensors file, or one that torch.save wrote; weights cannot be read"
    if path.suffix == ".safetensors":
        library = safetensors("torch", "torch").torch
        with reading(path, otherwise):
            stored = library.load_file(path)
        return _inner(stored)
    import torch

    with reading(path, otherwise):
        _check_archive(path)
        stored = torch.load(path, map_location="cpu", weights_only=True)
    return _inner(stored)


def _check_archive(path: Path) -> None:
    """Refuse an archive of torch.save whose bytes changed: torch.load ignores its checksums."""
    with path.open("rb") as file:
        if (
            file.read(4) != b"PK\x03\x04"
        ):  # written before PyTorch 1.6, without checksums
            return
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise InputError(
            f"{path} was changed or damaged: the checksum of {damaged} is wrong"
        )


def _inner(stored: Any) -> Any:
    """Return the weights inside what training scripts save.

    A dict with a state_dict and a checkpoint of adversarial training are taken apart.
    """
    for name in ("state_dict", "model_state_dict", "model"):
        if isinstance(stored, dict) and isinstance(stored.get(name), dict):
            stored = stored[name]
    if not isinstance(stored, dict) or not all(isinstance(key, str) for key in stored):
        raise InputError(
            f"weights must be a dict of tensors by their names, got {type(stored).__name__}"
        )
    if "random" in stored and any(key.startswith("model.") for key in stored):
        return {
            k.removeprefix("model."): v
            for k, v in stored.items()
            if k.startswith("model.")
        }
    return stored


def _named(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """Return weights by the model's names if they are these but for what wrappers put in.

    torch.compile inserts "_orig_mod.", DataParallel and Lightning begin all names with "module."
    and "model.".
    """
    names = {name.replace(COMPILED, ""): name for name in wanted}
    bare = {name.replace(COMPILED, ""): value for name, value in found.items()}
    while bare and bare.keys() != names.keys():
        prefix = next(
            (p for p in WRAPPERS if all(name.startswith(p) for name in bare)), None
        )
        if prefix is None:
            return found
        bare = {name.removeprefix(prefix): value for name, value in bare.items()}
    return {names[name]: value for name, value in bare.items()} if bare else found
