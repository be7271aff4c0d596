"""A case that cannot be replayed is rejected with the rule, before it costs time."""

import pytest

from collector.model.case import Case
from collector.ops.registry import all_ops, find_operator
from tests.fixtures.row_checks import failing
from tests.unit.collector.ops.conftest import assert_rejected

pytestmark = pytest.mark.fast

F2, F3, F4 = (";".join(["FLOAT"] * n) for n in (2, 3, 4))
ADAM = ";".join(["FLOAT"] * 11)
ATTENTION = "FLOAT;FLOAT;FLOAT;FLOAT;UINT8;FLOAT;BOOL" + ";INT64" * 5 + ";FLOAT" * 3
GRADIENT = f"{F4};BOOL;{F4};INT64" + ";FLOAT" * 5


@pytest.mark.parametrize(
    ("cells", "rule"),
    [
        (("Add", "4;5", F2, "4", "FLOAT"), "broadcast"),
        (("Add", "4;4", F2, "5", "FLOAT"), "'z'"),
        (("Add", "4;4;4", F3, "4", "FLOAT"), "x, y"),
        (("Add", "4", "FLOAT", "4", "FLOAT"), "'y'"),
        (("Add", "4;4", "FLOAT;COMPLEX64", "4", "FLOAT"), "COMPLEX64 & input 2"),
        (("Add", ";", "FLOAT;DT_UNDEFINED", "", "FLOAT"), "DT_UNDEFINED & input 2"),
        (("Cos", "4", "FLOAT", "4", "NF4"), "NF4 & output 1"),
        (("Cast", "4", "FLOAT", "N/A", "N/A"), "'y'"),
        (("Cast", "4", "FLOAT", "5", "FLOAT16"), "'y'"),
        (("TensorMove", "4", "FLOAT", "4", "FLOAT16"), "'y'"),
        (("Mul", "4;4", "FLOAT;DT_BF16", "4", "DT_BF16"), "dtype & promote"),
        (("Greater", "4;4", F2, "4", "FLOAT"), "'z'"),
        (("Sub", ";", "BOOL;BOOL", "", "BOOL"), "'x'"),
        (("Sort", "16", "FLOAT", "16;16", "FLOAT;FLOAT"), "'indices'"),
        (("Slice", "4,8;2;2", "FLOAT;INT64;INT64", "4,9", "FLOAT"), "within"),
        (("Slice", "4,8;2;2", "FLOAT;INT64;INT64", "4", "FLOAT"), "within"),
        (("Slice", "4,8;2;2", "FLOAT;INT64;INT64", "N/A", "N/A"), "within"),
        (("ZerosLike", "4", "FLOAT", "5", "FLOAT"), "'y'"),
        (("ConcatD", "5,3;5,4", F2, "5,8", "FLOAT"), "along & dimension"),
        (("ConcatD", "5,3;6,4", F2, "5,7", "FLOAT"), "along & dimension"),
        (("ConcatD", "5,3;5,4", "FLOAT;INT32", "5,7", "FLOAT"), "'x'"),
        (("LpNormV2", "4,5", "FLOAT", "4", "FLOAT"), "'y'"),
        (("Range", ";;", F3, "4,4", "FLOAT"), "'y'"),
        (("Sort", "16", "FLOAT", "16;15", "FLOAT;INT32"), "'indices'"),
        (("NonZero", "4", "BOOL", "5", "INT64"), "found <= n"),
        (("NonZero", "4,5", "BOOL", "7", "INT64"), "'y'"),
        (("GatherV2", "20,6;3;1", "FLOAT;INT64;INT64", "3,7", "FLOAT"), "'y'"),
        (("GatherV2", "20,6;3;1", "FLOAT;FLOAT;INT64", "3,6", "FLOAT"), "'indices'"),
        (
            ("EmbeddingDenseGradV2", "12,6;11;11", "FLOAT;INT32;INT32", "20,6", "FLOAT"),
            "t == rows",
        ),
        (("RmsNorm", "6,8;4", F2, "6,8;6,1", F2), "'x'"),
        (("RmsNorm", "6,8;8", F2, "6,8;6,8", F2), "'rstd'"),
        (("RmsNormGrad", "6,8;6,8;6,8;8", F4, "6,8;8", F2), "rstd"),
        (("RmsNormGrad", "6,8;6,8;6,1;8", F4, "6,8;6", F2), "gamma"),
        (("SwiGlu", "6,7", "FLOAT", "6,3", "FLOAT"), "n % 2 == 0"),
        (("SwiGlu", "6,8", "FLOAT", "6,8", "FLOAT"), "'y'"),
        (("SwiGluGrad", "6,4;6,9", F2, "6,9", "FLOAT"), "'x'"),
        (("SwiGluGrad", "6,4;6,8", "FLOAT;FLOAT16", "6,8", "FLOAT"), "'x'"),
        (
            ("RotaryPositionEmbedding", "1,6,4,16;5,1,16;5,1,16", F3, "1,6,4,16", "FLOAT"),
            "broadcast",
        ),
        (
            ("RotaryPositionEmbedding", "1,6,4,15;6,1,15;6,1,15", F3, "1,6,4,15", "FLOAT"),
            "d % 2 == 0",
        ),
        (
            (
                *("RotaryPositionEmbeddingGrad", "1,1,6,16;6,16;6,16;"),
                *(f"{F3};DT_UNDEFINED", "1,1,6,16;6,16;6,16", F3),
            ),
            "has_dcos & has_x",
        ),
        (("ApplyAdamWV2", "4;4;4;5;1", f"{F4};INT64", "N/A", "N/A"), "'grad'"),
        (("ApplyAdamWV2", "4;4;4;4;4", f"{F4};INT64", "N/A", "N/A"), "step & number"),
        (("ApplyAdamWV2", "4;4;4;4;1;4", f"{F4};INT64;FLOAT", "N/A", "N/A"), "'max_grad_norm'"),
        (("ApplyAdamW", "4;4;4;;;;;;;;5", ADAM, "4;4;4", F3), "'grad'"),
        (("ApplyAdamW", "4;4;4;4;;;;;;;4", ADAM, "4;4;4", F3), "'beta1_power'"),
        (("Axpy", "4,6;6", "DT_BF16;DT_BF16", "4,6", "DT_BF16"), "FLOAT16 & INT32"),
        (("AxpyV2", "4,6;5;", F3, "4,6", "FLOAT"), "broadcast"),
        (("AxpyV2", "6;4,6;4,1", F3, "4,6", "FLOAT"), "alpha & broadcast"),
        (("ArgMaxWithValue", "4,6", "FLOAT", "5;5", "INT32;FLOAT"), "value & row"),
        (("ArgMaxWithValue", "4,6", "FLOAT", "4;6", "INT32;FLOAT"), "'values'"),
        (("MatMulV3", "10,4;5,6", F2, "10,6", "FLOAT"), "'b'"),
        (("MatMulV3", "2,10,4;2,6,4", F2, "2,10,6", "FLOAT"), "'a'"),
        (("MatMulV3", "10,4;6,4", "INT8;INT8", "10,6", "INT32"), "'a'"),
        (("MatMulV3", "10,4;6,4;7", F3, "10,6", "FLOAT"), "bias"),
        (("MatMulV3", "10,4;6,4;;6", F4, "10,6", "FLOAT"), "offset"),
        (
            ("MatMulV3", "10,4;1,1,16,16", F2, "10,6", "FLOAT", "ND;FRACTAL_NZ"),
            "FRACTAL_NZ & input 2",
        ),
        (
            (
                *("FlashAttentionScore", "9,1,32;9,1,32;9,1,32;;;;9,8;;;;;;;;", ATTENTION),
                *("1,4,9,8;1,4,9,8;;9,1,32", F4),
            ),
            "S1,S2 & BOOL",
        ),
        (
            (
                *("FlashAttentionScore", "9,1,32;9,1,32;9,1,32;9,9;;;;;;;;;;;", ATTENTION),
                *("1,4,9,8;1,4,9,8;;9,1,32", F4),
            ),
            "'pse_shift'",
        ),
        (
            (  # 5 heads cannot share 32 numbers
                *("FlashAttentionScore", "9,1,32;9,1,32;9,1,32;;;;;;;;;;;;", ATTENTION),
                *("1,5,9,8;1,5,9,8;;9,1,32", F4),
            ),
            "layout & SBH",
        ),
        (
            (  # causal requires as many keys as queries
                *("FlashAttentionScore", "9,1,32;8,1,32;8,1,32;;;;2048,2048;;;;;;;;", ATTENTION),
                *("1,4,9,8;1,4,9,8;;9,1,32", F4),
            ),
            "layout & SBH",
        ),
        (
            (
                *("FlashAttentionScoreGrad",),
                "9,1,32;9,1,32;9,1,32;9,1,16;;1,4,9,8;1,4,9,8;;9,1,32;;;;;;",
                *(GRADIENT, "9,1,32;9,1,32;9,1,32;;;", f"{F3};{F3}"),
            ),
            "'dy'",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_contradicting_cases_are_refused(case_of, cells, rule):
    assert_rejected(case_of(*cells), "cpu", rule)


def test_unknown_inputs_are_rejected_by_every_operator():
    def check(kernel):
        assert_rejected(Case(kernel, None, None), "cpu", "inputs & N/A")

    assert failing([op.kernel for op in all_ops()], check) == []


def test_output_of_na_is_accepted(case_of):
    for cells in (("Add", "4;4", F2), ("MatMulV3", "10,4;6,4", F2), ("TensorMove", "4", "FLOAT")):
        case = case_of(*cells, "N/A", "N/A")
        find_operator(case.kernel_type).check(case, "cpu")
