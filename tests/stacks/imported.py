"""Import what the product imports, wherever it does so: `PYTHON imported.py`, of an environment.

Every module of the installed packages, every import within a function of one (`names_in`), and the
help of every command. Prints JSON: `failed` has a line for each import that failed, `absent` the
packages that are not there at all, and `places` the file of each package outside the standard
library.

It imports nothing of the project's tests, which the environment does not have.
"""

import ast
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from pathlib import Path

PACKAGES = ("collector", "jobs", "opmeter")
_OF_ENGINES = "site"  # folders with modules for the Python of an engine
_NEEDS_CANN = "torch_npu"


def main() -> None:
    names = (one for package in PACKAGES for one in names_in(package))
    json.dump(found_by_import(names), sys.stdout)


def found_by_import(names: Iterable[str]) -> dict[str, object]:
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # torch would load torch_npu
    failed: dict[str, str] = {}
    absent: set[str] = set()
    for name in sorted(set(names)):
        if name.startswith(_NEEDS_CANN):
            continue
        try:
            importlib.import_module(name)
        except Exception as error:
            top = (getattr(error, "name", None) or "collector").split(".")[0]
            if isinstance(error, ModuleNotFoundError) and not importlib.util.find_spec(top):
                absent.add(top)
            else:
                failed[name] = f"{type(error).__name__}: {error}"
    if not failed:
        failed |= _help_of_commands()
    tops = {name.split(".")[0] for name in sys.modules} - sys.stdlib_module_names
    places = {top: getattr(sys.modules.get(top), "__file__", None) for top in sorted(tops)}
    return {"failed": failed, "absent": sorted(absent), "places": places}


def names_in(package: str) -> Iterator[str]:
    """Yield the modules of a package, and the modules that they import."""
    spec = importlib.util.find_spec(package)
    assert spec and spec.origin
    top = Path(spec.origin).parent
    for path in top.rglob("*.py"):
        parts = path.relative_to(top).with_suffix("").parts
        if _OF_ENGINES in parts or parts[-1] == "__main__":  # which run when they are imported
            continue
        yield ".".join((package, *(part for part in parts if part != "__init__")))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module


def _help_of_commands() -> dict[str, str]:
    """Return what the help of each command ends with where that is no success."""
    from typer.main import get_command

    from jobs.cli.app import app

    failed: dict[str, str] = {}
    commands = [(("opmeter",), get_command(app))]
    while commands:
        words, command = commands.pop()
        of_group = getattr(command, "commands", {})
        commands += [((*words, name), one) for name, one in of_group.items()]
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
            try:
                command.main(["--help"], prog_name=" ".join(words))
            except SystemExit as end:
                if end.code:
                    failed[" ".join(words)] = f"exit {end.code}"
            except Exception as error:
                failed[" ".join(words)] = f"{type(error).__name__}: {error}"
    return failed


if __name__ == "__main__":
    main()
