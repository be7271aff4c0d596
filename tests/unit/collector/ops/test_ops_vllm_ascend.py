"""What the catalogue calls of vLLM-Ascend fits its schemas, as far as these are known here."""

import pytest

from collector.ops.registry import all_ops
from tests.fixtures.op_rows import all_rows
from tests.npu import vllm_ascend_schemas
from tests.unit.collector.ops.conftest import CpuMaker

pytestmark = pytest.mark.torch

PREFIXES = ("torch.ops._C_ascend.", "torch.ops.vllm.")
OPS = [op for op in all_ops() if op.call.startswith(PREFIXES)]


@pytest.fixture(scope="module")
def registered(torch):
    """The operators on a cpu, where tensors can be made."""
    vllm_ascend_schemas.register(torch, "CPU")


def rows(op):
    return [row.case for row in all_rows() if row.kernel_type == op.kernel]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.kernel)
def test_a_call_fits_its_schema_and_gives_the_row_s_outputs(torch, registered, op):
    from collector.replay.outputs import check_outputs

    namespace, name = op.call.split(".")[2:]
    api = getattr(getattr(torch.ops, namespace), name)
    for case in rows(op):
        make = CpuMaker(torch)
        call = op.npu_call(case, make)
        vllm_ascend_schemas.CALLS.clear()
        outputs = op.npu.run(api, *call.args, **call.kwargs)
        assert [called for called, _ in vllm_ascend_schemas.CALLS] == [name]
        check_outputs(outputs, case, make.dtype)
