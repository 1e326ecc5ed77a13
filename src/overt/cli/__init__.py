"""The command line: `overt --help` is the place to start. One file per group of commands."""

from __future__ import annotations

from overt.cli import (
    audit,
    certify,
    completion,
    compress,
    decay,
    explore,
    linear,
    reproducing,
    robust,
    theory,
)
from overt.cli.base import app, main

__all__ = ["app", "main"]
