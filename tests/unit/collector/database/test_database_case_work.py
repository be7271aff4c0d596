"""The work of many cases equals that of each, for any spelling of their shapes."""

import numpy as np
import pyarrow as pa
import pytest

from collector.codec.errors import BadInput
from collector.database.curves import work_of
from collector.database.state import TEXT, places_alike
from collector.model.case import case_from_cells
from collector.model.stack import Stack
from collector.model.vocabulary import BASE_CELLS
from collector.ops.floor import lower_bound_us
from collector.ops.registry import find_operator
from collector.ops.together import FEW
from tests.unit.collector.database.campaign_maker import record_of_shapes

pytestmark = pytest.mark.fast

A3 = Stack("ATLAS_800_A3_752T_128G_DIE", "2.9.0", cann="8.5")
# Kernel, shapes in and out with {r} for the rows of a case, and whether those are of one form.
SPELLED = [
    ("Add", '"{r},64;{r},64"', '"{r},64"'),
    ("Add", "{r},64;", "{r},64"),
    ("MatMulV2", "{r},64;64,{r}", "{r},{r}"),
    ("MatMulV2", "{r},64;63,{r}", "{r},{r}"),  # refused
    ("Add", '"{r}, 64;{r}, 64"', "({r}, 64)"),
    ("Add", "{r}_0,64;{r}_0,64", "{r}0,64"),  # as Python reads a number
    ("Add", "{r}\u0663,64;{r}\u0663,64", "{r}3,64"),
    ("Add", "-{r},64;-{r},64", "-{r},64"),
    ("Add", "00{r},64;{r},064", "{r},64"),
    ("Add", "{r}000000000000000000,64;64", "64"),
    ("Add", "{r},9999999999,999999999;64", "{r},9999999999,999999999"),
    ("Add", "{r},99999999,99999999;{r},99999999,99999999", "{r},99999999,99999999"),
    ("Add", "{r},64;{r},64", "N/A"),
    ("Add", "N/A", "{r},64"),
    ("Add", ";", ""),
    ("NobodyDeclaredIt", "{r},64", "{r},64"),
]


def table_of(*spelled):
    """Return this many cases of each, the first of each first."""
    found = []
    for row in range(1, FEW + 3):
        for kernel, inputs, outputs in spelled:
            shapes = (inputs.format(r=row), outputs.format(r=row))
            record = record_of_shapes(kernel, *shapes)
            cells = {name: record.cells[name] for name in BASE_CELLS}
            found.append({"kernel_type": kernel, "extra": "", **cells})
    names = ("kernel_type", "extra", *BASE_CELLS)
    return pa.table({name: pa.array([row[name] for row in found], TEXT) for name in names})


@pytest.mark.parametrize("spelled", [*((one,) for one in SPELLED), SPELLED])
def test_work_of_a_table_equals_the_work_of_each_case(spelled):
    table = table_of(*spelled)
    work = work_of(table, A3, is_checked=True)
    floors = work.lower_bounds_us(A3)
    most = work_of(table, A3, is_checked=False).lower_bounds_us(A3)
    for at, cells in enumerate(table.to_pylist()):
        try:
            case = case_from_cells(cells["kernel_type"], cells)
        except BadInput:
            assert not work.is_known[at] and np.isnan(most[at])
            continue
        op = find_operator(case.kernel_type)
        if op is not None and op.rejection_reason(case, "npu"):
            assert not work.is_known[at] and not most[at] < lower_bound_us(case, A3)
            continue
        reported = (op.flops(case), op.traffic(case)) if op else (0, 0)
        assert (work.operations[at], work.traffic[at]) == reported
        assert floors[at] == most[at] == lower_bound_us(case, A3)


def test_empty_table_has_no_work():
    assert not len(work_of(table_of(SPELLED[0]).slice(0, 0), A3, is_checked=True).operations)


def test_equal_rows_are_grouped_by_all_columns():
    texts = [("a", "bc"), ("ab", "c"), ("a", "bc"), ("", "abc"), ("ab", "c")]
    table = pa.table([pa.array(column, TEXT) for column in zip(*texts, strict=True)], ["x", "y"])
    assert sorted(map(list, places_alike(table, ["x", "y"]))) == [[0, 2], [1, 4], [3]]
    assert sorted(map(list, places_alike(table, ["y"]))) == [[0, 2], [1, 4], [3]]
