"""The command line: `overt --help` is the place to start. One file per group of commands."""

from __future__ import annotations

from importlib import import_module

from overt.cli.base import app, main

for _group in (
    "audit", "completion", "compress", "decay", "explore", "impute", "linear", "reproducing",
    "robust", "serving", "theory", "tour",
):  # fmt: skip
    import_module(f"overt.cli.{_group}")  # registers its commands

__all__ = ["app", "main"]
