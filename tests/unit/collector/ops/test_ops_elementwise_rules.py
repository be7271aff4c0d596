"""Refusals and costs of elementwise operators, reductions and fills."""

import pytest

from collector.ops.registry import find_operator
from tests.unit.collector.ops.conftest import assert_rejected

pytestmark = pytest.mark.fast

F2, F3 = "FLOAT;FLOAT", "FLOAT;FLOAT;FLOAT"
BF16 = "DT_BF16"


@pytest.mark.parametrize(
    ("cells", "rule"),
    [
        (("Add", "4;4", "INT32;FLOAT", "4", "FLOAT"), "FLOAT & 16-bit"),
        (("Mul", "4;", f"{BF16};FLOAT", "4", BF16), "FLOAT & 16-bit"),
        (("Sub", "4;4", f"FLOAT;{BF16}", "4", "FLOAT"), "'y'"),
        (("Less", "4;4", "INT32;INT64", "4", "BOOL"), "'y'"),
        (("Muls", "4", "FLOAT", "4", "FLOAT"), "'x'"),
        (("Pows", "4;4", F2, "4", "FLOAT"), "'exponent'"),
        (("Pows", "4;", "INT64;INT64", "4", "INT64"), "'x'"),
        (("Square", "4", "FLOAT", "4", "FLOAT"), "INT32 & INT64"),
        (("RealDiv", "4;4", "INT32;INT32", "4", "FLOAT"), "'x'"),
        (("LogicalAnd", "4;4", F2, "4", "BOOL"), "'x'"),
        (("ReluGrad", "4;", F2, "4", "FLOAT"), "'features'"),
        (("Cast", "4", "FLOAT", "4", "FLOAT"), "dtype & input"),
        (("Range", ";;", F3, "4", "FLOAT"), "DOUBLE & INT64"),
        (("Fill", "2;", "INT64;FLOAT", "4", "FLOAT"), "count == s_rank"),
        (("Fill", "1;", "INT64;FLOAT", "4", "INT32"), "'y' & FLOAT"),
        (("Fill", "1;3", "INT64;FLOAT", "4", "FLOAT"), "value & number"),
        (("ReduceSum", "4,6;1", "FLOAT;INT64", "5", "FLOAT"), "axes"),
        (("ReduceSum", "4,6;3", "FLOAT;INT64", "", "FLOAT"), "axes"),
        (("ReduceSum", "0,6;1", "FLOAT;INT64", "6", "FLOAT"), "s > 0"),
        (("ReduceSum", "4,6;1", "INT32;INT64", "4", "INT64"), "'y' & INT32"),
        (("ReduceAll", "4,6,9;2", "BOOL;INT64", "6", "BOOL"), "axis & scalar"),
        (("Cumsum", "12800,512;1", "FLOAT;INT32", "12800,512", "FLOAT"), "12800 & 512"),
        (("Cumsum", "4,6;2", "FLOAT;INT32", "4,6", "FLOAT"), "axis & number"),
        (("Cumsum", ";1", "FLOAT;INT64", "", "FLOAT"), "'x'"),
        (("ArgMaxV2", "4,6;", "FLOAT;INT64", "6", "INT32"), "output & row"),
        (("ArgMaxV2", "4,6;", "FLOAT;INT64", "4", "FLOAT"), "INT32 & INT64"),
        (("SoftmaxV2", "", "FLOAT", "", "FLOAT"), "'x'"),
        (("SelectV2", "4;4;4", F3, "4", "FLOAT"), "'condition'"),
        (("MaskedFill", "4,1;4,6;", "FLOAT;BOOL;FLOAT", "4,6", "FLOAT"), "'y'"),
        (("MaskedFill", "4;4;", "FLOAT;BOOL;INT32", "4", "FLOAT"), "'value'"),
        (("ClipByValueV2", "4;4;", F3, "4", "FLOAT"), "'min'"),
        (("HistogramV2", "4;;", "INT8;INT8;INT8", "200", "INT32"), "bins & dtype"),
        (("HistogramV2", "4;;", "BOOL;BOOL;BOOL", "2", "INT32"), "INT16 & UINT8 & 'x'"),
        (("RepeatInterleave", "4,6;3", "FLOAT;INT64", "9,6", "FLOAT"), "repeats & dimension"),
        (("RepeatInterleave", "4,6;1", "FLOAT;INT64", "9,6", "FLOAT"), "repeats & dimension"),
        (("RepeatInterleave", "4;4", "BOOL;INT64", "9", "BOOL"), "BOOL & 'x'"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_contradicting_cases_are_refused(case_of, cells, rule):
    assert_rejected(case_of(*cells), "npu", rule)


@pytest.mark.parametrize(
    "cells",
    [
        # Rows of real profiles.
        ("Fill", "1;", "INT64;FLOAT", "1", "FLOAT"),
        ("RealDiv", ";", F2, "", "FLOAT"),
        ("ReduceSum", "32,4096;1", "FLOAT;INT64", "1,4096", "FLOAT"),
        ("ReduceSum", "32,256,169;2", "FLOAT;INT64", "256", "FLOAT"),
        ("LogSoftmaxGrad", "32,1000;32,1000", F2, "32,1000", "FLOAT"),
        ("ReluGrad", "32,4096;32,4096", F2, "32,4096", "FLOAT"),
        ("Gelu", "32,1024", "FLOAT", "32,1024", "FLOAT"),
        # Long rows of integers, and sums across rows, are computed by the vector unit.
        ("Cumsum", "12800,512;1", "INT32;INT32", "12800,512", "INT32"),
        ("Cumsum", "12800,512;1", "FLOAT;INT64", "12800,512", "FLOAT"),
    ],
    ids=lambda cells: " ".join(cells[:2]),
)
def test_supported_cases_are_accepted(case_of, cells):
    case = case_of(*cells)
    find_operator(case.kernel_type).check(case, "npu")


@pytest.mark.parametrize(
    ("cells", "flops", "traffic"),
    [
        # a comparison each; 24 * 4 + 4, and 24 truth values
        (("Less", "4,6;", F2, "4,6", "BOOL"), 24, 124),
        # 4 operations each; 24 * 2 in and out
        (("Swish", "4,6", BF16, "4,6", BF16), 96, 96),
        # written only: 24 * 4
        (("Fill", "2;", "INT64;FLOAT", "4,6", "FLOAT"), 0, 96),
        # 24 sums; 24 * 4 in, one axis of 8, 6 * 4 out
        (("ReduceSum", "4,6;1", "FLOAT;INT64", "6", "FLOAT"), 24, 128),
        # 5 operations each; 24 * 4 in and out
        (("SoftmaxV2", "4,6", "FLOAT", "4,6", "FLOAT"), 120, 192),
        # 24 choices; 24 * 1 + 24 * 4 + 4 in, 24 * 4 out
        (("SelectV2", "4,6;4,6;", "BOOL;FLOAT;FLOAT", "4,6", "FLOAT"), 24, 220),
        # 4 rows of 6 numbers read, 4 numbers of 8, and 8 rows written
        (("RepeatInterleave", "4,6;4", "FLOAT;INT64", "8,6", "FLOAT"), 0, 96 + 32 + 192),
        # a bin and a count each; 64 * 4 and two ends of 4 in, 8 * 4 out
        (("HistogramV2", "64;;", "INT32;INT32;INT32", "8", "INT32"), 128, 296),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_costs(case_of, cells, flops, traffic):
    case = case_of(*cells)
    op = find_operator(case.kernel_type)
    op.check(case, "cpu")
    assert (op.flops(case), op.traffic(case)) == (flops, traffic)


@pytest.mark.parametrize(
    "kernel", ["Add", "Cast", "Less", "LogicalAnd", "LogicalNot", "Mul", "Sub", "MaskedFill"]
)
def test_other_name_of_a_kernel_is_its_twin(kernel):
    twin = find_operator(f"{kernel}AiCore")
    assert twin is not None
    assert twin.call == find_operator(kernel).call
    assert kernel in twin.twins
