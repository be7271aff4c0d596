"""DispatchFFNCombine as values: its seven inputs, and the call derived from a row."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.codec.errors import BadInput
from collector.comm.moe.moe_plan import MoeCase, MoePlan, buffsize_settings
from collector.model.case import case_from_cells
from collector.model.vocabulary import (
    EP_SIZE,
    INPUT_DTYPES,
    INPUT_FORMATS,
    INPUT_SHAPES,
    OUTPUT_DTYPES,
    OUTPUT_SHAPES,
)
from collector.ranks.experts import (
    KERNEL,
    KERNEL_FLOATING,
    KERNEL_INT4,
    ExpertCall,
    call_of,
    check_expert_call,
)
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

# DeepSeek-V3 on 16 dies, as a profile of its decode shows it.
DEEPSEEK = ExpertCall(120, 7168, 2048, 256, 4, 16)


def calls():
    sizes = st.integers(1, 4096)
    return st.builds(
        lambda local, ranks, choices, **sizes: ExpertCall(
            experts=local * ranks, ep_size=ranks, choices=min(choices, local * ranks), **sizes
        ),
        st.integers(1, 32),
        st.integers(1, 64),
        st.integers(1, 8),
        tokens=sizes,
        hidden=sizes,
        intermediate=sizes,
        weight_bits=st.sampled_from([8, 16]),
        dtype=st.sampled_from(["DT_BF16", "FLOAT16"]),
    )


def test_a_production_call_has_the_cells_of_its_profile():
    cells = DEEPSEEK.cells
    assert cells[INPUT_SHAPES] == ('"120,7168;16,7168,4096;16,2048,7168;120,4;65536;114688;120,4"')
    assert cells[INPUT_DTYPES] == "DT_BF16;INT8;INT8;INT32;INT64;INT64;FLOAT"
    assert cells[INPUT_FORMATS] == "ND;FRACTAL_NZ;FRACTAL_NZ;ND;ND;ND;ND"
    assert (cells[OUTPUT_SHAPES], cells[OUTPUT_DTYPES]) == ('"120,7168;16"', "DT_BF16;INT32")
    assert cells[EP_SIZE] == "16"


def test_weights_other_than_int8_use_another_kernel():
    floating = replace(DEEPSEEK, weight_bits=16)
    assert (DEEPSEEK.kernel, floating.kernel) == (KERNEL, KERNEL_FLOATING)
    assert floating.case.case_id != DEEPSEEK.case.case_id


def test_four_bit_weights_have_biases_and_an_optional_mask_cell():
    nibbles = replace(DEEPSEEK, weight_bits=4)
    assert nibbles.kernel == KERNEL_INT4
    cells = nibbles.cells
    assert cells[INPUT_DTYPES] == "DT_BF16;INT4;INT4;INT32;INT64;INT64;FLOAT;FLOAT;FLOAT"
    shapes = "120,7168;16,7168,4096;16,2048,7168;120,4;16,4096;16,1,7168;16,4096;16,7168;120,4"
    whole = {**cells, INPUT_SHAPES: shapes}
    assert call_of(nibbles.case) == call_of(case_from_cells(KERNEL_INT4, whole)) == nibbles
    dtypes, formats = f"{cells[INPUT_DTYPES]};BOOL", f"{cells[INPUT_FORMATS]};ND"
    masked = {INPUT_DTYPES: dtypes, INPUT_FORMATS: formats}
    for mask, is_read in (("", True), ("120", False)):
        row = {**cells, **masked, INPUT_SHAPES: f"{shapes};{mask}"}
        if is_read:
            assert call_of(case_from_cells(KERNEL_INT4, row)) == nibbles
        else:
            with pytest.raises(BadInput, match=naming("x_active_mask")):
                call_of(case_from_cells(KERNEL_INT4, row))
    with pytest.raises(BadInput, match=naming("multiples of 8")):
        check_expert_call(replace(nibbles, hidden=7164))


def test_number_of_ranks_is_part_of_the_case_id():
    cells = DEEPSEEK.cells
    assert case_from_cells(KERNEL, {**cells, EP_SIZE: "32"}).case_id != DEEPSEEK.case.case_id


@pytest.mark.thorough
@given(calls())
def test_call_is_derived_from_its_row(call):
    check_expert_call(call)
    assert call_of(call.case) == call


def test_row_may_have_a_batch_dimension_of_one_and_scales_per_expert():
    cells = DEEPSEEK.cells
    shapes = "1,120,7168;16,7168,4096;16,2048,7168;120,4;16,4096;16,7168;120,4"
    assert call_of(case_from_cells(KERNEL, {**cells, INPUT_SHAPES: shapes})) == DEEPSEEK


def test_scales_that_are_not_read_may_be_empty():
    call = replace(DEEPSEEK, weight_bits=16)
    shapes = "120,7168;16,7168,4096;16,2048,7168;120,4;;;120,4"  # as vLLM-Ascend serves it
    cells = {**call.cells, INPUT_SHAPES: shapes}
    assert call_of(case_from_cells(KERNEL_FLOATING, cells)) == call
    with pytest.raises(BadInput, match=naming("scale1", "65536")):
        call_of(case_from_cells(KERNEL, {**DEEPSEEK.cells, INPUT_SHAPES: shapes}))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"tokens": 0}, ("tokens", 0, 1)),
        ({"ep_size": 0}, ("ep_size", 0, 1)),
        ({"ep_size": 24}, ("experts", 256, "ep_size", 24)),
        ({"choices": 257}, ("choices", 257, 256)),
        ({"dtype": "FLOAT"}, ("dtype", "'FLOAT'", "DT_BF16", "FLOAT16")),
        ({"tokens": 1 << 20}, ("HCCL_BUFFSIZE", 86026, 65535)),
    ],
)
def test_invalid_call_is_refused_with_the_violated_constraint(changed, named):
    with pytest.raises(BadInput, match=naming(*named)):
        check_expert_call(replace(DEEPSEEK, **changed))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({EP_SIZE: ""}, ("EP Size",)),
        ({EP_SIZE: "many"}, ("EP Size",)),
        (
            {
                INPUT_SHAPES: "120,7168;16,7168,4096",
                INPUT_DTYPES: "DT_BF16;INT8",
                INPUT_FORMATS: "ND;FRACTAL_NZ",
            },
            ("inputs", 7, 2),
        ),
        ({INPUT_SHAPES: "120,7168;16,7168,4096"}, ("weight2", 3)),
        (
            {INPUT_SHAPES: "120;16,7168,4096;16,2048,7168;120,4;65536;114688;120,4"},
            ("x", 2),
        ),
        (
            {INPUT_SHAPES: "120,7168;16,7168,4096;16,1024,7168;120,4;65536;114688;120,4"},
            ("weight2", "16,1024,7168", "16,2048,7168"),
        ),
        (
            {INPUT_SHAPES: "120,7168;16,7168,4096;16,2048,7168;120,4;65536;114688;119,4"},
            ("probs", "119,4", "120,4"),
        ),
        (
            {INPUT_SHAPES: "120,7168;16,7168,4095;16,2047,7168;120,4;65520;114688;120,4"},
            ("weight1", "16,7168,4095", "16,7168,4094"),
        ),
        ({INPUT_DTYPES: "DT_BF16;INT3;INT8;INT32;INT64;INT64;FLOAT"}, ("'INT3'",)),
        (
            {INPUT_DTYPES: "DT_BF16;HIFLOAT8;HIFLOAT8;INT32;INT64;INT64;FLOAT"},
            ("HIFLOAT8", "950PR", "950DT"),
        ),
    ],
)
def test_a_row_that_contradicts_itself_is_refused_with_the_input(changed, named):
    with pytest.raises(BadInput, match=naming(*named)):
        call_of(case_from_cells(KERNEL, {**DEEPSEEK.cells, **changed}))


@pytest.mark.parametrize(
    ("tokens", "hidden", "choices", "expected_mb"),
    [
        (64, 1024, 8, 12),  # 1.5 MiB of rows, and 10
        (120, 7168, 4, 20),
        (1131, 7168, 8, 196),  # within HCCL's default of 200
        (4096, 7168, 8, 682),
    ],
)
def test_the_buffer_is_three_times_the_rows_that_a_rank_sends(tokens, hidden, choices, expected_mb):
    call = replace(DEEPSEEK, tokens=tokens, hidden=hidden, choices=choices)
    assert call.buffsize_mb == expected_mb


def test_buffer_size_is_set_unless_the_environment_sets_it():
    large = MoePlan("npu", 16, 1, 1.0, (MoeCase(replace(DEEPSEEK, tokens=4096), 0),))
    assert large.largest_buffsize_mb() == 346
    small = MoePlan("npu", 16, 1, 1.0, (MoeCase(DEEPSEEK, 0),))
    assert small.largest_buffsize_mb() == 200  # HCCL's own default
    assert buffsize_settings("npu", 346, {}) == {"HCCL_BUFFSIZE": "346"}
    assert buffsize_settings("npu", 346, {"HCCL_BUFFSIZE": "100"}) == {}
    assert buffsize_settings("cpu", 346, {}) == {}


def test_packed_scales_may_have_the_dtypes_of_the_kernel():
    dtypes = "DT_BF16;INT8;INT8;INT32;UINT64;UINT64;FLOAT"
    assert call_of(case_from_cells(KERNEL, {**DEEPSEEK.cells, INPUT_DTYPES: dtypes})) == DEEPSEEK


def test_row_of_another_kernel_or_weight_dtype_is_refused():
    floating = replace(DEEPSEEK, weight_bits=16).cells
    with pytest.raises(BadInput, match=naming(KERNEL, KERNEL_FLOATING)):
        call_of(case_from_cells(KERNEL, floating))
    mixed = {**DEEPSEEK.cells, INPUT_DTYPES: "DT_BF16;INT8;FLOAT;INT32;INT64;INT64;FLOAT"}
    with pytest.raises(BadInput, match=naming("weight2", "INT8")):
        call_of(case_from_cells(KERNEL, mixed))


@pytest.mark.parametrize("changed", [{"experts": 1 << 44}, {"tokens": 1 << 21, "hidden": 1}])
def test_call_that_no_group_of_ranks_can_run_is_refused(changed):
    with pytest.raises(BadInput, match=naming("experts", "tokens", *changed.values())) as error:
        check_expert_call(replace(DEEPSEEK, **changed))
    assert "HCCL_BUFFSIZE" not in str(error.value)
