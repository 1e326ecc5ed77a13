"""Who may import whom, how much each main use imports, which words are used."""

from __future__ import annotations

import ast
import re
from itertools import chain, product
from pathlib import Path

import packages
import pytest
from packages import APPLICATIONS, INTERFACES, LINE

TESTS = Path(__file__).parent
MODULES = packages.modules()
IMPORTS = packages.imports(MODULES)
BETWEEN = [  # which package imports which, and where
    (
        packages.package(i.source),
        packages.package(i.target),
        f"{MODULES[i.source].place}:{i.line} {i.target}",
    )
    for i in IMPORTS
]
FOLDERS = [name for name, module in MODULES.items() if module.front]

TORCH = {"nn", "relu", "robust"}  # may share what they need of PyTorch

# Modules that each main use imports. Lower a limit when a redesign reaches it; never raise one.
CLOSURES = {
    "LinearNetwork": 19,
    "DropoutCompletion": 25,
    "DropoutImputer": 7,
    "predictive_moments": 16,
    "mc_moments": 8,
    "without_noise": 17,
    "audit": 22,
    "compress": 18,
    "PGD": 13,
    "robust_error": 19,
    "adversarial_train": 18,
    "minima": 13,
    "simulate": 12,
}

WORDS = {  # what is not said -> what is, and the package that may
    "checkpoints": ("records", None),
    "record": ("records", None),
    "workers": ("n_jobs", None),
    "jobs": ("n_jobs", None),
    "held_out": ("holdout", None),
    "validation": ("holdout", None),
    "loader": ("data", None),
    "criterion": ("loss", "robust"),
    "loss_fn": ("loss", None),
    "tolerance": ("tol", "papers"),
}
# A noise and the layer of PyTorch that draws it are one thing.
HOMONYMS = {"Dropout"}
# Not the variables of a style sheet, `--ink: black` and `var(--ink)`.
OPTION = re.compile(r"(?<![\w(-])--[a-z][a-z-]*(?![a-z-]*[:)])")


def none(offenders, rule):
    """Fail with a list unless there are no offenders."""
    offenders = sorted(offenders)
    if offenders:
        pytest.fail(
            "\n  ".join([f"{rule} ({len(offenders)}):", *offenders]), pytrace=False
        )


def test_imports_are_seen_wherever_they_hide(tmp_path):
    files = {
        "__init__.py": "from overt.a import x\nLATE = {'y': 'overt.b'}",
        "a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from overt import b",
        "b.py": "import numpy\ndef f():\n    from overt import a\n    import overt.c.deep as d",
        "c/__init__.py": "from .deep import g\nload = import_module(f'overt.c.{name}')",
        "c/deep.py": "from ..b import f\nfrom . import wide",
        "c/wide.py": "text = 'not overt.a, and overt. neither'",
    }
    for name, text in files.items():
        path = tmp_path / "overt" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = packages.imports(packages.modules(tmp_path / "overt"))
    assert {(i.source, i.target) for i in found} == {
        ("overt", "overt.a"),
        ("overt", "overt.b"),
        ("overt.b", "overt.a"),
        ("overt.b", "overt.c.deep"),
        ("overt.c", "overt.c.deep"),
        ("overt.c", "overt.c.wide"),
        ("overt.c.deep", "overt.b"),
        ("overt.c.deep", "overt.c.wide"),
    }
    assert packages.cycles(packages.between_packages(found)) == [["b", "c"]]
    assert packages.cycles(packages.between_packages(found, "overt.c")) == []


def test_no_module_imports_itself_in_a_circle():
    found = packages.cycles(packages.graph((i.source, i.target) for i in IMPORTS))
    none((" <-> ".join(cycle) for cycle in found), "modules that import each other")


@pytest.mark.parametrize("folder", FOLDERS)
def test_packages_do_not_import_each_other_in_a_circle(folder):
    found = packages.cycles(packages.between_packages(IMPORTS, folder))
    none(
        (" <-> ".join(cycle) for cycle in found),
        f"packages of {folder} that import each other",
    )


def test_the_line_points_one_way():
    """The line is noise <- penalty <- spectral <- equalize <- linear."""
    assert {f"overt.{package}" for package in LINE} <= MODULES.keys()
    wrong = {
        pair
        for later, package in enumerate(LINE)
        for pair in product(LINE[:later], [package])
    }
    none(
        (text for a, b, text in BETWEEN if (a, b) in wrong), "imports against the line"
    )


def test_the_foundation_imports_no_application():
    above = {*APPLICATIONS, *INTERFACES}
    wrong = (text for a, b, text in BETWEEN if a and a not in above and b in above)
    none(wrong, "imports of an application by what it stands on")


def test_applications_do_not_import_each_other():
    def allowed(a, b, text):
        asks = text.startswith("src/overt/nn/auditing/") and b in ("linear", "relu")
        return a == b or {a, b} <= TORCH or asks

    pairs = [(a, b, text) for a, b, text in BETWEEN if {a, b} <= {*APPLICATIONS}]
    none(
        (pair[-1] for pair in pairs if not allowed(*pair)),
        "applications that import each other",
    )


def test_nothing_imports_the_guests():
    rank = {package: place for place, package in enumerate(INTERFACES)}
    wrong = (text for a, b, text in BETWEEN if b in rank and rank.get(a, -1) < rank[b])
    none(wrong, f"imports of {', '.join(INTERFACES)} by what comes before")


def closure(start):
    """Modules that `start` imports, directly or through others, itself included."""
    seen = set()
    todo = [start]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo.extend(i.target for i in IMPORTS if i.source == name)
    return seen


@pytest.mark.parametrize(("use", "limit"), CLOSURES.items())
def test_main_uses_import_few_modules(use, limit):
    """What a reader must open to understand one public name; lazy imports count."""
    places = [
        module.name
        for module in MODULES.values()
        if packages.package(module.name) not in INTERFACES
        for node in module.tree.body
        if isinstance(node, packages.Function | ast.ClassDef) and node.name == use
    ]
    assert len(places) == 1, places
    found = closure(places[0])
    assert len(found) <= limit, f"{use} needs {len(found)} modules: {sorted(found)}"


def shown(folder):
    """What a folder or a module shows: its public names and where each is defined."""
    module = MODULES[folder]
    names = dict(module.brought) if module.front else {}
    names |= {
        name: f"{folder}.{name}" for name, _ in definitions(module) if "." not in name
    }
    return {
        name: origin(names.get(name, f"{folder}.{name}"))
        for name in module.exported or names
    }


def origin(dotted):
    """Follow a name through the folders that hand it on to where it is defined."""
    folder, _, name = dotted.rpartition(".")
    if dotted in MODULES or folder not in MODULES:
        return dotted
    brought = MODULES[folder].brought
    return origin(brought[name]) if name in brought else dotted


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_module_is_named_like_what_its_folder_exports(folder):
    """Else `import overt.relu.margin` binds a function."""
    found = (
        name for name, place in shown(folder).items() if place != f"{folder}.{name}"
    )
    none(
        (f"{folder}.{n}" for n in found if f"{folder}.{n}" in MODULES),
        "two things of one name",
    )


def definitions(module):
    """The public classes and functions of a module and the methods of these classes."""
    for node in module.tree.body:
        if isinstance(
            node, packages.Function | ast.ClassDef
        ) and not node.name.startswith("_"):
            yield node.name, node
            for inner in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(inner, packages.Function) and re.match(
                    "__init__|[^_]", inner.name
                ):
                    yield f"{node.name}.{inner.name}", inner


def arguments(module):
    """(where, argument) of all public functions, methods and dataclasses of a module."""
    for name, node in definitions(module):
        if isinstance(node, ast.ClassDef):
            fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
            given = [(field.lineno, ast.unparse(field.target)) for field in fields]
        else:
            signature = node.args
            listed = (*signature.posonlyargs, *signature.args, *signature.kwonlyargs)
            given = [(node.lineno, argument.arg) for argument in listed]
        for line, argument in given:
            yield f"{module.place}:{line} {name}", argument


def test_one_word_per_concept():
    found = []
    for module in MODULES.values():
        for place, argument in arguments(module):
            word, package = WORDS.get(argument, (argument, None))
            if word != argument and (
                package is None or package != packages.package(module.name)
            ):
                found.append(f"{place}: {argument}, say {word}")
    none(found, "other words for the same thing")


def test_names_do_not_number_the_papers():
    """What a thing is stands in its name; where it is proved stands in its docstring."""
    numbered = re.compile(
        r"(algorithm|theorem|corollary|lemma|proposition)_?\d", re.IGNORECASE
    )
    none(
        (
            f"{module.place}:{node.lineno} {name}"
            for module in MODULES.values()
            for name, node in definitions(module)
            if numbered.search(name)
        ),
        "names that number the papers",
    )


def test_no_two_things_that_are_exported_share_a_name():
    found = {}
    for folder in {*FOLDERS, *chain.from_iterable(packages.public(MODULES).values())}:
        if packages.package(folder) not in INTERFACES:
            for name, place in shown(folder).items():
                found.setdefault(name, set()).add(place)
    none(
        (
            f"{name}: {', '.join(sorted(places))}"
            for name, places in found.items()
            if len(places) > 1 and name not in HOMONYMS
        ),
        "two things of one name",
    )


def test_one_word_per_option():
    said = {
        "--" + word.replace("_", "-"): better for word, (better, _) in WORDS.items()
    }
    none(
        (
            f"{module.place}:{node.lineno} {node.value}, say --{said[node.value].replace('_', '-')}"
            for module in MODULES.values()
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Constant) and node.value in said
        ),
        "other words for the same thing",
    )


def test_the_library_does_not_speak_of_options():
    """It is used from Python; the command line translates."""
    found = []
    for module in MODULES.values():
        if packages.package(module.name) not in ("cli", "stories"):
            for node in ast.walk(module.tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found += [
                        f"{module.place}:{node.lineno} {o}"
                        for o in OPTION.findall(node.value)
                    ]
    none(found, "options of the command line in the library")


def test_tests_mirror_the_source():
    """Folders of tests are named after packages; the others hold suites for several at once."""
    folders = {path.parent.name for path in TESTS.glob("*/test_*.py")} - {
        "contracts",
        "fuzz",
    }
    none(
        (f"tests/{name}" for name in folders if f"overt.{name}" not in MODULES),
        "tests of no package",
    )
