"""Models on disk: a folder with model.safetensors (arrays) and model.json (everything else).

Both carry a checksum over what they mean, so that neither is believed when it was changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from overt._check import InputError
from overt._io import (
    alone,
    as_path,
    digest,
    plain,
    read_sealed,
    reading,
    ready,
    write_sealed,
    write_whole,
)
from overt.completion.forms.averaged import Draws
from overt.completion.forms.encoding import Encoder
from overt.completion.forms.features import Directions
from overt.completion.forms.implicit import AllPairs
from overt.completion.forms.model import FactorModel, Fit
from overt.completion.forms.noise import RowNoise
from overt.completion.forms.prior import Prior
from overt.completion.forms.problem import Columns
from overt.completion.forms.spread import SPREADS
from overt.entries import Entries
from overt.entries.identifiers import as_identifiers
from overt.results import Status

FORMAT = 4
"""Raised whenever arrays are added: a model of another format is refused, not guessed at."""
KIND = "overt completion model"
ARRAYS = "model.safetensors"
NEW = "model.new.safetensors"
HEADER = "model.json"
CHOSEN = "chosen."
"""Prefix of what belongs to the model of what was chosen."""


def save(
    path: str | os.PathLike[str],
    parameters: Mapping[str, Any],
    entries: Entries,
    fit: Fit,
    chosen: FactorModel | None = None,
) -> None:
    """Write parameters, entries, a fit and a model of what was chosen, each file in one step.

    New arrays lie beside the old ones until model.json names them: a kill between the steps leaves
    the model before or the new one.
    """
    folder = ready(path)
    arrays: dict[str, Any] = {
        "objective": np.asarray(fit.objective),
        **_arrays(fit.model),
    }
    arrays |= {"rows": entries.rows.astype(np.int32), "cols": entries.cols.astype(np.int32)}
    kept = {"learned_drop_prob_": fit.learned_drop_prob, "path_": fit.path}
    kept |= {"values": entries.values, "times": entries.times}
    for name, value in kept.items():
        if value is not None:
            arrays[name] = np.asarray(value, dtype=float)
    if chosen is not None:
        arrays |= {CHOSEN + name: array for name, array in _arrays(chosen).items()}
    header = {
        "format": FORMAT,
        "kind": KIND,
        "parameters": plain(dict(parameters)),
        "model": _plain(fit.model),
        "chosen": None if chosen is None else _plain(chosen),
        "drop_prob": plain(fit.drop_prob),
        "fitted": fit.fitted,
        "status": str(fit.status),
        "shape": list(entries.shape),
        "row_ids": None if entries.row_ids is None else entries.row_ids.tolist(),
        "col_ids": None if entries.col_ids is None else entries.col_ids.tolist(),
    }
    with alone(folder):
        if (folder / NEW).exists():  # a kill came before the last step, and model.json may name it
            with suppress(Exception):
                named = json.loads((folder / HEADER).read_text(encoding="utf-8"))["arrays"]
                if read_sealed(folder / NEW, KIND)[1] == named:
                    (folder / NEW).replace(folder / ARRAYS)
        header["arrays"] = write_sealed(folder / NEW, arrays, KIND)
        header["checksum"] = digest(header)
        write_whole(folder / HEADER, json.dumps(header) + "\n")
        (folder / NEW).replace(folder / ARRAYS)


def load(
    path: str | os.PathLike[str],
) -> tuple[dict[str, Any], Entries, Fit, FactorModel | None]:
    """Return the parameters, entries, fit and model of what was chosen that `save` wrote."""
    folder = as_path("path", path)
    if not (folder / HEADER).exists():
        raise InputError(f"{folder} holds no completion model ({HEADER} is missing)")
    with reading(folder, "holds no readable completion model"), alone(folder, reading=True):
        header = json.loads((folder / HEADER).read_text(encoding="utf-8"))
        if header.get("format") != FORMAT:
            raise InputError(
                f"{folder} has format {header.get('format')!r}; this version reads {FORMAT}: fit "
                "the model again, or read it with the version that saved it"
            )
        if header.pop("checksum", None) != digest(header):
            raise InputError(
                f"{folder} holds no readable completion model: {HEADER} was changed or damaged"
            )
        arrays: dict[str, Any] = {}
        checksum = ""
        for name in (ARRAYS, NEW):
            if header["arrays"] != checksum and (folder / name).exists():
                arrays, checksum = read_sealed(folder / name, KIND)
        if header["arrays"] != checksum:
            raise InputError(
                f"{folder} holds {HEADER} and {ARRAYS} of different models, or damaged ones; save "
                "it again"
            )
        found = _fit(header, arrays), _chosen(header, arrays)
        return header["parameters"], _entries(header, arrays), *found


def _plain(model: FactorModel) -> dict[str, Any]:
    """Return what is no array of a model."""
    return {
        "n_factors": model.columns.n_factors,
        "biases": bool(model.columns.biases),
        "center": model.center,
        "noise": model.noise,
        "spread": model.spread.name,
        "low": plain(model.low),
        "high": plain(model.high),
        "encoders": [None if e is None else e.to_dict() for e in model.encoders],
    }


def _arrays(model: FactorModel) -> dict[str, Any]:
    """Return the arrays of a model."""
    arrays = model.spread.arrays()
    arrays |= {} if model.pairs is None else model.pairs.arrays()
    for side in (0, 1):
        arrays |= {f"means_{side}": model.means[side], **model.priors[side].arrays(side)}
        arrays |= model.noises[side].arrays(side) | model.directions[side].arrays(side)
        arrays[f"given_{side}"] = model.given[side]
    if model.draws is not None:
        arrays |= {f"draws_{name}": array for name, array in model.draws._asdict().items()}
    return arrays


def _model(told: dict[str, Any], arrays: dict[str, Any]) -> FactorModel:
    left, right = map(Encoder.from_dict, told["encoders"])
    draws = (arrays[f"draws_{name}"] for name in Draws._fields) if "draws_U" in arrays else None
    pairs = {
        "priors": Prior.from_arrays,
        "noises": RowNoise.from_arrays,
        "directions": Directions.from_arrays,
        "given": _given,
    }
    return FactorModel(
        columns=Columns(told["n_factors"], told["biases"]),
        center=told["center"],
        noise=told["noise"],
        means=(arrays["means_0"], arrays["means_1"]),
        spread=SPREADS[told["spread"]].from_arrays(arrays),
        low=-np.inf if told["low"] is None else told["low"],
        high=np.inf if told["high"] is None else told["high"],
        draws=None if draws is None else Draws(*draws),
        encoders=(left, right),
        pairs=AllPairs.from_arrays(arrays),
        **{name: (read(arrays, 0), read(arrays, 1)) for name, read in pairs.items()},
    )


def _entries(header: dict[str, Any], arrays: dict[str, Any]) -> Entries:
    names = ("row_ids", "col_ids")
    ids = {n: None if header[n] is None else as_identifiers(n, header[n]) for n in names}
    if "source" in header:
        raise InputError(
            "this model was fitted by workers of a cluster that read a folder, and was stored "
            f"without its entries; fit it again to {header['source']['path']}"
        )
    rows, cols, values = (arrays[name] for name in ("rows", "cols", "values"))
    return Entries(rows, cols, values, header["shape"], **ids, times=arrays.get("times"))


def _given(arrays: Mapping[str, Any], side: int) -> Any:
    return arrays[f"given_{side}"]


def _fit(header: dict[str, Any], arrays: dict[str, Any]) -> Fit:
    return Fit(
        _model(header["model"], arrays),
        arrays["objective"].tolist(),
        Status(header["status"]),
        header["drop_prob"],
        arrays.get("learned_drop_prob_"),
        arrays.get("path_"),
        header["fitted"],
    )


def _chosen(header: dict[str, Any], arrays: dict[str, Any]) -> FactorModel | None:
    if header["chosen"] is None:
        return None
    mine = {name.removeprefix(CHOSEN): a for name, a in arrays.items() if name.startswith(CHOSEN)}
    return _model(header["chosen"], mine)
