"""Draw the packages of the source tree, and list them, as they are while the pages are built."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from html import escape
from itertools import pairwise
from typing import Any

import packages
from docutils import nodes
from registry import Generated, table
from sphinx import addnodes
from sphinx.application import Sphinx

BOX, GAP, ROW, HEIGHT = 132.0, 16.0, 92.0, 46.0
THREAD = 10.0  # the width left for an arrow that passes a row
SWEEPS = 24

Place = tuple[
    int, str
]  # row and name; a thread is named by the two packages that it joins


def svg(sources: dict[str, packages.Module]) -> str:
    """Return the picture: a box a package, an arrow to each package that it imports.

    Rows are put in order by sweeping up and down with the mean position of neighbors, as in
    Sugiyama's method. An arrow is left out where other arrows already lead there.
    """
    edges = {
        package: {other for other in others if _drawn(other)}
        for package, others in packages.between_packages(
            packages.imports(sources)
        ).items()
        if _drawn(package)
    }
    rows = _rows(edges)
    level = {package: y for y, row in enumerate(rows) for package in row}
    threads = [_thread(a, b, level) for a in edges for b in sorted(_direct(a, edges))]
    x = _positions(rows, threads)
    right = max(x[place] + _width(place) for place in x)
    bottom = ROW * len(rows)

    def middle(place: Place) -> tuple[float, float]:
        return x[place] + _width(place) / 2, bottom - ROW * (place[0] + 0.5)

    parts = [_curve([middle(place) for place in thread]) for thread in threads]
    for y, row in enumerate(rows):
        parts += [_box(package, *middle((y, package)), sources) for package in row]
    return (
        f'<svg class="packages" viewBox="-4 0 {right + 8:.0f} {bottom:.0f}" role="img" '
        f'aria-label="The packages of overt and their imports" font-size="14">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="currentColor"/></marker>'
        f"</defs>{''.join(parts)}</svg>"
    )


def _drawn(package: str) -> bool:
    return not package.startswith("_")


def _direct(package: str, edges: packages.Graph) -> set[str]:
    """Return what a package imports, without what these packages lead to anyway."""
    led = set().union(*(packages.reached(other, edges) for other in edges[package]))
    return edges[package] - led


def _rows(edges: packages.Graph) -> list[list[str]]:
    """Return the packages in rows: below all others the foundation, above them the interfaces."""
    above = {*packages.APPLICATIONS, *packages.INTERFACES}
    bands = (
        edges.keys() - above,
        above - {*packages.INTERFACES},
        {*packages.INTERFACES},
    )
    rows = []
    for band in bands:
        inside = {package: edges[package] & band for package in edges.keys() & band}
        rows += packages.layers(inside)
    return rows


def _thread(a: str, b: str, level: dict[str, int]) -> list[Place]:
    between = range(level[a] - 1, level[b], -1)
    return [(level[a], a), *((y, f"{a} {b}") for y in between), (level[b], b)]


def _width(place: Place) -> float:
    return THREAD if " " in place[1] else BOX


def _positions(rows: list[list[str]], threads: list[list[Place]]) -> dict[Place, float]:
    """Return the left end of every box and thread."""
    order: list[list[Place]] = [
        [(y, package) for package in row] for y, row in enumerate(rows)
    ]
    near: dict[Place, list[Place]] = {place: [] for row in order for place in row}
    for thread in threads:
        for place in thread[1:-1]:
            order[place[0]].append(place)
            near[place] = []
        for upper, lower in pairwise(thread):
            near[upper].append(lower)
            near[lower].append(upper)
    x: dict[Place, float] = {}
    for row in order:
        x |= _spread(row, dict.fromkeys(row, 0.0))
    for sweep in range(SWEEPS):
        # At first only the row just passed counts, so that rows can change their order.
        step = 1 if sweep % 2 else -1
        for row in order[::-step]:
            wish = {}
            for place in row:
                seen = [
                    p
                    for p in near[place]
                    if sweep > SWEEPS // 2 or p[0] == place[0] + step
                ]
                middles = [x[p] + _width(p) / 2 for p in seen]
                here = x[place] + _width(place) / 2
                wish[place] = sum(middles) / len(middles) if middles else here
            row.sort(key=lambda place: (wish[place], place))
            x |= _spread(row, wish)
    left = min(x.values())
    return {place: value - left for place, value in x.items()}


def _spread(row: list[Place], wish: dict[Place, float]) -> dict[Place, float]:
    """Return positions in this order, without overlap, near the wished middles.

    Neighbors that would overlap are joined into blocks, which stand at the mean of their wishes.
    """
    blocks: list[
        list[Any]
    ] = []  # [places, width, sum over places of (wished left end of block)]
    for place in row:
        width = _width(place)
        blocks.append([[place], width + GAP, wish[place] - width / 2])
        while len(blocks) > 1:
            (first, wide, left), (second, more, start) = blocks[-2:]
            if left / len(first) + wide <= start / len(second):
                break
            joined = left + start - wide * len(second)
            blocks[-2:] = [[first + second, wide + more, joined]]
    found = {}
    for places, _, total in blocks:
        at = total / len(places)
        for place in places:
            found[place] = at
            at += _width(place) + GAP
    return found


def _curve(points: list[tuple[float, float]]) -> str:
    """Return an arrow from the first point's box down to the last one's."""
    (x, y), (end, low) = points[0], points[-1]
    points = [(x, y + HEIGHT / 2), *points[1:-1], (end, low - HEIGHT / 2)]
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (a, top), (b, bottom) in pairwise(points):
        half = (bottom - top) / 2
        path += f"C{a:.1f} {top + half:.1f} {b:.1f} {bottom - half:.1f} {b:.1f} {bottom:.1f}"
    return (
        f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity=".45" '
        'marker-end="url(#tip)"/>'
    )


def _box(package: str, x: float, y: float, sources: dict[str, packages.Module]) -> str:
    inside = _inside(package, sources)
    lines = sum(module.lines for module in inside)
    files = f"{len(inside)} files, " if len(inside) > 1 else ""
    return (
        f'<a href="#package-{package}"><title>{escape(_summary(package, sources))}</title>'
        f'<rect x="{x - BOX / 2:.1f}" y="{y - HEIGHT / 2:.1f}" width="{BOX:.0f}" '
        f'height="{HEIGHT:.0f}" rx="6" fill="var(--pst-color-surface, #fff)" '
        'stroke="currentColor"/>'
        f'<text x="{x:.1f}" y="{y - 3:.1f}" text-anchor="middle" fill="currentColor" '
        f'font-weight="600">{package}</text><text x="{x:.1f}" y="{y + 14:.1f}" '
        'text-anchor="middle" fill="currentColor" font-size="11" fill-opacity=".75">'
        f"{files}{lines:,} lines</text></a>"
    )


def _inside(package: str, sources: dict[str, packages.Module]) -> list[packages.Module]:
    return [
        module for name, module in sources.items() if packages.package(name) == package
    ]


def _summary(package: str, sources: dict[str, packages.Module]) -> str:
    """Return the first paragraph of a package's docstring."""
    text = ast.get_docstring(sources[f"overt.{package}"].tree) or ""
    return " ".join(text.partition("\n\n")[0].replace("`", "").split())


class Picture(Generated):
    """The picture of the packages."""

    def run(self) -> list[nodes.Node]:
        self.depend()
        return [nodes.raw("", svg(packages.modules()), format="html")]


class Table(Generated):
    """Each package, what it says of itself, its parts and what it imports."""

    def run(self) -> list[nodes.Node]:
        self.depend()
        sources = packages.modules()
        edges = packages.between_packages(packages.imports(sources))
        public = {name for names in packages.public(sources).values() for name in names}
        rows = []
        for row in _rows(
            {a: {b for b in edges[a] if _drawn(b)} for a in edges if _drawn(a)}
        ):
            for package in row:
                name = nodes.target("", "", ids=[f"package-{package}"])
                name += (
                    _reference(package)
                    if f"overt.{package}" in public
                    else nodes.literal(text=package)
                )
                parts = sorted(
                    {packages.package(n, f"overt.{package}") or "" for n in sources}
                    - {""}
                )
                stands_on = _listed(other for other in edges[package] if _drawn(other))
                rows.append(
                    (
                        nodes.paragraph("", "", name),
                        _summary(package, sources),
                        _listed(parts),
                        stands_on,
                    )
                )
        return [
            table(
                ("package", "what it is", "inside", "imports"), rows, (14, 30, 34, 22)
            )
        ]


def _reference(package: str) -> nodes.Node:
    return addnodes.pending_xref(
        "",
        nodes.literal(text=package),
        refdomain="py",
        reftype="mod",
        reftarget=f"overt.{package}",
        refwarn=True,
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("packages", Picture)
    app.add_directive("package-table", Table)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
