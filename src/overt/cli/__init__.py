"""The command line: `overt --help` is the place to start. One file per command."""

from __future__ import annotations

from importlib import import_module

from overt.cli.base import app, main

COMMANDS = (
    "attack",
    "audit",
    "certify",
    "cite",
    "complete",
    "compress",
    "evaluate",
    "explore",
    "impute",
    "jumps",
    "predict",
    "recommend",
    "reproduce",
    "solve",
    "tour",
    "train",
    "update",
    "verify",
)
for _name in COMMANDS:
    import_module(f"overt.cli.{_name}")  # registers its commands

__all__ = ["app", "main"]
