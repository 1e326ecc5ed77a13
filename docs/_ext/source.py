"""Links to source files open the file as a page, at the line of the name in the link.

In [`Entries.split`](../src/overt/entries/entries.py) that is the line where the method is defined.
The same link works where Markdown is shown from the repository.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import packages
from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

ROOT = packages.SOURCE.parents[1]


def line_of(name: str, text: str) -> int | None:
    """Return the line that defines a dotted name, such as `Entries.split`."""
    body: list[ast.stmt] = ast.parse(text).body
    line = None
    for part in name.strip("@").split("."):
        for node in body:
            match node:
                case (
                    ast.ClassDef(name=own, body=inner)
                    | ast.FunctionDef(name=own, body=inner)
                ):
                    found, below = own == part, inner
                case ast.Assign() | ast.AnnAssign():
                    target = (
                        node.targets[0] if isinstance(node, ast.Assign) else node.target
                    )
                    found, below = ast.unparse(target) == part, []
                case _:
                    continue
            if found:
                line, body = node.lineno, below
                break
        else:
            return line
    return line


def link(docname: str, text: str, path: str, line: int | None = None) -> nodes.Node:
    """Return a link from a document to a file, and a line of it."""
    target = os.path.relpath(path, (Path(packages.DOCS, docname)).parent)
    name = nodes.literal(text=text)
    return addnodes.download_reference("", "", name, reftarget=target, line=line)


def _page(path: Path) -> str:
    return "_source/" + path.relative_to(ROOT).as_posix().removesuffix(".py")


def replace(app: Sphinx, doctree: nodes.document) -> None:
    """Turn downloads of Python files, but for the gallery's, into links to their pages."""
    docname = app.env.docname
    for node in list(doctree.findall(addnodes.download_reference)):
        path = Path(app.env.relfn2path(node["reftarget"], docname)[1]).resolve()
        if path.suffix == ".py" and not path.is_relative_to(app.srcdir):
            _linked(app.env).setdefault(docname, set()).add(str(path))
            line = node.get("line") or line_of(
                node.astext(), path.read_text(encoding="utf-8")
            )
            uri = app.builder.get_relative_uri(docname, _page(path))
            link = nodes.reference(
                "", "", refuri=f"{uri}#L-{line}" if line else uri, internal=True
            )
            link += node.children
            node.replace_self(link)


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page for each file that some page links to."""
    form = HtmlFormatter(linenos="inline", lineanchors="L", cssclass="highlight source")
    for name in sorted(set().union(*_linked(app.env).values())):
        path = Path(name)
        title = path.relative_to(ROOT).as_posix()
        code = highlight(path.read_text(encoding="utf-8"), PythonLexer(), form)
        body = f"<h1>{escape(title)}</h1>{code}"
        yield _page(path), {"title": title, "body": body, "parents": []}, "page.html"


def forget(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    _linked(env).pop(docname, None)


def _linked(env: BuildEnvironment) -> dict[str, set[str]]:
    """Which files each document links to, stored between builds."""
    return env.__dict__.setdefault("linked_sources", {})


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", replace, priority=100)  # before the files are copied
    app.connect("html-collect-pages", pages)
    app.connect("env-purge-doc", forget)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
