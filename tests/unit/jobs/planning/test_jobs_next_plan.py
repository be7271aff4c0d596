"""Commits of older plans are merged before `run` and `plan` make the next plan."""

from dataclasses import replace
from pathlib import Path

import pytest

from collector.codec.errors import BadInput
from collector.database.commits import find_head
from collector.database.head_content import HeldShards
from collector.database.merge import CREATE, merge_plans
from collector.model import keys
from collector.model.manifest import NO_USAGE, Usage
from collector.model.plan import read_shard
from collector.model.stack import Stack
from collector.store.file import FileStore
from collector.store.in_memory import MemoryStore
from jobs.campaign.campaign_file import (
    QualitySettings,
    RunOptions,
    SamplingSettings,
    campaign_from_text,
)
from jobs.cli.plan import plan_command
from jobs.planning.lifecycle import check_can_merge, next_plan, read_head_results, read_state
from tests.unit.collector.database.campaign_maker import (
    STACK,
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    answered,
    commit_shard,
    write_campaign,
)
from tests.unit.collector.database.test_database_curves import NPU, device, hosted, products
from tests.unit.jobs.printed import numbers, raises_naming

pytestmark = pytest.mark.fast

CASE = add_record(1)
TARGET = (
    "target: {device: A3, vllm: 0.18.0, torch: 2.9.0, cann: '8.5.0', driver: '25.5', "
    "firmware: '7.8', torch_npu: 2.9.0}"
)
HEADER = (
    "OP State,Accelerator Core,Input Shapes,Input Data Types,Input Formats,"
    "Output Shapes,Output Data Types,Output Formats\n"
)
ROW = ",".join(
    ["dynamic", "AI_VECTOR_CORE", '"""1,64;1,64"""', "DT_BF16;DT_BF16", "ND;ND"]
    + ['"""1,64"""', "DT_BF16", "ND\n"]
)
ROWS = 4
RECORDS = [add_record(rows) for rows in range(1, ROWS + 1)]
CASES = [record.case_id for record in RECORDS]
TRIED = MadeShard("s", [CASE], [{CASE.case_id: Tried(5.0)}])


@pytest.fixture
def campaign(tmp_path: Path):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "Add.csv").write_text(HEADER + ROW)
    text = f"campaign: made\nsources: [{{tree: tree}}]\nbackend: npu\n{TARGET}\n"
    return campaign_from_text(text, path="c.yaml", base=tmp_path)


@pytest.fixture
def wide(tmp_path: Path):
    """A campaign of four cases in several shards."""
    (tmp_path / "tree").mkdir()
    rows = [ROW.replace("1,64", f"{n},64") for n in range(1, ROWS + 1)]
    (tmp_path / "tree" / "Add.csv").write_text(HEADER + "".join(rows))
    text = f"campaign: made\nsources: [{{tree: tree}}]\nbackend: npu\n{TARGET}\n"
    text += "shards: {target_s: 0.001, session_s: 1}\n"
    return campaign_from_text(text, path="c.yaml", base=tmp_path)


def advanced(campaign, store, wish=None):
    message: list[str] = []
    state = read_state(campaign, store)
    return next_plan(state, lambda: CREATE, wish or RunOptions(), message.append), message


def test_commits_of_an_older_plan_are_merged_and_not_measured_again(campaign):
    store = MemoryStore()
    stack = read_state(campaign, store).stack
    write_campaign(store, MadePlan([TRIED], stack=stack))
    result, message = advanced(campaign, store)
    assert message == []
    assert result.plan.number == 2 and result.state.head.number == 1
    assert result.plan.shards == ()  # its one case is answered at the head


def test_older_plan_of_another_stack_is_ignored_and_reported(campaign):
    store = MemoryStore()
    write_campaign(store, MadePlan([TRIED], stack=STACK))
    result, message = advanced(campaign, store)
    assert "plan 1" in message[0]
    assert result.state.head is None and len(result.plan.shards) == 1


def test_the_next_plan_is_continued_until_it_is_merged(campaign):
    store = MemoryStore()
    first, _ = advanced(campaign, store)
    second, _ = advanced(campaign, store)
    assert first.plan == second.plan and numbers(second.news) == ["1"]


def test_another_stack_in_the_version_is_refused_before_measuring(campaign):
    store = MemoryStore()
    stack = replace(read_state(campaign, store).stack, driver="24.1")
    write_campaign(store, MadePlan([TRIED], campaign="other", stack=stack))
    merge_plans(store, [("other", 1)], guard=CREATE, author="a", sleep=lambda s: None)
    with raises_naming(BadInput, "driver", "--supersede-stack"):
        advanced(campaign, store)
    check_can_merge(read_state(campaign, store), supersede_stack=True)


def measured_here(store, stack, plan, usage=NO_USAGE):
    """The objects that workers would leave of a plan: every case of every shard is measured."""
    for shard in plan.shards:
        table = read_shard(store.get(keys.shard("made", shard.shard_id)))
        records = [case.record for case in table]
        made = MadeShard(shard.shard_id, records, [answered(records, 7.0)])
        reported = MadePlan([made], number=plan.number, stack=stack, head_commit=plan.head_commit)
        commit_shard(store, reported, plan, made, usage)


@pytest.mark.parametrize("backend", ["npu", "cpu"])
def test_forecast_learns_from_the_sessions_of_the_stack(campaign, backend, monkeypatch):
    store = MemoryStore()
    if backend == "cpu":
        here = Stack("CPU_test_2t", "2.13.0")
        monkeypatch.setattr("jobs.campaign.target.local_stack", lambda *_: here)
        campaign = replace(campaign, backend=backend, target=None)
    first, _ = advanced(campaign, store)
    slow = Usage(5.0, 5.0, wall_s=130.0, startup_s=100.0, sessions=1, cases=1, launches=10)
    measured_here(store, first.state.stack, first.plan, slow)
    second, _ = advanced(campaign, store, RunOptions(again=True))
    assert first.plan.forecast.device_s < 50 < 130 <= second.plan.forecast.device_s


@pytest.mark.thorough
@pytest.mark.parametrize("update", ["missing-only", "all"])
@pytest.mark.parametrize("harmed", ["part-0.csv", "manifest.json", "committed", "shards"])
def test_only_damaged_shards_are_measured_again_by_the_next_run(wide, update, harmed):
    campaign = replace(wide, update=update)
    store = MemoryStore()
    first, _ = advanced(campaign, store)
    stack = first.state.stack
    measured_here(store, stack, first.plan)
    assert len(first.plan.shards) > 1
    bad = first.plan.shards[0]
    [key] = [i.key for i in store.list("campaigns/") if harmed in i.key and bad.shard_id in i.key]
    store.put(key, b"rot")
    second, message = advanced(campaign, store)
    assert len(message) == 1 and key in message[0] and "\n" not in message[0]
    assert numbers(second.news) == ["2", "1"]
    assert sum(shard.cases for shard in second.plan.shards) == bad.cases
    assert not {s.shard_id for s in second.plan.shards} & {s.shard_id for s in first.plan.shards}
    again, _ = advanced(campaign, store)
    assert again.plan == second.plan and numbers(again.news) == ["2"]
    measured_here(store, stack, second.plan)
    third, message = advanced(campaign, store)
    assert third.is_finished and third.plan == second.plan
    assert third.state.content.case_results(stack.version_path, CASES).keys() == set(CASES)


def test_store_that_damages_everything_is_not_measured_forever(wide):
    store = MemoryStore()
    for number in range(1, 5):
        result, _ = advanced(wide, store)
        assert result.plan.number == number and not result.is_finished
        measured_here(store, result.state.stack, result.plan)
        for shard in result.plan.shards:
            store.put(keys.committed("made", shard.shard_id), b"")
    result, message = advanced(wide, store)
    assert result.is_finished and result.plan.number == 4
    damaged = [damage.shard for damage in result.damage.needed]
    assert damaged == sorted(shard.shard_id for shard in result.plan.shards)


def test_unreadable_plan_keeps_its_number_and_is_reported(wide):
    store = MemoryStore()
    first, _ = advanced(wide, store)
    store.put(keys.plan("made", 1), b"[" * 10_000)
    second, message = advanced(wide, store)
    assert second.plan.number == 2 and "plans/1.json" in message[0]
    assert [shard.cases for shard in second.plan.shards] == [
        shard.cases for shard in first.plan.shards
    ]


@pytest.mark.parametrize("wish", [RunOptions(again=True), RunOptions(retry_failed=True)])
def test_another_round_is_planned_despite_damage(wide, wish):
    store = MemoryStore()
    first, _ = advanced(wide, store)
    measured_here(store, first.state.stack, first.plan)
    for info in list(store.list("campaigns/made/attempts/")):
        store.put(info.key, b"rot")
    second, message = advanced(wide, store, wish)
    assert len(message) == len(first.plan.shards) and second.plan.number == 2
    assert {s.shard_id for s in second.plan.shards}.isdisjoint(
        shard.shard_id for shard in first.plan.shards
    )
    assert sum(shard.cases for shard in second.plan.shards) == len(CASES)


@pytest.mark.thorough
def test_late_commits_of_a_retired_plan_are_published_by_the_next_run(wide):
    store = MemoryStore()
    first, _ = advanced(wide, store)
    stack = first.state.stack
    edited = replace(wide, limits=replace(wide.limits, case_s=50.0))
    second, _ = advanced(edited, store)
    assert second.plan.number == 2
    measured_here(store, stack, second.plan)
    done, _ = advanced(edited, store)
    assert done.is_finished
    measured_here(store, stack, first.plan)  # its workers finished after all
    late, message = advanced(edited, store)
    assert late.is_finished and message == []
    held = HeldShards(store, "made").at(late.state.head)
    assert held >= {s.shard_id for plan in (first.plan, second.plan) for s in plan.shards}


def test_plan_that_cannot_supersede_is_refused_before_measuring(wide):
    store = MemoryStore()
    first, _ = advanced(wide, store)
    stack = replace(first.state.stack, driver="24.1")
    write_campaign(store, MadePlan([TRIED], campaign="other", stack=stack, head_commit=9))
    merge_plans(store, [("other", 1)], guard=CREATE, author="a")
    with raises_naming(BadInput, "driver", "--supersede-stack", "--again"):
        advanced(wide, store, RunOptions(supersede_stack=True))
    assert find_head(store).number == 1


def test_plan_with_the_current_head_supersedes(wide):
    store = MemoryStore()
    first, _ = advanced(wide, store)
    stack = replace(first.state.stack, driver="24.1")
    shard = MadeShard("s", [CASE], [{CASE.case_id: Tried(5.0)}])
    write_campaign(store, MadePlan([shard], campaign="other", number=2, stack=stack))
    merge_plans(store, [("other", 2)], guard=CREATE, author="a")
    wish = RunOptions(again=True, supersede_stack=True)
    second, _ = advanced(wide, store, wish)
    measured_here(store, first.state.stack, second.plan)
    third, _ = advanced(wide, store, RunOptions(supersede_stack=True))
    assert third.is_finished and third.state.content.shows(first.state.stack)


@pytest.mark.parametrize("state", ["nothing", "committed", "damaged", "no plan to read"])
def test_dry_run_of_a_plan_writes_and_merges_nothing(campaign, tmp_path, state, capsys):
    text = f"campaign: made\nsources: [{{tree: tree}}]\nbackend: npu\n{TARGET}\n"
    (tmp_path / "c.yaml").write_text(text)
    store = FileStore(tmp_path / "store")
    advanced(campaign, store)
    if state != "nothing":
        stack = read_state(campaign, store).stack
        store.delete(keys.plan("made", 1))
        write_campaign(store, MadePlan([TRIED], stack=stack))
    if state == "damaged":
        store.put(keys.committed("made", "s"), b"{")
    if state == "no plan to read":
        store.put(keys.plan("made", 1), b"{")

    def objects():
        return {info.key: store.get(info.key) for info in store.list("")}

    before = objects()
    plan_command(str(tmp_path / "c.yaml"), root=str(tmp_path / "store"), dry_run=True)
    assert objects() == before
    reported = capsys.readouterr().out
    assert ("plan 2" in reported) == (state != "nothing")  # which would be written
    assert ("plans/1.json" in reported) == (state == "no plan to read")


def test_commits_of_an_unreadable_plan_do_not_replace_those_of_the_next(campaign):
    store = MemoryStore()
    first, _ = advanced(campaign, store)
    store.put(keys.plan("made", 1), b"{")
    second, message = advanced(campaign, store)
    assert "plans/1.json" in message[0]
    assert second.plan.number == 2
    before = {shard.shard_id for shard in first.plan.shards}
    assert before and before.isdisjoint(shard.shard_id for shard in second.plan.shards)


@pytest.mark.thorough
def test_widest_intervals_are_measured_again_until_the_budget_is_spent(wide):
    store = MemoryStore()
    first, _ = advanced(wide, store)
    stack = first.state.stack
    measured_here(store, stack, first.plan)
    assert advanced(wide, store)[0].is_finished
    quality = QualitySettings(repeat_share=0.0, budget_device_h=0.1)
    sharper = replace(wide, update="precision", quality=quality)
    second, _ = advanced(sharper, store)
    assert second.plan.number == 2 and second.plan.forecast.narrowed == ROWS
    assert {s.shard_id for s in second.plan.shards}.isdisjoint(
        shard.shard_id for shard in first.plan.shards
    )
    measured_here(store, stack, second.plan)
    done, _ = advanced(sharper, store)
    assert done.is_finished
    third, _ = advanced(sharper, store, RunOptions(again=True))
    assert third.plan.number == 3 and third.plan.forecast.narrowed == ROWS
    answers = read_head_results(third.state)
    assert {one.interval and one.interval.sessions for one in answers.values()} == {2}


@pytest.mark.thorough
@pytest.mark.parametrize("timed", [hosted, device])
def test_withheld_case_is_a_failure_to_retry_and_is_not_used_for_forecasts(tmp_path, timed):
    text = f"campaign: made\nsources: [{{tree: tree}}]\nbackend: npu\n{TARGET}\n"
    text = text.replace("device: A3", f"device: {NPU.device}")
    (tmp_path / "tree").mkdir()
    rows = [",".join(map(quoted, record.cells.values())) for record, _ in products()]
    (tmp_path / "tree" / "MatMulV2.csv").write_text(HEADER + "\n".join(rows) + "\n")
    once = replace(
        campaign_from_text(text, path="c.yaml", base=tmp_path), quality=QualitySettings(0.0)
    )
    store = MemoryStore()
    first, _ = advanced(once, store)
    tried = {record.case_id: Tried(timed(us)) for record, us in products()}
    for shard in first.plan.shards:
        records = [c.record for c in read_shard(store.get(keys.shard("made", shard.shard_id)))]
        made = MadeShard(shard.shard_id, records, [{r.case_id: tried[r.case_id] for r in records}])
        reported = MadePlan([made], stack=first.state.stack, head_commit=first.plan.head_commit)
        commit_shard(store, reported, first.plan, made)
    assert advanced(once, store)[0].is_finished
    in_rounds = replace(once, sampling=SamplingSettings(tolerance=0.05, share=0.25))
    taught = read_head_results(read_state(in_rounds, store))
    assert {answer.is_good for answer in taught.values()} == {timed is device}
    second, _ = advanced(once, store, RunOptions(retry_failed=True))
    assert second.plan.forecast.cases == (len(tried) if timed is hosted else 0)


def quoted(cell):
    return '"' + cell.replace('"', '""') + '"'
