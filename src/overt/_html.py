"""Self-contained HTML reports: text, tables and pictures in one file that needs no network."""

from __future__ import annotations

import base64
import io
import os
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from overt._io import write_whole

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --shade: #f5f7f9; --ink: #1c2733;
        --quiet: #5b6b7b; --line: #dde4ea; --accent: #1f6f8b; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14191f; --shade: #1e262e; --ink: #e3e8ed; --quiet: #a3b0bd;
          --line: #35414d; --accent: #6cc0dc; --bad: #ff8a80; }
}
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 62rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { margin: 2.75rem 0 .5rem; padding-top: 1rem; border-top: 1px solid var(--line); }
p { max-width: 46rem; }
.lead { font-size: 1.1rem; color: var(--quiet); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; margin: 1rem 0; width: 100%; }
th { text-align: left; color: var(--quiet); font-weight: 600; }
th, td { padding: .35rem .7rem .35rem 0; border-bottom: 1px solid var(--line);
         vertical-align: top; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.word { white-space: nowrap; }
.holds { color: var(--accent); font-weight: 600; } .fails { color: var(--bad); font-weight: 600; }
.note { color: var(--quiet); font-size: .92em; }
figure { margin: 1.25rem 0; }
figure img { max-width: 100%; height: auto; background: #fff; border-radius: 6px; }
figcaption { color: var(--quiet); font-size: .88rem; max-width: 46rem; }
pre { background: var(--shade); padding: .8rem 1rem; overflow-x: auto; border-radius: 6px;
      font-size: .86rem; }
code { font-family: ui-monospace, monospace; }
.output { background: none; border-left: 3px solid var(--line); border-radius: 0;
          white-space: pre-wrap; overflow-wrap: anywhere; }
.highlights { font-weight: 600; max-width: 46rem; }
nav ol { columns: 22rem; column-gap: 3rem; padding-left: 1.6rem; } nav a { color: var(--accent); }
summary { cursor: pointer; color: var(--accent); }
footer { margin-top: 3rem; color: var(--quiet); font-size: .85rem; }
"""

FOLDED = 15
"""Tables of more rows are folded."""


class Page:
    """An HTML page that grows from top to bottom."""

    def __init__(self, title: str, lead: str) -> None:
        self._title, self._lead = title, lead
        self._sections: list[str] = []
        self._body: list[str] = []
        self._highlights = ""

    def highlights(self, results: Sequence[str]) -> None:
        """Set the results that stand above everything else."""
        items = "".join(f"<li>{escape(result)}</li>" for result in results)
        self._highlights = f'<ul class="highlights">{items}</ul>'

    def section(self, title: str) -> None:
        """Start a section."""
        self._sections.append(title)
        self._body.append(f'<h2 id="s{len(self._sections)}">{escape(title)}</h2>')

    def text(self, text: str, *, note: bool = False) -> None:
        """Add a paragraph of plain text."""
        self._body.append(
            f'<p class="note">{escape(text)}</p>' if note else f"<p>{escape(text)}</p>"
        )

    def markup(self, text: str) -> None:
        """Add a paragraph in which **bold** and ``code`` are marked as in reStructuredText."""
        marked = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(text))
        marked = re.sub("``(.+?)``", r"<code>\1</code>", marked)
        self._body.append(f"<p>{marked}</p>")

    def code(self, text: str) -> None:
        """Add a block of code."""
        self._body.append(f"<pre tabindex=0><code>{escape(text)}</code></pre>")

    def output(self, text: str) -> None:
        """Add a block of terminal output."""
        self._body.append(
            f'<pre class="output" tabindex=0><code>{escape(text)}</code></pre>'
        )

    def picture(self, figure: Any, description: str) -> None:
        """Add a matplotlib figure without a caption; the description is for screen readers."""
        self._body.append(f"<figure>{_image(figure, description)}</figure>")

    def table(self, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Add a table; numbers are aligned, and the words holds and fails colored."""
        cells = [[_cell(value) for value in row] for row in rows]
        columns = list(zip(*cells, strict=True)) or [()] * len(header)
        head = "".join(map(_heading, header, columns))
        lines = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
        table = (
            f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{lines}</tbody></table></div>"
        )
        if len(cells) > FOLDED:
            table = f"<details><summary>{len(cells)} rows</summary>{table}</details>"
        self._body.append(table)

    def figure(self, figure: Any, caption: str) -> None:
        """Add a matplotlib figure as an embedded picture."""
        self._body.append(
            f"<figure>{_image(figure, caption)}<figcaption>{escape(caption)}</figcaption></figure>"
        )

    def write(self, path: str | os.PathLike[str], footer: str = "") -> Path:
        """Write the page to `path`, whole or not at all."""
        links = "".join(
            f'<li><a href="#s{i}">{escape(title)}</a></li>'
            for i, title in enumerate(self._sections, 1)
        )
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_whole(
            path,
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self._title)}</title><style>{_STYLE}</style></head><body>"
            f'<h1>{escape(self._title)}</h1><p class="lead">{escape(self._lead)}</p>'
            f"{self._highlights}<nav><ol>{links}</ol></nav>{''.join(self._body)}<footer>{escape(footer)}</footer>"
            "</body></html>",
        )


def _image(figure: Any, description: str) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, bbox_inches="tight")
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{escape(description, quote=True)}" src="data:image/png;base64,{data}">'


def _heading(name: str, cells: Sequence[str]) -> str:
    """Return a column's heading, which stands where its numbers stand."""
    number = cells and all(cell.startswith('<td class="number"') for cell in cells)
    return (
        f'<th class="number">{escape(name)}</th>'
        if number
        else f"<th>{escape(name)}</th>"
    )


def _cell(value: Any) -> str:
    match value:
        case None:
            return '<td class="number"></td>'
        case bool():
            return _cell("holds" if value else "fails")
        case str():
            kind = (
                value
                if value in ("holds", "fails")
                else "word"
                if len(value) < 24
                else ""
            )
            return f'<td class="{kind}">{escape(value)}</td>'
        case int():
            return f'<td class="number">{value:,}</td>'
        case float():
            return f'<td class="number">{value:.4g}</td>'
    return f"<td>{escape(str(value))}</td>"
