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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Table, verdict

FACTORS, SWEEPS = 32, 2
BAR_LINEAR, BAR_CLUSTER = 1.3, 1.3


def folder_of(place: Path, ratings: int, files: int = 8) -> Path:
    """Write a folder of Parquet files: 150 ratings a row, columns as the square root."""
    import duckdb

    path, rows, cols = (
        place / f"{ratings}",
        max(50, ratings // 150),
        int(6 * ratings**0.5),
    )
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
        (
            "ratings",
            "memory_limit",
            "reading, CPU s",
            "a sweep, CPU s",
            "of linear from the last",
            "private memory after sweeps, GB",
            "resident, peak, GB",
            "covariances",
        ),
    )
    largest, last = float(os.environ.get("OVERT_RATINGS", "1e7")), None
    with tempfile.TemporaryDirectory() as place:
        for size in 10.0 ** np.arange(6, np.log10(largest) + 0.01):
            folder = folder_of(Path(place), int(size))
            limit = f"{max(1.0, size / 1e7):.0f}GB"
            found = measured(folder, limit)
            ratio = (
                found["sweep"] / (last["sweep"] * found["ratings"] / last["ratings"])
                if last
                else 1
            )
            cells = (
                f"{found['anon'] / 1e9:.2f}",
                f"{found['resident'] / 1e9:.2f}",
                found["covariance"],
            )
            table.rows.append(
                (
                    f"{found['ratings']:,}",
                    limit,
                    found["reading"],
                    found["sweep"],
                    ratio,
                    *cells,
                )
            )
            last = found
            print(found, flush=True)
    return table


SHARED = """
import json, os, sys, time
from pathlib import Path
from dask import config
from distributed import Client, LocalCluster
from overt.completion import DropoutCompletion, read_ratings
def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])
def spent(client):
    mine = {"client": time.process_time()}
    return mine | client.run(time.process_time) if client else mine
def fit(folder, factors, sweeps, client):
    engine = "dask" if client else "threads"
    marks, how = [], {"tol": 0, "n_jobs": 2, "signals": False, "engine": engine,
                      "memory_limit": "1GB"}
    model = DropoutCompletion(factors, max_sweeps=sweeps, **how)
    start, before = time.perf_counter(), spent(client)
    def mark(form):
        marks.append((time.perf_counter(), sum(spent(client).values())))
    read = read_ratings(folder, memory_limit="1GB")
    reading = sum(spent(client).values()) - sum(before.values())
    model.fit_entries(read.entries, on_form=mark)
    wall, cpu = ((b - a) / (sweeps - 1) for a, b in zip(marks[0], marks[-1]))
    return {"ratings": len(read.entries), "wall": wall, "cpu": cpu, "reading": reading,
            "objective": float(model.objective_[-1])}
if __name__ == "__main__":
    folder, (factors, sweeps, turns, both) = sys.argv[1], map(int, sys.argv[2:6])
    quiet = {"distributed.worker.profile.enabled": False}  # as overt starts workers
    with config.set(quiet), LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0", memory_limit=0
    ) as cluster, Client(cluster) as client:
        DropoutCompletion(2, max_sweeps=1).fit([[1.0, 2.0], [3.0, float("nan")]])
        before, found = memory("VmRSS"), []
        Path("/proc/self/clear_refs").write_text("5")
        for turn in range(turns):
            found.append({"dask": fit(folder, factors, sweeps, client)})
            peak = memory("VmHWM") - before if not turn else peak
            if both:
                found[-1]["threads"] = fit(folder, factors, sweeps, None)
        print(json.dumps({"turns": found, "peak": peak}))
"""


def on_workers(folder: Path, turns: int = 1, both: bool = True) -> dict[str, Any]:
    """Fit from a folder on two workers, in turns with two threads; `peak` is the client's."""
    script = folder.parent / "shared.py"
    script.write_text(SHARED)
    words = [
        sys.executable,
        str(script),
        str(folder),
        str(FACTORS),
        "4",
        str(turns),
        str(int(both)),
    ]
    found = subprocess.run(words, check=True, capture_output=True, text=True)
    return dict(json.loads(found.stdout.splitlines()[-1]))


def shared(sizes: Sequence[float] = (1e6, 1e7, 2e7), compared: float = 2e7) -> Table:
    """Measure what two workers take beside two threads, and what the client holds."""
    table = Table(
        f"A folder fitted by two workers: {FACTORS} factors, signals left out",
        (
            "ratings",
            "client's memory beyond its start, MB",
            "a sweep, CPU s (all processes)",
            "two threads",
            "ratio",
            "wall s",
            "two threads",
            "ratio",
            "largest difference",
        ),
    )
    with tempfile.TemporaryDirectory() as place:
        for size in sizes:
            folder, both = folder_of(Path(place), int(size)), size == compared
            found = on_workers(folder, 2 if both else 1, both)
            cells: list[Any] = []
            for what in ("cpu", "wall"):
                mine, theirs = (
                    min(
                        turn[kind][what] if kind in turn else np.nan
                        for turn in found["turns"]
                    )
                    for kind in ("dask", "threads")
                )
                cells += [mine, theirs, mine / theirs]
            first = found["turns"][0]
            apart = (
                abs(first["dask"]["objective"] - first["threads"]["objective"])
                if both
                else ""
            )
            count = f"{first['dask']['ratings']:,}"
            table.rows.append((count, found["peak"] / 1e6, *cells, apart))
            print(found, flush=True)
    return table


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf(
        "SC_PAGE_SIZE"
    )


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
        (
            "minutes",
            "rounds",
            "MB after a quarter",
            "at the end",
            "files",
            "at the end",
            "flat",
        ),
    )
    flat = late[1] <= early[1] and late[0] < 1.05 * early[0]
    row = (
        minutes,
        len(found),
        early[0] / 1e6,
        late[0] / 1e6,
        early[1],
        late[1],
        verdict(flat),
    )
    table.rows.append(row)
    return table


def run() -> list[Table]:
    return [endurance(), capacity(), shared()]
