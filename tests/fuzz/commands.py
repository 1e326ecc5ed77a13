"""Every command with wrong words: a result and 0, or one sentence and 2; never a traceback."""

from __future__ import annotations

import os
import signal
import warnings
from contextlib import chdir, suppress
from pathlib import Path

import numpy as np
from fuzz import readers
from fuzz.hostile import Hang, limits
from typer.testing import CliRunner

import overt
from overt.cli import app

NET = """import torch
def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 3))
"""
LINES = {
    "solve": "solve M.npy --width 2 --drop-prob 0.5 --noise dropblock --block-size 1 --out o.npz",
    "solve of data": "solve --x X.npy --y Y.npy --width 2 --rank 1",
    "train": "train M.npy --width 2 --drop-prob 0.5 --steps 4 --learning-rate 0.01 --seeds 1 "
    "--gradient sampled --n-jobs 1 --out t.npz",
    "certify": "certify M.npy U.npy V.npy --drop-prob 0.5 --out c.json",
    "complete": "complete r.csv --drop-prob 0.5 --factors 2 --holdout 0.2 "
    "--predict pairs.csv --duplicates mean --missing unknown --n-jobs 1 --seed 0 --out fit",
    "evaluate": "evaluate r.csv --split random --factors 2 --holdout 0.2 --seed 0 --n-jobs 1",
    "predict": "predict model pairs.csv --out p.csv",
    "recommend": "recommend model --user 1 --n 2 --by auto",
    "recommend to all": "recommend model --all lists.csv --n 2",
    "recommend to a newcomer": "recommend model --entries newcomer.csv --n 2",
    "update": "update model r2.csv",
    "jumps": "jumps --epsilon 0.25 --depth 3 --width 3 --seeds 1 --noisy-steps 5 --quiet-steps 5 "
    "--learning-rate 0.2 --weight-decay 0.1 --n-jobs 1 --seed 0 --out j.npz",
    "verify": "verify shallow-penalty --seed 0",
    "reproduce": "reproduce nothing --size toy --n-jobs 1 --out rows",
    "audit": "audit net.py:build --data d.npz --loss cross_entropy --points 4 --batch 2 --seed 0",
    "compress": "compress net.py:build --data d.npz --keep 0.5 --of parameters --by flow "
    "--loss auto --points 4 --out small",
    "attack": "attack net.py:build --data d.npz --norm l2 --radius 0.1 --radii 0.1,0.2 "
    "--bounds none --scale 1 --budget 24 --queries 0 --points 3 --out attacked",
}
WORDS = [
    "",
    "-1",
    "0",
    "nan",
    "inf",
    "-inf",
    "1e300",
    "1e999",
    "9" * 30,
    "x",
    "..",
    "/",
    "folder",
    "nowhere.csv",
    "none/x.npz",
    "M.npy/x",
    "M.npy",
    "r.csv",
    "d.npz",
    "net.py",
    "net.py:x",
    "empty.csv",
    "empty.npz",
    "locked.csv",
    "a\nb.csv",
    "ü.npz",
    "--",
    "[]",
    "1,2",
    ",",
    ":",
    "0.5",
    "2",
    "1.5",
    "True",
    "None",
    "[red]",
    "/dev/full",
    "/dev/null",
    "pipe",
    "~",
    "*",
    "tcp://127.0.0.1:1",
    "\udcff",
    "x" * 300,
    "text.npy",
    "loop",
]


def prepare(folder: Path) -> None:
    """Write small inputs of all commands, and what they should refuse."""
    rng = np.random.default_rng(0)
    for name, shape in (
        ("M", (4, 3)),
        ("U", (4, 2)),
        ("V", (3, 2)),
        ("X", (6, 3)),
        ("Y", (6, 2)),
    ):
        np.save(folder / f"{name}.npy", rng.standard_normal(shape))
    np.savez(
        folder / "d.npz", x=rng.standard_normal((6, 4)).astype("f4"), y=np.arange(6) % 3
    )
    (folder / "net.py").write_text(NET)
    rows = [f"{i % 7},{i % 5},{i % 4 + 0.5}\n" for i in range(30)]
    (folder / "r.csv").write_text("user,item,rating\n" + "".join(rows))
    (folder / "r2.csv").write_text("user,item,rating\n0,1,3\n9,2,1\n")
    (folder / "pairs.csv").write_text("user,item\n0,1\n3,2\n")
    (folder / "newcomer.csv").write_text("item,rating\n0,1\n2,3\n")
    (folder / "text.npy").write_text("no array")
    (folder / "locked.csv").write_text("1,2,3\n")
    (folder / "locked.csv").chmod(0)
    for name in ("empty.csv", "empty.npz"):
        (folder / name).touch()
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    # Newcomers and updates need a model that knows how uncertain it is.
    model = readers._completion(drop_prob="learn", max_sweeps=500)
    model.fit(readers._entries()).save(folder / "model")


class Console:
    """The command line in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        prepare(folder)

    def once(self, line: str, rng) -> str:
        """Run a command with one word wrong; return how the rule is broken, or nothing."""
        words = line.split()
        at = int(rng.integers(1, len(words)))
        wrong = WORDS[int(rng.integers(len(WORDS)))]
        if rng.random() < 0.1:
            del words[at]
        elif rng.random() < 0.05:
            words.insert(at, wrong)
        else:
            words[at] = wrong
        fault = self.judge(words)
        return fault and f"{' '.join(words)!r}: {fault}"

    def judge(self, words: list[str]) -> str:
        """Run the command line; return how the rule is broken, or nothing."""
        for folder in ("fit", "rows", "small", "attacked"):
            with suppress(OSError):
                os.rename(self.folder / folder, self.folder / "old")
        before = signal.getsignal(signal.SIGINT)
        try:
            with chdir(self.folder), warnings.catch_warnings(), limits():
                warnings.simplefilter("ignore")  # the command line prints them
                found = CliRunner().invoke(app, words)
        except Hang:
            return "hang"
        finally:
            signal.signal(signal.SIGINT, before)
        error = found.exception
        known = (overt.InputError, overt.MissingExtraError, OSError, SystemExit)
        if error is None or (isinstance(error, known) and str(error)):
            return ""
        return f"{type(error).__name__} {error!s:.150}"
