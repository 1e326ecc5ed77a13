"""A server as users start it, and a browser to visit it, one of each for all tests."""

import os
import queue
import shutil
import subprocess
import sys
import threading

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def address(tmp_path_factory):
    """The address of a server that runs in a process of its own."""
    folder = tmp_path_factory.mktemp("explorer")
    command = [sys.executable, "-m", "overt", "explore", "--no-browser", "--port", "0"]
    environment = os.environ | {"COLUMNS": "200"}
    with (folder / "errors").open("w") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        )
    lines = queue.Queue()
    threading.Thread(
        target=lambda: lines.put(process.stdout.readline()), daemon=True
    ).start()
    line = lines.get(timeout=60)
    assert line.startswith("explorer: http://127.0.0.1:"), (
        folder / "errors"
    ).read_text()
    yield line.split()[1].rstrip("/")
    process.terminate()
    process.wait(timeout=20)
    process.stdout.close()
    assert (folder / "errors").read_text() == ""


@pytest.fixture(scope="session")
def browser():
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed"
    )
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    with sync_api.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield chromium
        chromium.close()


class Visitor:
    """A tab whose errors and requests to other machines are collected."""

    def __init__(self, page, address):
        self.page = page
        self.address = address
        self.outside = []
        self.errors = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._request)

    def _console(self, message):
        if message.type == "error":
            self.errors.append(message.text)

    def _request(self, request):
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.outside.append(request.url)

    def open(self, path):
        self.page.goto(f"{self.address}/{path}")
        self.page.reload()  # another hash alone does not load the page anew
        self.page.wait_for_selector("figure svg")
        return self.page

    def number(self, name):
        """The value that stands below a name."""
        value = self.page.locator(f".numbers div:has(dt:text-is('{name}')) dd").first
        return float(value.text_content())

    def fill(self, label, text):
        self.page.get_by_label(label, exact=True).fill(text)


@pytest.fixture
def visit(browser, address):
    """Open a tab: visit(width=1280, scheme="light")."""
    contexts = []
    visitors = []

    def open_tab(width=1280, scheme="light", **options):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, **options
        )
        contexts.append(context)
        visitor = Visitor(context.new_page(), address)
        visitors.append(visitor)
        return visitor

    yield open_tab
    for context in contexts:
        context.close()
    for visitor in visitors:
        assert visitor.errors == []
        assert visitor.outside == []
