"""Merges: their results and refusals, and concurrent merges."""

import csv
import io
import logging
import threading
from dataclasses import replace

import pytest

from collector.codec.errors import BadInput, NotFound, OpmeterError
from collector.database.commits import find_head, history, read_commit
from collector.database.manifest import read_manifest
from collector.database.merge import CREATE, SINGLE_WRITER, Guard, MergeResult, merge_plans
from collector.database.query import case_results
from collector.database.snapshot import load_state
from collector.database.verify import find_problems
from collector.database.view import content_hash, render
from collector.model import keys
from collector.model.measurement import Outcome
from collector.model.record import as_ran
from collector.model.stack import Runtime, Stack
from collector.model.vocabulary import INPUT_CELLS, OUTPUT_CELLS
from collector.store.base import Store
from collector.store.in_memory import MemoryStore
from tests.unit.collector.database.campaign_maker import (
    PATH,
    STACK,
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    answered,
    record_of_shapes,
    write_campaign,
)
from tests.unit.collector.database.forging import tree_of, version_files
from tests.unit.collector.database.wrapped_stores import (
    CountingStore,
    LostReplyStore,
    MeetingStore,
)
from tests.unit.collector.naming import names, naming

pytestmark = pytest.mark.fast

RECORDS = [add_record(rows) for rows in range(1, 5)]
# The recorded tensors of a launch with seven rows.
SEVEN = {"Input Shapes": '"7,64;7,64"', "Output Shapes": '"7,64"'}
OF_SEVEN = tuple((name, RECORDS[0].cells[name]) for name in (*INPUT_CELLS, *OUTPUT_CELLS))
OF_SEVEN = tuple((name, SEVEN.get(name, text)) for name, text in OF_SEVEN)
MUL = [record_of_shapes("Mul", "2,2;2,2", "2,2")]


def made(number: int = 1, mean_us: float = 10.0, **changes: object) -> MadePlan:
    """Return a plan of one shard that measures all of RECORDS."""
    shard = MadeShard(f"shard-{number}", RECORDS, [answered(RECORDS, mean_us)])
    return replace(MadePlan([shard], number=number), **changes)  # type: ignore[arg-type]


def publish(store: Store, *plans: MadePlan, **options: object) -> MergeResult:
    for plan in plans:
        write_campaign(store, plan)
    names = [plan.name for plan in plans]
    return merge_plans(store, names, guard=CREATE, author="test", **options)  # type: ignore[arg-type]


def test_the_first_merge_makes_commit_one_with_its_certificate() -> None:
    store = MemoryStore()
    result = publish(store, made())
    assert result.commit is not None and result.head == result.commit
    commit = read_commit(store, 1)
    assert commit == result.commit == find_head(store)
    assert (commit.parent, commit.guard, commit.author, commit.runtime) == (
        *(0, "create", "test"),
        "real",
    )
    counts = {"cases": 4, "measurements": 4, "added_measurements": 4, "versions": 1}
    assert commit.counts == counts
    assert [plan.number for plan in commit.plans] == [1]
    assert find_problems(store) == []


def test_merge_without_new_measurements_makes_no_commit() -> None:
    store = MemoryStore()
    first = publish(store, made())
    again = merge_plans(store, [("made", 1)], guard=CREATE, author="test")
    assert again.commit is None and again.added_measurements == 0
    assert again.head == first.commit
    assert len(list(store.list(keys.COMMITS))) == 1
    assert len(list(store.list(f"{keys.MEASUREMENTS}device="))) == 1


@pytest.mark.thorough
def test_a_later_merge_writes_only_new_measurements_and_copies_unchanged_files() -> None:
    store = CountingStore(MemoryStore())
    publish(store, made())
    store.calls.clear()
    plan = MadePlan([MadeShard("mul", MUL, [answered(MUL, 3.0)])], number=2, head_commit=1)
    result = publish(store, plan)
    assert result.added_measurements == 1
    verbs = {key.rsplit("/", 1)[1]: verb for verb, key in store.calls if "snapshots" in key}
    assert (verbs["Add.csv"], verbs["Mul.csv"]) == ("copy", "put")
    assert len(version_files(store, read_commit(store, 2)).measurements) == 2
    assert set(tree_of(store, 2)) == {f"{PATH}/Add.csv", f"{PATH}/Mul.csv"}
    assert find_problems(store) == []


def test_a_merge_touches_only_the_version_directories_of_its_results() -> None:
    store = CountingStore(MemoryStore())
    other = replace(STACK, torch="2.12.0")
    publish(store, made(1), made(2, stack=other))
    before = read_manifest(store, read_commit(store, 1)).versions
    store.calls.clear()
    shard = MadeShard("mul", MUL, [answered(MUL, 3.0)])
    publish(store, MadePlan([shard], number=3, head_commit=1, stack=other))
    after = read_manifest(store, read_commit(store, 2)).versions
    assert after[PATH] == before[PATH] and after != before
    touched = {key for _, key in store.calls if STACK.version in key}
    assert touched <= {keys.version_manifest(before[PATH].snapshot, PATH)}
    found = {f"{path}/Add.csv" for path in (PATH, other.version_path)}
    assert set(tree_of(store, 2)) == {*found, f"{other.version_path}/Mul.csv"}
    assert find_problems(store) == []


def test_version_directory_is_rendered_again_if_related_stacks_change_its_intervals() -> None:
    """For any order of merging: the variance of a stack is estimated from others of its kind."""
    other = replace(STACK, torch="2.12.0")
    plans = [made(1), made(2, stack=other), made(3, mean_us=14.0, stack=other)]
    stores = [MemoryStore() for _ in range(3)]
    publish(stores[0], *plans)
    for plan in plans:
        publish(stores[1], plan)
    for plan in reversed(plans):
        publish(stores[2], plan)
    heads = [find_head(store) for store in stores]
    assert len({head.content_hash for head in heads if head}) == 1
    entries = [read_manifest(stores[1], read_commit(stores[1], n)).versions for n in (2, 3)]
    assert entries[0][PATH].prior != entries[1][PATH].prior
    assert entries[0][PATH].content_hash != entries[1][PATH].content_hash
    for store, head in zip(stores, heads, strict=True):
        assert find_problems(store) == [] and head is not None
        assert head.content_hash == content_hash(load_state(store, head))


def test_missing_shards_block_a_merge_unless_they_are_allowed() -> None:
    store = MemoryStore()
    late = MadeShard("late", MUL, is_committed=False)
    plan = MadePlan([MadeShard("shard-1", RECORDS, [answered(RECORDS, 1.0)]), late])
    held = publish(store, plan)
    assert held.commit is None and held.head is None
    assert held.missing == (("made", 1, "late"),)
    allowed = merge_plans(store, [plan.name], guard=CREATE, author="test", allow_missing=True)
    assert allowed.commit is not None and allowed.missing == held.missing
    rows = {path: entry.rows for path, entry in tree_of(store, 1).items()}
    assert rows == {f"{PATH}/Add.csv": 4, f"{PATH}/Mul.csv": 1}  # an unmeasured case has a row


def test_merge_without_committed_shards_publishes_nothing() -> None:
    store = MemoryStore()
    result = publish(store, MadePlan([MadeShard("s", MUL, is_committed=False)]), allow_missing=True)
    assert result.commit is None and find_head(store) is None


@pytest.mark.thorough
def test_second_stack_is_refused_unless_it_supersedes_the_first() -> None:
    store = MemoryStore()
    publish(store, made())
    other = Stack(device=STACK.device, torch=STACK.torch, details=(("flags", "avx512"),))
    newer = made(2, mean_us=99.0, head_commit=1, stack=other)
    with pytest.raises(BadInput, match=naming("details", "--supersede-stack")):
        publish(store, newer)
    result = merge_plans(store, [newer.name], guard=CREATE, author="test", supersede_stack=True)
    assert result.commit is not None
    version = load_state(store, result.commit).versions[PATH]
    assert version.shown_stack == other
    csv = store.get(keys.snapshot(result.commit.snapshot) + f"{PATH}/Add.csv").decode()
    assert "99.000000" in csv and "10.000000" not in csv
    assert merge_plans(store, [("made", 1)], guard=CREATE, author="test").commit is None
    assert find_problems(store) == []


def test_superseded_stack_does_not_block_later_plans() -> None:
    store = MemoryStore()
    other = replace(STACK, driver="25.1")
    publish(store, made(1), made(2, head_commit=1, stack=other), supersede_stack=True)
    result = publish(store, made(1), made(2, head_commit=1, stack=other), made(3, stack=other))
    assert result.commit is not None and result.added_measurements == 4
    with pytest.raises(BadInput, match=naming("plan 4", "made", STACK.stack_id, other.stack_id)):
        publish(store, made(1), made(4))


def test_two_stacks_in_one_merge_are_refused() -> None:
    other = replace(STACK, driver="25.1")
    store = MemoryStore()
    write_campaign(store, made(1))
    with pytest.raises(BadInput, match=naming("driver", STACK.stack_id, other.stack_id)):
        publish(store, made(1), made(2, stack=other))
    assert find_head(store) is None


@pytest.mark.parametrize(("first", "then"), [tuple(Runtime), tuple(reversed(Runtime))])
def test_measurements_of_another_runtime_are_refused(first: Runtime, then: Runtime) -> None:
    store = MemoryStore()
    result = publish(store, made(runtime=first))
    assert result.commit is not None and result.commit.runtime == first
    with pytest.raises(BadInput, match=naming("runtime", first, then)):
        publish(store, made(2, runtime=then))


def test_missing_plan_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match=naming("'made'", "plan 7", "memory:")):
        merge_plans(MemoryStore(), [("made", 7)], guard=CREATE, author="test")


def test_a_failed_measurement_never_displaces_a_good_one() -> None:
    store = MemoryStore()
    failed = {record.case_id: Tried(outcome=Outcome.OOM) for record in RECORDS}
    publish(store, made(1))
    result = publish(
        store, MadePlan([MadeShard("later", RECORDS, [failed])], number=2, head_commit=1)
    )
    assert result.commit is not None and result.added_measurements == 4
    first, second = (tree_of(store, number) for number in (1, 2))
    assert first == second


def test_commit_with_a_lost_reply_is_recognised_by_its_writer() -> None:
    store = LostReplyStore(MemoryStore())
    result = publish(store, made())
    assert store.lost == 1
    assert result.commit is not None and result.commit == find_head(store)
    assert len(list(store.list(keys.COMMITS))) == 1


@pytest.mark.thorough
def test_two_concurrent_merges_lose_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    plain = MemoryStore()
    publish(plain, made(1))
    write_campaign(plain, MadePlan([MadeShard("mul", MUL, [answered(MUL, 3.0)])], number=2))
    write_campaign(plain, made(3, mean_us=7.0, head_commit=1))
    store = MeetingStore(plain, parties=2)
    results: list[MergeResult] = []

    def publish_plan(number: int) -> None:
        results.append(merge_plans(store, [("made", number)], guard=CREATE, author="test"))

    threads = [threading.Thread(target=publish_plan, args=(n,)) for n in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(r.commit.number for r in results if r.commit) == [2, 3]
    assert len([one for one in caplog.messages if names(one, "commit 2", "merge")]) == 1
    head = find_head(plain)
    assert head is not None and head.counts["measurements"] == 4 + 1 + 4
    assert {plan.number for plan in load_state(plain, head).plans} == {1, 2, 3}
    assert find_problems(plain) == []


def test_lease_is_checked_before_the_commit_and_recorded() -> None:
    store = MemoryStore()
    write_campaign(store, made())
    with pytest.raises(OpmeterError, match=naming("lease", "commit 1")):
        merge_plans(store, [("made", 1)], guard=Guard("lease", lambda: False), author="test")
    assert find_head(store) is None
    result = merge_plans(store, [("made", 1)], guard=Guard("lease", lambda: True), author="test")
    assert result.commit is not None and result.commit.guard == "lease"


def test_single_writer_does_not_overwrite_a_visible_commit() -> None:
    """On a store that overwrites silently, a commit of another writer is searched first."""

    class Overwriting(MeetingStore):
        def __init__(self, store: Store):
            super().__init__(store, parties=1)
            self.others_turn = True

        def put(self, key: str, data: bytes) -> None:
            super().put(key, data)
            if self.others_turn and key.endswith("manifest.json"):
                self.others_turn = False
                merge_plans(self.store, [("made", 1)], guard=CREATE, author="other")

        def create(self, key: str, data: bytes) -> None:
            self.store.put(key, data)

    plain = MemoryStore()
    write_campaign(plain, made(1))
    write_campaign(plain, made(2))
    store = Overwriting(plain)
    result = merge_plans(
        store, [("made", 2)], guard=SINGLE_WRITER, author="test", sleep=lambda _: None
    )
    assert result.commit is not None and result.commit.number == 2
    assert [c.author for c in history(plain)] == ["test", "other"]
    assert result.commit.counts["measurements"] == 8


@pytest.mark.thorough
def test_head_is_found_despite_a_wrong_hint() -> None:
    store = MemoryStore()
    for number in (1, 2, 3):
        publish(store, made(number, mean_us=number, head_commit=number - 1))
    for hint in (b'{"number":1}', b'{"number":9}', b"nonsense", b'{"number":-1}', b"[]"):
        store.put(keys.HEAD, hint)
        head = find_head(store)
        assert head is not None and head.number == 3
    store.delete(keys.HEAD)
    assert [commit.number for commit in history(store)] == [3, 2, 1]
    with pytest.raises(NotFound):
        read_commit(store, 4)


def shown(store: Store) -> dict[str, tuple[str, str]]:
    """Return duration and cache state of each row of Add.csv, by its shapes."""
    head = find_head(store)
    assert head is not None
    data = store.get(f"{keys.snapshot(head.snapshot)}{PATH}/Add.csv").decode()
    rows = csv.DictReader(io.StringIO(data))
    return {
        row["Input Shapes"]: (row["Average Duration(us)"], row.get("MicroBench Cache", ""))
        for row in rows
    }


@pytest.mark.thorough
@pytest.mark.parametrize(
    "cold",
    [
        pytest.param(made(2, mean_us=50.0, cache="cold"), id="planned at the same head"),
        pytest.param(made(1, mean_us=50.0, cache="cold", campaign="older"), id="an older plan"),
        pytest.param(made(2, mean_us=50.0, head_commit=1, cache="cold"), id="a later plan"),
    ],
)
def test_cold_campaign_replaces_no_warm_duration(cold: MadePlan) -> None:
    store, other = MemoryStore(), MemoryStore()
    warm = made(3, head_commit=0, campaign="warm")
    publish(store, warm)
    before = shown(store)
    assert {cache for _, cache in before.values()} == {"warm"}
    publish(store, cold)
    assert shown(store) == before
    publish(other, cold)
    assert {cache for _, cache in shown(other).values()} == {"cold"}
    publish(other, warm)
    assert shown(other) == before
    assert find_head(store).content_hash == find_head(other).content_hash  # type: ignore[union-attr]


def test_case_shows_its_cold_duration_if_the_warm_one_failed() -> None:
    store = MemoryStore()
    failed = {r.case_id: Tried(outcome=Outcome.OOM) for r in RECORDS[:2]}
    warm = MadeShard("warm", RECORDS[:3], [failed | answered(RECORDS[2:3], 10.0)])
    cold = MadeShard("cold", RECORDS, [answered(RECORDS, 50.0)])
    publish(store, MadePlan([warm]), MadePlan([cold], number=2, cache="cold", head_commit=1))
    assert [cache for _, cache in shown(store).values()] == ["cold", "cold", "warm", "cold"]
    state = load_state(store, find_head(store))
    for cache, durations in (("warm", 1), ("cold", 4)):
        data = render(state, cache=cache)[f"{PATH}/Add.csv"].data.decode()
        rows = list(csv.DictReader(io.StringIO(data)))
        assert sum(bool(row["Average Duration(us)"]) for row in rows) == durations
        assert {row["MicroBench Cache"] for row in rows} <= {cache, ""}
    known = case_results(state, PATH)
    assert all(answer.is_good for answer in known.values())


@pytest.mark.thorough
def test_superseding_stack_of_a_lower_rank_is_refused() -> None:
    store = MemoryStore()
    publish(store, made(1))
    publish(store, made(2, head_commit=1))
    other = replace(STACK, driver="25.1")
    lower = made(3, mean_us=99.0, head_commit=0, stack=other)
    named = ("--supersede-stack", PATH, STACK.stack_id, "plan 3", "version 1", "version 0")
    with pytest.raises(BadInput, match=naming(*named)):
        publish(store, lower, supersede_stack=True)
    assert find_head(store).number == 2  # type: ignore[union-attr]
    higher = made(4, mean_us=99.0, head_commit=2, stack=other)
    assert publish(store, higher, supersede_stack=True).commit is not None
    assert "99.000000" in {us for us, _ in shown(store).values()}
    # Repeated when it is superseded already: nothing is new, and nothing is refused.
    assert publish(store, higher, supersede_stack=True).commit is None


def test_op_mapping_of_the_highest_plan_is_shown() -> None:
    store = MemoryStore()
    late = made(2, mean_us=50.0, head_commit=1, op_mapping="late: 1\n")
    publish(store, late)
    publish(store, made(1, op_mapping="early: 1\n"))
    head = find_head(store)
    assert head is not None
    version = load_state(store, head).versions[PATH]
    assert version.op_mapping is not None and version.op_mapping.text == "late: 1\n"
    snapshot = keys.snapshot(head.snapshot)
    assert store.get(f"{snapshot}{PATH}/op_mapping.yaml") == b"late: 1\n"


def test_plan_without_measurements_publishes_nothing() -> None:
    """Like a plan of `--retry-failed` without failures, and a shard whose cases are gone."""
    empty = MadePlan([], number=2, op_mapping="late: 1\n")
    unmeasured = MadePlan([MadeShard("mul", MUL, [{}])], number=3)
    store = MemoryStore()
    assert publish(store, empty, unmeasured).head is None
    first = publish(store, made(), empty, unmeasured).commit
    assert first is not None and [plan.number for plan in first.plans] == [1]
    assert set(tree_of(store, 1)) == {f"{PATH}/Add.csv"}
    assert publish(store, empty, unmeasured).commit is None


@pytest.mark.thorough
def test_plans_that_share_a_shard_give_the_same_database_in_any_order() -> None:
    """A plan of other inputs may have shards of an older one that are committed by then."""
    shard = MadeShard("shard-1", RECORDS, [answered(RECORDS, 10.0)])
    older, later = (
        made(),
        made(2, op_mapping="late: 1\n", shards=[replace(shard, is_committed=False)]),
    )
    contents = set()
    for portions in ([(1,), (2,)], [(2,), (1,)], [(1, 2)], [(1,), (1, 2), (2,)]):
        store = MemoryStore()
        for plan in (older, later):
            write_campaign(store, plan)
        for numbers in portions:
            plans = [("made", number) for number in numbers]
            head = merge_plans(store, plans, guard=CREATE, author="test").head
        assert head is not None
        contents.add(head.content_hash)
    assert len(contents) == 1


@pytest.mark.thorough
def test_plan_whose_shards_were_merged_with_a_later_one_makes_no_version() -> None:
    """Only its name would be new, and a merge without anything new stops."""
    older = made()
    later = made(2, shards=[replace(older.shards[0], is_committed=False)])
    store = MemoryStore()
    for plan in (older, later):
        write_campaign(store, plan)
    first = merge_plans(store, [later.name], guard=CREATE, author="test").commit
    assert first is not None and [plan.number for plan in first.plans] == [2]
    for plans in ([older.name], [older.name, later.name]):
        again = merge_plans(store, plans, guard=CREATE, author="test")
        assert again.commit is None and again.head == first
    more = publish(store, made(3))
    assert more.commit is not None and more.added_measurements == len(RECORDS)


def substituting(number: int = 1, **tried: object) -> MadePlan:
    """Return a plan of two cases, the first of which ran as another kernel."""
    first, second = RECORDS[:2]
    session = {
        first.case_id: Tried(7.5, ran="AddAiCore", **tried),  # type: ignore[arg-type]
        second.case_id: Tried(9.0),
    }
    return MadePlan([MadeShard(f"shard-{number}", [first, second], [session])], number=number)


def test_kernel_that_ran_in_place_of_a_case_is_a_separate_case() -> None:
    store = MemoryStore()
    result = publish(store, substituting())
    assert result.commit is not None and find_problems(store) == []
    assert result.commit.counts["cases"] == 3 and result.commit.counts["measurements"] == 3
    state = load_state(store, result.commit)
    shown = case_results(state, PATH)
    ran = as_ran(RECORDS[0], "AddAiCore", "dynamic", "AI_VECTOR_CORE")
    assert shown[RECORDS[0].case_id].outcome is Outcome.SUBSTITUTED
    assert (shown[ran.case_id].is_good, shown[ran.case_id].mean_us) == (True, 7.5)
    files = render(state)
    assert files[f"{PATH}/AddAiCore.csv"].rows == 1
    assert b'"""1,64;1,64"""' in files[f"{PATH}/AddAiCore.csv"].data
    assert b"7.5" in files[f"{PATH}/AddAiCore.csv"].data
    assert b"7.5" not in files[f"{PATH}/Add.csv"].data


def test_another_op_state_that_ran_is_a_separate_case_of_the_kernel() -> None:
    store = MemoryStore()
    session = {RECORDS[0].case_id: Tried(7.5, ran="Add", state="static")}
    result = publish(store, MadePlan([MadeShard("shard", RECORDS[:1], [session])]))
    shown = case_results(load_state(store, result.commit), PATH)
    assert len(shown) == 2 and find_problems(store) == []
    ran = as_ran(RECORDS[0], "Add", "static", "AI_VECTOR_CORE")
    assert shown[ran.case_id].mean_us == 7.5 and ran.case.op_state == "static"


def test_recorded_tensors_are_those_of_the_case() -> None:
    store = MemoryStore()
    session = {RECORDS[0].case_id: Tried(7.5, ran="Add", recorded=OF_SEVEN)}
    result = publish(store, MadePlan([MadeShard("shard", RECORDS[:1], [session])]))
    assert find_problems(store) == []
    state = load_state(store, result.commit)
    ran = replace(RECORDS[0], cells={**RECORDS[0].cells, **dict(OF_SEVEN)})
    shown = case_results(state, PATH)
    assert shown[ran.case_id].mean_us == 7.5 and not shown[RECORDS[0].case_id].is_good
    pulled = render(state)[f"{PATH}/Add.csv"]
    assert pulled.rows == 2 and b"7,64;7,64" in pulled.data


def test_case_that_ran_on_the_ai_cpu_has_a_separate_row() -> None:
    store = MemoryStore()
    session = {RECORDS[0].case_id: Tried(750.0, ran="Add", core="AI_CPU")}
    result = publish(store, MadePlan([MadeShard("shard", RECORDS[:1], [session])]))
    state = load_state(store, result.commit)
    ran = as_ran(RECORDS[0], "Add", "dynamic", "AI_CPU")
    shown = case_results(state, PATH)
    assert shown[ran.case_id].mean_us == 750.0 and not shown[RECORDS[0].case_id].is_good
    assert render(state)[f"{PATH}/Add.csv"].rows == 2 and find_problems(store) == []


def test_later_plan_precedes_for_a_kernel_that_ran_instead() -> None:
    store = MemoryStore()
    later = substituting(2)
    session = {RECORDS[0].case_id: Tried(6.0, ran="AddAiCore")}
    later = replace(later, shards=[replace(later.shards[0], sessions=[session])])
    result = publish(store, substituting(), later)
    ran = as_ran(RECORDS[0], "AddAiCore", "dynamic", "AI_VECTOR_CORE")
    assert case_results(load_state(store, result.commit), PATH)[ran.case_id].mean_us == 6.0
