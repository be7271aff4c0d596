"""The coarser signature compares rows as msmodeling's own tool does; contradicting rows differ."""

from dataclasses import replace

import pytest

from collector.model.case import case_from_cells
from collector.singlehost.from_profile import settings_agree, signature_of

pytestmark = pytest.mark.fast


def case(kernel="Add", shapes="4,8;4,8", dtypes="FLOAT;FLOAT", formats="ND;ND", **more):
    cells = {"Input Shapes": shapes, "Input Data Types": dtypes, "Input Formats": formats}
    outputs = {"Output Shapes": "4,8", "Output Data Types": "FLOAT", "Output Formats": "ND"}
    names = {"state": "OP State", "out": "Output Shapes", "out_formats": "Output Formats"}
    reported = {names.get(name, name): text for name, text in more.items()}
    return case_from_cells(kernel, {**cells, **outputs, **reported})


def matmul(kernel, shapes, out="32,64", dtypes="DT_BF16;DT_BF16", formats="ND;ND"):
    return case(kernel, shapes, dtypes, formats, out=out)


def test_state_output_formats_and_dtype_spellings_are_not_part_of_a_signature():
    assert signature_of(case(state="static", out_formats="FRACTAL_NZ")) == signature_of(case())
    assert signature_of(case(dtypes="DT_FLOAT;DT_FLOAT")) == signature_of(case())
    assert signature_of(case(dtypes="FLOAT16;FLOAT16")) != signature_of(case())


def test_generated_and_profiled_empty_slots_are_equal():
    generated = case(shapes="4,8;;4,8", dtypes="FLOAT;;FLOAT", formats="ND;;ND")
    profiled = case(shapes="4,8;;4,8;", dtypes="FLOAT;DT_UNDEFINED;FLOAT;", formats="ND;NULL;ND;")
    assert signature_of(generated) == signature_of(profiled)
    assert settings_agree(generated, profiled)


def test_signature_of_a_matmul_ignores_kernel_bias_and_transposition():
    straight = matmul("MatMulV2", "32,128;128,64")
    turned = matmul("MatMulV3", "32,128;64,128")
    assert signature_of(straight) == signature_of(turned)
    assert signature_of(straight)[0] == ((32, 128), (64, 128))
    biased = matmul("MatMulV2", "32,128;64,128;64", dtypes="DT_BF16;DT_BF16;FLOAT", formats="ND;ND")
    assert signature_of(biased) == signature_of(turned)


def test_matmul_with_an_ambiguous_inner_size_is_unchanged():
    odd = matmul("MatMulV2", "8,8;16,16", out="32,64")
    assert signature_of(odd)[0] == ((8, 8), (16, 16))
    blocked = matmul("MatMulV2", "32,128;8,4,16,16", formats="ND;FRACTAL_NZ")
    assert signature_of(blocked)[0] == ((32, 128), (8, 4, 16, 16))


def test_signature_of_index_has_its_source_and_output():
    dtypes = "DT_BF16;INT64;INT64;INT64"
    rows = [
        case("Index", f"64,1728;{scalars};16", dtypes, "ND;ND;ND;ND", out="16,1728")
        for scalars in ("1;2", "3;4")
    ]
    assert signature_of(rows[0]) == signature_of(rows[1])
    other = replace(rows[0], outputs=(replace(rows[0].outputs[0], shape=(8, 1728)),))
    assert signature_of(other) != signature_of(rows[0])


@pytest.mark.parametrize("kernel", ["Slice", "SliceAiCore", "Transpose", "TransposeAiCore"])
def test_parameter_slots_are_not_part_of_a_signature(kernel):
    full = case(kernel, "4,768;2;2", "DT_BF16;INT64;INT64", "ND;ND;ND")
    bare = case(kernel, "4,768", "DT_BF16", "NCHW")
    assert signature_of(full) == signature_of(bare)


def test_dispatch_signature_has_its_ep_size():
    sizes = [case("DispatchFFNCombine", **{"EP Size": size}) for size in ("16", "32")]
    assert signature_of(sizes[0]) != signature_of(sizes[1])


def test_attributes_given_on_both_sides_must_agree():
    assert settings_agree(case(), case(state="dynamic"))
    assert not settings_agree(case(state="static"), case(state="dynamic"))
    assert not settings_agree(case(out_formats="FRACTAL_NZ"), case(out_formats="ND"))
    scalar = case("Add", ";", "FLOAT;", "ND;")
    assert not settings_agree(scalar, case("Add", ";", "INT32;", "ND;"))
    reported = case(**{"Runtime block_size": "128"})
    assert settings_agree(reported, case())
    assert not settings_agree(reported, case(**{"Runtime block_size": "64"}))
