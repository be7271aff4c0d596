"""Impossible durations are stored and counted, and never shown."""

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.codec.errors import BadInput
from collector.database.merge import CREATE, merge_plans
from collector.database.plan_state import most_lower_bounds_us, with_implausible
from collector.database.query import case_results
from collector.database.rows import case_rows, rows_of_part
from collector.database.snapshot import load_state
from collector.database.view import render
from collector.model import keys
from collector.model.measurement import Outcome
from collector.model.record import as_ran
from collector.quality.gates import gate_of_outcome
from collector.store.in_memory import MemoryStore
from tests.unit.collector.database.campaign_maker import (
    PATH,
    STACK,
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    record_of_shapes,
    write_campaign,
)
from tests.unit.collector.database.campaign_maker import plan_of as plan_of_made
from tests.unit.collector.naming import names

pytestmark = pytest.mark.fast

PRODUCT = record_of_shapes("MatMulV2", "4096,4096;4096,4096", "4096,4096")
ADD = add_record(8)


def plan_of(product: Tried, number: int = 1) -> MadePlan:
    session = {PRODUCT.case_id: product, ADD.case_id: Tried(2.0)}
    shard = MadeShard(f"shard-{number}", [PRODUCT, ADD], [session])
    return MadePlan([shard], number=number)


def publish(store: MemoryStore, *plans: MadePlan):
    for plan in plans:
        write_campaign(store, plan)
    commit = merge_plans(store, [p.name for p in plans], guard=CREATE, author="test").commit
    assert commit is not None
    return load_state(store, commit)


@pytest.mark.parametrize(("mean_us", "gate"), [(0.001, "floor"), (1e9, "limit")])
def test_implausible_duration_is_stored_with_its_reason_and_not_shown(mean_us, gate):
    state = publish(MemoryStore(), plan_of(Tried(mean_us)))
    rows = {row["case"]: row for row in state.measurements.to_pylist()}
    assert rows[PRODUCT.case_id]["outcome"] == Outcome.IMPLAUSIBLE
    assert gate_of_outcome(Outcome.IMPLAUSIBLE, rows[PRODUCT.case_id]["reason"]) == gate
    assert float(rows[PRODUCT.case_id]["mean_us"]) == mean_us
    assert rows[ADD.case_id]["outcome"] == Outcome.OK
    known = case_results(state, PATH)
    assert not known[PRODUCT.case_id].is_good and known[ADD.case_id].mean_us == 2.0
    shown = render(state)[f"{PATH}/MatMulV2.csv"].data.decode()
    assert "4096,4096" in shown and str(mean_us) not in shown


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["aicore_time(us)", "aiv_time(us)"])
@pytest.mark.parametrize(
    ("worked_us", "accepted", "outcome"),
    [
        (1_126.0, 30, Outcome.OK),  # 1.25 times as long, plus a microsecond, may be another clock
        (1_126.5, 30, Outcome.IMPLAUSIBLE),
        (9e5, 30, Outcome.IMPLAUSIBLE),  # ms instead of us, where the lower bound detects nothing
        (9e5, 29, Outcome.OK),  # the thirtieth may have taken so long, and is not in the mean
    ],
)
def test_core_time_above_the_duration_is_implausible(name, worked_us, accepted, outcome):
    counters = (("aiv_vec_ratio", 0.5), (name, worked_us))
    tried = Tried(900.0, counters=counters, n_observed=30, n_accepted=accepted)
    device = replace(STACK, device="ATLAS_800_A3_752T_128G_DIE")
    state = publish(MemoryStore(), replace(plan_of(tried), stack=device))
    row = next(r for r in state.measurements.to_pylist() if r["case"] == PRODUCT.case_id)
    assert row["outcome"] == outcome
    if outcome is Outcome.IMPLAUSIBLE:
        assert names(row["reason"], "900 us", name, f"{worked_us:.6g}")
        assert gate_of_outcome(outcome, row["reason"]) == "cores at work"
    else:
        assert row["reason"] == ""


@pytest.mark.thorough
def test_implausible_duration_replaces_no_good_one_of_any_rank():
    good, bad = plan_of(Tried(9e5)), plan_of(Tried(0.001), number=2)
    orders = []
    for first, second in ((good, bad), (bad, good)):
        store = MemoryStore()
        publish(store, first)
        orders.append(publish(store, second))
    assert orders[0] == orders[1]
    assert case_results(orders[0], PATH)[PRODUCT.case_id].mean_us == 9e5


def test_second_merge_of_an_implausible_duration_makes_no_commit():
    store = MemoryStore()
    publish(store, plan_of(Tried(0.001)))
    again = merge_plans(store, [("made", 1)], guard=CREATE, author="test")
    assert again.commit is None


def test_plausibility_is_checked_for_the_kernel_that_ran_instead():
    ran = as_ran(PRODUCT, "MatMulV3", "dynamic", "AI_VECTOR_CORE")
    state = publish(MemoryStore(), plan_of(Tried(0.001, ran="MatMulV3")))
    (filed,) = (r for r in state.measurements.to_pylist() if r["case"] == ran.case_id)
    assert filed["outcome"] == Outcome.IMPLAUSIBLE and not filed["final"]
    assert f"{PATH}/MatMulV3.csv" not in render(state)


def test_lower_bound_depends_on_the_device():
    """A duration impossible for a cpu of two threads is possible for an unknown device."""
    tried = Tried(5_000.0)
    known = replace(STACK, details=(("flags", "avx2"), ("threads", "2")))
    slow, fast = (replace(plan_of(tried), stack=s) for s in (known, replace(STACK, device="X")))
    outcomes = [
        {row["case"]: row["outcome"] for row in publish(MemoryStore(), p).measurements.to_pylist()}
        for p in (slow, fast)
    ]
    assert outcomes[0][PRODUCT.case_id] == Outcome.IMPLAUSIBLE
    assert outcomes[1][PRODUCT.case_id] == Outcome.OK


@pytest.mark.thorough
@given(st.lists(st.sampled_from(["0.001", "1.9", "5000.0", "9e5", "7e7", "nan", "-1.0", ""])))
@settings(max_examples=30, deadline=None)
def test_checking_only_candidates_below_the_largest_lower_bound_changes_no_verdict(means):
    records, made = [PRODUCT, ADD], plan_of_made(plan_of(Tried(2.0)))
    columns = {
        "case": [records[at % 2].case_id if at % 3 else "unknown" for at in range(len(means))],
        "mean_us": means,
        "outcome": ["ok"] * len(means),
        "n_observed": ["30"] * len(means),
        "n_accepted": ["30"] * len(means),
        "counters": ["", '[["aiv_time(us)",1e4],["x",2.0]]'] * (len(means) // 2)
        + [""] * (len(means) % 2),
        "reason": [""] * len(means),
    }
    table = pa.table({name: pa.array(texts, pa.large_string()) for name, texts in columns.items()})
    known = most_lower_bounds_us(case_rows(made, records), made)
    unknown = most_lower_bounds_us(case_rows(made, []), made)
    verdicts = [with_implausible(table, records, made, most) for most in (known, unknown)]
    assert verdicts[0] == verdicts[1]


@pytest.mark.parametrize("text", ["nan", "inf", "0.0", "-2.0", "1.0,9.0,0.5", ""])
def test_part_with_numbers_that_are_not_a_timing_is_refused(text):
    store = MemoryStore()
    write_campaign(store, plan_of(Tried(9e5)))
    key = keys.part("made", "shard-1", "attempt-1", 0)
    numbers = (text + ",2.0" * 7).split(",")[:7] if "," in text else [text] * 7
    damaged = store.get(key).replace(",".join(["2.0"] * 7).encode(), ",".join(numbers).encode())
    with pytest.raises(BadInput, match=key):
        rows_of_part(damaged, key=key)


@pytest.mark.parametrize(
    ("device", "timed_by", "is_published"),
    [
        ("EVENTS_eventful_1", "events", True),
        ("EVENTS_eventful_1", "profiler", False),
        ("CUDA_H100", "events", False),
    ],
)
def test_durations_of_events_and_of_profilers_are_never_in_one_version(
    device, timed_by, is_published
):
    store = MemoryStore()
    made = plan_of(Tried(900.0, timed_by=timed_by))
    shard = replace(
        made.shards[0],
        sessions=[{PRODUCT.case_id: Tried(900.0, timed_by=timed_by), ADD.case_id: Tried()}],
    )
    made = replace(made, shards=[shard], stack=replace(STACK, device=device))
    write_campaign(store, made)
    result = merge_plans(store, [made.name], guard=CREATE, author="test")
    assert bool(result.damaged) != is_published
    assert result.added_measurements == (2 if is_published else 0)
    if not is_published:
        assert names(result.damaged[0].reason, "timed_by", device)
