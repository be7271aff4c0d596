"""How far a version covers what is wanted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.case import case_from_cells
from collector.collective import Collective
from collector.collective_case import CollectiveCase
from collector.record import CaseRecord
from collector.topology import Grid
from jobs.planning.coverage import Covered, Standing, Wanted, covered, share, user_metrics

pytestmark = pytest.mark.fast


def record(kernel, shape, **extra):
    cells = {
        "OP State": "dynamic",
        "Accelerator Core": "",
        "Input Shapes": f'"{shape}"',
        "Input Data Types": "FLOAT",
        "Input Formats": "ND",
        "Output Shapes": f'"{shape}"',
        "Output Data Types": "FLOAT",
        "Output Formats": "ND",
    }
    return CaseRecord(kernel, cells, {f"Runtime {name}": text for name, text in extra.items()})


def standings(wanted, measured, failed=()):
    known = {one.case_id: one.case for one in measured}
    found = covered([Wanted(one, 1, 1.0) for one in wanted], known, {one.case_id for one in failed})
    return [str(one.standing) for one in found]


def test_a_case_has_a_duration_or_neighbours_or_nothing():
    measured = [record("Exp", "8,64"), record("Exp", "32,128")]
    wanted = [
        *(record("Exp", shape) for shape in ("8,64", "16,64", "32,64", "8,256", "4,64", "32")),
        *(record("Log", "8,64"), record("Exp", "64,64")),
    ]
    assert standings(wanted, measured, failed=[record("Exp", "64,64")]) == [
        *("exact", "between", "between", "outside", "outside", "missing"),
        *("missing", "failed"),
    ]


def test_a_twin_that_the_runtime_chose_answers_for_the_kernel_that_was_asked_for():
    asked = record("MatMulV2", "4112,64")
    ran = record("MatMulV3", "4112,64")
    assert standings([asked], [ran], failed=[asked]) == ["exact"]


def test_lengths_are_sizes_and_settings_are_not():
    def attention(lengths, heads="4"):
        return record(
            "FusedInferAttentionScore",
            "2,64",
            actual_seq_lengths_kv_values=lengths,
            num_heads=heads,
        )

    measured = [attention("100,100"), attention("400,400")]
    wanted = [attention("250,250"), attention("500,500"), attention("250,250", "8")]
    assert standings(wanted, measured) == ["between", "outside", "missing"]


def test_a_message_between_measured_ones_is_of_the_same_ranks_and_grid():
    def message(size_bytes, grid=(48, 8, 2)):
        one = Collective("all_reduce", size_bytes, "bfloat16", 2, len(grid) - 1)
        return CollectiveCase(one, Grid(grid), 2, "event").record()

    measured = [message(1024), message(4096)]
    wanted = [message(2048), message(8192), message(2048, (1, 1, 2))]
    assert standings(wanted, measured) == ["between", "outside", "missing"]


SIZES = st.tuples(st.integers(1, 6), st.integers(1, 6)).map(lambda s: f"{s[0]},{s[1]}")


@given(st.lists(SIZES, min_size=1, max_size=6), st.lists(SIZES, max_size=6), SIZES)
def test_another_measured_case_never_makes_a_standing_worse(wanted, measured, more):
    order = ["missing", "outside", "between", "exact"]
    records = [record("Exp", shape) for shape in wanted]
    known = [record("Exp", shape) for shape in measured]
    before = standings(records, known)
    after = standings(records, [*known, record("Exp", more)])
    assert all(order.index(b) <= order.index(a) for b, a in zip(before, after, strict=True))


def test_the_metrics_are_those_of_an_example_that_is_computed_by_hand():
    """MatMulV2: two cases, one with a duration, launched 60 and 4 times. Exp: one, with a
    duration, launched once. Identity: one, without, which an op_mapping calls free."""
    found = [
        Covered(Wanted(record("MatMulV2", "16,64"), 60, 600.0), Standing.EXACT),
        Covered(Wanted(record("MatMulV2", "32,64"), 4, 80.0), Standing.BETWEEN),
        Covered(Wanted(record("Exp", "16,64"), 1, 20.0), Standing.EXACT),
        Covered(Wanted(record("Identity", "16,64"), 15, 100.0), Standing.MISSING),
    ]
    told = user_metrics(found, {"Identity"})
    assert told.m1 == pytest.approx(61 / 80)
    assert told.m2 == pytest.approx(1 / 3)  # Exp alone is whole
    assert told.m3 == pytest.approx(1 / 2)
    assert told.m4 == pytest.approx(2 / 3)
    assert told.m5 == pytest.approx(620 / 800)
    between = share(found, Standing.BETWEEN)
    assert (between.cases, between.launches, between.time) == (0.25, 0.05, 0.1)
    assert user_metrics([], ()).m1 is None


def test_a_case_is_found_however_its_row_is_spelled():
    plain = case_from_cells("Exp", record("Exp", "8,64").cells)
    assert standings([record("Exp", "8, 64")], []) == ["missing"]
    found = covered([Wanted(record("Exp", "(8,64)"), 1, 1.0)], {plain.case_id: plain}, ())
    assert found[0].standing is Standing.EXACT
