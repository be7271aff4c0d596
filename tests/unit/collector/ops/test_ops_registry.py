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

CATALOGUE = Path(catalog.__file__).parent
EACH = pytest.mark.parametrize("kernel", [op.kernel for op in all_ops()])


def modules():
    """The operators: what no `_` hides in a family."""
    names = sorted(path.stem for path in CATALOGUE.glob("*/*.py"))
    return [name for name in names if not name.startswith("_")]


def snake_case(kernel):
    """`MatMulV3` -> `mat_mul_v3`, `ApplyAdamWV2` -> `apply_adam_w_v2`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=V\d)", "_", kernel).lower().strip("_")


@pytest.mark.fast
@EACH
def test_a_file_is_named_after_its_kernel(kernel):
    names = sorted(map(snake_case, find(kernel).family))
    wanted = f"{' or '.join(f'{name}.py' for name in names)} in a family of collector/ops/catalog"
    assert set(names) & set(modules()), wanted


@pytest.mark.fast
def test_a_file_bears_no_other_name():
    kernels = {snake_case(op.kernel) for op in all_ops()}
    assert set(modules()) - kernels == set(), "files that are not named after their kernel"


@pytest.mark.fast
def test_every_operator_lies_in_a_family_and_in_one_only():
    assert [path.name for path in CATALOGUE.glob("*.py")] == ["__init__.py"]
    assert len(set(modules())) == len(modules())


@pytest.mark.fast
@pytest.mark.parametrize("path", sorted(CATALOGUE.glob("*/*.py")), ids=lambda path: path.stem)
def test_nobody_imports_an_operator(path):
    """What two of them share lies beside them in a file with `_`, or in `parts`."""
    assert not imported(path) & {catalog_name(other) for other in CATALOGUE.glob("*/[!_]*.py")}


def catalog_name(path):
    return f"{catalog.__name__}.{path.parent.name}.{path.stem}"


def imported(path):
    """The full name of all that a file imports, module or not."""
    nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom)]
    names = {f"{node.module}.{name.name}" for node in nodes for name in node.names}
    return names | {node.module for node in nodes}


@pytest.mark.fast
def test_kernels_are_unique_sorted_and_found():
    kernels = [op.kernel for op in all_ops()]
    assert kernels == sorted(set(kernels))
    assert all(find(op.kernel) is op for op in all_ops())
    assert find("NoSuchKernel") is None


@pytest.mark.fast
@EACH
def test_every_operator_has_fixture_rows(kernel):
    files = [f"tests/fixtures/ops/{name}.csv" for name in sorted(find(kernel).family)]
    assert any(map(rows_of, find(kernel).family)), f"rows of {kernel} in {' or '.join(files)}"
    assert {row.kernel_type for row in rows_of(kernel)} <= {kernel}


@pytest.mark.fast
def test_every_fixture_is_of_an_operator():
    strange = {path.stem for path in FOLDER.glob("*.csv")} - {op.kernel for op in all_ops()}
    assert not strange, "tables in tests/fixtures/ops/ of kernel types that no file declares"


@pytest.mark.fast
def test_the_readme_tells_how_many_kernel_types_are_declared():
    text = (CATALOGUE.parents[2] / "README.md").read_text(encoding="utf-8")
    said = re.findall(r"^(\d+) kernel types are declared", text, re.MULTILINE)
    assert said == [str(len(all_ops()))], "correct the number in README.md, Measuring on an NPU"


@pytest.mark.fast
def test_optional_slots_are_slots():
    assert all(position < len(op.slots) for op in all_ops() for position in op.optional)


def test_reading_the_catalogue_imports_no_torch():
    program = (
        "import sys; from collector.ops.registry import all_ops; all_ops(); "
        "sys.exit(bool({'torch', 'numpy', 'pandas'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
