"""A case that cannot be replayed is rejected with the rule, before it costs time."""

import pytest

from collector.case import Case
from collector.errors import CaseRejected
from collector.ops.registry import all_ops, find

pytestmark = pytest.mark.fast

F2, F3, F4 = (";".join(["FLOAT"] * n) for n in (2, 3, 4))
ADAM = ";".join(["FLOAT"] * 11)
ATTENTION = "FLOAT;FLOAT;FLOAT;FLOAT;UINT8;FLOAT;BOOL" + ";INT64" * 5 + ";FLOAT" * 3
GRADIENT = f"{F4};BOOL;{F4};INT64" + ";FLOAT" * 5


@pytest.mark.parametrize(
    ("cells", "rule"),
    [
        (("Add", "4;5", F2, "4", "FLOAT"), "broadcast"),
        (("Add", "4;4", F2, "5", "FLOAT"), "broadcast"),
        (("Add", "4;4;4", F3, "4", "FLOAT"), "3 inputs came; inputs wanted: x, y"),
        (("Add", "4", "FLOAT", "4", "FLOAT"), "input 'y' is missing"),
        (("Add", "4;4", "FLOAT;COMPLEX64", "4", "FLOAT"), "no dtype 'COMPLEX64' (input 2)"),
        (("Add", ";", "FLOAT;DT_UNDEFINED", "", "FLOAT"), "no dtype 'DT_UNDEFINED' (input 2)"),
        (("Cos", "4", "FLOAT", "4", "NF4"), "no dtype 'NF4' (output 1)"),
        (("Cast", "4", "FLOAT", "N/A", "N/A"), "the output names the dtype"),
        (("Cast", "4", "FLOAT", "5", "FLOAT16"), "the input's shape"),
        (("TensorMove", "4", "FLOAT", "4", "FLOAT16"), "one dtype"),
        (("Mul", "4;4", "FLOAT;DT_BF16", "4", "DT_BF16"), "promote"),
        (("Greater", "4;4", F2, "4", "FLOAT"), "BOOL is wanted for output 1"),
        (("Sub", ";", "BOOL;BOOL", "", "BOOL"), "BOOL is not replayed for inputs 1, 2"),
        (("Sort", "16", "FLOAT", "16;16", "FLOAT;FLOAT"), "INT32 or INT64 is wanted for output 2"),
        (("Slice", "4,8;2;2", "FLOAT;INT64;INT64", "4,9", "FLOAT"), "within the input"),
        (("Slice", "4,8;2;2", "FLOAT;INT64;INT64", "4", "FLOAT"), "within the input"),
        (("Slice", "4,8;2;2", "FLOAT;INT64;INT64", "N/A", "N/A"), "within the input"),
        (("ZerosLike", "4", "FLOAT", "5", "FLOAT"), "the input's shape"),
        (("ConcatD", "5,3;5,4", F2, "5,8", "FLOAT"), "along one dimension"),
        (("ConcatD", "5,3;6,4", F2, "5,7", "FLOAT"), "along one dimension"),
        (("ConcatD", "5,3;5,4", "FLOAT;INT32", "5,7", "FLOAT"), "one dtype"),
        (("LpNormV2", "4,5", "FLOAT", "4", "FLOAT"), "over all dimensions"),
        (("Range", ";;", F3, "4,4", "FLOAT"), "one dimension"),
        (("Sort", "16", "FLOAT", "16;15", "FLOAT;INT32"), "the input's shape"),
        (("NonZero", "4", "BOOL", "5", "INT64"), "each element found"),
        (("NonZero", "4,5", "BOOL", "7", "INT64"), "each element found"),
        (("GatherV2", "20,6;3;1", "FLOAT;INT64;INT64", "3,7", "FLOAT"), "each index"),
        (("GatherV2", "20,6;3;1", "FLOAT;FLOAT;INT64", "3,6", "FLOAT"), "INT32 or INT64"),
        (("EmbeddingDenseGradV2", "12,6;11;11", "FLOAT;INT32;INT32", "20,6", "FLOAT"), "origin"),
        (("RmsNorm", "6,8;4", F2, "6,8;6,1", F2), "gamma"),
        (("RmsNorm", "6,8;8", F2, "6,8;6,8", F2), "one number a row"),
        (("RmsNormGrad", "6,8;6,8;6,8;8", F4, "6,8;8", F2), "one rstd a row"),
        (("RmsNormGrad", "6,8;6,8;6,1;8", F4, "6,8;6", F2), "like gamma"),
        (("SwiGlu", "6,7", "FLOAT", "6,3", "FLOAT"), "even last dimension"),
        (("SwiGlu", "6,8", "FLOAT", "6,8", "FLOAT"), "even last dimension"),
        (("SwiGluGrad", "6,4;6,9", F2, "6,9", "FLOAT"), "twice"),
        (("SwiGluGrad", "6,4;6,8", "FLOAT;FLOAT16", "6,8", "FLOAT"), "dtype"),
        (("RotaryPositionEmbedding", "6,4,16;5,1,16;5,1,16", F3, "6,4,16", "FLOAT"), "broadcast"),
        (("RotaryPositionEmbedding", "6,4,15;6,1,15;6,1,15", F3, "6,4,15", "FLOAT"), "even"),
        (
            (
                *("RotaryPositionEmbeddingGrad", "6,16;6,16;6,16;"),
                *(f"{F3};DT_UNDEFINED", "6,16;6,16;6,16", F3),
            ),
            "only beside x",
        ),
        (("ApplyAdamWV2", "4;4;4;5;1", f"{F4};INT64", "N/A", "N/A"), "one shape"),
        (("ApplyAdamWV2", "4;4;4;4;4", f"{F4};INT64", "N/A", "N/A"), "one number"),
        (("ApplyAdamWV2", "4;4;4;4;1;4", f"{F4};INT64;FLOAT", "N/A", "N/A"), "amsgrad"),
        (("ApplyAdamW", "4;4;4;;;;;;;;5", ADAM, "4;4;4", F3), "one shape"),
        (("ApplyAdamW", "4;4;4;4;;;;;;;4", ADAM, "4;4;4", F3), "one number"),
        (("AxpyV2", "4,6;5;", F3, "4,6", "FLOAT"), "broadcast"),
        (("AxpyV2", "4,6;6;6", F3, "4,6", "FLOAT"), "one number"),
        (("ArgMaxWithValue", "4,6", "FLOAT", "5;5", "INT32;FLOAT"), "each row"),
        (("ArgMaxWithValue", "4,6", "FLOAT", "4;6", "INT32;FLOAT"), "each row"),
        (("MatMulV3", "10,4;5,6", F2, "10,6", "FLOAT"), "NT, NN, TN or TT"),
        (("MatMulV3", "2,10,4;2,6,4", F2, "2,10,6", "FLOAT"), "NT, NN, TN or TT"),
        (("MatMulV3", "10,4;6,4", "INT8;INT8", "10,6", "INT32"), "floating-point numbers"),
        (("MatMulV3", "10,4;6,4;7", F3, "10,6", "FLOAT"), "bias"),
        (("MatMulV3", "10,4;6,4;;6", F4, "10,6", "FLOAT"), "offset"),
        (("MatMulV3", "10,4;1,1,16,16", F2, "10,6", "FLOAT", "ND;FRACTAL_NZ"), "FRACTAL_NZ"),
        (
            (
                *("FlashAttentionScore", "9,1,32;9,1,32;9,1,32;;;;9,8;;;;;;;;", ATTENTION),
                *("1,4,9,8;1,4,9,8;;9,1,32", F4),
            ),
            "or a whole one (S1,S2 BOOL)",
        ),
        (
            (
                *("FlashAttentionScore", "9,1,32;9,1,32;9,1,32;9,9;;;;;;;;;;;", ATTENTION),
                *("1,4,9,8;1,4,9,8;;9,1,32", F4),
            ),
            "other slots",
        ),
        (
            (  # 5 heads do not share 32 numbers
                *("FlashAttentionScore", "9,1,32;9,1,32;9,1,32;;;;;;;;;;;;", ATTENTION),
                *("1,5,9,8;1,5,9,8;;9,1,32", F4),
            ),
            "fit no layout",
        ),
        (
            (  # causal wants as many keys as queries
                *("FlashAttentionScore", "9,1,32;8,1,32;8,1,32;;;;2048,2048;;;;;;;;", ATTENTION),
                *("1,4,9,8;1,4,9,8;;9,1,32", F4),
            ),
            "fit no layout",
        ),
        (
            (
                *("FlashAttentionScoreGrad",),
                "9,1,32;9,1,32;9,1,32;9,1,16;;1,4,9,8;1,4,9,8;;9,1,32;;;;;;",
                *(GRADIENT, "9,1,32;9,1,32;9,1,32;;;", f"{F3};{F3}"),
            ),
            "like the query",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_what_does_not_fit_is_rejected(case_of, cells, rule):
    case = case_of(*cells)
    with pytest.raises(CaseRejected) as rejection:
        find(case.kernel_type).check(case, "cpu")
    told, _, of_what = str(rejection.value).partition(f": {case.describe()}")
    assert rule in told and not of_what


def test_unknown_inputs_are_rejected_by_every_operator():
    for op in all_ops():
        with pytest.raises(CaseRejected, match="unknown"):
            op.check(Case(op.kernel, None, None), "cpu")


def test_an_output_of_na_is_a_case_like_others(case_of):
    for cells in (("Add", "4;4", F2), ("MatMulV3", "10,4;6,4", F2), ("TensorMove", "4", "FLOAT")):
        case = case_of(*cells, "N/A", "N/A")
        find(case.kernel_type).check(case, "cpu")
