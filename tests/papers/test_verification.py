"""Verdicts are earned: every statement holds, and none can hold without evidence."""

import json
import math
from textwrap import dedent

import numpy as np
import pytest

from overt import InputError, MissingExtraError
from overt.papers import Evidence, Item, find, items, oracles, verify
from overt.papers.symbolic import IDENTITIES, check_identity
from overt.papers.verification import statements_in

STATEMENTS = {name: item for name, item in items().items() if item.check}


def made_up(check, printed=""):
    return Item(
        "made-up",
        "",
        "",
        "",
        "Made up",
        "Made up",
        "sampled",
        printed=printed,
        check=check,
    )


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_holds(name):
    (verdict,) = verify([name])
    assert verdict.verdict == "holds", verdict
    assert verdict.residual <= verdict.tolerance
    assert (verdict.printed_residual is not None) == bool(STATEMENTS[name].printed)
    json.dumps(verdict.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    "name", [name for name, item in STATEMENTS.items() if item.printed]
)
def test_the_form_of_the_paper_fails_against_the_same_oracle(name):
    (verdict,) = verify([name], seed=1)
    assert verdict.printed_residual > verdict.tolerance


@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [
        (Evidence(0.0, 1e-10, "fine"), "holds"),
        (Evidence(1e-9, 1e-10, "too far"), "fails"),
        (Evidence(math.nan, 1e-10, "not measured"), "fails"),
        (Evidence(0.0, 1e-10, "fine", printed=1.0), "holds"),
        (Evidence(0.0, 1e-10, "the correction is not needed", printed=0.0), "fails"),
        (
            Evidence(0.0, 1e-10, "the paper's form was not measured", printed=math.nan),
            "error",
        ),
        (Evidence(0.0, 1e-10, "the null fails", null=1.0), "holds"),
        (Evidence(0.0, 1e-10, "the null passes", null=0.0), "no power"),
        (Evidence(0.0, 1e-10, "the null was not measured", null=math.nan), "error"),
    ],
)
def test_a_verdict_follows_the_evidence(evidence, verdict):
    (found,) = verify([made_up(lambda rng: evidence)])
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("module", "verdict"),
    [
        ("torch", "not run"),
        ("overt.moved_away", "error"),
        ("scipy.no_such_part", "error"),
    ],
)
def test_only_an_optional_package_may_be_missing(module, verdict):
    def check(rng):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    (found,) = verify([made_up(check)])
    assert found.verdict == verdict
    assert module in found.detail


def test_a_missing_extra_is_named():
    def check(rng):
        raise MissingExtraError("torch", "torch")

    (found,) = verify([made_up(check)])
    assert (found.verdict, found.residual) == ("not run", None)
    assert "overt[torch]" in found.detail


def test_a_check_that_raises_is_an_error():
    (found,) = verify([made_up(lambda rng: 1 / 0)])
    assert found.verdict == "error"
    assert "ZeroDivisionError" in found.detail


def test_one_residual_that_is_nan_fails_a_check():
    def check(rng):
        yield 0.0
        yield math.nan
        yield 0.0
        return 1.0, "three residuals"

    (found,) = verify([made_up(check)])
    assert found.verdict == "fails"


def test_an_item_without_a_check_stands_for_those_that_decide_it():
    assert [v.id for v in verify(["dropout-theorem-2-3"])] == ["equalized-optimum"]
    with pytest.raises(InputError, match="overt reproduce dropout-fig1"):
        verify(["dropout-fig1"])
    with pytest.raises(InputError, match="it is not checked"):
        verify(["dropout-remark-5-1"])


def test_unknown_ids_are_refused():
    with pytest.raises(InputError, match="unknown item zzz"):
        verify(["path-norm", "zzz"])
    with pytest.raises(TypeError, match="list of names"):
        verify("path-norm")


def test_verdicts_are_reproducible_and_depend_on_the_seed():
    def residuals(seed):
        names = ["polar-complexity", "shallow-optimum", "characteristic-matrix"]
        return [{**v.to_dict(), "seconds": 0} for v in verify(names, seed=seed)]

    assert residuals(3) == residuals(3)
    assert residuals(3) != residuals(4)


@pytest.mark.parametrize("name", IDENTITIES)
def test_identities_hold_in_symbols(name):
    pytest.importorskip("sympy")
    assert check_identity(name)


@pytest.mark.parametrize(
    ("name", "oracle"),
    [
        ("units", "added_loss"),
        ("sensing", "sensing_added_loss"),
        ("deep", "deep_added_loss"),
    ],
)
def test_a_wrong_loss_breaks_an_identity(name, oracle, monkeypatch):
    pytest.importorskip("sympy")
    right = getattr(oracles, oracle)
    monkeypatch.setattr(oracles, oracle, lambda *given: 2 * right(*given))
    assert not check_identity(name)


OWN = """
import numpy as np
from overt.papers import Evidence, statement

@statement("a conjecture")
def {name}(rng):
    '''Squares.

    The square of a real number is {relation} zero.
    '''
    x = rng.standard_normal(100)
    return Evidence(float(np.max({residual})), 0.0, "100 numbers")
"""


def test_a_file_of_ones_own_is_run(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        OWN.format(name="squares_are_positive", relation="at least", residual="-(x**2)")
        + OWN.format(name="squares_are_negative", relation="at most", residual="x**2")
    )
    found = statements_in(str(path))
    assert [item.id for item in found] == [
        "squares-are-positive",
        "squares-are-negative",
    ]
    assert [v.verdict for v in verify(found)] == ["holds", "fails"]
    assert found[0].source == "a conjecture"


def test_a_file_without_statements_is_refused(tmp_path):
    path = tmp_path / "empty.py"
    path.write_text(dedent("x = 1\n"))
    with pytest.raises(InputError, match="no function with @overt"):
        statements_in(str(path))
    with pytest.raises(InputError, match="is not a Python file"):
        statements_in(str(tmp_path / "absent.py"))


def test_ids_may_be_items():
    assert [v.id for v in verify([find("path-norm")])] == ["path-norm"]
    assert np.isfinite(next(verify(["path-norm"])).seconds)
