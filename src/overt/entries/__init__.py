"""Observed entries of a matrix, their identifiers, and the data frames they come from."""

from overt.entries.entries import Entries, observed, pairs

__all__ = ["Entries", "observed", "pairs"]
