"""The long run: python -m fuzz [minutes] [seed], from the folder tests (make fuzz).

Damages files of every kind and calls public functions with hostile arguments, in turns, until the
time is up, then kills what writes files; prints the counts and every broken rule, and ends with 1
if there is any.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from fuzz.crash import resuming, saving
from fuzz.functions import ROOMS
from fuzz.hostile import assault
from fuzz.readers import READERS, attack


def main(minutes: float = 10, seed: int = 0) -> int:
    end, counts, faults = time.monotonic() + 60 * minutes, Counter(), []
    with TemporaryDirectory() as home:
        while time.monotonic() < end:
            seed += 1
            for name, reader in READERS.items():
                folder = Path(home) / name
                folder.mkdir(exist_ok=True)
                found = attack(reader, folder, 200, seed)
                counts[name] += 200
                for fault in found:
                    print(f"{name}: {fault}", flush=True)
                faults += found
                if time.monotonic() > end:
                    break
            rng = np.random.default_rng(seed)
            for room, rows in ROOMS.items():
                for name, row in rows.items():
                    found = [f"{name}: {fault}" for _ in range(20) if (fault := assault(row, rng))]
                    counts[room] += 20
                    for fault in found:
                        print(f"seed {seed}, {fault}", flush=True)
                    faults += found
                if time.monotonic() > end:
                    break
        for name, kill in (("kills while saving", saving), ("kills and resumptions", resuming)):
            found = kill(Path(home) / name, 20 if name.endswith("ions") else 100, seed)
            print("\n".join(found), end="")
            counts[name], faults = 60 if name.endswith("ions") else 100, faults + found
    for name, count in counts.items():
        print(f"{count:9,} {name}")
    print(f"{sum(counts.values()):9,} in all, {len(faults)} outside the rule")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(*map(float, sys.argv[1:2]), *map(int, sys.argv[2:3])))
