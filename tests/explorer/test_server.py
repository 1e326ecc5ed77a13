"""What the server answers to whom, without a browser."""

import json
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from urllib.parse import quote, urlsplit

import pytest

pytest.importorskip("dash", reason="the explorer needs dash")

from werkzeug.test import EnvironBuilder, run_wsgi_app

from overt.explorer.jobs import Jobs
from overt.explorer.panels import PANELS
from overt.explorer.server import create_app

OUTPUTS = [(name, "children") for name in ("numbers", "plots", "tables", "lines")]
OUTPUTS += [("answer", "data")]
HERE = {"Origin": "http://localhost"}
HOSTILE = '"><script>alert(1)</script>'


def body(ask):
    return {
        "output": ".." + "...".join(f"{i}.{p}" for i, p in OUTPUTS) + "..",
        "outputs": [{"id": i, "property": p} for i, p in OUTPUTS],
        "inputs": [{"id": "ask", "property": "data", "value": ask}],
        "changedPropIds": ["ask.data"],
        "state": [],
    }


@pytest.fixture(scope="module")
def client():
    jobs = Jobs(running=1)
    yield create_app(jobs).test_client()
    jobs.close()


def ask(client, panel, fields=None, command="", job=""):
    given = {"n": 1, "panel": panel, "fields": fields or {}, "command": command, "job": job}
    response = client.post("/_dash-update-component", json=body(given), headers=HERE)
    assert response.status_code == 200
    return response.json["response"]


def reply(answer):
    return answer["answer"]["data"]


@pytest.mark.parametrize("panel", PANELS)
def test_pages_say_what_the_address_says(client, panel):
    field = PANELS[panel].fields[-1].name
    page = client.get(f"/{panel}?{field}={quote(HOSTILE)}").text
    assert "&quot;&gt;&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page
    assert f"<h1>{PANELS[panel].title}</h1>" in page


def test_the_first_panel_is_home(client):
    assert "<h1>Shrinkage</h1>" in client.get("/").text
    assert client.get("/nothing").status_code == 404


@pytest.mark.parametrize("panel", PANELS.values(), ids=lambda p: p.name)
def test_theory_pages_exist(client, panel, root):
    assert (root / "docs" / f"{panel.page}.md").exists()
    with client.get(f"/docs/{panel.page}") as response:
        assert response.status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "../pyproject.toml",
        "..%2fpyproject.toml",
        "theory/../../pyproject",
        "/etc/passwd",
        "conf.py",
    ],
)
def test_documentation_does_not_lead_elsewhere(client, path):
    assert client.get(f"/docs/{path}").status_code == 404


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:8050", 200),
        ("127.0.0.1:8050", 200),
        ("[::1]:8050", 200),
        ("192.168.1.7:8050", 200),
        ("[::1", 403),
        ("::1:80", 403),
        ("127.0.0.1@evil.example", 403),
        ("evil.example", 403),
        ("localhost.evil.example:8050", 403),
        ("127.0.0.1.evil.example", 403),
    ],
)
def test_names_of_others_are_refused(client, host, status):
    """A name that someone else controls could be made to point here (DNS rebinding)."""
    asked = EnvironBuilder(headers={"Host": host}).get_environ()
    assert run_wsgi_app(client.application, asked)[1].startswith(str(status))


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost", 200),
        (None, 403),
        ("null", 403),
        ("http://evil.example", 403),
        ("http://localhost:9999", 403),
        ("http://localhost.evil.example", 403),
    ],
)
@pytest.mark.parametrize("path", ["/_dash-update-component", "/upload/values", "/upload/data"])
def test_posts_from_other_sites_are_refused(client, path, origin, status):
    headers = {} if origin is None else {"Origin": origin}
    given = json.dumps(body({"panel": "shrinkage"}))
    response = client.post(path, data=given, content_type="application/json", headers=headers)
    assert response.status_code == status


@pytest.mark.parametrize(
    "given",
    [
        {},
        [],
        {"output": "x"},
        body(None),
        body({"panel": "nothing"}),
        body({"panel": ["a"]}),
        body({"panel": "shrinkage", "command": "rm"}),
        body({"panel": "shrinkage", "command": ["run"]}),
        body({"panel": "shrinkage", "command": {}}),
        body({"panel": "__class__"}),
    ],
)
def test_forged_requests_are_refused_and_do_no_harm(client, given, caplog):
    response = client.post("/_dash-update-component", json=given, headers=HERE)
    assert response.status_code in (400, 500)
    assert "Traceback" not in response.text
    assert reply(ask(client, "shrinkage"))["messages"] == {}


@pytest.mark.parametrize("fields", [3, [], {"drop_prob": {}}, {"width": 8}, {"values": None}])
def test_forged_fields_are_answered(client, fields):
    assert reply(ask(client, "shrinkage", fields))["job"] == ""


def test_a_job_of_another_panel_or_visitor_is_not_shown(client):
    started = reply(ask(client, "landscape", {"steps": "40"}, "run"))
    other = reply(ask(client, "jumps", {}, "stop", started["job"]))
    assert other["status"] is None
    assert reply(ask(client, "landscape", {"steps": "40"}, "stop", "guess"))["status"] is None


def test_large_bodies_are_refused(client):
    for path in ("/_dash-update-component", "/upload/values", "/upload/data"):
        data = b"1 " * 1_100_000
        response = client.post(path, data=data, content_type="application/json", headers=HERE)
        assert response.status_code == 413


def test_uploads_answer_with_values_or_a_reason(client):
    def upload(name, data):
        return client.post(f"/upload/{name}", data=data, headers=HERE)

    assert upload("values", b"1 3 2").json["value"] == "3 2 1"
    assert "plain text" in upload("values", b"\0").json["error"]
    assert "3 fields" in upload("data", b"hello").json["error"]
    assert upload("other", b"1").status_code in (404, 405)


def test_there_is_nothing_to_download_without_a_job(client):
    assert client.get("/completed/.csv").status_code == 404
    assert client.get("/completed/guess.csv").status_code == 404


def test_ratings_that_are_gone_are_asked_for_again(client):
    answer = reply(ask(client, "completion", {"data": "0123456789abcdef"}))
    assert "upload the file again" in answer["messages"]["data"]


def test_the_library_answers_next_to_the_field(client):
    answer = reply(ask(client, "shrinkage", {"noise": "DropBlock", "width": "7"}))
    assert list(answer["messages"]) == ["block_size"]
    answer = reply(ask(client, "jumps", {"learning_rate": "1", "weight_decay": "0.4"}))
    assert answer["messages"] == {}


def test_the_browser_may_load_nothing_from_elsewhere(client):
    headers = client.get("/").headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "script-src 'self' 'sha256-" in policy
    assert "unsafe-eval" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    page = client.get("/").text
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page


def test_ten_visitors_do_not_block_one_another(address):
    """Ten long computations run or wait, and ten pages are answered meanwhile."""

    def post(given):
        connection = HTTPConnection(urlsplit(address).netloc, timeout=60)
        headers = {"Content-Type": "application/json", "Origin": address}
        connection.request("POST", "/_dash-update-component", json.dumps(body(given)), headers)
        answer = reply(json.load(connection.getresponse())["response"])
        connection.close()
        return answer

    fields = {"steps": "200000", "seeds": "10", "outputs": "60", "inputs": "60", "width": "60"}
    long = {"panel": "training", "fields": fields | {"learning_rate": "1e-5"}}
    with ThreadPoolExecutor(10) as visitors:
        started = list(visitors.map(post, [long | {"command": "run"}] * 10))
        quick = [{"panel": "shrinkage", "fields": {"drop_prob": f"0.{k}"}} for k in range(10)]
        answers = list(visitors.map(post, quick))
        looks = [long | {"command": "look", "job": answer["job"]} for answer in started]
        states = [answer["status"]["state"] for answer in visitors.map(post, looks)]
        stops = [long | {"command": "stop", "job": answer["job"]} for answer in started]
        stopped = [answer["status"]["state"] for answer in visitors.map(post, stops)]
    assert len({answer["job"] for answer in started}) == 10
    assert all(answer["messages"] == {} for answer in answers)
    assert set(states) <= {"running", "waiting"}
    assert "waiting" in states
    assert set(stopped) == {"stopped"}
