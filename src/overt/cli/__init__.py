"""The command line: `overt --help` is the place to start. One file per group of commands."""

from __future__ import annotations

from overt.cli import (  # noqa: F401  (importing registers the commands)
    audit,
    certify,
    completion,
    compress,
    decay,
    explore,
    linear,
    robust,
    serving,
    theory,
)
from overt.cli.base import app, main

__all__ = ["app", "main"]
