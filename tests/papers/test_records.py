"""Every item of the papers has one record, and a record says no more than it can."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from overt import InputError
from overt.papers import PAPERS, find, items, oracles, statement
from overt.papers.records import ANSWERS, HOW, UNCHECKED
from overt.papers.symbolic import IDENTITIES

ITEMS = items()


def numbers(kind, *parts):
    return {f"{kind} {part}" for part in parts}


NUMBERED = {
    "implicit_bias": numbers("Algorithm", 1, 2, 3)
    | numbers("Equation", 3)
    | numbers("Definition", 2.1, 3.2, 4.2)
    | numbers("Figure", 1, 2, 3)
    | numbers("Lemma", 4.1, "A.1", "A.2", "A.3", "D.1", "D.2", "D.3")
    | numbers("Remark", 2.5, 3.1, 3.5, 5.1, 5.2)
    | numbers("Theorem", 2.2, 2.3, 2.4, 3.3, 3.4, 3.6, 4.3),
    "structured": numbers("Algorithm", 1)
    | numbers("Equation", 3, 7, 16)
    | numbers("Definition", 2.4)
    | numbers("Figure", *range(1, 7))
    | numbers("Lemma", 2.1, 2.2, 3.1)
    | numbers("Corollary", 2.8, 3.2, 4.2)
    | numbers("Proposition", 3.3)
    | numbers("Section", 5.3)
    | numbers("Theorem", 2.3, 2.5, 2.6, 2.7, 4.1),
    "one_way_jumps": numbers("Figure", *range(1, 5))
    | numbers("Lemma", "A.1", "C.1", "C.2", "D.1", "D.6", "D.7", "D.8")
    | numbers("Proposition", 3.1, 3.2, 3.3, "D.2", "D.3", "F.1")
    | numbers("Proposition", *(f"A.{i}" for i in range(1, 8)))
    | numbers("Remark", 2.1)
    | numbers("Section", 2.2)
    | numbers("Theorem", 3.1, 3.2, "B.1", "B.2", "D.4", "D.5", "E.1", "E.2"),
    "thesis": numbers("Algorithm", *range(1, 7))
    | numbers("Assumption", 1, 2, 3)
    | numbers("Corollary", *range(1, 6))
    | numbers("Definition", *range(1, 8))
    | numbers("Equation", 6.7)
    | numbers("Figure", "1-1", "2-1", "2-2", "2-3", "3-1", "3-2", "3-3", "4-1", "4-2")
    | numbers("Figure", "5-1", "5-2", "5-3", "6-1", "6-2")
    | numbers("Lemma", *range(1, 23))
    | numbers("Proposition", 1, 2, 3, 4, 5, 6, 8)
    | numbers("Remark", *range(1, 8))
    | numbers("Section", "1.1.1", 4.2, 4.4, 5.3, "6.5.3")
    | numbers("Table", "4-I", "6-I", "6-II")
    | numbers("Theorem", *range(1, 8), *range(9, 23)),
}
"""What the papers number; the thesis has no Proposition 7 and calls Theorem 8 Proposition 8."""

SENTENCES = {"implicit_bias": 4, "structured": 4, "one_way_jumps": 6, "thesis": 13}
"""Claims that stand in the text without a number, at least this many of each paper."""


@pytest.mark.parametrize("paper", NUMBERED)
def test_every_numbered_item_of_a_paper_has_one_record(paper):
    labels = Counter(item.label for item in ITEMS.values() if item.paper == paper)
    assert NUMBERED[paper] - set(labels) == set()
    assert [label for label, count in labels.items() if count > 1] == []
    # Unnumbered sentences are labelled by their section, or by the figure that decides them.
    others = [
        label
        for label in set(labels) - NUMBERED[paper]
        if re.search(r"[Ss]ection|Facts", label)
    ]
    assert len(others) >= SENTENCES[paper]


def test_all_items_of_the_audit_have_a_record():
    assert sum(map(len, NUMBERED.values())) + sum(SENTENCES.values()) == 215


@pytest.mark.parametrize("name", ITEMS)
def test_a_record_is_complete(name):
    item = ITEMS[name]
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", item.id)
    assert item.how in (*HOW, *UNCHECKED)
    assert set(item.by) <= set(ITEMS)
    decided = item.check or item.figure or item.by
    if item.how in ("not checked", "cited", "open"):
        assert not decided
        assert item.open or item.printed or item.how != "not checked", "say why"
    elif item.answer:
        assert item.by
        assert item.answer != "open"
    else:
        assert decided
    assert bool(item.identity) == (item.how == "symbolic")
    assert item.identity in (*IDENTITIES, "")
    for text in (item.title, item.claim, item.assumes, item.printed, item.open):
        assert text == " ".join(text.split())
        assert not re.search(r"(?<!e\.g)\.$", text) or text.endswith("...")


@pytest.mark.parametrize("name", [name for name, item in ITEMS.items() if item.check])
def test_a_statement_is_set_in_valid_tex(name):
    to_mathml = pytest.importorskip("docutils.utils.math.latex2mathml").tex2mathml
    tex = ITEMS[name].tex
    inline, displayed = re.split(r"\\\[", tex)[0], re.findall(r"\\\[(.*?)\\\]", tex)
    prose, formulas = inline.split("$")[::2], inline.split("$")[1::2]
    assert formulas or displayed, "a statement has a formula"
    assert len(prose) == len(formulas) + 1
    assert not [part for part in prose if re.search(r"(?<!\\)[_^&%#]|[<>|=]", part)]
    for formula in (*formulas, *displayed):
        assert "<math" in to_mathml(formula)


def test_only_the_papers_of_the_list_have_items():
    assert {item.paper for item in ITEMS.values()} == set(PAPERS)


def test_an_answered_question_names_its_check_and_a_part_says_what_remains():
    asked = [item for item in ITEMS.values() if item.answer]
    assert len(asked) == 42
    for item in asked:
        assert bool(item.by) == (item.answer != "open")
        assert bool(item.open) or item.answer != "part"
        assert item.answer in ANSWERS


def test_proved_is_said_only_of_all_sizes():
    for item in ITEMS.values():
        if item.how != "formal":
            assert not re.search(r"\bproved\b", item.title), item.id
    assert "proved" in HOW["formal"]


@pytest.mark.parametrize("name", ["oracles", "descent"])
def test_oracles_share_no_code_with_what_they_grade(name):
    tree = ast.parse(
        (Path(oracles.__file__).parent / f"{name}.py").read_text(encoding="utf-8")
    )
    imported = {
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
    }
    ours = {module for module in imported if module.split(".")[0] == "overt"}
    assert ours <= {"overt._check", "overt.papers.oracles", "overt.papers.evidence"}


def test_an_unknown_id_is_answered_with_the_nearest():
    with pytest.raises(
        InputError, match=r"unknown item path-nrm; did you mean path-norm"
    ):
        find("path-nrm")
    with pytest.raises(InputError, match="unknown item 3"):
        find(3)


def test_an_id_is_recorded_once():
    def path_norm(rng):
        """A title.

        A claim.
        """

    with pytest.raises(InputError, match="path-norm"):
        statement()(path_norm)


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("", "title and a claim"),
        ("Only a title.", "title and a claim"),
        ("A title.\n\nA claim.\n\nBecause: so.", "Assumes, Printed, Open, TeX, Proof"),
    ],
)
def test_a_page_that_cannot_be_read_is_refused(page, message):
    def unread(rng):
        raise AssertionError

    unread.__doc__ = page
    with pytest.raises(InputError, match=message):
        statement()(unread)


def test_latex_has_the_theorem_its_assumption_and_its_correction():
    text = find("dropconnect").to_latex()
    for part in (
        r"\begin{theorem}[Structured dropout, Theorem 4.1]\label{dropconnect}",
        r"\operatorname{diag}(C)",
        r"\begin{remark}In the paper: C = E[x x'] stands",
    ):
        assert part in text
    assert r"Assume: E[x x'] = I." in find("path-norm").to_latex()


def test_every_statement_of_our_own_has_a_proof_that_latex_can_set():
    own = [item for item in items().values() if item.paper == "beyond" and item.check]
    assert len(own) >= 19
    for item in own:
        assert rf"\begin{{proof}}{item.proof}\end{{proof}}" in item.to_latex()
        assert item.proof.count("$") % 2 == 0
        assert item.proof.count("{") == item.proof.count("}")
        # Outside of formulas nothing needs to be escaped.
        words = re.sub(r"\$[^$]*\$|\\mathtt\{drop\\_prob\}", "", item.proof)
        assert not set("_^#%&") & set(words)
