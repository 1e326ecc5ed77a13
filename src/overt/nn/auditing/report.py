"""The report of an audit: findings as data, in words and tables, and as a page with pictures."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from overt._check import Floats, InputError
from overt._figures import BLUE, GRAY, ORANGE, subplots
from overt._html import Page
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
class LayerFindings(Result):
    """A linear or convolutional layer, and how many of its inputs were 0 on every sample.

    Inputs are the units (channels, for a convolution) that feed it.
    """

    name: str
    shape: tuple[int, ...]
    inputs: int
    dead: int


@dataclass(frozen=True, repr=False, eq=False)
class LowerBound(Result):
    """No setting of the weights in `over` has a smaller training objective than `value`."""

    value: float
    over: str
    source: str


@dataclass(frozen=True, repr=False, eq=False)
class HeadFindings(Result):
    """The last layer beside the theory of its optimum.

    Attributes
    ----------
    name
        The noise layer before it, or the layer itself if there is none.
    width, rank_limit
        The units that feed it, and the largest rank its map can have.
    centered
        Whether biases behind the noise make the theory one of centered targets and outputs.
    trunk
        What comes before: "fixed" (the units are the inputs), "affine", or "any".
    target_spectrum
        Singular values of the (centered) targets as samples x outputs, divided by sqrt(samples).
    predicted_spectrum
        What the optimum under this noise makes of them for the squared loss: Theorem 2.7 of
        structured dropout, 3.6 of Implicit bias of dropout.
    spectrum
        Singular values of the (centered) outputs, divided by sqrt(samples).
    predicted_rank
        The number of non-zero predicted values.
    lower_bounds
        Proved bounds on the objective, the one over all weights first.
    gap, gap_error, relative_gap
        Objective minus the first of them; its standard error, that of the objective; and the gap
        divided by the objective. An objective that is sampled can be below the bound by its error.
    """

    name: str
    width: int
    rank_limit: int
    centered: bool
    trunk: str
    target_spectrum: Floats
    predicted_spectrum: Floats
    spectrum: Floats
    predicted_rank: int
    lower_bounds: tuple[LowerBound, ...]
    gap: float
    gap_error: float
    relative_gap: float

    @property
    def lower_bound(self) -> float:
        """The proved bound over all weights."""
        return self.lower_bounds[0].value


@dataclass(frozen=True, repr=False, eq=False)
class Suggestion(Result):
    """A drop probability for the units before the last layer, and what speaks for it.

    Attributes
    ----------
    drop_prob
        Where the holdout error is least.
    current
        The model's own, 0 without dropout there.
    drop_probs
        The candidates.
    holdout, holdout_error
        For each, the squared error on holdout rows of the last layer that is best on the other
        rows under that dropout, with the features fixed; and its standard error over five
        groups of rows.
    plausible
        Smallest and largest candidate within one standard error of the best.
    evidence
        Which rows the error is measured on, and its bias.
    """

    drop_prob: float
    current: float
    drop_probs: Floats
    holdout: Floats
    holdout_error: Floats
    plausible: tuple[float, float]
    evidence: str

    def __str__(self) -> str:
        best = self.holdout.argmin()
        now = abs(self.drop_probs - self.current).argmin()
        low, high = self.plausible
        return (
            f"suggested drop probability before the last layer: {self.drop_prob:g} (now "
            f"{self.current:g}; within one standard error {low:g} to {high:g})\n"
            f"  holdout error {self.holdout[best]:.5g} ± {self.holdout_error[best]:.1g}; at "
            f"{self.drop_probs[now]:g}: {self.holdout[now]:.5g}\n"
            f"  {self.evidence}"
        )


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
        The mean loss with noise, which training descends; the error is standard, 0 if it is exact.
    accuracy, holdout_loss
        Share of classes predicted right, and mean loss on holdout data, where there are any.
    noises, layers, head, suggestion
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
    holdout_loss: float | None
    noises: tuple[NoiseFindings, ...]
    layers: tuple[LayerFindings, ...]
    head: HeadFindings | None
    suggestion: Suggestion | None
    skipped: tuple[tuple[str, str], ...]
    status: Status
    seconds: float

    def __str__(self) -> str:
        parts = [*_summary(self), "", *_noise_lines(self.noises)]
        if self.head is not None:
            parts += ["", *_head_lines(self, self.head)]
        if self.suggestion is not None:
            parts += ["", str(self.suggestion)]
        if self.layers:
            rows = [(x.name, x.shape, x.inputs, x.dead) for x in self.layers]
            header = ("layer", "weight", "inputs", "always 0")
            parts += ["", "layers", *_table(header, rows)]
        if self.skipped:
            parts += ["", "left out"]
            parts += [f"  {name or '(model)'}: {why}" for name, why in self.skipped]
        return "\n".join(parts)

    def plot(self) -> Any:
        """Plot the last layer's spectra and the curve of the suggestion."""
        panels = []
        if self.head is not None:
            panels.append(partial(_draw_spectra, self.head))
        if self.suggestion is not None:
            panels.append(partial(_draw_curve, self.suggestion))
        if not panels:
            raise InputError("there is nothing to plot: no last layer was found")
        figure, axes = subplots(1, len(panels), (4.8, 3.2))
        for axis, draw in zip(axes[0], panels, strict=True):
            draw(axis)
        return figure

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the report as one HTML page with pictures; write it to `path` if given."""
        page = Page(f"Audit of {self.model}", _summary(self)[1])
        if self.head is not None:
            caption = (
                "Singular values of outputs, targets and optimum; holdout squared error of the "
                "best last layer at each drop probability, with one standard error (dotted: the "
                "model's own)."
            )
            page.figure(self.plot(), caption)
        page.output(str(self))
        footer = f"Made with overt in {self.seconds:.1f} s."
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "audit.html" if path is None else path
            return page.write(target, footer).read_text(encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain dicts, lists, numbers and strings, ready for JSON."""
        plain = super().to_dict()
        if self.head is not None:
            plain["head"]["lower_bound"] = self.head.lower_bound
        return plain


TRUNKS = {
    "any": "for whatever features the layers before may learn",
    "affine": "for features that are linear in the inputs",
    "fixed": "for features that are the inputs",
}


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
    if report.holdout_loss is not None:
        lines.append(f"loss on holdout data {report.holdout_loss:.5g}")
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
        "  penalty: what a layer's noise adds to the loss, with the noise of the layers behind it "
        "on",
        *_table(header, rows),
    ]


def _head_lines(report: AuditReport, head: HeadFindings) -> list[str]:
    centered = "centered " if head.centered else ""
    note = (
        f"singular values of the {centered}outputs, beside the values of the {centered}targets and "
        f"of the optimum of the squared loss under this noise, {TRUNKS[head.trunk]}"
    )
    if report.loss not in ("squared", "mse"):
        note += "; a reference only, as this loss is another and has no such optimum"
    bounds = [
        f"  at least {bound.value:.5g} over {bound.over} ({bound.source})"
        for bound in head.lower_bounds
    ]
    error = f" ± {head.gap_error:.1g}" if head.gap_error else ""
    return [
        "last layer",
        f"  from {head.name or '(model)'}: {head.width} units, rank at most {head.rank_limit}",
        *bounds,
        f"  objective {report.objective:.5g}, gap {head.gap:.4g}{error} ({head.relative_gap:.1%} "
        "of the objective)",
        f"  {note}",
        *_table(("index", "outputs", "optimum", "targets"), _spectrum_rows(head)[:12]),
    ]


def _spectrum_rows(head: HeadFindings) -> list[tuple[Any, ...]]:
    """Return the spectra of outputs, optimum and targets side by side."""
    spectra = (head.spectrum, head.predicted_spectrum, head.target_spectrum)
    columns = zip_longest(*(values.tolist() for values in spectra), fillvalue=0.0)
    return [(i, *values) for i, values in enumerate(columns, 1)]


def _table(header: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> list[str]:
    """Return aligned lines."""
    lines = [header, *(tuple(map(_cell, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  " + "  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]


def _cell(value: Any) -> str:
    if isinstance(value, tuple):
        return " x ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.4g}"
    return {None: "-", "": "(model)"}.get(value, str(value))


def _draw_spectra(head: HeadFindings, axes: Any) -> None:
    at, outputs, optimum, targets = zip(*_spectrum_rows(head)[:40], strict=True)
    for values, color, marker, label in (
        (targets, GRAY, "s", "targets"),
        (optimum, ORANGE, "o", "optimum, predicted"),
        (outputs, BLUE, "x", "outputs"),
    ):
        axes.plot(at, values, color=color, marker=marker, ms=5, lw=1, label=label)
    axes.set(xlabel="index", ylabel="singular value / sqrt(samples)", ylim=(0, None))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()


def _draw_curve(s: Suggestion, axes: Any) -> None:
    axes.errorbar(s.drop_probs, s.holdout, s.holdout_error, color=BLUE, elinewidth=0.5)
    axes.axvline(s.current, color=GRAY, ls=":", lw=1)
    axes.set(xlabel="drop probability", ylabel="holdout squared error")
