import zipfile

import numpy as np
import pytest

import overt
from overt import datasets


def test_generated_ratings_are_what_was_asked_for():
    ratings, truth = datasets.generate_ratings(80, 50, 1500, seed=3)
    assert len(ratings) == 1500
    assert ratings.shape == (80, 50)
    assert set(np.unique(ratings.values)) <= {1.0, 2.0, 3.0, 4.0, 5.0}
    assert len(set(zip(ratings.rows, ratings.cols, strict=True))) == 1500
    again = datasets.generate_ratings(80, 50, 1500, seed=3)[0]
    assert np.array_equal(again.values, ratings.values)
    error = ratings.values - truth(ratings.rows, ratings.cols)
    assert 0.5 < error.std() < 0.8


def test_popularity_is_skewed():
    counts = []
    for popularity in (0.0, 1.5):
        ratings = datasets.generate_ratings(
            400, 400, 4000, popularity=popularity, seed=0
        )[0]
        counts.append(np.bincount(ratings.cols, minlength=400).max())
    assert counts[1] > 3 * counts[0]


def test_noise_has_the_size_asked_for():
    ratings, truth = datasets.generate_ratings(
        300, 200, 20_000, noise=0.5, scale=None, seed=0
    )
    error = ratings.values - truth(ratings.rows, ratings.cols)
    assert abs(error.mean()) < 5 * 0.5 / np.sqrt(len(ratings))
    assert abs(error.std() - 0.5) < 5 * 0.5 / np.sqrt(2 * len(ratings))


@pytest.fixture
def entries():
    rng = np.random.default_rng(0)
    keys = rng.permutation(20 * 30)[:100]
    return (
        keys // 30 + 1,
        keys % 30 + 1,
        rng.integers(1, 6, 100).astype(float),
        keys + 10**9,
    )


@pytest.mark.parametrize("form", ["npz", "folder", "zip"])
@pytest.mark.parametrize("size", datasets.MOVIELENS)
def test_movielens_formats_agree(tmp_path, entries, size, form, monkeypatch):
    user, item, rating, timestamp = entries
    name, inner, file, separator, header = {
        "100k": ("ml-100k", "ml-100k", "u.data", "\t", ""),
        "1m": ("ml-1m", "ml-1m", "ratings.dat", "::", ""),
        "10m": ("ml-10m", "ml-10M100K", "ratings.dat", "::", ""),
        "25m": (
            "ml-25m",
            "ml-25m",
            "ratings.csv",
            ",",
            "userId,movieId,rating,timestamp\n",
        ),
    }[size]
    lines = zip(user, item, rating, timestamp, strict=True)
    text = header + "".join(separator.join(map(str, line)) + "\n" for line in lines)
    if form == "npz":
        arrays = {"user": user, "item": item, "rating": rating, "timestamp": timestamp}
        np.savez(tmp_path / f"{name}.npz", **arrays)
    elif form == "folder":
        (tmp_path / inner).mkdir()
        (tmp_path / inner / file).write_text(text)
    else:
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as box:
            box.writestr(f"{inner}/{file}", text)
    found = datasets.movielens(size, tmp_path)
    assert np.array_equal(found.row_ids[found.rows], user)
    assert np.array_equal(found.col_ids[found.cols], item)
    assert np.array_equal(found.values, rating)
    assert np.array_equal(found.times, timestamp)
    monkeypatch.setenv("OVERT_DATA", str(tmp_path))
    assert len(datasets.movielens(size)) == len(found)


def test_missing_data_is_said(tmp_path, monkeypatch):
    monkeypatch.delenv("OVERT_DATA", raising=False)
    with pytest.raises(overt.InputError, match="OVERT_DATA"):
        datasets.movielens("1m")
    with pytest.raises(overt.InputError, match=r"ml-1m\.zip"):
        datasets.movielens("1m", tmp_path)
    with pytest.raises(overt.InputError, match="size must be one of"):
        datasets.movielens("2m", tmp_path)
    with pytest.raises(overt.InputError, match="at most 4"):
        datasets.generate_ratings(2, 2, 5)


def test_split_is_a_partition():
    ratings = datasets.generate_ratings(80, 50, 1000, seed=0)[0]
    train, test = ratings.split(0.1, seed=0)
    assert len(test) == 100
    together = [(e.rows * 50 + e.cols).tolist() for e in (ratings, train, test)]
    assert sorted([*together[1], *together[2]]) == sorted(together[0])
    order = np.random.default_rng(0).permutation(1000)[:100]
    assert np.array_equal(test.values, ratings.values[order])
    assert train.to_sparse().nnz == 900


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ml-100k.npz", b"not an archive"),
        ("ml-100k.zip", b"not an archive"),
        ("ml-100k/u.data", b"1\t2\tgood\t3\n"),
        ("ml-100k/u.data", b"1\t2\n"),
    ],
)
def test_damaged_data_is_said(tmp_path, name, content):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(overt.InputError, match=r"cannot be read as MovieLens 100k"):
        datasets.movielens("100k", tmp_path)


def test_other_archives_are_said_and_timestamps_may_be_missing(tmp_path):
    with zipfile.ZipFile(tmp_path / "ml-100k.zip", "w") as box:
        box.writestr("readme", "nothing")
    with pytest.raises(overt.InputError, match=r"u\.data"):
        datasets.movielens("100k", tmp_path)
    np.savez(tmp_path / "ml-100k.npz", user=[3, 9], item=[7, 7], rating=[1.0, 2.0])
    assert datasets.movielens("100k", tmp_path).times is None
    np.savez(tmp_path / "ml-100k.npz", user=[3, 9], item=[7, 7])
    with pytest.raises(overt.InputError, match="rating"):
        datasets.movielens("100k", tmp_path)
