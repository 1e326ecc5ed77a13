"""Rankings: what is chosen next, beside EASE, tuned ALS and popularity."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.harness import Table, movielens_sizes, verdict
from overt import datasets
from overt.completion import DropoutCompletion
from overt.completion.evaluation import divide, list_figures
from overt.completion.implicit import Strengths
from overt.completion.recommend import EntryIndex, least_relevant, long_lists
from overt.entries import Entries

SHOWN = ("ndcg@10", "recall@20", "mrr", "map", "columns_shown")


def run() -> list[Table]:
    sizes = movielens_sizes()
    return [compare(size, split) for size in sizes for split in ("random", "last")]


def compare(size: str, split: str) -> Table:
    """One split: ours with nothing set, peers tuned on a tenth of what is fitted."""
    entries = datasets.movielens(size)
    train, held = divide(entries, split, 0.1, 0)
    rows = np.unique(held.rows)
    index = EntryIndex(train)
    known = (index.cols_of_row, rows, train.shape[1])
    least = least_relevant(entries.values)
    table = Table(
        f"Rankings: MovieLens {size.upper()}, {_names[split]}",
        ("who", "setting", *SHOWN, "CPU seconds"),
    )
    DropoutCompletion(max_sweeps=1, missing="negative", n_jobs=1).fit_entries(
        train
    )  # compiles
    found = {}
    for name, setting in (
        ("overt", {"missing": "negative"}),
        ("overt, values and choices", {}),
    ):
        start = time.process_time()
        model = DropoutCompletion(n_jobs=1, **setting).fit_entries(train)
        ranking = model.prepare_ranking()._ranking()
        cpu = time.process_time() - start
        lists = long_lists(lambda some, by=ranking: by.of_rows(some)[1], *known)
        figures = list_figures(lists, rows, train, held, least)
        found[name] = figures, cpu
        factors = (ranking.chosen or ranking.model).base.columns.n_factors
        _add(table, name, f"defaults, {factors} factors", figures, cpu)
    counts = np.bincount(train.cols, minlength=train.shape[1])
    lists = long_lists(lambda some: np.tile(counts, (len(some), 1)), *known)
    _add(table, "popularity", "", list_figures(lists, rows, train, held, least), None)
    told, peers = _peers(entries, train, split)
    for name, lists in peers.items():
        figures = list_figures(lists[rows], rows, train, held, least)
        found[name] = figures, told[name]["cpu"]
        _add(table, name, told[name]["setting"], figures, told[name]["cpu"])
    _bars(table, found, told, factors)
    return table


_names = {
    "random": "a random tenth held out",
    "last": "the last tenth of each row held out",
}


def _add(table, who, setting, figures, cpu) -> None:  # type: ignore[no-untyped-def]
    cells = [f"{figures[n][0]:.4f} ± {figures[n][1]:.4f}" for n in SHOWN[:-1]]
    shown = f"{figures[SHOWN[-1]][0]:.3f}"
    table.rows.append((who, setting, *cells, shown, "" if cpu is None else cpu))


def _peers(entries: Entries, train: Entries, split: str):  # type: ignore[no-untyped-def]
    """Return what peers say of themselves, and their lists for all rows."""
    _, aside = divide(train, split, 0.1, 1)
    width = train.shape[1]
    keys = train.rows * width + train.cols
    validation = np.isin(keys, aside.rows * width + aside.cols)
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder) / "split.npz", Path(folder) / "lists.npz"
        values = Strengths.of(entries.values)(train.values)
        np.savez(
            given,
            rows=train.rows,
            cols=train.cols,
            values=values,
            slice=validation,
            good=train.values >= least_relevant(entries.values),
            shape=train.shape,
        )
        script = str(Path(__file__).with_name("_rankers.py"))
        command = [
            os.environ.get("OVERT_PEERS", sys.executable),
            script,
            str(given),
            str(out),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        with np.load(out) as lists:
            return json.loads(done.stdout.splitlines()[-1]), dict(lists)


def _bars(table, found, told, factors) -> None:  # type: ignore[no-untyped-def]
    ours, cpu = found["overt"]
    text = []
    for peer, least in (("implicit ALS", 1.0), ("EASE", 0.97), ("LensKit ALS", 1.0)):
        if peer not in found:
            table.notes.append(f"{peer}: not measured ({told[peer]['missing']}).")
            continue
        ratios = [ours[name][0] / found[peer][0][name][0] for name in SHOWN[:2]]
        said = " and ".join(f"{ratio:.3f}" for ratio in ratios)
        text.append(
            f"At least {least:g} of {peer} tuned ({said}): {verdict(min(ratios) >= least)}."
        )
    if f"ALS {factors}" in told:
        ratio = cpu / told[f"ALS {factors}"]["cpu"]
        text.append(
            f"At most 3 times ALS's time at {factors} factors ({ratio:.2f}): {verdict(ratio <= 3)}."
        )
    table.notes.append(" ".join(text))


if __name__ == "__main__":
    print("\n".join(table.markdown() for table in run()))
