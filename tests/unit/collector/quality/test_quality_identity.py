"""Which spellings of a recorded launch are the call that a case requests, and which are not.

Each rule is next to what it must not excuse.
"""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.model.case import case_from_cells
from collector.model.vocabulary import INPUT_CELLS, OUTPUT_CELLS
from collector.quality.identity import (
    Comparison,
    describe_all_tensors,
    identifying_cells,
    identity_of,
)
from tests.unit.collector.naming import names

pytestmark = pytest.mark.fast


def cells(text: str) -> dict[str, str]:
    """Parse `4,8 FLOAT ND; - -> 4,8 FLOAT ND`: shape, dtype and format of each slot, `()` for an
    empty cell, `-` for an unspecified slot."""
    found = {}
    for side_names, side in zip((INPUT_CELLS, OUTPUT_CELLS), text.split("->"), strict=False):
        slots = [slot.split() for slot in side.split(";")]
        columns = [[_word(slot, i) for slot in slots] for i in range(3)]
        found |= {name: ";".join(column) for name, column in zip(side_names, columns, strict=True)}
    return found


def _word(slot: list[str], place: int) -> str:
    word = slot[place] if place < len(slot) else ""
    return "" if word in ("-", "()") else word


def compared(requested: str, recorded: str):
    return identity_of(case_from_cells("Add", cells(requested)), cells(recorded))


SAME = [
    ("4,8 FLOAT ND -> 4,8 FLOAT ND", "4,8 FLOAT ND -> 4,8 FLOAT ND"),
    # Unspecified trailing slots, as in profiles of many optional inputs.
    ("4,8 FLOAT ND -> 4,8 FLOAT ND", "4,8 FLOAT ND; - ; - -> 4,8 FLOAT ND; -"),
    # A slot in the middle that is blank in the case, and undefined in the row.
    (
        "4 FLOAT ND; -; 4 FLOAT ND -> 4 FLOAT ND",
        "4 FLOAT ND; () DT_UNDEFINED N/A; 4 FLOAT ND -> 4 FLOAT ND",
    ),
    # A number of the host: without dimensions, or a tensor of one element.
    ("4,8 FLOAT ND; () FLOAT ND -> 4,8 FLOAT ND", "4,8 FLOAT ND; 1 FLOAT ND -> 4,8 FLOAT ND"),
    # A tensor of no elements has an empty cell.
    ("0,8 FLOAT ND -> 0,8 FLOAT ND", "() FLOAT ND -> () FLOAT ND"),
    # Scales packed into 64 bits: aclnn calls INT64 UINT64.
    ("4,8 INT8 ND; 8 INT64 ND -> 8 FLOAT ND", "4,8 INT8 ND; 8 UINT64 ND -> 8 FLOAT ND"),
    # Every prefix of a dtype, every name of a plain layout, and none.
    ("2,3,4 BF16 ND -> 2,3,4 DT_FLOAT ND", "2,3,4 DT_BF16 NCL -> 2,3,4 FLOAT NCHW"),
    ("4,8 FLOAT -> 4,8 FLOAT", "4,8 FLOAT ND -> 4,8 FLOAT ND"),
    # FRACTAL_NZ: in its memory layout, or as torch has it, up to whole blocks.
    ("3,2,16,16 DT_BF16 FRACTAL_NZ -> 4 FLOAT ND", "3,2,16,16 DT_BF16 FRACTAL_NZ -> 4 FLOAT ND"),
    ("30,41 DT_BF16 FRACTAL_NZ -> 4 FLOAT ND", "3,2,16,16 DT_BF16 FRACTAL_NZ -> 4 FLOAT ND"),
    ("5,30,64 INT8 FRACTAL_NZ -> 4 FLOAT ND", "5,2,2,16,32 INT8 FRACTAL_NZ -> 4 FLOAT ND"),
    # An output that was not requested is a tensor of no elements.
    ("4 FLOAT ND -> 4 FLOAT ND", "4 FLOAT ND -> 4 FLOAT ND; () FLOAT ND"),
]
OTHER = [
    ("16,64 DT_BF16 ND -> 16,64 DT_BF16 ND", "16,64 FLOAT ND -> 16,64 DT_BF16 ND"),
    (
        "20,6 FLOAT ND; 5,6 INT64 ND -> 20,6 FLOAT ND",
        "6,20 FLOAT ND; 6,5 INT32 ND -> 6,20 FLOAT ND",
    ),
    ("4,8 FLOAT ND -> 4,8 FLOAT ND", "4,8 FLOAT ND -> 8,4 FLOAT ND"),
    ("4,8 FLOAT ND -> 4,8 FLOAT ND", "1,4,8 FLOAT ND -> 4,8 FLOAT ND"),
    ("4,8 FLOAT ND; 4,8 FLOAT ND -> 4,8 FLOAT ND", "4,8 FLOAT ND -> 4,8 FLOAT ND"),
    ("4,8 FLOAT ND -> 4,8 FLOAT ND", "4,8 FLOAT ND; 2 INT64 ND -> 4,8 FLOAT ND"),
    ("4,8 FLOAT ND; () FLOAT ND -> 4,8 FLOAT ND", "4,8 FLOAT ND; 4,8 FLOAT ND -> 4,8 FLOAT ND"),
    ("4,8 FLOAT ND; -; -> 4,8 FLOAT ND", "4,8 FLOAT ND; () FLOAT ND -> 4,8 FLOAT ND"),
    ("0,8 FLOAT ND -> 0,8 FLOAT ND", "() DT_BF16 ND -> () FLOAT ND"),
    ("8 INT64 ND -> 8 FLOAT ND", "8 INT32 ND -> 8 FLOAT ND"),
    ("4,8 INT8 ND; 8 INT64 ND -> 8 FLOAT ND", "4,8 INT8 ND; 8 INT32 ND -> 8 FLOAT ND"),
    # 64-bit tensors next to unquantised ones, and outputs, are not packed scales.
    ("8 INT64 ND -> 8 INT64 ND", "8 UINT64 ND -> 8 INT64 ND"),
    ("4 INT8 ND; 8 INT64 ND -> 8 INT64 ND", "4 INT8 ND; 8 UINT64 ND -> 8 UINT64 ND"),
    # An optional input at another position: a bias for a scale.
    (
        "4 INT32 ND; 8 FLOAT ND; -; 8 FLOAT ND; 1 FLOAT ND -> 4 FLOAT ND",
        "4 INT32 ND; -; 8 FLOAT ND; 8 FLOAT ND; 1 FLOAT ND -> 4 FLOAT ND",
    ),
    ("3,2,16,16 DT_BF16 FRACTAL_NZ -> 4 FLOAT ND", "32,48 DT_BF16 ND -> 4 FLOAT ND"),
    # Two tensors which each fill one block partly.
    ("4,8 DT_BF16 FRACTAL_NZ -> 4 FLOAT ND", "8,4 DT_BF16 FRACTAL_NZ -> 4 FLOAT ND"),
    ("30,50 DT_BF16 FRACTAL_NZ -> 4 FLOAT ND", "3,2,16,16 DT_BF16 FRACTAL_NZ -> 4 FLOAT ND"),
    # As many elements in whole blocks, and not a layout of 4,8: INT8 has blocks of 16 by 32.
    ("4,8 INT8 FRACTAL_NZ -> 4 FLOAT ND", "2,1,16,16 INT8 FRACTAL_NZ -> 4 FLOAT ND"),
    ("2,1,16,16 INT8 FRACTAL_NZ -> 4 FLOAT ND", "4,8 INT8 FRACTAL_NZ -> 4 FLOAT ND"),
    ("1,1,16,32 INT8 FRACTAL_NZ -> 4 FLOAT ND", "2,1,16,16 INT8 FRACTAL_NZ -> 4 FLOAT ND"),
    ("4,8 INT8 FRACTAL_NZ -> 4 FLOAT ND", "2,1,0,16 INT8 FRACTAL_NZ -> 4 FLOAT ND"),
    ("4 FLOAT ND -> 4 FLOAT ND", "4 FLOAT ND -> 4 FLOAT ND; 4 FLOAT ND"),
]


@pytest.mark.parametrize(("requested", "recorded"), SAME)
def test_another_spelling_of_the_same_call_is_proved(requested, recorded):
    assert compared(requested, recorded).is_proved, compared(requested, recorded)


@pytest.mark.parametrize(("requested", "recorded"), OTHER)
def test_another_call_is_recognised_by_its_slots(requested, recorded):
    found = compared(requested, recorded)
    assert found.differences and not found.is_proved


def test_a_difference_names_the_slot_and_both_sides():
    found = compared("4 FLOAT ND; 16,64 DT_BF16 ND -> 4 FLOAT ND", "4 FLOAT ND; - -> 4 FLOAT ND")
    (difference,) = found.differences
    assert names(difference, "input 2", "16,64 DT_BF16 ND")
    assert re.search("nothing came|got nothing", difference)


_NO_INPUTS, _NO_OUTPUTS, _NO_DTYPE = ("inputs",), ("outputs",), ("dtype", "input 1")
_NO_FORMATS = (("format", "input 1"), ("format", "output 1"))


@pytest.mark.parametrize(
    ("recorded", "unreported"),
    [
        ("N/A -> N/A", (_NO_INPUTS, _NO_OUTPUTS)),
        ("4,8 FLOAT ND -> N/A", (_NO_OUTPUTS,)),
        ("", (_NO_INPUTS, _NO_OUTPUTS)),
        ("4,8 - ND -> 4,8 FLOAT ND", (_NO_DTYPE,)),
        ("4,8 FLOAT -> 4,8 FLOAT N/A", _NO_FORMATS),
    ],
)
def test_unrecorded_slots_leave_the_identity_unverified(recorded, unreported):
    found = compared("4,8 FLOAT ND -> 4,8 FLOAT ND", recorded)
    assert (found.differences, found.is_proved) == ((), False)
    assert all(names(text, *data) for text, data in zip(found.unverified, unreported, strict=True))


@pytest.mark.parametrize("is_graph_s", [True, False])
def test_omitted_absent_inputs_leave_positions_unverified(is_graph_s):
    """Rows of a graph omit them, others keep their position."""
    rows = ("4 INT8 ND; 8 FLOAT ND -> 4 FLOAT ND", "4 INT8 ND; -; 8 FLOAT ND -> 4 FLOAT ND")
    found = compared(*(rows if is_graph_s else rows[::-1]))
    assert (found.differences, found.is_proved) == ((), False)
    (text,) = found.unverified
    assert names(text, "inputs", "absent")


def test_declaration_supplies_the_positions_of_omitted_inputs():
    tensors, out = ("4,8 INT8 ND", "8,4 INT8 ND", "4 FLOAT ND"), " -> 4,4 DT_BF16 ND"
    requested, of_tokens = "; ".join((*tensors, "4 FLOAT ND")), "; - ; - ; 4 FLOAT ND"
    case = case_from_cells("QuantBatchMatmulV3", cells(requested + out))
    recorded = "; ".join(tensors)
    assert identity_of(case, cells(recorded + of_tokens + out)).is_proved
    as_bias = identity_of(case, cells(recorded + "; - ; 4 FLOAT ND" + out))
    assert names(as_bias.differences[0], "input 5", "4 FLOAT ND", "nothing")


def test_unspecified_slots_of_the_case_are_not_compared():
    assert compared("4,8 FLOAT ND -> N/A", "4,8 FLOAT ND -> 8,4 INT8 ND").is_proved


def test_malformed_cells_prove_nothing():
    found = compared("4,8 FLOAT ND -> 4,8 FLOAT ND", "4,x FLOAT ND -> 4,8 FLOAT ND")
    assert not found.differences and names(found.unverified[0], "Input Shapes")


def test_only_complete_rows_describe_what_ran():
    assert describe_all_tensors(identifying_cells(cells("4 FLOAT ND -> 4 FLOAT ND")))
    for row in ("4 FLOAT ND -> N/A", "N/A -> 4 FLOAT ND", "4 - ND -> 4 FLOAT ND", ""):
        assert not describe_all_tensors(identifying_cells(cells(row)))
    assert not describe_all_tensors(())


_SLOT = st.tuples(
    st.lists(st.integers(1, 40), min_size=1, max_size=4).map(lambda s: ",".join(map(str, s))),
    st.sampled_from(["FLOAT", "DT_BF16", "INT32", "INT8"]),
    st.sampled_from(["ND", "NCHW"]),
).map(" ".join)
_ROW = st.tuples(
    st.lists(_SLOT, min_size=1, max_size=5).map(";".join),
    st.lists(_SLOT, min_size=1, max_size=3).map(";".join),
).map(" -> ".join)


@pytest.mark.thorough
@given(_ROW)
def test_every_call_is_itself(row):
    assert compared(row, row).is_proved


@pytest.mark.thorough
@given(_ROW, _ROW)
def test_comparison_of_identities_is_symmetric(one, other):
    assert bool(compared(one, other).differences) == bool(compared(other, one).differences)


@pytest.mark.thorough
@given(_ROW, _ROW)
def test_calls_with_different_work_are_never_equal(one, other):
    if work(one) != work(other):
        assert not compared(one, other).is_proved


def work(row: str) -> list[list[tuple[int, str]]]:
    """Return elements and dtype of every tensor."""
    case = case_from_cells("Add", cells(row))
    sides = (case.inputs or (), case.outputs or ())
    return [[(slot.numel, slot.dtype) for slot in side] for side in sides]


def test_each_wording_is_parsed_once():
    reported = Comparison(case_from_cells("Add", cells("4 FLOAT ND -> 4 FLOAT ND")))
    row = cells("4 FLOAT ND -> 4 FLOAT ND")
    assert reported.of(row) is reported.of(dict(row))
