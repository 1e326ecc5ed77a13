"""Every panel in a real browser, by mouse and by keyboard, its numbers against the library's."""

import csv

import numpy as np
import pytest

import overt
from overt.explorer.figures import numbers, shown
from overt.explorer.panels import PANELS

HOSTILE = '<img src=x onerror="document.title=1">'
SHORT = {
    "landscape": "steps=400&starts=0.2+1.6",
    "training": "outputs=6&inputs=5&rank=2&width=4&steps=500&seeds=2",
    "jumps": "width=5&steps=300&quiet_steps=100&seeds=3",
    "completion": "n_factors=2",
}


def keys(page, *names):
    for name in names:
        page.keyboard.press(name)


def executed(visit):
    """Run the lines that the page shows."""
    names = {}
    exec(compile(visit.code(), "<page>", "exec"), names)  # noqa: S102
    return names


def solved(values, width, drop_prob):
    net = overt.LinearNetwork(np.diag(sorted(values)), width, overt.Dropout(drop_prob))
    return net.solve()


def check_shrinkage(visit, values, drop_prob, width=8):
    best, told = solved(values, width, drop_prob), visit.numbers()
    assert told["Objective"] == shown(best.objective)
    assert told["Rank of the optimum"] == str(best.rank)


FOCUS = """() => [...document.querySelectorAll('a, button, input, select, textarea, [tabindex]')]
  .filter(e => !e.disabled && e.offsetParent !== null || e.id === 'draw')
  .map(e => ({
    order: e.tabIndex,
    what: e.outerHTML.slice(0, 80),
    name: e.getAttribute('aria-label') || [...(e.labels || [])].map(l => l.innerText).join(' ')
      || e.innerText,
  }))"""

CONTRAST = """() => {
  const rgb = text => text.match(/[\\d.]+/g).map(Number);
  const light = c => { const [r, g, b] = c.map(v => v / 255).map(
    v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  const found = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    const typed = ['INPUT', 'TEXTAREA', 'SELECT'].includes(e.tagName);
    if (!(own || typed) || e.disabled || !e.getClientRects().length) continue;
    if (['SCRIPT', 'STYLE', 'OPTION'].includes(e.tagName) || e.closest('.gl-container')) continue;
    const style = getComputedStyle(e), svg = e.namespaceURI.endsWith('svg');
    const front = rgb(svg ? style.fill : style.color), back = svg ? [255, 255, 255] : behind(e);
    const [a, b] = [light(front), light(back)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05), size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) found.push([e.outerHTML.slice(0, 90), ratio]);
  }
  return found;
}"""


def check_focus(visit, panel):
    """Tab goes through the page as it is read."""
    page, reached = visit.page, []
    while page.evaluate("document.activeElement.id") != "copy":
        keys(page, "Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
        assert len(reached) < 60
    assert reached[:6] == ["A"] * 6  # to the controls, and to the five panels
    names = [field.name for field in PANELS[panel].fields]
    assert [name for name in reached if name in names] == [
        name for name in names if page.locator(f"#{name}").is_visible()
    ]


def check_readable(visit):
    """A page fits a phone, its text stands out, and everything on it has a name."""
    page = visit.page
    page.wait_for_selector(".js-plotly-plot .main-svg")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate(CONTRAST) == []
    places = page.evaluate(FOCUS)
    assert all(place["order"] <= 0 for place in places)
    assert [place["what"] for place in places if not place["name"].strip()] == []
    assert page.locator("h1").count() == page.locator("main").count() == 1
    assert page.get_attribute("html", "lang") == "en"


def test_shrinkage_by_mouse(visit):
    page = visit.open("shrinkage?values=4+3+2+1")
    check_shrinkage(visit, [4, 3, 2, 1], 0.5)
    slider = page.get_by_label("Drop probability, slider")
    box = slider.bounding_box()
    page.mouse.click(box["x"] + 0.8 * box["width"], box["y"] + box["height"] / 2)
    visit.settled()
    drop_prob = float(page.input_value("#drop_prob"))
    assert 0.7 < drop_prob < 0.9
    check_shrinkage(visit, [4, 3, 2, 1], drop_prob)
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + box["height"] / 2)
    visit.until("text => location.search.includes(text)", f"drop_prob={drop_prob}")

    board = page.locator("#draw").bounding_box()  # draw a line that falls to the right
    page.mouse.move(board["x"] + 0.05 * board["width"], board["y"] + 0.1 * board["height"])
    page.mouse.down()
    for part in np.linspace(0.05, 0.95, 12):
        page.mouse.move(board["x"] + part * board["width"], board["y"] + part * board["height"])
    page.mouse.up()
    visit.settled()
    drawn = [float(word) for word in page.input_value("#values").split()]
    assert len(drawn) == 4
    assert drawn == sorted(drawn, reverse=True)
    check_shrinkage(visit, drawn, drop_prob)
    assert visit.figure("spectrum")[0]["y"] == pytest.approx(drawn)

    page.select_option("#noise", "DropBlock")
    visit.settled()
    assert page.locator("#block_size").is_visible()
    assert "Dropout and DropConnect only" in visit.error("rank")
    net = overt.LinearNetwork(np.diag(drawn), 8, overt.DropBlock(drop_prob, 2))
    assert visit.numbers()["Objective"] == shown(net.solve().certificate.lower_bound)


def test_shrinkage_by_keyboard(phone):
    visit = phone
    page = visit.open("shrinkage?values=4+3+2+1&rank=")
    check_focus(visit, "shrinkage")
    page.get_by_label("Drop probability, slider").focus()
    keys(page, "ArrowRight", "ArrowRight")
    visit.settled()
    assert page.input_value("#drop_prob") == "0.52"
    check_shrinkage(visit, [4, 3, 2, 1], 0.52)
    page.focus("#draw")
    keys(page, "ArrowRight", "PageUp", "ArrowDown", "Insert", "End", "Delete")
    visit.settled()
    drawn = [float(word) for word in page.input_value("#values").split()]
    assert drawn[0] == 4
    assert drawn[1] == drawn[2] > 3
    assert drawn[3] == 2
    assert len(drawn) == 4
    assert page.get_attribute("#draw", "aria-valuetext") == f"value 4 of 4: {drawn[3]:g}"
    check_shrinkage(visit, drawn, 0.52)
    page.focus("#values")
    keys(page, "Control+a")
    page.keyboard.type("3, 2; 1 0.1")
    page.focus("#width")
    keys(page, "Control+a", "3", "Tab")
    visit.settled()
    check_shrinkage(visit, [3, 2, 1, 0.1], 0.52, 3)
    page.focus("#noise")
    keys(page, "d", "d")  # as in any list: Dropout, DropBlock, DropConnect
    page.focus("#rank")
    page.keyboard.type("2")
    visit.settled()
    wanted = overt.drop_prob_for_rank(np.diag([3, 2, 1, 0.1]), 3, 2)
    if page.input_value("#noise") != "DropBlock":
        assert visit.numbers()["Drop probability for rank 2"] == shown(wanted)
    check_readable(visit)


def test_bad_input_is_answered_next_to_its_field(visit):
    page = visit.open("shrinkage?drop_prob=0.3")
    before = visit.numbers()
    visit.fill("drop_prob", "lots")
    assert "number from 0 to 0.99, got 'lots'" in visit.error("drop_prob")
    assert page.get_attribute("#drop_prob", "aria-invalid") == "true"
    assert "drop_prob-error" in page.get_attribute("#drop_prob", "aria-describedby")
    assert visit.numbers() == before
    visit.fill("drop_prob", "0.3")
    assert visit.error("drop_prob") == ""
    assert page.get_attribute("#drop_prob", "aria-invalid") is None
    visit.fill("rank", "99")
    assert "must be one of 1, 2" in visit.error("rank")


def test_uploads_of_a_spectrum(visit, tmp_path):
    page = visit.open("shrinkage")
    np.save(tmp_path / "matrix.npy", np.diag([3.0, 5.0, 1.0]))
    page.set_input_files("#file", tmp_path / "matrix.npy")
    visit.value("values", "5 3 1")
    check_shrinkage(visit, [5, 3, 1], 0.5)
    assert "matrix.npy" in page.inner_text("#note")
    for name, data, message in [
        ("wrong.npy", b"\x93NUMPY nonsense", "header cannot be read"),
        ("nan.csv", b"1\nnan\n", "NaN"),
        ("huge.csv", b"1\n" * 1_500_000, "at most 2 MB, got 2.9 MB"),
        (HOSTILE.replace("/", "") + ".csv", b"hello\nworld", "line 2"),
    ]:
        (tmp_path / name).write_bytes(data)
        page.set_input_files("#file", tmp_path / name)
        visit.told("values", message)
        assert page.input_value("#values") == "5 3 1"
    assert page.title() == "Shrinkage - overt explore"


def test_a_link_brings_the_view_back(visit):
    page = visit.open("shrinkage")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit.fill("values", "3 2 1")
    visit.fill("width", "5")
    page.select_option("#noise", "DropConnect")
    visit.settled()
    visit.until("location.search.includes('DropConnect')")
    told, link = visit.numbers(), page.url
    page.click("#copy")
    visit.until("async text => (await navigator.clipboard.readText()) === text", visit.code())
    page.click("#link")
    visit.until("async text => (await navigator.clipboard.readText()) === text", link)
    page.click("nav a >> text=Rank jumps")
    page.wait_for_selector("form[data-settled=yes]")
    page.click("nav a >> text=Shrinkage")  # the way back leads to what was left
    page.wait_for_selector("form[data-settled=yes]")
    assert page.url == link
    assert visit.numbers() == told


def test_landscape_by_mouse(visit):
    page = visit.open(f"landscape?{SHORT['landscape']}")
    visit.figure("map")
    plot = page.locator("#map .nsewdrag").first.bounding_box()
    page.mouse.click(plot["x"] + 0.25 * plot["width"], plot["y"] + 0.3 * plot["height"])
    visit.until("document.getElementById('starts').value.split('\\n').length === 2")
    visit.finish()
    start = [float(word) for word in page.input_value("#starts").split("\n")[1].split()]
    assert start[0] < 0 < start[1]
    assert "Finished" in page.inner_text("#status")
    names = executed(visit)
    rows = visit.rows("Where the runs are")
    assert [row[3] for row in rows] == [shown(v) for v in names["last"]["objective"]]
    trail = visit.figure("map")[2]
    assert (trail["x"][0], trail["y"][0]) == tuple(start)
    assert trail["x"][-1] == pytest.approx(names["last"]["places"][1][0], rel=1e-5)
    net = overt.TiedAutoencoder(np.array([[2.0]]), 2, overt.Dropout(0.5))
    assert visit.numbers()["Least objective"] == shown(net.solve().objective)


def test_a_click_near_a_saddle_starts_where_the_pointer_was(visit):
    page = visit.open(f"landscape?{SHORT['landscape']}")
    visit.figure("map")
    plot = page.locator("#map .nsewdrag").first.bounding_box()
    extent = 1.3 * 2**0.5  # the map shows [-extent, extent]^2; (1, 0) is a saddle
    x, y = 1.06, 0.05
    page.mouse.click(
        plot["x"] + (x + extent) / (2 * extent) * plot["width"],
        plot["y"] + (extent - y) / (2 * extent) * plot["height"],
    )
    visit.until("document.getElementById('starts').value.split('\\n').length === 2")
    start = [float(word) for word in page.input_value("#starts").split("\n")[1].split()]
    assert start == pytest.approx([x, y], abs=0.02)  # a pixel is .008


def test_landscape_by_keyboard(phone):
    visit = phone
    page = visit.open(f"landscape?{SHORT['landscape']}")
    check_focus(visit, "landscape")
    page.focus("#starts")
    keys(page, "Control+a")
    page.keyboard.type("1 1")
    page.focus("#learning_rate")
    keys(page, "Enter")
    visit.finish()
    names = executed(visit)
    rows = visit.rows("Where the runs are")
    assert len(rows) == 1
    assert rows[0][1:3] == [shown(v) for v in names["last"]["places"][0]]
    kinds = [row[3] for row in visit.rows("Critical points")]
    assert kinds == [point[3] for point in names["points"]]
    check_readable(visit)


def test_training_by_mouse_with_pause_step_and_stop(visit):
    page = visit.open(
        "training?steps=1000000&seeds=10&outputs=60&inputs=60&width=60&learning_rate=1e-5"
    )
    page.click("#run")
    page.wait_for_selector("form[data-state=running]")
    page.click("#pause")
    visit.finish("paused")
    done = "document.getElementById('progress').value"
    visit.until(f"{done} > 0")
    at = -1.0
    for _ in range(20):  # the page looks twice a second; frames under way may still arrive
        before, at = at, page.evaluate(done)
        if at == before:
            break
        page.wait_for_timeout(1000)
    assert at == before
    page.click("#step")
    visit.until(f"at => {done} > at", at)
    assert page.inner_text("#pause") == "Resume"
    page.click("#pause")
    visit.finish("running")
    page.click("#stop")
    visit.finish("stopped")
    assert "Stopped at" in page.inner_text("#status")
    assert page.locator("#stop").is_disabled()
    told = visit.numbers()
    assert int(told["Step"].replace(",", "")) < 1_000_000


def test_training_by_keyboard(phone):
    visit = phone
    page = visit.open(f"training?{SHORT['training']}")
    check_focus(visit, "training")
    page.focus("#run")
    keys(page, "Enter")
    visit.finish()
    names, told = executed(visit), visit.numbers()
    assert told["Step"] == "500"
    assert told["Optimum"] == shown(names["best"]["optimum"])
    assert told["Mean objective"] == shown(names["objective"][:, -1].mean())
    assert told["Mean gap"] == shown(names["gap"][:, -1].mean())
    first = names["records"][-1]["importance"]
    scores = [v for v in visit.figure("importance")[0]["y"] if v is not None]
    assert scores[len(names["records"]) - 1] == pytest.approx(first[0], rel=1e-5)
    rng = np.random.default_rng(0)
    M = rng.standard_normal((6, 2)) @ rng.standard_normal((2, 5)) / 2
    net = overt.LinearNetwork(M, 4, overt.Dropout(0.5))
    assert told["Optimum"] == shown(net.solve().certificate.lower_bound)
    page.focus("#learning_rate")
    keys(page, "Control+a", "1")
    visit.settled()
    keys(page, "Enter")
    visit.finish("failed")
    assert "too large" in visit.error("learning_rate")
    check_readable(visit)


def test_jumps_by_mouse_and_by_keyboard(phone):
    visit = phone
    page = visit.open(f"jumps?{SHORT['jumps']}")
    check_focus(visit, "jumps")
    page.select_option("#schedule", "periodic")
    visit.settled()
    assert page.locator("#periods").is_visible()
    assert not page.locator("#quiet_steps").is_visible()
    page.click("#run")
    visit.finish()
    names = executed(visit)
    assert visit.figure("survival")[1]["y"] == numbers(names["surviving"])
    page.get_by_label("Depth (layers), slider").focus()
    keys(page, "ArrowRight")
    visit.settled()
    page.focus("#seed")
    keys(page, "Enter")
    visit.finish()
    names, told = executed(visit), visit.numbers()
    assert "depth=4" in visit.code()
    assert told["Runs that jumped to rank 1"] == f"{sum(names['jump_step'] >= 0)} of 3"
    assert told["Rank 2 has a minimum below"] == shown(names["first"]["exists"][1])
    rows = visit.rows("Minima by rank")
    assert [(row[0], row[2]) for row in rows] == [
        (str(m.rank), shown(m.loss)) for m in names["first"]["minima"]
    ]
    second = [v for v in visit.figure("singular")[1]["y"] if v is not None]
    assert second[-1] == pytest.approx(names["runs"][-1]["s"][-1, 1], rel=1e-5)
    check_readable(visit)


def test_completion_by_mouse(visit, tmp_path):
    pytest.importorskip("duckdb")
    page = visit.open(f"completion?{SHORT['completion']}")
    (tmp_path / "wrong.csv").write_text("this is no ratings file\n")
    page.set_input_files("#file", tmp_path / "wrong.csv")
    visit.told("data", "no usable line")
    assert page.input_value("#data") == "sample"
    rng = np.random.default_rng(0)
    lines = [
        f"{HOSTILE}{i},=item{j},{rng.integers(1, 6)}"
        for i in range(15)
        for j in range(0, 12, 1 + i % 2)
    ]
    (tmp_path / "ratings.csv").write_text("\n".join(lines))
    page.set_input_files("#file", tmp_path / "ratings.csv")
    visit.until("document.getElementById('data').value !== 'sample'")
    visit.settled()
    assert visit.numbers()["Ratings"] == f"{len(lines)}"
    assert visit.numbers()["Rows x columns"] == "15 x 12"
    page.click("#run")
    visit.finish()
    visit.fill("row", f"{HOSTILE}1")
    assert page.inner_text("caption").startswith(f"Row {HOSTILE}1:")
    assert page.title() == "Completion - overt explore"
    best = visit.rows("best of what it has not rated")[0]
    with page.expect_download() as download:
        page.click("text=Download the completed entries")
    with open(download.value.path(), encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == 15 * 12 - len(lines)
    line = next(t for t in table if t["row"] == f"{HOSTILE}1" and t["column"] == "'" + best[0])
    assert [line["prediction"], line["low_90"], line["high_90"]] == best[1:]
    visit.fill("row", "nobody")
    assert "must be a row of the data" in visit.error("row")
    page.click("#sample")
    visit.settled()
    assert page.input_value("#data") == "sample"


def test_completion_by_keyboard(phone):
    visit = phone
    page = visit.open(f"completion?{SHORT['completion']}")
    check_focus(visit, "completion")
    page.focus("#row")
    page.keyboard.type("7")
    keys(page, "Enter")
    visit.finish()
    names, told = executed(visit), visit.numbers()
    assert told["Learned drop probability"] == shown(names["fit"]["drop_prob"])
    assert told["Held-out RMSE"] == shown(names["fit"]["rmse"])
    assert visit.figure("errors")[0]["y"] == numbers([error for _, error in names["path"]])
    mean = names["fit"]["mean"][7]
    best = visit.rows("Row 7")[0]
    assert best[1] == shown(mean[int(best[0])])
    assert best[2] == shown(names["low"][7, int(best[0])])
    check_readable(visit)
