"""The explorer and the article as a visitor meets them, in a real browser."""

import http.client
import re
import subprocess
import sys
import time
from urllib.parse import urlsplit

import numpy as np
import pytest

import overt
from overt.explorer import PAGES, render

PANELS = ("shrinkage", "landscape", "deep", "own", "training", "jumps")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_one_file_that_needs_no_network(page):
    text = render(page)
    loaded = re.findall(r"""(?:src|href)=["']([^"'$]+)""", text)
    assert [link for link in loaded if not link.startswith(("data:", "#"))] in (
        ["article.html"],
        ["index.html"],
    )
    assert "<!-- style -->" not in text
    assert "<!-- scripts -->" not in text


def test_an_unknown_page_is_refused():
    with pytest.raises(
        overt.InputError, match=r"one of index\.html, article\.html, got 'no'"
    ):
        render("no")


@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")]
)
def test_every_panel_shows_pictures_and_fits(visit, width, scheme):
    visitor = visit(width, scheme)
    for panel in PANELS:
        page = visitor.open(f"#{panel}")
        assert page.locator("figure svg").count() >= 1
        assert page.locator(".verdict").text_content()
        excess = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert excess <= 0, panel
    page = visitor.open("article.html")
    assert page.locator(".panel").count() == len(PANELS)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_moving_the_drop_probability_moves_the_optimum(visit):
    visitor = visit()
    visitor.open("#shrinkage")
    for p in (0.5, 0.2):
        visitor.fill("Drop probability", str(p))
        s = [5, 4, 3, 2.5, 2, 1.5, 1, 0.5]
        best = overt.LinearNetwork(np.diag(s), 8, overt.Dropout(p)).solve()
        assert visitor.number("Objective") == pytest.approx(best.objective, rel=1e-5)
        assert visitor.number("Rank of the optimum") == best.rank


def test_a_bound_that_no_network_may_attain_is_not_called_the_optimum(visit):
    visitor = visit()
    page = visitor.open("#shrinkage?noise=DropBlock&blockSize=4&dropProb=0.3")
    assert "lower bound" in page.locator(".verdict").text_content()
    assert page.get_by_text("Rank of the optimum").count() == 0


def test_the_python_lines_compute_what_the_page_shows(visit):
    visitor = visit()
    for panel in PANELS:
        page = visitor.open(f"#{panel}")
        lines = page.locator("pre code").text_content()
        assert len(lines.splitlines()) <= 5
        if panel in ("training", "jumps"):
            lines = re.sub(
                r"steps=\d+|constant\(\d+", lambda m: re.sub(r"\d+", "20", m[0]), lines
            )
        names = {}
        exec(lines, names)  # noqa: S102
        if panel in ("shrinkage", "deep"):
            shown = visitor.number("Objective")
            assert names["best"].objective == pytest.approx(shown, rel=1e-5)


def test_a_click_starts_a_run_at_the_pointer_and_not_on_the_saddle_beside_it(visit):
    visitor = visit()
    page = visitor.open("#landscape?seed=3")
    before = page.get_by_label("Start u₁", exact=True).input_value()
    # The picture keeps its place once fonts are loaded and a frame was drawn.
    page.evaluate("document.fonts.ready.then(() => new Promise(requestAnimationFrame))")
    box = page.locator("figure").bounding_box()
    ratio = box["width"] / 640
    extent = 1.35 * 2**0.5
    # The saddle is at (1, 0); the click goes to (1.08, 0.1).
    x = 62 + (1.08 + extent) / (2 * extent) * (640 - 16 - 62)
    y = 596 - (0.1 + extent) / (2 * extent) * (596 - 34)
    # A person holds the button for some frames, in which the run that is on draws the picture anew.
    page.get_by_role("button", name="Run", exact=True).click()
    page.mouse.move(box["x"] + x * ratio, box["y"] + y * ratio)
    page.mouse.down()
    page.wait_for_timeout(150)
    page.mouse.up()
    field = page.get_by_label("Start u₁", exact=True)
    sync_api = pytest.importorskip("playwright.sync_api")
    sync_api.expect(field).not_to_have_value(before)
    start = [
        float(page.get_by_label(f"Start u{i}", exact=True).input_value()) for i in "₁₂"
    ]
    assert start == pytest.approx([1.08, 0.1], abs=0.02)
    # 4/3 is the minimum, 2 the saddle; the step noise of the run leaves it near the minimum.
    page.wait_for_function(
        """() => {
            const term = [...document.querySelectorAll("dt")]
                .find((node) => node.textContent === "Objective of the run");
            return Number(term.nextSibling.textContent) < 1.6;
        }""",
        timeout=30_000,
    )


def test_a_start_with_a_weight_of_zero_is_explained(visit):
    page = visit().open("#landscape?u1=1&u2=0")
    assert "stays 0" in page.locator(".verdict").text_content()


def test_training_comes_down_on_the_exact_line(visit):
    visitor = visit()
    page = visitor.open("#training")
    page.wait_for_function(
        """() => {
            const term = [...document.querySelectorAll("dt")]
                .find((node) => node.textContent === "Relative gap");
            return Math.abs(Number(term.nextSibling.textContent)) < 0.02;
        }""",
        timeout=60_000,
    )
    best = overt.LinearNetwork(np.diag([3, 2, 1.2, 0.6]), 8, overt.Dropout(0.5)).solve()
    assert visitor.number("Optimum") == pytest.approx(best.objective, rel=1e-5)


@pytest.mark.parametrize(
    ("panel", "label", "text", "message"),
    [
        ("shrinkage", "Singular values of the target", "1 two", "1 to 40 numbers"),
        ("shrinkage", "Width (hidden units)", "2.5", "a whole number from 1 to 64"),
        ("shrinkage?noise=DropBlock", "Block size", "3", "must divide the width, 8"),
        ("own", "Covariance of the masks", "1 2", "a square matrix"),
        ("own", "Covariance of the masks", "1 2;3 1", "symmetric; this matrix is not"),
        (
            "own",
            "Covariance of the masks",
            "1 2;2 1",
            "no negative eigenvalue; this one has -1",
        ),
    ],
)
def test_mistakes_are_answered_beside_the_field(visit, panel, label, text, message):
    visitor = visit()
    page = visitor.open(f"#{panel}")
    visitor.fill(label, text)
    assert message in page.locator(".error:visible").text_content()
    assert page.get_by_label(label, exact=True).get_attribute("aria-invalid") == "true"


def test_the_address_holds_the_view(visit):
    visitor = visit()
    page = visitor.open("#deep")
    visitor.fill("Drop probability", "0.25")
    shown = visitor.number("Objective")
    assert page.url.endswith("#deep?dropProb=0.25")
    again = visit()
    again.open(page.url.partition("/#")[2].join(["#", ""]))
    assert again.number("Objective") == shown


def test_the_keyboard_reaches_a_slider_and_moves_it(visit):
    visitor = visit()
    page = visitor.open("#shrinkage")
    before = visitor.number("Objective")
    page.get_by_label("Drop probability, slider").focus()
    page.keyboard.press("ArrowRight")
    assert visitor.number("Objective") > before


@pytest.mark.parametrize("kind", ["SVG", "PNG"])
def test_a_figure_is_saved(visit, kind, tmp_path):
    visitor = visit(accept_downloads=True)
    page = visitor.open("#shrinkage")
    with page.expect_download() as waiting:
        page.get_by_label(f"Save spectrum as {kind}").click()
    path = tmp_path / "figure"
    waiting.value.save_as(path)
    head = path.read_bytes()[:8]
    assert head == b"\x89PNG\r\n\x1a\n" if kind == "PNG" else head.startswith(b"<svg")


def test_projector_mode_enlarges_the_text(visit):
    page = visit().open("#shrinkage")
    size = "parseFloat(getComputedStyle(document.querySelector('.intro')).fontSize)"
    before = page.evaluate(size)
    page.get_by_role("button", name="Projector").click()
    assert page.evaluate(size) > 1.2 * before


@pytest.mark.parametrize(
    ("method", "path", "host", "status"),
    [
        ("GET", "/", "127.0.0.1", 200),
        ("HEAD", "/article.html", "localhost:1", 200),
        ("GET", "/", "evil.example", 403),
        ("GET", "/no", "localhost", 404),
        ("GET", "/../secrets", "localhost", 404),
        ("POST", "/", "localhost", 501),
    ],
)
def test_only_this_machine_is_answered(address, method, path, host, status):
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=10)
    connection.request(method, path, headers={"Host": host})
    assert connection.getresponse().status == status
    connection.close()


def test_a_port_in_use_is_named(address):
    port = urlsplit(address).port
    command = [
        sys.executable,
        "-m",
        "overt",
        "explore",
        "--no-browser",
        "--port",
        str(port),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert f"port {port} of 127.0.0.1 cannot be used" in " ".join(done.stderr.split())


def test_ctrl_c_ends_the_server():
    command = [sys.executable, "-m", "overt", "explore", "--no-browser", "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert "http://" in process.stdout.readline()
    time.sleep(0.2)
    process.send_signal(2)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert errors == ""
