"""`python -m benchmarks [NAME...]`: run benchmarks and rewrite their part of benchmarks/README.md.

Each module listed here has `run() -> list[Table]`. Sections of modules that are not run are kept.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

from overt.papers.rows import machine_facts

MODULES = (
    "foundation",
    "linear",
    "completion",
    "rankings",
    "tables",
    "decay",
    "nn",
    "shrinking",
    "relu",
    "attacks",
    "attack_training",
    "explorer",
    "zoo",
    "uncertainty",
    "scale",
    "cluster",
)
README = Path(__file__).with_name("README.md")
HEAD = """# Benchmarks

Ratios against a peer, a paper's algorithm or a physical limit, both measured in turns in the same
run (best of several). Rewritten by `make bench`; one part with `python -m benchmarks NAME`.
"""


def main(names: list[str]) -> None:
    unknown = set(names) - set(MODULES)
    if unknown:
        sys.exit(
            f"unknown benchmark {', '.join(sorted(unknown))}; known are {', '.join(MODULES)}"
        )
    text = README.read_text() if README.exists() else ""
    parts = dict(
        re.findall(r"<!-- begin (\w+) -->\n(.*?)<!-- end \1 -->", text, re.DOTALL)
    )
    for name in names or MODULES:
        print(f"== {name}", flush=True)
        tables = import_module(f"benchmarks.{name}").run()
        facts = ", ".join(f"{key} {value}" for key, value in machine_facts().items())
        body = "\n".join(table.markdown() for table in tables)
        parts[name] = f"{body}\n*{facts}*\n"
        print(body, flush=True)
        write(parts)


def write(parts: dict[str, str]) -> None:
    sections = [
        f"<!-- begin {name} -->\n{parts[name]}<!-- end {name} -->\n"
        for name in MODULES
        if name in parts
    ]
    README.write_text("\n".join([HEAD, *sections]))


if __name__ == "__main__":
    main(sys.argv[1:])
