"""A server as users start it, and a browser to visit it, one of each for all tests."""

import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
QUIET = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="session")
def address(tmp_path_factory):
    """The address of a server that runs in a process of its own."""
    pytest.importorskip("dash", reason="the explorer needs dash")
    folder = tmp_path_factory.mktemp("explorer")
    command = [sys.executable, "-m", "overt", "explore", "--no-browser", "--port", "0"]
    with (folder / "errors").open("w") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True,
            env=os.environ | {"COLUMNS": "200"},
        )  # fmt: skip
    said = queue.Queue()
    threading.Thread(target=lambda: said.put(process.stdout.readline()), daemon=True).start()
    line = said.get(timeout=60)
    assert line.startswith("explorer: http://127.0.0.1:"), (folder / "errors").read_text()
    yield line.split()[1].rstrip("/")
    process.terminate()
    process.wait(timeout=20)
    process.stdout.close()
    assert (folder / "errors").read_text() == ""


@pytest.fixture(scope="session")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    with sync_api.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield chromium
        chromium.close()


class Visitor:
    """A tab with what a test does on a page; nothing may leave the machine or fail unseen."""

    def __init__(self, page, address):
        self.page, self.address = page, address
        self.outside, self.errors = [], []
        page.on("console", lambda m: m.type == "error" and self.errors.append(m.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._request)

    def _request(self, request):
        if not request.url.startswith((self.address + "/", "data:", "blob:")):
            self.outside.append(request.url)

    def open(self, path):
        self.page.goto(f"{self.address}/{path}")
        self.settled()
        return self.page

    def settled(self):
        """Wait until the page has been answered for what it shows."""
        self.page.wait_for_selector("form[data-settled=yes]")

    def fill(self, name, text):
        self.page.fill(f"#{name}", text)
        self.settled()

    def until(self, expression, argument=None, seconds=30):
        """Wait until a function of the page is true; asked from outside, as its policy wants."""
        end = time.monotonic() + seconds
        while not self.page.evaluate(expression, argument):
            assert time.monotonic() < end, expression
            self.page.wait_for_timeout(30)

    def value(self, name, text):
        """Wait until a field holds this text."""
        self.until("([name, text]) => document.getElementById(name).value === text", [name, text])
        self.settled()

    def finish(self, state="finished"):
        self.settled()
        self.page.wait_for_selector(f"form[data-state={state}]", timeout=60_000)
        self.settled()

    def numbers(self):
        """What the page shows as numbers, by name."""
        pairs = self.page.locator("#numbers dl > div").all()
        return {p.locator("dt").inner_text(): p.locator("dd").inner_text() for p in pairs}

    def rows(self, caption):
        table = self.page.locator("table", has=self.page.locator("caption", has_text=caption))
        return [row.locator("td").all_inner_texts() for row in table.locator("tbody tr").all()]

    def told(self, name, text):
        """Wait until a mistake is answered next to its field."""
        find = "([id, text]) => document.getElementById(id).textContent.includes(text)"
        self.until(find, [f"{name}-error", text])

    def error(self, name):
        return self.page.inner_text(f"#{name}-error")

    def code(self):
        return self.page.locator("#code").text_content()

    def figure(self, name):
        """The data that plotly.js drew, trace by trace."""
        self.page.wait_for_selector(f"#{name} .js-plotly-plot .main-svg")
        return self.page.evaluate(
            "name => document.querySelector('#' + name + ' .js-plotly-plot').data", name
        )


def tab(browser, address, **options):
    """A new tab; at the end nothing may have left the machine, and no error been logged."""
    context = browser.new_context(**options)
    context.set_default_timeout(30_000)
    visitor = Visitor(context.new_page(), address)
    yield visitor
    context.close()
    assert visitor.outside == []
    assert visitor.errors == []


@pytest.fixture
def visit(browser, address):
    yield from tab(browser, address, viewport={"width": 1280, "height": 900})


@pytest.fixture
def phone(browser, address):
    yield from tab(browser, address, viewport={"width": 390, "height": 844}, has_touch=True)


@pytest.fixture(scope="session")
def root():
    return Path(__file__).parents[2]


def pytest_runtest_protocol(item, nextitem):
    """Run a test in the browser a second time if it fails: a machine under load starves pages."""
    if "visit" not in item.fixturenames and "phone" not in item.fixturenames:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    if any(report.failed for report in reports):
        item._initrequest()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
