"""What a visitor can set: each field reads its text, and writes its control as HTML.

The texts of all fields are the state of a page, and the query of its address: `?drop_prob=0.3`.
They are read here, on the server, whoever sent them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from overt import InputError

Values = dict[str, Any]

LONGEST = 20_000
"""Characters that any field takes."""


@dataclass(frozen=True)
class Field:
    """A named text with a label.

    `read(text)` returns its value, or raises an InputError that says what is wrong; `control` makes
    HTML of attributes and text, both escaped. `when` is "other=value" for a field that matters, and
    is shown, only then. A `lens` chooses what is shown of a result, and asks for no new one.
    """

    name: str
    label: str
    default: str
    read: Callable[[str], Any]
    control: Callable[[str, str], str]
    hint: str = ""
    when: str = ""
    lens: bool = False

    def html(self, text: str) -> str:
        """Return label, control, hint, and the place where mistakes are answered."""
        name = self.name
        attributes = (
            f'id="{name}" name="{name}" data-default="{escape(self.default)}" autocomplete="off" '
            f'aria-describedby="{name}-error {name}-hint" spellcheck="false"'
        )
        return (
            f'<div class="field" data-when="{self.when}">'
            f'<label for="{name}">{escape(self.label)}</label>'
            f"{self.control(attributes, escape(text))}"
            f'<p class="hint" id="{name}-hint">{escape(self.hint)}</p>'
            f'<p class="error" id="{name}-error" role="alert"></p></div>'
        )


def number(
    name: str, label: str, default: float, low: float, high: float, *,
    slide: float = 0, optional: bool = False, **more: Any,
) -> Field:  # fmt: skip
    """Return a field for a number, whole if the default is; with `slide`, also a slider."""
    whole = isinstance(default, int)

    def read(text: str) -> float | int | None:
        if optional and not text.strip():
            return None
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            kind = "a whole number" if whole else "a number"
            raise InputError(f"must be {kind} from {low:g} to {high:g}, got {_brief(text)}")
        return value

    def control(attributes: str, text: str) -> str:
        mode = "numeric" if whole else "decimal"
        box = f'<input type="text" inputmode="{mode}" value="{text}" {attributes}>'
        if not slide:
            return box
        return (
            f'<span class="pair"><input type="range" min="{low:g}" max="{high:g}" step="{slide:g}" '
            f'value="{text}" data-for="{name}" aria-label="{escape(label)}, slider">{box}</span>'
        )

    return Field(name, label, f"{default:g}", read, control, **more)


def choice(name: str, label: str, options: Mapping[str, str], **more: Any) -> Field:
    """Return a field for one of a few words; `options` maps each to what is shown for it."""

    def read(text: str) -> str:
        if text not in options:
            raise InputError(f"must be one of {', '.join(options)}, got {_brief(text)}")
        return text

    def control(attributes: str, text: str) -> str:
        items = "".join(
            f'<option value="{word}"{" selected" * (word == text)}>{escape(shown)}</option>'
            for word, shown in options.items()
        )
        return f"<select {attributes}>{items}</select>"

    return Field(name, label, next(iter(options)), read, control, **more)


def spectrum(name: str, label: str, default: str, most: int, **more: Any) -> Field:
    """Return a field for singular values: typed, pasted, drawn or uploaded."""

    def read(text: str) -> list[float]:
        values = sorted(_numbers(text), reverse=True)
        if len(values) > most:
            raise InputError(f"must be at most {most} numbers, got {len(values)}")
        if values[-1] < 0 or not 0 < values[0] <= 1e6:
            raise InputError("must be numbers from 0 to 1e6, at least one of them above 0")
        return values

    def control(attributes: str, text: str) -> str:
        draw = (
            '<svg id="draw" class="draw" role="slider" tabindex="0" aria-valuemin="0" '
            'aria-valuenow="0" aria-label="Draw the singular values" aria-describedby="draw-hint" '
            'preserveAspectRatio="none"></svg><p class="hint" id="draw-hint">Draw with the '
            "pointer. With keys: left and right choose a value, up and down change it, Insert adds "
            "one, Delete removes one.</p>"
        )
        return f"{draw}{_area(attributes, text)}{_upload(name, 'Upload values or a matrix')}"

    return Field(name, label, default, read, control, **more)


def points(name: str, label: str, default: str, most: int, extent: float, **more: Any) -> Field:
    """Return a field for pairs of numbers, one pair on a line or between semicolons."""

    def read(text: str) -> list[tuple[float, float]]:
        lines = [line.strip() for line in re.split(r"[;\n]", text) if line.strip()]
        if len(lines) > most:
            raise InputError(f"must be at most {most} points, got {len(lines)}")
        pairs = [_numbers(line) for line in lines]
        for line, pair in zip(lines, pairs, strict=True):
            if len(pair) != 2 or max(map(abs, pair)) > extent:
                raise InputError(f"must be pairs of numbers up to {extent:g}, got {_brief(line)}")
        return [(a, b) for a, b in pairs]

    return Field(name, label, default, read, _area, **more)


def word(name: str, label: str, **more: Any) -> Field:
    """Return a field for a name from the visitor's data."""

    def control(attributes: str, text: str) -> str:
        return f'<input type="text" value="{text}" {attributes}>'

    return Field(name, label, "", str.strip, control, **more)


def ratings(name: str, label: str, **more: Any) -> Field:
    """Return a field for the sample, or for the token of a file that was uploaded."""

    def control(attributes: str, text: str) -> str:
        return (
            f'<span class="pair"><input type="text" readonly value="{text}" {attributes}>'
            f'<button type="button" id="sample" data-for="{name}">Use the sample</button></span>'
            f"{_upload(name, 'Upload ratings (row, column, value)')}"
        )

    return Field(name, label, "sample", str, control, **more)


def read_fields(fields: Sequence[Field], given: Any) -> tuple[Values, dict[str, str]]:
    """Return the values that could be read, and what is wrong with the others, by name.

    A field that does not matter, because of another one's value, takes its default.
    """
    given = given if isinstance(given, Mapping) else {}
    values: Values = {}
    messages: dict[str, str] = {}
    for field in fields:
        other, _, needed = field.when.partition("=")
        matters = not other or values.get(other) == needed
        text = given.get(field.name, field.default) if matters else field.default
        try:
            if not isinstance(text, str) or len(text) > LONGEST:
                raise InputError(f"must be text of at most {LONGEST} characters")
            values[field.name] = field.read(text)
        except InputError as error:
            messages[field.name] = str(error)
    return values, messages


def _area(attributes: str, text: str) -> str:
    return f'<textarea rows="3" {attributes}>\n{text}</textarea>'


def _upload(into: str, label: str) -> str:
    """Return a file input whose content goes to the server, and the answer into a field."""
    return (
        f'<label for="file" class="small">{escape(label)}</label><input type="file" id="file" '
        f'data-into="{into}" aria-describedby="{into}-error note">'
        '<p class="hint" id="note" role="status"></p>'
    )


def _numbers(text: str) -> list[float]:
    """Return the finite numbers of a text; blanks, commas, semicolons, brackets separate them."""
    try:
        values = [float(word) for word in re.sub(r"[\[\](),;]", " ", text).split()]
    except ValueError:
        values = []
    if not values or not all(map(math.isfinite, values)):
        raise InputError(f"must be finite numbers, got {_brief(text)}")
    return values


def _brief(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
