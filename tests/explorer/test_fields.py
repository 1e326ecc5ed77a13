from html.parser import HTMLParser

import pytest

from overt.explorer.fields import read_fields
from overt.explorer.panels import PANELS

FIELDS = {(p.name, f.name): f for p in PANELS.values() for f in p.fields}
HOSTILE = '"><script>alert(1)</script>'


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


@pytest.mark.parametrize("panel", PANELS.values(), ids=lambda p: p.name)
def test_defaults_are_read_without_a_message(panel):
    values, messages = read_fields(panel.fields, {})
    assert messages == {}
    assert list(values) == [field.name for field in panel.fields]


@pytest.mark.parametrize("key", FIELDS, ids="-".join)
def test_hostile_text_stays_text(key):
    tags = Tags(FIELDS[key].html(HOSTILE))
    assert all(tag != "script" for tag, _ in tags.found)
    controls = [a for tag, a in tags.found if a.get("name") == key[1]]
    assert len(controls) == 1
    assert all(not name.startswith("on") for _, a in tags.found for name in a)


@pytest.mark.parametrize("key", FIELDS, ids="-".join)
def test_every_control_has_a_label_and_a_place_for_mistakes(key):
    tags = Tags(FIELDS[key].html(FIELDS[key].default)).found
    ids = {a["id"] for _, a in tags if "id" in a}
    labels = {a["for"] for tag, a in tags if tag == "label"}
    for tag, a in tags:
        if tag in ("input", "select", "textarea"):
            assert a.get("id") in labels or a.get("aria-label")
            assert set(a.get("aria-describedby", "").split()) <= ids
    assert key[1] + "-error" in ids


@pytest.mark.parametrize("given", [None, 3, "x", ["a"], {"drop_prob": None}, {"drop_prob": [1]}])
def test_forged_states_are_answered(given):
    fields = PANELS["shrinkage"].fields
    values, messages = read_fields(fields, given)
    assert set(values) | set(messages) == {field.name for field in fields}


@pytest.mark.parametrize(
    ("panel", "name", "text", "message"),
    [
        ("shrinkage", "drop_prob", "nan", "number from 0 to 0.99"),
        ("shrinkage", "drop_prob", "1", "number from 0 to 0.99"),
        ("shrinkage", "drop_prob", HOSTILE, "got '\"><script>"),
        ("shrinkage", "width", "8.5", "whole number from 1 to 512"),
        ("shrinkage", "width", "9" * 5000, "whole number"),
        ("shrinkage", "values", "", "finite numbers"),
        ("shrinkage", "values", "1 nan", "finite"),
        ("shrinkage", "values", "1 -2", "from 0"),
        ("shrinkage", "values", "0 0", "above 0"),
        ("shrinkage", "values", "1 " * 501, "at most 500"),
        ("shrinkage", "values", "1" * 30_000, "at most 20000 characters"),
        ("shrinkage", "noise", "__import__('os')", "one of Dropout"),
        ("landscape", "starts", "1 2 3", "pairs"),
        ("landscape", "starts", "1 1e9", "pairs"),
        ("landscape", "starts", "1 2\n" * 11, "at most 10"),
    ],
)
def test_bad_texts_are_answered_next_to_their_field(panel, name, text, message):
    _, messages = read_fields(PANELS[panel].fields, {name: text})
    assert list(messages) == [name]
    assert message in messages[name]
    assert len(messages[name]) < 200


def test_values_come_out_as_they_are_meant():
    given = {"values": "[1, 3;2]\n0.5", "rank": " ", "noise": "DropBlock", "block_size": "4"}
    values, messages = read_fields(PANELS["shrinkage"].fields, given)
    assert messages == {}
    assert values["values"] == [3, 2, 1, 0.5]
    assert values["rank"] is None
    assert values["block_size"] == 4
    starts = read_fields(PANELS["landscape"].fields, {"starts": "0.1 2; -1,3\n"})[0]["starts"]
    assert starts == [(0.1, 2.0), (-1.0, 3.0)]


def test_a_field_that_does_not_matter_takes_its_default():
    values, messages = read_fields(PANELS["shrinkage"].fields, {"block_size": "wrong"})
    assert messages == {}
    assert values["block_size"] == 2
