"""A verdict is earned: NaN, a typo or a missing module of ours never counts as "holds"."""

import math
import re

import numpy as np
import pytest
from typer.testing import CliRunner

import overt
from overt import InputError
from overt.cli import app
from overt.experiments import Finding
from overt.experiments.verdicts import together
from overt.theorems import Evidence, Theorem, verify


def statement(check, correction=None):
    return Theorem("made-up", "overt (new)", "Made up", "nothing", correction, check)


@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [
        (Evidence(0.0, 1e-10, "fine"), "holds"),
        (Evidence(math.nan, 1e-10, "not measured"), "fails"),
        (Evidence(0.0, 1e-10, "fine", printed=1.0), "holds"),
        (Evidence(0.0, 1e-10, "the correction is not needed", printed=0.0), "fails"),
        (Evidence(0.0, 1e-10, "the printed form was not measured", printed=math.nan), "error"),
    ],
)
def test_nan_does_not_count_as_evidence(evidence, verdict):
    (found,) = verify([statement(lambda scale, rng: evidence, "once printed otherwise")])
    assert found.verdict == verdict


@pytest.mark.parametrize("given", ["hold", "Holds", "yes", math.nan, 1.0, None, ""])
def test_a_misspelt_verdict_is_refused(given):
    with pytest.raises(InputError, match="one of holds, fails, inconclusive"):
        Finding("claim", given, "measured")
    with pytest.raises(InputError):
        together("holds", given)


@pytest.mark.parametrize(("given", "verdict"), [(True, "holds"), (np.False_, "fails")])
def test_a_truth_is_a_verdict(given, verdict):
    assert Finding("claim", given, "measured").verdict == verdict


@pytest.mark.parametrize(
    ("module", "verdict"),
    [("torch", "skipped"), ("overt.moved_away", "error"), ("scipy.no_such_part", "error")],
)
def test_only_an_optional_package_may_be_missing(module, verdict):
    def check(scale, rng):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    (found,) = verify([statement(check)])
    assert found.verdict == verdict
    assert module in found.detail


def test_a_card_shows_numbers_and_no_false_inequality():
    shown = CliRunner().invoke(app, ["verify", "algorithm-3", "--card"]).output
    assert re.search(r"verdict +holds \(residual \S+, tolerance 1e-07\)", shown)
    assert re.search(r"as printed +residual \S+: does not hold", shown)
    assert "<= 1e-" not in shown


@pytest.mark.parametrize("kind", [overt.results.Certificate, None])
def test_notebooks_show_what_text_shows(kind):
    if kind is None:
        model = overt.completion.DropoutCompletion(2, max_sweeps=2, seed=0)
        ratings, _ = overt.datasets.generate_ratings(60, 30, 600, seed=0)
        found = model.fit(ratings).recommend(0, n=3)
        assert "array(" not in found._repr_html_()
        assert str(found).splitlines()[-1].split()[0] in found._repr_html_()
    else:
        M = np.diag([2.0, 1.0])
        best = overt.LinearNetwork(M, 2, overt.Dropout(0.5)).solve()
        assert "lower_bound" in best.certificate._repr_html_()
