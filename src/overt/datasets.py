"""Generated ratings, and readers of data sets in a local folder.

The folder is the argument `folder` or the environment variable OVERT_DATA. MovieLens is read from
NAME.npz (arrays user, item, rating, timestamp), from the unpacked original folder, or from the
original NAME.zip.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np

from overt._check import (
    Floats,
    InputError,
    Ints,
    Seed,
    choice,
    generator,
    number,
    whole,
)
from overt._io import open_npz, reading
from overt.entries import Entries

_MOVIELENS = {
    "100k": ("ml-100k", "ml-100k/u.data"),
    "1m": ("ml-1m", "ml-1m/ratings.dat"),
    "10m": ("ml-10m", "ml-10M100K/ratings.dat"),
    "25m": ("ml-25m", "ml-25m/ratings.csv"),
}
"""Name of each data set, and its ratings below the folder that GroupLens's archive holds."""

MOVIELENS = tuple(_MOVIELENS)


def movielens(
    size: str = "100k", folder: str | os.PathLike[str] | None = None
) -> Entries:
    """Read MovieLens: size "100k", "1m", "10m" or "25m"."""
    name, file = _MOVIELENS[choice("size", size, MOVIELENS)]
    home = data_folder(folder)
    places = [f"{name}.npz", file, f"{name}.zip"]
    path = next((home / place for place in places if (home / place).exists()), None)
    if path is None:
        raise InputError(
            f"there is no MovieLens {size} in {home} (looked for {', '.join(places)}); get it from "
            "https://grouplens.org/datasets/movielens/"
        )
    otherwise = f"cannot be read as MovieLens {size}"
    with reading(path, otherwise):
        if path.suffix == ".npz":
            with open_npz(path, otherwise) as data:
                given = (data["user"], data["item"], data["rating"])
                return Entries.from_ids(*given, data.get("timestamp"))
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as box, box.open(file) as member:
                return _parse(member, size)
        with path.open("rb") as lines:
            return _parse(lines, size)


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of local data sets."""
    chosen = folder if folder is not None else os.environ.get("OVERT_DATA")
    if not chosen:
        raise InputError(
            "no data folder: pass folder=, or set the environment variable OVERT_DATA to it"
        )
    path = Path(chosen)
    if not path.is_dir():
        raise InputError(f"the data folder {path} does not exist")
    return path


def generate_ratings(
    n_rows: int = 500,
    n_cols: int = 300,
    n_ratings: int = 20_000,
    *,
    rank: int = 4,
    noise: float = 0.6,
    scale: tuple[float, float] | None = (1.0, 5.0),
    popularity: float = 1.0,
    seed: Seed = 0,
) -> tuple[Entries, Callable[[Ints, Ints], Floats]]:
    """Sample ratings from a low-rank matrix with biases, skewed popularity and noise.

    Entry (a, b) is 3.5 + row bias + column bias + u_a . v_b + noise; factors explain about as much
    as the biases. Rows and columns are sampled without replacement of pairs, with weights
    rank^(-popularity / 2).

    Parameters
    ----------
    n_rows, n_cols, n_ratings, rank
        Size of the matrix, number of observed entries, and number of factors.
    noise
        Standard deviation of the normal noise.
    scale
        Entries are rounded to whole numbers in this range; None keeps real numbers.
    popularity
        0 for uniform, 1 for the usual long tail, more for a longer one.
    seed
        Int or numpy Generator.

    Returns
    -------
    The ratings, and a function of (rows, cols) that gives the entries without noise.
    """
    rng = generator(seed)
    m, n = (
        whole("n_rows", n_rows, maximum=10**9),
        whole("n_cols", n_cols, maximum=10**9),
    )
    count, rank = whole("n_ratings", n_ratings), whole("rank", rank, maximum=10**6)
    if count > m * n:
        raise InputError(
            f"n_ratings must be at most {m * n} (n_rows x n_cols), got {count}"
        )
    U, V = rng.standard_normal((m, rank)), rng.standard_normal((n, rank))
    U, V = U * np.sqrt(0.6 / np.sqrt(rank)), V * np.sqrt(0.6 / np.sqrt(rank))
    row_bias, col_bias = 0.4 * rng.standard_normal(m), 0.5 * rng.standard_normal(n)

    def truth(rows: Ints, cols: Ints) -> Floats:
        product = np.einsum("ei,ei->e", U[rows], V[cols])
        return np.asarray(3.5 + row_bias[rows] + col_bias[cols] + product)

    rows, cols = _pairs(rng, m, n, count, number("popularity", popularity))
    values = truth(rows, cols) + number("noise", noise) * rng.standard_normal(count)
    if scale is not None:
        values = np.clip(np.round(values), *scale)
    return Entries(rows, cols, values, (m, n)), truth


def _pairs(
    rng: np.random.Generator, m: int, n: int, count: int, popularity: float
) -> tuple[Ints, Ints]:
    """Sample distinct pairs with skewed frequencies of rows and columns."""
    if count > 0.5 * m * n:
        keys = rng.choice(m * n, count, replace=False)
        return keys // n, keys % n
    weights = [np.arange(1, size + 1) ** (-popularity / 2) for size in (m, n)]
    places = [rng.permutation(size) for size in (m, n)]
    keys = np.zeros(0, np.int64)
    for _ in range(1000):
        a, b = (
            place[np.searchsorted(np.cumsum(w) / w.sum(), rng.random(count))]
            for w, place in zip(weights, places, strict=True)
        )
        keys = np.concatenate([keys, a * n + b])
        keys = keys[np.sort(np.unique(keys, return_index=True)[1])][:count]
        if len(keys) == count:
            return keys // n, keys % n
    raise InputError(
        f"popularity {popularity:g} leaves too few likely pairs for {count} ratings"
    )


def _parse(file: IO[bytes], size: str) -> Entries:
    """Read user, item, rating, timestamp; only the file of 25M has a header."""
    with io.TextIOWrapper(file, "utf-8") as text:
        # np.loadtxt knows only separators of one character.
        lines = (line.replace("::", ",").replace("\t", ",") for line in text)
        columns = np.loadtxt(lines, delimiter=",", skiprows=int(size == "25m"), ndmin=2)
    users, items, ratings, times = columns[:, :4].T
    users, items, times = (ids.astype(np.int64) for ids in (users, items, times))
    return Entries.from_ids(users, items, ratings, times)
