"""Print what the code looks like from outside: `python3 .ci/shape.py [ROOT]`.

Modules, lines, sizes of modules, the share of import lines, import contracts, and names of classes
that more than one class of the product has. It judges nothing.
"""

import ast
import statistics
import sys
import tomllib
from collections import Counter
from pathlib import Path

PACKAGES = ("collector", "jobs", "opmeter")


def main(root: Path) -> None:
    files = {
        path: path.read_text()
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
    }
    modules = {path: text for path, text in files.items() if text.strip()}
    sizes = sorted(len(text.splitlines()) for text in modules.values())
    catalogue = sum("catalog" in path.parts for path in modules)
    classes: Counter[str] = Counter()
    imports = 0
    for text in modules.values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                classes[node.name] += 1
            elif isinstance(node, ast.Import | ast.ImportFrom):
                imports += (node.end_lineno or node.lineno) - node.lineno + 1
    shared = {name: count for name, count in classes.items() if count > 1}
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    lines = sum(sizes)
    for name, value in (
        ("modules", f"{len(sizes)}, of which {catalogue} in the catalogue"),
        ("empty files", len(files) - len(modules)),
        ("lines", lines),
        (
            "lines of a module",
            f"median {statistics.median(sizes):.0f}, 90th percentile "
            f"{statistics.quantiles(sizes, n=10)[-1]:.0f}, most {sizes[-1]}",
        ),
        ("modules under 40 lines", sum(size < 40 for size in sizes)),
        ("import lines", f"{imports / lines:.1%}"),
        ("import contracts", len(contracts)),
        ("class names used twice", f"{len(shared)}, by {sum(shared.values())} classes"),
    ):
        print(f"{name:24} {value}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve())
