"""Rows of DispatchFFNCombine in a tree: one per case, the balanced one first, with its routing."""

from dataclasses import replace

import pytest

from collector.codec.errors import BadInput
from collector.comm.bench_plan import Mode
from collector.comm.moe.moe_plan import MoeCase, MoePlan
from collector.comm.moe.moe_table import (
    check_mode,
    moe_case_cells,
    moe_found,
    read_cases,
    write_moe_measured,
)
from collector.comm.rank_files import CaseSeen
from collector.comm.timing import RankTimes
from collector.database.tree import KernelFile, read_kernel_file
from collector.model.case import case_from_cells
from collector.ranks.experts import KERNEL, ExpertCall, imbalance_of
from tests.unit.collector.naming import names, naming

pytestmark = pytest.mark.fast

CALL = ExpertCall(8, 64, 32, 16, 2, 2)
BALANCED, SKEWED = MoeCase(CALL, 1), MoeCase(CALL, 1, 0.9)
REPLAYED = MoeCase(CALL, 1, counts=(5,) * 8 + (1,) * 8)


def found(*cases, us=(100.0, 120.0), backend="cpu", mode=Mode.EVENT, rounds=1, **changed):
    plan = MoePlan(backend, 2, rounds, 0.1, cases, mode=mode)
    times = tuple(RankTimes(rank, (0.0, 9e6), us) for rank in (0, 1))
    seen = [
        replace(CaseSeen(number, at, times, "", ()), **changed)
        for number in range(rounds)
        for at in range(len(cases))
    ]
    return moe_found(plan, seen)


def rows(folder):
    return read_kernel_file(folder / f"{KERNEL}.csv").rows


def test_a_row_has_its_ranks_its_mean_and_the_routing_that_was_drawn(tmp_path):
    ((path, change),) = write_moe_measured(tmp_path, found(SKEWED, rounds=3).measured)
    assert (path.name, change.added) == ("DispatchFFNCombine.csv", 1)
    (row,) = rows(tmp_path)
    assert row["EP Size"] == "2"
    assert float(row["Average Duration(us)"]) == 110.0
    assert float(row["Imbalance"]) == pytest.approx(0.9, abs=0.05)
    assert float(row["Rank Imbalance"]) >= 1.0
    assert (row["Rounds"], row["Calls"], row["Backend"]) == ("3", "6", "gloo")
    assert row["Mode"] == "event"


def test_balanced_row_has_the_case_of_a_profile_and_is_first(tmp_path):
    write_moe_measured(tmp_path, found(SKEWED, REPLAYED).measured)
    write_moe_measured(tmp_path, found(BALANCED, us=(50.0, 50.0)).measured)
    first, *others = rows(tmp_path)
    assert case_from_cells(KERNEL, first) == CALL.case
    assert float(first["Average Duration(us)"]) == 50.0
    assert len({case_from_cells(KERNEL, row).case_id for row in (first, *others)}) == 3


def test_measuring_again_changes_the_row(tmp_path):
    write_moe_measured(tmp_path, found(BALANCED, SKEWED).measured)
    ((_, change),) = write_moe_measured(tmp_path, found(SKEWED, us=(7.0, 7.0)).measured)
    assert (change.added, change.updated) == (0, 1)
    assert [float(row["Average Duration(us)"]) for row in rows(tmp_path)] == [110.0, 7.0]


def test_rows_of_two_backends_are_not_mixed(tmp_path):
    write_moe_measured(tmp_path, found(BALANCED).measured)
    with pytest.raises(BadInput, match=naming(f"{KERNEL}.csv:", "gloo", "hccl")):
        write_moe_measured(tmp_path, found(SKEWED, backend="npu").measured)


@pytest.mark.parametrize(
    ("there", "actual"), [(Mode.KERNEL, Mode.EVENT), (Mode.EVENT, Mode.KERNEL)]
)
@pytest.mark.parametrize("case", [BALANCED, SKEWED])
def test_rows_of_two_modes_are_not_mixed(tmp_path, there, actual, case):
    write_moe_measured(tmp_path, found(BALANCED, backend="npu", mode=there).measured)
    before = rows(tmp_path)
    expected = naming(f"{KERNEL}.csv:", there, actual, "--bench-mode")
    with pytest.raises(BadInput, match=expected):
        write_moe_measured(tmp_path, found(case, backend="npu", mode=actual).measured)
    with pytest.raises(BadInput, match=expected):
        check_mode(tmp_path, actual)
    assert rows(tmp_path) == before


def test_rows_of_a_profile_have_no_mode(tmp_path):
    ((path, change),) = write_moe_measured(tmp_path, found(BALANCED, backend="npu").measured)
    profiled = tuple({**row, "Mode": "", "Backend": ""} for row in change.file.rows)
    path.write_bytes(KernelFile(KERNEL, change.file.columns, profiled).as_bytes())
    check_mode(tmp_path, Mode.KERNEL)


def test_cases_of_a_file_are_filtered_by_the_number_of_ranks(tmp_path):
    other = MoeCase(replace(CALL, tokens=4, weight_bits=16), 1)
    write_moe_measured(tmp_path, found(BALANCED, SKEWED, REPLAYED, other).measured)
    assert read_cases(tmp_path, 2, 1) == [BALANCED, SKEWED, other]
    assert read_cases(tmp_path, 4, 1) == []
    assert read_cases(tmp_path / "nothing", 2, 1) == []


def test_row_without_its_expert_loads_is_refused():
    with pytest.raises(BadInput, match=naming("Runtime imbalance", "Runtime expert_loads")):
        imbalance_of(case_from_cells(KERNEL, moe_case_cells(REPLAYED)))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"wrong": (1,)}, "rank 1"),
        ({"left_out": "9 MiB are more"}, "9 MiB are more"),
    ],
)
def test_case_without_a_duration_has_a_reason(changed, named):
    ((case, reason),) = found(BALANCED, **changed).failed
    assert case == BALANCED and names(reason, named)
