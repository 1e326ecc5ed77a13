"""The web server: who may ask, what is answered, and where long work goes."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dash
import flask
from dash import ClientsideFunction, Input, Output, no_update

import overt
from overt import InputError
from overt.explorer import page, uploads
from overt.explorer.completion import completed
from overt.explorer.fields import Values, read_fields
from overt.explorer.jobs import Job, Jobs
from overt.explorer.panel import Panel
from overt.explorer.panels import PANELS

DOCS = Path(overt.__file__).parents[2] / "docs"
"""The documentation, where overt runs from a checkout."""

COMMANDS = ("", "look", "rest", "run", "pause", "go", "step", "stop")


class Explorer(dash.Dash):
    """Dash with a page of our own around it."""

    def interpolate_index(self, **parts: Any) -> str:  # type: ignore[override]
        """Return the page that the address asks for."""
        panel = PANELS.get(flask.request.path.strip("/") or next(iter(PANELS)))
        return page.page(panel or flask.abort(404), flask.request.args, parts)


def create_app(pool: Jobs, host: str = "127.0.0.1") -> flask.Flask:
    """Return the explorer as a WSGI application that answers to this host's names."""
    app: Any = Explorer(
        __name__, assets_folder=os.fspath(Path(__file__).with_name("assets")),
        serve_locally=True, suppress_callback_exceptions=True, update_title="",
        add_log_handler=False,
    )  # fmt: skip
    app.layout = page.layout()
    server: flask.Flask = app.server
    server.config["MAX_CONTENT_LENGTH"] = uploads.LARGEST
    shelf = uploads.Shelf()

    @app.callback(
        *(Output(name, "children") for name in ("numbers", "plots", "tables", "lines")),
        Output("answer", "data"), Input("ask", "data"), prevent_initial_call=True,
    )  # fmt: skip
    def answer(ask: Any) -> Any:
        return _answer(ask if isinstance(ask, dict) else {}, pool, shelf)

    for name, source, sink in (
        ("answered", Input("answer", "data"), Output("applied", "data")),
        ("clicked", Input("map", "clickData"), Output("clicked", "data")),
    ):
        app.clientside_callback(ClientsideFunction("explorer", name), sink, source)

    @server.post("/upload/<any(values, data):name>")
    def upload(name: str) -> dict[str, str]:
        data = flask.request.get_data(cache=False)
        try:
            if name == "values":
                return {"value": uploads.spectrum(data), "note": "Read; kept to six digits."}
            return dict(zip(("value", "note"), shelf.put(data), strict=True))
        except (InputError, ImportError) as error:
            return {"error": str(error)}

    @server.get("/completed/<name>.csv")
    def download(name: str) -> Any:
        job = pool.get(name)
        if job is None or job.panel != "completion" or not job.found:
            flask.abort(404)
        return flask.Response(completed(job.values["entries"], job.found[0]), mimetype="text/csv")

    server.add_url_rule("/docs/<path:name>", "docs", _docs)
    server.before_request(lambda: _guard(host))
    server.after_request(lambda response: _protect(response, app.csp_hashes()))
    return server


def _answer(ask: dict[str, Any], jobs: Jobs, shelf: uploads.Shelf) -> tuple[Any, ...]:
    """Return numbers, plots, tables, lines to copy, and a reply, for what a page asks."""
    panel, command = PANELS.get(str(ask.get("panel"))), ask.get("command", "")
    if panel is None or command not in COMMANDS:
        flask.abort(400)
    values, messages = read_fields(panel.fields, ask.get("fields"))
    reply: dict[str, Any] = {"n": ask.get("n"), "messages": messages, "job": "", "status": None}
    kept = (no_update,) * 4 + (reply,)
    try:
        if "data" in values:
            values["entries"] = shelf.get(values["data"])
        if messages:
            return kept
        job = _obey(panel, values, command, jobs.get(ask.get("job")), jobs)
        # The status first: a job that ends meanwhile is looked at once more, and nothing is missed.
        reply["status"] = None if job is None else job.summary()
        view = panel.view(values, [] if job is None else list(job.found))
    except InputError as error:
        messages[_culprit(panel, str(error))] = str(error)
        return kept
    messages |= view.messages
    if job is not None:
        reply["job"] = job.id
        if job.state == "failed" and (name := _culprit(panel, job.error)):
            messages[name] = job.error
    reply["shape"], look = " ".join(f.name for f in view.figures), command in ("look", "rest")
    if reply["shape"] == ask.get("shape"):  # the page draws them into the plots that it has
        still = {"look": (False,), "rest": (True,)}.get(command, (False, True))
        reply["figures"] = {f.name: f.plot for f in view.figures if f.still in still}
        plots: Any = no_update
    else:
        reply["rest"] = any(f.still for f in view.figures)
        plots = page.plots(view)
    tables = page.tables(view, f"/completed/{reply['job']}.csv")
    lines = no_update if look else page.lines(panel.code(values))
    return page.numbers(view), plots, tables, lines, reply


def _obey(panel: Panel, values: Values, command: str, job: Job | None, jobs: Jobs) -> Job | None:
    """Carry out a command; return the job that fits the values, if there is one."""
    asked = panel.asked(values)
    if job is not None and (job.panel != panel.name or job.values != asked):
        job.tell("stop")
        job = None
    if panel.task and (command == "run" or (command == "step" and (job is None or job.ended))):
        panel.view(values, ())  # what is wrong is answered before anything starts
        if job is not None:
            job.tell("stop")
        return jobs.start(panel.name, asked, paused=command == "step")
    if job is not None and command in ("pause", "go", "step", "stop"):
        job.tell(command)
    return job


def _culprit(panel: Panel, message: str) -> str:
    """Return the field that a message of the library opens with, or "", the page as a whole."""
    word = message.partition(" ")[0]
    return word if word in {field.name for field in panel.fields} else ""


def _guard(host: str) -> None:
    """Refuse names that could be another site's, and posts that come from one.

    A page elsewhere can reach this machine only under a name that it controls (DNS rebinding), or
    with its own origin.
    """
    request = flask.request
    name = request.host.rsplit(":", 1)[0] if request.host[-1:] != "]" else request.host
    if name not in {"localhost", host, socket.gethostname()} and not _is_address(name.strip("[]")):
        flask.abort(403, "this server does not answer to that name")
    reads = request.method in ("GET", "HEAD")
    if not reads and urlsplit(request.headers.get("Origin", "")).netloc != request.host:
        flask.abort(403, "this request comes from another site")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _protect(response: flask.Response, hashes: Sequence[str]) -> flask.Response:
    """Forbid the browser everything that the page does not need; nothing leaves the machine."""
    docs = flask.request.path.startswith("/docs/")
    scripts = " ".join(["'self'", *(["'unsafe-inline'"] if docs else hashes)])
    response.headers["Content-Security-Policy"] = (
        f"default-src 'self'; script-src {scripts}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    )
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
    return response


def _docs(name: str) -> Any:
    """Return a page of the documentation: as built, or as its source where it is not built."""
    built = DOCS / "_build" / "html"
    if "." in name:
        return flask.send_from_directory(built, name)
    if (built / "index.html").exists():
        return flask.send_from_directory(built, f"{name}.html")
    if (DOCS / "index.md").exists():
        return flask.send_from_directory(DOCS, f"{name}.md", mimetype="text/plain")
    missing = f"The page {name} is part of overt's documentation, which is not installed here."
    return flask.Response(missing, mimetype="text/plain")
