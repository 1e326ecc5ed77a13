"""The lines that pages show, run and compared: with the page's numbers and with the library's."""

import csv
import io

import numpy as np
import pytest

import overt
from overt import decay
from overt.completion import DropoutCompletion
from overt.explorer import theory, uploads
from overt.explorer.completion import NORMAL_90, completed
from overt.explorer.fields import read_fields
from overt.explorer.figures import numbers, shown
from overt.explorer.panels import PANELS

SMALL = {
    "shrinkage": {},
    "landscape": {"steps": "120", "starts": "0.2 1.6"},
    "training": {
        "outputs": "6",
        "inputs": "5",
        "rank": "2",
        "width": "4",
        "steps": "100",
        "seeds": "1",
    },
    "jumps": {"width": "5", "steps": "300", "quiet_steps": "100", "seeds": "3"},
    "completion": {"n_factors": "2"},
}


def values_of(panel, **given):
    values, messages = read_fields(PANELS[panel].fields, SMALL[panel] | given)
    assert messages == {}
    return values | ({"entries": uploads.sample()} if panel == "completion" else {})


def run(panel, values):
    asked = PANELS[panel].asked(values)
    return [found for _, found in PANELS[panel].task(**asked)]


def executed(panel, values):
    """Run the lines that the page shows, as they are."""
    names = {}
    exec(compile(PANELS[panel].code(values), f"<{panel}>", "exec"), names)  # noqa: S102
    return names


def table(view):
    return dict(view.numbers)


@pytest.mark.parametrize("noise", ["Dropout", "DropConnect"])
@pytest.mark.parametrize("width", ["3", "8", "20"])
def test_shrinkage_is_the_librarys_optimum(noise, width):
    values = values_of("shrinkage", noise=noise, width=width, rank="2")
    view = PANELS["shrinkage"].view(values, ())
    s, d = np.array(values["values"]), int(width)
    best = overt.LinearNetwork(np.diag(s), d, getattr(overt, noise)(0.5)).solve()
    assert table(view)["Objective"] == pytest.approx(best.objective)
    assert table(view)["Rank of the optimum"] == best.rank
    assert table(view)["Loss"] + table(view)["Penalty"] == pytest.approx(best.objective)
    shown_bars = view.figures[0].plot["data"][1]["y"]
    expected = np.linalg.svd(best.product, compute_uv=False)
    assert shown_bars == pytest.approx(expected, abs=1e-4)
    wanted = table(view)["Drop probability for rank 2"]
    assert overt.LinearNetwork(np.diag(s), d, overt.Dropout(wanted)).solve().rank == 2
    path = overt.path(np.diag(s), d, np.linspace(0, 0.975, 40))
    split = view.figures[2].plot["data"]
    total = np.array(split[0]["y"]) + np.array(split[1]["y"])
    assert total == pytest.approx(path.objective, rel=1e-5)


@pytest.mark.parametrize(
    ("block_size", "drop_prob", "optimal"), [("2", "0.5", True), ("4", "0.3", False)]
)
def test_an_unattained_bound_is_not_called_the_optimum(block_size, drop_prob, optimal):
    values = values_of(
        "shrinkage", noise="DropBlock", block_size=block_size, drop_prob=drop_prob, rank=""
    )
    view = PANELS["shrinkage"].view(values, ())
    drop = overt.DropBlock(values["drop_prob"], int(block_size))
    best = overt.LinearNetwork(np.diag(values["values"]), 8, drop).solve()
    assert (best.status == "optimal") == optimal
    shown_name = "Objective" if optimal else "Lower bound"
    assert table(view)[shown_name] == pytest.approx(best.certificate.lower_bound)
    assert ("Rank of the optimum" in table(view)) == optimal
    assert ("optimum" in view.figures[0].caption) == optimal


@pytest.mark.parametrize(
    ("given", "name", "message"),
    [
        ({"rank": "9"}, "rank", "must be one of"),
        ({"noise": "DropBlock"}, "rank", "Dropout and DropConnect only"),
    ],
)
def test_a_rank_that_cannot_be_had_is_answered_and_the_rest_shown(given, name, message):
    view = PANELS["shrinkage"].view(values_of("shrinkage", **given), ())
    assert message in view.messages[name]
    assert len(view.figures) == 3


def test_a_block_size_that_does_not_fit_is_named():
    for panel in ("shrinkage", "training"):
        values = values_of(panel, noise="DropBlock", width="7")
        with pytest.raises(overt.InputError, match=r"^block_size must divide"):
            PANELS[panel].view(values, ())


@pytest.mark.parametrize("noise", ["Dropout", "DropBlock"])
def test_lines_of_shrinkage(noise):
    values = values_of("shrinkage", noise=noise)
    view, names = PANELS["shrinkage"].view(values, ()), executed("shrinkage", values)
    assert names["objective"] == table(view)["Objective"]
    assert names["rank"] == table(view)["Rank of the optimum"]
    assert numbers(names["spectra"][0]) == view.figures[0].plot["data"][1]["y"]
    assert names.get("needed") == table(view).get("Drop probability for rank 3")


@pytest.mark.parametrize("drop_prob", [0.0, 0.3, 0.9])
def test_critical_points_are_critical(drop_prob):
    axis, f, points = theory.survey(2.0, drop_prob, 1.5)
    net = overt.TiedAutoencoder(np.array([[2.0]]), 2, overt.Dropout(drop_prob))
    kinds = {kind for *_, kind in points}
    assert kinds == {"minimum", "strict saddle"}
    for *u, value, kind in points:
        h, here = 1e-4, net.objective(np.array([u]))
        assert here == pytest.approx(value, abs=1e-9)
        steps = [np.array([[h, 0]]), np.array([[0, h]]), np.array([[h, h]]), np.array([[h, -h]])]
        rises = []
        for step in steps:
            up, down = (net.objective(np.array([u]) + sign * step) for sign in (1, -1))
            assert abs(up - down) / (2 * h) < 1e-5
            rises.append(up + down - 2 * here)
        assert (min(rises) < -1e-10) == (kind == "strict saddle")
    i, j = 10, 40
    assert f[i, j] == pytest.approx(net.objective(np.array([[axis[i], axis[j]]])))


def test_lines_of_landscape():
    values = values_of("landscape")
    found, names = run("landscape", values), executed("landscape", values)
    view = PANELS["landscape"].view(values, found)
    assert names["last"]["places"] == found[-1]["places"]
    assert [row[3] for row in view.tables[1].rows] == names["last"]["objective"]
    assert table(view)["Least objective"] == min(point[2] for point in names["points"])
    net = overt.TiedAutoencoder(np.array([[2.0]]), 2, overt.Dropout(0.5))
    assert table(view)["Least objective"] == pytest.approx(net.solve().objective)
    trail = view.figures[0].plot["data"][1]
    assert (trail["x"][0], trail["y"][0]) == (0.2, 1.6)
    assert len(trail["x"]) == 41


@pytest.mark.parametrize("noise", ["Dropout", "DropBlock"])
def test_lines_of_training(noise):
    values = values_of("training", noise=noise)
    found, names = run("training", values), executed("training", values)
    view = PANELS["training"].view(values, found)
    assert table(view)["Mean gap"] == names["gap"][:, -1].mean()
    assert table(view)["Step"] == 100
    rng = np.random.default_rng(0)
    M = rng.standard_normal((6, 2)) @ rng.standard_normal((2, 5)) / 2
    net = overt.LinearNetwork(M, 4, theory.make_noise(noise, 0.5, 2))
    assert table(view)["Optimum"] == pytest.approx(net.solve().certificate.lower_bound)
    first = net.train(1, 0.002, [0], records=2)
    assert found[1]["objective"][0] == pytest.approx(first.objective[0, -1])
    assert found[1]["importance"] == pytest.approx(
        overt.equalize.importance(first.U[0], first.V[0])
    )


def test_training_comes_down_to_the_optimum():
    values = values_of("training", steps="20000", learning_rate="0.01", halving="2000", seeds="1")
    view = PANELS["training"].view(values, run("training", values))
    assert 0 <= table(view)["Gap / optimum"] < 0.1
    assert table(view)["Spread of importance"] < 0.1


def test_a_rate_that_is_too_large_is_named():
    with pytest.raises(overt.InputError, match=r"^learning_rate is too large"):
        run("training", values_of("training", learning_rate="1", steps="2000"))


@pytest.mark.parametrize("schedule", ["annealing", "periodic", "constant"])
def test_lines_of_jumps(schedule):
    values = values_of("jumps", schedule=schedule)
    found, names = run("jumps", values), executed("jumps", values)
    view = PANELS["jumps"].view(values, found)
    survival = next(f for f in view.figures if f.name == "survival").plot["data"][1]
    assert survival["y"] == numbers(names["surviving"])
    assert table(view)["Runs that jumped to rank 1"] == f"{sum(names['jump_step'] >= 0)} of 3"
    assert [row[0] for row in view.tables[0].rows] == [m.rank for m in names["first"]["minima"]]


def test_jumps_are_those_of_one_simulation():
    values = values_of("jumps", schedule="constant")
    _, *runs = run("jumps", values)
    problem = decay.two_by_two(0.25)
    plan = decay.Schedule.constant(300, 0.2, 0.1, convention="pytorch")
    whole = decay.simulate(problem, 3, 5, plan, 3, records=251, balance=False)
    for k, one in enumerate(runs):
        assert one["s"] == pytest.approx(whole.singular_values[k], rel=1e-12)
        assert one["jump"] == whole.jump_step[k]


def test_lines_of_completion():
    values = values_of("completion")
    found, names = run("completion", values), executed("completion", values)
    view = PANELS["completion"].view(values, found)
    assert table(view)["Held-out RMSE"] == names["fit"]["rmse"]
    assert found[1:] == [{"path": pair} for pair in names["path"]]
    train, held = uploads.sample().split(0.1, seed=0)
    model = DropoutCompletion(2, seed=0).fit(train)
    assert table(view)["Learned drop probability"] == pytest.approx(model.drop_prob_)
    assert table(view)["Held-out RMSE"] == pytest.approx(-model.score(held))
    rows, cols = uploads.sample().missing
    mean, std = model.predict(rows, cols, return_std=True)
    lines = list(csv.reader(io.StringIO("".join(completed(values["entries"], found[0])))))
    assert len(lines) == 1 + len(rows)
    assert lines[1] == [str(rows[0]), str(cols[0]), *map(shown, (
        mean[0], mean[0] - NORMAL_90 * std[0], mean[0] + NORMAL_90 * std[0]
    ))]  # fmt: skip
    best = view.tables[0].rows[0]
    here = rows == 0
    assert best[1] == pytest.approx(mean[here].max())


def test_lines_of_completion_from_a_file(tmp_path, monkeypatch):
    pytest.importorskip("duckdb")
    sample = uploads.sample()
    text = "".join(
        f"user{i},item{j},{v}\n"
        for i, j, v in zip(sample.rows, sample.cols, sample.values, strict=True)
    )
    (tmp_path / "ratings.csv").write_text("user,item,rating\n" + text)
    monkeypatch.chdir(tmp_path)
    shelf = uploads.Shelf()
    token, _ = shelf.put((tmp_path / "ratings.csv").read_bytes())
    values = values_of("completion", data=token) | {"entries": shelf.get(token)}
    found, names = run("completion", values), executed("completion", values)
    view = PANELS["completion"].view(values | {"row": "user7"}, found)
    assert table(view)["Held-out RMSE"] == names["fit"]["rmse"]
    assert view.tables[0].caption.startswith("Row user7:")
    assert view.tables[0].rows[0][0].startswith("item")
    wrong = PANELS["completion"].view(values | {"row": "user777"}, found)
    assert "must be a row of the data" in wrong.messages["row"]


def test_names_that_a_spreadsheet_would_run_are_quoted():
    entries = overt.Entries.from_ids(
        ["=cmd()", "-3", 'a"b', "ok"], ["x", "+1", "@y", "z"], [1.0, 2.0, 3.0, 4.0]
    )
    fit = {"mean": np.zeros(entries.shape), "std": np.ones(entries.shape)}
    lines = list(csv.reader(io.StringIO("".join(completed(entries, fit)))))
    assert {line[0] for line in lines[1:]} == {"'=cmd()", "-3", 'a"b', "ok"}
    assert {line[1] for line in lines[1:]} == {"x", "+1", "'@y", "z"}


@pytest.mark.parametrize("panel", PANELS.values(), ids=lambda p: p.name)
def test_a_panel_explains_itself_in_two_sentences(panel):
    assert panel.says.count(". ") == 1
    assert panel.says.endswith(".")
