"""Compiled functions: numba's cache on disk sees changes of the file of a kernel, and no others."""

import ast
from pathlib import Path

import overt

SOURCES = Path(overt.__file__).parent


def kernels(tree):
    """Return the functions of a module that are compiled."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return [
        f for f in functions if any("njit" in ast.unparse(d) for d in f.decorator_list)
    ]


def imported(tree):
    """Return the names that a module takes from other modules of overt."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("overt"):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def test_a_kernel_uses_nothing_of_another_file():
    """An edit of what it calls would otherwise leave the old machine code in use."""
    offenders = []
    for path in sorted(SOURCES.rglob("*.py")):
        tree = ast.parse(path.read_text())
        others = imported(tree)
        for function in kernels(tree):
            used = {
                node.id
                for statement in function.body
                for node in ast.walk(statement)
                if isinstance(node, ast.Name)
            }
            offenders += [
                f"{path.name}: {function.name} uses {name}" for name in used & others
            ]
    assert not offenders
