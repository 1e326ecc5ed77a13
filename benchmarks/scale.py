"""Ratings in files and larger than memory: time and bytes for each rating and factor.

`OVERT_RATINGS` is the largest number of ratings (1e7), `OVERT_MINUTES` how long fits, predictions,
saving and loading are repeated while memory and file handles are watched (1).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.capacity import predicted
from benchmarks.harness import Table, verdict

FACTORS, SWEEPS = 32, 2
BAR_LINEAR, BAR_CLUSTER = 1.3, 1.3


def folder_of(place: Path, ratings: int, files: int = 8) -> Path:
    """Write a folder of Parquet files: 150 ratings a row, columns as the square root."""
    import duckdb

    path, rows, cols = place / f"{ratings}", max(50, ratings // 150), int(6 * ratings**0.5)
    path.mkdir()
    for part in range(files):
        drawn = (
            f"select floor(random() * {rows})::int as user, "  # noqa: S608
            f"floor(power(random(), 2) * {cols})::int as item, random() as r "
            f"from range({ratings // files})"
        )
        value = "1 + floor(5 * (.07 * ((user * 7 + item * 3) % 10) + .3 * r))::int as rating"
        target = f"'{path / f'{part}.parquet'}' (format parquet)"
        duckdb.sql(f"copy (select user, item, {value} from ({drawn})) to {target}")  # noqa: S608
    return path


WORK = """
import json, resource, sys, time
from pathlib import Path
from overt.completion import DropoutCompletion, read_ratings
folder, limit, factors, sweeps = sys.argv[1], sys.argv[2] or None, *map(int, sys.argv[3:5])
def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])
peak = 0
def watch(form):
    global peak
    peak = max(peak, memory("RssAnon"))
    marks.append(time.process_time())
marks, start = [], time.process_time()
DropoutCompletion(2, max_sweeps=1).fit([[1.0, 2.0], [3.0, float("nan")]])
read = read_ratings(folder, memory_limit=limit)
peak = memory("RssAnon")
reading = time.process_time() - start
how = {"tol": 0, "memory_limit": limit, "n_jobs": 1, "signals": False}
model = DropoutCompletion(factors, max_sweeps=sweeps, **how)
model.fit_entries(read.entries, on_form=watch)
print(json.dumps({"ratings": len(read.rows), "shape": read.entries.shape, "reading": reading,
    "sweep": (marks[-1] - marks[0]) / (len(marks) - 1), "anon": peak,
    "covariance": model.covariance_,
    "resident": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))
"""


def measured(folder: Path, limit: str) -> dict[str, Any]:
    words = [sys.executable, "-c", WORK, str(folder), limit, str(FACTORS), str(SWEEPS)]
    found = subprocess.run(words, check=True, capture_output=True, text=True)
    return dict(json.loads(found.stdout.splitlines()[-1]))


def capacity() -> Table:
    """Measure sweeps from disk, at sizes ten times apart."""
    table = Table(
        f"Ratings in files: one thread, {FACTORS} factors, signals left out",
        ("ratings", "memory_limit", "reading, CPU s", "a sweep, CPU s", "of linear from the last",
         "private memory after sweeps, GB", "resident, peak, GB", "covariances"),
    )  # fmt: skip
    largest, last = float(os.environ.get("OVERT_RATINGS", "1e7")), None
    with tempfile.TemporaryDirectory() as place:
        for size in 10.0 ** np.arange(6, np.log10(largest) + 0.01):
            folder = folder_of(Path(place), int(size))
            limit = f"{max(1.0, size / 1e7):.0f}GB"
            found = measured(folder, limit)
            ratio = (
                found["sweep"] / (last["sweep"] * found["ratings"] / last["ratings"]) if last else 1
            )
            cells = (
                f"{found['anon'] / 1e9:.2f}",
                f"{found['resident'] / 1e9:.2f}",
                found["covariance"],
            )
            table.rows.append(
                (f"{found['ratings']:,}", limit, found["reading"], found["sweep"], ratio, *cells)
            )
            last = found
            print(found, flush=True)
    return table


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def lived(rounds: int, minutes: float = 0.0) -> list[tuple[int, int]]:
    """Return (bytes, open files) after each round of fit, predict, save and load."""
    from overt.completion import DropoutCompletion
    from overt.datasets import generate_ratings

    found, end = [], time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as place:
        while len(found) < rounds or time.monotonic() < end:
            ratings = generate_ratings(80, 60, 1500, seed=len(found) % 7)[0]
            how = {"memory_limit": "1GB"} if len(found) % 2 else {}
            model = DropoutCompletion(4, max_sweeps=3, **how).fit(ratings)
            model.save(place)
            model = DropoutCompletion.load(place)
            model.predict(ratings, return_std=True)
            model.recommend(0)
            found.append((resident(), open_files()))
    return found


def endurance() -> Table:
    minutes = float(os.environ.get("OVERT_MINUTES", "1"))
    found = lived(40, minutes)
    early, late = found[len(found) // 4], found[-1]
    table = Table(
        "Fit, predict, save, load, again and again",
        ("minutes", "rounds", "MB after a quarter", "at the end", "files", "at the end", "flat"),
    )  # fmt: skip
    flat = late[1] <= early[1] and late[0] < 1.05 * early[0]
    row = (minutes, len(found), early[0] / 1e6, late[0] / 1e6, early[1], late[1], verdict(flat))
    table.rows.append(row)
    return table


def run() -> list[Table]:
    return [endurance(), capacity(), predicted()]
