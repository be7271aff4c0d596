"""The memory of the tensors of a case."""

import pytest

from collector.model.case import case_from_cells
from collector.ranks.experts import ExpertCall
from collector.workloads.grid import case_bytes

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("weight", "format", "taken"),
    [
        ("64,128", "ND", 64 * 128 * 2),
        ("8,4,16,16", "FRACTAL_NZ", 2 * 8 * 4 * 256 * 2),  # besides the plain one it is made from
        ("20,20", "FRACTAL_NZ", 2 * 32 * 32 * 2),  # in whole blocks of 16 by 16
    ],
)
def test_matrix_in_blocks_counts_twice_and_padded(weight, format, taken):
    cells = {
        "Input Shapes": f"10,64;{weight};",
        "Input Data Types": "DT_BF16;DT_BF16;DT_UNDEFINED",
        "Input Formats": f"ND;{format};NULL",
        "Output Shapes": "10,128",
        "Output Data Types": "FLOAT",
        "Output Formats": "ND",
    }
    assert case_bytes(case_from_cells("MatMulV2", cells)) == 10 * 64 * 2 + taken + 10 * 128 * 4


@pytest.mark.parametrize(("tokens", "buffer_mib"), [(4, 200), (4096, 3 * 224 + 10)])
def test_exchanged_experts_have_a_receive_and_a_send_buffer(tokens, buffer_mib):
    call = ExpertCall(tokens, 7168, 2048, 16, 8, 4)
    case = call.case
    tensors = sum(
        (2 if slot.format == "FRACTAL_NZ" else 1) * slot.size_bytes
        for slot in (*case.inputs, *case.outputs)
    )
    assert case_bytes(case) == tensors + 2 * buffer_mib * 2**20
