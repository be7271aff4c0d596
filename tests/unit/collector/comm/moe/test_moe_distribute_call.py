"""Dispatch and combine of a mixture of experts as values: a row, and the call derived from it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.codec.errors import BadInput
from collector.model.case import case_from_cells
from collector.model.vocabulary import (
    EP_SIZE,
    INPUT_DTYPES,
    INPUT_SHAPES,
    OUTPUT_DTYPES,
    OUTPUT_SHAPES,
)
from collector.ranks.distribution import (
    COMBINE,
    COMBINE_950,
    DISPATCH,
    DISPATCH_950,
    EXPAND_SCALES,
    MASK,
    TP_COUNTS,
    WEIGHTS,
    DistributeCall,
    distribute_call,
)
from collector.ranks.gangs import is_of_gangs, ranks_needed
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

# DeepSeek-V3 on 16 dies, as vLLM-Ascend calls it there: with a mask, and a tensor parallel world.
SENT = DistributeCall(DISPATCH, 24, 7168, 256, 8, 16, 24, is_int8=True, optional=(TP_COUNTS, MASK))
BACK = replace(SENT, kernel=COMBINE, is_int8=False, optional=(EXPAND_SCALES, TP_COUNTS, MASK))


def calls():
    def made(kernel, local, ranks, choices, spare, names, is_int8, **sizes):
        names = {DISPATCH: (WEIGHTS,), COMBINE: (EXPAND_SCALES,)}[kernel] if names else ()
        names = () if ranks >= 8 and WEIGHTS in names else names
        return DistributeCall(
            kernel,
            experts=local * ranks,
            ep_size=ranks,
            choices=min(choices, local * ranks),
            capacity=sizes["tokens"] + spare,
            is_int8=is_int8 and kernel == DISPATCH,
            optional=tuple(sorted((*names, MASK, TP_COUNTS))) if spare else names,
            **sizes,
        )

    return st.builds(
        made,
        st.sampled_from([DISPATCH, COMBINE]),
        st.integers(1, 32),
        st.integers(1, 64),
        st.integers(1, 8),
        st.integers(0, 3),
        st.booleans(),
        st.booleans(),
        tokens=st.integers(1, 512),
        hidden=st.integers(1, 8192),
        dtype=st.sampled_from(["DT_BF16", "FLOAT16"]),
    )


def test_a_production_call_has_the_cells_of_its_profile():
    cells = SENT.cells
    assert cells[INPUT_SHAPES] == '"24,7168;24,8;;24;"'
    assert cells[OUTPUT_SHAPES] == '"3072,7168;3072;393216;16;256;1;3072"'
    assert cells[OUTPUT_DTYPES] == "INT8;FLOAT;INT32;INT64;INT32;INT32;FLOAT"
    assert BACK.cells[INPUT_SHAPES] == '"3072,7168;24,8;393216;256;24,8;1;24;;;;3072"'
    assert BACK.cells[OUTPUT_SHAPES] == '"24,7168"'
    assert SENT.cells[EP_SIZE] == BACK.cells[EP_SIZE] == "16"


@pytest.mark.parametrize(("kernel", "call"), [(DISPATCH_950, SENT), (COMBINE_950, BACK)])
def test_a_call_of_ascend_950_has_a_context_first(kernel, call):
    of_950 = replace(call, kernel=kernel, context=(2, 8))
    case = of_950.case
    assert case.inputs[0].shape == (2, 8) and case.inputs[1:] == call.case.inputs
    assert distribute_call(case) == replace(of_950, optional=tuple(sorted(call.optional)))
    assert is_of_gangs(case) and ranks_needed(case) == 16
    with pytest.raises(BadInput, match=naming("context")):
        distribute_call(replace(case, inputs=case.inputs[1:]))


def test_weights_of_many_ranks_are_taken_on_ascend_950():
    many = replace(SENT, kernel=DISPATCH_950, optional=(WEIGHTS,))
    assert distribute_call(many.case) == many


@pytest.mark.thorough
@given(calls())
def test_call_is_derived_from_its_row(call):
    assert distribute_call(call.case) == replace(call, optional=tuple(sorted(call.optional)))
    assert is_of_gangs(call.case) == (call.ep_size > 1)


def without_ranks(call, **changed):
    cells = {**call.cells, **changed}
    return case_from_cells(call.kernel, {name: t for name, t in cells.items() if name != EP_SIZE})


def test_ranks_of_a_dispatch_are_derived_from_its_counts():
    case = without_ranks(SENT)
    assert is_of_gangs(case) and ranks_needed(case) == 16
    alone = replace(SENT, ep_size=1, optional=())
    assert not is_of_gangs(without_ranks(alone))


def test_ranks_of_a_combine_cannot_be_derived():
    case = without_ranks(BACK)
    assert is_of_gangs(case)
    with pytest.raises(BadInput, match=naming(EP_SIZE)):
        ranks_needed(case)
    alone = replace(BACK, ep_size=1, optional=())
    assert not is_of_gangs(without_ranks(alone))


@pytest.mark.parametrize(
    ("call", "changed", "named"),
    [
        (SENT, {EP_SIZE: "many"}, (EP_SIZE,)),
        (SENT, {EP_SIZE: "32"}, ("tokens", 24)),
        (SENT, {INPUT_SHAPES: "24,7168;23,8;;24;"}, ("x", "23,7168", "DT_BF16")),
        (SENT, {INPUT_SHAPES: "24,7168;24,8;16,7168"}, ("scales",)),
        (SENT, {INPUT_SHAPES: "24,7168;24,17;;24;"}, ("experts", 16)),
        (SENT, {INPUT_DTYPES: "FLOAT;INT32;;BOOL"}, ("DT_BF16", "FLOAT16")),
        (SENT, {OUTPUT_SHAPES: "N/A"}, ("expand_x", 2)),
        (
            SENT,
            {OUTPUT_SHAPES: "3072,7168;3072;393216;16;512;2;3072"},
            ("ep_recv_counts", 256, "INT32"),
        ),
        (SENT, {OUTPUT_SHAPES: "3073,7168;3073;393344;16;256;1;3073"}, ("expand_x", "3072,7168")),
        (replace(SENT, optional=(WEIGHTS,)), {}, (WEIGHTS,)),
        (BACK, {EP_SIZE: "7"}, ("experts", 256, 7)),
        (BACK, {INPUT_SHAPES: "3072,7168;24,8;393216;256"}, ("expert_scales", "24,8", "FLOAT")),
        (BACK, {OUTPUT_SHAPES: "25,7168"}, ("x", "24,7168", "DT_BF16")),
    ],
)
def test_a_row_that_contradicts_itself_is_refused_with_the_tensor(call, changed, named):
    with pytest.raises(BadInput, match=naming(*named)):
        distribute_call(case_from_cells(call.kernel, {**call.cells, **changed}))


@pytest.mark.parametrize(
    ("call", "expected_mb"),
    [
        # 2 windows of 24 tokens: for 256 experts 14848 bytes a token, for 9 choices 14336 bytes
        (SENT, 180),
        (replace(SENT, capacity=48), 360),
        # an error of CANN's own, of a row of Qwen3-Next: 294 MiB without a shared expert
        (DistributeCall(DISPATCH, 64, 2048, 512, 8, 4, 64), 293),
    ],
)
def test_buffer_size_equals_the_one_that_the_cann_documents_require(call, expected_mb):
    assert call.buffsize_mb == expected_mb
