"""The origin of a committed object: one with correct hashes that contradicts its plan, its shard or
its own key is refused with the contradicting key."""

import io
import json
from dataclasses import replace
from functools import cache

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.codec.canonical import readable_json, sha256_hex
from collector.codec.errors import BadInput
from collector.codec.table import table_bytes, table_rows
from collector.database.commits import find_head
from collector.database.merge import CREATE, merge_plans
from collector.database.rows import rows_of_part
from collector.database.snapshot import load_state, measurement_rows
from collector.database.verify import find_problems
from collector.database.view import content_hash_of_version, digest_of_rows, view_of
from collector.model import keys
from collector.model.manifest import (
    AttemptManifest,
    StoredObject,
    manifest_from_json,
    manifest_to_json,
    shard_commit_from_json,
    shard_commit_to_json,
)
from collector.model.measurement import (
    CanaryReading,
    Companion,
    DeviceState,
    Disturbance,
    Measurement,
)
from collector.model.plan import CANARY_PLACES, plan_from_json, plan_to_json
from collector.model.row import ABSENT, ROW_COLUMNS, from_row, to_row
from collector.model.stack import Runtime
from collector.model.vocabulary import INPUT_CELLS, OUTPUT_CELLS
from collector.store.in_memory import MemoryStore
from collector.worker.attempt import part_bytes, read_part
from tests.unit.collector.database.campaign_maker import (
    PATH,
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    answered,
    commit_shard,
    write_campaign,
)
from tests.unit.collector.naming import names, naming

pytestmark = pytest.mark.fast

RECORDS = [add_record(rows) for rows in range(1, 5)]
OTHERS = [add_record(rows) for rows in range(5, 8)]
SHARD = MadeShard("s1", RECORDS, [answered(RECORDS, 10.0)])
SHARDS = [SHARD, MadeShard("s2", OTHERS, [answered(OTHERS, 20.0)])]
PLAN = MadePlan(SHARDS)
PART = keys.part("made", "s1", "attempt-1", 0)
MANIFEST = keys.attempt_manifest("made", "s1", "attempt-1")
COMMITTED = keys.committed("made", "s1")


@pytest.fixture
def store():
    found = MemoryStore()
    write_campaign(found, PLAN)
    return found


def publish(store, *plans):
    result = merge_plans(store, plans or (("made", 1),), guard=CREATE, author="test")
    assert not result.damaged
    return result.commit


def seal_commit(store, **changes):
    commit = shard_commit_from_json(store.get(COMMITTED))
    store.put(COMMITTED, shard_commit_to_json(replace(commit, **changes)))


def seal_manifest(store, **changes):
    """Replace the manifest, and the hash in its commit."""
    data = manifest_to_json(replace(manifest_from_json(store.get(MANIFEST)), **changes))
    store.put(MANIFEST, data)
    seal_commit(store, manifest=StoredObject(MANIFEST, len(data), sha256_hex(data)))


def seal_part(store, data):
    """Replace the part, and all hashes that lead to it."""
    store.put(PART, data)
    manifest = manifest_from_json(store.get(MANIFEST))
    stored = StoredObject(PART, len(data), sha256_hex(data))
    final = {m.case_id: m.measurement_id for m in rows_of(data) if not m.is_filed}
    seal_manifest(store, parts=(replace(manifest.parts[0], part=stored),), final=final)


def rows_of(data):
    """Return the measurements of a part."""
    try:
        return read_part(data, key=PART)
    except BadInput:
        return ()


def forge(store, **changes):
    """Change every row of the part with new ids, and all hashes."""
    names = Measurement.__dataclass_fields__
    own = {name: value for name, value in changes.items() if name in names}
    reported = {name: value for name, value in changes.items() if name not in names}
    seal_part(
        store,
        part_bytes(
            replace(m, provenance=replace(m.provenance, **reported), **own)
            for m in read_part(store.get(PART), key=PART)
        ),
    )


def refused(store, key, *data):
    """Merge: the shard is not published, and the reason is a line that begins with the key."""
    result = merge_plans(store, [("made", 1)], guard=CREATE, author="test")
    [reason] = [damage.reason for damage in result.damaged if damage.shard == "s1"]
    assert reason.startswith(f"{key}: ") and names(reason, *data) and "\n" not in reason
    assert "s1" not in set(load_state(store, result.head).measurements["shard"].to_pylist())


@pytest.mark.parametrize(
    "changes",
    [
        {"campaign": "other"},
        {"shard": "s2"},
        {"attempt": "attempt-9"},
        {"session": 3},
        {"stack_id": "0" * 16},
        {"runtime": Runtime.FAKE},
        {"plan": 2},
        {"plan_hash": "0" * 16},
        {"head_commit": 99},
        {"raw_key": "campaigns/other/attempts/s1/a/raw/op_summary-0.csv.zst"},
        {"kernel_type": "Mul"},
        {"case_id": OTHERS[0].case_id},
        {"case_id": OTHERS[0].case_id, "asked": RECORDS[0].case_id},
        {"asked": OTHERS[0].case_id},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_rows_that_contradict_their_key_or_plan_are_refused(store, changes):
    forge(store, **changes)
    # Results of cases outside of the shard are detected before any row.
    refused(store, MANIFEST if changes.keys() == {"case_id"} else PART)


def test_kernel_that_ran_in_place_of_a_case_is_bound_to_it():
    store = MemoryStore()
    session = {RECORDS[0].case_id: Tried(5.0, ran="AddAiCore")}
    write_campaign(store, MadePlan([MadeShard("s1", RECORDS[:1], [session])]))
    for old, new in ((b"AddAiCore", b"AddOther"), (b",ok,", b",hung,")):
        seal_part(store, store.get(PART).replace(old, new))
    refused(store, PART, "AddOther", RECORDS[0].case_id)


@pytest.mark.parametrize(
    ("new", "data"),
    [(b"8,64;8,64", ("Add", RECORDS[0].case_id)), (b"8,x;8,64", ("shape", "integers"))],
)
def test_unrecorded_tensors_are_refused(new, data):
    store = MemoryStore()
    cells = {name: RECORDS[0].cells[name] for name in (*INPUT_CELLS, *OUTPUT_CELLS)}
    recorded = tuple({**cells, "Input Shapes": "7,64;7,64"}.items())
    session = {RECORDS[0].case_id: Tried(5.0, ran="Add", recorded=recorded)}
    write_campaign(store, MadePlan([MadeShard("s1", RECORDS[:1], [session])]))
    seal_part(store, store.get(PART).replace(b"7,64;7,64", new))
    refused(store, PART, *data)


def test_row_filed_under_another_kernel_is_not_a_result_of_the_case():
    store = MemoryStore()
    session = {RECORDS[0].case_id: Tried(5.0, ran="AddAiCore")}
    write_campaign(store, MadePlan([MadeShard("s1", RECORDS[:1], [session])]))
    filed = next(m for m in read_part(store.get(PART), key=PART) if m.is_filed)
    seal_manifest(store, final={RECORDS[0].case_id: filed.measurement_id})
    refused(store, MANIFEST, filed.measurement_id, RECORDS[0].case_id)


@pytest.mark.parametrize(
    "changes",
    [
        {"campaign": "other"},
        {"shard": "s2"},
        {"attempt": "attempt-9"},
        {"plan": 2},
        {"final": {OTHERS[0].case_id: "0" * 24}},
        {"parts": ()},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_manifest_that_contradicts_its_shard_is_refused(store, changes):
    seal_manifest(store, **changes)
    refused(store, MANIFEST)


def test_manifest_of_another_plan_with_the_same_number_is_refused(store):
    seal_manifest(store, plan_hash="0" * 16)
    refused(store, keys.plan("made", 1), MANIFEST, "0" * 16)


def elsewhere(store, key) -> AttemptManifest:
    """Return the shard's manifest, with its part at another key."""
    manifest = manifest_from_json(store.get(MANIFEST))
    data = store.get(PART)
    store.put(key, data)
    stored = StoredObject(key, len(data), sha256_hex(data))
    return replace(manifest, parts=(replace(manifest.parts[0], part=stored),))


@pytest.mark.parametrize(
    "key",
    [
        keys.part("made", "s2", "attempt-1", 7),
        keys.part("other", "s1", "attempt-1", 0),
        keys.session_cases("made", "s1", "attempt-1", 0),
        "db/measurements/part-0.csv",
        "campaigns/made/attempts/s1/attempt-1/part-00.csv",
    ],
)
def test_part_under_another_key_is_refused(store, key):
    seal_manifest(store, parts=elsewhere(store, key).parts)
    refused(store, MANIFEST, key, "s1")


def test_duplicate_part_and_records_of_another_session_are_refused(store):
    entry = manifest_from_json(store.get(MANIFEST)).parts[0]
    raw = StoredObject(keys.raw_summary("made", "s1", "attempt-1", 5), 1, "0" * 64)
    seal_manifest(store, parts=(replace(entry, raw=(raw,)),))
    refused(store, MANIFEST, raw.key, PART)
    seal_manifest(store, parts=(entry, entry))
    refused(store, MANIFEST)


@pytest.mark.thorough
def test_commit_of_another_campaign_or_shard_is_refused(store):
    write_campaign(store, replace(PLAN, campaign="other"))
    own = shard_commit_from_json(store.get(COMMITTED))
    for campaign, shard in (("other", "s1"), ("made", "s2")):
        commit = shard_commit_from_json(store.get(keys.committed(campaign, shard)))
        store.put(COMMITTED, shard_commit_to_json(replace(commit, shard="s1")))
        refused(store, COMMITTED, "manifest")
        store.put(COMMITTED, shard_commit_to_json(commit))
        refused(store, COMMITTED)
    for attempt in ("attempt-9", "../x", ""):
        store.put(COMMITTED, shard_commit_to_json(replace(own, attempt=attempt)))
        refused(store, COMMITTED)


def test_plan_edited_after_its_start_is_refused(store):
    key = keys.plan("made", 1)
    store.put(key, store.get(key).replace(b"avx2", b"avx9"))
    refused(store, key, MANIFEST)


def test_plan_of_an_earlier_opmeter_is_unchanged():
    """It has fewer fields; the hash in its results and in the database is that of its bytes."""
    store = MemoryStore()
    write_campaign(store, replace(PLAN, shards=[replace(s, is_committed=False) for s in SHARDS]))
    key = keys.plan("made", 1)
    earlier = json.loads(store.get(key))
    del earlier["upgrade_from"], earlier["forecast"]["unknown_us"]
    data = readable_json(earlier)
    store.put(key, data)
    plan = plan_from_json(data, key=key)
    assert plan.sha256 == sha256_hex(data) != replace(plan).sha256
    for shard in SHARDS:
        commit_shard(store, PLAN, plan, shard)
    assert publish(store).counts["measurements"] == 7
    assert find_problems(store) == []


def shared(store, **changes):
    """Write a second plan of the campaign that has shard s1 too, with some differences from the
    first."""
    first = plan_from_json(store.get(keys.plan("made", 1)))
    second = replace(first, number=2, inputs_hash="another", **changes)
    store.put(keys.plan("made", 2), plan_to_json(second))
    return second


def test_plans_that_share_a_shard_accept_each_others_rows(store):
    shared(store, head_commit=3)
    assert publish(store, ("made", 2)).counts["measurements"] == 7
    assert {m.provenance.plan for m in read_part(store.get(PART), key=PART)} == {1}


@pytest.mark.parametrize(
    "changes",
    [{"shards": ()}, {"head_commit": 5}, {"campaign": "made", "round": "x"}],
    ids=["another shard", "another head", "another hash"],
)
def test_rows_of_a_plan_without_their_shard_are_refused(store, changes):
    """A rank belongs to a plan: rows may have that of a later one only if it exists and has their
    shard."""
    second = shared(store, **changes)
    forge(store, plan=2, plan_hash=second.plan_hash, head_commit=7)
    refused(store, PART)
    forge(store, plan=2, plan_hash="f" * 16, head_commit=second.head_commit)
    refused(store, PART)


def test_shard_committed_by_two_plans_is_merged_once(store):
    other = MemoryStore()
    plan = write_campaign(other, replace(PLAN, number=2))
    commit = replace(PLAN, number=2, attempt="attempt-2")
    store.put(keys.plan("made", 2), plan_to_json(plan))
    store.delete(COMMITTED)
    commit_shard(store, commit, plan, SHARD)
    assert publish(store, ("made", 1), ("made", 2)).counts["measurements"] == 7


_ALWAYS = (
    '[["watched",3.0],["clean",3.0],["waited_share",0.0],'
    '["stolen_share",0.0],["switches",0.0],[%s]]'
)
ODD = {
    "counters": ["{}", '[["x"]]', '[["x","y"]]', "[[1,2.0]]", '[["x",1e999]]', '[["x",NaN]]', "["],
    "companions": ['[["Add",1]]', '[["Add",1.5,2.0]]', "[[1,1,2.0]]", "x", '[["Add",1,1e999]]'],
    "warnings": ["x", "[1]", "{}", '"a"', "[null]"],
    "disturbance": [
        *("x", "{}", '[["x",1.0]]', '[["watched",30.0]]', '[["watched","many"]]'),
        *(_ALWAYS % name for name in ('"others",1.5', '"x",0.5', '"power_w",1', '"power_w",null')),
        _ALWAYS % '"power_w",1.5],["others",1.0',
    ],
    "canaries": [
        *("x", "{}", "[]", '[["a","start",0.0,1.0,0.0]]', '[["a","start",0.0,-1.0,0.0,8]]'),
        *('[["a","start",0.0,1.0,0.0,1]]', '[["a","start",0.0,1.0,0.0,8.0]]'),
        *('[["a","start",0,1.0,0.0,8]]', '[["a","start",0.0,1e999,0.0,8]]'),
    ],
    "n_expected": ["-1", "1.5", "", "x", "+1", "01", "1e3", "9" * 20, "١"],
    "n_observed": ["-1", "x"],
    "n_accepted": ["-1", "x"],
    "rank": ["-1", "", "x"],
    "plan": ["01", "+1", "", "x"],
    "head_commit": ["00", "-0", "x"],
    "session": ["00", "", "x"],
    "opened_clock_mhz": ["x", "nan", "inf", "1e999"],
    "closed_temperature_c": ["x", "nan", "-inf"],
    "cache": ["", "lukewarm"],
    "outcome": ["", "well"],
    "runtime": ["", "none", "banana"],
}


@pytest.mark.parametrize(("name", "text"), [(n, t) for n, texts in ODD.items() for t in texts])
def test_malformed_cells_are_refused_by_merge_and_worker(store, name, text):
    ((_, cells), *_) = table_rows(store.get(PART), ROW_COLUMNS, path=PART)
    row = dict(zip(ROW_COLUMNS, cells, strict=True)) | {name: text}
    data = table_bytes(ROW_COLUMNS, [list(row.values())])
    with pytest.raises(BadInput, match=f"^{PART}"):
        rows_of_part(data, key=PART)
    with pytest.raises(BadInput):
        from_row(row)


def test_duplicate_measurement_is_refused(store):
    data = store.get(PART)
    seal_part(store, data + data.split(b"\n", 1)[1])
    refused(store, PART, "measurement")


def test_a_column_that_was_added_later_is_read_with_its_default(store):
    """The rule for adding a field to a measurement; merging such a part again adds nothing."""
    ((_, cells), *_) = table_rows(store.get(PART), ROW_COLUMNS, path=PART)
    row = dict(zip(ROW_COLUMNS, cells, strict=True))
    whole = table_bytes(ROW_COLUMNS, [list(row.values())])
    usual = [name for name, text in ABSENT.items() if row[name] == text]
    assert len(usual) > 10
    for name in usual:
        names = [other for other in ROW_COLUMNS if other != name]
        old = table_bytes(names, [[row[other] for other in names]])
        assert read_part(old, key=PART) == read_part(whole, key=PART) != ()
        assert rows_of_part(old, key=PART) == rows_of_part(whole, key=PART)
    for names in (ROW_COLUMNS[1:], (*ROW_COLUMNS[2:], *ROW_COLUMNS[:2]), (*ROW_COLUMNS, "more")):
        other = table_bytes(names, [[row.get(name, "") for name in names]])
        for read in (read_part, rows_of_part):
            with pytest.raises(BadInput, match=naming(PART)):
                read(other, key=PART)
    table = load_state(store, publish(store)).measurements
    empty = [name for name, text in ABSENT.items() if not text and name in usual]
    out = io.BytesIO()
    pq.write_table(table.drop_columns(empty), out)
    assert measurement_rows(out.getvalue(), PATH, key="a file").sort_by("measurement") == table
    state = load_state(store, find_head(store))
    bare = replace(state, measurements=table.drop_columns(empty))
    version = state.versions[PATH]

    def digest(rows):
        return content_hash_of_version(digest_of_rows(rows), version, {}, intervals)

    intervals = view_of(state).intervals
    assert digest(bare.measurements) == digest(state.measurements)


@cache
def a_measurement():
    """Return one of the plan's own."""
    store = MemoryStore()
    write_campaign(store, PLAN)
    return read_part(store.get(PART), key=PART)[0]


counts = st.integers(0, 10**15)
short_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
finite = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.thorough
@given(
    counters=st.lists(st.tuples(short_texts, finite | st.integers(-(10**15), 10**15)), max_size=4),
    companions=st.lists(st.builds(Companion, short_texts, st.integers(0, 99), finite), max_size=2),
    warnings=st.lists(short_texts, max_size=2),
    state=st.builds(DeviceState, st.none() | finite, st.none() | finite),
    disturbance=st.none()
    | st.builds(
        Disturbance,
        *(counts, counts, st.floats(0, 1e308), st.floats(0, 9), counts),
        *[st.none() | st.floats(0, 1e308)] * 3,
        st.none() | counts,
        *[st.none() | st.floats(0, 9)] * 4,
    ),
    canaries=st.lists(
        st.builds(
            CanaryReading,
            short_texts,
            st.sampled_from(CANARY_PLACES),
            st.floats(0, 1e6),
            st.floats(1e-3, 1e12),
            st.floats(0, 1e3),
            st.integers(2, 99),
        ),
        max_size=3,
    ),
)
@settings(max_examples=200)
def test_merge_accepts_any_part_that_a_worker_can_write(
    counters, companions, warnings, state, disturbance, canaries
):
    measured = replace(
        a_measurement(),
        counters=tuple(counters),
        companions=tuple(companions),
        warnings=tuple(warnings),
        opened=state,
        disturbance=disturbance,
        canaries=tuple(canaries),
    )
    data = part_bytes([measured])
    assert rows_of_part(data, key=PART).num_rows == 1
    assert read_part(data, key=PART) == (from_row(to_row(measured)),) == (measured,)
