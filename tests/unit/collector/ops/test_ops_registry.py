"""The catalogue is complete, consistent, and read without torch."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from collector.ops import catalog
from collector.ops.registry import all_ops, find
from tests.fixtures.op_rows import all_rows


def modules():
    files = Path(catalog.__file__).parent.glob("*.py")
    return sorted(file.stem for file in files if not file.stem.startswith("_"))


def snake_case(kernel):
    """`MatMulV3` -> `mat_mul_v3`, `ApplyAdamWV2` -> `apply_adam_w_v2`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=V\d)", "_", kernel).lower().strip("_")


@pytest.mark.fast
def test_a_file_is_named_after_its_kernel():
    families = {snake_case(op.kernel) for op in all_ops()}
    assert families >= set(modules())
    assert all(any(snake_case(k) in modules() for k in op.family) for op in all_ops())


@pytest.mark.fast
def test_kernels_are_unique_sorted_and_found():
    kernels = [op.kernel for op in all_ops()]
    assert kernels == sorted(set(kernels))
    assert all(find(op.kernel) is op for op in all_ops())
    assert find("NoSuchKernel") is None


@pytest.mark.fast
def test_every_operator_has_fixture_rows():
    assert {record.kernel_type for record in all_rows()} == {op.kernel for op in all_ops()}


@pytest.mark.fast
def test_optional_slots_are_slots():
    assert all(position < len(op.slots) for op in all_ops() for position in op.optional)


def test_reading_the_catalogue_imports_no_torch():
    program = (
        "import sys; from collector.ops.registry import all_ops; all_ops(); "
        "sys.exit(bool({'torch', 'numpy', 'pandas'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
