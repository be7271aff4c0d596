"""Numbers that torch only stores, or has not at all: replayed where a kernel takes them as bits of
others, else refused with what would take them."""

import pytest

from collector.case import Slot, case_from_cells
from collector.errors import CaseRejected
from collector.ops.registry import find
from collector.vocabulary import dtype_of

pytestmark = pytest.mark.fast


def case_of(kernel, shapes, dtypes, out, out_dtype):
    cells = {"Input Shapes": shapes, "Input Data Types": dtypes}
    return case_from_cells(kernel, cells | {"Output Shapes": out, "Output Data Types": out_dtype})


QUANTISED = ("QuantBatchMatmulV3", "10,32;64,32;64", "INT8;INT8;{}", "10,64", "FLOAT16")


@pytest.mark.parametrize("scale", ["INT64", "UINT64", "DT_UINT64"])
def test_a_packed_scale_is_replayed_by_either_name(scale):
    kernel, shapes, dtypes, *out = QUANTISED
    case = case_of(kernel, shapes, dtypes.format(scale), *out)
    find(kernel).check(case, "npu")
    assert case.inputs[2].size_bytes == 8 * 64
    find(kernel).check(case, "cpu")


def test_the_two_names_are_two_cases():
    kernel, shapes, dtypes, *out = QUANTISED
    ids = {case_of(kernel, shapes, dtypes.format(s), *out).case_id for s in ("INT64", "UINT64")}
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("kernel", "dtypes", "out", "said"),
    [
        ("Add", "UINT64;UINT64", "UINT64", r"UINT64 \(input 1\).*only packed scales of quantised"),
        ("Cast", "FLOAT", "UINT64", r"UINT64 \(output 1\) is not replayed"),
        ("Add", "INT4;INT4", "INT4", r"INT4 \(input 1\) is not replayed: only weights beside INT8"),
        ("MatMulV2", "FLOAT8_E4M3FN;FLOAT8_E4M3FN", "DT_BF16", "A2 and A3 have no such numbers"),
        (
            "QuantBatchMatmulV3",
            "FLOAT8_E5M2;FLOAT8_E5M2;FLOAT",
            "DT_BF16",
            "Ascend 950PR and 950DT",
        ),
        ("QuantBatchMatmulV3", "INT8;INT8;FLOAT8_E8M0", "DT_BF16", r"FLOAT8_E8M0 \(input 3\)"),
        ("QuantBatchMatmulV3", "HIFLOAT8;HIFLOAT8;UINT64", "DT_BF16", r"HIFLOAT8 \(.*CANN 9\.0 on"),
        ("MatMulV3", "DT_BF16;HIFLOAT8", "DT_BF16", "HIFLOAT8 .* Ascend 950PR and 950DT do"),
        ("Cast", "FLOAT", "HIFLOAT8", r"HIFLOAT8 \(output 1\)"),
        ("Add", "COMPLEX64;COMPLEX64", "COMPLEX64", "torch has no dtype 'COMPLEX64'"),
    ],
)
@pytest.mark.parametrize("backend", ["npu", "cuda", "cpu"])
def test_what_no_operator_takes_is_refused_with_what_would(kernel, dtypes, out, said, backend):
    shapes = ";".join(["16,16"] * len(dtypes.split(";")))
    with pytest.raises(CaseRejected, match=said):
        find(kernel).check(case_of(kernel, shapes, dtypes, "16,16", out), backend)


@pytest.mark.parametrize(
    ("dtype", "numel", "size_bytes"),
    [("INT4", 6, 3), ("INT4", 7, 4), ("UINT64", 3, 24), ("FLOAT8_E8M0", 5, 5), ("DT_BF16", 3, 6)],
)
def test_the_size_of_every_known_dtype_counts(dtype, numel, size_bytes):
    assert Slot((numel,), dtype, "ND").size_bytes == size_bytes
    assert dtype_of("DT_" + dtype.removeprefix("DT_")) is dtype_of(dtype)
