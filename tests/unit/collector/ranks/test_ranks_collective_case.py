import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from collector.codec.errors import BadInput
from collector.model.case import case_from_cells
from collector.model.record import CaseRecord, read_table, write_table
from collector.ranks.collective import (
    DTYPES,
    OPERATIONS,
    Collective,
    CollectiveCase,
    checked_environment,
    collective_case_of,
    is_collective,
)
from collector.ranks.topology import Grid
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

SETTINGS = ("", "HCCL_ALGO=level0:NA;level1:H-D_R", "HCCL_ALGO=a HCCL_OP_EXPANSION_MODE=AIV")


@st.composite
def requested(draw: st.DrawFn) -> CollectiveCase:
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


@pytest.mark.thorough
@given(requested())
def test_collective_case_is_read_from_a_table_unchanged(case: CollectiveCase) -> None:
    (read,) = read_table(write_table([case.record()]))
    assert is_collective(read.case.kernel_type)
    assert collective_case_of(read.case) == case


@pytest.mark.thorough
@given(requested(), requested())
def test_different_collectives_are_different_cases(
    one: CollectiveCase, other: CollectiveCase
) -> None:
    assert (one == other) == (one.record().case_id == other.record().case_id)


def changed(**cells: str) -> CaseRecord:
    record = CollectiveCase(
        Collective("all_reduce", 4096, "bfloat16", 2, 1), Grid((2, 2)), 4, "event"
    ).record()
    named = {f"Runtime {name}": text for name, text in cells.items()}
    return CaseRecord(record.kernel_type, record.cells, {**record.extra, **named})


@pytest.mark.parametrize(
    ("cells", "named"),
    [
        ({"num_devices": ""}, ("Runtime num_devices",)),
        ({"num_devices": "two"}, ("Runtime num_devices",)),
        ({"num_devices": "8"}, ("8 ranks", "tier 1", "4 ranks", "2 2")),
        ({"ranks": "9999999"}, ("2 ranks", "tier 1", "9999999 ranks", "2 2")),
        ({"topology_tier": "2"}, ("2 ranks", "tier 2", "4 ranks", "2 2")),
        ({"grid_shape": "90000 90000"}, ("90000 90000", 65536)),
        ({"grid_shape": "2 0"}, ("Runtime grid_shape", "extents")),
        ({"concurrent_groups": "some"}, ("Runtime concurrent_groups", 1, "all")),
        ({"bench_mode": "fast"}, ("Runtime bench_mode", "kernel", "event", "alternating")),
        ({"message_bytes": "8192"}, ("tensors",)),
        ({"message_bytes": "4095"}, (4095, "2 bytes")),
        ({"environment": "LD_PRELOAD=/tmp/x.so"}, ("environment", "HCCL_")),
        ({"environment": "HCCL_ALGO=a HCCL_ALGO=b"}, ("environment", "names")),
    ],
)
def test_invalid_row_is_refused_with_its_column(
    cells: dict[str, str], named: tuple[object, ...]
) -> None:
    with pytest.raises(BadInput, match=naming(*named)):
        collective_case_of(changed(**cells).case)


def test_incomplete_row_of_a_profile_is_refused_with_the_missing_column() -> None:
    case = case_from_cells("hcom_allReduce_", {"Input Shapes": "2048", "Input Data Types": "FLOAT"})
    with pytest.raises(BadInput, match=naming("Runtime message_bytes")):
        collective_case_of(case)


def test_environment_has_its_names_in_order() -> None:
    with pytest.raises(BadInput, match=naming("environment", "names")):
        checked_environment("HCCL_B=1 HCCL_A=1")
