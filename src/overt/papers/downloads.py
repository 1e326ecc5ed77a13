"""Fetch the data of the papers' experiments, on request only."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.request import urlopen

from overt._check import InputError
from overt._io import write_whole
from overt.datasets import MOVIELENS, data_folder, movielens

MNIST_URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
MNIST_SHA256 = "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"


def fetch(name: str, *, mnist_url: str = MNIST_URL) -> Path:
    """Return the path of a data set in OVERT_DATA, downloading MNIST or MovieLens if it is absent.

    What is fetched must fit its known checksum; the terms of MovieLens are printed.
    """
    home = data_folder()
    if name in MOVIELENS:
        movielens(name, download=True)
        return home
    path = home / f"{name}.npz"
    if path.exists():
        return path
    if name != "mnist":
        raise InputError(
            f"{name} cannot be fetched: put {path.name} into {home} yourself"
        )
    try:
        with urlopen(mnist_url) as answer:  # noqa: S310 (the address is a constant)
            data = answer.read()
    except OSError as error:
        raise InputError(
            f"{mnist_url} cannot be fetched ({error}); put {path.name} into {home} yourself"
        ) from None
    found = hashlib.sha256(data).hexdigest()
    if found != MNIST_SHA256:
        raise InputError(
            f"{mnist_url} has the checksum {found}, expected {MNIST_SHA256}"
        )
    return write_whole(path, data)
