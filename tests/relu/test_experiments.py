"""The theorems."""

import overt.theorems.relu
from overt.theorems.base import registered, verify


def test_theorems_hold():
    module = overt.theorems.relu.__name__
    names = [name for name, entry in registered().items() if entry.check.__module__ == module]
    assert len(names) == 9
    verdicts = list(verify(names))
    assert [v.id for v in verdicts if v.verdict != "holds"] == []
    assert sum(v.correction is not None for v in verdicts) == 3
