"""The long run: python -m fuzz [minutes] [seed] [words], from the folder tests (make fuzz).

Damages files of every kind and calls public functions and commands with hostile arguments, in
turns, until the time is up, then kills what writes files; prints counts and broken rules as it
goes, and ends with 1 if there is any. Words choose the rooms and rows whose names hold one, such as
"readers"; `times=8` gives each eight times as much of a round.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import chdir
from itertools import count, groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from zlib import crc32

import numpy as np
from fuzz.commands import LINES, Console
from fuzz.crash import resuming, saving
from fuzz.hostile import assault
from fuzz.methods import ROOMS
from fuzz.readers import READERS, Victim

SHARE = 0.15
"""Seconds of the processor that a row has in a round; at most `AT_MOST` inputs."""
AT_MOST = 1000
READING = 8
"""Times as much of both for a reader: there are few of them, and some are slow."""


def main(minutes: float = 10, seed: int = 0, *words: str) -> int:
    end, counts, faults = time.monotonic() + 60 * minutes, Counter(), 0
    times = int(next((word[6:] for word in words if word.startswith("times=")), "1"))
    words = tuple(word for word in words if "=" not in word)
    with (
        TemporaryDirectory() as home,
        chdir(home),
    ):  # some arguments are names of files to write
        attacks = list(_attacks(Path(home), words))
        for number in count(seed):
            for room, rows in groupby(attacks, lambda attack: attack[0]):
                more = times * (READING if "reader" in room else 1)
                for _, name, once in rows:
                    rng = np.random.default_rng([number, crc32(name.encode())])
                    done, told = _run(once, rng, more)
                    counts[room] += done
                    for fault in told:
                        print(f"round {number}, {name}: {fault}", flush=True)
                    faults += sum(told.values())
                print(f"# {counts[room]:,} {room}", flush=True)
            if time.monotonic() > end:
                break
            print(
                f"# round {number}: {sum(counts.values()):,} inputs, {faults} faults",
                flush=True,
            )
        kills = (
            ("kills while saving", saving, 100),
            ("kills and resumptions", resuming, 60),
        )
        for name, kill, times in () if words else kills:
            found = kill(
                Path(home) / name, times if kill is saving else times // 3, seed
            )
            print("\n".join(found), end="")
            counts[name], faults = times, faults + len(found)
    for name, times in counts.items():
        print(f"{times:9,} {name}")
    print(f"{sum(counts.values()):9,} in all, {faults} outside the rule")
    return bool(faults)


def _run(once, rng, more):
    """Attack for a share of a round; return the number of inputs, and the faults."""
    start, told, done = time.process_time(), Counter(), 0
    while done < AT_MOST * more and time.process_time() - start <= SHARE * more:
        fault = once(rng)
        done += 1
        if fault:
            told[fault] += 1
    return done, told


def _attacks(home, words):
    """Yield rooms, names, and what attacks each once with a generator of random numbers."""

    def chosen(*names):
        return not words or any(word in name for word in words for name in names)

    for name, reader in READERS.items():
        if chosen(f"reader: {name}", "readers"):
            folder = home / name
            folder.mkdir()
            yield f"reader: {name}", name, Victim(reader, folder).once
    console = Console(home / "console") if chosen("command line", *LINES) else None
    for name, line in LINES.items():
        if chosen("command line", name):
            yield "command line", name, lambda rng, line=line: console.once(line, rng)
    for room, rows in ROOMS.items():
        for name, row in rows.items():
            if chosen(room, name):
                yield room, name, lambda rng, row=row: assault(row, rng)


if __name__ == "__main__":
    sys.exit(main(*map(float, sys.argv[1:2]), *map(int, sys.argv[2:3]), *sys.argv[3:]))
