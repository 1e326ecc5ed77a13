"""What is raised on input that cannot be used, and on packages that are missing."""

from __future__ import annotations

from collections.abc import Iterable


class InputError(ValueError):
    """An argument cannot be used; the message says which, why, and what is accepted."""

    __module__ = "overt"  # where users import it from, and what tracebacks show


class InputTypeError(InputError, TypeError):
    """An argument has the wrong type or number format."""


class InputFileError(OSError, InputError):
    """A file or folder cannot be used; the message says which, and what the system answers."""

    def __str__(self) -> str:
        return f"{self.filename} cannot be used: {self.strerror}"


class InternalError(RuntimeError):
    """Results of overt contradict each other: an error of overt, never of its input."""

    __module__ = "overt"


class MissingExtraError(ImportError):
    """An optional dependency is not installed; the message holds the command that installs it."""

    __module__ = "overt"

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"this needs {package}, which is not installed; install it with: "
            f"pip install 'overt[{extra}]'"
        )


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """Return the error for an unknown name: it says the nearest ones, or all where none is near."""
    from difflib import get_close_matches

    known = list(known)
    near = get_close_matches(name, known, 3, 0.6)
    rest = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known)}"
    return InputError(f"unknown {kind} {name}; {rest}")
