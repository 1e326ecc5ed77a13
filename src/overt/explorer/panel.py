"""What a panel is: fields, the long task, the view of both, and the lines that make it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from overt.explorer.fields import Field, Values
from overt.explorer.figures import Figure


@dataclass(frozen=True)
class Table:
    """A table with a caption."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class View:
    """Numbers with their names, plots, tables, and what is answered beside fields."""

    numbers: Sequence[tuple[str, Any]] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    messages: dict[str, str] = field(default_factory=dict)
    download: bool = False


@dataclass(frozen=True)
class Panel:
    """One page of the explorer.

    `view(values, found)` draws what is known at once, and what the task has found so far;
    `task(**values)` yields frames, in a process of its own.
    """

    name: str
    title: str
    says: str
    page: str
    fields: tuple[Field, ...]
    view: Callable[[Values, Sequence[dict[str, Any]]], View]
    code: Callable[[Values], str]
    task: Callable[..., Any] | None = None
    plots_at_once: bool = False

    def asked(self, values: Values) -> Values:
        """Return the values on which the task depends."""
        others = {field.name for field in self.fields if field.lens} | {"data"}
        return {name: value for name, value in values.items() if name not in others}


def call(function: Callable[..., Any], values: Values, *more: str) -> str:
    """Return a call as Python writes it, with these values and arguments as they are given."""
    arguments = ", ".join([*more, *(f"{name}={value!r}" for name, value in values.items())])
    lines = textwrap.wrap(arguments, 92, break_long_words=False, break_on_hyphens=False)
    return f"{function.__name__}(\n    " + "\n    ".join(lines) + "\n)"
