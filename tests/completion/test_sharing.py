"""Folders that a cluster's workers read: what they find is what one machine finds."""

from concurrent.futures import CancelledError as Cancelled

import numpy as np
import pytest

from overt import InputError
from overt._cluster import ClusterLostError
from overt.completion import DropoutCompletion, read_ratings
from overt.completion.storage.parts import Numbering

pytest.importorskip("distributed", reason="needs the dask extra")
pytest.importorskip("duckdb", reason="needs the files extra")

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*duplicate entries were averaged", "ignore:.*lines were rejected"
)
SETTINGS = {"n_factors": 3, "max_sweeps": 4, "tol": 0}


@pytest.fixture(scope="module")
def client():
    from distributed import Client

    with Client(
        processes=False, n_workers=3, threads_per_worker=1, dashboard_address=":0"
    ) as client:
        yield client


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr("overt.completion.reading.SMALL", 1)


def write(folder, n_files, words=False, more=()):
    """Write ratings of which some come twice, in so many files; the last has a bad line."""
    rng = np.random.default_rng(0)
    rows, cols = rng.integers(0, 40, 700), (rng.random(700) ** 2 * 30).astype(int)
    values, times = (rows + cols) % 5 + rng.integers(1, 3, 700), rng.permutation(700)
    name = "u{}".format if words else str
    lines = [f"{name(a)},{b},{y},{t}" for a, b, y, t in zip(rows, cols, values, times, strict=True)]
    folder.mkdir()
    for number, part in enumerate(np.array_split(lines, n_files)):
        text = "\n".join(["user,item,rating,time", *part, *more, ""])
        (folder / f"{number:02d}.csv").write_text(text)
    return folder


def test_identifiers_are_numbers_only_where_all_are():
    numbering = Numbering()
    first = numbering.add(np.array([2, 10]), np.array([1, 3]))
    words = numbering.add(np.array(["10", "a much longer name", "9"]), np.array([1, 1, 1]))
    assert first.tolist() == [0, 1]
    assert words.tolist() == [1, 3, 2]
    assert numbering.ids.tolist() == ["10", "2", "9", "a much longer name"]
    assert numbering.counts.tolist() == [4, 1, 1, 1]
    assert numbering.ids[numbering.ranks[[0, 1, 2, 3]]].tolist() == [
        "2", "10", "9", "a much longer name",
    ]  # fmt: skip
    assert numbering.add(np.array([9, 11])).tolist() == [2, 4]


FORMS = {
    "learned": {},
    "drawn": {"average": 3},
    "fixed": {"drop_prob": 0.2},
    "plain": {"signals": False, "biases": False},
}


@pytest.mark.parametrize(
    ("form", "n_files"), [*zip(FORMS, (1, 5, 5, 1), strict=True), ("drawn", 1)]
)
def test_workers_find_what_one_machine_finds(form, n_files, client, tmp_path, monkeypatch):
    if n_files == 1:  # signals by a randomized decomposition
        monkeypatch.setattr("overt.completion.forms.features.RANK", 5)
        monkeypatch.setattr("overt.completion.forms.features.DENSE", 0)
    folder = write(tmp_path / "r", n_files, words=form == "drawn", more=["1,2,much,3"])
    here = DropoutCompletion(**SETTINGS | FORMS[form]).fit(folder)
    there = DropoutCompletion(engine="dask", **SETTINGS | FORMS[form]).fit(folder)
    np.testing.assert_allclose(there.objective_, here.objective_, rtol=1e-9)
    np.testing.assert_allclose(there.U_, here.U_, atol=1e-7)
    np.testing.assert_allclose(there.V_, here.V_, atol=1e-7)
    np.testing.assert_array_equal(there.row_ids_, here.row_ids_)
    for mine, theirs in zip(
        there.predict(here.entries_, return_std=True),
        here.predict(here.entries_, return_std=True),
        strict=True,
    ):
        np.testing.assert_allclose(mine, theirs, atol=1e-7)


@pytest.mark.parametrize("duplicates", ["mean", "last"])
def test_entries_given_twice_and_kept_aside_are_the_same(duplicates, client, tmp_path):
    from overt.cli.completion import _set_aside
    from overt.completion.reading import opened

    folder = write(tmp_path / "r", 4)
    local = read_ratings(folder, duplicates)
    with opened(folder, DropoutCompletion(engine="dask")._settings(), duplicates) as shared:
        assert shared.duplicates == local.duplicates > 100
        assert shared.entries.mark == shared.entries.filed.mark
        (less, aside), (train, held) = (
            _set_aside(read.entries, 0.2, 7) for read in (shared, local)
        )
        order, other = (np.lexsort((e.cols, e.rows)) for e in (aside, held))
        for name in ("rows", "cols", "values"):
            np.testing.assert_allclose(getattr(aside, name)[order], getattr(held, name)[other])
        assert len(less) == len(train)
        np.testing.assert_array_equal(less.counts[1], np.bincount(train.cols, minlength=30))
        found = DropoutCompletion(engine="dask", **SETTINGS).fit_entries(less, holdout=aside)
    here = DropoutCompletion(**SETTINGS).fit(train)
    np.testing.assert_allclose(found.U_, here.U_, atol=1e-7)


def test_what_needs_entries_reads_the_files(client, tmp_path):
    folder = write(tmp_path / "r", 3)
    model = DropoutCompletion(engine="dask", **SETTINGS).fit(folder)
    model.save(tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").stat().st_size < 40_000
    again = DropoutCompletion.load(tmp_path / "model")
    assert len(again._growing.ledger) == len(model._growing.ledger) < 700
    here = DropoutCompletion(**SETTINGS).fit(folder)
    mine, theirs = (m.recommend(3, by="value").cols for m in (again, here))
    np.testing.assert_array_equal(mine, theirs)
    with pytest.warns(UserWarning, match="new entries have no times"):
        grown = again.set_params(engine="local").partial_fit([["3", "4"]], [5.0])
    assert len(grown.entries_) in (len(here.entries_), len(here.entries_) + 1)
    (folder / "00.csv").write_text("user,item,rating,time\n1,1,1,1\n")
    with pytest.raises(InputError, match="other ratings"):
        DropoutCompletion.load(tmp_path / "model").recommend(3)


def test_folders_that_cannot_be_shared_are_named(client, tmp_path, monkeypatch):
    folder = write(tmp_path / "r", 3)
    with pytest.warns(UserWarning, match="is read by this process"):
        DropoutCompletion(engine="dask", **SETTINGS | {"drop_prob": "auto"}).fit(folder)
    from overt.completion.reading import opened

    settings = DropoutCompletion(engine="dask")._settings()
    with (
        pytest.raises(InputError, match="duplicate entries, such as"),
        opened(folder, settings, "error"),
    ):
        pass
    (folder / "zz.csv").write_text("song,listener\n1,2\n")
    with pytest.raises(InputError, match="all files must have the same"):
        DropoutCompletion(engine="dask").fit(folder)
    gone = [folder / "zz.csv", folder / "not-there.csv"]
    monkeypatch.setattr("overt.completion.reading.parts_of", lambda _: gone[:1])
    gone[0].unlink()
    monkeypatch.setattr("overt.completion.reading._Reader._units", lambda _: [[str(gone[1])]])
    with pytest.raises(InputError, match=r"does not see .*not-there.csv: a folder that a cluster"):
        DropoutCompletion(engine="dask").fit(folder)


def test_a_lost_worker_s_entries_are_read_again(tmp_path):
    from distributed import Client

    folder = write(tmp_path / "r", 4)
    settings = SETTINGS | {"signals": False}
    here = DropoutCompletion(**settings).fit(folder, checkpoint=tmp_path / "here")
    how = {"processes": False, "n_workers": 3, "threads_per_worker": 1, "dashboard_address": ":0"}
    with Client(**how) as client:

        def lose(form):
            if len(form.history) == 2:
                client.sync(client.cluster.workers[0].close, nanny=False)

        from overt.completion.reading import opened

        model = DropoutCompletion(engine="dask", **settings)
        warned = pytest.warns(UserWarning, match="workers were lost")
        with opened(folder, model._settings()) as read, warned:
            model.fit_entries(read.entries, on_form=lose, checkpoint=tmp_path / "there")
    np.testing.assert_allclose(model.U_, here.U_, atol=1e-7)
    assert model.faults_
    again = DropoutCompletion(**settings | {"max_sweeps": 6})
    with pytest.raises(InputError, match="other data or settings"):
        again.fit(folder, checkpoint=tmp_path / "there", resume=True)
    again = DropoutCompletion(**settings).fit(folder, checkpoint=tmp_path / "there", resume=True)
    np.testing.assert_array_equal(again.U_, model.U_)


@pytest.mark.parametrize("duplicates", ["mean", "last", "error", "clicks"])
def test_a_folder_merges_what_one_file_does(duplicates, tmp_path, monkeypatch):
    for place in ("_mapped", "completion.storage.folders"):
        monkeypatch.setattr(f"overt.{place}.SLICE", 50)
    folder, whole = write(tmp_path / "r", 4), tmp_path / "whole.csv"
    texts = [path.read_text().splitlines() for path in sorted(folder.iterdir())]
    if duplicates == "clicks":
        texts = [[",".join(line.split(",")[:2]) for line in text] for text in texts]
        for number, text in enumerate(texts):
            (folder / f"{number:02d}.csv").write_text("\n".join([*text, ""]))
    whole.write_text("\n".join([texts[0][0], *(line for text in texts for line in text[1:]), ""]))
    if duplicates == "error":
        for path in (whole, folder):
            with pytest.raises(InputError, match="has 224 duplicate entries, such as"):
                read_ratings(path, duplicates)
        return
    how = "mean" if duplicates == "clicks" else duplicates
    one, many = read_ratings(whole, how), read_ratings(folder, how)
    assert one.duplicates == many.duplicates == 224
    assert one.clicks == many.clicks == (duplicates == "clicks")
    for name in ("rows", "cols", "values", "row_ids", "col_ids"):
        np.testing.assert_allclose(getattr(many, name), getattr(one, name), rtol=1e-14)
    if one.times is not None:
        np.testing.assert_array_equal(many.times, one.times)


def test_a_scheduler_lost_while_it_reads_is_said(client, tmp_path, monkeypatch):
    def lost(*_):
        raise Cancelled("scheduler-connection-lost")

    monkeypatch.setattr(client, "gather", lost)
    with pytest.raises(ClusterLostError, match=r"lost while it read .*scheduler-connection-lost"):
        DropoutCompletion(engine="dask").fit(write(tmp_path / "r", 2))


def test_a_folder_of_headers_alone_has_no_usable_line(client, tmp_path):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("user,item,rating\n")
    with pytest.raises(InputError, match="no usable line"):
        DropoutCompletion(engine="dask").fit(tmp_path)
