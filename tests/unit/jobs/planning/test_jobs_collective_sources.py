"""Collectives of a campaign file: its cases, its gangs, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from collector.codec.errors import BadInput
from collector.model.plan import (
    PlannedSource,
    devices_for,
    plan_from_json,
    plan_to_json,
    read_shard,
)
from collector.model.record import CaseRecord
from collector.model.stack import Stack
from collector.model.vocabulary import EP_SIZE
from collector.ops.refusals import (
    NO_RANKS,
    NO_SUCH_WORLD,
    WRONG_NUMBER_OF_RANKS,
    refusal,
    refusal_on_ranks,
)
from collector.ops.registry import find_operator
from collector.profiles.bundled import write_bundled_profile
from collector.ranks.collective import Collective, collective_case_of
from collector.ranks.distribution import COMBINE, DISPATCH, DistributeCall
from collector.ranks.experts import KERNEL, ExpertCall
from collector.ranks.gangs import is_of_gangs, ranks_needed, with_ep_size
from collector.ranks.topology import Grid
from collector.store.in_memory import MemoryStore
from jobs.campaign.campaign_file import Campaign, campaign_from_text, without_collectives
from jobs.campaign.source_kinds import CollectivesSource
from jobs.planning.candidates import distinct_cases, refusal_in_plan
from jobs.planning.gaps import describe_forecast, find_gaps, refused_cases
from jobs.planning.plan_cases import PlanRequest
from jobs.planning.plan_making import PlannedRound, make_plan
from jobs.planning.sources import load_sources
from tests.unit.jobs.printed import missing, numbers

pytestmark = pytest.mark.fast

CPU = Stack("CPU_x_2t", "2.13.0", details=(("threads", "2"),))
NPU = Stack("ATLAS_800_A3_752T_128G_DIE", "2.9.0", cann="8.5", torch_npu="2.9.0")


def campaign(reported: str, *, backend: str = "npu", more: str = "devices: 16") -> Campaign:
    text = f"campaign: c\nsources: [{{collectives: {{{reported}}}}}]\nbackend: {backend}\n{more}\n"
    return campaign_from_text(text, path="c.yaml", base=Path("."))


def planned(of: Campaign, stack: Stack = NPU) -> PlannedRound:
    sources = tuple((one.planned, one.records) for one in load_sources(of, MemoryStore()))
    request = PlanRequest(of, 1, 0, "", stack, sources, {}, None, retry_failed=False)
    return make_plan(request, find=find_operator)


def gangs(of: PlannedRound) -> dict[int, list[tuple[str, Collective]]]:
    """How many ranks each shard has, and its cases: how each is timed, and what is sent."""
    found: dict[int, list[tuple[str, Collective]]] = {}
    for shard in of.plan.shards:
        for case in read_shard(of.shards[shard.shard_id]):
            reported = collective_case_of(case.record.case)
            assert reported.ranks == shard.ranks
            found.setdefault(shard.ranks, []).append((reported.mode, reported.collective))
    return found


def test_tier_of_several_groups_is_measured_alone_and_concurrently() -> None:
    of = campaign("operations: [all_gather], bytes: [1024], groups: [8], ranks: 16, grid: [2, 8]")
    alone = Collective("all_gather", 1024, "bfloat16", 8, 1)
    together = replace(alone, together=True)
    assert gangs(planned(of)) == {8: [("kernel", alone)], 16: [("kernel", together)]}


def test_widest_gang_is_first_and_single_devices_last() -> None:
    of = campaign("bytes: quick, groups: [2, 8], grid: [1, 8]")
    plan = planned(of).plan
    ranks = [shard.ranks for shard in plan.shards if shard not in plan.repeats]
    assert ranks == sorted(ranks, reverse=True)
    assert set(ranks) == {2, 8}


def test_gangs_of_equal_rank_count_may_repeat_some_cases_in_a_second_session() -> None:
    """A start of 20 s and the cases are less than a twentieth of what their gangs take; two ranks
    of a few cases pay for none."""
    more = "quality: {repeat_share: 0}\ndevices: 16"
    reported = "bytes: full, groups: [8], mode: kernel, grid: [1, 8]"
    once, twice = planned(campaign(reported, more=more)).plan, planned(campaign(reported)).plan
    assert twice.shards[: len(once.shards)] == once.shards
    assert twice.repeats and {shard.ranks for shard in twice.repeats} == {8}
    gang_s = sum(shard.predicted_s for shard in once.shards)
    assert sum(shard.predicted_s for shard in twice.repeats) <= 0.048 * gang_s
    few = planned(campaign("operations: [all_reduce], bytes: [64], groups: [2]")).plan
    assert few.repeats == ()


def test_gang_of_a_single_group_covers_whole_parts_of_the_grid() -> None:
    of = campaign(
        "operations: [broadcast], bytes: [64], groups: [2], tiers: [0], ranks: 4, grid: [2, 2]"
    )
    # ranks 0 and 2 are in two parts of two
    assert set(gangs(planned(of))) == {4}


def test_default_mode_is_the_one_nearest_to_production() -> None:
    reported = "operations: [all_reduce, all_gather], bytes: [1024, 4194304], groups: [2]"
    modes = [mode for mode, _ in gangs(planned(campaign(reported)))[2]]
    assert sorted(modes) == ["alternating", "alternating", "alternating", "kernel"]
    modes = [mode for mode, _ in gangs(planned(campaign(f"{reported}, mode: event")))[2]]
    assert set(modes) == {"event"}


def test_forecast_includes_reading_the_profiler_windows() -> None:
    reported = "operations: [all_gather], bytes: [1024], groups: [2], mode: "
    by = {mode: planned(campaign(f"{reported}{mode}")).plan for mode in ("kernel", "event")}
    (kernel,), (event,) = by["kernel"].shards, by["event"].shards
    assert kernel.predicted_s - event.predicted_s == pytest.approx(3 * 10.0)  # one per round


def test_sizes_without_whole_elements_are_excluded_and_reported() -> None:
    of = campaign("operations: [all_to_all, all_reduce], bytes: [18], groups: [2]")
    (loaded,) = load_sources(of, MemoryStore())
    assert loaded.planned.name.startswith("collectives (")
    assert numbers(loaded.planned.name) == ["1", "4", "2", "18"]
    assert [record.kernel_type for record in loaded.records] == ["hcom_allReduce_"]
    assert describe_forecast(planned(of).plan)[-1].endswith(f" {loaded.planned.name}")


def test_plan_of_gangs_is_read_as_written() -> None:
    plan = planned(campaign("operations: [all_reduce], bytes: [64], groups: [2]")).plan
    data = plan_to_json(plan)
    assert b'"ranks": 2' in data
    assert plan_from_json(data) == plan


def test_ranks_of_a_cpu_share_its_cores() -> None:
    assert devices_for(4, "cpu") == 1
    assert devices_for(4, "npu") == 4
    of = campaign("bytes: [64], groups: [4], mode: event", backend="cpu", more="devices: 1")
    assert set(gangs(planned(of, CPU))) == {4}


def test_unsupported_mode_gets_an_outcome_without_a_device() -> None:
    reported = "operations: [all_reduce], bytes: [64], groups: [2], mode: kernel"
    found = planned(campaign(reported, backend="cpu", more="devices: 1"), CPU)
    assert found.plan.forecast.unsupported == 1
    assert [shard.ranks for shard in found.plan.shards] == [1]


@pytest.mark.parametrize(
    ("reported", "more", "data"),
    [
        ("bytes: [64], groups: [32], grid: [4, 8]", "devices: 16", ["32", "16"]),
        (
            "bytes: [64], groups: [2]",
            "devices: 2\nmeasure: {cache: cold}",
            ["measure.cache", "warm", "cold"],
        ),
    ],
)
def test_gang_that_can_never_be_measured_is_refused(
    reported: str, more: str, data: list[str]
) -> None:
    with pytest.raises(BadInput) as refused:
        planned(campaign(reported, more=more))
    assert missing(str(refused.value), data) == []


@pytest.mark.parametrize(
    ("reported", "field", "data"),
    [
        ("bytes: [64]", "", ["'groups'"]),
        ("groups: [1]", ".groups[0]", ["2", "1"]),
        ("groups: []", ".groups", []),
        ("groups: [4], ranks: 2", ".ranks", ["4", "2"]),
        ("groups: [2], operations: [all_reduced]", ".operations[0]", ["'all_reduce'"]),
        ("groups: [2], bytes: [1 KB]", ".bytes[0]", []),
        ("groups: [2], dtype: FP7", ".dtype", ["'FP7'", "bfloat16"]),
        ("groups: [2], mode: fast", ".mode", ["kernel", "'fast'"]),
        ("groups: [2], environment: {LD_PRELOAD: x.so}", ".environment", ["HCCL_"]),
        ("groups: [2], environment: {HCCL_ALGO: 'a b'}", ".environment", ["HCCL_"]),
        ("groups: [2], grid: [0, 8]", ".grid[0]", ["1", "0"]),
        ("groups: [2], grid: [1000000, 1000000]", ".grid", ["65536"]),
        ("groups: [2], ranks: 64, grid: [4, 8]", "", ["64", "4 8", "32"]),
    ],
)
def test_invalid_collectives_source_is_refused_with_its_line(
    reported: str, field: str, data: list[str]
) -> None:
    with pytest.raises(BadInput) as refused:
        campaign(reported)
    place = f"c.yaml:2: sources[0].collectives{field}: "
    assert str(refused.value).startswith(place)
    assert missing(str(refused.value).removeprefix(place), data) == []


def test_campaign_file_has_all_settings_of_collectives() -> None:
    (source,) = campaign(
        "operations: all, bytes: [quick, 300], max_bytes: 1048576, dtype: float16, groups: [2, 4], "
        "ranks: 8, grid: [2, 2, 2], tiers: [0, 2], mode: alternating, "
        "environment: {HCCL_OP_EXPANSION_MODE: AIV, HCCL_ALGO: 'level0:NA;level1:H-D_R'}"
    ).sources
    assert isinstance(source, CollectivesSource)
    assert len(source.operations) == 7
    assert (source.sizes, source.max_bytes, source.dtype) == (("quick", "300"), 1 << 20, "float16")
    assert (source.groups, source.ranks, source.tiers) == ((2, 4), 8, (0, 2))
    assert (source.grid, source.mode) == (Grid((2, 2, 2)), "alternating")
    assert source.environment == "HCCL_ALGO=level0:NA;level1:H-D_R HCCL_OP_EXPANSION_MODE=AIV"


def test_collectives_of_a_campaign_can_be_removed() -> None:
    sources = "[{bundled: quickstart}, {collectives: {groups: [2]}}]"
    text = f"campaign: c\nsources: {sources}\nbackend: cpu\n"
    of = campaign_from_text(text, path="c.yaml", base=Path("."))
    assert without_collectives(of).sources == of.sources[:1]
    with pytest.raises(BadInput, match="collectives"):
        without_collectives(campaign("groups: [2]"))


@pytest.mark.thorough
def test_collectives_of_a_profile_are_cases_on_request(
    tmp_path: Path,
) -> None:
    write_bundled_profile("quickstart", tmp_path)
    (details,) = tmp_path.rglob("kernel_details.csv")
    sent = {"Communication Time Info": {"Elapse Time(ms)": 1.0}}
    links = {name: {"Transit Size(MB)": 8.0} for name in ("HCCS", "SDMA")}
    sent["Communication Bandwidth Info"] = {**links, "RDMA": {"Transit Size(MB)": 0.0}}
    step = {"p2p": {}, "collective": {"hcom_allGather__1_0_1@22": sent, "hcom_new__1_1_1@22": sent}}
    (details.parent / "communication.json").write_text(json.dumps({"step1": step}))
    matrix = {"step1": {"p2p": {}, "collective": {"allgather-top1@22": {"0-1": {}}}}}
    (details.parent / "communication_matrix.json").write_text(json.dumps(matrix))

    def loaded(beside: str):
        text = (
            f"campaign: c\nsources: [{{profile: {tmp_path}{beside}}}]\nbackend: npu\ndevices: 2\n"
        )
        (found,) = load_sources(
            campaign_from_text(text, path="c.yaml", base=tmp_path), MemoryStore()
        )
        return found

    plain, whole = loaded(""), loaded(", collectives: {grid: [1, 2], dtype: float16, mode: event}")
    assert plain.planned.name == "profile"
    assert whole.planned.name.startswith("profile ")
    # One collective, one row of an unknown operation, one whose size is derived.
    assert numbers(whole.planned.name) == ["1", "1", "1"]
    assert whole.records[: len(plain.records)] == plain.records
    reported = collective_case_of(whole.records[-1].case)
    assert reported.collective == Collective("all_gather", 8_000_000, "float16", 2, 1)
    assert (reported.ranks, reported.mode) == (2, "event")
    args = {"count": 4000001, "data_type": "FP32"}
    (details.parent / "trace_view.json").write_text(
        json.dumps([{"name": "hcom_allGather__1_0_1", "args": args}])
    )
    exact = loaded(", collectives: {grid: [1, 2]}")
    assert numbers(exact.planned.name) == ["1", "1"]
    reported = collective_case_of(exact.records[-1].case)
    assert reported.collective == Collective("all_gather", 16_000_004, "float32", 2, 1)


def test_exchanged_experts_are_a_gang_of_their_ranks() -> None:
    call = ExpertCall(64, 128, 64, 32, 4, ep_size=16)
    cells = dict(call.cells)
    bare = CaseRecord(KERNEL, {name: text for name, text in cells.items() if name != EP_SIZE}, {})
    assert with_ep_size(bare, None) == bare
    whole = with_ep_size(bare, 16)
    assert with_ep_size(whole, 8) == whole
    source = PlannedSource("tree", "0" * 64, 2, same_stack=False)
    of = campaign("groups: [2], operations: [broadcast], bytes: [64]")
    request = PlanRequest(
        of, 1, 0, "", NPU, ((source, (bare, whole)),), {}, None, retry_failed=False
    )
    found = make_plan(request, find=find_operator)
    assert [shard.ranks for shard in found.plan.shards] == [16, 1]
    assert found.plan.forecast.unsupported == 1
    assert refusal_in_plan(bare.case, find_operator, "npu", of.devices, "warm", "").why == NO_RANKS


def test_dispatch_and_combine_are_gangs_of_their_ranks() -> None:
    """A dispatch includes its ranks, a combine does not; on one rank both are answered and not
    run."""
    sent = DistributeCall(DISPATCH, 8, 64, 32, 4, ep_size=16, capacity=8)
    bare = []
    for call in (sent, replace(sent, kernel=COMBINE), replace(sent, ep_size=1)):
        cells = dict(call.cells)
        del cells[EP_SIZE]
        bare.append(CaseRecord(call.kernel, cells, {}))
    whole = with_ep_size(bare[1], 16)
    source = PlannedSource("tree", "0" * 64, 4, same_stack=False)
    of = campaign("groups: [2], operations: [broadcast], bytes: [64]")
    sources = ((source, (*bare, whole)),)
    found = make_plan(
        PlanRequest(of, 1, 0, "", NPU, sources, {}, None, retry_failed=False), find=find_operator
    )
    ranks = {
        case.record.case_id: shard.ranks
        for shard in found.plan.shards
        for case in read_shard(found.shards[shard.shard_id])
    }
    assert [ranks[one.case_id] for one in (bare[0], whole, bare[2])] == [16, 16, 1]
    refused = refused_cases(distinct_cases(sources), find_operator, "npu", of.devices, "warm", "")
    assert {(gap.kernel_type, gap.cases[0].refusal.why) for gap in find_gaps(refused)} == {
        (COMBINE, NO_RANKS),
        (DISPATCH, NO_SUCH_WORLD),
    }


def bare_record(call: DistributeCall, **without: str) -> CaseRecord:
    cells = {name: text for name, text in call.cells.items() if name != EP_SIZE}
    return CaseRecord(call.kernel, {**cells, **without}, {})


@pytest.mark.parametrize("kernel", [DISPATCH, COMBINE])
def test_row_of_one_rank_is_not_a_gang(kernel: str) -> None:
    alone = bare_record(DistributeCall(kernel, 8, 64, 32, 4, ep_size=1, capacity=8))
    assert with_ep_size(alone, 16) == alone
    assert not is_of_gangs(alone.case)


def test_dispatch_with_counts_keeps_its_case() -> None:
    sent = bare_record(DistributeCall(DISPATCH, 8, 64, 32, 4, ep_size=16, capacity=8))
    assert with_ep_size(sent, 8).case_id == sent.case_id
    assert ranks_needed(sent.case) == 16


def test_combine_and_dispatch_without_counts_get_their_ranks() -> None:
    sent = DistributeCall(DISPATCH, 8, 64, 32, 4, ep_size=16, capacity=8)
    back = bare_record(replace(sent, kernel=COMBINE))
    assert ranks_needed(with_ep_size(back, 16).case) == 16
    names = ("Output Shapes", "Output Data Types", "Output Formats")
    uncounted = bare_record(sent, **dict.fromkeys(names, ""))
    assert with_ep_size(uncounted, 16).extra[EP_SIZE] == "16"


@pytest.mark.parametrize("more", ["devices: 8", "devices: 16\nmeasure: {cache: cold}"])
def test_row_with_too_many_ranks_gets_an_outcome_and_the_others_are_measured(more: str) -> None:
    call = ExpertCall(64, 128, 64, 32, 4, ep_size=16)
    cells = dict(call.cells)
    extra = {EP_SIZE: cells.pop(EP_SIZE)}
    record = CaseRecord(KERNEL, cells, extra)
    source = PlannedSource("tree", "0" * 64, 1, same_stack=False)
    text = f"campaign: c\nsources: [{{bundled: quickstart}}]\nbackend: npu\n{more}\n"
    of = campaign_from_text(text, path="c.yaml", base=Path("."))
    request = PlanRequest(of, 1, 0, "", NPU, ((source, (record,)),), {}, None, retry_failed=False)
    found = make_plan(request, find=find_operator)
    refused = refusal_in_plan(record.case, find_operator, "npu", of.devices, of.measure.cache, "")
    assert refused.why == WRONG_NUMBER_OF_RANKS and found.plan.forecast.unsupported == 1
    assert [shard.ranks for shard in found.plan.shards] == [1]
    no = refusal_on_ranks(record.case, find_operator, "npu", 1)
    assert no is not None and numbers(no.reason) == ["16", "1"]
    assert refusal_on_ranks(record.case, find_operator, "npu", 16) is None


def test_number_of_processes_on_a_cpu_is_bounded() -> None:
    case = ExpertCall(8, 16, 8, 256, 2, ep_size=128).case
    no = refusal(case, find_operator, "cpu")
    assert no is not None and numbers(no.reason)[0] == "128"
    assert refusal(case, find_operator, "npu") is None
