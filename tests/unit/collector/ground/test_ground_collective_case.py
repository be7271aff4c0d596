import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from collector.case import case_from_cells
from collector.collective import DTYPES, OPERATIONS, Collective
from collector.collective_case import (
    CollectiveCase,
    checked_environment,
    collective_case_of,
    is_collective,
)
from collector.errors import BadInput
from collector.record import CaseRecord, read_table, write_table
from collector.topology import Grid

pytestmark = pytest.mark.fast

SETTINGS = ("", "HCCL_ALGO=level0:NA;level1:H-D_R", "HCCL_ALGO=a HCCL_OP_EXPANSION_MODE=AIV")


@st.composite
def asked(draw: st.DrawFn) -> CollectiveCase:
    grid = Grid(tuple(draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))))
    assume(grid.size > 1)
    size = draw(st.integers(2, min(32, grid.size)))
    tier = draw(st.sampled_from(range(len(grid.extents))))
    ranks = draw(st.integers(size, grid.size))
    assume(grid.has_group(size, tier, ranks))
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    message_bytes = draw(st.integers(1, 1 << 20)) * size * DTYPES[dtype][1]
    operation = draw(st.sampled_from(sorted(OPERATIONS)))
    return CollectiveCase(
        Collective(operation, message_bytes, dtype, size, tier, draw(st.booleans())),
        grid,
        ranks,
        draw(st.sampled_from(["event", "alternating", "kernel"])),
        draw(st.sampled_from(SETTINGS)),
    )


@given(asked())
def test_a_collective_is_the_same_after_a_table(case: CollectiveCase) -> None:
    (read,) = read_table(write_table([case.record()]))
    assert is_collective(read.case.kernel_type)
    assert collective_case_of(read.case) == case


@given(asked(), asked())
def test_what_differs_is_another_case(one: CollectiveCase, other: CollectiveCase) -> None:
    assert (one == other) == (one.record().case_id == other.record().case_id)


def changed(**cells: str) -> CaseRecord:
    record = CollectiveCase(
        Collective("all_reduce", 4096, "bfloat16", 2, 1), Grid((2, 2)), 4, "event"
    ).record()
    named = {f"Runtime {name}": text for name, text in cells.items()}
    return CaseRecord(record.kernel_type, record.cells, {**record.extra, **named})


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"num_devices": ""}, "Runtime num_devices is wanted"),
        ({"num_devices": "two"}, "Runtime num_devices: a whole number"),
        ({"num_devices": "8"}, "no group of 8 ranks of tier 1 is among 4"),
        ({"ranks": "9999999"}, "among 9999999 ranks"),
        ({"topology_tier": "2"}, "ranks of tier 2"),
        ({"grid_shape": "90000 90000"}, "more than 65536 ranks"),
        ({"grid_shape": "2 0"}, "extents such as 48 8 2"),
        ({"concurrent_groups": "some"}, "1 or all is wanted"),
        ({"bench_mode": "fast"}, "kernel, event, alternating is wanted"),
        ({"message_bytes": "8192"}, "not those of the message"),
        ({"message_bytes": "4095"}, "whole elements"),
        ({"environment": "LD_PRELOAD=/tmp/x.so"}, "HCCL_"),
        ({"environment": "HCCL_ALGO=a HCCL_ALGO=b"}, "each once"),
    ],
)
def test_a_row_that_cannot_be_meant_is_refused_by_its_column(
    cells: dict[str, str], reason: str
) -> None:
    with pytest.raises(BadInput, match=reason):
        collective_case_of(changed(**cells).case)


def test_a_row_of_a_profile_says_what_it_lacks() -> None:
    case = case_from_cells("hcom_allReduce_", {"Input Shapes": "2048", "Input Data Types": "FLOAT"})
    with pytest.raises(BadInput, match="Runtime message_bytes is wanted"):
        collective_case_of(case)


def test_an_environment_has_its_names_in_order() -> None:
    with pytest.raises(BadInput, match="in their order"):
        checked_environment("HCCL_B=1 HCCL_A=1")
