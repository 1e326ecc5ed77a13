"""The packages of the source tree and who imports whom, read from the source without importing it.

A package is a module or a folder of modules. Imports inside functions count like those at the top
of a file, and so do modules that are named in a string to be imported late; imports for type
checkers do not. `import overt.nn.layers` counts as an import of that module only, although
Python runs the `__init__.py` of each folder on the way.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

DOCS = Path(__file__).parents[1]
SOURCE = DOCS.parent / "src" / "overt"

# Who may import whom. The line: each of its packages may import those before it.
LINE = ("noise", "penalty", "spectral", "equalize", "linear")
# Applications stand on the rest and not on each other; linear is the first of them.
APPLICATIONS = ("linear", "completion", "decay", "relu", "nn", "robust")
# Interfaces may import everything that comes before them, and nothing before them imports them.
INTERFACES = ("papers", "stories", "explorer", "cli", "__main__")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Graph = Mapping[str, set[str]]


@dataclass(frozen=True)
class Module:
    """A file of the package."""

    name: str
    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def front(self) -> bool:
        """Whether this is what a folder shows of itself."""
        return self.path.name == "__init__.py"

    @property
    def place(self) -> str:
        return self.path.relative_to(SOURCE.parent.parent).as_posix()

    @cached_property
    def exported(self) -> list[str]:
        """The names in `__all__`."""
        for node in self.tree.body:
            if (
                isinstance(node, ast.Assign)
                and ast.unparse(node.targets[0]) == "__all__"
            ):
                return list(ast.literal_eval(node.value))
        return []

    @cached_property
    def brought(self) -> dict[str, str]:
        """Names that are imported from elsewhere, and their full names there."""
        return {
            alias.asname or alias.name: f"{_absolute(self, node)}.{alias.name}"
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }

    def docstrings(self) -> Iterator[tuple[str, str, int]]:
        """Yield (name, docstring, line) of the module, its classes and its functions."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Module | ast.ClassDef | Function):
                text = ast.get_docstring(node)
                if text:
                    yield getattr(node, "name", self.name), text, node.body[0].lineno


@dataclass(frozen=True)
class Import:
    """One module names another."""

    source: str
    target: str
    line: int


def modules(source: Path = SOURCE) -> dict[str, Module]:
    """Return all modules of the package at `source` by their full names."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = [source.name, *path.relative_to(source).with_suffix("").parts]
        name = ".".join(parts).removesuffix(".__init__")
        found[name] = Module(name, path)
    return found


def imports(sources: Mapping[str, Module]) -> list[Import]:
    """Return every import of one module of the package by another."""
    found = set()
    for module in sources.values():
        for name, line in _named(module, module.tree, sources):
            target = _known(name, sources)
            if target and target != module.name:
                found.add(Import(module.name, target, line))
    return sorted(found, key=lambda i: (i.source, i.line, i.target))


def _named(
    module: Module, node: ast.AST, sources: Mapping[str, Module]
) -> Iterator[tuple[str, int]]:
    """Yield the full names that a module imports, whether they are modules or not."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.If(test=test) if "TYPE_CHECKING" in ast.unparse(test):
                continue
            case ast.Import(names=names):
                yield from ((alias.name, child.lineno) for alias in names)
            case ast.ImportFrom(names=names):
                base = _absolute(module, child)
                yield from ((f"{base}.{alias.name}", child.lineno) for alias in names)
            case ast.Constant(value=str(name)) if name in sources and name != "overt":
                yield name, child.lineno
            case ast.Call(
                func=function, args=[ast.JoinedStr(values=[ast.Constant(start), *_])]
            ):
                if "import_module" in ast.unparse(function):
                    yield from (
                        (n, child.lineno) for n in sources if n.startswith(str(start))
                    )
        yield from _named(module, child, sources)


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    parts = module.name.split(".")
    package = parts[: len(parts) - node.level + module.front] if node.level else []
    return ".".join([*package, *([node.module] if node.module else [])])


def _known(target: str, sources: Mapping[str, Module]) -> str:
    """Return the module that a name belongs to, or nothing for other packages."""
    while target and target not in sources:
        target = target.rpartition(".")[0]
    return target


def package(name: str, folder: str = "overt") -> str | None:
    """Return the package of `folder` that a module is in; None for the front and for others."""
    if not name.startswith(folder + "."):
        return None
    return name.removeprefix(folder + ".").partition(".")[0]


def public(sources: Mapping[str, Module]) -> dict[str, list[str]]:
    """Return the modules that users import from, in groups: those that others stand on first.

    These are the packages whose names do not begin with an underscore, each followed by the modules
    that it exports as such. The last interfaces are for the terminal.
    """
    ranked = [
        name for layer in layers(between_packages(imports(sources))) for name in layer
    ]
    known = (*LINE, *APPLICATIONS, *INTERFACES)
    groups = {
        "line": LINE[:-1],
        "shared": [
            name for name in ranked if name not in known and not name.startswith("_")
        ],
        "applications": APPLICATIONS,
        "interfaces": INTERFACES[:2],
    }
    return {
        group: [
            module
            for name in names
            for module in _with_exported(f"overt.{name}", sources)
        ]
        for group, names in groups.items()
    }


def _with_exported(name: str, sources: Mapping[str, Module]) -> Iterator[str]:
    if name in sources:
        yield name
        for inner in sources[name].exported:
            yield from _with_exported(
                sources[name].brought.get(inner, f"{name}.{inner}"), sources
            )


def graph(edges: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Return who points at whom, without pointing at oneself."""
    found: dict[str, set[str]] = {}
    for a, b in edges:
        found.setdefault(a, set()), found.setdefault(b, set())
        if a != b:
            found[a].add(b)
    return found


def between_packages(
    found: Iterable[Import], folder: str = "overt"
) -> dict[str, set[str]]:
    """Return which packages of a folder import which, the folder's own front left out."""
    pairs = ((package(i.source, folder), package(i.target, folder)) for i in found)
    return graph((a, b) for a, b in pairs if a and b)


def cycles(edges: Graph) -> list[list[str]]:
    """Return the groups of nodes that can reach each other, each sorted."""
    ahead = {node: reached(node, edges) for node in edges}
    groups = {
        frozenset({node} | {other for other in ahead[node] if node in ahead[other]})
        for node in edges
        if node in ahead[node]
    }
    return sorted(sorted(group) for group in groups)


def layers(edges: Graph) -> list[list[str]]:
    """Return the nodes of a graph without cycles, those that import nothing first."""
    height: dict[str, int] = {}

    def rise(node: str) -> int:
        if node not in height:
            height[node] = 1 + max((rise(other) for other in edges[node]), default=-1)
        return height[node]

    for node in edges:
        rise(node)
    return [
        sorted(node for node in height if height[node] == level)
        for level in range(1 + max(height.values(), default=-1))
    ]


def reached(node: str, edges: Graph) -> set[str]:
    """Return the nodes that arrows lead to from this one."""
    seen: set[str] = set()
    todo = [node]
    while todo:
        for other in edges[todo.pop()] - seen:
            seen.add(other)
            todo.append(other)
    return seen
