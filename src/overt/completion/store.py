"""Models on disk: a folder with model.safetensors (arrays) and model.json (everything else)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from overt._check import InputError
from overt._files import write_whole
from overt.completion.checkpoint import read_arrays, write_arrays
from overt.completion.fitting import Fit
from overt.completion.learned import Prior
from overt.completion.model import Model
from overt.entries import Entries
from overt.results import Status

if TYPE_CHECKING:
    from overt.completion.estimator import DropoutCompletion

FORMAT = 1


def save(path: str | os.PathLike[str], estimator: DropoutCompletion) -> None:
    """Write a fitted estimator; each of the two files is replaced in one step.

    A kill between the steps leaves files of two models, which `load` tells by the checksum.
    """
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    model, entries = estimator.model_, estimator.entries_
    arrays: dict[str, Any] = {
        "rows": entries.rows.astype(np.int32),
        "cols": entries.cols.astype(np.int32),
        "values": entries.values,
        "objective": estimator.objective_,
        "strength": model.strength,
    }
    for side in (0, 1):
        arrays[f"means_{side}"] = model.means[side]
        arrays[f"prior_mean_{side}"] = model.priors[side].mean
        arrays[f"prior_precision_{side}"] = model.priors[side].precision
        if model.spread != "dropout":
            arrays[f"table_{side}"] = model.tables[side]
        if model.draws is not None:
            arrays[f"draws_{side}"] = model.draws[side]
    for name in ("learned_drop_prob_", "path_"):
        if getattr(estimator, name) is not None:
            arrays[name] = np.asarray(getattr(estimator, name), dtype=float)
    header = {
        "format": FORMAT,
        "kind": "overt completion model",
        "parameters": _plain(estimator.get_params()),
        "n_factors": model.n_factors,
        "biases": bool(model.biases),
        "center": model.center,
        "noise": model.noise,
        "spread": model.spread,
        "low": _finite(model.low),
        "high": _finite(model.high),
        "drop_prob": _plain(estimator.drop_prob_),
        "status": str(estimator.status_),
        "shape": list(entries.shape),
        "row_ids": None if entries.row_ids is None else entries.row_ids.tolist(),
        "col_ids": None if entries.col_ids is None else entries.col_ids.tolist(),
    }
    kind = {"kind": "overt completion model"}
    header["checksum"] = write_arrays(folder / "model.safetensors", arrays, kind)
    write_whole(folder / "model.json", json.dumps(header) + "\n")


def load(path: str | os.PathLike[str], estimator: DropoutCompletion) -> None:
    """Fill an estimator with a model that `save` wrote."""
    folder = Path(path)
    if not (folder / "model.json").exists():
        raise InputError(f"{folder} holds no completion model (model.json is missing)")
    try:
        header = json.loads((folder / "model.json").read_text())
        if header.get("format") != FORMAT:
            raise InputError(
                f"{folder} has format {header.get('format')!r}; this version reads {FORMAT}"
            )
        arrays, _, checksum = read_arrays(folder / "model.safetensors")
        if header["checksum"] != checksum:
            raise InputError(
                f"{folder} holds model.json and model.safetensors of different models, or damaged "
                "ones; save it again"
            )
        _fill(estimator, header, arrays)
    except (AttributeError, KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"{folder} holds no readable completion model ({reason})") from None


def _fill(estimator: DropoutCompletion, header: dict[str, Any], arrays: dict[str, Any]) -> None:
    estimator.set_params(**header["parameters"])
    ids = [None if header[n] is None else np.array(header[n]) for n in ("row_ids", "col_ids")]
    entries = Entries(
        arrays["rows"].astype(np.int64),
        arrays["cols"].astype(np.int64),
        arrays["values"],
        (header["shape"][0], header["shape"][1]),
        *ids,
    )
    none = np.zeros((0, 0))
    priors = [Prior(arrays[f"prior_mean_{s}"], arrays[f"prior_precision_{s}"]) for s in (0, 1)]
    model = Model(
        header["n_factors"],
        header["biases"],
        header["center"],
        header["noise"],
        (arrays["means_0"], arrays["means_1"]),
        (arrays.get("table_0", none), arrays.get("table_1", none)),
        header["spread"],
        arrays["strength"],
        (priors[0], priors[1]),
        -np.inf if header["low"] is None else header["low"],
        np.inf if header["high"] is None else header["high"],
        (arrays["draws_0"], arrays["draws_1"]) if "draws_0" in arrays else None,
    )
    fit = Fit(
        model,
        arrays["objective"].tolist(),
        Status(header["status"]),
        header["drop_prob"],
        arrays.get("learned_drop_prob_"),
        arrays.get("path_"),
    )
    estimator.adopt(entries, fit)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(v) for name, v in value.items()}
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
