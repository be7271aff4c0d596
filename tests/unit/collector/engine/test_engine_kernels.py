"""Which kernel a recorded call launches, and the slots that its row shows, by the declarations."""

import pytest

from collector.engine.calls import parse_call
from collector.engine.cells import cells_of
from collector.engine.kernels import calls_of, kernel_of, launching_calls
from collector.ops.registry import declarations, find_operator
from collector.ops.signature import parse_signature

pytestmark = pytest.mark.fast


def kernel(name, arguments="f32[4]:ND, f32[4]:ND"):
    kind = "ACLNN" if name.startswith("aclnn") else "CUSTOM"
    return kernel_of(parse_call(f"{kind} {name}({arguments})"))


def shapes(text):
    cells = cells_of(parse_call(text))
    return tuple(cells[f"{side} Shapes"].strip('"') for side in ("Input", "Output"))


def test_name_of_a_call_names_its_kernel_but_for_a_version_and_a_form():
    assert kernel("aclnnFusedInferAttentionScoreV3") == "FusedInferAttentionScore"
    assert kernel("aclnnMoeInitRoutingV3") == "MoeInitRoutingV3"
    assert kernel("aclnnMlaPrologV3WeightNz") == "MlaPrologV3"
    assert kernel("aclnnInplaceLog") == "Log"
    assert kernel("aclnnInplaceDiv") == kernel("aclnnDiv") == "RealDiv"
    assert kernel("aclnnNoSuchThingV2") == "NoSuchThingV2"


def test_function_of_a_stack_launches_the_kernel_that_its_operator_declares():
    assert kernel("npu_hc_pre_v2") == "HcPre"
    assert kernel("chunk_fwd_o") == "chunk_fwd_kernel_o"
    assert kernel("_C_ascend.chunk_fwd_o") == "ChunkFwdO"
    assert kernel("solve_tril") == ""


def test_calls_of_a_kernel_are_those_that_may_launch_it():
    assert {"aclnnMul", "aclnnMuls"} <= {*calls_of("Mul")}
    assert {"aclnnAddmm", "aclnnMatmul"} <= {*calls_of("MatMulV2")}
    assert "aclnnAddmm" not in calls_of("Mul")


def test_each_call_is_declared_for_one_kernel_and_by_names_of_its_signature():
    undeclared = {name for name in launching_calls().values() if find_operator(name) is None}
    assert undeclared == {"", "TransQuantParamV2"}
    for op in declarations():
        variant = parse_signature(op.signature).variants[0]
        known = {one.name for one in (*variant.inputs, *variant.outputs)}
        found = [one for one in op.launched_by.values() if not callable(one)]
        named = {name for one in found for name in (*one.at, *one.absent, *one.empty)}
        assert named | {*op.shown} <= known, op.kernel


def test_arguments_are_shown_in_the_order_of_the_signature():
    assert shapes("ACLNN aclnnIndexSelect(f32[20,6]:ND, 0, i64[5]:ND, f32[5,6]:ND)") == (
        *("20,6;5;1", "5,6"),
    )
    assert shapes("ACLNN aclnnAmax(f32[8,64]:ND, ints(0,1), 0, f32[]:ND)") == ("8,64;2", "")
    assert shapes("ACLNN aclnnMax(f32[8,64]:ND, f32[]:ND)") == ("8,64;2", "")
    # an end that the call leaves open is a number of the kernel, too
    open_below = cells_of(parse_call("ACLNN aclnnClamp(bf16[4,8]:ND, 0, f64=10, bf16[4,8]:ND)"))
    assert open_below["Input Data Types"] == "DT_BF16;DT_BF16;DT_BF16"


def test_operands_of_a_product_are_those_in_memory_and_its_output_is_as_seen():
    views = "bf16[10,4]:ND/1,10, bf16[4,6]:ND/1,4, bf16[10,6]:ND/1,10"
    assert shapes(f"ACLNN aclnnMm({views}, 0)") == ("4,10;6,4", "10,6")


def test_versions_of_a_call_show_the_same_tensors():
    limits = "f32[6,40]:ND, 5, -1, 1, 1"
    results = "f32[6,5]:ND, i64[6,5]:ND"
    first, second = (
        cells_of(parse_call(f"ACLNN {text}, {results})"))
        for text in (f"aclnnTopk({limits}", f"aclnnTopkV2({limits}, 1")
    )
    assert first == second
    assert first["Output Data Types"] == "FLOAT;INT32"
    shown = [
        shapes(f"ACLNN aclnnQuantMatmul{text}, f16[10,64]:ND)")
        for text in (
            "V4(i8[10,32]:ND, i8[32,64]:ND/1,32, i64[64]:ND, 0, 0, 0, 0, 0",
            "V5(i8[10,32]:ND, i8[32,64]:ND/1,32, 0, i64[64]:ND, 0, 0, 0, 0, 0, 0, 0, 0",
        )
    ]
    assert [inputs.rstrip(";") for inputs, _ in shown] == ["10,32;64,32;64"] * 2


def test_attention_is_the_output_of_a_call_that_has_further_ones():
    head = (
        "ACLNN aclnnKvQuantSparseFlashAttention(bf16[4,1,576]:NCL, i8[9,16,1,656]:NCHW, "
        "i8[9,16,1,656]:NCHW, i32[4,1,8]:NCL, 0, 0, i32[2,6]:ND, i32[2]:ND, i32[2]:ND, 2, "
    )
    _, output = shapes(f"{head}bf16[4,1,512]:NCL; 0.04)")
    _, later = shapes(f"{head}0, bf16[4,1,512]:NCL, f32[0]:ND, f32[0]:ND; 0.04)")
    assert output == later == "4,1,512"


def test_kernel_that_no_operator_declares_shows_what_its_call_has():
    text = "ACLNN aclnnCumsum(f32[12800,512]:ND, 1, 0, f32[12800,512]:ND)"
    assert kernel_of(parse_call(text)) == "CumsumCube"
    assert shapes(text) == ("12800,512;1", "12800,512")
