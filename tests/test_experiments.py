"""Experiments: every claim holds at toy size, and rows survive interruption."""

import json
import math
import multiprocessing
import os
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from overt import InputError, experiments
from overt.cli import app
from overt.experiments import Experiment, Finding, record, runner
from overt.experiments.base import SIZES
from overt.experiments.verdicts import above, below, mean_interval, share_interval, together

FAILS = {"structured-fig4": ["at the same drop probability the original DropBlock is within 10"]}
"""Claims of the papers that the rows contradict at toy size, by how they begin."""


@pytest.mark.parametrize("name", experiments.IDS)
def test_what_the_command_does_at_toy_size(name, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    shown = CliRunner().invoke(app, ["reproduce", name, "--out", str(tmp_path)])
    summary = json.loads((tmp_path / f"{name}-toy.json").read_text(), parse_constant=pytest.fail)
    failed = [f["claim"] for f in summary["findings"] if f["verdict"] == "fails"]
    assert len(failed) == len(FAILS.get(name, []))
    assert all(map(str.startswith, failed, FAILS.get(name, [])))
    assert shown.exit_code == bool(failed), shown.output
    assert (tmp_path / f"{name}-toy.png").stat().st_size > 10_000
    for line in (tmp_path / f"{name}.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)
    experiment = experiments.find(name)
    assert {"toy", "paper"} <= set(experiment.grids) <= set(SIZES)
    assert len({tuple(grid) for grid in experiment.grids.values()}) == 1
    assert set(experiment.differs) <= set(experiment.grids)


def test_verdicts_come_from_intervals():
    assert [above(i, 1) for i in ((1.1, 2), (0, 0.9), (0.5, 1.5))] == [
        "holds", "fails", "inconclusive"]  # fmt: skip
    assert [below(i, 1) for i in ((1.1, 2), (0, 0.9), (0.5, 1.5))] == [
        "fails", "holds", "inconclusive"]  # fmt: skip
    assert together("holds", True) == "holds"
    assert together("holds", "inconclusive") == "inconclusive"
    assert together("inconclusive", np.False_) == "fails"
    assert mean_interval([3.0]) == (-math.inf, math.inf)
    low, high = mean_interval(np.arange(10.0))
    # Student's t at .975 with 9 degrees of freedom is 2.262.
    assert (high - low) / 2 == pytest.approx(2.262157 * np.std(np.arange(10), ddof=1) / 10**0.5)
    assert share_interval(0, 8)[0] == 0
    assert share_interval(0, 8)[1] == pytest.approx(1 - 0.025 ** (1 / 8))


def networks(full, parts, **axis):
    return {**axis, "full": [full] * 3, "parts": [parts] * 3, "visited": [parts[0]] * 3,
            "unseen": [parts[1]] * 3}  # fmt: skip


@pytest.mark.parametrize(("sign", "verdict"), [(1, "holds"), (-1, "fails")])
def test_claims_about_sub_networks_can_fail(sign, verdict):
    rows = [
        networks(0.9 + run / 1e3, [0.9 - lag * sign, 0.9 - lag * sign], width=w, drop_prob=0.5)
        for run in range(3)
        for w, lag in ((20, 0.2), (500, 0.01))
    ]
    gap = experiments.find("thesis-fig5-3").check(rows)[0]
    assert gap.verdict == verdict
    assert experiments.find("thesis-fig5-2").check(rows)[0].verdict == verdict
    alone = experiments.find("thesis-fig5-3").check(rows[:2])
    assert {f.verdict for f in alone} == {"inconclusive"}


def test_no_run_thrown_out_does_not_show_that_some_are():
    row = {"jump_step": [1600] * 8, "final_missing": [4.8] * 8, "diverged": 0, "collapsed": 0,
           "below": 8, "returned": 0}  # fmt: skip
    *_, last = experiments.find("jumps-fig4").check([row])
    assert last.verdict == "inconclusive"
    *_, last = experiments.find("jumps-fig4").check([{**row, "diverged": 3}])
    assert last.verdict == "holds"


def test_absent_data_are_an_error_that_says_what_to_provide(monkeypatch, tmp_path):
    monkeypatch.setenv("OVERT_DATA", str(tmp_path))
    for name, wanted in (("thesis-fig4-1", "MovieLens 100k"), ("thesis-table6-1", "mnist.npz")):
        with pytest.raises(InputError, match=f"{name} on .*{wanted}"):
            experiments.run(experiments.find(name), size="reduced")
    monkeypatch.delenv("OVERT_DATA")
    with pytest.raises(InputError, match=r"thesis-table6-1 on mnist: no data folder.*OVERT_DATA"):
        experiments.run(experiments.find("thesis-table6-1"), size="reduced")


def test_a_part_of_the_data_does_not_stand_for_all_of_it(monkeypatch, tmp_path):
    pytest.importorskip("torch")
    monkeypatch.setenv("OVERT_DATA", str(tmp_path))
    few = {name: np.zeros((5, 32, 32, 3)[: 4 if name[0] == "x" else 1], dtype=np.uint8)
           for name in ("x_train", "y_train", "x_test", "y_test")}  # fmt: skip
    np.savez(tmp_path / "cifar10.npz", **few)
    with pytest.raises(InputError, match="all of cifar10, 10,000 images to test on; it has 5"):
        experiments.run(experiments.find("thesis-table6-2"), size="paper")


def counting_experiment(calls):
    def run(params, seed):
        calls.append(params["x"])
        return {"square": params["x"] ** 2, "seed": seed}

    return Experiment(
        id="counting",
        title="Counting",
        source="none",
        claim="squares are squares",
        grids={"toy": {"x": [1, 2, 3]}, "paper": {"x": [1, 2, 3, 4]}},
        run=run,
        check=lambda rows: [Finding("squares", all(r["square"] == r["x"] ** 2 for r in rows), "")],
        plot=lambda rows: None,
    )


def test_rows_are_not_computed_twice(tmp_path):
    calls = []
    experiment = counting_experiment(calls)
    first = experiments.run(experiment, size="toy", out=tmp_path)
    again = experiments.run(experiment, size="paper", out=tmp_path)
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
        experiments.run(experiment, size="paper", out=tmp_path, on_row=interrupt)
    experiments.run(experiment, size="paper", out=tmp_path)
    assert calls == [1, 2, 3, 4]


def test_an_interrupt_gives_up_the_rows_of_other_processes(tmp_path):
    def interrupt(done, total):
        if done == 1:
            raise KeyboardInterrupt

    experiment = experiments.find("jumps-fig3")
    with pytest.raises(KeyboardInterrupt):
        experiments.run(experiment, n_jobs=2, out=tmp_path, on_row=interrupt)
    assert not multiprocessing.active_children()
    assert len((tmp_path / "jumps-fig3.jsonl").read_text().splitlines()) == 1


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
    summary = json.loads((tmp_path / "counting-toy.json").read_text())
    assert summary["findings"][0]["verdict"] == "holds"


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


def drawn(rows):
    from matplotlib.figure import Figure

    return Figure()


def test_all_is_resumed_and_what_is_absent_is_listed(tmp_path):
    pytest.importorskip("matplotlib")
    calls = []
    good = replace(counting_experiment(calls), plot=drawn)

    def lacks(params, seed):
        raise InputError("OVERT_DATA must hold moon.npz")

    bad = replace(good, id="lacking", run=lacks)
    seen = []
    absent = record.run_all([good, bad], "reduced", tmp_path, on_row=lambda *row: seen.append(row))
    assert absent == {"lacking": "lacking: OVERT_DATA must hold moon.npz"}
    assert seen[-1][:2] == (6, 6)
    record.run_all([good], "paper", tmp_path)
    assert calls == [1, 2, 3, 4]
    (entry,) = record.entries([good, bad], tmp_path)
    assert (entry.size, entry.counts) == ("paper", "1 holds")
    text = record.write_page([good, bad], tmp_path, absent).read_text()
    assert all(part in text for part in ("moon.npz", "counting", "data:image/png;base64"))


def test_two_records_are_compared(tmp_path):
    good = counting_experiment([])
    wrong = replace(good, run=lambda params, seed: {"square": 7})
    for name, experiment in (("old", good), ("same", good), ("new", wrong)):
        experiments.run(experiment, out=tmp_path / name)
    assert list(record.compare([good], tmp_path / "old", tmp_path / "same")) == []
    changed = list(record.compare([good], tmp_path / "old", tmp_path / "new"))
    assert changed == [("counting", "squares", "holds:  (toy)", "fails:  (toy)")]
    with pytest.raises(InputError, match="not a folder"):
        list(record.compare([good], tmp_path / "old", tmp_path / "none"))


def test_a_misspelt_name_is_answered_with_the_nearest():
    with pytest.raises(
        InputError, match=r"unknown experiment dropout-fg1; did you mean .*dropout-fig1"
    ):
        experiments.find("dropout-fg1")
