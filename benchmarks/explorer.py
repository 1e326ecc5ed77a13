"""The explorer in a browser: the first view, a slider's way to the plot, ten visitors at once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from benchmarks.harness import Table, verdict

PANELS = ("shrinkage", "landscape", "training", "jumps", "completion")
OUTPUTS = [(name, "children") for name in ("numbers", "plots", "tables", "lines")]
OUTPUTS += [("answer", "data")]
SEEN = {"shrinkage": "#split .main-svg", "landscape": "#map .main-svg"}
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip

MOVE = """async value => {
  const plots = ['spectrum', 'path', 'split'].map(
    name => document.querySelector(`#${name} .js-plotly-plot`));
  const drawn = plots.map(plot => new Promise(done => plot.once('plotly_afterplot', done)));
  const slider = document.querySelector('input[type=range][data-for=drop_prob]');
  const start = performance.now();
  slider.value = value;
  slider.dispatchEvent(new Event('input', {bubbles: true}));
  await Promise.all(drawn);
  await new Promise(requestAnimationFrame);
  return performance.now() - start;
}"""


def run() -> list[Table]:
    from playwright.sync_api import sync_playwright

    with server() as (address, started), sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=shutil.which("chromium"), args=list(QUIET))
        tables = [first_view(chromium, address, started), slider(chromium, address)]
        chromium.close()
        return [*tables, visitors(address)]


@contextmanager
def server() -> Iterator[tuple[str, float]]:
    """Yield the address of a server, and after how many seconds it said so."""
    command = [sys.executable, "-m", "overt", "explore", "--no-browser", "--port", "0"]
    start = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"COLUMNS": "200"}
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[1].rstrip("/")
        yield address, time.perf_counter() - start
        process.terminate()


def first_view(chromium: Any, address: str, started: float, repeat: int = 3) -> Table:
    """From the click on a link to the last plot, in a browser that has seen nothing yet."""
    table = Table(
        "The explorer's first view, with an empty cache (milliseconds)",
        ("panel", "best", "median", "bar", "met"),
    )
    for panel in PANELS:
        times = []
        for _ in range(repeat):
            context = chromium.new_context()
            page = context.new_page()
            start = time.perf_counter()
            page.goto(f"{address}/{panel}")
            page.wait_for_selector(SEEN.get(panel, "form[data-settled=yes]"))
            times.append(1000 * (time.perf_counter() - start))
            context.close()
        best, median = min(times), float(np.median(times))
        table.rows.append((panel, best, median, "< 2000", verdict(best < 2000)))
    table.notes.append(f"The command says its address after {started:.1f} s.")
    return table


def slider(chromium: Any, address: str, moves: int = 30) -> Table:
    """From a move of the slider to the last of three plots redrawn, with 200 singular values."""
    page = chromium.new_page()
    values = "+".join(f"{v:.4g}" for v in np.geomspace(10, 0.01, 200))
    page.goto(f"{address}/shrinkage?width=200&rank=20&values={values}")
    page.wait_for_selector("#split .main-svg")
    page.wait_for_timeout(500)
    times = [page.evaluate(MOVE, 0.2 + 0.5 * k / moves) for k in range(moves)]
    table = Table(
        "Slider to redrawn plots, 200 singular values (milliseconds)",
        ("best", "median", "90%", "bar", "met"),
    )
    median = float(np.median(times))
    spread = (min(times), median, float(np.quantile(times, 0.9)))
    table.rows.append((*spread, "median < 300", verdict(median < 300)))
    page.close()
    return table


def visitors(address: str, count: int = 10, each: int = 10) -> Table:
    """Answers to one visitor alone, and to ten at once while computations run and wait."""
    quick = {"panel": "shrinkage", "fields": {"width": "200"}}
    size = {"steps": "200000", "seeds": "10", "outputs": "60", "inputs": "60", "width": "60"}
    long = {"panel": "training", "fields": size | {"learning_rate": "1e-5"}}
    post(address, quick)
    alone = [post(address, quick)[0] for _ in range(each)]
    with ThreadPoolExecutor(count) as pool:
        jobs = [pool.submit(post, address, long | {"command": "run"}) for _ in range(count)]
        ids = [job.result()[1]["job"] for job in jobs]
        together = [
            job.result()[0]
            for job in [pool.submit(post, address, quick) for _ in range(count * each)]
        ]
        for name in ids:
            post(address, long | {"command": "stop", "job": name})
    table = Table(
        f"Answers to one visitor, and to {count} at once beside {count} long computations "
        "(milliseconds)",
        ("visitors", "median", "slowest"),
    )
    table.rows += [(1, float(np.median(alone)), max(alone))]
    table.rows += [(count, float(np.median(together)), max(together))]
    return table


def post(address: str, ask: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Return the milliseconds of an answer, and what it says."""
    body = {
        "output": ".." + "...".join(f"{name}.{prop}" for name, prop in OUTPUTS) + "..",
        "outputs": [{"id": name, "property": prop} for name, prop in OUTPUTS],
        "inputs": [{"id": "ask", "property": "data", "value": ask}],
        "changedPropIds": ["ask.data"],
        "state": [],
    }
    start = time.perf_counter()
    connection = HTTPConnection(urlsplit(address).netloc, timeout=120)
    headers = {"Content-Type": "application/json", "Origin": address}
    connection.request("POST", "/_dash-update-component", json.dumps(body), headers)
    answer = json.load(connection.getresponse())["response"]["answer"]["data"]
    connection.close()
    return 1000 * (time.perf_counter() - start), answer
