"""What `overt reproduce` leaves behind: rows, picture and the comparison with the paper."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

from overt._check import MissingExtraError
from overt._files import write_whole
from overt.experiments.base import Experiment, Finding, Row


def write(
    experiment: Experiment, size: str, rows: list[Row], out: str | os.PathLike[str]
) -> tuple[list[Finding], Path]:
    """Check the rows, write ID-SIZE.png and ID-SIZE.json, return the findings and the picture."""
    findings = experiment.check(rows)
    stem = Path(out) / f"{experiment.id}-{size}"
    try:
        figure = experiment.plot(rows)
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise MissingExtraError("matplotlib", "plots") from None
    picture = stem.with_suffix(".png")
    figure.savefig(picture, dpi=150, bbox_inches="tight")
    summary = {
        "id": experiment.id,
        "title": experiment.title,
        "source": experiment.source,
        "claim": experiment.claim,
        "size": size,
        "rows": len(rows),
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }
    write_whole(stem.with_suffix(".json"), json.dumps(summary, indent=2) + "\n")
    return findings, picture
