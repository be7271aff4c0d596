"""Limits that aclnn documents for A2 and A3, on both sides: a fake CANN would accept what an NPU
refuses, and a limit that is too strict leaves rows of real profiles unmeasured."""

import pytest

from collector.model.case import Case
from collector.ops.registry import find_operator
from tests.unit.collector.ops.conftest import CpuMaker, assert_rejected

NONE, BF16 = "DT_UNDEFINED", "DT_BF16"
NZ = "ND;FRACTAL_NZ"
GROUPED_NZ = "ND;FRACTAL_NZ;ND;ND;ND;ND;ND;ND"


def grouped(dtype, out):
    dtypes = ";".join([dtype, dtype, *[NONE] * 5, "INT64"])
    return ("GroupedMatmul", "10,32;3,32,64;;;;;;3", dtypes, "10,64", out, GROUPED_NZ)


def gated(columns):
    half = f"10,{columns // 2};10"
    slots = f"10,32;3,32,{columns};3,{columns};10;3"
    return ("GroupedMatmulSwigluQuant", slots, "INT8;INT8;FLOAT;FLOAT;INT64", half, "INT8;FLOAT")


def summed(rows, scales, addends=("", "")):
    dtypes = [rows, "INT32", *(rows if addend else NONE for addend in addends), NONE, scales]
    slots = f"12,16;12;{addends[0]};{addends[1]};;6,2"
    return ("MoeFinalizeRoutingV2", slots, ";".join(dtypes), "6,16", rows)


def given_back(width, dtypes="INT32;FLOAT;FLOAT"):
    slots = f"6,{width};{width};6" if ";" in dtypes else f"6,{width}"
    return ("DequantSwigluQuant", slots, dtypes, f"6,{width // 2};6", "INT8;FLOAT")


def attention(queries, heads):
    shape = f"2,{queries},{heads * 512}"
    keys = f"2,9,{512 * heads}"
    return ("FusedInferAttentionScore", f"{shape};{keys};{keys}", ";".join([BF16] * 3), shape, BF16)


def quantised(x, scale):
    return ("AscendQuantV2", "6,16;16", f"{x};{scale}", "6,16", "INT8")


def weighed(scale):
    slots = f"10,32;32,64;{scale}"
    return ("WeightQuantBatchMatmulV2", slots, f"{BF16};INT8;{BF16}", "10,64", BF16)


def case_with(case_of, cells, **columns):
    case = case_of(*cells)
    attributes = tuple((f"Runtime {name}", text) for name, text in sorted(columns.items()))
    return Case(case.kernel_type, case.inputs, case.outputs, case.op_state, attributes)


def columns_of(cells):
    heads = str(int(cells[1].split(";")[0].rpartition(",")[2]) // 512)
    is_attention = cells[0] == "FusedInferAttentionScore"
    return {"input_layout": "BSH", "num_heads": heads} if is_attention else {}


@pytest.mark.fast
@pytest.mark.parametrize(
    "cells",
    [
        quantised(BF16, BF16),
        quantised("FLOAT", BF16),
        ("MatMulV2", "10,32;2,3,16,16", f"{BF16};{BF16}", "10,48", BF16, NZ),
        grouped(BF16, BF16),
        grouped("INT8", "INT32"),
        gated(10240),
        summed(BF16, BF16),
        summed(BF16, "FLOAT"),
        summed("FLOAT", "FLOAT", ("6,16", "6,16")),
        summed(BF16, BF16, ("6,16", "")),
        given_back(64),
        given_back(64, BF16),
        attention(3, 127),
        attention(1, 128),
        weighed("1"),
        weighed("1,1"),
    ],
    ids=lambda cells: f"{cells[0]} {cells[1]} {cells[2]}",
)
def test_documented_arguments_are_accepted(case_of, cells):
    find_operator(cells[0]).check(case_with(case_of, cells, **columns_of(cells)), "npu")


@pytest.mark.fast
@pytest.mark.parametrize(
    ("cells", "rule"),
    [
        (quantised(BF16, "FLOAT"), "scale & dtype"),
        (quantised("FLOAT16", BF16), "scale & dtype"),
        (
            ("MatMulV2", "10,16;1,1,16,16", f"{BF16};{BF16}", "10,1", BF16, NZ),
            "FRACTAL_NZ & row & column",
        ),
        (grouped("FLOAT", "FLOAT"), "FRACTAL_NZ & FLOAT"),
        (gated(10304), "10240"),
        (summed("FLOAT16", "FLOAT"), "scales & DT_BF16"),
        (summed("FLOAT", BF16), "'scales' & DT_BF16"),
        (summed(BF16, BF16, ("", "6,16")), "has_x2 <= has_x1"),
        (given_back(32), "w % 64 == 0"),
        (given_back(64, "FLOAT16"), "'x' & BF16"),
        (attention(3, 128), "65535 & BSH & BSND"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value[0]} {value[1]} {value[2]}",
)
def test_arguments_outside_of_the_documentation_are_refused(case_of, cells, rule):
    assert_rejected(case_with(case_of, cells, **columns_of(cells)), "npu", rule)


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["FLOAT", "FLOAT16", BF16])
def test_scales_are_normal_numbers(torch, dtype):
    from collector.ops.parts.int8 import small_scale

    scale = small_scale((1000,), dtype, CpuMaker(torch))
    assert float(scale.min()) >= torch.finfo(scale.dtype).tiny
