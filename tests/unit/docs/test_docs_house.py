"""What CONTRIBUTING asks of names, lengths, floors and folders holds of every one."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROOMS = ("collector", "jobs", "tests")
MODULES = sorted(path for name in ROOMS for path in (ROOT / name).rglob("*.py"))
MOST_LINES = 300
LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
FLOORED = {name for one in LINTER["contracts"] for name in one.get("containers", ())}


def bearers(paths):
    """The modules of which a function bears the name."""
    return [
        str(path)
        for path in paths
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == path.stem
    ]


@pytest.mark.fast
def test_no_function_bears_the_name_of_its_module():
    assert len(MODULES) > 1000
    assert bearers(MODULES) == [], "rename the function: to what it gives, or to verb and object"


@pytest.mark.fast
def test_a_function_that_does_is_found(tmp_path):
    (tmp_path / "merge.py").write_text("def merge_plans():\n    def merge(): ...\n")
    (tmp_path / "pull.py").write_text("def pull(): ...\n")
    assert bearers(sorted(tmp_path.iterdir())) == [str(tmp_path / "pull.py")]


def too_long(paths):
    """The modules of more lines than one may have, with their number."""
    lengths = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    return {path: lines for path, lines in lengths.items() if lines > MOST_LINES}


@pytest.mark.fast
def test_no_module_of_the_product_passes_300_lines():
    product = [path for path in MODULES if path.relative_to(ROOT).parts[0] != "tests"]
    assert len(product) > 500
    assert too_long(product) == {}, "split it: into the two things that it is, a noun each"


@pytest.mark.fast
def test_a_module_that_passes_300_lines_is_found(tmp_path):
    (tmp_path / "long.py").write_text("a = 1\n" * 301)
    (tmp_path / "short.py").write_text("a = 1\n" * 300)
    assert too_long(sorted(tmp_path.iterdir())) == {str(tmp_path / "long.py"): 301}


def folders_of(package):
    """A package and the packages in it, to the last."""
    return [package, *(path.parent for path in sorted(package.rglob("*/__init__.py")))]


def rooms_of(folder):
    return sorted(path.parent for path in folder.glob("*/__init__.py"))


@pytest.mark.fast
@pytest.mark.parametrize("package", ["jobs", "collector"])
def test_every_room_has_its_floors(package):
    """But jobs/cli, of a file a verb, and rooms of three modules, which are seen at a glance."""
    large = [room for room in rooms_of(ROOT / package) if len(list(room.glob("[a-z]*.py"))) > 3]
    assert len(large) > 8
    named = {f"{package}.{room.name}" for room in large}
    assert named - FLOORED - {"jobs.cli"} == set(), "give it a contract in pyproject.toml"


@pytest.mark.fast
@pytest.mark.parametrize("package", ["jobs", "collector/ops"])
def test_a_level_has_at_most_twelve_rooms(package):
    """`collector` itself has more: the map and the floors of its contract tell them."""
    levels = {str(one.relative_to(ROOT)): rooms_of(one) for one in folders_of(ROOT / package)}
    assert len(levels) > 12
    assert {name: len(rooms) for name, rooms in levels.items() if len(rooms) > 12} == {}, (
        "gather some of them in one room, or find a place in those that are there"
    )
