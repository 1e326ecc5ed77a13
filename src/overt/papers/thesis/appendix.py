"""Section 7.3: auxiliary results."""

from __future__ import annotations

from overt.papers.records import item

item("Lemma 20", "7.3", "An inverse", by="shrinkage-inverse")
item("Lemma 21", "7.3", "The objective falls with the rank", by="shrinkage-monotone")
item("Lemma 22", "7.3", "Khintchine and Kahane", how="cited")
item("Theorem 17", "7.3", "Hoeffding", how="cited")
item("Theorem 18", "7.3", "Rademacher generalization", how="cited")
item(
    "Theorem 20",
    "7.3",
    "The weighted trace norm ball",
    by="completion-bound",
    printed="stated with O(), used with the constant 1",
)
item("Theorem 21", "7.3", "Gaussian concentration", how="cited")
item("Theorem 22", "7.3", "Freedman's inequality", how="cited")
