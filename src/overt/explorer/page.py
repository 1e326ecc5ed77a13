"""The page around the plots, written on the server: its form shows what the address says.

Everything that comes from an address is escaped. Results are filled in by Dash.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import dcc, html

from overt.explorer.figures import Figure, shown
from overt.explorer.panel import Panel, Table, View
from overt.explorer.panels import PANELS

_JOB = """
<div class="job" role="group" aria-label="Computation">
<button type="submit" id="run" class="main">Run</button>
<button type="button" id="pause" disabled>Pause</button>
<button type="button" id="step">Step</button>
<button type="button" id="stop" disabled>Stop</button>
<progress id="progress" max="1" value="0" aria-label="Progress"></progress>
</div>"""

# Dash loads plotly when the first plot comes; read beside the rest of the page it is there earlier.
_PLOTLY = """
<script async src="/_dash-component-suites/plotly/package_data/plotly.min.js"></script>
<link rel="preload" as="script" href="/_dash-component-suites/dash/dcc/async-graph.js">"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{panel.title} - overt explore</title>
{favicon}{css}
{plotly}
</head>
<body data-panel="{panel.name}">
<a class="skip" href="#form">Skip to the controls</a>
<header><p class="brand">overt</p><nav aria-label="Panels"><ul>{links}</ul></nav></header>
<main>
<h1>{panel.title}</h1>
<p class="says">{panel.says} <a href="/docs/{panel.page}" target="_blank">The theory behind it</a>
</p>
<div class="columns">
<form id="form" aria-label="Controls" novalidate>{fields}{job}
<p id="status" role="status"></p>
<button type="button" id="link">Copy the link to this view</button>
</form>
<section aria-label="Results">{app_entry}</section>
</div>
</main>
{config}{scripts}{renderer}
</body>
</html>"""


def page(panel: Panel, given: Mapping[str, str], parts: Mapping[str, str]) -> str:
    """Return a panel's page with the given texts in its fields; `parts` are Dash's."""
    links = "".join(
        f'<li><a href="/{p.name}"{" aria-current=page" * (p is panel)}>{p.title}</a></li>'
        for p in PANELS.values()
    )
    fields = "".join(f.html(given.get(f.name, f.default)) for f in panel.fields)
    own = {"job": _JOB if panel.task else "", "plotly": _PLOTLY if panel.plots_at_once else ""}
    return _PAGE.format(panel=panel, links=links, fields=fields, **own, **parts)


def layout() -> Any:
    """Return what Dash keeps on the page: what is asked and answered, and the results."""
    stores = [dcc.Store(id=name) for name in ("ask", "answer", "applied", "clicked")]
    results = [html.Div(id=name) for name in ("numbers", "plots", "tables", "lines")]
    return html.Div([*stores, *results], className="results")


def numbers(view: View) -> Any:
    """Return the numbers with their names."""
    return html.Dl(
        [html.Div([html.Dt(name), html.Dd(shown(value))]) for name, value in view.numbers]
    )


def plots(view: View) -> list[Any]:
    """Return the plots, those that are slow still empty; what comes later is drawn into them."""
    return [_plot(figure, {"data": []} if figure.still else {}) for figure in view.figures]


def tables(view: View, download: str) -> list[Any]:
    """Return the tables, and the link to what can be downloaded."""
    link = html.A("Download the completed entries (csv)", href=download, download="completed.csv")
    return [*map(_table, view.tables), *([html.P(link)] if view.download else [])]


def lines(code: str) -> list[Any]:
    """Return the Python lines that make what is shown, to copy."""
    label: Any = {"aria-label": "Python lines"}
    return [
        html.H2("The same in Python"),
        html.Button("Copy the lines", id="copy", type="button"),
        html.Pre(html.Code(code, id="code"), tabIndex=0, **label),
    ]


def _plot(figure: Figure, instead: dict[str, Any]) -> Any:
    height, label = figure.plot["layout"].get("height", 330), {"aria-label": figure.caption}
    graph = dcc.Graph(
        id=figure.name, figure=figure.plot | instead, responsive=True,
        config={"displayModeBar": False},
        style={"height": f"{height}px"},
    )  # fmt: skip
    image: Any = {"role": "img", **label}
    return html.Figure([html.Div(graph, **image), html.Figcaption(figure.caption)])


def _table(table: Table) -> Any:
    head = html.Thead(html.Tr([html.Th(name, scope="col") for name in table.header]))
    rows = [html.Tr([html.Td(shown(value)) for value in row]) for row in table.rows]
    parts = [html.Caption(table.caption), head, html.Tbody(rows)]
    reach: Any = {"tabIndex": 0, "role": "group", "aria-label": table.caption}  # scrolls by key too
    return html.Div(html.Table(parts), className="scroll", **reach)
