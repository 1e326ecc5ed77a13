"""Changes that make a mutant: one operator, comparison, constant, statement, term or call."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

SOURCE = Path(__file__).parents[2] / "src" / "overt"
SWAPS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE,
    ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.And: ast.Or, ast.Or: ast.And,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
PAIRS = ("min max", "minimum maximum", "argmin argmax", "amin amax", "any all", "floor ceil",
         "zeros ones", "zeros_like ones_like", "sum mean", "triu tril", "first last")  # fmt: skip
NAMES = {a: b for pair in PAIRS for a, b in (pair.split(), reversed(pair.split()))}
UNWRAPPED = {
    "abs", "sqrt", "clip", "exp", "log", "log1p", "expm1", "sorted", "reversed", "conj", "square",
    "cumsum", "maximum", "minimum", "clamp", "diagonal", "sign", "round", "unique", "normalize",
    "copy", "ravel", "max", "min",
}  # fmt: skip
# Where the order of arguments does not matter, or is wrong in a way that every test sees.
ORDERED = {"isinstance", "getattr", "setattr", "hasattr", "cast", "namespace", "array_namespace",
           "maximum", "minimum", "max", "min", "hypot", "equal"}  # fmt: skip


SAME = {"strict", "stable", "stacklevel", "check_finite", "show"}  # that change no number


def called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def alternatives(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in place of a node."""

    def other(**fields: Any) -> ast.AST:
        twin = copy.copy(node)
        for name, value in fields.items():
            setattr(twin, name, value)
        return twin

    match node:
        case ast.BinOp():
            if type(node.op) in SWAPS:
                yield other(op=SWAPS[type(node.op)]())
            yield node.left
            if isinstance(node.op, ast.Add | ast.Mult):
                yield node.right
        case ast.BoolOp():
            yield from [other(op=SWAPS[type(node.op)]()), *node.values]
        case ast.UnaryOp(op=ast.USub() | ast.Not()):
            yield node.operand
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            yield other(ops=[SWAPS[type(op)]()])
            if isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
                yield ast.UnaryOp(ast.Not(), node)
        case ast.Constant(value=bool()):
            yield other(value=not node.value)
        case ast.Constant(value=int() | float()):
            yield other(value=node.value + 1)
        case ast.Call():
            name, method = called(node), isinstance(node.func, ast.Attribute)
            if name in NAMES:
                after = {("attr" if method else "id"): NAMES[name]}
                yield other(
                    func=ast.copy_location(
                        type(node.func)(**{**vars(node.func), **after}), node.func
                    )
                )
            inner = node.args[0] if node.args else node.func.value if method else None
            if name in UNWRAPPED and inner is not None and not isinstance(inner, ast.Starred):
                yield inner
            if len(node.args) > 1 and name not in ORDERED:
                first, second, *rest = node.args
                same = ast.dump(first) == ast.dump(second)
                if not same and not isinstance(first, ast.Constant | ast.Starred):
                    yield other(args=[second, first, *rest])
        case ast.Attribute(attr="T" | "mT", ctx=ast.Load()):
            yield node.value
        case ast.IfExp():
            yield from (node.body, node.orelse)
        case ast.Expr() if "super()" in ast.unparse(node):  # a method that must still see its class
            yield ast.Expr(ast.Name("__class__", ast.Load()))
        case ast.Expr() | ast.AugAssign():
            yield ast.Pass()
        case ast.If(orelse=[]):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Name(id=name)]):
            if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node.value)):
                yield ast.Pass()


class Mutant:
    """A place in a tree, what may stand there, and how the change is named."""

    def __init__(
        self, path: Path, within: str, parent: ast.AST, at: Any, node: ast.AST, new: ast.AST
    ):
        self.path, self.parent, self.at, self.node = path, parent, at, node
        self.new = ast.fix_missing_locations(ast.copy_location(copy.deepcopy(new), node))
        before, after = (" ".join(ast.unparse(n).split())[:60] for n in (node, new))
        self.name = f"{path.relative_to(SOURCE)} {within}: {before} -> {after}"
        end = node.lineno if isinstance(node, ast.stmt) else node.end_lineno
        self.lines = range(node.lineno, end + 1)

    def code(self, tree: ast.Module) -> CodeType:
        name, index = self.at
        if index is None:
            setattr(self.parent, name, self.new)
        else:
            getattr(self.parent, name)[index] = self.new
        try:
            return compile(tree, str(self.path), "exec", dont_inherit=True)
        finally:
            if index is None:
                setattr(self.parent, name, self.node)
            else:
                getattr(self.parent, name)[index] = self.node


def mutants(path: Path, tree: ast.Module) -> list[Mutant]:
    """All mutants of a file: inside functions only, and neither messages nor docstrings."""
    found = []

    def visit(parent: ast.AST, within: str, inside: bool) -> None:
        if isinstance(parent, ast.FunctionDef | ast.ClassDef):
            within = f"{within}.{parent.name}".lstrip(".")
        inside = inside or isinstance(parent, ast.FunctionDef | ast.Lambda)
        for name, value in ast.iter_fields(parent):
            if name in ("annotation", "returns", "decorator_list", "args", "op", "ops") and not (
                isinstance(parent, ast.Call)
            ):
                continue
            for k, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if not isinstance(node, ast.AST) or isinstance(node, ast.Raise | ast.JoinedStr):
                    continue
                if isinstance(node, ast.Expr) and (
                    isinstance(node.value, ast.Constant)
                    or ast.unparse(node).startswith("bar.advance(")  # progress that is shown
                ):
                    continue
                if isinstance(node, ast.keyword) and node.arg in SAME:
                    continue
                if isinstance(node, ast.Call) and called(node) == "meter":
                    continue
                if inside:
                    found.extend(
                        Mutant(path, within, parent, (name, k), node, new)
                        for new in alternatives(node)
                    )
                visit(node, within, inside)

    visit(tree, "", False)
    return found


def pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Codes of functions before and after, where they differ."""
    if old != new:
        yield old, new
        inner = ([c for c in code.co_consts if isinstance(c, CodeType)] for code in (old, new))
        for before, after in zip(*inner, strict=False):
            yield from pairs(before, after)


def probed(tree: ast.Module, path: str, places: list[list[tuple[str, str, int]]]) -> None:
    """Put a call __hit__(n) before every statement of a function; places[n] are its lines."""

    def visit(node: ast.AST, qualified: str, first: int | None) -> None:
        for name, value in ast.iter_fields(node):
            if not (isinstance(value, list) and value):
                continue
            if first is not None and isinstance(value[0], ast.stmt):
                body = []
                for statement in value:
                    inner = getattr(statement, "body", None)
                    end = max(statement.lineno, inner[0].lineno - 1) if inner else None
                    lines = range(statement.lineno, (end or statement.end_lineno) + 1)
                    call = ast.parse(f"__hit__({len(places)})").body[0]
                    for part in ast.walk(call):
                        ast.copy_location(part, statement)
                    places.append([(path, qualified, line - first) for line in lines])
                    body += [call, statement]
                setattr(node, name, body)
            for child in value:
                if isinstance(child, ast.FunctionDef | ast.ClassDef):
                    local = "" if first is None else ".<locals>"
                    inside = f"{qualified}{local}.{child.name}".lstrip(".")
                    if isinstance(child, ast.ClassDef):
                        visit(child, inside, None)
                    else:
                        start = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                        visit(child, inside, start)
                elif isinstance(child, ast.AST):
                    visit(child, qualified, first)

    visit(tree, "", None)
