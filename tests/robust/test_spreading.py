"""Attacks on a cluster: the points, successes and counts of one process, and what is said."""

import json
import threading

import numpy as np
import pytest
import torch
from robust_cases import points, small_mlp

from overt import InputError
from overt.robust import L0, L1, L2, PGD, Linf, Square, Targeted, closest, robust_error, strongest

calls = []
MLP = small_mlp(4)


class Unlucky(torch.nn.Linear):
    """Fails on the first evaluation by a worker, whose threads have names of their own."""

    def forward(self, x):
        if threading.current_thread() is not threading.main_thread():
            calls.append(len(x))
            if len(calls) == 1:
                raise OSError("no memory on this machine")
        return super().forward(x)


class Lost:
    """A model that a worker cannot put together."""

    def __init__(self, model):
        self.model = model

    def __call__(self, x):
        return self.model(x)

    def __reduce__(self):
        return __import__, ("a_module_of_the_client_only",)


@pytest.fixture(scope="module")
def client():
    distributed = pytest.importorskip("distributed", reason="needs the dask extra")
    with distributed.Client(
        processes=False, n_workers=2, threads_per_worker=2, dashboard_address=":0"
    ) as client:
        yield client


def masked(x):
    return MLP((8 * x).round() / 8)


def two(x, shift):
    return MLP(x) + shift


BATCH = {"batch_size": 5, "warn": False}
RUNS = {
    "curve": lambda m, x, y, e: robust_error(
        m, x, y, L2(0.4), radii=[0.2], budget=24, queries=10, **BATCH, **e
    ),
    "restarts": lambda m, x, y, e: PGD(
        Linf(0.2), steps=5, restarts=3, random_start=True, early_exit=False, batch_size=5
    )(m, x, y, start=x + 0.01, **e),
    "targeted": lambda m, x, y, e: PGD(
        L2(0.5), steps=5, batch_size=5, criterion=Targeted((y + 1) % 3)
    )(m, x, y, **e),
    "queries": lambda m, x, y, e: Square(L1(0.5), queries=15, batch_size=5)(m, x, y, **e),
    "nearest": lambda m, x, y, e: closest(m, x, y, L2(5.0), steps=10, **BATCH, **e),
    "counts": lambda m, x, y, e: closest(
        m, x, y, L0(3, bounds=(-9, 9)), steps=8, **BATCH, **e
    ),
    "masked": lambda m, x, y, e: strongest(
        masked, x, y, Linf(0.1), surrogate=m, budget=24, queries=10, **BATCH, **e
    ),
    "inputs": lambda m, x, y, e: strongest(
        two, {"x": x, "shift": torch.linspace(0, 1, len(x))[:, None].double()}, y, L2(0.3),
        budget=24, queries=10, surrogate=lambda x, shift: m(x) + shift / 2, **BATCH, **e
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_a_cluster_finds_what_one_process_finds(client, name):
    model, x = MLP, points(20, 4)
    y = model(x).argmax(1)
    here, there = (RUNS[name](model, x, y, {"engine": e}) for e in ("local", "dask"))
    assert here == there
    assert here.gradients + here.queries > 0


def test_a_failed_batch_is_repeated(client):
    calls.clear()
    torch.manual_seed(0)
    model, x = Unlucky(4, 3), points(20, 4, dtype=torch.float32)
    y, attack = model(x).argmax(1), PGD(L2(0.5), steps=3, batch_size=5)
    wanted = attack(model, x, y)
    assert attack(model, x, y, engine="dask") == wanted


def test_idle_workers_are_told(client):
    model, x = small_mlp(4), points(20, 4)
    with pytest.warns(UserWarning, match=r"1 task\(s\) for 4 workers: batch_size=5"):
        PGD(L2(0.5), steps=3)(model, x, model(x).argmax(1), engine="dask")


def test_models_that_cannot_be_sent_are_refused_in_a_sentence(client):
    lock, model, x = threading.Lock(), small_mlp(4), points(8, 4)
    y = model(x).argmax(1)

    def held(x):
        with lock:
            return model(x)

    attack = PGD(L2(0.5), steps=3, batch_size=2)
    with pytest.raises(InputError, match=r'engine must be "local" for what cannot be sent.*lock'):
        attack(held, x, y, engine="dask")
    with pytest.raises(InputError, match=r"inproc.* lacks it: No module named 'a_module_of_the"):
        attack(Lost(model), x, y, engine="dask")
    with pytest.raises(InputError, match="engine must be"):
        robust_error(model, x, y, L2(0.5), engine="ray")


def test_the_command_line_attacks_on_a_cluster(client, tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from overt.cli import app

    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(
        "import torch\n\nclass Net(torch.nn.Linear):\n    pass\n\n"
        "def build():\n    torch.manual_seed(0)\n    return Net(4, 3)\n"
    )
    x = points(20, 4, dtype=torch.float32).numpy()
    np.savez("data.npz", x=x, y=np.arange(20) % 3)
    words = ["attack", "net.py:build", "--data", "data.npz", "--batch-size", "5", "--budget", "24"]
    words += ["--queries", "0"]
    found = [
        json.loads(CliRunner().invoke(app, [*words, "--json", "--engine", e]).stdout)
        for e in ("local", "dask")
    ]
    for one in found:
        del one["run"]["engine"]
    assert found[0] == found[1]
