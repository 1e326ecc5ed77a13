"""Mutants of the core rooms: python -m fuzz.mutants [room ...] [count] [seed] (make mutants).

A mutant is the source with one operator, comparison, constant or statement changed. Each runs the
tests of its room, in a process forked from one that has imported the libraries, and counts as
caught if a test fails. Survivors are printed; those in EQUIVALENT compute the same.
"""

from __future__ import annotations

import ast
import copy
import os
import resource
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

HOME = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
ROOMS = {
    "noise": (["noise"], ["contracts/test_noises.py"]),
    "penalty": (["penalty.py"], ["contracts/test_penalties.py", "fuzz/test_arrays.py"]),
    "spectral": (["spectral"], ["test_spectral.py"]),
    "equalize": (["equalize.py"], ["test_equalize.py", "fuzz/test_arrays.py"]),
    "linear": (["linear"], ["linear"]),
    "completion": (["completion/forms", "completion/kernels"], ["completion"]),
    "decay": (["decay"], ["decay"]),
    "relu": (["relu"], ["relu"]),
    "robust": (["robust/attacks", "robust/threats", "robust/certificates"], ["robust"]),
    "nn": (["nn/moments", "nn/layers", "nn/penalties.py"], ["nn"]),
}
SWAPS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE,
    ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.And: ast.Or, ast.Or: ast.And,
    ast.USub: ast.UAdd, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


def places(tree: ast.Module) -> list[tuple[str, ast.AST]]:
    """Return what can be changed, inside functions only, and neither messages nor docstrings."""
    found = []

    def visit(node: ast.AST, inside: bool) -> None:
        if isinstance(node, (ast.Raise, ast.JoinedStr)) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ):
            return
        if inside and isinstance(node, (ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.AugAssign)):
            found.extend([("operator", node)] * (type(node.op) in SWAPS))
        if inside and isinstance(node, ast.Compare):
            found.extend([("comparison", node)] * (type(node.ops[0]) in SWAPS))
        if inside and isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
            found.append(("constant", node))
        if inside and isinstance(node, (ast.Expr, ast.AugAssign)):
            found.append(("statement", node))
        inside = inside or isinstance(node, (ast.FunctionDef, ast.Lambda))
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    visit(child, inside)

    visit(tree, False)
    return found


def changed(source: str, number: int) -> tuple[str, str]:
    """Return the source with one place changed, and what was done."""
    tree = ast.parse(source)
    kind, node = places(tree)[number]
    before = ast.unparse(node)
    if kind == "operator":
        node.op = SWAPS[type(node.op)]()
    elif kind == "comparison":
        node.ops[0] = SWAPS[type(node.ops[0])]()
    elif kind == "constant":
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1
    else:
        old = copy.copy(node)
        for parent in ast.walk(tree):
            for _, value in ast.iter_fields(parent):
                if isinstance(value, list) and node in value:
                    value[value.index(node)] = ast.copy_location(ast.Pass(), old)
    after = "pass" if kind == "statement" else ast.unparse(node)
    return ast.unparse(ast.fix_missing_locations(tree)), f"{before[:60]} -> {after[:60]}"


def survives(copy_of: Path, tests: list[str]) -> bool:
    """Run tests in a forked process; whether all pass."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (300, 300))
            sys.path[:0] = [str(copy_of / "src"), *(str(HOME / "tests" / p) for p in ("", "nn"))]
            os.environ["NUMBA_CACHE_DIR"] = str(copy_of / "numba")
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1), os.dup2(nothing, 2)
            import pytest

            paths = [str(HOME / "tests" / test) for test in tests]
            code = int(pytest.main(["-q", "-x", "-p", "no:dash", "-p", "no:cacheprovider", *paths]))
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def examine(room: str, count: int, seed: int) -> tuple[int, int, int]:
    """Return (caught, survived, equivalent) of so many mutants of a room."""
    sources, tests = ROOMS[room]
    known = EQUIVALENT.read_text().splitlines() if EQUIVALENT.exists() else []
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        shutil.copytree(HOME / "src", home / "src", ignore=shutil.ignore_patterns("__pycache__"))
        files = [p for s in sources for p in [home / "src/overt" / s] for p in (
            sorted(p.rglob("*.py")) if p.is_dir() else [p])]  # fmt: skip
        pool = [(p, k) for p in files for k in range(len(places(ast.parse(p.read_text()))))]
        chosen = np.random.default_rng(seed).permutation(len(pool))[:count]
        tally = [0, 0, 0]
        for at in chosen:
            path, number = pool[at]
            source = path.read_text()
            text, what = changed(source, number)
            said = f"{path.relative_to(home / 'src/overt')}: {what}"
            path.write_text(text)
            if "njit" in source:
                shutil.rmtree(home / "numba", ignore_errors=True)
            outcome = 2 if said in known else int(survives(home, tests))
            path.write_text(source)
            tally[outcome] += 1
            if outcome == 1:
                print(f"survived: {said}", flush=True)
    return tuple(tally)


def main(words: list[str]) -> int:
    import numba  # noqa: F401  imported once, for all processes
    import pytest  # noqa: F401
    import scipy.stats
    import torch  # noqa: F401

    rooms = [word for word in words if word in ROOMS] or list(ROOMS)
    given = [int(word) for word in words if word.isdigit()]
    count, seed = (given + [60, 0][len(given) :])[:2]
    for room in rooms:
        caught, survived, same = examine(room, count, seed)
        of = caught + survived
        low = scipy.stats.beta.ppf(0.025, caught, of - caught + 1) if caught else 0.0
        high = scipy.stats.beta.ppf(0.975, caught + 1, of - caught) if survived else 1.0
        print(f"{room}: {caught} of {of} caught, {caught / max(of, 1):.0%} "
              f"(95% interval {low:.0%} to {high:.0%}), {same} equivalent", flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
