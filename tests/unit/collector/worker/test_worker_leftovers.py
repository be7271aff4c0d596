"""Leftovers of earlier attempts are reused if sound, and otherwise set aside: they never prevent a
later attempt from committing, and a merge accepts its commit."""

import logging
import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.codec.canonical import sha256_hex
from collector.codec.errors import BadInput
from collector.database.merge import CREATE, merge_plans
from collector.database.query import case_results as shown
from collector.database.shard_commits import read_shard_commit
from collector.database.snapshot import load_state
from collector.measuring.batches import RawRecords, SessionResults
from collector.model import keys
from collector.model.manifest import (
    StoredObject,
    Usage,
    entry_from_json,
    entry_to_json,
    manifest_from_json,
)
from collector.model.measurement import Measurement, Outcome, Timing
from collector.model.plan import ShardCase, plan_to_json
from collector.model.row import from_row, to_row
from collector.ops.registry import find_operator
from collector.store.base import Store
from collector.store.in_memory import MemoryStore
from collector.worker.answers import ShardResults
from collector.worker.assignment import complete_shard, give_up
from collector.worker.attempt import Attempt, part_bytes, read_part
from tests.unit.collector.database.campaign_maker import (
    PATH,
    MadePlan,
    MadeShard,
    add_record,
    write_campaign,
)
from tests.unit.collector.measuring.pretending import size
from tests.unit.collector.naming import names, naming

RECORDS = [add_record(rows) for rows in range(1, 5)]
SHARD = MadeShard("s1", RECORDS, is_committed=False)
PART, ENTRY, SESSION = (
    of("made", "s1", "a1", 1) for of in (keys.part, keys.part_entry, keys.session_cases)
)
RAW, JOURNAL = (of("made", "s1", "a1", 1) for of in (keys.raw_summary, keys.raw_journal))


class Instrument:
    """Measures every case well, two per session, and counts sessions; stops after one if
    requested."""

    def __init__(self, folder, stop=None):
        self.folder, self.stop, self.batches = folder, stop, []

    def measure(self, batch, provenance):
        self.batches.append([case.record.case_id for case in batch])
        summary = self.folder / "summary"
        summary.write_text("rows")
        if self.stop:
            self.stop.set()
        measurements = tuple(
            Measurement(
                case.record.case_id,
                case.record.kernel_type,
                Outcome.OK,
                "",
                provenance,
                timing=Timing(*[1.0 + len(self.batches)] * 7, 0.1),
            )
            for case in batch
        )
        raw = (RawRecords(summary, summary),)
        return SessionResults(measurements, raw, Usage(1.0, 1.0, 1.0, 0.0), True, "")


def answers(store, plan, attempt):
    cases = [ShardCase(record, 1.0) for record in RECORDS]
    return ShardResults(Attempt(store, plan, "s1", attempt, "here"), cases)


def run(store, plan, attempt, instrument):
    return complete_shard(
        answers(store, plan, attempt),
        instrument,
        find=find_operator,
        backend="cpu",
        size=size(2.0),
        stop=instrument.stop or threading.Event(),
        on_progress=lambda done, total: None,
    )


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A store and a plan, with the leftovers of an attempt that stopped after the first of its two
    sessions."""
    store = MemoryStore()
    plan = write_campaign(store, MadePlan([SHARD]))
    folder = tmp_path_factory.mktemp("stopped")
    assert not run(store, plan, "a1", Instrument(folder, threading.Event()))
    return store, plan


@pytest.fixture
def left(stopped):
    """A copy for each test to damage."""
    return copied(stopped)


def copied(stopped):
    store, plan = stopped
    copy = MemoryStore()
    for info in store.list(""):
        copy.put(info.key, store.get(info.key))
    return copy, plan


def finished(store: Store, plan, folder) -> tuple[int, int]:
    """A second attempt, and a merge of its commit: how many sessions it needed, and how many parts
    its answer has."""
    instrument = Instrument(folder)
    assert run(store, plan, "a2", instrument)
    commit = read_shard_commit(store, "made", "s1")
    manifest = manifest_from_json(store.get(commit.manifest.key))
    published = merge_plans(store, [("made", plan.number)], guard=CREATE, author="test").commit
    found = shown(load_state(store, published), PATH)
    assert {case for case, reported in found.items() if reported.is_good} == {
        r.case_id for r in RECORDS
    }
    assert {reported.mean_us for reported in found.values()} <= {2.0, 3.0}
    return len(instrument.batches), len(manifest.parts)


def test_complete_session_of_an_earlier_attempt_is_reused(left, tmp_path):
    assert finished(*left, tmp_path) == (1, 2)


def rewrite(store, **changes):
    """The part, with every row changed and its ids computed again."""
    measurements = read_part(store.get(PART), key=PART)
    own = {k: v for k, v in changes.items() if k in Measurement.__dataclass_fields__}
    reported = {k: v for k, v in changes.items() if k not in own}
    seal(
        store,
        part_bytes(
            replace(m, provenance=replace(m.provenance, **reported), **own) for m in measurements
        ),
    )


def seal(store, data):
    """Other bytes for the part, and an entry that declares them right."""
    store.put(PART, data)
    entry = entry_from_json(store.get(ENTRY))
    stored = StoredObject(PART, len(data), sha256_hex(data))
    store.put(ENTRY, entry_to_json(replace(entry, part=stored)))


def of_another_plan(store):
    other = replace(MadePlan([replace(SHARD, name="s9")]), number=7)
    plan = write_campaign(store, other)
    rewrite(store, plan=7, plan_hash=plan.plan_hash)


def twice(store):
    seal(store, store.get(PART) + store.get(PART).split(b"\n", 1)[1])


DAMAGE = {
    "empty": lambda s: s.put(PART, b""),
    "no text": lambda s: seal(s, b"\xff\xfe\x00"),
    "cut off": lambda s: seal(s, s.get(PART)[:-40]),
    "no rows": lambda s: seal(s, s.get(PART).split(b"\n")[0] + b"\n"),
    "another header": lambda s: seal(s, s.get(PART).replace(b"outcome", b"income", 1)),
    "a bit of an id": lambda s: seal(s, s.get(PART).replace(b",s1,", b",s2,", 1)),
    "a number": lambda s: seal(s, s.get(PART).replace(b",warm,", b",lukewarm,", 1)),
    "twice": twice,
    "a digit of a number": lambda s: s.put(PART, s.get(PART).replace(b",2.0,", b",3.0,", 1)),
    "no entry": lambda s: s.delete(ENTRY),
    "an entry of words": lambda s: s.put(ENTRY, b'{"part": "long"}'),
    "no raw record": lambda s: s.delete(RAW),
    "an empty raw record": lambda s: s.put(RAW, b""),
    "half a raw record": lambda s: s.put(RAW, s.get(RAW)[:-3]),
    "another journal": lambda s: s.put(JOURNAL, b"{}"),
    "another campaign": lambda s: rewrite(s, campaign="other"),
    "another shard": lambda s: rewrite(s, shard="s2"),
    "another attempt": lambda s: rewrite(s, attempt="a7"),
    "another session": lambda s: rewrite(s, session=4),
    "a plan that is not there": lambda s: rewrite(s, plan=9),
    "a plan without the shard": of_another_plan,
    "a plan's other content": lambda s: rewrite(s, plan_hash="0" * 16),
    "another head": lambda s: rewrite(s, head_commit=99),
    "another stack": lambda s: rewrite(s, stack_id="0" * 16),
    "another raw record": lambda s: rewrite(s, raw_key=keys.raw_summary("made", "s2", "a1", 1)),
    "another kernel": lambda s: rewrite(s, kernel_type="Mul"),
    "another case": lambda s: rewrite(s, case_id=add_record(9).case_id),
    "what ran for another case": lambda s: rewrite(s, asked=RECORDS[3].case_id),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
def test_damaged_session_is_ignored_with_a_warning_and_measured_again(
    left, tmp_path, caplog, damage
):
    store, plan = left
    damage(store)
    kept = {info.key: store.get(info.key) for info in store.list("campaigns/made/attempts/")}
    with caplog.at_level(logging.WARNING):
        assert finished(store, plan, tmp_path) == (2, 2)
    assert caplog.messages
    for message in caplog.messages:
        assert names(message, "campaigns/made/attempts/s1/a1/") and "\n" not in message
    assert all(store.get(key) == data for key, data in kept.items())


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=75, deadline=None)
def test_shard_with_any_damaged_leftover_is_committed_and_merged(data, stopped, tmp_path_factory):
    """A bit, a range or a whole object, of anything that the first attempt left."""
    folder = tmp_path_factory.mktemp("work")
    store, plan = copied(stopped)
    key = data.draw(st.sampled_from([PART, ENTRY, SESSION, RAW, JOURNAL]))
    whole = store.get(key)
    start = data.draw(st.integers(0, len(whole) - 1))
    end = data.draw(st.integers(start, min(len(whole), start + 40)))
    store.put(key, whole[:start] + data.draw(st.binary(max_size=8)) + whole[end:])
    sessions, parts = finished(store, plan, folder)
    assert (sessions, parts) in ((1, 2), (2, 2))


def test_rows_of_an_earlier_plan_with_the_same_shard_are_reused(left, tmp_path):
    store, first = left
    second = replace(first, number=2, head_commit=3, inputs_hash="another")
    store.put(keys.plan("made", 2), plan_to_json(second))
    assert finished(store, second, tmp_path) == (1, 2)
    said = {row.provenance.plan for row in read_part(store.get(PART), key=PART)}
    assert said == {1}


@pytest.mark.parametrize("odd", [b"", b"{}", b"[1]", b"\xff", b"[" * 100_000, b'["unheard"]'])
def test_damaged_list_of_session_cases_blames_no_case(left, tmp_path, caplog, odd):
    store, plan = left
    key = keys.session_cases("made", "s1", "a0", 1)
    store.put(key, odd)
    with caplog.at_level(logging.WARNING):
        assert finished(store, plan, tmp_path) == (1, 2)
    assert [key in message for message in caplog.messages] == [True]


@pytest.mark.parametrize(
    "name",
    [
        "part-1.csv~",
        "part-.csv",
        "part-01.csv",
        "part-1.json",
        ".DS_Store",
        "part-1-x.csv",
        "x/part-1.csv",
    ],
)
def test_unknown_objects_in_the_attempt_folder_are_ignored(left, tmp_path, caplog, name):
    store, plan = left
    store.put(f"campaigns/made/attempts/s1/a1/{name}", b"anything")
    with caplog.at_level(logging.WARNING):
        assert finished(store, plan, tmp_path) == (1, 2)
    assert not caplog.messages


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_shard_with_a_damaged_commit_is_left_unchanged(left, tmp_path, caplog, data):
    store, plan = left
    key = keys.committed("made", "s1")
    store.put(key, data)
    instrument = Instrument(tmp_path)
    with caplog.at_level(logging.ERROR):
        assert run(store, plan, "a2", instrument)
        give_up(answers(store, plan, "a3"), Outcome.CRASHED, "nobody could")
    assert not instrument.batches and store.get(key) == data
    assert caplog.messages and all(names(one, "s1", key) for one in caplog.messages)


def test_row_in_another_spelling_is_refused(left):
    store, _ = left
    (row, *_) = [to_row(m) for m in read_part(store.get(PART), key=PART)]
    assert to_row(from_row(row)) == row
    for name, text in (("session", "01"), ("counters", "[]"), ("mean_us", "2"), ("rank", "+0")):
        with pytest.raises(BadInput, match=naming(repr(text))):
            from_row(row | {name: text})
