"""The explorer in a browser: from the click on the address to the picture, and a slider's delay."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.harness import Table, verdict

PANELS = ("shrinkage", "landscape", "deep", "own", "training", "jumps")
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
FIRST_VIEW_MS = 1500
ANSWER_MS = 200

MOVE = """value => {
  const slider = document.querySelector('input[type=range]');
  const start = performance.now();
  slider.value = value;
  slider.dispatchEvent(new Event('input', {bubbles: true}));
  return performance.now() - start;
}"""


def run() -> list[Table]:
    from playwright.sync_api import sync_playwright

    with server() as address, sync_playwright() as play:
        chromium = play.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(QUIET)
        )
        tables = [first_view(chromium, address), slider(chromium, address)]
        chromium.close()
    return tables


@contextmanager
def server() -> Iterator[str]:
    """Yield the address of a running server."""
    command = [sys.executable, "-m", "overt", "explore", "--no-browser", "--port", "0"]
    environment = os.environ | {"COLUMNS": "200"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[1].rstrip("/")
        process.terminate()


def first_view(chromium: Any, address: str, repeat: int = 5) -> Table:
    """Time from the click on an address to the first picture, with an empty cache."""
    table = Table(
        "The explorer's first picture (milliseconds)",
        ("panel", "median", "limit", "met"),
    )
    for panel in PANELS:
        times = []
        for _ in range(repeat):
            context = chromium.new_context()
            page = context.new_page()
            start = time.perf_counter()
            page.goto(f"{address}/#{panel}")
            page.wait_for_selector("figure svg")
            times.append(1000 * (time.perf_counter() - start))
            context.close()
        median = float(np.median(times))
        table.rows.append(
            (panel, f"{median:.0f}", FIRST_VIEW_MS, verdict(median <= FIRST_VIEW_MS))
        )
    return table


def slider(chromium: Any, address: str) -> Table:
    """Time from a slider's move to the new numbers and figures."""
    table = Table(
        "A slider's answer (milliseconds)", ("panel", "median", "limit", "met")
    )
    for panel in ("shrinkage", "landscape", "deep"):
        page = chromium.new_page()
        page.goto(f"{address}/#{panel}")
        page.wait_for_selector("figure svg")
        times = [page.evaluate(MOVE, str(value)) for value in (3, 4, 5, 6, 7)]
        median = float(np.median(times))
        table.rows.append(
            (panel, f"{median:.0f}", ANSWER_MS, verdict(median <= ANSWER_MS))
        )
        page.close()
    return table
