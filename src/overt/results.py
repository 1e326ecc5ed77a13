"""What comes out of overt: frozen results with plain arrays, a status and `to_dict()`.

Results are saved as npz (arrays) with a JSON header (everything else), never as pickles.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import reduce
from html import escape
from pathlib import Path
from typing import Any, Self

import numpy as np

from overt._check import Bools, Floats, InputError, InternalError, Ints
from overt._figures import bars_figure, runs_figure
from overt._io import (
    as_numpy,
    as_path,
    brief,
    digest,
    open_npz,
    plain,
    reading,
    restored,
    same,
    write_whole,
)

MAX_ROUNDING = 1e-9
"""Relative amount by which rounding may put a lower bound above an objective."""


class Status(StrEnum):
    """How a result ended: equal to its short name, with an `explanation` that advises."""

    OPTIMAL = "optimal"
    LOWER_BOUND = "lower_bound"
    CONVERGED = "converged"
    FINISHED = "finished"
    DIVERGED = "diverged"
    INTERRUPTED = "interrupted"

    @property
    def explanation(self) -> str:
        """What the status means and what can be done about it."""
        return _EXPLANATIONS[self]


_EXPLANATIONS = {
    Status.OPTIMAL: (
        "This is a global optimum (after solve(rank=r), among maps of rank at most r): the "
        "objective equals its proved lower bound."
    ),
    Status.LOWER_BOUND: (
        "Theory gives only a lower bound here; the factors come from descent started at the "
        "bound's solution, and the certificate's gap says how much might still be gained. More "
        "width (more blocks, for DropBlock) or a stronger noise usually closes it."
    ),
    Status.CONVERGED: (
        "Descent reached a stationary point; certify it to know how far it is from the optimum."
    ),
    Status.FINISHED: (
        "All the work that was asked for was done. A trained network's distance from the optimum "
        "is known once it is certified."
    ),
    Status.DIVERGED: (
        "The iterates grew without bound, which means that the learning rate is too large for the "
        "size of the target and the inputs; divide it by ten and start again."
    ),
    Status.INTERRUPTED: "Stopped before the end; everything up to the last record is kept.",
}


@dataclass(frozen=True, repr=False, eq=False)
class Result:
    """Base of all results: printing, conversion and storage. Fields belong to the subclasses."""

    __hash__ = None  # type: ignore[assignment]  # arrays have no hash either

    def __eq__(self, other: object) -> bool:
        """Whether the other result has the same type and, NaN included, the same values."""
        if type(self) is not type(other):
            return NotImplemented
        return all(
            same(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)
        )

    def __repr__(self) -> str:
        body = ", ".join(
            f"{f.name}={brief(getattr(self, f.name))}" for f in fields(self)
        )
        return f"{type(self).__name__}({body})"

    def _repr_html_(self) -> str:
        """Return the class's own text where it has one, else the fields as a table."""
        kind = type(self)
        if kind.__str__ is not object.__str__ or kind.__repr__ is not Result.__repr__:
            return f"<pre>{escape(str(self))}</pre>"
        rows = []
        for f in fields(self):
            value = getattr(self, f.name)
            shown = (
                value._repr_html_()
                if isinstance(value, Result)
                else escape(brief(value))
            )
            if isinstance(value, Status):
                shown = f"{value}: {escape(value.explanation)}"
            rows.append(
                f'<tr><th style="text-align: left">{f.name}</th><td>{shown}</td></tr>'
            )
        return f"<table><caption>{escape(type(self).__name__)}</caption>{''.join(rows)}</table>"

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain dicts, lists, numbers and strings, ready for JSON."""
        return {f.name: plain(getattr(self, f.name)) for f in fields(self)}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the result to `path` as .npz or .json, whole or not at all, for `load`."""
        suffix = as_path("path", path).suffix
        if suffix not in (".npz", ".json"):
            raise InputError(f"path must end in .npz or .json, got {path}")
        arrays: dict[str, Any] = {}
        header: dict[str, Any] = {}
        for f in fields(self):
            value = as_numpy(getattr(self, f.name))
            layers = value if isinstance(value, tuple) else ()
            if suffix == ".npz" and isinstance(value, np.ndarray):
                arrays[f.name] = value
            elif suffix == ".npz" and layers and isinstance(layers[0], np.ndarray):
                arrays |= {f"{f.name}_{i + 1}": W for i, W in enumerate(layers)}
            else:
                header[f.name] = plain(value)
        text = json.dumps({**header, "checksum": digest(header, arrays)})
        if suffix == ".json":
            return write_whole(path, text)
        arrays["header"] = np.array(text)
        return write_whole(path, lambda file: np.savez_compressed(file, **arrays))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a result of this class that `save` wrote; NaN stands where JSON has null.

        A file that was changed since does not fit its checksum, and is refused.
        """
        arrays: dict[str, Any] = {}
        otherwise = f"holds no {cls.__name__}"
        with reading(path, otherwise):
            if Path(path).suffix == ".json":
                text = Path(path).read_text(encoding="utf-8")
            else:
                with open_npz(path, otherwise) as archive:
                    arrays = dict(archive)
                text = str(arrays.pop("header"))
            header = json.loads(text)
            checksum = header.pop("checksum", None)
            found = restored(cls, arrays | header)
            if checksum != digest(header, arrays):
                raise InputError(
                    f"{path} was changed or damaged: its checksum does not fit"
                )
            return found


@dataclass(frozen=True, repr=False, eq=False)
class Certificate(Result):
    """How far given weights are from the global optimum, recomputed from the problem's data.

    Attributes
    ----------
    objective
        The dropout objective at the given weights.
    lower_bound
        A proved lower bound on the objective over all weights; from `solve(rank=)` over those whose
        map has at most that rank.
    gap
        objective - lower_bound, which includes what rounding may have added to the bound.
    relative_gap
        gap divided by the lower bound, or by 1e-10 E|y|^2 where the bound is less than that, as
        without noise (7.1e-6 for noises with negative correlations, whose penalties cancel).
    imbalance
        Variance over hidden units (blocks, for DropBlock) of |u_i| |C^(1/2) v_i|; for deep
        networks the equalization gap R / (nu |W C^(1/2)|_*^2) - 1.
    distance
        Frobenius distance of the network map to the map that attains the bound, in the geometry
        of the inputs.
    """

    objective: float
    lower_bound: float
    gap: float
    relative_gap: float
    imbalance: float
    distance: float | None = None

    def __post_init__(self) -> None:
        if self.relative_gap < -MAX_ROUNDING:
            raise InternalError(
                f"the lower bound {self.lower_bound!r} is above the objective {self.objective!r}, "
                "so one of them is wrong; this is an error of overt: please report it with the "
                "network and the weights"
            )


@dataclass(frozen=True, repr=False, eq=False)
class RankCertificate(Result):
    """Between which ranks the map of every global optimum lies.

    Attributes
    ----------
    least, most
        Every optimum has at least and at most this rank; they are equal but for ties.
    bound_below
        A lower bound on the objective of every network of rank below `least`; None if that is 0.
    """

    least: int
    most: int
    bound_below: float | None = None

    @property
    def statement(self) -> str:
        """The certificate in words."""
        if self.least == self.most:
            return f"Every optimum has rank {self.least}."
        return f"Every optimum has rank {self.least} to {self.most}."


@dataclass(frozen=True, repr=False, eq=False)
class Solution(Result):
    """Factors of a two-layer linear network x -> U V'x, with what is known about them."""

    U: Floats
    V: Floats
    objective: float
    rank: int
    status: Status
    certificate: Certificate
    rank_certificate: RankCertificate | None = None

    @property
    def product(self) -> Floats:
        """U V', outputs x inputs."""
        return self.U @ self.V.T

    @property
    def spectrum(self) -> Floats:
        """The singular values of the product, in decreasing order."""
        return np.asarray(np.linalg.svd(self.product, compute_uv=False))

    def plot(self) -> Any:
        """Draw the spectrum of the map, and the shares |u_i||v_i| of the hidden units."""
        shares = np.linalg.norm(self.U, axis=0) * np.linalg.norm(self.V, axis=0)
        return bars_figure(
            ("singular value", self.spectrum), ("share of the unit", shares)
        )


@dataclass(frozen=True, repr=False, eq=False)
class DeepSolution(Result):
    """Weights [W_1, ..., W_(k+1)] of a deep linear network, with what is known about them.

    `shares` (hidden layers x directions), where the optimum is exact, says which share of a layer's
    units carries which direction.
    """

    weights: tuple[Floats, ...]
    objective: float
    rank: int
    status: Status
    certificate: Certificate
    rank_certificate: RankCertificate | None = None
    shares: Floats | None = None

    @property
    def product(self) -> Floats:
        """W_(k+1) ... W_1, outputs x inputs."""
        return reduce(lambda product, W: W @ product, self.weights)

    @property
    def spectrum(self) -> Floats:
        """The singular values of the product, in decreasing order."""
        return np.asarray(np.linalg.svd(self.product, compute_uv=False))

    def plot(self) -> Any:
        """Draw the spectrum of the map."""
        return bars_figure(("singular value", self.spectrum))


@dataclass(frozen=True, repr=False, eq=False)
class Trace(Result):
    """Runs of a training algorithm, one per seed, with records along the way.

    Attributes
    ----------
    steps
        Step numbers of the records, (records,); the first is 0.
    objective, imbalance, rank
        Exact dropout objective, imbalance and numerical rank of the map, each
        (seeds, records); NaN, and rank -1, where a run has diverged or was not reached.
    weights
        Final weights, each with seeds as its first axis: (U, V), or (W_1, ..., W_(k+1)).
    optimum
        The proved lower bound on the objective that the runs descend to.
    diverged
        Which seeds diverged, (seeds,).
    status
        "finished", "diverged" if any seed did, or "interrupted".
    """

    steps: Ints
    objective: Floats
    imbalance: Floats
    rank: Ints
    weights: tuple[Floats, ...]
    optimum: float
    diverged: Bools
    status: Status

    @property
    def U(self) -> Floats:
        """Final U of a two-layer network, (seeds, outputs, width)."""
        return self._factor(0)

    @property
    def V(self) -> Floats:
        """Final V of a two-layer network, (seeds, inputs, width)."""
        return self._factor(1)

    def plot(self) -> Any:
        """Plot objective and imbalance over the steps, beside the optimum."""
        return runs_figure([("", self)])

    def _factor(self, index: int) -> Floats:
        if len(self.weights) != 2:
            raise AttributeError(
                f"a network of {len(self.weights)} layers has weights, not U and V"
            )
        return self.weights[index]
