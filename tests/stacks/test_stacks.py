"""Both complete serving stacks, as on PyPI: their calls for every fixture row, and for a mixture of
experts over two ranks, equal the files of `tests/npu/stock_calls`.

7 GB a stack, so that these tests run on request: `python -m tests.npu.stock_stacks install`
provides them, and `python -m tests.npu.stock_stacks` and `...stock_extension` write the files.
"""

import pytest

from collector.engine.environments import STACKS, is_stack_installed
from tests.fixtures.op_rows import rows_alone
from tests.lacking import lacking
from tests.npu.replayed import kernels_with_rows
from tests.npu.stock_extension import experts_path, recorded_experts
from tests.npu.stock_stacks import otherwise_path, recorded, served_path

pytestmark = [pytest.mark.torch, pytest.mark.npu, pytest.mark.slow]

AGAIN = "record again, and read the difference: python -m tests.npu."


@pytest.fixture(params=STACKS)
def release(request: pytest.FixtureRequest) -> str:
    """A release of vllm_ascend, installed with its torch and torch_npu. If it is not the test is
    skipped with the command; under CI, or with OPMETER_NO_SKIP=1, it fails."""
    name: str = request.param
    if not is_stack_installed(name):
        lacks = f"vllm_ascend {name} is not installed: python -m tests.npu.stock_stacks install"
        lacking(lacks)
    return name


def test_calls_of_a_stack_for_every_row_equal_its_files(release):
    reported = recorded(release)
    assert reported.rows == sum(len(rows_alone(kernel)) for kernel in kernels_with_rows())
    again = f"{AGAIN}stock_stacks {release}"
    assert "\n".join(reported.served) == served_path(release).read_text(), again
    assert "\n".join(reported.otherwise) == otherwise_path(release).read_text(), again


def test_extension_calls_of_a_stack_over_two_ranks_equal_its_file(release):
    again = f"{AGAIN}stock_extension {release}"
    assert recorded_experts(release) == experts_path(release).read_text(), again
