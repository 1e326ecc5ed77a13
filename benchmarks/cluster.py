"""Hosts as network namespaces, workers killed at random moments, and a cut of the network.

Needs Linux, root and `ip`. `OVERT_RUNS` says how many runs lose a worker.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Table, verdict
from overt.completion import DropoutCompletion
from overt.datasets import generate_ratings
from overt.entries import Entries

NET, BRIDGE, PORT = "10.77.0", "overt-br", 8786
SETTINGS: dict[str, Any] = {"n_factors": 4, "max_sweeps": 4, "tol": 0}
CUT = 10.0


def sh(*words: str, check: bool = True) -> None:
    subprocess.run(words, check=check, capture_output=not check)


class Hosts:
    """A bridge with hosts beside it; host 0 runs the scheduler, the others a worker each."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Hosts:
        self.clear()
        sh("ip", "link", "add", BRIDGE, "type", "bridge")
        sh("ip", "addr", "add", f"{NET}.1/24", "dev", BRIDGE)
        sh("ip", "link", "set", BRIDGE, "up")
        for i in range(self.count + 1):
            name = f"overt{i}"
            sh("ip", "netns", "add", name)
            kind = ("type", "veth", "peer", "name", "eth0", "netns", name)
            sh("ip", "link", "add", f"veth{i}", *kind)
            sh("ip", "link", "set", f"veth{i}", "master", BRIDGE, "up")
            inside = ("ip", "netns", "exec", name, "ip")
            sh(*inside, "addr", "add", f"{NET}.{10 + i}/24", "dev", "eth0")
            sh(*inside, "link", "set", "eth0", "up")
            sh(*inside, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_: Any) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.clear()

    def clear(self) -> None:
        for i in range(self.count + 1):
            sh("ip", "netns", "del", f"overt{i}", check=False)
        sh("ip", "link", "del", BRIDGE, check=False)

    @property
    def address(self) -> str:
        return f"tcp://{NET}.10:{PORT}"

    def start(self, host: int) -> None:
        """Start the scheduler or a worker as the guide says."""
        words = [
            "scheduler",
            "--host",
            f"{NET}.10",
            "--port",
            str(PORT),
            "--no-dashboard",
        ]
        if host:
            words = [
                "worker",
                self.address,
                "--host",
                f"{NET}.{10 + host}",
                "--nthreads",
                "1",
            ]
            words += ["--no-nanny", "--no-dashboard", "--memory-limit", "0"]
        command = [
            "ip",
            "netns",
            "exec",
            f"overt{host}",
            sys.executable,
            "-m",
            "dask",
            *words,
        ]
        self.processes[host] = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def kill(self, host: int) -> None:
        self.processes[host].send_signal(signal.SIGKILL)
        self.processes[host].wait()

    def link(self, host: int, state: str) -> None:
        sh("ip", "link", "set", f"veth{host}", state)


@contextmanager
def after(seconds: float, call: Any) -> Iterator[None]:
    timer = threading.Timer(seconds, call)
    timer.start()
    yield
    timer.join()


def folder_of(place: Path, ratings: Entries, files: int = 6) -> Path:
    """Write entries into files of lines, one after the other."""
    arrays = (ratings.rows, ratings.cols, ratings.values)
    for number, at in enumerate(np.array_split(np.arange(len(ratings)), files)):
        lines = (
            f"{a},{b},{y!r}"
            for a, b, y in zip(*(x[at].tolist() for x in arrays), strict=True)
        )
        (place / f"{number}.csv").write_text(
            "\n".join(["user,item,rating", *lines, ""])
        )
    return place


class Trial:
    """Fits on four hosts, compared with one process, while something is lost."""

    def __init__(self, hosts: Hosts, client: Any, given: Any, what: str) -> None:
        self._hosts, self._client, self._given, self._what = hosts, client, given, what
        self._here = DropoutCompletion(**SETTINGS).fit(given)
        self._rng = random.Random(0)  # noqa: S311
        self.notes: list[str] = []

    def fit(self) -> tuple[float, int, float]:
        """Return the largest difference of factors, the number of faults, and seconds."""
        start = time.perf_counter()
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            there = DropoutCompletion(engine="dask", **SETTINGS).fit(self._given)
        took = time.perf_counter() - start
        faults = sum("workers were lost" in str(warning.message) for warning in found)
        return float(np.abs(there.U_ - self._here.U_).max()), faults, took

    def rows(self, runs: int) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of the table."""
        hosts, client, rng = self._hosts, self._client, self._rng
        client.wait_for_workers(4)
        self.fit()  # compiles
        error, _, took = self.fit()
        yield f"nothing ({self._what})", 1, error, 0, verdict(error <= 1e-5)
        errors, told, silent = [], 0, list[float]()
        for number in range(runs):
            client.wait_for_workers(4)
            lost, killed = rng.randint(1, 4), list[float]()

            def kill(lost: int = lost, killed: list[float] = killed) -> None:
                killed.append(time.perf_counter())
                hosts.kill(lost)

            with after(rng.uniform(0, took), kill):
                begun = time.perf_counter()
                error, faults, _ = self.fit()
                end = time.perf_counter()
            hosts.start(lost)
            errors.append(error)
            told += faults > 0
            if not faults:
                silent.append(end - killed[0])
            when = f"after {killed[0] - begun:.1f} s, {end - killed[0]:.1f} s before the end"
            print(self._what, "kill", number, lost, error, faults, when, flush=True)
        row = (
            f"a worker is killed at a random moment ({self._what})",
            len(errors),
            max(errors),
        )
        yield *row, told, verdict(max(errors) <= 1e-5)

        def cut() -> None:
            hosts.link(2, "down")
            time.sleep(CUT)
            hosts.link(2, "up")

        client.wait_for_workers(4)
        with after(took / 3, cut):
            error, faults, slow = self.fit()
        row = (f"a host is cut off for {CUT:.0f} s ({self._what})", 1, error)
        yield *row, int(faults > 0), verdict(error <= 1e-5)
        ends = ", ".join(
            f"{'after' if s < 0 else 'before'} it by {abs(s):.1f} s" for s in silent
        )
        self.notes.append(
            f"{self._what}: a fit takes {took:.1f} s, with the cut {slow:.1f} s. Kills are set to "
            "a moment of a fit that takes as long as the first. Of the runs that said nothing, "
            f"the kill came, against the end of the fit: {ends or 'there were none'}."
        )


def resumed(hosts: Hosts, given: Any, place: Path) -> tuple[Any, ...]:
    """Kill the scheduler during a fit from files; go on from the checkpoint on this machine."""
    from overt._running import ClusterLostError

    here = DropoutCompletion(**SETTINGS).fit(given)
    said = 0
    with after(4.0, lambda: hosts.kill(0)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            DropoutCompletion(engine=hosts.address, **SETTINGS).fit(
                given, checkpoint=place
            )
        except ClusterLostError as error:
            said = 1
            print(error, flush=True)
    sweeps = len(list(place.glob("*.safetensors")))
    again = DropoutCompletion(**SETTINGS).fit(given, checkpoint=place, resume=True)
    error = float(np.abs(again.U_ - here.U_).max())
    what = f"the scheduler is killed, resumed here ({'with' if sweeps else 'without'} a checkpoint)"
    return what, 1, error, said, verdict(error <= 1e-5)


def run() -> list[Table]:
    from distributed import Client

    ratings = generate_ratings(1500, 600, 50_000, seed=0)[0]
    table = Table(
        "Four hosts (network namespaces): equal to one process, whatever is lost",
        (
            "what happens",
            "runs",
            "largest difference of factors",
            "runs that said so",
            "holds",
        ),
    )
    runs = int(os.environ.get("OVERT_RUNS", "20"))
    with Hosts(4) as hosts, tempfile.TemporaryDirectory() as place:
        for host in range(5):
            hosts.start(host)
        folder = Path(place) / "ratings"
        folder.mkdir()
        folder_of(folder, ratings)
        with Client(hosts.address) as client:
            for given, what in ((folder, "files"), (ratings, "entries sent")):
                trial = Trial(hosts, client, given, what)
                table.rows += list(trial.rows(runs))
                table.notes += trial.notes
        table.rows.append(resumed(hosts, folder, Path(place) / "sweeps"))
    return [table]
