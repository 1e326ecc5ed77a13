"""Mutants of the core rooms: python -m fuzz.mutants [room ...] [count] [seed] (make mutants).

A mutant is a room's source with one of the changes of `edits`. It is caught if a test fails. Tests
are collected once, and run once to see which lines each of them reaches (kept in the folder for
temporary files); then each mutant is put into a forked process and meets the tests that reach its
lines, cheapest first. Files of compiled kernels are examined without compilation. Survivors are
printed; those in EQUIVALENT compute the same. Names of files (search.py) confine it to them.
"""

from __future__ import annotations

import ast
import builtins
import gc
import hashlib
import importlib
import inspect
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from fuzz.edits import SOURCE, Mutant, mutants, pairs, probed

HOME = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
SECONDS = 10.0  # of tests against one mutant
LONGEST = 3.0  # a test that takes longer, while it is watched, is not asked
ALL = ["contracts", "test_check.py", "test_theorems.py", "fuzz/test_arrays.py", "fuzz/test_fuzz.py"]
ROOMS = {
    "noise": ("noise", "linear/test_train.py"),
    "penalty": ("penalty.py", ""),
    "spectral": ("spectral", "test_spectral.py"),
    "equalize": ("equalize.py", "test_equalize.py"),
    "linear": ("linear", "linear test_results.py"),
    "completion": ("completion/forms completion/kernels",
                   "completion/test_[befgiprs]*.py completion/test_kernels.py"),
    "decay": ("decay", "decay"),
    "relu": ("relu", "relu"),
    "robust": ("robust/attacks robust/threats robust/certificates robust/training/losses.py",
               "robust/test_[acdos]*.py robust/test_th*.py robust/test_trust.py"),
    "nn": ("nn/moments nn/layers nn/penalties.py nn/curvature.py nn/comparing.py nn/training.py",
           "nn/test_nn_[bdlmoprw]*.py"),
}  # fmt: skip


def files_of(*rooms: str) -> list[Path]:
    """Source files of rooms."""
    paths = [SOURCE / source for room in rooms for source in ROOMS[room][0].split()]
    return [p for path in paths for p in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]


def within(code: CodeType) -> tuple[str, str]:
    """Name a function such that changes elsewhere in its file leave the name."""
    return str(Path(code.co_filename).relative_to(SOURCE)), code.co_qualname


class Examination:
    """A plugin of pytest that collects tests, and in place of running them examines mutants."""

    def __init__(
        self, files: list[Path], chosen: list[tuple[str, Mutant, CodeType, ast.Module]], store: Path
    ):
        self.files, self.chosen, self.store, self.failed = files, chosen, store, False
        self.outcomes: list[tuple[str, int]] = []

    def pytest_collection(self) -> None:
        import hypothesis

        phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
        hypothesis.settings.register_profile("mutants", hypothesis.settings(), phases=phases)
        hypothesis.settings.load_profile("mutants")
        for path in files_of(*ROOMS):
            parts = path.relative_to(SOURCE.parent).with_suffix("").parts
            importlib.import_module(".".join(parts).removesuffix(".__init__"))

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.failed |= report.failed

    def pytest_runtestloop(self, session: Any) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        self.functions = [f for f in gc.get_objects() if type(f) is FunctionType]
        codes = {str(path) for path in files_of(*ROOMS)}
        self.functions = [f for f in self.functions if f.__code__.co_filename in codes]
        gc.freeze()
        reach, cost = self.reached()
        for name, mutant, old, tree in self.chosen:
            new = mutant.code(tree)
            swap = dict(pairs(old, new))
            if not swap:  # the compiler sees no difference
                self.outcomes.append((name, 2))
                continue
            inner = [code for code in swap if not code.co_name.startswith("<")] or [old]
            place, first = within(inner[-1]), inner[-1].co_firstlineno
            tests = {t for line in mutant.lines for t in reach[*place, line - first]}
            # Lines may have moved since they were recorded: others that reach the function follow.
            rest = {t for other in reach if other[:2] == place for t in reach[other]} - tests
            tests = [*sorted(tests, key=cost.get), *sorted(rest, key=cost.get)]
            total, asked = 0.0, []
            for test in tests:
                total += cost[test]
                if total > SECONDS:
                    break
                asked.append(test)
            survived = self.survives({test: cost[test] for test in asked}, swap)
            self.outcomes.append((name, int(survived)))
            text = f"\nsurvived {len(asked)} of {len(tests)}: {name}\n" if survived else "."
            print(text, end="", file=sys.__stdout__, flush=True)
        return True

    def swap(self, swap: dict[CodeType, CodeType]) -> None:
        for function in self.functions:
            # A closure that would see other names is made again by its outer function.
            with suppress(ValueError):
                function.__code__ = swap.get(function.__code__, function.__code__)

    def survives(self, tests: dict[str, float], swap: dict[CodeType, CodeType]) -> bool:
        """Whether these tests, with their seconds, pass in a forked process with other code."""
        if pid := os.fork():
            return os.waitpid(pid, 0)[1] == 0
        try:
            resource.setrlimit(resource.RLIMIT_DATA, (2**33, 2**33))
            signal.alarm(240)
            self.swap(swap)
            for test, after in zip(tests, [*list(tests)[1:], None], strict=True):
                # Ends the process; kernels may have to be compiled.
                signal.setitimer(signal.ITIMER_PROF, 8 + 3 * tests[test])
                self.run(test, after)
                if self.failed:
                    os._exit(1)
            os._exit(0)
        finally:
            os._exit(1)

    def run(self, test: str, after: str | None = None) -> None:
        item, following = self.items[test], self.items.get(after)
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)

    def reached(self) -> tuple[dict[Any, list[str]], dict[str, float]]:
        """Return the tests that reach each line, and their seconds, measured where unknown."""
        self.store.mkdir(exist_ok=True)
        by_file = defaultdict(dict)
        for name, item in self.items.items():
            text = name + inspect.getsource(item.function)
            by_file[item.path][hashlib.sha256(text.encode()).hexdigest()] = name
        reach, cost = defaultdict(list), {}
        for path, keys in by_file.items():
            file = self.store / "-".join([*path.relative_to(HOME).with_suffix(".json").parts])
            known = json.loads(file.read_text()) if file.exists() else {}
            if new := [name for key, name in keys.items() if key not in known]:
                found = self.record(new)
                known |= {key: found.get(name) for key, name in keys.items() if name in new}
                file.write_text(json.dumps(known))
            for key, test in keys.items():
                cost[test], places = known[key] or (LONGEST, [])
                for place in places:
                    reach[tuple(place)].append(test)
        return reach, cost

    def record(self, names: list[str]) -> dict[str, Any]:
        """Return seconds and lines of the tests that pass in time."""
        found = {}
        while names:
            seen = self.watch(names)
            found |= {test: hits for test, *hits in seen if hits[1]}
            names = names[len(seen) + 1 :]  # one that never came back ended the process
        return found

    def watch(self, names: list[str]) -> list[Any]:
        """Run tests in a forked process, up to one that hangs: (name, seconds, lines) of each."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            signal.signal(signal.SIGPROF, _too_long)
            places, hits = self.probe()
            with os.fdopen(writing, "w") as out:
                for test in names:
                    self.failed, start = False, time.process_time()
                    hits.clear()
                    signal.alarm(60)
                    signal.setitimer(signal.ITIMER_PROF, LONGEST)
                    try:
                        self.run(test)
                    except BaseException:
                        self.failed = True
                    signal.setitimer(signal.ITIMER_PROF, 0)
                    seconds = time.process_time() - start
                    lines = sorted({line for hit in hits for line in places[hit]})
                    passed = not self.failed and seconds < LONGEST
                    print(json.dumps((test, seconds, lines * passed)), file=out, flush=True)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as lines:
            seen = [json.loads(line) for line in lines]
        os.waitpid(pid, 0)
        return seen

    def probe(self) -> tuple[list[Any], set[int]]:
        """Have every statement tell that it runs; return their places, and who told."""
        hits, places, swap = set(), [], {}
        builtins.__dict__["__hit__"] = hits.add
        for path in files_of(*ROOMS):
            text = path.read_text()
            if "njit" in text and os.environ["NUMBA_DISABLE_JIT"] != "1":
                continue
            tree = ast.parse(text)
            old = compile(tree, str(path), "exec", dont_inherit=True)
            probed(tree, str(path.relative_to(SOURCE)), places)
            swap |= dict(pairs(old, compile(tree, str(path), "exec", dont_inherit=True)))
        self.swap(swap)
        return places, hits


def _too_long(*_: Any) -> None:
    raise TimeoutError


def examine(room: str, count: int, seed: int, only: tuple[str, ...]) -> tuple[int, int, int]:
    """Return (caught, survived, equivalent) of so many mutants of a room or of files of it."""
    import numpy as np

    lines = EQUIVALENT.read_text().splitlines() if EQUIVALENT.exists() else []
    known = {line.partition("  # ")[0] for line in lines}
    files = files_of(room)
    pool = []
    for path in files if not only else [p for p in files if str(p).endswith(only)]:
        tree = ast.parse(path.read_text())
        old = compile(tree, str(path), "exec", dont_inherit=True)
        pool += [(mutant.name, mutant, old, tree) for mutant in mutants(path, tree)]
    chosen = [pool[at] for at in np.random.default_rng(seed).permutation(len(pool))[:count]]
    asked = [row for row in chosen if row[0] not in known]
    tally = [0, 0, len(chosen) - len(asked)]
    for compiled in (True, False):
        part = [row for row in asked if ("njit" in row[1].path.read_text()) != compiled]
        if part:
            for outcome in _forked(room, files, part, compiled):
                tally[outcome] += 1
    return tuple(tally)


def _forked(room: str, files: list[Path], part: list[Any], compiled: bool) -> list[int]:
    """Outcomes from a process of its own, with numba's compiler or without."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        with os.fdopen(reading) as answer:
            text = answer.read()
        os.waitpid(pid, 0)
        return json.loads(text)
    try:
        os.environ["NUMBA_DISABLE_JIT"] = str(int(not compiled))
        os.chdir(HOME)
        import pytest

        store = Path(tempfile.gettempdir()) / f"overt-mutants-{compiled}"
        plugin = Examination(files, part, store)
        tests = [*ROOMS[room][1].split(), *ALL * compiled]
        paths = [str(path) for test in tests for path in sorted((HOME / "tests").glob(test))]
        options = "-o addopts= --import-mode=importlib --capture=sys --assert=plain -p no:dash"
        plain = "-p no:cacheprovider -p no:xdist -p no:terminal -p no:faulthandler"
        # Without compilation most tests take minutes; those of kernels say so in their names.
        named = [] if compiled else ["-k", "kernel or compiled or reference or torch"]
        pytest.main([*options.split(), *plain.split(), *named, *paths], plugins=[plugin])
        os.write(writing, json.dumps([outcome for _, outcome in plugin.outcomes]).encode())
    finally:
        os._exit(0)


def main(words: list[str]) -> int:
    import scipy.stats

    rooms = [word for word in words if word in ROOMS] or list(ROOMS)
    only = tuple(word for word in words if word.endswith(".py"))
    given = [int(word) for word in words if word.isdigit()]
    count, seed = (given + [60, 0][len(given) :])[:2]
    os.nice(max(0, 10 - os.nice(0)))
    for room in rooms:
        caught, survived, same = examine(room, count, seed, only)
        of = caught + survived
        low = scipy.stats.beta.ppf(0.025, caught, of - caught + 1) if caught else 0.0
        high = scipy.stats.beta.ppf(0.975, caught + 1, of - caught) if survived else 1.0
        print(f"{room}: {caught} of {of} caught, {caught / max(of, 1):.0%} "
              f"(95% interval {low:.0%} to {high:.0%}), {same} equivalent", flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
