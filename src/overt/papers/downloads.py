"""Fetch the data of the papers' experiments, on request only."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.request import urlopen

from rich.console import Console

from overt._check import InputError
from overt._io import write_whole
from overt.datasets import data_folder

GROUPLENS = "https://files.grouplens.org/datasets/movielens/"

SOURCES = {
    "mnist.npz": (
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz",
        "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1",
    ),
    "ml-100k.zip": (f"{GROUPLENS}ml-100k.zip", "0e33842e24a9c977be4e0107933c0723"),
    "ml-1m.zip": (f"{GROUPLENS}ml-1m.zip", "c4d9eecfca2ab87c1945afe126590906"),
    "ml-10m.zip": (f"{GROUPLENS}ml-10m.zip", "ce571fd55effeba0271552578f2648bd"),
    "ml-25m.zip": (f"{GROUPLENS}ml-25m.zip", "6b51fb2759a8657d3bfcbfc42b592ada"),
}
"""Address and checksum of each file: MD5 by GroupLens, SHA-256 otherwise."""

LICENSE = (
    "MovieLens is provided by GroupLens for research under its own terms; it may not be "
    "redistributed without permission: https://grouplens.org/datasets/movielens/"
)


def fetch(name: str) -> Path:
    """Return the path of a data set in OVERT_DATA, downloading MNIST or MovieLens if it is absent.

    MovieLens goes by its size, such as "100k". What is fetched must fit its known checksum; the
    terms of MovieLens are printed.
    """
    home = data_folder()
    is_movielens = f"ml-{name}.zip" in SOURCES
    path = home / (f"ml-{name}.zip" if is_movielens else f"{name}.npz")
    if path.exists() or path.with_suffix(".npz").exists():
        return path
    if path.name not in SOURCES:
        raise InputError(
            f"{name} cannot be fetched: put {path.name} into {home} yourself"
        )
    if is_movielens:
        Console(stderr=True).print(LICENSE)
    url, checksum = SOURCES[path.name]
    try:
        with urlopen(url) as answer:  # noqa: S310 (the addresses are constants)
            data = answer.read()
    except OSError as error:
        raise InputError(
            f"{url} cannot be fetched ({error}); put {path.name} into {home} yourself"
        ) from None
    kind = hashlib.md5 if is_movielens else hashlib.sha256
    found = kind(data, usedforsecurity=False).hexdigest()
    if found != checksum:
        raise InputError(f"{url} has the checksum {found}, expected {checksum}")
    return write_whole(path, data)
