"""Dtypes that torch only stores, or lacks: replayed if a kernel reads them as bits of others, else
refused with the dtypes that it accepts."""

import pytest

from collector.model.case import Slot, case_from_cells
from collector.model.vocabulary import dtype_of
from collector.ops.registry import find_operator
from tests.unit.collector.ops.conftest import assert_rejected

pytestmark = pytest.mark.fast


def case_of(kernel, shapes, dtypes, out, out_dtype):
    cells = {"Input Shapes": shapes, "Input Data Types": dtypes}
    return case_from_cells(kernel, cells | {"Output Shapes": out, "Output Data Types": out_dtype})


QUANTISED = ("QuantBatchMatmulV3", "10,32;64,32;64", "INT8;INT8;{}", "10,64", "FLOAT16")


@pytest.mark.parametrize("scale", ["INT64", "UINT64", "DT_UINT64"])
def test_a_packed_scale_is_replayed_by_either_name(scale):
    kernel, shapes, dtypes, *out = QUANTISED
    case = case_of(kernel, shapes, dtypes.format(scale), *out)
    find_operator(kernel).check(case, "npu")
    assert case.inputs[2].size_bytes == 8 * 64
    find_operator(kernel).check(case, "cpu")


def test_the_two_names_are_two_cases():
    kernel, shapes, dtypes, *out = QUANTISED
    ids = {case_of(kernel, shapes, dtypes.format(s), *out).case_id for s in ("INT64", "UINT64")}
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("kernel", "dtypes", "out", "words"),
    [
        ("Add", "UINT64;UINT64", "UINT64", "UINT64 & input 1 & scales"),
        ("Abs", "UINT64", "UINT64", "UINT64 & input 1"),
        ("Add", "INT4;INT4", "INT4", "INT4 & input 1 & weights"),
        ("MatMulV2", "FLOAT8_E4M3FN;FLOAT8_E4M3FN", "DT_BF16", "FLOAT8_E4M3FN & A2 & A3"),
        ("MatMulV3", "FLOAT8_E5M2;FLOAT8_E5M2", "DT_BF16", "FLOAT8_E5M2 & 950PR & 950DT"),
        ("Add", "FLOAT8_E8M0;FLOAT8_E8M0", "DT_BF16", "FLOAT8_E8M0 & input 1"),
        ("BatchMatMulV2", "HIFLOAT8;HIFLOAT8", "DT_BF16", "HIFLOAT8 & CANN 9.0"),
        ("QuantBatchMatmulV3", "FLOAT4_E1M2;FLOAT4_E1M2;FLOAT8_E8M0", "DT_BF16", "950PR & 950DT"),
        ("MatMulV3", "DT_BF16;HIFLOAT8", "DT_BF16", "HIFLOAT8 & 950PR & 950DT"),
        ("Cast", "FLOAT", "HIFLOAT8", "HIFLOAT8 & output 1"),
        ("Add", "COMPLEX64;COMPLEX64", "COMPLEX64", "COMPLEX64"),
    ],
)
def test_unsupported_dtypes_are_refused_with_the_supported_ones(kernel, dtypes, out, words):
    shapes = ";".join(["16,16"] * len(dtypes.split(";")))
    for backend in ("npu", "cuda", "cpu"):
        assert_rejected(case_of(kernel, shapes, dtypes, "16,16", out), backend, words)


@pytest.mark.parametrize(
    ("dtype", "numel", "size_bytes"),
    [("INT4", 6, 3), ("INT4", 7, 4), ("UINT64", 3, 24), ("FLOAT8_E8M0", 5, 5), ("DT_BF16", 3, 6)],
)
def test_size_of_every_known_dtype_is_used(dtype, numel, size_bytes):
    assert Slot((numel,), dtype, "ND").size_bytes == size_bytes
    assert dtype_of("DT_" + dtype.removeprefix("DT_")) is dtype_of(dtype)
