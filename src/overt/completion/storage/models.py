"""Models on disk: a folder with model.safetensors (arrays) and model.json (everything else)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from overt._check import InputError
from overt._files import read_arrays, write_arrays, write_whole
from overt._plain import plain
from overt.completion.encoding import Encoder
from overt.completion.forms.features import Directions
from overt.completion.forms.model import Draws, FactorModel, Fit
from overt.completion.forms.noise import RowNoise
from overt.completion.forms.prior import Prior
from overt.completion.forms.problem import Columns
from overt.completion.forms.spread import SPREADS
from overt.entries import Entries
from overt.results import Status

FORMAT = 2
KIND = "overt completion model"


def save(
    path: str | os.PathLike[str], parameters: Mapping[str, Any], entries: Entries, fit: Fit
) -> None:
    """Write parameters, entries and a fit; each of the two files is replaced in one step.

    A kill between the steps leaves files of two models, which `load` tells by the checksum.
    """
    folder, model = Path(path), fit.model
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {
        "rows": entries.rows.astype(np.int32),
        "cols": entries.cols.astype(np.int32),
        "values": entries.values,
        "objective": np.asarray(fit.objective),
        **model.spread.arrays(),
    }
    for side in (0, 1):
        arrays |= {f"means_{side}": model.means[side], **model.priors[side].arrays(side)}
        arrays |= model.noises[side].arrays(side) | model.directions[side].arrays(side)
        arrays[f"given_{side}"] = model.given[side]
    if model.draws is not None:
        arrays |= {f"draws_{name}": array for name, array in model.draws._asdict().items()}
    for name, value in (("learned_drop_prob_", fit.learned_drop_prob), ("path_", fit.path)):
        if value is not None:
            arrays[name] = np.asarray(value, dtype=float)
    header = {
        "format": FORMAT, "kind": KIND, "parameters": plain(dict(parameters)),
        "n_factors": model.columns.n_factors, "biases": bool(model.columns.biases),
        "center": model.center, "noise": model.noise, "spread": model.spread.name,
        "low": plain(model.low), "high": plain(model.high), "drop_prob": plain(fit.drop_prob),
        "fitted": fit.fitted,
        "encoders": [None if e is None else e.to_dict() for e in model.encoders],
        "status": str(fit.status), "shape": list(entries.shape),
        "row_ids": None if entries.row_ids is None else entries.row_ids.tolist(),
        "col_ids": None if entries.col_ids is None else entries.col_ids.tolist(),
    }  # fmt: skip
    header["checksum"] = write_arrays(folder / "model.safetensors", arrays, {"kind": KIND})
    write_whole(folder / "model.json", json.dumps(header) + "\n")


def load(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Entries, Fit]:
    """Return the parameters, entries and fit that `save` wrote."""
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
        return header["parameters"], _entries(header, arrays), _fit(header, arrays)
    except (AttributeError, KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"{folder} holds no readable completion model ({reason})") from None


def _entries(header: dict[str, Any], arrays: dict[str, Any]) -> Entries:
    ids = [None if header[n] is None else np.array(header[n]) for n in ("row_ids", "col_ids")]
    return Entries(arrays["rows"], arrays["cols"], arrays["values"], header["shape"], *ids)


def _given(arrays: Mapping[str, Any], side: int) -> Any:
    return arrays[f"given_{side}"]


def _fit(header: dict[str, Any], arrays: dict[str, Any]) -> Fit:
    left, right = map(Encoder.from_dict, header["encoders"])
    draws = (arrays[f"draws_{name}"] for name in Draws._fields) if "draws_U" in arrays else None
    pairs = {
        "priors": Prior.from_arrays, "noises": RowNoise.from_arrays,
        "directions": Directions.from_arrays, "given": _given,
    }  # fmt: skip
    model = FactorModel(
        columns=Columns(header["n_factors"], header["biases"]),
        center=header["center"],
        noise=header["noise"],
        means=(arrays["means_0"], arrays["means_1"]),
        spread=SPREADS[header["spread"]].from_arrays(arrays),
        low=-np.inf if header["low"] is None else header["low"],
        high=np.inf if header["high"] is None else header["high"],
        draws=None if draws is None else Draws(*draws),
        encoders=(left, right),
        **{name: (read(arrays, 0), read(arrays, 1)) for name, read in pairs.items()},
    )
    return Fit(
        model, arrays["objective"].tolist(), Status(header["status"]), header["drop_prob"],
        arrays.get("learned_drop_prob_"), arrays.get("path_"), header["fitted"],
    )  # fmt: skip
