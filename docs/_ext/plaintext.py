"""Let docstrings be plain text: formulas such as |u_i|^2 or |A|_* are not markup.

Bars, stars and trailing underscores are escaped outside of code, `**bold**` stays, and indented
paragraphs become literal blocks, so that formulas keep their lines.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

CODE = re.compile(r"(`+[^`]+`+|\*\*[^*]+\*\*)")
SPECIAL = re.compile(r"[|*]|(?<=\w)_(?!\w)")
GAP = re.compile(r"(?<=\S) {5,}")


def escape(line: str) -> str:
    """Escape what reStructuredText would take for markup."""
    parts = CODE.split(line.replace("...", "\N{HORIZONTAL ELLIPSIS}"))
    return "".join(
        p if i % 2 else SPECIAL.sub(r"\\\g<0>", p) for i, p in enumerate(parts)
    )


def process(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Rewrite a docstring in place, before napoleon reads its sections."""
    out: list[str] = []
    example = literal = False
    previous = "text"
    for line in lines:
        blank = not line.strip()
        if line.lstrip().startswith(">>>"):
            example = True
        elif blank:
            example = False
        if not blank and not example:
            indented = line.startswith("    ")
            if indented and previous == "" and out and not literal:
                out += [".. code-block:: text", ""]
                literal = True
            elif not indented:
                literal = False
        if literal and not example:
            line = GAP.sub("    ", line)
        out.append(line if example or literal or blank else escape(line))
        previous = line.strip()
    lines[:] = out


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", process, priority=100)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
