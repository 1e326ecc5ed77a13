"""Kill -9 at random moments of what writes files: the state before or the new one is there.

A process forked from this one works until it is killed; what it left is then read here.
"""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fuzz import readers

import overt


def interrupted(work: Callable[[], Any], seconds: float) -> bool:
    """Run work in a process that is killed after so many seconds; return whether it was killed."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def duration(work: Callable[[], Any]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def saving(folder: Path, count: int, seed: int = 0) -> list[str]:
    """Save two models in turns over each other, and two results; return what could not be read."""
    rng, faults = np.random.default_rng(seed), []
    models = [readers._completion(seed=s).fit(readers._entries()) for s in (0, 1)]
    results = [
        readers.SOLUTION,
        overt.LinearNetwork(readers.M, 3, overt.Dropout(0.6)).solve(),
    ]
    known = {_predicted(model) for model in models}

    def once(k: int) -> None:
        models[k].save(folder / "model")
        results[k].save(folder / "result.json")
        results[k].save(folder / "result.npz")

    def turns() -> None:
        for k in range(10**6):
            once(k % 2)

    folder.mkdir(parents=True, exist_ok=True)
    once(0)
    long = 4 * duration(lambda: once(0))
    for number in range(count):
        interrupted(turns, long * rng.random())
        try:
            if _predicted(type(models[0]).load(folder / "model")) not in known:
                faults.append(f"kill {number}: another model")
            found = [
                overt.Solution.load(folder / name)
                for name in ("result.json", "result.npz")
            ]
            faults += [
                f"kill {number}: another result" for one in found if one not in results
            ]
        except overt.InputError as error:
            faults.append(f"kill {number}: {error}")
    return faults


def resuming(folder: Path, count: int, seed: int = 0) -> list[str]:
    """Kill fits, trainings and figures, and resume them; return what came out different."""
    rng, faults = np.random.default_rng(seed), []
    for kind, (start, finish) in RESUMED.items():
        whole = folder / kind / "whole"
        whole.mkdir(parents=True)
        long = duration(lambda at=whole, start=start: start(at))
        expected = finish(whole)
        for number in range(count):
            at = folder / kind / str(number)
            at.mkdir()
            interrupted(lambda at=at, start=start: start(at), long * rng.random())
            try:
                if finish(at) != expected:
                    faults.append(f"{kind}, kill {number}: another result")
            except overt.InputError as error:
                faults.append(f"{kind}, kill {number}: {error}")
    return faults


def _predicted(model: Any) -> bytes:
    return pickle.dumps([model.U_, model.V_, model.predict([0, 1], [0, 1])])


def _fit(folder: Path) -> bytes:
    from overt.completion.storage import SweepCheckpoint

    model = readers._completion(drop_prob="learn", max_sweeps=12, tol=0.0, average=3)
    kept = SweepCheckpoint(folder, readers._entries(), model.get_params(), resume=True)
    return _predicted(model.fit_entries(readers._entries(), checkpoint=kept))


def _train(folder: Path) -> bytes:
    import torch

    from overt.robust import FGSM, L2, adversarial_train

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 5), torch.nn.Dropout(0.5), torch.nn.Linear(5, 3)
        )
    x, y = torch.tensor(readers.M).float().repeat(8, 1), torch.arange(40) % 3
    adversarial_train(
        model,
        (x, y),
        FGSM(L2(0.1)),
        batch_size=8,
        epochs=4,
        checkpoint=folder / "training.safetensors",
        seed=1,
    )
    return pickle.dumps([value.numpy() for value in model.state_dict().values()])


def _run(folder: Path) -> list[Any]:
    from overt.papers import run

    rows = run(readers._figure(), out=folder)
    return [[row["n"], row["v"]] for row in rows]


RESUMED = {"fit": (_fit, _fit), "training": (_train, _train), "figure": (_run, _run)}
