"""A real Ctrl-C at a random moment of every long command: one sentence, exit code 130.

Run by `python -m fuzz.interrupts [times] [seed]` from the folder tests. A process forked from this
one, which has imported everything, runs the command; what it leaves is read afterwards.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import chdir, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from fuzz.commands import prepare

import overt
from overt.cli import main
from overt.completion import DropoutCompletion, read_ratings

LINES = {
    "solve": (
        "solve wide.npy --width 40 --noise dropblock --block-size 4 --drop-prob 0.4",
        1.5,
    ),
    "train": (
        "train M.npy --width 3 --steps 3000000 --seeds 4 --n-jobs 1 --out t.npz",
        2.0,
    ),
    "complete": ("complete many.csv --factors 8 --n-jobs 1 --out fit", 3.0),
    "evaluate": ("evaluate many.csv --factors 8 --n-jobs 1", 3.0),
    "recommend": ("recommend large --all lists.csv --n 50", 1.0),
    "update": ("update large many.csv", 2.0),
    "jumps": ("jumps --seeds 40 --n-jobs 1 --out j.npz", 3.0),
    "reproduce": ("reproduce dropout-fig2 --size toy --out rows", 2.0),
    "verify": ("verify", 4.0),
    "audit": ("audit net.py:build --data d.npz --points 6", 1.5),
    "attack": (
        "attack net.py:build --data d.npz --radius 0.1 --budget 20000 --out attacked",
        2.0,
    ),
    "tour": ("tour --out tour", 4.0),
}


def interrupted(line: str, after: float, folder: Path) -> tuple[int, str]:
    """Run a command, interrupt it after so many seconds; return exit code and what it said."""
    said = folder / "said.txt"
    began, begin = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = 1
        try:
            out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1), os.dup2(out, 2)
            sys.stdout = os.fdopen(1, "w")
            sys.stderr = os.fdopen(2, "w")
            sys.argv = ["overt", *line.split()]
            os.write(begin, b"x")
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException as error:
            print(f"Traceback of {type(error).__name__}: {error}")
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)
    os.read(began, 1)
    os.close(began), os.close(begin)
    time.sleep(after)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), said.read_text(errors="replace")


def inputs(folder: Path) -> None:
    prepare(folder)
    rng = np.random.default_rng(0)
    np.save(folder / "wide.npy", rng.standard_normal((120, 100)))
    rows = {
        (int(a), int(b))
        for a, b in zip(
            rng.integers(3000, size=60_000), rng.integers(500, size=60_000), strict=True
        )
    }
    lines = [f"{a},{b},{rng.integers(1, 6)}\n" for a, b in rows]
    (folder / "many.csv").write_text("user,item,rating\n" + "".join(lines))
    model = DropoutCompletion(n_factors=4, max_sweeps=2, average=0, n_jobs=1)
    model.fit(read_ratings(folder / "many.csv").entries).save(folder / "large")


def judge(name: str, code: int, said: str, folder: Path) -> str:
    if "Traceback" in said or code not in (0, 130):
        return f"exit code {code}: {said[-300:]}"
    if code == 130 and "interrupted" not in said:
        return f"nothing said: {said[-200:]}"
    left = [path.name for path in folder.rglob("*.part")]
    if left:
        return f"half a file is left: {left}"
    try:
        DropoutCompletion.load(folder / "large")
    except overt.InputError as error:
        return f"the model before is gone: {error}"
    return ""


def run(times: int = 3, seed: int = 0) -> list[str]:
    rng, faults = np.random.default_rng(seed), []
    with TemporaryDirectory() as home, chdir(home):
        folder = Path(home)
        inputs(folder)
        for name, (line, longest) in LINES.items():
            codes = []
            for _ in range(times):
                after = float(longest * rng.random() ** 1.5)
                code, said = interrupted(line, after, folder)
                codes.append(code)
                fault = judge(name, code, said, folder)
                if fault:
                    faults.append(f"{name} after {after:.2f} s: {fault}")
            print(
                f"{name}: {codes}, last said {' '.join(said.split())[-90:]}", flush=True
            )
    return faults


if __name__ == "__main__":
    found = run(*map(int, sys.argv[1:]))
    print("\n".join(found) or "none outside the rule")
    sys.exit(bool(found))
