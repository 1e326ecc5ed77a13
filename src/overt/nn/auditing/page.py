"""An audit as one HTML page with pictures."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overt._check import MissingExtraError
from overt._html import Page
from overt.nn.auditing import text as words

if TYPE_CHECKING:
    from overt.nn.auditing.report import AuditReport, HeadFindings, NoiseFindings, Suggestion

INK, ACCENT, OTHER = "#1c2733", "#1f6f8b", "#d1751c"


def html(report: AuditReport, path: str | os.PathLike[str] | None) -> str:
    """Return the page, and write it to `path` if given."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise MissingExtraError("matplotlib", "plots") from None
    page = Page(f"Audit of {report.model}", " · ".join(words.summary(report)) + ".")
    fill(page, report)
    footer = f"Made with overt in {report.seconds:.1f} s."
    if path is not None:
        return page.write(path, footer).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        return page.write(Path(folder) / "audit.html", footer).read_text(encoding="utf-8")


def fill(page: Page, report: AuditReport) -> None:
    """Add the sections of the report to a page."""
    page.section("Noise")
    if report.noises:
        page.text(
            "What each noise layer adds to the loss, with the noise of the layers behind it on. "
            "Realized is the share of zeros in masks drawn from the layer. phi is the "
            "co-adaptation of its units: 1 if all contribute alike, 1/sqrt(units) if one does "
            "everything."
        )
        page.table(words.NOISE_HEADER, words.noise_rows(report))
        flowing = [n for n in report.noises if n.flows is not None and n.flows.max() > 0]
        if flowing:
            page.figure(
                _flows(flowing[-4:]),
                "Flow through each unit, in decreasing order, relative to the mean: a flat line "
                "is a layer whose units contribute alike.",
            )
    else:
        page.text("No noise layer that overt knows is in this model.")
    if report.head is not None:
        _head(page, report, report.head)
    if report.suggestion is not None:
        _suggestion(page, report.suggestion)
    page.section("Layers")
    page.table(words.LAYER_HEADER, words.layer_rows(report))
    if report.measures:
        page.section("Complexity measures")
        page.text("They rank networks; without their constants they bound nothing.")
        rows = [(m.name, m.value, m.formula) for m in report.measures]
        page.table(("measure", "value", "formula"), rows)
    if report.bounds:
        page.section("Bounds")
        page.text(
            "From statistical learning theory, with what they assume. A bound whose needs are not "
            "met here is no bound; one above what predicting 0 achieves is vacuous."
        )
        page.table(words.BOUND_HEADER, words.bound_rows(report))
    if report.skipped:
        page.section("Left out")
        page.table(("what", "why"), [(name or "(model)", why) for name, why in report.skipped])


def _head(page: Page, report: AuditReport, head: HeadFindings) -> None:
    page.section("Last layer")
    page.text(
        f"{head.width} units feed it ({head.name or 'the model'}); its map has rank at most "
        f"{head.rank_limit}. {words.gap_line(report, head).capitalize()}. The objective is at least"
    )
    page.table(
        ("value", "over", "source"), [(b.value, b.over, b.source) for b in head.lower_bounds]
    )
    page.figure(_spectra(head), words.spectrum_note(report, head).capitalize() + ".")


def _suggestion(page: Page, s: Suggestion) -> None:
    page.section("Drop probability")
    for line in words.suggestion_lines(s):
        page.text(line.strip() + ".")
    page.figure(
        _curve(s),
        "Held-out squared error of the best last layer at each drop probability, with one standard "
        "error, and the rank of the optimal outputs. Dotted: the model's own drop probability.",
    )


def _spectra(head: HeadFindings) -> Any:
    figure, axes = _axes()
    rows = words.spectrum_rows(head)[:40]
    at = [row[0] for row in rows]
    axes.plot(at, [row[3] for row in rows], color="0.7", marker="s", ms=4, lw=1, label="targets")
    axes.plot(
        at,
        [row[2] for row in rows],
        color=OTHER,
        marker="o",
        ms=5,
        lw=1,
        label="optimum, predicted",
    )
    axes.plot(at, [row[1] for row in rows], color=ACCENT, marker="x", ms=6, lw=1, label="outputs")
    axes.set(xlabel="index", ylabel="singular value / sqrt(samples)", ylim=(0, None))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)
    return figure


def _curve(s: Suggestion) -> Any:
    figure, axes = _axes()
    low, high = s.holdout - s.holdout_error, s.holdout + s.holdout_error
    axes.fill_between(s.drop_probs, low, high, color=ACCENT, alpha=0.15, lw=0)
    axes.plot(s.drop_probs, s.holdout, color=ACCENT)
    best = s.holdout.argmin()
    axes.plot([s.drop_probs[best]], [s.holdout[best]], "o", color=ACCENT)
    axes.axvline(s.current, color=INK, ls=":", lw=1)
    axes.set(xlabel="drop probability", ylabel="held-out squared error")
    ranks = axes.twinx()
    ranks.step(s.drop_probs, s.predicted_rank, where="mid", color=OTHER, lw=1)
    ranks.set(ylim=(0, s.predicted_rank.max() + 1))
    ranks.set_ylabel("predicted rank", color=OTHER)
    ranks.yaxis.get_major_locator().set_params(integer=True)
    return figure


def _flows(noises: list[NoiseFindings]) -> Any:
    figure, axes = _axes()
    for noise, color in zip(noises, (ACCENT, OTHER, "#5b8c5a", "#8a5a9e"), strict=False):
        flows = noise.flows
        assert flows is not None  # noqa: S101 (for the type checker)
        ordered = sorted((flows / flows.mean()).tolist(), reverse=True)
        label = f"{noise.name or 'model'}, phi {noise.coadaptation:.2f}"
        axes.plot([(i + 1) / len(ordered) for i in range(len(ordered))], ordered, color=color,
                  label=label)  # fmt: skip
    axes.axhline(1, color="0.7", lw=1)
    axes.set(xlabel="share of units", ylabel="flow / mean flow", ylim=(0, None), xlim=(0, 1))
    axes.legend(frameon=False)
    return figure


def _axes() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes
