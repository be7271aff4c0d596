"""The catalogue is complete, consistent, and read without torch."""

import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

from collector.ops import catalog
from collector.ops.registry import all_ops, find_operator
from collector.ops.spec import OpSpec
from tests.fixtures.op_rows import FOLDER, rows_of
from tests.fixtures.row_checks import failing

CATALOGUE = Path(catalog.__file__).parent
KERNELS = [op.kernel for op in all_ops()]


@pytest.mark.fast
def test_every_kernel_is_declared_once():
    """No operator is imported either: its name would be that of two modules."""
    names = [f"{catalog.__name__}.{p.parent.name}.{p.stem}" for p in CATALOGUE.glob("*/[!_]*.py")]
    values = [item for name in names for item in vars(import_module(name)).items()]
    kernels = Counter(
        op.kernel for name, op in values if isinstance(op, OpSpec) and not name.startswith("_")
    )
    assert len(kernels) > 100
    assert {kernel for kernel, count in kernels.items() if count > 1} == set()


@pytest.mark.fast
def test_kernels_are_unique_sorted_and_found():
    assert sorted(set(KERNELS)) == KERNELS
    assert [op.kernel for op in all_ops() if find_operator(op.kernel) is not op] == []
    assert find_operator("NoSuchKernel") is None


@pytest.mark.fast
def test_every_operator_has_fixture_rows():
    def check(kernel):
        files = [f"tests/fixtures/ops/{name}.csv" for name in sorted(find_operator(kernel).family)]
        assert any(map(rows_of, find_operator(kernel).family)), (
            f"expected rows in {' or '.join(files)}"
        )
        assert {row.kernel_type for row in rows_of(kernel)} <= {kernel}

    assert failing(KERNELS, check) == []


@pytest.mark.fast
def test_every_fixture_has_an_operator():
    strange = {path.stem for path in FOLDER.glob("*.csv")} - {op.kernel for op in all_ops()}
    assert strange == set(), "tables in tests/fixtures/ops/ of kernel types without a declaration"


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
