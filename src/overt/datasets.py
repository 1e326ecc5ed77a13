"""Generated ratings, and readers of data sets in a local folder.

The folder is the argument `folder` or the environment variable OVERT_DATA. MovieLens is read from
NAME.npz (arrays user, item, rating, timestamp), from the unpacked original folder, or from the
original NAME.zip; with `download=True` the archive is fetched, checked and stored there.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
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
from overt._io import open_npz, reading, write_whole
from overt.entries import Entries


@dataclass(frozen=True)
class _Archive:
    """Where GroupLens keeps a data set and how its ratings file is written."""

    folder: str
    file: str
    separator: str
    header: bool
    md5: str

    @property
    def inner(self) -> str:
        """Name of the folder inside the archive."""
        return {"ml-10m": "ml-10M100K"}.get(self.folder, self.folder)

    def places(self, home: Path) -> list[Path]:
        """Return where the data set may be in a folder."""
        names = (
            f"{self.folder}.npz",
            f"{self.inner}/{self.file}",
            f"{self.folder}.zip",
        )
        return [home / name for name in names]

    def read(self, path: Path) -> Entries:
        """Read the data set from one of its places."""
        if path.suffix == ".npz":
            return _from_npz(path)
        if path.suffix != ".zip":
            with path.open("rb") as file:
                return _parse(file, self)
        with (
            zipfile.ZipFile(path) as box,
            box.open(f"{self.inner}/{self.file}") as member,
        ):
            return _parse(member, self)


_MOVIELENS = {
    "100k": _Archive(
        "ml-100k", "u.data", "\t", False, "0e33842e24a9c977be4e0107933c0723"
    ),
    "1m": _Archive(
        "ml-1m", "ratings.dat", "::", False, "c4d9eecfca2ab87c1945afe126590906"
    ),
    "10m": _Archive(
        "ml-10m", "ratings.dat", "::", False, "ce571fd55effeba0271552578f2648bd"
    ),
    "25m": _Archive(
        "ml-25m", "ratings.csv", ",", True, "6b51fb2759a8657d3bfcbfc42b592ada"
    ),
}
MOVIELENS = tuple(_MOVIELENS)
LICENSE = (
    "MovieLens is provided by GroupLens for research under its own terms; it may not be "
    "redistributed without permission: https://grouplens.org/datasets/movielens/"
)


def movielens(
    size: str = "100k",
    folder: str | os.PathLike[str] | None = None,
    *,
    download: bool = False,
) -> Entries:
    """Read MovieLens: size "100k", "1m", "10m" or "25m"."""
    archive = _MOVIELENS[choice("size", size, MOVIELENS)]
    home = data_folder(folder)
    places = archive.places(home)
    path = next(filter(Path.exists, places), None)
    if path is None:
        if not download:
            looked = ", ".join(os.fspath(place.relative_to(home)) for place in places)
            raise InputError(
                f"there is no MovieLens {size} in {home} (looked for {looked}); get it from "
                "https://grouplens.org/datasets/movielens/ or pass download=True"
            )
        path = _download(archive, home / f"{archive.folder}.zip")
    with reading(path, f"cannot be read as MovieLens {size}"):
        return archive.read(path)


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
    noise_law: Callable[[np.random.Generator, int], Floats] | None = None,
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
    noise, noise_law
        Standard deviation of the noise, and its law (standard normal if None) as a function of
        (generator, count).
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
    draw = noise_law or (lambda generator, size: generator.standard_normal(size))
    values = truth(rows, cols) + number("noise", noise) * draw(rng, count)
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


def _from_npz(path: Path) -> Entries:
    with open_npz(
        path, f"cannot be read as MovieLens {path.stem.removeprefix('ml-')}"
    ) as data:
        return Entries.from_ids(
            data["user"], data["item"], data["rating"], data.get("timestamp")
        )


def _parse(file: IO[bytes], archive: _Archive) -> Entries:
    """Read user, item, rating, timestamp."""
    with io.TextIOWrapper(file, "utf-8") as lines:
        # np.loadtxt knows only separators of one character.
        columns = np.loadtxt(
            (line.replace("::", ",") for line in lines),
            delimiter="," if archive.separator == "::" else archive.separator,
            skiprows=int(archive.header),
            ndmin=2,
        )
    users, items, ratings, times = columns[:, :4].T
    users, items, times = (ids.astype(np.int64) for ids in (users, items, times))
    return Entries.from_ids(users, items, ratings, times)


def _download(archive: _Archive, target: Path) -> Path:
    """Fetch an archive, check its sum, and keep it; say whose terms apply."""
    from urllib.request import urlopen

    from rich.console import Console

    Console(stderr=True).print(LICENSE)
    url = f"https://files.grouplens.org/datasets/movielens/{archive.folder}.zip"
    try:
        with urlopen(url) as answer:
            data = answer.read()
    except OSError as error:
        raise InputError(
            f"{url} cannot be fetched ({error}); put {target.name} into {target.parent} yourself"
        ) from None
    found = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if found != archive.md5:
        raise InputError(
            f"{url} has the checksum {found}, expected {archive.md5}; try again"
        )
    return write_whole(target, data)
