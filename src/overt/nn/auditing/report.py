"""The report of an audit: findings as data, in words and in tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from overt._check import Floats
from overt.results import Result, Status


@dataclass(frozen=True, repr=False, eq=False)
class NoiseFindings(Result):
    """One source of noise: a noise layer, or a module that samples in its forward pass.

    Attributes
    ----------
    name, kind
        The layer's name in the model, and how it prints.
    units
        Entries of a sample that it acts on (weights, for DropConnect); None if that changes from
        batch to batch.
    drop_prob
        Its nominal drop probability, None for noise that has none.
    penalty, penalty_error, exact
        What its noise adds to the loss when the noise of all layers behind it is on: exact, or
        from sampled masks with this standard error.
    share
        The penalty as a share of the training objective.
    dead
        Units that were 0 on every sample.
    """

    name: str
    kind: str
    units: int | None
    drop_prob: float | None
    penalty: float
    penalty_error: float
    exact: bool
    share: float
    dead: int | None


@dataclass(frozen=True, repr=False, eq=False)
class HeadFindings(Result):
    """The last layer of a network with a squared loss beside the theory of its optimum.

    Attributes
    ----------
    name
        The noise layer before it, or the layer itself if there is none.
    width, rank_limit
        The units that feed it, and the largest rank its map can have.
    centered
        Whether biases behind the noise make the theory one of centered targets and outputs.
    target_spectrum
        Singular values of the (centered) targets as samples x outputs, divided by sqrt(samples).
    predicted_spectrum
        What the optimum under this noise makes of them: Theorem 2.7 of structured dropout, 3.6 of
        Implicit bias of dropout.
    spectrum
        Singular values of the (centered) outputs, divided by sqrt(samples).
    predicted_rank
        The number of non-zero predicted values.
    lower_bound
        No weights, and no layers before the noise, have a smaller training objective: proved.
    best_last_layer
        The least objective of any last layer, its inputs as they are (this noise only); None where
        too many units feed it.
    gap, gap_error, relative_gap
        Objective minus lower bound; its standard error, that of the objective; and the gap
        divided by the objective. An objective that is sampled can be below the bound by its error.
    """

    name: str
    width: int
    rank_limit: int
    centered: bool
    target_spectrum: Floats
    predicted_spectrum: Floats
    spectrum: Floats
    predicted_rank: int
    lower_bound: float
    best_last_layer: float | None
    gap: float
    gap_error: float
    relative_gap: float


@dataclass(frozen=True, repr=False, eq=False)
class AuditReport(Result):
    """What noise does to a network on some data, and what theory promises. See `audit`.

    Attributes
    ----------
    model, loss, samples, outputs, parameters
        What was audited, on how many rows.
    plain_loss
        The mean loss without noise, all layers in evaluation mode.
    objective, objective_error
        The mean loss with noise, which training descends if batch normalization is frozen; the
        error is standard, 0 if it is exact.
    accuracy
        Share of classes predicted right; None where targets are numbers.
    noises, head
        The findings.
    skipped
        (name, reason) of what was not understood or not done.
    status
        "finished", or "interrupted": the findings are then those on the rows seen so far.
    """

    model: str
    loss: str
    samples: int
    outputs: int
    parameters: int
    plain_loss: float
    objective: float
    objective_error: float
    accuracy: float | None
    noises: tuple[NoiseFindings, ...]
    head: HeadFindings | None
    skipped: tuple[tuple[str, str], ...]
    status: Status
    seconds: float

    def __str__(self) -> str:
        parts = [*_summary(self), "", *_noise_lines(self.noises)]
        if self.head is not None:
            parts += ["", *_head_lines(self, self.head)]
        if self.skipped:
            parts += ["", "left out"]
            parts += [f"  {name or '(model)'}: {why}" for name, why in self.skipped]
        return "\n".join(parts)


def _summary(report: AuditReport) -> list[str]:
    """Return what was audited and the loss with and without noise, a line each."""
    error = f" (s.e. {report.objective_error:.1g})" if report.objective_error else ""
    lines = [
        f"{report.model}: {report.parameters:,} parameters, {report.outputs} output(s), "
        f"{report.samples:,} rows, loss {report.loss}",
        f"loss without noise {report.plain_loss:.5g}; training objective, with noise, "
        f"{report.objective:.5g}{error}",
    ]
    if report.accuracy is not None:
        lines.append(f"accuracy {report.accuracy:.4f}")
    if report.status is Status.INTERRUPTED:
        lines.append("interrupted: on the rows seen until then")
    return lines


def _noise_lines(noises: Sequence[NoiseFindings]) -> list[str]:
    if not noises:
        return ["noise", "  no noise layer that overt knows is in this model"]
    rows = [
        (
            n.name,
            n.kind,
            n.drop_prob,
            f"{n.penalty:.4g}" + (" exact" if n.exact else f" ± {n.penalty_error:.1g}"),
            f"{n.share:.1%}",
            None if n.dead is None else f"{n.dead} of {n.units}",
        )
        for n in noises
    ]
    header = ("layer", "kind", "drop_prob", "penalty", "share", "dead units")
    return [
        "noise",
        "  penalty: added to the loss by a layer's noise, with the noise of the layers behind it "
        "on",
        *_table(header, rows),
    ]


def _head_lines(report: AuditReport, head: HeadFindings) -> list[str]:
    centered = "centered " if head.centered else ""
    error = f" ± {head.gap_error:.1g}" if head.gap_error else ""
    lines = [
        "last layer",
        f"  from {head.name or '(model)'}: {head.width} units, rank at most {head.rank_limit}",
        f"  at least {head.lower_bound:.5g} for all weights, and any layers before this place",
    ]
    if head.best_last_layer is not None:
        lines.append(
            f"  at least {head.best_last_layer:.5g} for every last layer, its inputs as they are"
        )
    spectra = (head.spectrum, head.predicted_spectrum, head.target_spectrum)
    columns = zip_longest(*(values[:12].tolist() for values in spectra), fillvalue=0.0)
    rows = [(i, *values) for i, values in enumerate(columns, 1)]
    return [
        *lines,
        f"  objective {report.objective:.5g}, gap {head.gap:.4g}{error} ({head.relative_gap:.1%} "
        "of the objective)",
        f"  singular values of the {centered}outputs, the {centered}targets and "
        "the optimum under this noise",
        *_table(("index", "outputs", "optimum", "targets"), rows),
    ]


def _table(header: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> list[str]:
    """Return aligned lines."""
    lines = [header, *(tuple(map(_cell, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  " + "  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return {None: "-", "": "(model)"}.get(value, str(value))
