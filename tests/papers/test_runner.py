"""Figures: rows survive interruption, say where they come from, and their claims can fail."""

import json
import math
import multiprocessing
import os
import signal
import time
import warnings
from dataclasses import replace

import numpy as np
import pytest

from overt import InputError
from overt.papers import Figure, Finding, find, items, report, run
from overt.papers.figures import (
    SIZES,
    above,
    below,
    mean_interval,
    share_interval,
    together,
)
from overt.papers.overview import figures_of
from overt.papers.rows import machine_facts, read_rows
from overt.papers.runner import OtherCodeWarning

FIGURES = {figure.id: figure for figure in figures_of(items().values())}

FAILS = {
    "dropout-fig3": ["the variance of |u_i||v_i| falls monotonically"],
    "structured-fig4": [
        "at the same drop probability the original DropBlock is within 10"
    ],
    "thesis-fig4-2": ["plain inputs: all networks fit the training labels"],
    "thesis-fig6-2": ["by the reflected log-softmax, the rule of section 6.5.3"],
}
"""Claims of the papers that the rows contradict at toy size, by how they begin."""


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_at_toy_size(name, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    figure = FIGURES[name]
    rows = run(figure, size="toy", out=tmp_path)
    findings, picture = report(figure, "toy", rows, tmp_path)
    failed = [finding.claim for finding in findings if finding.verdict == "fails"]
    assert len(failed) == len(FAILS.get(name, []))
    assert all(map(str.startswith, failed, FAILS.get(name, [])))
    assert picture.stat().st_size > 10_000
    json.loads((tmp_path / f"{name}-toy.json").read_text(), parse_constant=pytest.fail)
    for line in (tmp_path / f"{name}.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)
    assert {"toy", "paper"} <= set(figure.sizes) <= set(SIZES)
    assert set(figure.differs) <= set(figure.sizes)


@pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)
def test_settings_are_distinct(figure):
    for size in figure.sizes:
        keys = [figure.key(params) for params in figure.settings(size)]
        assert len(keys) == len(set(keys)) > 0


def test_verdicts_come_from_intervals():
    intervals = ((1.1, 2), (0, 0.9), (0.5, 1.5))
    assert [above(i, 1) for i in intervals] == ["holds", "fails", "inconclusive"]
    assert [below(i, 1) for i in intervals] == ["fails", "holds", "inconclusive"]
    assert together("holds", True) == "holds"
    assert together("holds", "inconclusive") == "inconclusive"
    assert together("inconclusive", np.False_) == "fails"
    assert mean_interval([3.0]) == (-math.inf, math.inf)
    low, high = mean_interval(np.arange(10.0))
    # Student's t at .975 with 9 degrees of freedom is 2.262.
    assert (high - low) / 2 == pytest.approx(
        2.262157 * np.std(np.arange(10), ddof=1) / 10**0.5
    )
    assert share_interval(0, 8)[0] == 0
    assert share_interval(0, 8)[1] == pytest.approx(1 - 0.025 ** (1 / 8))


@pytest.mark.parametrize("given", ["hold", "Holds", "yes", math.nan, 1.0, None, ""])
def test_a_misspelt_verdict_is_refused(given):
    with pytest.raises(InputError, match="one of holds, inconclusive, fails"):
        Finding("claim", given, "measured")
    with pytest.raises(InputError):
        together("holds", given)


@pytest.mark.parametrize(("given", "verdict"), [(True, "holds"), (np.False_, "fails")])
def test_a_truth_is_a_verdict(given, verdict):
    assert Finding("claim", given, "measured").verdict == verdict


def networks(full, parts, **axis):
    return {
        **axis,
        "full": [full] * 3,
        "parts": [parts] * 3,
        "visited": [parts[0]] * 3,
        "unseen": [parts[1]] * 3,
    }


@pytest.mark.parametrize(("sign", "verdict"), [(1, "holds"), (-1, "fails")])
def test_claims_about_sub_networks_can_fail(sign, verdict):
    rows = [
        networks(
            0.9 + run / 1e3,
            [0.9 - lag * sign, 0.9 - lag * sign],
            width=w,
            drop_prob=0.5,
        )
        for run in range(3)
        for w, lag in ((20, 0.2), (500, 0.01))
    ]
    gap, *_ = FIGURES["thesis-fig5-3"].findings(rows)
    assert gap.verdict == verdict
    assert FIGURES["thesis-fig5-2"].findings(rows)[0].verdict == verdict


def test_claims_about_a_trunk_can_fail():
    spectrum = [1.0, 0.8, 0.5, 0.2, 0.1] * 2
    row = {
        "data": "digits",
        "objective": 0.51,
        "bound": 0.5,
        "exact": [0.9, 0.51],
        "spectrum": spectrum,
        "best_spectrum": spectrum,
    }
    figure = FIGURES["structured-fig2"]
    assert all(f.verdict == "holds" for f in figure.findings([row]))
    assert figure.findings([{**row, "exact": [0.495]}])[0].verdict == "fails"
    assert figure.findings([{**row, "spectrum": [0.2] * 10}])[1].verdict == "fails"


JUMPS = {
    "jump_step": [1600] * 8,
    "final_missing": [4.8] * 8,
    "diverged": 0,
    "collapsed": 0,
    "below": 8,
    "returned": 0,
}


@pytest.mark.parametrize(
    ("collapsed", "verdict"), [(8, "fails"), (4, "inconclusive"), (0, "holds")]
)
def test_runs_that_fall_to_rank_0_do_not_reproduce_a_figure(collapsed, verdict):
    printed = {**JUMPS, "convention": "loss", "collapsed": collapsed}
    first, *_ = FIGURES["jumps-fig4"].findings([JUMPS, printed])
    assert "printed weight decay" in first.claim
    assert first.verdict == verdict


def test_absent_data_are_an_error_that_says_what_to_provide(monkeypatch, tmp_path):
    pytest.importorskip("torch")
    monkeypatch.setenv("OVERT_DATA", str(tmp_path))
    for name, wanted in (
        ("thesis-fig4-1", "MovieLens 100k"),
        ("thesis-table6-1", "mnist.npz"),
    ):
        with pytest.raises(InputError, match=f"{name} on .*{wanted}"):
            run(FIGURES[name], size="reduced")
    monkeypatch.delenv("OVERT_DATA")
    with pytest.raises(
        InputError, match=r"thesis-table6-1 on mnist: no data folder.*OVERT_DATA"
    ):
        run(FIGURES["thesis-table6-1"], size="reduced")


def test_a_part_of_the_data_does_not_stand_for_all_of_it(monkeypatch, tmp_path):
    pytest.importorskip("torch")
    monkeypatch.setenv("OVERT_DATA", str(tmp_path))
    images = np.zeros((5, 32, 32, 3), dtype=np.uint8)
    classes = np.zeros(5, dtype=np.uint8)
    np.savez(
        tmp_path / "cifar10.npz",
        x_train=images,
        y_train=classes,
        x_test=images,
        y_test=classes,
    )
    with pytest.raises(
        InputError, match="all of cifar10, 10,000 images to test on; it has 5"
    ):
        run(FIGURES["thesis-table6-2"], size="paper")


def counting_figure(calls):
    def square(params, seed):
        calls.append(params["x"])
        return {"square": params["x"] ** 2, "seed": seed}

    return Figure(
        id="counting",
        title="Counting",
        claim="squares are squares",
        sizes={
            "toy": {"x": [1, 2, 3]},
            "paper": [{"x": [1, 2, 3]}, {"x": 4, "slow": True}],
        },
        run=square,
        check=lambda rows: [
            Finding("squares", all(r["square"] == r["x"] ** 2 for r in rows), "")
        ],
        plot=lambda rows: None,
    )


def test_rows_are_not_computed_twice(tmp_path):
    calls = []
    figure = counting_figure(calls)
    first = run(figure, size="toy", out=tmp_path)
    again = run(figure, size="paper", out=tmp_path)
    assert calls == [1, 2, 3, 4]
    assert [row["square"] for row in again] == [1, 4, 9, 16]
    assert again[:3] == first


def test_an_interrupted_run_continues(tmp_path):
    calls = []
    figure = counting_figure(calls)

    def interrupt(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(figure, size="paper", out=tmp_path, on_row=interrupt)
    run(figure, size="paper", out=tmp_path)
    assert calls == [1, 2, 3, 4]


def test_an_interrupt_gives_up_the_rows_of_other_processes(tmp_path):
    def interrupt(done, total):
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(FIGURES["jumps-fig3"], n_jobs=2, out=tmp_path, on_row=interrupt)
    assert not multiprocessing.active_children()
    assert len((tmp_path / "jumps-fig3.jsonl").read_text().splitlines()) == 1


def test_a_row_is_not_stored_from_a_trainer_that_was_interrupted(tmp_path):
    def trainer(params, seed):
        try:
            if params["x"] == 2:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(5)
        except KeyboardInterrupt:
            return {"square": None}
        return {"square": params["x"] ** 2}

    figure = replace(counting_figure([]), run=trainer)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(figure, size="toy", out=tmp_path)
    assert signal.getsignal(signal.SIGINT) is before
    lines = (tmp_path / "counting.jsonl").read_text().splitlines()
    assert [json.loads(line)["row"]["square"] for line in lines] == [1]


def test_a_line_cut_off_by_a_kill_is_computed_again(tmp_path):
    calls = []
    figure = counting_figure(calls)
    run(figure, size="toy", out=tmp_path)
    path = tmp_path / "counting.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    rows = run(figure, size="toy", out=tmp_path)
    assert calls == [1, 2, 3, 3]
    assert [row["square"] for row in rows] == [1, 4, 9]
    assert run(figure, size="toy", out=tmp_path) == rows
    assert len(calls) == 4


def test_rows_say_where_by_which_code_and_from_which_data_they_come(
    tmp_path, monkeypatch
):
    data = tmp_path / "data"
    data.mkdir()
    (data / "moon.npz").write_bytes(b"craters")
    monkeypatch.setenv("OVERT_DATA", str(data))
    figure = replace(counting_figure([]), sizes={"toy": {"x": [1], "data": "moon"}})
    run(figure, out=tmp_path)
    (stored,) = read_rows(figure, tmp_path)
    assert {"overt", "python", "numpy", "cores"} <= set(stored.machine)
    assert len(stored.code) == 12
    assert set(stored.data) == {"moon.npz"}
    assert stored.commit == "" or len(stored.commit) in (10, 11)
    assert str(tmp_path) not in json.dumps(stored.machine)


def test_rows_of_other_code_are_not_used_in_silence(tmp_path):
    figure = find("dropout-fig1").figure
    run(figure, out=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(figure, out=tmp_path)
    # The same settings, measured by a function of another file: this one.
    other = replace(figure, run=lambda params, seed: {"radius": 0.0})
    with pytest.warns(OtherCodeWarning, match="3 of 3 stored rows of dropout-fig1"):
        run(other, out=tmp_path)


def test_a_foreign_file_is_not_overwritten(tmp_path):
    (tmp_path / "counting.jsonl").write_text("my shopping list\n")
    with pytest.raises(InputError, match="line 1"):
        run(counting_figure([]), out=tmp_path)
    assert (tmp_path / "counting.jsonl").read_text() == "my shopping list\n"


def test_processes_do_not_change_the_rows():
    figure = FIGURES["dropout-fig1"]
    for one, other in zip(run(figure, n_jobs=1), run(figure, n_jobs=2), strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


def test_rows_of_numpy_are_the_same_fresh_and_stored(tmp_path):
    measured = {
        "holds": np.True_,
        "count": np.int64(3),
        "gone": np.float32("nan"),
        "curve": np.array([1.0, np.nan, np.inf]),
        "nested": {"shares": (np.float64(0.25), [np.nan])},
    }
    figure = replace(counting_figure([]), run=lambda params, seed: measured)
    (fresh, *_), (stored, *_) = (run(figure, out=tmp_path) for _ in range(2))
    for row in (fresh, stored):
        assert (row["holds"], row["count"], row["nested"]["shares"][0]) == (
            True,
            3,
            0.25,
        )
        assert type(row["holds"]) is bool
        np.testing.assert_array_equal(row["curve"], [1.0, np.nan, np.nan])
        assert math.isnan(row["gone"])
        assert math.isnan(row["nested"]["shares"][1][0])
    text = (tmp_path / "counting.jsonl").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text


def test_seeds_depend_on_the_named_axes_only():
    figure = counting_figure([])
    assert figure.seed({"x": 1}) == figure.seed({"x": 1})
    assert figure.seed({"x": 1}) != figure.seed({"x": 2})
    assert figure.key({"a": 1, "b": 2}) == figure.key({"b": 2, "a": 1})


def test_bad_requests_are_refused():
    with pytest.raises(InputError, match="size"):
        run(counting_figure([]), size="huge")
    with pytest.raises(InputError, match="n_jobs"):
        run(counting_figure([]), n_jobs=0)


def test_a_missing_dependency_is_named():
    figure = replace(counting_figure([]), needs={"no_such_module": "torch"})
    with pytest.raises(ImportError, match=r"overt\[torch\]"):
        run(figure)


def test_machine_facts_are_plain():
    assert json.loads(json.dumps(machine_facts()))["numpy"] == np.__version__


def test_a_vector_picture_is_written(tmp_path):
    pytest.importorskip("matplotlib")
    figure = FIGURES["dropout-fig1"]
    _, picture = report(figure, "toy", run(figure), tmp_path, "pdf")
    assert picture.suffix == ".pdf"
    assert picture.read_bytes().startswith(b"%PDF")
