"""The properties that make two calls the same case, and those that do not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.codec.errors import BadInput
from collector.model.case import Slot, case_from_cells, parse_shape, shape_text, split_cell
from collector.model.record import CaseRecord, as_ran
from collector.model.vocabulary import BASE_CELLS

pytestmark = pytest.mark.fast


def cells(shapes='"2,3;3"', dtypes="DT_BF16;FLOAT", formats="ND;ND", out='"2,3"', **more):
    return {
        "OP State": "dynamic",
        "Accelerator Core": "AI_CORE",
        "Input Shapes": shapes,
        "Input Data Types": dtypes,
        "Input Formats": formats,
        "Output Shapes": out,
        "Output Data Types": "DT_BF16",
        "Output Formats": "ND",
    } | more


def case_id(kernel_type="Add", **changes):
    return case_from_cells(kernel_type, cells(**changes)).case_id


def test_quotes_blanks_and_trailing_empty_slots_do_not_change_the_case_id():
    plain = case_id(shapes="2,3;3")
    assert case_id(shapes='"2,3;3"') == plain
    assert case_id(shapes=' "2,3; 3" ') == plain
    assert (
        case_id(shapes='"2,3;3;"', dtypes="DT_BF16;FLOAT;DT_UNDEFINED", formats="ND;ND;NULL")
        == plain
    )


def test_op_state_is_part_of_the_case_id_and_the_core_is_not():
    assert case_id(**{"Accelerator Core": "MIX_AIC"}) == case_id()
    assert case_id(**{"OP State": "static"}) != case_id()


def test_ai_cpu_case_differs_from_that_of_every_other_core():
    cores = ("AI_CORE", "AI_VECTOR_CORE", "MIX_AIC", "MIX_AIV", "", "N/A")
    assert len({case_id(**{"Accelerator Core": core}) for core in cores}) == 1
    assert case_id() == "e711b7c347d25e56429d"
    spelled = {case_id(**{"Accelerator Core": core}) for core in ("AI_CPU", "AICPU", " ai_cpu ")}
    assert len(spelled) == 1 and case_id() not in spelled
    case = case_from_cells("Add", cells(**{"Accelerator Core": "AICPU"}))
    assert case.attribute("Accelerator Core") == "AI_CPU"


def test_result_of_the_ai_cpu_is_recorded_under_its_own_case():
    requested = CaseRecord("Add", {**cells(), "Accelerator Core": "AI_VECTOR_CORE"}, {})
    ran = as_ran(requested, "Add", "dynamic", "AI_CPU")
    assert ran.case.attribute("Accelerator Core") == "AI_CPU"
    assert as_ran(ran, "Add", "dynamic", "AI_VECTOR_CORE").case_id == requested.case_id
    assert as_ran(ran, "Add", "dynamic", "N/A").case_id == ran.case_id


def test_result_of_a_kernel_without_a_graph_build_has_no_graph_column():
    reported = {"Runtime launched_by": "graph"}
    requested = CaseRecord("Add", {**cells(), "OP State": "static"}, reported)
    assert as_ran(requested, "Add", "static", None).case_id == requested.case_id
    assert as_ran(requested, "Add", "dynamic", None).extra == {}


@pytest.mark.parametrize("dtype", ["FLOAT", "INT32", "INT64"])
def test_empty_slots_preserve_their_dtype(dtype):
    pair = case_from_cells("Add", cells('";"', f"{dtype};{dtype}", "ND;ND", '""'))
    assert pair.inputs == (Slot(None, dtype, "ND"), Slot(None, dtype, "ND"))
    others = {case_id(shapes='";"', dtypes=f"{d};{d}") for d in ("FLOAT", "INT32", "INT64")}
    assert len(others) == 3


def test_inner_empty_slots_preserve_positions():
    assert case_id(shapes='"2,3;;3"', dtypes="DT_BF16;FLOAT;FLOAT", formats="ND;ND;ND") != case_id(
        shapes='"2,3;3"', dtypes="DT_BF16;FLOAT;FLOAT", formats="ND;ND;ND"
    )


def test_unknown_output_is_a_case_and_unknown_inputs_have_no_slots():
    adam = case_from_cells("ApplyAdamWV2", cells(out="N/A"))
    assert adam.outputs is None and adam.inputs is not None
    assert case_from_cells("MemSet", cells("N/A", "N/A", "N/A", "N/A")).inputs is None
    assert case_id("ApplyAdamWV2", out="N/A") != case_id("ApplyAdamWV2", out='""')


def test_case_id_includes_runtime_columns_and_ep_size_but_not_their_origin():
    assert case_id(**{"Runtime sparse_mode": "3"}) != case_id(**{"Runtime sparse_mode": "0"})
    assert case_id(**{"EP Size": "16"}) != case_id()
    assert case_id(**{"EP Size": ""}) == case_id()
    assert case_id(**{"Runtime source_profile": "a"}) == case_id()


def test_only_two_compiled_variants_are_renamed():
    assert case_id("muls_add_kernel_1") == case_id("muls_add_kernel")
    assert case_id("_triton_rope_1") != case_id("_triton_rope")


@pytest.mark.parametrize("name", ["../Add", "a/b", "", ".hidden", "a b", "x" * 300, "Add\n"])
def test_invalid_kernel_type_is_refused(name):
    if name.strip() != name and name.strip():
        assert case_from_cells(name, cells()).kernel_type == name.strip()
        return
    with pytest.raises(BadInput, match="kernel type"):
        case_from_cells(name, cells())


@pytest.mark.parametrize(
    "shape", ["2,x", "2;-1", "-3", "1.5", "9" * 19, "4294967296,4294967296", "0" + ",999" * 9]
)
def test_invalid_shape_is_refused(shape):
    with pytest.raises(BadInput, match="shape"):
        case_from_cells("Add", cells(shape))


def test_sizes_follow_from_shape_and_dtype():
    slot = Slot((4, 5), "DT_BF16", "ND")
    assert (slot.numel, slot.size_bytes) == (20, 40)
    assert Slot(None, "INT64", "ND").size_bytes == 8  # an empty slot counts as a scalar
    assert Slot(None, "DT_UNDEFINED", "NULL").size_bytes == 0


shapes = st.none() | st.lists(st.integers(0, 6000), min_size=1, max_size=5).map(tuple)


@pytest.mark.thorough
@given(shapes)
@settings(max_examples=100)
def test_shape_is_recovered_from_its_text(shape):
    assert parse_shape(shape_text(shape)) == shape


@pytest.mark.thorough
@given(st.lists(shapes, min_size=1, max_size=8))
@settings(max_examples=100)
def test_every_slot_preserves_its_position(slots):
    text = '"' + ";".join(map(shape_text, slots)) + '"'
    assert [parse_shape(part) for part in split_cell(text)] == slots


def test_spreadsheet_formula_is_refused_in_every_cell():
    row = cells() | {
        "Runtime attn_state": "decode",
        "Runtime source_profile": "rank0",
        "EP Size": "8",
    }
    assert set(BASE_CELLS) <= set(row)
    for name in row:
        for text in ("=1+1", "+A1", "-A1", "@SUM(A1)", '"=cmd|x!A0"', "\t=1", '"-1+A1"'):
            with pytest.raises(BadInput):
                case_from_cells("Add", {**row, name: text})
    for text in ("-1", "-", "-1.5", "a=b"):
        assert case_from_cells("Add", {**row, "Runtime x": text}).attribute("Runtime x") == text
    case_from_cells("Add", {**row, "Comment": "=1+1"})  # columns of another tool are kept
