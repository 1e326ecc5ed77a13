"""Hosts as network namespaces, workers killed at random moments, and a cut of the network.

Needs Linux, root and `ip`. `OVERT_RUNS` says how many runs lose a worker.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.harness import Table, verdict
from overt.completion import DropoutCompletion
from overt.datasets import generate_ratings

NET, BRIDGE, PORT = "10.77.0", "overt-br", 8786
SETTINGS = {"n_factors": 8, "max_sweeps": 6, "tol": 0}
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
            sh(
                "ip",
                "link",
                "add",
                f"veth{i}",
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                name,
            )
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
        words = ["scheduler", "--host", f"{NET}.10", "--port", str(PORT), "--no-dashboard"]
        if host:
            words = ["worker", self.address, "--host", f"{NET}.{10 + host}", "--nthreads", "1"]
            words += ["--no-nanny", "--no-dashboard", "--memory-limit", "0"]
        command = ["ip", "netns", "exec", f"overt{host}", sys.executable, "-m", "dask", *words]
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


def run() -> list[Table]:
    from distributed import Client

    ratings, rng = generate_ratings(3000, 1000, 100_000, seed=0)[0], random.Random(0)  # noqa: S311
    here = DropoutCompletion(**SETTINGS).fit(ratings)
    table = Table(
        "Four hosts (network namespaces): equal to one process, whatever is lost",
        ("what happens", "runs", "largest difference of factors", "runs that said so", "holds"),
    )
    with Hosts(4) as hosts:
        for host in range(5):
            hosts.start(host)
        with Client(hosts.address) as client:

            def fit() -> tuple[float, int, float]:
                start = time.perf_counter()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    there = DropoutCompletion(engine="dask", **SETTINGS).fit(ratings)
                took = time.perf_counter() - start
                return float(np.abs(there.U_ - here.U_).max()), len(there.faults_), took

            client.wait_for_workers(4)
            fit()  # compiles
            error, _, took = fit()
            table.rows.append(("nothing", 1, error, 0, verdict(error <= 1e-5)))
            errors, told, silent = [], 0, list[float]()
            for number in range(int(os.environ.get("OVERT_RUNS", "20"))):
                client.wait_for_workers(4)
                lost, killed = rng.randint(1, 4), list[float]()

                def kill(lost: int = lost, killed: list[float] = killed) -> None:
                    killed.append(time.perf_counter())
                    hosts.kill(lost)

                with after(rng.uniform(0, took), kill):
                    begun = time.perf_counter()
                    error, faults, _ = fit()
                    end = time.perf_counter()
                hosts.start(lost)
                errors.append(error)
                told += faults > 0
                if not faults:
                    silent.append(end - killed[0])
                when = f"after {killed[0] - begun:.1f} s, {end - killed[0]:.1f} s before the end"
                print("kill", number, lost, error, faults, when, flush=True)
            row = ("a worker is killed at a random moment", len(errors), max(errors), told)
            table.rows.append((*row, verdict(max(errors) <= 1e-5)))

            def cut() -> None:
                hosts.link(2, "down")
                time.sleep(CUT)
                hosts.link(2, "up")

            client.wait_for_workers(4)
            with after(took / 3, cut):
                error, faults, slow = fit()
            row = (f"a host is cut off for {CUT:.0f} s", 1, error, int(faults > 0))
            table.rows.append((*row, verdict(error <= 1e-5)))
            ends = ", ".join(
                f"{'after' if s < 0 else 'before'} it by {abs(s):.1f} s" for s in silent
            )
            table.notes.append(
                f"A fit takes {took:.1f} s, that with the cut {slow:.1f} s. Kills are set to a "
                "moment of a fit that takes as long as the first. Of the runs that said nothing, "
                f"the kill came, against the end of the fit: {ends or 'there were none'}."
            )
    return [table]
