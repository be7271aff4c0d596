"""A plan: what it includes, how it is cut, and that making it again gives the same plan."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.codec.canonical import sha256_hex
from collector.codec.errors import BadInput
from collector.model.case import Case
from collector.model.demand import DEMAND, Urgency
from collector.model.plan import (
    AGAIN_SHARE,
    Forecast,
    PlannedSource,
    ShardCase,
    ShardSettings,
    plan_from_json,
    plan_to_json,
    read_shard,
)
from collector.model.record import CaseRecord, ProfileStatistics
from collector.model.stack import Stack
from collector.ops.spec import Constraint, OpSpec
from jobs.campaign.campaign_file import Campaign, campaign_from_text
from jobs.planning.candidates import HeadResult
from jobs.planning.forecast import peaks_of
from jobs.planning.gaps import describe_forecast
from jobs.planning.plan_cases import PlanRequest
from jobs.planning.plan_making import PlannedRound, inputs_hash, make_plan
from jobs.planning.shard_cutting import shards_a_device
from tests.unit.jobs.printed import numbers

pytestmark = pytest.mark.fast

STACK = Stack(
    "CPU_x_2t",
    "2.13.0",
    details=(("clock_mhz", "2000"), ("flags", "avx2"), ("threads", "2")),
)
START_S = peaks_of(STACK).session_start_s
ONCE = "quality: {repeat_share: 0}\n"  # no case is measured a second time
FOREIGN = PlannedSource("profile:a", "a" * 64, 1, same_stack=False)
OWN = PlannedSource("profile:b", "b" * 64, 1, same_stack=True)


def first_dimension(case: Case) -> int:
    return (case.inputs or ())[0].numel


def unforeseen(case: Case) -> int:
    return (case.inputs or ())[7].numel


def operator(kernel: str, **more: object) -> OpSpec:
    return replace(
        OpSpec(kernel, "", signature="x -> y", reference=lambda torch, x: x, flops=first_dimension),
        **more,
    )


OPERATORS: Mapping[str, OpSpec] = {
    "Add": operator("Add"),
    "Mul": operator("Mul"),
    "Odd": operator("Odd", constraints=(Constraint("never", lambda case: False),)),
    "Broken": operator("Broken", flops=unforeseen),
    "Mistaken": operator("Mistaken", constraints=(Constraint("never", unforeseen),)),
}


def record(
    kernel: str = "Add",
    shape: str = "1024",
    *,
    dtype: str = "FLOAT",
    count: int = 1,
    mean_us: float = 10.0,
    duration: str = "",
) -> CaseRecord:
    return CaseRecord(
        kernel,
        {
            "OP State": "static",
            "Accelerator Core": "AI_VECTOR_CORE",
            "Input Shapes": f'"{shape}"',
            "Input Data Types": dtype,
            "Input Formats": "ND",
            "Output Shapes": f'"{shape}"',
            "Output Data Types": dtype,
            "Output Formats": "ND",
        },
        {"Average Duration(us)": duration} if duration else {},
        ProfileStatistics(count, mean_us, mean_us, 0.0) if count else None,
    )


def campaign(more: str = "") -> Campaign:
    text = f"campaign: c\nsources: [{{bundled: quickstart}}]\nbackend: cpu\n{more}"
    return campaign_from_text(text, path="c.yaml", base=Path())


def request(*records: CaseRecord, more: str = "", source: PlannedSource = FOREIGN) -> PlanRequest:
    return PlanRequest(
        campaign=campaign(more),
        number=1,
        head_commit=0,
        round="",
        stack=STACK,
        sources=((source, records),),
        head_results={},
        op_mapping=None,
        retry_failed=False,
    )


def plan(requested: PlanRequest) -> PlannedRound:
    return make_plan(requested, find=OPERATORS.get)


def cases_of(planned: PlannedRound) -> list[ShardCase]:
    return [case for table in planned.shards.values() for case in read_shard(table)]


def planned_ids(planned: PlannedRound) -> list[str]:
    return sorted(case.record.case_id for case in cases_of(planned))


def rows(count: int) -> list[CaseRecord]:
    return [record("Add" if n % 3 else "Mul", f"{n + 1},{2 ** (n % 20)}") for n in range(count)]


def test_most_urgent_queries_are_measured_first() -> None:
    urgencies = (Urgency.RARE, Urgency.CRITICAL, None, Urgency.FREQUENT)

    def urgent(number: int, one: CaseRecord) -> CaseRecord:
        urgency = urgencies[number % len(urgencies)]
        return replace(one, extra={DEMAND: urgency.value} if urgency else {})

    def order(shapes: list[str]) -> list[str]:
        found = [urgent(n, record("Add", shape)) for n, shape in enumerate(shapes)]
        requested = request(*found, more=ONCE)
        planned = plan(requested)
        tables = (planned.shards[shard.shard_id] for shard in planned.plan.shards)
        return [case.record.extra.get(DEMAND, "rare") for t in tables for case in read_shard(t)]

    several = order([f"{n + 1},1000000000" for n in range(24)])
    assert several == sorted(several, key=list(Urgency).index)
    assert set(several) == {urgency.value for urgency in Urgency}
    short = order([str(n + 1) for n in range(8)])  # too short for separate sessions
    assert sorted(short) == sorted(["rare", "critical", "rare", "frequent"] * 2)


def test_case_of_several_rows_and_sources_is_planned_once() -> None:
    requested = replace(
        request(),
        sources=((FOREIGN, (record(), record(shape="8"))), (OWN, (record(), record("Mul")))),
    )
    planned = plan(requested)
    expected = sorted(r.case_id for r in (record(), record(shape="8"), record("Mul")))
    assert planned_ids(planned) == expected
    assert planned.plan.forecast.cases == 3
    assert planned.plan.sources == (FOREIGN, OWN)


def test_shard_has_only_profile_statistics_of_its_own_stack() -> None:
    foreign, own = record(mean_us=5.0), record(mean_us=7.0)
    both = plan(replace(request(), sources=((FOREIGN, (foreign,)), (OWN, (own,)))))
    assert [case.record.profile for case in cases_of(both)] == [own.profile]
    alone = plan(request(foreign))
    assert [case.record.profile for case in cases_of(alone)] == [None]
    assert cases_of(alone)[0].record.cells == foreign.cells


def test_operators_filter_the_cases() -> None:
    planned = plan(request(record("Add"), record("Mul"), more="operators: [Mul]\n"))
    assert [case.record.kernel_type for case in cases_of(planned)] == ["Mul"]
    assert planned.plan.forecast.answered == 0


def test_operator_that_no_source_has_is_refused() -> None:
    with pytest.raises(BadInput, match=r"^operators: .*'Muls'.*'Mul'"):
        plan(request(record("Mul"), more="operators: [Muls]\n"))


ANSWERED = {
    record(shape="1").case_id: HeadResult(is_good=True, mean_us=3.0),
    record(shape="2").case_id: HeadResult(is_good=False, mean_us=None),
}
THREE = (record(shape="1"), record(shape="2"), record(shape="3"))


@pytest.mark.parametrize(
    ("update", "retry_failed", "left"),
    [
        ("missing-only", False, ["3"]),
        ("missing-only", True, ["2", "3"]),
        ("all", False, ["1", "2", "3"]),
        ("all", True, ["2", "3"]),
    ],
)
def test_missing_only_excludes_cases_with_a_result(
    update: str, retry_failed: bool, left: list[str]
) -> None:
    requested = request(*THREE, more=f"update: {update}\n")
    planned = plan(replace(requested, head_results=ANSWERED, retry_failed=retry_failed))
    assert planned_ids(planned) == sorted(record(shape=shape).case_id for shape in left)
    assert planned.plan.forecast.answered == 3 - len(left)


def test_case_of_a_suspect_session_is_planned() -> None:
    suspected = {case: replace(found, is_suspect=found.is_good) for case, found in ANSWERED.items()}
    planned = plan(replace(request(*THREE, more="update: missing-only\n"), head_results=suspected))
    assert planned_ids(planned) == sorted(record(shape=shape).case_id for shape in "13")
    assert planned.plan.forecast.answered == 1


DOUBTED = [record(shape=str(n)) for n in range(1, 41)]
PLACES = {r.case_id: f"n{at % 2}/d" for at, r in enumerate(DOUBTED)}


def again(device_s: float) -> PlannedRound:
    """The round for these cases, after one of this much device time."""
    requested = request(
        *DOUBTED, record(shape="99"), more="measure: {budget_s: 1, repeats: [3, 10000000]}\n"
    )
    before = Forecast(41, 0, 0, device_s, device_s, device_s)
    return plan(
        replace(
            requested,
            cases_to_repeat=PLACES,
            repeat_budget_s=AGAIN_SHARE * device_s,
            before=before,
            round="2d",
        )
    )


def test_suspect_case_is_planned_on_another_device() -> None:
    planned = again(device_s=1e4).plan
    found = {shard.not_on: shard for shard in planned.shards}
    assert list(found) == ["n0/d", "n1/d"] and planned.kept_from.keys() == {
        shard.shard_id for shard in planned.shards
    }
    for place, shard in found.items():
        table = read_shard(again(device_s=1e4).shards[shard.shard_id])
        assert {PLACES[case.record.case_id] for case in table} == {place}
    assert planned.forecast.doubtful == planned.forecast.cases == 40
    assert numbers(describe_forecast(planned)[0]) == ["40", "2", "0", "0", "40"]
    assert plan_from_json(plan_to_json(planned)) == planned


@pytest.mark.parametrize("device_s", [0.0, 30.0, 60.0, 100.0, 200.0])
def test_repetitions_of_suspect_cases_take_at_most_a_quarter_of_the_last_round(
    device_s: float,
) -> None:
    planned = again(device_s).plan
    assert planned.forecast.device_s <= 0.25 * device_s
    assert bool(planned.shards) is (device_s >= 60.0)


def test_again_plans_all_cases_with_their_measured_costs() -> None:
    in_tree = record(count=0, shape="9", duration="12.5")
    slow = {case: replace(answer, mean_us=5e6) for case, answer in ANSWERED.items()}
    planned = plan(replace(request(*THREE, in_tree), head_results=slow, again=True))
    assert planned.plan.forecast.cases == 4
    fast = plan(replace(request(*THREE, in_tree), again=True))
    assert planned.plan.forecast.device_s > fast.plan.forecast.device_s


@pytest.mark.parametrize(
    ("duration", "is_left"), [("12.5", False), ("", True), ("0", True), ("nan", True), ("x", True)]
)
def test_tree_row_with_a_duration_is_not_planned(duration: str, is_left: bool) -> None:
    row = record(count=0, duration=duration)
    assert bool(cases_of(plan(request(row)))) is is_left
    assert cases_of(plan(request(row, more="update: all\n")))


def test_plan_without_cases_has_no_shards() -> None:
    requested = replace(request(THREE[0]), head_results=ANSWERED)
    planned = plan(requested)
    assert planned.plan.shards == ()
    assert planned.shards == {}
    forecast = planned.plan.forecast
    assert (forecast.cases, forecast.answered) == (0, 1)
    assert (forecast.device_s, forecast.wall_s, forecast.floor_s) == (0.0, 0.0, 0.0)


def test_unsupported_cases_are_planned_and_counted() -> None:
    unknown = record("Add", "N/A", count=4, mean_us=2.0)
    planned = plan(
        request(
            record(),
            record("Nobody", "1", count=3, mean_us=50.0),
            record("Nobody", "2", count=2, mean_us=50.0),
            record("Odd", count=1, mean_us=1.0),
            unknown,
        )
    )
    assert planned.plan.forecast.unsupported == 4
    assert len(cases_of(planned)) == planned.plan.forecast.cases == 5


def test_unsupported_cases_are_distributed_over_the_shards() -> None:
    strangers = [record("Nobody", str(n + 1)) for n in range(8)]
    planned = plan(request(*strangers, more="shards: {target_s: 0.002}\n"))
    assert [shard.cases for shard in planned.plan.shards] == [2, 2, 2, 2]


def test_operator_with_a_failing_cost_does_not_stop_the_plan() -> None:
    planned = plan(request(record("Broken"), record()))
    assert len(cases_of(planned)) == 2
    assert planned.plan.forecast.unsupported == 0
    assert max(case.predicted_s for case in cases_of(planned)) == 1.0  # the budget of a case


def test_failing_rule_refuses_no_case() -> None:
    """A worker measures it anyway: the result is its outcome."""
    planned = plan(request(record("Mistaken"), record()))
    assert len(cases_of(planned)) == 2
    assert planned.plan.forecast.unsupported == 0


def test_last_measurement_is_preferred_as_forecast() -> None:
    shape = "4096,4096"
    fast, slow = record(shape=shape), record(shape=shape, mean_us=200_000.0)
    unmeasured = fsum(c.predicted_s for c in cases_of(plan(request(fast, source=FOREIGN))))
    profiled = fsum(c.predicted_s for c in cases_of(plan(request(slow, source=OWN))))
    answers = {fast.case_id: HeadResult(is_good=True, mean_us=400_000.0)}
    requested = replace(request(slow, source=OWN, more="update: all\n"), head_results=answers)
    measured = fsum(c.predicted_s for c in cases_of(plan(requested)))
    assert unmeasured < profiled < measured


def test_forecast_of_a_case_is_at_most_its_limit() -> None:
    slow = record(mean_us=9e9)
    (case,) = cases_of(plan(request(slow, source=OWN, more="limits: {case_s: 30}\n")))
    assert case.predicted_s == 30.0


def test_groups_are_kept_together_and_cheap_ones_are_first() -> None:
    mixed = [record(kernel, f"{n + 1}", mean_us=1.0) for n in range(6) for kernel in ("Mul", "Add")]
    dear = record("Mul", "4096,4096", dtype="INT64")
    (table,) = plan(request(dear, record("Nobody"), *mixed)).shards.values()
    cases = read_shard(table)
    kernels = [case.record.kernel_type for case in cases]
    assert kernels[0] == "Nobody"
    assert kernels[1:13] in (["Add"] * 6 + ["Mul"] * 6, ["Mul"] * 6 + ["Add"] * 6)
    assert cases[-1].record.case_id == dear.case_id


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 60),
    st.integers(1, 6),
    st.floats(0.05, 400.0),
    st.randoms(use_true_random=False),
)
def test_every_case_is_in_one_shard_for_any_row_order(
    count: int, devices: int, target_s: float, random: Random
) -> None:
    records = rows(count)
    more = f"devices: {devices}\nshards: {{target_s: {target_s}}}\n{ONCE}"
    planned = plan(request(*records, more=more))
    assert planned_ids(planned) == sorted(r.case_id for r in records)
    assert [s.shard_id for s in planned.plan.shards] == list(planned.shards)
    assert sum(shard.cases for shard in planned.plan.shards) == count
    shuffled = list(records)
    random.shuffle(shuffled)
    again = plan(request(*shuffled, more=more))
    assert plan_to_json(again.plan) == plan_to_json(planned.plan)
    assert again.shards == planned.shards


def test_order_of_the_sources_does_not_change_the_shards() -> None:
    records = tuple(rows(20))
    one = replace(request(), sources=((FOREIGN, records), (OWN, records[:9])))
    other = replace(request(), sources=((OWN, records[:9]), (FOREIGN, records)))
    assert plan(one).shards == plan(other).shards
    assert plan(one).plan.inputs_hash == plan(other).plan.inputs_hash


def test_plan_is_read_as_written() -> None:
    made = plan(request(*rows(30), more="devices: 3\nshards: {target_s: 0.5}\n")).plan
    data = plan_to_json(made)
    assert plan_from_json(data) == made
    assert plan_to_json(plan_from_json(data)) == data
    assert made.sha256 == sha256_hex(data) and made.sha256.startswith(made.plan_hash)


def test_shard_id_depends_on_cases_settings_and_round() -> None:
    requested = request(*rows(5))
    others: Sequence[PlanRequest] = (
        request(*rows(6)),
        request(*rows(5), more="measure: {repeats: 9}\n"),
        request(*rows(5), more="limits: {memory_gb: 1}\n"),
        replace(requested, round="2"),
        replace(requested, stack=replace(STACK, torch="2.12.0")),
    )
    ids = [tuple(plan(each).shards) for each in (requested, *others)]
    assert len(set(ids)) == len(ids)
    assert all(len(shard) == 20 for shards in ids for shard in shards)
    assert tuple(plan(replace(requested, number=7, head_commit=3)).shards) == ids[0]


def test_plans_with_and_without_a_precision_are_read_as_written() -> None:
    made = plan(request(*rows(2))).plan
    requested = plan(request(*rows(2), more="measure: {precision: 1%}\n")).plan
    for one in (made, requested):
        assert plan_from_json(plan_to_json(one)) == one
    assert requested.measure.precision == 0.01


def test_inputs_hash_depends_on_sources_settings_and_stack() -> None:
    def hash_of(more: str = "", torch: str = "2.13.0", op_mapping: str | None = None) -> str:
        stack = replace(STACK, torch=torch)
        return inputs_hash(campaign(more), stack, (FOREIGN, OWN), op_mapping)

    assert hash_of() == inputs_hash(campaign(), STACK, (OWN, FOREIGN), None)
    assert hash_of("store: elsewhere\n") == hash_of()
    changed = [
        hash_of("operators: [Add]\n"),
        hash_of("update: all\n"),
        hash_of("devices: 2\n"),
        hash_of("measure: {cache: cold}\n"),
        hash_of("measure: {precision: 1%, repeats: [3, 100]}\n"),
        hash_of("shards: {target_s: 9}\n"),
        hash_of("limits: {case_s: 9}\n"),
        hash_of(torch="2.12.0"),
        hash_of(op_mapping="a: b\n"),
        inputs_hash(campaign(), STACK, (FOREIGN,), None),
        hash_of(),
    ]
    assert len(set(changed)) == len(changed)


@pytest.mark.parametrize(
    ("work_s", "target_s", "shards"),
    [
        (100.0, 720.0, 1),  # 60 s each would be too short
        (300.0, 720.0, 1),  # two of 150 + 20 s too
        (330.0, 720.0, 2),  # 165 + 20 s are not
        (1300.0, 720.0, 8),  # two for the target, then 325, then 162.5 + 20 s
        (100.0, 30.0, 4),  # a target below 3 minutes is respected
        (100.0, 100.0, 1),
    ],
)
def test_shards_are_halved_while_they_stay_above_three_minutes(
    work_s: float, target_s: float, shards: int
) -> None:
    for devices in (1, 64):
        found = shards_a_device(devices * work_s, devices, ShardSettings(target_s), start_s=20.0)
        assert found == shards


def test_small_target_uses_all_devices() -> None:
    """Shards shorter than a start, which a user requests, run at the same time."""
    records = [record(shape=f"1024,{n + 1}", mean_us=100.0) for n in range(64)]
    more = f"devices: 4\nshards: {{target_s: 0.1}}\n{ONCE}"
    made = plan(request(*records, source=OWN, more=more)).plan
    assert len(made.shards) == 4 * -(-made.forecast.floor_s // 0.1)
    assert made.forecast.wall_s < 1.1 * made.forecast.device_s / 4


def test_small_target_gives_shards_of_that_size() -> None:
    records = [record(shape=f"1024,{n + 1}", mean_us=1000.0) for n in range(300)]
    requested = request(*records, source=OWN, more=f"shards: {{target_s: 5}}\n{ONCE}")
    made = plan(requested).plan
    work_s = made.forecast.floor_s
    assert len(made.shards) == -(-work_s // 5)
    for shard in made.shards:
        assert shard.predicted_s - START_S == pytest.approx(work_s / len(made.shards), rel=0.1)


def test_the_forecast_adds_up() -> None:
    records = [record(shape=f"1024,{n + 1}", mean_us=1000.0) for n in range(300)]
    made = plan(
        request(
            *records,
            source=OWN,
            more=f"devices: 4\nshards: {{target_s: 1, session_s: 0.6}}\n{ONCE}",
        )
    ).plan
    forecast = made.forecast
    assert forecast.device_s == pytest.approx(fsum(s.predicted_s for s in made.shards), abs=0.01)
    assert forecast.floor_s < forecast.device_s / 4 <= forecast.wall_s + 0.01
    # Each shard of about a second needs two sessions.
    work_s = forecast.device_s - 2 * START_S * len(made.shards)
    assert forecast.floor_s == pytest.approx(work_s / 4, abs=0.01)


def test_shards_are_sorted_by_the_start_on_their_device() -> None:
    records = [record(shape=f"{n + 1}", mean_us=100.0 * n) for n in range(1, 80)]
    made = plan(
        request(*records, source=OWN, more="devices: 3\nshards: {target_s: 10}\nupdate: all\n")
    ).plan
    free_at = [0.0] * 3
    for shard in made.shards:
        device = free_at.index(min(free_at))
        free_at[device] += shard.predicted_s
    assert max(free_at) == pytest.approx(made.forecast.wall_s, rel=1e-3)


def test_forecast_has_one_line_per_fact() -> None:
    made = plan(request(*rows(3), record("Nobody"))).plan
    forecast = replace(
        made.forecast, cases=12_345, answered=6, device_s=7200.0, wall_s=5500.0, floor_s=88.0
    )
    made = replace(made, forecast=forecast, devices=2)
    expected = [["12345", "1", "1", "6"], ["7200", "2.00"], ["1.5", "2", "88.0"]]
    for backend, most in (("npu", "25"), ("cpu", "88")):
        lines = describe_forecast(replace(made, backend=backend))
        assert list(map(numbers, lines)) == [*expected, [most]]
        assert "1.5 h" in lines[2] and "88.0 s" in lines[2]


def test_each_case_has_as_many_sessions_as_the_campaign_requests() -> None:
    for devices in (1, 4):
        made = plan(request(*rows(20), more=f"quality: {{sessions: 5}}\ndevices: {devices}\n"))
        assert Counter(planned_ids(made)) == dict.fromkeys(planned_ids(made), 5)
        assert len({shard.shard_id for shard in made.plan.shards}) == len(made.plan.shards)
        again = [shard for shard in made.plan.shards if shard.again_of]
        assert len(again) >= 4 and made.plan.forecast.repeats == 80
        assert numbers(describe_forecast(made.plan)[0])[-1] == "5"


@pytest.mark.parametrize("mean_us", [None, 10_000.0, 150_000.0])
def test_plan_for_more_devices_is_never_slower_and_measures_as_long_as_it_starts(
    mean_us: float | None,
) -> None:
    """Repeats after the only session of each device made a plan of many devices twice as long, and
    320 small cases had four sessions that each started for longer than they measured."""
    known = {"count": 0} if mean_us is None else {"mean_us": mean_us}
    records = [record(shape=f"{64 + at}", **known) for at in range(218)]
    last_s, repeats, used = float("inf"), 0, 0
    for devices in (1, 2, 3, 4, 8, 15, 16, 17, 32, 64, 128):
        made = plan(request(*records, source=OWN, more=f"devices: {devices}\n")).plan
        assert made.forecast.wall_s <= last_s, devices
        last_s, repeats = made.forecast.wall_s, max(repeats, made.forecast.repeats)
        first = [shard.predicted_s for shard in made.shards if not shard.again_of]
        assert len(first) == 1 or fsum(first) >= 2 * START_S * len(first), devices
        used = max(used, len(first))
    assert (used > 1) == (mean_us is not None)
    assert (repeats >= 4) == (mean_us is not None), "of 128 devices some have no other work"
