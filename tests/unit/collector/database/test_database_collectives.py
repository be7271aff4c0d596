"""Collectives of a database: the files of their rows, and which one of several is shown."""

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import opmeter
from collector.database.changes import directory_changes
from collector.database.commits import find_head
from collector.database.intervals import intervals_of
from collector.database.layout import collective_folder, is_file_of
from collector.database.manifest import read_manifest
from collector.database.merge import CREATE, merge_plans
from collector.database.plan_state import read_results
from collector.database.pull import pull_version
from collector.database.snapshot import read_shown
from collector.database.state import State
from collector.database.verify import find_problems
from collector.model.demand import record_of_cells
from collector.model.measurement import Outcome
from collector.model.record import CaseRecord
from collector.model.stack import Stack
from collector.model.vocabulary import EP_SIZE
from collector.ranks.collective import Collective, CollectiveCase
from collector.ranks.experts import IMBALANCE, KERNEL, ExpertCall
from collector.ranks.topology import Grid
from collector.store.file import FileStore
from collector.store.in_memory import MemoryStore
from tests.unit.collector.database.campaign_maker import (
    PATH,
    STACK,
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    answered,
    write_campaign,
)

pytestmark = pytest.mark.fast

Row = dict[str, str]
FOLDER = "CPU_test_2t/gloo/v2.13.0"
ALONE = CollectiveCase(Collective("all_reduce", 4096, "bfloat16", 2, 1), Grid((2, 2)), 2, "event")
TOGETHER = replace(ALONE, ranks=4, collective=replace(ALONE.collective, together=True))
FACTS = (("rounds", 3.0), ("concurrent_groups", 2.0), ("concurrent_slowest_us", 30.0))


def made(
    cases: Sequence[tuple[CollectiveCase, Tried]],
    *,
    number: int = 1,
    head_commit: int = 0,
    stack: Stack = STACK,
) -> MadePlan:
    records = [case.record() for case, _ in cases]
    tried = {r.case_id: t for r, (_, t) in zip(records, cases, strict=True)}
    shard = MadeShard(f"shard-{number}", records, [tried])
    return MadePlan([shard], number=number, head_commit=head_commit, stack=stack)


def merged(store: MemoryStore, plan: MadePlan) -> None:
    write_campaign(store, plan)
    merge_plans(store, [plan.name], guard=CREATE, author="test")
    assert find_problems(store) == []  # which renders only what a commit touched


def rows_of(store: MemoryStore, tmp_path: Path, name: str = "hcom_allReduce_.csv") -> list[Row]:
    commit = find_head(store)
    assert commit is not None
    target = tmp_path / f"tree-{commit.number}"
    if not target.exists():
        pull_version(store, commit, target)
    path = target / FOLDER / name
    return list(csv.DictReader(io.StringIO(path.read_text()))) if path.exists() else []


def test_one_group_alone_and_all_at_once_are_one_row(tmp_path: Path) -> None:
    store = MemoryStore()
    merged(
        store, made([(ALONE, Tried(16.0, counters=FACTS)), (TOGETHER, Tried(25.0, counters=FACTS))])
    )
    (row,) = rows_of(store, tmp_path)
    key = ("message_bytes", "num_devices", "dtype", "topology_tier")
    assert tuple(row[name] for name in key) == ("4096", "2", "DT_BF16", "1")
    assert (row["Duration(us)"], row["concurrent_us"]) == ("16.00", "25.00")
    assert (row["concurrent_groups"], row["concurrent_slowest_us"]) == ("2", "30.00")
    assert (row["bandwidth_gbps"], row["mode"], row["backend"]) == ("0.256", "event", "gloo")
    assert row["version"] == STACK.version
    assert not rows_of(store, tmp_path, "other_settings/hcom_allReduce_.csv")
    assert (row["grid_shape"], row["ranks"], row["concurrent_ranks"]) == ("2 2", "2", "4")


def test_collectives_are_compared_with_their_warnings() -> None:
    noisy = ("all 9 repeats were disturbed: x",)
    sides = []
    for alone_us, warnings in ((16.0, ()), (800.0, ()), (800.0, noisy)):
        alone = Tried(alone_us, counters=FACTS, warnings=warnings)
        store = MemoryStore()
        merged(store, made([(ALONE, alone), (TOGETHER, Tried(25.0, counters=FACTS))]))
        commit = find_head(store)
        assert commit is not None
        manifest = read_manifest(store, commit)
        sides.append(read_shown(store, commit, manifest, STACK.version_path))
    quiet, slower, disturbed = sides
    found = directory_changes(quiet, slower)
    assert found.compared == 2 and found.total_us == (41.0, 825.0)
    (one,) = [case for case in (*found.cases, *found.others) if case.after_us == 800.0]
    assert one.kernel_type == "hcom_allReduce_" and one.kind == "changed"
    found = directory_changes(quiet, disturbed)
    assert found.count("changed") == 0 and found.others[0].warnings_after == "disturbed"


def test_a_store_and_its_pulled_tree_answer_collectives(tmp_path: Path) -> None:
    """Two version directories of one CANN share the files, and each has its own durations."""
    store = FileStore(tmp_path / "store")
    sizes = {2**power: 10.0 + 2**power / 512 for power in range(9, 16)}
    messages = [
        (replace(ALONE, collective=replace(ALONE.collective, message_bytes=size)), Tried(mean_us))
        for size, mean_us in sizes.items()
    ]
    aiv = replace(ALONE, environment="HCCL_OP_EXPANSION_MODE=AIV")
    more = [(TOGETHER, Tried(25.0, counters=FACTS)), (aiv, Tried(9.0))]
    first, later = STACK, replace(STACK, vllm="0.19.0")
    for number, (stack, cases) in enumerate([(first, messages + more), (later, messages[:2])]):
        plan = made(cases, number=number + 1, head_commit=number, stack=stack)
        write_campaign(store, plan)
        merge_plans(store, [plan.name], guard=CREATE, author="test")
    assert find_problems(store) == []
    commit = find_head(store)
    assert commit is not None
    pull_version(store, commit, tmp_path / "tree")
    for db in (opmeter.open(tmp_path / "store"), opmeter.open(tmp_path / "tree")):
        for stack, cases in ((first, messages + more), (later, messages[:2])):
            version = db.directory(stack.version_path)
            found = {
                record_of_cells("hcom_allReduce_", cells).case_id: answer
                for cells, answer in version.cases("hcom_allReduce_")
            }
            assert {case: one.value_us for case, one in found.items()} == {
                case.record().case_id: tried.mean_us for case, tried in cases
            }
            assert all(one.low_us < one.value_us < one.high_us for one in found.values())
            assert version.rows == len(cases)
        version = db.directory(first.version_path)
        settings = {"Runtime concurrent_groups": "1", "Runtime environment": ""}
        exact = version.query("hcom_allReduce_", [(2048,)], "bf16", settings=settings)
        assert (exact.value_us, exact.channel) == (18.0, "measured")
        between = version.query("hcom_allReduce_", [(3000,)], "bf16", settings=settings)
        assert between.channel == "interpolated" and 18.0 < between.value_us < 26.0


def test_measurement_with_other_settings_is_in_a_separate_file(tmp_path: Path) -> None:
    store = MemoryStore()
    aiv = replace(ALONE, environment="HCCL_OP_EXPANSION_MODE=AIV")
    merged(store, made([(aiv, Tried(9.0)), (ALONE, Tried(16.0))]))
    (row,) = rows_of(store, tmp_path)
    assert (row["Duration(us)"], row["environment"]) == ("16.00", "")
    (other,) = rows_of(store, tmp_path, "other_settings/hcom_allReduce_.csv")
    assert (other["Duration(us)"], other["environment"]) == ("9.00", aiv.environment)
    assert (other["ranks"], other["concurrent"]) == ("2", "1")


@pytest.mark.thorough
def test_measured_setting_precedes_a_failed_one(tmp_path: Path) -> None:
    store = MemoryStore()
    alternating = replace(ALONE, mode="alternating")
    merged(store, made([(ALONE, Tried(16.0))]))
    merged(store, made([(alternating, Tried())], number=2, head_commit=1))
    (row,) = rows_of(store, tmp_path)
    assert (row["Duration(us)"], row["mode"]) == ("16.00", "event")
    (other,) = rows_of(store, tmp_path, "other_settings/hcom_allReduce_.csv")
    assert (other["Duration(us)"], other["mode"]) == ("", "alternating")


@pytest.mark.thorough
def test_versions_of_one_library_share_a_file_with_a_version_column(tmp_path: Path) -> None:
    store = MemoryStore()
    larger = replace(ALONE, collective=replace(ALONE.collective, message_bytes=8192))
    newer = replace(STACK, vllm="0.20.0")
    merged(store, made([(ALONE, Tried(16.0)), (larger, Tried(20.0))]))
    merged(store, made([(ALONE, Tried(15.0))], number=2, head_commit=1, stack=newer))
    first, second = rows_of(store, tmp_path)
    assert (first["Duration(us)"], first["version"]) == ("15.00", newer.version)
    assert (second["Duration(us)"], second["version"]) == ("20.00", STACK.version)
    (other,) = rows_of(store, tmp_path, "other_settings/hcom_allReduce_.csv")
    assert (other["Duration(us)"], other["version"]) == ("16.00", STACK.version)


@pytest.mark.thorough
def test_newer_version_of_one_column_keeps_the_concurrent_columns(tmp_path: Path) -> None:
    store = MemoryStore()
    newer = replace(STACK, vllm="0.20.0")
    both = [(ALONE, Tried(5.0)), (TOGETHER, Tried(7.0, counters=FACTS))]
    merged(store, made(both))
    merged(store, made([(ALONE, Tried(6.0))], number=2, head_commit=1, stack=newer))
    (row,) = rows_of(store, tmp_path)
    assert (row["Duration(us)"], row["version"]) == ("6.00", newer.version)
    assert (row["concurrent_us"], row["concurrent_version"]) == ("7.00", STACK.version)
    merged(store, made([(TOGETHER, Tried(8.0))], number=3, head_commit=2, stack=newer))
    (row,) = rows_of(store, tmp_path)
    assert (row["concurrent_us"], row["concurrent_version"]) == ("8.00", "")


@pytest.mark.thorough
def test_order_of_merging_collectives_changes_nothing() -> None:
    plans = [
        made([(ALONE, Tried(16.0, counters=FACTS))]),
        made([(TOGETHER, Tried(25.0, counters=FACTS))], number=2),
        made([(replace(ALONE, mode="alternating"), Tried(12.0))], number=3),
    ]
    contents = set()
    # Each is merged first and last, and before and after each other.
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1)):
        store = MemoryStore()
        for at in order:
            merged(store, plans[at])
        commit = find_head(store)
        assert commit is not None
        contents.add(commit.content_hash)
    assert len(contents) == 1


@pytest.mark.thorough
def test_collective_of_several_sessions_has_a_median_and_an_interval(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    merged(store, made([(ALONE, Tried(16.0)), (TOGETHER, Tried(25.0, counters=FACTS))]))
    (once,) = rows_of(store, tmp_path)
    assert float(once["stack_low_us"]) < 16.0 < float(once["stack_high_us"])
    assert float(once["concurrent_low_us"]) < 25.0 < float(once["concurrent_high_us"])
    assert (once["sessions"], once["stack_variance"]) == ("1", "prior")
    merged(store, made([(ALONE, Tried(16.4))], number=2, head_commit=1))
    (twice,) = rows_of(store, tmp_path)
    assert 16.0 < float(twice["Duration(us)"]) < 16.4
    assert (twice["sessions"], twice["stack_variance"]) == ("2", "this case")
    assert float(twice["stack_high_us"]) < float(once["stack_high_us"])


def test_variance_of_collectives_widens_no_interval_of_a_kernel() -> None:
    records = [add_record(rows) for rows in range(1, 9)]
    steady = [MadeShard(f"s{n}", records, [answered(records, 10.0 + 0.01 * n)]) for n in (1, 2)]
    outlier = [
        MadeShard(f"g{n}", [ALONE.record()], [{ALONE.record().case_id: Tried(us)}])
        for n, us in enumerate((5.0, 500.0, 50.0))
    ]
    kernels, both = (intervals_of(state_of(shards))[PATH] for shards in (steady, steady + outlier))
    assert {name: both.of[name] for name in kernels.of} == dict(kernels.of)
    (one, *_) = (known for name, known in both.of.items() if name not in kernels.of)
    assert one.sessions == 3 and one.high_us > 500.0


def state_of(shards: Sequence[MadeShard]) -> State:
    store = MemoryStore()
    return read_results(store, write_campaign(store, MadePlan(shards))).state


def test_collective_kernel_without_its_call_is_in_the_table_of_cases(tmp_path: Path) -> None:
    store = MemoryStore()
    reported = ALONE.record()
    bare = CaseRecord(reported.kernel_type, reported.cells, {})
    tried = {bare.case_id: Tried(outcome=Outcome.REJECTED)}
    merged(store, MadePlan([MadeShard("shard", [bare], [tried])]))
    assert not rows_of(store, tmp_path)
    pulled = tmp_path / "tree-1" / STACK.version_path / "hcom_allReduce_.csv"
    assert len(pulled.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("version", "folder"),
    [
        ("ATLAS/vllm_ascend/vllm0.18.0_torch2.9.0_cann8.5", "ATLAS/hccl/v8.5"),
        ("CUDA_H100/vllm_ascend/vllm0_torch2.9.0_cann0", "CUDA_H100/nccl/v2.9.0"),
        ("CPU_x/vllm_ascend/vllm0_torch2.9.0_cann0", "CPU_x/gloo/v2.9.0"),
    ],
)
def test_collectives_are_stored_by_the_library_that_ran_them(version: str, folder: str) -> None:
    assert collective_folder(version) == folder
    assert is_file_of(f"{folder}/hcom_allReduce_.csv", version)
    assert is_file_of(f"{folder}/other_settings/hcom_broadcast_.csv", version)
    assert not is_file_of(f"{folder}/Add.csv", version)
    assert not is_file_of(f"{folder}/deeper/hcom_allReduce_.csv", version)
    assert not is_file_of(f"{folder}/hcom_allReduce_", version)


def test_uneven_loads_follow_even_ones(tmp_path: Path) -> None:
    """A consumer that selects by shapes and EP Size alone reads the first row."""
    store = MemoryStore()
    calls = [ExpertCall(tokens, 64, 32, 8, 2, ep_size=2) for tokens in (16, 32)]
    records = []
    for call in calls:
        cells = dict(call.cells)
        ranks = {EP_SIZE: cells.pop(EP_SIZE)}
        records += [CaseRecord(KERNEL, cells, {**ranks, IMBALANCE: "0.5"})]
        records += [CaseRecord(KERNEL, cells, ranks)]
    merged(store, MadePlan([MadeShard("shard", records, [answered(records, 10.0)])]))
    assert not rows_of(store, tmp_path)
    path = tmp_path / "tree-1" / STACK.version_path / f"{KERNEL}.csv"
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert [row[IMBALANCE] for row in rows] == ["", "", "0.5", "0.5"]
    assert all(float(row["Average Duration(us)"]) > 0 and row[EP_SIZE] == "2" for row in rows)
