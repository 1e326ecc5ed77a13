"""One page of the reference for each module that users import from, written from its `__all__`.

The modules are read from the source (`packages.public`): no list has to be updated.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import packages
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

MODULES = packages.modules()
GROUPS = packages.public(MODULES)
FOLDER = "reference/generated"


def shown(module: ModuleType) -> dict[str, Any]:
    """Return what a module shows: the names in `__all__`, or what it defines."""
    if hasattr(module, "__all__"):
        return {name: getattr(module, name) for name in module.__all__}
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", "") == module.__name__
    }


def documented(value: Any) -> str:
    """Return the name under which a page describes a value, or nothing."""
    if isinstance(value, ModuleType):
        return value.__name__
    for name in chain.from_iterable(GROUPS.values()):
        for own, other in shown(import_module(name)).items():
            if other is value:
                return f"{name}.{own}"
    return ""


def page(name: str) -> str:
    """Return the text of a module's page."""
    names = shown(import_module(name))
    kinds: dict[str, list[str]] = {"function": [], "class": [], "exception": []}
    for own in sorted(names, key=str.lower):
        value = names[own]
        if inspect.isclass(value):
            kinds["exception" if issubclass(value, BaseException) else "class"].append(
                own
            )
        elif callable(value):
            kinds["function"].append(own)
    lines = [
        name,
        "=" * len(name),
        "",
        f".. automodule:: {name}",
        "",
        f".. currentmodule:: {name}",
    ]
    lines += ["", ".. autosummary::", "   :nosignatures:", ""]
    lines += [f"   {own}" for owns in kinds.values() for own in owns]
    for kind, owns in kinds.items():
        for own in owns:
            lines += [
                "",
                f".. auto{kind}:: {own}",
                *["   :members:"] * (kind == "class"),
            ]
    return "\n".join(lines) + "\n"


def write(app: Sphinx) -> None:
    """Write the pages that changed, and remove pages of modules that no longer exist."""
    folder = Path(app.srcdir, FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    pages = {
        folder / f"{name}.rst": name for names in GROUPS.values() for name in names
    }
    for old in set(folder.glob("*.rst")) - pages.keys():
        old.unlink()
    for path, name in pages.items():
        text = page(name)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


class Modules(SphinxDirective):
    """A table of the modules of a group, each with its page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        names = GROUPS[self.arguments[0]]
        lines = [
            ".. toctree::",
            "   :hidden:",
            "",
            *(f"   generated/{name}" for name in names),
        ]
        lines += ["", ".. autosummary::", "", *(f"   {name}" for name in names)]
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", write)
    app.add_directive("modules", Modules)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
