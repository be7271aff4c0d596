"""The calls of vLLM-Ascend in the catalogue fit its schemas, as far as these are known here."""

import pytest

from collector.model.case import Case
from collector.ops.registry import all_ops, find_operator
from tests.fixtures.op_rows import all_rows
from tests.fixtures.row_checks import failing
from tests.npu import vllm_ascend_schemas
from tests.unit.collector.ops.conftest import CpuMaker

pytestmark = pytest.mark.torch

PREFIXES = ("torch.ops._C_ascend.", "torch.ops.vllm.")


@pytest.fixture(scope="module")
def registered(torch):
    """The operators on a cpu, where tensors can be made."""
    vllm_ascend_schemas.register(torch, "CPU")


def test_call_fits_its_schema_and_returns_the_outputs_of_the_row(torch, registered):
    from collector.replay.cases import check_outputs

    def check(case):
        op = find_operator(case.kernel_type)
        namespace, name = op.call.split(".")[2:]
        api = getattr(getattr(torch.ops, namespace), name)
        make = CpuMaker(torch)
        call = op.npu_call(case, make)
        vllm_ascend_schemas.CALLS.clear()
        outputs = op.npu.run(api, *call.args, **call.kwargs)
        calls = (called for called, _ in vllm_ascend_schemas.CALLS)
        called = [one.removeprefix("_C_ascend.") for one in calls]
        # Some of its functions launch Triton kernels of their own.
        assert [one for one in called if not one.startswith("triton.")] == [name]
        check_outputs(outputs, case, make.dtype)

    kernels = {op.kernel for op in all_ops() if op.call.startswith(PREFIXES)}
    cases = [row.case for row in all_rows() if row.kernel_type in kernels]
    assert {case.kernel_type for case in cases} == kernels and len(kernels) >= 10
    assert failing(cases, check, Case.describe) == []
