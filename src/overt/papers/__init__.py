"""The papers as code: every item has a record, and what can be checked or plotted is.

>>> from overt.papers import verify
>>> [v.verdict for v in verify(["path-norm"])]
['holds']

A folder is a paper, a module a section of it, with its statements and figures in the paper's order;
`beyond` holds results of our own.
"""

from __future__ import annotations

from overt.papers.bibliography import PAPERS, bibtex
from overt.papers.evidence import Evidence
from overt.papers.figures import Figure, Finding
from overt.papers.records import Item, figure, find, items, statement
from overt.papers.runner import report, run
from overt.papers.verification import Verdict, verify

__all__ = [
    "PAPERS",
    "Evidence",
    "Figure",
    "Finding",
    "Item",
    "Verdict",
    "bibtex",
    "figure",
    "find",
    "items",
    "report",
    "run",
    "statement",
    "verify",
]
