"""What CONTRIBUTING asks of the names of functions holds of every module."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROOMS = ("collector", "jobs", "tests")
MODULES = sorted(path for name in ROOMS for path in (ROOT / name).rglob("*.py"))


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
