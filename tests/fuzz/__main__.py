"""The long run: python -m fuzz [minutes] [seed] [words], from the folder tests (make fuzz).

Damages files of every kind and calls public functions and commands with hostile arguments, in
turns, until the time is up, then kills what writes files; prints the counts and every broken rule,
and ends with 1 if there is any. Words choose the rooms, readers and rows whose names hold one.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import chdir
from itertools import count
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
"""Seconds of the processor that a row or a reader has in a round; at most `AT_MOST` inputs."""
AT_MOST = 1000


def main(minutes: float = 10, seed: int = 0, *words: str) -> int:
    end, counts, faults = time.monotonic() + 60 * minutes, Counter(), 0
    with TemporaryDirectory() as home, chdir(home):  # some arguments are names of files to write
        attacks = list(_attacks(Path(home), words))
        for number in count(seed):
            for room, name, once in attacks:
                rng = np.random.default_rng([number, crc32(name.encode())])
                start, told = time.process_time(), Counter()
                for _ in range(AT_MOST):
                    fault = once(rng)
                    counts[room] += 1
                    if fault:
                        told[fault] += 1
                    if time.process_time() - start > SHARE:
                        break
                for fault in told:
                    print(f"round {number}, {name}: {fault}", flush=True)
                faults += sum(told.values())
            if time.monotonic() > end:
                break
            print(f"# round {number}: {sum(counts.values()):,} inputs, {faults} faults", flush=True)
        kills = (("kills while saving", saving, 100), ("kills and resumptions", resuming, 60))
        for name, kill, times in () if words else kills:
            found = kill(Path(home) / name, times if kill is saving else times // 3, seed)
            print("\n".join(found), end="")
            counts[name], faults = times, faults + len(found)
    for name, times in counts.items():
        print(f"{times:9,} {name}")
    print(f"{sum(counts.values()):9,} in all, {faults} outside the rule")
    return bool(faults)


def _attacks(home, words):
    """Yield rooms, names, and what attacks each once with a generator of random numbers."""

    def chosen(*names):
        return not words or any(word in name for word in words for name in names)

    for name, reader in READERS.items():
        if chosen(name):
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
