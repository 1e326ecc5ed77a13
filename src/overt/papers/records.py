r"""The record of one item of a paper: what it states, where, and what decides it.

A statement is a function with a docstring, which is its page::

    @statement("Lemma A.1", "A", how="enumerated")
    def shallow_penalty(rng):
        '''The explicit penalty.

        Dropout on the hidden layer of x -> U V'x adds exactly ...

        Assumes: inputs with a finite second moment.

        Printed: the form of the paper, where it is corrected.

        Open: what nobody has proved or run.

        TeX: the claim, with formulas between dollars.

        Proof: in TeX, where the result is in no paper.
        '''

Its id is the function's name with hyphens. `figure` records figures and tables; what has no check
of its own, open questions included, is in the `items.toml` of its paper.
"""

from __future__ import annotations

import inspect
import re
import sys
import tomllib
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from overt._check import InputError, unknown
from overt.papers.bibliography import PAPERS
from overt.papers.evidence import Evidence
from overt.papers.evidence import Rng as Rng
from overt.papers.figures import Figure

HOW = {
    "formal": "proved by a checker for all sizes",
    "symbolic": "an identity in symbols, at one small size (make proofs); enumerated at others",
    "enumerated": "all cases of small random instances, to rounding",
    "bound evaluated": "an inequality or an algorithm's promise on instances; a null must fail",
    "sampled": "random instances against another method, or samples at five standard errors",
}
"""How a statement is checked, weakest last; only `formal` may say "proved"."""

UNCHECKED = ("definition", "cited", "not checked", "open")
"""Kinds of items that no check decides; one that is not checked says why."""

ANSWERS = ("proved", "counterexample", "part", "open")
"""How far an open question of the papers is settled here."""

Residuals = Generator[Any, None, tuple[Any, ...]]
"""Residuals, or pairs of a residual and that of the null, of which the largest count.

What is returned at last is the rest of the Evidence.
"""

Check = Callable[[Rng], Evidence | Residuals]


@dataclass(frozen=True)
class Item:
    """One numbered item, or one sentence, of a paper.

    Attributes
    ----------
    id, paper, label, section
        Its name here, the folder of its paper, and where it stands there.
    title, claim, tex
        What it says: in a few words, in full, and in TeX.
    proof
        Its proof in TeX, if it is in no paper.
    assumes, printed, open
        Assumptions; the paper's own form where it is corrected; what is not known.
    how
        One of `HOW` or `UNCHECKED`.
    check, figure
        Its own check or figure, if it has one.
    by
        Ids of other items that decide it, or a part of it.
    identity
        The identity in symbols that `make proofs` checks, one of `symbolic.IDENTITIES`.
    module
        The module that holds it.
    answer
        Of an open question: one of `ANSWERS`.
    """

    id: str
    paper: str
    label: str
    section: str
    title: str
    claim: str
    how: str
    tex: str = ""
    proof: str = ""
    assumes: str = ""
    printed: str = ""
    open: str = ""
    check: Check | None = None
    figure: Figure | None = None
    by: tuple[str, ...] = ()
    identity: str = ""
    module: str = ""
    answer: str = ""

    @property
    def source(self) -> str:
        """Paper and item, as one would cite them."""
        if not self.paper:
            return self.label or "a statement of your own"
        name = PAPERS[self.paper].name
        return f"{name}, {self.label}" if self.label else name

    def to_latex(self) -> str:
        """Return the item as a theorem environment, with assumption, correction and proof."""
        lines = [rf"\begin{{theorem}}[{escape_tex(self.source)}]\label{{{self.id}}}"]
        if self.assumes:
            lines.append(f"Assume: {escape_tex(self.assumes)}.")
        lines.append(self.tex or f"{escape_tex(self.claim)}.")
        lines.append(r"\end{theorem}")
        if self.printed:
            lines.append(
                rf"\begin{{remark}}In the paper: {escape_tex(self.printed)}.\end{{remark}}"
            )
        if self.proof:
            lines.append(rf"\begin{{proof}}{self.proof}\end{{proof}}")
        return "\n".join(lines)


ESCAPES = {char: rf"\{char}" for char in "#$%&_{}"} | {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}


def escape_tex(text: str) -> str:
    """Return plain text that LaTeX sets as it stands."""
    escapes = {ord(char): escaped for char, escaped in ESCAPES.items()}
    return text.translate(escapes)


_registry: dict[str, Item] = {}


def _register(
    module: str, name: str, *, how: str, by: Iterable[str] = (), **fields: Any
) -> Item:
    """Add an item to the registry and return it."""
    if name in _registry:
        raise InputError(f"there is an item with the id {name!r} already")
    if how not in (*HOW, *UNCHECKED):
        known = ", ".join((*HOW, *UNCHECKED))
        raise InputError(f"how must be one of {known}; got {how!r}")
    parts = module.split(".")
    ours = module.startswith("overt.papers.") and len(parts) > 3
    _registry[name] = Item(
        id=name,
        paper=parts[2] if ours else "",
        how=how,
        by=tuple(by),
        module=module,
        **fields,
    )
    return _registry[name]


def statement(
    label: str = "",
    section: str = "",
    *,
    how: str = "sampled",
    by: Iterable[str] = (),
    identity: str = "",
) -> Callable[[Check], Check]:
    """Record the decorated check; its docstring says what it states.

    The check gets a random generator, and returns Evidence or yields residuals. `by` names
    statements that decide a part of the item too, `identity` the identity in symbols that
    `make proofs` checks, which is then `how`.
    """

    def record(check: Check) -> Check:
        name = check.__name__.replace("_", "-")
        page = parse_page(check.__doc__ or "", name)
        _register(
            check.__module__,
            name,
            label=label,
            section=section,
            how="symbolic" if identity else how,
            by=by,
            check=check,
            identity=identity,
            **page,
        )
        return check

    return record


def figure(
    name: str,
    label: str,
    section: str,
    page: str,
    *,
    by: Iterable[str] = (),
    **parts: Any,
) -> Figure:
    """Record a figure or table: its page in words, and the parts of a `Figure`.

    The sizes of a paper's figures, and what else needs no code, are in its `figures.toml`.
    """
    given = {"label": label, "section": section, **parse_page(page, name)}
    module = str(sys._getframe(1).f_globals["__name__"])
    found = _register(module, name, how="sampled", by=by, **given)
    settings = {}
    if found.paper:
        settings = read_table(found.paper, "figures").get(name, {})
    made = Figure(
        id=name,
        title=found.title,
        claim=found.claim,
        source=found.source,
        **settings,
        **parts,
    )
    _registry[name] = replace(found, figure=made)
    return made


@cache
def read_table(paper: str, name: str) -> dict[str, Any]:
    """Return a table of a paper's folder: its items, its figures, or its printed numbers."""
    path = Path(__file__).parent / paper / f"{name}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _read_items(paper: str) -> None:
    """Record the items of a paper's table: what others decide, or what has nothing to check."""
    for section, entries in read_table(paper, "items").items():
        for entry in entries:
            module = f"overt.papers.{paper}.{section}"
            if "number" in entry:
                _register_question(module, **entry)
            else:
                label = entry["label"].lower()
                slug = re.sub(r"[^a-z0-9]+", "-", label).strip("-")
                name = f"{PAPERS[paper].prefix}-{slug}"
                given = {"how": "sampled", "claim": entry["title"], **entry}
                _register(module, name, **given)


def _register_question(
    module: str,
    number: int,
    source: str,
    title: str,
    answer: str,
    claim: str = "",
    by: Sequence[str] = (),
    remains: str = "",
) -> None:
    """Add an open question of the papers: its source, its answer, and what remains."""
    _register(
        module,
        f"question-{number}",
        label=f"Question {number}",
        section=source,
        title=title,
        claim=claim or title,
        how="sampled" if by else "open",
        open=remains,
        by=by,
        answer=answer,
    )


PARTS = ("Assumes", "Printed", "Open", "TeX", "Proof")
"""What the parts of a page begin with."""


def parse_page(text: str, name: str) -> dict[str, Any]:
    """Return title, claim and the parts that begin with their name from a docstring."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    parts = [" ".join(part.split()) for part in paragraphs]
    if len(parts) < 2:
        raise InputError(
            f"{name} needs a docstring with a title and a claim, apart by an empty line"
            + (" (python -OO removes docstrings)" if not text else "")
        )
    title, claim, *others = parts
    found = {"title": title.rstrip("."), "claim": claim.rstrip(".")}
    for part in others:
        key, _, rest = part.partition(": ")
        if key not in PARTS:
            raise InputError(
                f"{name}: a part must begin with one of {', '.join(PARTS)}: {key}"
            )
        if key not in ("TeX", "Proof"):
            rest = rest.rstrip(".")
        found[key.lower()] = rest
    return found


@cache
def _modules() -> list[str]:
    """Return the modules that hold items, in the order of the papers."""
    return [
        f"overt.papers.{paper}.{section}"
        for paper, about in PAPERS.items()
        for section in about.sections
    ]


@cache
def _read_all_items() -> None:
    for paper in PAPERS:
        _read_items(paper)


def items() -> dict[str, Item]:
    """Return all items by id, in the papers' order."""
    for module in _modules():
        import_module(module)
    _read_all_items()
    place = {module: number for number, module in enumerate(_modules())}
    # `find` imports modules in any order; inside a module the order is that of the file.
    ordered = sorted(
        _registry.values(), key=lambda found: place.get(found.module, len(place))
    )
    return {found.id: found for found in ordered}


def find(name: str) -> Item:
    """Return the item with this id, importing no more modules than it takes."""
    if not isinstance(name, str):
        raise unknown("item", str(name), items())
    written = (f"def {name.replace('-', '_')}(", f'"{name}"')
    for module in _modules():
        if name in _registry:
            break
        spec = find_spec(module)
        text = Path(spec.origin or "").read_text(encoding="utf-8") if spec else ""
        if any(part in text for part in written):
            import_module(module)
    if name not in _registry and name not in items():
        raise unknown("item", name, _registry)
    return _registry[name]
