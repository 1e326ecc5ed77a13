"""An audit in words and tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from overt.results import Status

if TYPE_CHECKING:
    from overt.nn.auditing.report import AuditReport, HeadFindings, Suggestion

SHOWN = 12
"""The most singular values and layers in a table."""


def text(report: AuditReport) -> str:
    """Return the report as plain text."""
    parts = [*summary(report)]
    if report.noises:
        parts += ["", "noise", *_table(NOISE_HEADER, noise_rows(report))]
    else:
        parts += ["", "no noise layer that overt knows is in this model"]
    if report.head is not None:
        parts += ["", *_head(report, report.head)]
    if report.suggestion is not None:
        parts += ["", *suggestion_lines(report.suggestion)]
    parts += ["", "layers", *_table(LAYER_HEADER, layer_rows(report)[:SHOWN])]
    if len(report.layers) > SHOWN:
        parts.append(f"  and {len(report.layers) - SHOWN} more")
    if report.measures:
        rows = [(m.name, m.value, m.formula) for m in report.measures]
        parts += ["", "complexity measures (they rank networks, and bound nothing)"]
        parts += _table(("measure", "value", "formula"), rows)
    if report.bounds:
        parts += ["", "bounds", *_table(BOUND_HEADER, bound_rows(report))]
    if report.skipped:
        parts += [
            "",
            "left out",
            *(f"  {name or '(model)'}: {why}" for name, why in report.skipped),
        ]
    return "\n".join(parts)


def summary(report: AuditReport) -> list[str]:
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
        lines.append(f"loss on held-out data {report.holdout_loss:.5g}")
    if report.status is Status.INTERRUPTED:
        lines.append("interrupted: on the rows seen until then")
    return lines


NOISE_HEADER = ("layer", "kind", "drop_prob", "realized", "penalty", "share", "phi", "dead units")


def noise_rows(report: AuditReport) -> list[tuple[object, ...]]:
    """Return a row for each noise layer."""
    return [
        (
            n.name or "(model)",
            n.kind,
            n.drop_prob,
            f"{n.realized:.4f} ± {n.realized_error:.4f}",
            f"{n.penalty:.4g}" + (" exact" if n.exact else f" ± {n.penalty_error:.1g}"),
            f"{n.share:.1%}",
            n.coadaptation,
            None if n.dead is None else f"{n.dead} of {n.units}",
        )
        for n in report.noises
    ]


LAYER_HEADER = ("layer", "weight", "spectral norm", "Frobenius", "stable rank", "dead inputs")


def layer_rows(report: AuditReport) -> list[tuple[object, ...]]:
    """Return a row for each linear or convolutional layer."""
    return [
        (
            layer.name or "(model)",
            " x ".join(map(str, layer.shape)),
            layer.spectral,
            layer.frobenius,
            layer.stable_rank,
            f"{layer.dead} of {layer.inputs}" + (" (data)" if layer.from_data else ""),
        )
        for layer in report.layers
    ]


BOUND_HEADER = ("what", "value", "verdict", "source", "assumes", "not met here")


def bound_rows(report: AuditReport) -> list[tuple[object, ...]]:
    """Return a row for each bound from learning theory."""
    return [
        (
            b.name,
            b.value,
            "no bound" if b.unmet else "vacuous" if b.vacuous else "holds",
            b.source,
            b.assumes,
            "; ".join(b.unmet) or "-",
        )
        for b in report.bounds
    ]


def bound_lines(head: HeadFindings) -> list[str]:
    """Return a sentence for each lower bound."""
    return [f"at least {b.value:.5g} over {b.over} ({b.source})" for b in head.lower_bounds]


def gap_line(report: AuditReport, head: HeadFindings) -> str:
    """Return what the gap to the first bound is."""
    return (
        f"objective {report.objective:.5g}, gap {head.gap:.4g} "
        f"({head.relative_gap:.1%} of the objective)"
    )


def spectrum_note(report: AuditReport, head: HeadFindings) -> str:
    """Return what the columns of the spectra are."""
    centered = "centered " if head.centered else ""
    what = {
        "any": "for whatever features the layers before may learn",
        "affine": "for features that are linear in the inputs",
        "fixed": "for features that are the inputs",
    }[head.trunk]
    note = (
        f"singular values of the {centered}outputs, beside those of the {centered}targets and of "
        f"the optimum of the squared loss under this noise, {what}"
    )
    if report.loss not in ("squared", "mse"):
        note += "; a reference only, as this loss is another and has no such optimum"
    return note


def suggestion_lines(s: Suggestion) -> list[str]:
    """Return the suggestion and its evidence."""
    best, now = int(s.holdout.argmin()), int(abs(s.drop_probs - s.current).argmin())
    return [
        f"suggested drop probability before the last layer: {s.drop_prob:g} (now {s.current:g}; "
        f"within one standard error {s.plausible[0]:g} to {s.plausible[1]:g})",
        f"  held-out error {s.holdout[best]:.5g} ± {s.holdout_error[best]:.1g}, rank "
        f"{s.predicted_rank[best]}; at {s.drop_probs[now]:g}: {s.holdout[now]:.5g}, rank "
        f"{s.predicted_rank[now]}",
        f"  {s.evidence}",
    ]


def _head(report: AuditReport, head: HeadFindings) -> list[str]:
    phi = "" if head.coadaptation is None else f", phi {head.coadaptation:.3g}"
    lines = [
        f"last layer, from {head.name or '(model)'}: {head.width} units, rank at most "
        f"{head.rank_limit}{phi}",
        *(f"  {line}" for line in bound_lines(head)),
        f"  {gap_line(report, head)}",
        f"  {spectrum_note(report, head)}",
    ]
    return lines + _table(("", "outputs", "optimum", "targets"), spectrum_rows(head)[:SHOWN])


def spectrum_rows(head: HeadFindings) -> list[tuple[object, ...]]:
    """Return the spectra side by side."""
    columns = (head.spectrum, head.predicted_spectrum, head.target_spectrum)
    count = max(map(len, columns))
    return [(i + 1, *(float(c[i]) if i < len(c) else 0.0 for c in columns)) for i in range(count)]


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = [tuple(header), *(tuple(_cell(v) for v in row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return [
        "  " + "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
