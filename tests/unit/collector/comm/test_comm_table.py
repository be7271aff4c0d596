"""Rows of collectives in a tree: changed by key, without losing those of others."""

import csv
import io
from dataclasses import replace

import pytest

from collector.codec.errors import BadInput
from collector.comm.bench_plan import BenchPlan, Mode
from collector.comm.comm_table import (
    check_bench_file,
    check_folder,
    read_comm_table,
    write_file,
    write_measured,
    write_offsets,
)
from collector.comm.measured import bench_results
from collector.comm.rank_files import CaseSeen, read_rank_results
from collector.comm.timing import RankTimes
from collector.ranks.collective import COLUMNS, OF_SESSIONS, OF_SESSIONS_TOGETHER, Collective
from collector.ranks.topology import Grid
from collector.replay.journal import GrowingFile
from tests.unit.collector.naming import names, naming

ALONE = Collective("all_reduce", 4096, "bfloat16", 2, 2)
TOGETHER = replace(ALONE, together=True)


def seen(case, number, duration_us, ranks=(0, 1), wrong=()):
    times = tuple(RankTimes(rank, (0.0, 9e9), (duration_us, duration_us)) for rank in ranks)
    return CaseSeen(number, case, times, "", wrong)


def found(*cases, rounds_us=(100.0,), backend="cpu", environment=None, world=4):
    plan = BenchPlan(backend, Grid((48, 8, 2)), world, Mode.EVENT, 1, 0.1, (5, 9), cases)
    every = [
        seen(at, number, duration_us, range(world) if case.together else (0, 1))
        for number, duration_us in enumerate(rounds_us)
        for at, case in enumerate(cases)
    ]
    return bench_results(plan, every, environment or {})


def rows(path):
    return list(csv.DictReader(io.StringIO(path.read_text())))


def test_a_first_row_has_the_consumers_columns_first(tmp_path):
    measured = found(ALONE, TOGETHER, rounds_us=(100.0, 120.0, 110.0)).measured
    (change,) = write_measured(tmp_path, measured)
    assert (change.added, change.changed, change.twice) == (1, 0, 0)
    assert change.path == tmp_path / "hcom_allReduce_.csv"
    text = change.path.read_text()
    assert text.startswith(
        "message_bytes,num_devices,dtype,topology_tier,Duration(us),bandwidth_gbps,"
    )
    (row,) = rows(change.path)
    assert row["Duration(us)"] == "110.00"
    assert row["bandwidth_gbps"] == "0.0372"  # 4096 bytes in 110 us
    assert (row["mode"], row["backend"], row["rounds"], row["iterations"]) == (
        "event",
        "gloo",
        "3",
        "6",
    )
    assert row["round_spread"] == "0.0909"
    assert (row["concurrent_groups"], row["concurrent_us"]) == ("2", "110.00")


def test_second_measurement_of_a_case_adds_no_row(tmp_path):
    write_measured(tmp_path, found(ALONE).measured)
    (change,) = write_measured(tmp_path, found(ALONE, rounds_us=(50.0,)).measured)
    assert (change.added, change.changed) == (0, 1)
    (row,) = rows(change.path)
    assert row["Duration(us)"] == "50.00"


def test_offset_is_removed_with_the_duration_that_it_belongs_to(tmp_path):
    (change,) = write_measured(tmp_path, found(ALONE).measured)
    assert "Offset(us)" not in rows(change.path)[0]
    assert write_offsets(change.path, {("4096", "2", "DT_BF16", "2"): 3.0}) == 1
    write_measured(tmp_path, found(TOGETHER).measured)
    assert rows(change.path)[0]["Offset(us)"] == "3.00"
    write_measured(tmp_path, found(ALONE, rounds_us=(50.0,)).measured)
    assert rows(change.path)[0]["Offset(us)"] == ""


def test_columns_of_a_database_are_cleared_in_rows_measured_again(tmp_path):
    (change,) = write_measured(tmp_path, found(ALONE, TOGETHER).measured)
    header, row = change.path.read_text().splitlines()
    more = (*OF_SESSIONS, *OF_SESSIONS_TOGETHER)
    pulled = f"{header},{','.join(more)}\n{row},{','.join(str(at) for at in range(len(more)))}\n"
    change.path.write_text(pulled)
    write_measured(tmp_path, found(ALONE).measured)
    (found_row,) = rows(change.path)
    assert [found_row[name] for name in more] == [*[""] * 5, "5", "6", "7"]
    write_measured(tmp_path, found(TOGETHER).measured)
    (found_row,) = rows(change.path)
    assert not any(found_row[name] for name in more)


def test_rows_and_columns_of_other_producers_are_kept(tmp_path):
    path = tmp_path / "hcom_allReduce_.csv"
    path.write_text(
        "message_bytes,num_devices,dtype,topology_tier,Duration(us),bandwidth_gbps,note\r\n"
        "4096,2,DT_BF16,2,7.00,0.58,first\r\n"
        "4096,2,DT_BF16,2,8.00,0.51,second\r\n"
        "8192,16,DT_BF16,1,9.00,0.91,other\r\n"
    )
    change = write_file(path, found(ALONE, backend="npu").measured)
    assert (change.added, change.changed, change.twice) == (0, 1, 1)
    assert [(row["Duration(us)"], row["note"]) for row in rows(path)] == [
        ("100.00", "first"),  # which the consumer reads
        ("8.00", "second"),
        ("9.00", "other"),
    ]


def test_profiler_output_is_not_a_table_of_collectives(tmp_path):
    path = tmp_path / "hcom_allReduce_.csv"
    path.write_text("Name,Type,Duration(us)\nhcom_allReduce__1,hcom_allReduce_,5\n")
    before = path.read_bytes()
    with pytest.raises(
        BadInput, match=naming("hcom_allReduce_.csv:1:", "message_bytes", "num_devices")
    ):
        write_file(path, found(ALONE).measured)
    assert path.read_bytes() == before


def test_rows_of_two_backends_are_not_mixed(tmp_path):
    write_measured(tmp_path, found(ALONE).measured)
    with pytest.raises(BadInput, match=naming("hcom_allReduce_.csv:", "gloo", "hccl")):
        write_measured(tmp_path, found(ALONE, backend="npu").measured)


def plan_of(mode, *cases, jump_factor=None):
    of = (mode, 1, 0.1, (5, 9), cases)
    return BenchPlan("cpu", Grid((48, 8, 2)), 4, *of, jump_factor=jump_factor)


def test_row_of_another_mode_is_refused_before_measuring(tmp_path):
    (change,) = write_measured(tmp_path, found(ALONE).measured)
    before = change.path.read_bytes()
    again, other = plan_of(Mode.EVENT, ALONE), plan_of(Mode.ALTERNATING, ALONE)
    check_folder(tmp_path, again, {})
    refusal = naming("hcom_allReduce_.csv:", 4096, 2, "event", "alternating", "--bench-mode")
    with pytest.raises(BadInput, match=refusal):
        check_folder(tmp_path, other, {})
    with pytest.raises(BadInput, match=refusal):
        check_bench_file(change.path, other, {})
    with pytest.raises(BadInput, match=refusal):
        write_measured(
            tmp_path, [replace(one, mode="alternating") for one in found(ALONE).measured]
        )
    assert change.path.read_bytes() == before


def test_rows_that_a_run_does_not_change_may_have_any_mode(tmp_path):
    write_measured(tmp_path, found(ALONE).measured)
    others = [replace(ALONE, message_bytes=size) for size in (1024, 8192)]
    for other in (*others, replace(ALONE, tier=1), replace(ALONE, operation="all_gather")):
        check_folder(tmp_path, plan_of(Mode.ALTERNATING, other), {})
    check_folder(tmp_path, plan_of(Mode.ALTERNATING, *others), {})
    with pytest.raises(BadInput, match=naming(4096)):  # a size that the search may request
        check_folder(tmp_path, plan_of(Mode.ALTERNATING, *others, jump_factor=1.1), {})


@pytest.mark.parametrize(
    ("then", "now", "named"),
    [
        (
            {"HCCL_ALGO": "level0:NA;level1:ring"},
            {},
            ("HCCL_ALGO", "level0:NA;level1:ring", "unset"),
        ),
        ({}, {"HCCL_ALGO": "ring", "HCCL_BUFFSIZE": "1"}, ("HCCL_ALGO", "unset", "ring")),
        ({"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree"}, ("NCCL_ALGO", "Ring", "Tree")),
    ],
)
def test_row_of_another_environment_is_refused(tmp_path, then, now, named):
    write_measured(tmp_path, found(ALONE, environment=then).measured)
    check_folder(tmp_path, plan_of(Mode.EVENT, ALONE), then)
    with pytest.raises(BadInput, match=naming(4096, 2, *named)):
        check_folder(tmp_path, plan_of(Mode.EVENT, ALONE), now)


def test_a_campaigns_environment_is_read_as_it_is_written(tmp_path):
    now = {"HCCL_ALGO": "ring", "HCCL_OP_EXPANSION_MODE": "AIV"}
    (measured,) = found(ALONE).measured
    written = " ".join(f"{name}={value}" for name, value in now.items())
    write_measured(tmp_path, [replace(measured, environment=written)])
    check_folder(tmp_path, plan_of(Mode.EVENT, ALONE), now)
    with pytest.raises(BadInput, match=naming("HCCL_OP_EXPANSION_MODE", "AIV", "unset")):
        check_folder(tmp_path, plan_of(Mode.EVENT, ALONE), {"HCCL_ALGO": "ring"})


def test_address_settings_do_not_make_another_environment(tmp_path):
    write_measured(tmp_path, found(ALONE, environment={"HCCL_IF_IP": "10.0.0.1"}).measured)
    there = {"HCCL_IF_IP": "10.0.0.2", "GLOO_SOCKET_IFNAME": "eth1", "NCCL_DEBUG": "INFO"}
    check_folder(tmp_path, plan_of(Mode.EVENT, ALONE), there)


def test_rows_without_a_mode_may_be_measured_again(tmp_path):
    path = tmp_path / "hcom_allReduce_.csv"
    rows = "7" * 5_000 + ",2,DT_BF16,2\n4096,2,DT_BF16,2\n"
    path.write_text("message_bytes,num_devices,dtype,topology_tier\n" + rows)
    check_folder(tmp_path, plan_of(Mode.EVENT, ALONE), {"HCCL_ALGO": "ring"})


def test_a_row_with_too_many_cells_is_named(tmp_path):
    path = tmp_path / "hcom_allReduce_.csv"
    path.write_text("message_bytes,num_devices\n1,2\n1,2,3\n")
    with pytest.raises(BadInput, match=naming("hcom_allReduce_.csv:3:", 2, 3)):
        read_comm_table(path)


def test_missing_file_is_an_empty_table(tmp_path):
    assert read_comm_table(tmp_path / "hcom_allGather_.csv").columns == COLUMNS


def test_environment_that_affects_a_run_is_recorded(tmp_path):
    environment = {"HCCL_OP_EXPANSION_MODE": "AIV", "HOME": "/root", "GLOO_X": "1"}
    environment["HCCL_CONNECT_TIMEOUT"] = "600"
    write_measured(tmp_path, found(ALONE, environment=environment).measured)
    (row,) = rows(tmp_path / "hcom_allReduce_.csv")
    assert row["environment"] == "GLOO_X=1;HCCL_OP_EXPANSION_MODE=AIV"


def test_a_wrong_result_has_no_row():
    plan = BenchPlan("cpu", Grid((8,)), 2, Mode.EVENT, 2, 0.1, (5, 9), (ALONE,))
    every = [seen(0, 0, 5.0), seen(0, 1, 5.0, wrong=(1,))]
    result = bench_results(plan, every, {})
    assert not result.measured
    assert names(result.wrong[0].reason, "rank 1")


def test_partial_line_of_a_killed_rank_is_ignored(tmp_path):
    line = '{"round": 0, "case": 2, "ranks": [[0, [1.0], [2.0]]], "left_out": "", "wrong": []}\n'
    results = tmp_path / "results.jsonl"
    written = GrowingFile(results)
    assert written.new() == []
    assert read_rank_results(tmp_path) == []
    results.write_text(line + line[:20])
    assert written.new() == [line.strip().encode()]
    assert read_rank_results(tmp_path) == [CaseSeen(0, 2, (RankTimes(0, (1.0,), (2.0,)),), "", ())]
    results.write_text(line + line)
    assert written.new() == [line.strip().encode()]


def test_round_lost_by_a_profiler_does_not_invalidate_the_others():
    plan = BenchPlan("npu", Grid((48, 8, 2)), 2, Mode.KERNEL, 2, 0.1, (5, 9), (ALONE,))
    lost = CaseSeen(0, 0, (), "the profiler of rank 1 tells of 0 kernels, 2 calls were made", ())
    (one,) = bench_results(plan, [lost, seen(0, 1, 5.0)], {}).measured
    assert (one.mode, one.duration_us, len(one.timings)) == ("kernel", 5.0, 1)


def test_reason_of_an_excluded_case_is_reported():
    plan = BenchPlan("cpu", Grid((8,)), 2, Mode.EVENT, 1, 0.1, (5, 9), (ALONE,))
    result = bench_results(plan, [CaseSeen(0, 0, (), "too large", ())], {})
    assert [one.reason for one in result.left_out] == ["too large"]


def test_round_p95_is_the_spread_exceeded_by_one_case_in_twenty():
    sizes = [replace(ALONE, message_bytes=1024 * at) for at in range(1, 41)]
    assert found(*sizes, rounds_us=(90.0, 100.0, 105.0)).round_p95 == pytest.approx(0.1)
    assert found(ALONE).round_p95 == 0.0


def test_rows_without_a_backend_are_rows_of_npus(tmp_path):
    table = tmp_path / "hcom_allReduce_.csv"
    table.write_text(
        "message_bytes,num_devices,dtype,topology_tier,Duration(us)\n4096,2,DT_BF16,2,12.5\n"
    )
    before = table.read_bytes()
    case = replace(ALONE, operation="all_reduce", message_bytes=4096, group_size=2, tier=2)
    with pytest.raises(BadInput, match=naming("hcom_allReduce_.csv:", "hccl", "gloo")):
        write_measured(tmp_path, found(case).measured)
    assert table.read_bytes() == before
