"""Experiments: every claim holds at toy size, and rows survive interruption."""

import json
import math
import os
import signal
import time
from dataclasses import replace

import numpy as np
import pytest

from overt import InputError, experiments
from overt.experiments import Experiment, Finding, runner

# The others are run by the tests of the package that they belong to.
LINEAR = [
    name for name in experiments.IDS if name.startswith(("dropout", "structured", "thesis-fig3"))
]


@pytest.mark.parametrize(
    "name", [name for name in LINEAR if name not in ("structured-fig2", "structured-fig4")]
)
def test_claims_hold_at_toy_size(name, tmp_path):
    experiment = experiments.find(name)
    rows = experiments.run(experiment, size="toy", out=tmp_path)
    findings, picture = experiments.report(experiment, "toy", rows, tmp_path)
    assert findings
    assert all(finding.holds for finding in findings), findings
    assert picture.stat().st_size > 10_000
    assert set(experiment.grids) >= {"toy", "full"}
    assert set(experiment.grids["toy"]) == set(experiment.grids["full"])


def counting_experiment(calls):
    def run(params, seed):
        calls.append(params["x"])
        return {"square": params["x"] ** 2, "seed": seed}

    return Experiment(
        id="counting",
        title="Counting",
        source="none",
        claim="squares are squares",
        grids={"toy": {"x": [1, 2, 3]}, "full": {"x": [1, 2, 3, 4]}},
        run=run,
        check=lambda rows: [Finding("squares", all(r["square"] == r["x"] ** 2 for r in rows), "")],
        plot=lambda rows: None,
    )


def test_rows_are_not_computed_twice(tmp_path):
    calls = []
    experiment = counting_experiment(calls)
    first = experiments.run(experiment, size="toy", out=tmp_path)
    again = experiments.run(experiment, size="full", out=tmp_path)
    assert calls == [1, 2, 3, 4]
    assert [row["square"] for row in again] == [1, 4, 9, 16]
    assert again[:3] == first


def test_an_interrupted_run_continues(tmp_path):
    calls = []
    experiment = counting_experiment(calls)

    def interrupt(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        experiments.run(experiment, size="full", out=tmp_path, on_row=interrupt)
    experiments.run(experiment, size="full", out=tmp_path)
    assert calls == [1, 2, 3, 4]


def test_a_row_is_not_stored_from_a_trainer_that_was_interrupted(tmp_path):
    def run(params, seed):
        try:
            if params["x"] == 2:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(5)
        except KeyboardInterrupt:
            return {"square": None}
        return {"square": params["x"] ** 2}

    experiment = replace(counting_experiment([]), run=run)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        experiments.run(experiment, size="toy", out=tmp_path)
    assert signal.getsignal(signal.SIGINT) is before
    lines = (tmp_path / "counting.jsonl").read_text().splitlines()
    assert [json.loads(line)["row"]["square"] for line in lines] == [1]


def test_a_line_cut_off_by_a_kill_is_computed_again(tmp_path):
    calls = []
    experiment = counting_experiment(calls)
    experiments.run(experiment, size="toy", out=tmp_path)
    path = tmp_path / "counting.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    rows = experiments.run(experiment, size="toy", out=tmp_path)
    assert calls == [1, 2, 3, 3]
    assert [row["square"] for row in rows] == [1, 4, 9]
    assert experiments.run(experiment, size="toy", out=tmp_path) == rows
    assert len(calls) == 4


def test_rows_say_where_they_were_computed(tmp_path):
    experiments.run(counting_experiment([]), out=tmp_path)
    entry = json.loads((tmp_path / "counting.jsonl").read_text().splitlines()[0])
    assert {"overt", "python", "numpy", "cores"} <= set(entry["machine"])


def test_a_foreign_file_is_not_overwritten(tmp_path):
    (tmp_path / "counting.jsonl").write_text("my shopping list\n")
    with pytest.raises(InputError, match="line 1"):
        experiments.run(counting_experiment([]), out=tmp_path)
    assert (tmp_path / "counting.jsonl").read_text() == "my shopping list\n"


def test_processes_do_not_change_the_rows(tmp_path):
    experiment = experiments.find("dropout-fig1")
    alone = experiments.run(experiment, n_jobs=1)
    together = experiments.run(experiment, n_jobs=2)
    for a, b in zip(alone, together, strict=True):
        a.pop("seconds"), b.pop("seconds")
        assert a == b


def test_rows_of_numpy_are_the_same_fresh_and_stored(tmp_path):
    measured = {
        "holds": np.True_,
        "count": np.int64(3),
        "gone": np.float32("nan"),
        "curve": np.array([1.0, np.nan, np.inf]),
        "nested": {"shares": (np.float64(0.25), [np.nan])},
    }
    experiment = replace(counting_experiment([]), run=lambda params, seed: measured)
    (fresh, *_), (stored, *_) = (experiments.run(experiment, out=tmp_path) for _ in range(2))
    for row in (fresh, stored):
        assert (row["holds"], row["count"], row["nested"]["shares"][0]) == (True, 3, 0.25)
        assert type(row["holds"]) is bool
        np.testing.assert_array_equal(row["curve"], [1.0, np.nan, np.nan])
        assert math.isnan(row["gone"])
        assert math.isnan(row["nested"]["shares"][1][0])
    text = (tmp_path / "counting.jsonl").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text


def test_findings_hold_plain_truths(tmp_path):
    figure = pytest.importorskip("matplotlib.figure").Figure
    experiment = replace(
        counting_experiment([]),
        check=lambda rows: [Finding("squares", np.True_, "all")],
        plot=lambda rows: figure(),
    )
    findings, _ = experiments.report(experiment, "toy", experiments.run(experiment), tmp_path)
    assert findings[0].holds is True
    assert json.loads((tmp_path / "counting-toy.json").read_text())["findings"][0]["holds"] is True


def test_seeds_depend_on_the_named_axes_only():
    experiment = counting_experiment([])
    assert experiment.seed({"x": 1}) == experiment.seed({"x": 1})
    assert experiment.seed({"x": 1}) != experiment.seed({"x": 2})
    assert experiment.key({"a": 1, "b": 2}) == experiment.key({"b": 2, "a": 1})


def test_bad_requests_are_refused():
    with pytest.raises(InputError, match="dropout-fig1"):
        experiments.find("nothing")
    with pytest.raises(InputError, match="size"):
        experiments.run(counting_experiment([]), size="huge")
    with pytest.raises(InputError, match="n_jobs"):
        experiments.run(counting_experiment([]), n_jobs=0)


def test_a_missing_dependency_is_named():
    import dataclasses

    experiment = dataclasses.replace(counting_experiment([]), needs={"no_such_module": "torch"})
    with pytest.raises(ImportError, match=r"overt\[torch\]"):
        experiments.run(experiment)


def test_machine_facts_are_plain():
    assert json.loads(json.dumps(runner.machine_facts()))["numpy"] == np.__version__
