"""The catalogue is complete, consistent, and read without torch."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from collector.ops import catalog
from collector.ops.registry import all_ops, find
from tests.fixtures.op_rows import FOLDER, rows_of
from tests.fixtures.row_checks import failing

CATALOGUE = Path(catalog.__file__).parent
KERNELS = [op.kernel for op in all_ops()]


def modules():
    """The operators: what no `_` hides in a family."""
    names = sorted(path.stem for path in CATALOGUE.glob("*/*.py"))
    return [name for name in names if not name.startswith("_")]


def snake_case(kernel):
    """`MatMulV3` -> `mat_mul_v3`, `ApplyAdamWV2` -> `apply_adam_w_v2`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=V\d)", "_", kernel).lower().strip("_")


@pytest.mark.fast
def test_a_file_is_named_after_its_kernel():
    known = set(modules())
    files = {
        kernel: sorted(f"{snake_case(name)}.py" for name in find(kernel).family)
        for kernel in KERNELS
    }
    missing = {
        kernel: names
        for kernel, names in files.items()
        if not known & {name.removesuffix(".py") for name in names}
    }
    assert missing == {}, "expected one of these files in a family of collector/ops/catalog"


@pytest.mark.fast
def test_a_file_bears_no_other_name():
    kernels = {snake_case(op.kernel) for op in all_ops()}
    assert set(modules()) - kernels == set(), "files that are not named after their kernel"


@pytest.mark.fast
def test_every_operator_lies_in_a_family_and_in_one_only():
    assert [path.name for path in CATALOGUE.glob("*.py")] == ["__init__.py"]
    assert len(set(modules())) == len(modules())


@pytest.mark.thorough
@pytest.mark.fast
def test_no_operator_is_imported():
    """What two operators share is in a file whose name starts with `_`, or in `parts`."""
    operators = {catalog_name(path) for path in CATALOGUE.glob("*/[!_]*.py")}
    found = {catalog_name(p): imported(p) & operators for p in sorted(CATALOGUE.glob("*/*.py"))}
    assert len(found) > len(operators) > 100
    assert {name: names for name, names in found.items() if names} == {}


def catalog_name(path):
    return f"{catalog.__name__}.{path.parent.name}.{path.stem}"


def imported(path):
    """The full name of all that a file imports, module or not."""
    nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom)]
    names = {f"{node.module}.{name.name}" for node in nodes for name in node.names}
    return names | {node.module for node in nodes}


@pytest.mark.fast
def test_kernels_are_unique_sorted_and_found():
    assert sorted(set(KERNELS)) == KERNELS
    assert [op.kernel for op in all_ops() if find(op.kernel) is not op] == []
    assert find("NoSuchKernel") is None


@pytest.mark.fast
def test_every_operator_has_fixture_rows():
    def check(kernel):
        files = [f"tests/fixtures/ops/{name}.csv" for name in sorted(find(kernel).family)]
        assert any(map(rows_of, find(kernel).family)), f"expected rows in {' or '.join(files)}"
        assert {row.kernel_type for row in rows_of(kernel)} <= {kernel}

    assert failing(KERNELS, check) == []


@pytest.mark.fast
def test_every_fixture_is_of_an_operator():
    strange = {path.stem for path in FOLDER.glob("*.csv")} - {op.kernel for op in all_ops()}
    assert strange == set(), "tables in tests/fixtures/ops/ of kernel types that no file declares"


@pytest.mark.fast
def test_optional_slots_are_slots():
    beyond = {op.kernel: {i for i in op.optional if i >= len(op.slots)} for op in all_ops()}
    assert {kernel: positions for kernel, positions in beyond.items() if positions} == {}


def test_reading_the_catalogue_imports_no_torch():
    program = (
        "import sys; from collector.ops.registry import all_ops; all_ops(); "
        "sys.exit(bool({'torch', 'numpy', 'pandas'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
