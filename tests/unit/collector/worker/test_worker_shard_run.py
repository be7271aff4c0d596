"""A shard from its cases to its commit, with a simulated instrument."""

import threading
from dataclasses import replace

import pytest
import zstandard

from collector.codec.errors import StoreUnavailable
from collector.database.shard_commits import read_shard_commit
from collector.measuring.batches import RawRecords, SessionResults, SessionsFail
from collector.model import keys
from collector.model.manifest import Usage, manifest_from_json
from collector.model.measurement import Disturbance, Measurement, Outcome, Timing
from collector.model.plan import Forecast, Limits, MeasureSettings, Plan, ShardCase, ShardSettings
from collector.model.stack import Runtime, Stack, runtime_details
from collector.store.in_memory import MemoryStore
from collector.worker import assignment
from collector.worker.answers import ShardResults, final_measurements
from collector.worker.assignment import complete_shard, give_up
from collector.worker.attempt import Attempt
from tests.unit.collector.measuring.pretending import (
    Poisoned,
    Pretender,
    cases,
    find_operator,
    record,
    size,
)
from tests.unit.collector.naming import naming
from tests.unit.collector.worker.stored_parts import measured

pytestmark = pytest.mark.fast

PLAN = Plan(
    campaign="c",
    number=1,
    head_commit=0,
    inputs_hash="i",
    round="",
    stack=Stack("CPU_x_2t", "2.13.0"),
    backend="cpu",
    devices=1,
    operators=None,
    update="all",
    measure=MeasureSettings(),
    shard_settings=ShardSettings(session_s=2.0),
    limits=Limits(),
    sources=(),
    op_mapping=None,
    forecast=Forecast(0, 0, 0, 0.0, 0.0, 0.0),
    shards=(),
)


def answers(store, shard_cases, attempt="a1", plan=PLAN):
    return ShardResults(Attempt(store, plan, "s1", attempt, "here"), shard_cases)


def run(store, shard_cases, instrument, attempt="a1", stop=None, session_s=2.0, backend="cpu"):
    return complete_shard(
        answers(store, shard_cases, attempt),
        instrument,
        find=find_operator,
        backend=backend,
        size=size(session_s),
        stop=stop or threading.Event(),
        on_progress=lambda done, total: None,
    )


def committed(store):
    commit = read_shard_commit(store, "c", "s1")
    return manifest_from_json(store.get(commit.manifest.key))


def outcomes_of(store):
    manifest = committed(store)
    rows = {m.measurement_id: m for m in measured(store)}
    return {case_id: rows[m].outcome for case_id, m in manifest.final.items()}


def test_kernel_that_cannot_be_built_is_unsupported_and_takes_no_session(tmp_path, monkeypatch):
    lacking = "op_compiler: expected on PATH"
    usual = cases()[0].record
    built = replace(usual, cells={**usual.cells, "OP State": "static"})
    planned = [ShardCase(one, 1.0) for one in (usual, built)]
    for problem, outcome in (("", Outcome.OK), (lacking, Outcome.UNSUPPORTED)):
        monkeypatch.setattr(assignment, "static_kernel_problem", lambda found=problem: found)
        store, instrument = MemoryStore(), Pretender(tmp_path)
        assert run(store, planned, instrument, backend="npu")
        assert outcomes_of(store) == {usual.case_id: Outcome.OK, built.case_id: outcome}
        assert len(instrument.batches) == (1 if problem else 2)  # sessions
        refused = [m.reason for m in measured(store) if m.outcome is Outcome.UNSUPPORTED]
        assert len(refused) == bool(problem) and all(problem in reason for reason in refused)


def test_every_case_has_one_final_outcome(tmp_path):
    store, instrument = MemoryStore(), Pretender(tmp_path)
    odd = [
        ShardCase(record("N/A", "MemSet"), 0.0),
        ShardCase(record("3,3", "Unheard"), 0.0),
        ShardCase(record("3"), 0.0),
    ]
    assert run(store, cases() + odd, instrument)
    expected = {case.record.case_id: Outcome.OK for case in cases()} | {
        odd[0].record.case_id: Outcome.UNSUPPORTED,
        odd[1].record.case_id: Outcome.UNSUPPORTED,
        odd[2].record.case_id: Outcome.REJECTED,
    }
    assert outcomes_of(store) == expected
    assert [len(batch) for batch in instrument.batches] == [2, 2]  # two seconds per session


def test_part_of_an_earlier_attempt_is_not_measured_again(tmp_path):
    store = MemoryStore()
    stop = threading.Event()

    def stop_after_one(case, session):
        stop.set()
        return Outcome.OK

    assert not run(store, cases(), Pretender(tmp_path, stop_after_one), "a1", stop)
    second = Pretender(tmp_path)
    assert run(store, cases(), second, "a2")
    assert second.batches == [[case.record.case_id for case in cases()[2:]]]
    manifest = committed(store)
    assert {entry.part.key.split("/")[4] for entry in manifest.parts} == {"a1", "a2"}
    assert set(manifest.final) == {case.record.case_id for case in cases()}


HELD, QUIET = Disturbance(30, 0, waited_share=0.5), Disturbance(30, 30)


def test_disturbed_case_is_repeated_at_the_end_and_its_undisturbed_result_is_final(tmp_path):
    store, instrument = MemoryStore(), Pretender(tmp_path)
    first = cases()[0]
    instrument.disturbance = lambda case, session: (
        HELD if session == 1 and case == first.record.case else QUIET
    )
    assert run(store, cases(), instrument)
    assert [len(batch) for batch in instrument.batches] == [2, 2, 1]
    assert instrument.batches[-1] == [first.record.case_id]
    rows = {m.measurement_id: m for m in measured(store)}
    assert len(rows) == 5 and not any(rows[m].is_disturbed for m in committed(store).final.values())


def test_results_of_a_permanently_busy_machine_are_final(tmp_path):
    store, instrument = MemoryStore(), Pretender(tmp_path)
    instrument.disturbance = lambda case, session: HELD
    assert run(store, cases(8), instrument, session_s=8.0)
    assert [len(batch) for batch in instrument.batches] == [8]
    assert set(outcomes_of(store).values()) == {Outcome.OK}
    idle = Pretender(tmp_path)
    assert run(store, cases(8), idle, "a2") and idle.batches == []


def test_later_disturbed_result_does_not_replace_an_undisturbed_one(tmp_path):
    store, instrument = MemoryStore(), Pretender(tmp_path)
    assert run(store, cases(1), instrument)
    (clean,) = measured(store)
    later = replace(
        clean, provenance=replace(clean.provenance, session=9, plan=9), disturbance=HELD
    )
    for tried in ([clean, later], [later, clean]):
        assert final_measurements(tried) == {clean.case_id: clean.measurement_id}
    failed = replace(clean, outcome=Outcome.FAILED, timing=None)
    assert final_measurements([failed, later]) == {clean.case_id: later.measurement_id}


def test_committed_shard_is_not_measured_again(tmp_path):
    store = MemoryStore()
    run(store, cases(), Pretender(tmp_path), "a1")
    before = committed(store)
    idle = Pretender(tmp_path)
    assert run(store, cases(), idle, "a2")
    assert idle.batches == [] and committed(store) == before


def test_lost_records_are_measured_once_more(tmp_path):
    store = MemoryStore()
    lost_at_first = Pretender(
        tmp_path, lambda case, session: Outcome.PROFILER_LOST if session == 1 else Outcome.OK
    )
    run(store, cases(2), lost_at_first)
    assert set(outcomes_of(store).values()) == {Outcome.OK}
    always = Pretender(tmp_path, lambda case, session: Outcome.PROFILER_LOST)
    other = MemoryStore()
    run(other, cases(2), always)
    assert set(outcomes_of(other).values()) == {Outcome.PROFILER_LOST}
    assert len(always.batches) == 2


def test_sessions_that_do_not_start_blame_the_node(tmp_path):
    store, mute = MemoryStore(), Pretender(tmp_path, lambda case, session: None, began=False)
    with pytest.raises(SessionsFail, match=naming("2 sessions", "SIGSEGV")):
        run(store, cases(), mute)
    assert len(mute.batches) == 2 and read_shard_commit(store, "c", "s1") is None
    assert mute.batches[0] == mute.batches[1]  # a batch that never started is not suspected


@pytest.mark.parametrize("poison", [(0,), (7,), (15,), (3, 4), (0, 15), range(16)])
def test_case_that_ends_its_session_from_outside_is_found_and_blamed(tmp_path, poison):
    store, shard = MemoryStore(), cases(16)
    instrument = Poisoned(tmp_path, [shard[i] for i in poison])
    assert run(store, shard, instrument, session_s=100.0)
    found = outcomes_of(store)
    expected = {
        case.record.case_id: Outcome.CRASHED if i in poison else Outcome.OK
        for i, case in enumerate(shard)
    }
    assert found == expected
    assert len(instrument.batches) <= 1 + 10 * len(poison)
    rows = measured(store)
    reasons = {m.reason for m in rows if m.outcome is Outcome.CRASHED}
    assert reasons == {"killed by SIGSEGV outside any case"}


class Killed(Exception):
    """The worker is killed, and reports nothing more."""


class Deadly(Pretender):
    """Sessions that hold one of these cases kill the worker."""

    def __init__(self, folder, deadly):
        super().__init__(folder)
        self.deadly = {case.record.case_id for case in deadly}

    def measure(self, batch, provenance):
        answers = super().measure(batch, provenance)
        if self.deadly & {case.record.case_id for case in batch}:
            raise Killed
        return answers


@pytest.mark.parametrize(
    ("guilty", "deadly"), [(0, [11, 5, 2, 1]), (6, [11, 5, 2, 1]), (10, [11, 1])]
)
def test_case_that_kills_its_worker_costs_only_itself(tmp_path, guilty, deadly):
    store, shard, sizes = MemoryStore(), cases(11), []
    for attempt in range(12):
        instrument = Deadly(tmp_path, [shard[guilty]])
        try:
            assert run(store, shard, instrument, f"a{attempt}", session_s=100.0)
        except Killed:
            sizes.append(len(instrument.batches[-1]))
        else:
            break
    assert sizes == deadly
    outcomes = outcomes_of(store)
    assert outcomes.pop(shard[guilty].record.case_id) is Outcome.CRASHED
    assert set(outcomes.values()) == {Outcome.OK} and len(outcomes) == 10


def test_one_killed_worker_blames_no_case(tmp_path):
    store, shard = MemoryStore(), cases(1)
    with pytest.raises(Killed):
        run(store, shard, Deadly(tmp_path, shard), "a1")
    assert run(store, shard, Pretender(tmp_path), "a2")
    assert list(outcomes_of(store).values()) == [Outcome.OK]


def test_session_that_ended_without_a_part_is_not_suspect(tmp_path):
    store, shard = MemoryStore(), cases(4)
    stop = threading.Event()

    def stopped(case, session):
        stop.set()

    assert not run(store, shard, Pretender(tmp_path, stopped), stop=stop, session_s=100.0)
    later = answers(store, shard, "a2")
    later.load()
    assert later.killed == ()
    again = Pretender(tmp_path)
    assert run(store, shard, again, "a2", session_s=100.0)
    assert [len(batch) for batch in again.batches] == [4]


def test_stopped_session_blames_no_case(tmp_path):
    store, stop = MemoryStore(), threading.Event()

    def stopped(case, session):
        stop.set()

    assert not run(store, cases(1), Pretender(tmp_path, stopped), stop=stop)
    assert measured(store) == []


def test_giving_up_records_an_outcome_for_every_open_case(tmp_path):
    store = MemoryStore()
    half = Pretender(tmp_path, lambda c, s: Outcome.OK if s == 1 else None, began=False)
    with pytest.raises(SessionsFail):
        run(store, cases(), half)
    give_up(answers(store, cases(), "a2"), Outcome.CRASHED, "three workers died")
    found = [outcomes_of(store)[case.record.case_id] for case in cases()]
    assert found == [Outcome.OK, Outcome.OK, Outcome.CRASHED, Outcome.CRASHED]


def test_manifest_has_the_usage_of_all_attempts(tmp_path):
    store, stop = MemoryStore(), threading.Event()

    def stop_after_one(case, session):
        stop.set()
        return Outcome.OK

    run(store, cases(), Pretender(tmp_path, stop_after_one), "a1", stop)
    poison = Poisoned(tmp_path, cases()[3:])  # the sessions: both cases, the third, the faulty one
    assert run(store, cases(), poison, "a2")
    manifest = committed(store)
    assert len(poison.batches) == 3
    assert manifest.usage == Usage(4.0, 4.0, 4.0, 0.0)
    assert sorted(entry.usage.wall_s for entry in manifest.parts) == [1.0, 1.0, 2.0]


def test_manifest_is_the_last_write_before_the_commit(tmp_path):
    class Recording(MemoryStore):
        def __init__(self):
            super().__init__()
            self.created = []

        def create(self, key, data):
            super().create(key, data)
            self.created.append(key)

    store = Recording()
    run(store, cases(2), Pretender(tmp_path))
    kinds = [key.rsplit("/", 1)[1].split("-")[0] for key in store.created]
    assert kinds == [
        "session",
        "op_summary",
        "journal",
        "entry",
        "part",
        "manifest.json",
        "s1.json",
    ]


def test_shard_committed_concurrently_is_not_committed_again(tmp_path):
    store, shard = MemoryStore(), cases(2)

    class Overtaken(Pretender):
        def measure(self, batch, provenance):
            run(store, shard, Pretender(self.folder), "a2")
            return super().measure(batch, provenance)

    assert run(store, shard, Overtaken(tmp_path), "a1")
    assert committed(store).attempt == "a2"
    give_up(answers(store, shard, "a3"), Outcome.CRASHED, "nobody could")
    manifests = [i.key for i in store.list(keys.attempts("c", "s1")) if "manifest" in i.key]
    assert manifests == [keys.attempt_manifest("c", "s1", "a2")]


def test_store_failure_before_the_part_leaves_no_part(tmp_path):
    class NoParts(MemoryStore):
        def create(self, key, data):
            if "/part-" in key:
                raise StoreUnavailable("away")
            super().create(key, data)

    store = NoParts()
    with pytest.raises(StoreUnavailable):
        run(store, cases(2), Pretender(tmp_path))
    assert measured(store) == []
    assert not list(store.list(keys.committed_prefix("c")))


def test_final_measurement_is_independent_of_the_order(tmp_path):
    store = MemoryStore()
    instrument = Pretender(tmp_path, lambda c, s: Outcome.PROFILER_LOST if s == 1 else Outcome.OK)
    run(store, cases(2), instrument)
    rows = measured(store)
    assert final_measurements(rows) == final_measurements(rows[::-1])


class Substituting(Pretender):
    """A different kernel runs for every case: each is answered with that, and the other one is
    recorded."""

    def measure(self, batch, provenance):
        self.outcomes = lambda case, session: Outcome.SUBSTITUTED
        reported = super().measure(batch, provenance)
        filed = tuple(
            replace(
                m,
                case_id=f"{m.case_id[:-1]}f",
                kernel_type="AddAiCore",
                outcome=Outcome.OK,
                timing=Timing(*[1.0] * 8),
                asked=m.case_id,
            )
            for m in reported.measurements
        )
        return replace(reported, measurements=reported.measurements + filed)


def test_substituted_kernel_is_stored_and_is_not_a_result_of_the_shard(tmp_path):
    store, shard = MemoryStore(), cases(2)
    instrument = Substituting(tmp_path)
    assert run(store, shard, instrument)
    assert set(outcomes_of(store).values()) == {Outcome.SUBSTITUTED}
    assert set(committed(store).final) == {case.record.case_id for case in shard}
    rows = measured(store)
    assert sum(m.is_filed and m.is_good for m in rows) == 2
    assert len(instrument.batches) == 1


def test_substituted_kernel_equal_to_a_requested_case_is_not_its_result(tmp_path):
    store, shard = MemoryStore(), cases(1)
    mine = shard[0].record

    def filed(batch, provenance):
        summary = tmp_path / "summary"
        summary.write_text("rows")
        other = Measurement(
            mine.case_id, "Add", Outcome.OK, "", provenance, timing=Timing(*[1.0] * 8), asked="x"
        )
        raw = (RawRecords(summary, summary),)
        return SessionResults((other,), raw, Usage(1.0, 1.0, 1.0, 0.0), True, "")

    attempt = answers(store, shard)
    attempt.add(1, filed(shard, attempt.next_session(shard)))
    assert attempt.without_result() == shard


def test_worker_killed_while_waiting_for_ranks_blames_no_case(tmp_path):
    store, shard = MemoryStore(), cases(2)
    first = ShardResults(Attempt(store, PLAN, "s1", "a1", "here"), shard, gathers=True)
    first.next_session(shard)
    second = answers(store, shard, "a2")
    second.load()
    assert second.killed == ()
    first.session_begins()
    third = answers(store, shard, "a3")
    third.load()
    assert third.killed == (tuple(case.record.case_id for case in shard),)


def test_unreadable_records_are_bisected_and_blame_the_node(tmp_path):
    class Unreadable(Pretender):
        def measure(self, batch, provenance):
            reported = super().measure(batch, provenance)
            return replace(reported, unread="msprof wrote no op_summary")

    store = MemoryStore()
    mute = Unreadable(tmp_path, lambda case, session: None)
    with pytest.raises(SessionsFail, match=naming("Add", "msprof wrote no op_summary")):
        run(store, cases(4), mute, session_s=100.0)
    assert [len(batch) for batch in mute.batches] == [4, 2, 1]
    assert measured(store) == []


def test_every_pass_stores_its_raw_records(tmp_path):
    class TwoPasses(Pretender):
        def measure(self, batch, provenance):
            reported = super().measure(batch, provenance)
            more = RawRecords(reported.raw[0].summary, reported.raw[0].journal, "Memory")
            return replace(reported, raw=(*reported.raw, more))

    store, stop = MemoryStore(), threading.Event()

    def stop_after_one(case, session):
        stop.set()
        return Outcome.OK

    assert not run(store, cases(), TwoPasses(tmp_path, stop_after_one), "a1", stop)
    assert run(store, cases(), Pretender(tmp_path), "a2")
    first, second = committed(store).parts
    assert sorted(raw.key.rsplit("/", 1)[1] for raw in first.raw) == [
        "journal-1-Memory.jsonl.zst",
        "journal-1.jsonl.zst",
        "op_summary-1-Memory.csv.zst",
        "op_summary-1.csv.zst",
    ]
    assert len(second.raw) == 2


def test_session_without_results_may_store_its_journal(tmp_path):
    class Hung(Pretender):
        def measure(self, batch, provenance):
            reported = super().measure(batch, provenance)
            reported.raw[0].journal.write_text("a stack")
            return reported

    store = MemoryStore()
    assert run(store, cases(1), Hung(tmp_path, lambda case, session: None))
    (kept,) = (info.key for info in store.list("") if info.key.endswith("journal-1.jsonl.zst"))
    assert zstandard.decompress(store.get(kept)) == b"a stack"
    assert not any(part.raw for part in committed(store).parts)


def test_results_without_a_device_have_the_runtime_of_the_plan():
    store = MemoryStore()
    stack = replace(PLAN.stack, details=runtime_details(Runtime.FAKE))
    give_up(answers(store, cases(2), plan=replace(PLAN, stack=stack)), Outcome.CRASHED, "died")
    assert {m.provenance.runtime for m in measured(store)} == {Runtime.FAKE}
    assert {m.provenance.raw_key for m in measured(store)} == {None}
