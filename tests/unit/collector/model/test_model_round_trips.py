"""Everything is read as written, byte for byte and value for value."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.codec.errors import BadInput
from collector.model import keys
from collector.model.manifest import (
    AttemptManifest,
    PartEntry,
    ShardCommit,
    StoredObject,
    Usage,
    entry_from_json,
    entry_to_json,
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
    Library,
    Measurement,
    Outcome,
    Proof,
    Provenance,
    Timing,
)
from collector.model.plan import (
    Forecast,
    Limits,
    MeasureSettings,
    Plan,
    PlannedShard,
    PlannedSource,
    ShardCase,
    ShardSettings,
    plan_from_json,
    plan_to_json,
    read_shard,
    write_shard,
)
from collector.model.record import CaseRecord, ProfileStatistics, read_table, write_table
from collector.model.row import ROW_COLUMNS, from_row, to_row
from collector.model.stack import Runtime, Stack, version_name
from collector.model.vocabulary import BASE_CELLS, INPUT_CELLS, OUTPUT_CELLS
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

texts = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=12)
numbers = st.floats(0, 1e9, allow_nan=False)
statistics = st.builds(
    ProfileStatistics,
    count=st.integers(1, 10**6),
    mean_us=numbers,
    median_us=numbers,
    std_us=numbers,
    counters=st.lists(st.tuples(texts, numbers), max_size=3).map(tuple),
)
spelled = {
    "kernel_type": st.sampled_from(["Add", "MatMulV3"]),
    "cells": st.fixed_dictionaries(dict.fromkeys(BASE_CELLS, texts)),
    "extra": st.dictionaries(texts.filter(bool), texts, max_size=2),
}
records = st.builds(
    CaseRecord,
    **spelled,
    profile=st.none() | statistics,
    before=st.lists(st.builds(CaseRecord, **spelled), max_size=3).map(tuple),
)


@pytest.mark.thorough
@given(st.lists(records, max_size=5))
@settings(max_examples=60)
def test_table_of_cases_round_trips(rows):
    assert read_table(write_table(rows)) == rows


@pytest.mark.thorough
@given(st.lists(records, max_size=5), numbers)
@settings(max_examples=60)
def test_shard_round_trips(rows, predicted_s):
    predicted_s = float(f"{predicted_s:.6g}")
    cases = [ShardCase(record, predicted_s) for record in rows]
    assert read_shard(write_shard(cases)) == cases


def test_damaged_table_is_refused_with_its_line():
    data = write_table([CaseRecord("Add", dict.fromkeys(BASE_CELLS, ""), {})])
    with pytest.raises(BadInput, match=naming("cases.csv:2:", 15, 2)):
        read_table(data.split(b"\n")[0] + b"\na,b\n", path="cases.csv")
    with pytest.raises(BadInput, match="UTF-8"):
        read_table(b"\xff\xfe\x00")


# In a separate process, where nothing has been read: caches of others, and the growth of
# the table of interned strings, would count otherwise.
HELD = """
import tracemalloc

from collector.model.record import CaseRecord, read_table, write_table
from collector.model.vocabulary import BASE_CELLS
from collector.ops.registry import find_operator

cells = dict.fromkeys(BASE_CELLS, "DT_BF16;DT_BF16")
shapes = [(f"{n},64;{n},64", f"{n},64") for n in range(1, 3001)]
rows = (
    CaseRecord("Add", cells | {"Input Shapes": ins, "Output Shapes": outs}, {})
    for ins, outs in shapes
)
data = write_table(rows)
find_operator("Add")  # reads the declarations of all operators, once
tracemalloc.start()
records = read_table(data)
assert len({record.case_id for record in records}) == 3000
print(len(data), *tracemalloc.get_traced_memory())
"""


@pytest.mark.thorough
def test_record_of_a_plan_takes_about_a_kilobyte_of_memory():
    """A controller plans hundreds of thousands of cases in half a gigabyte."""
    reported = subprocess.run(
        [sys.executable, "-c", HELD], capture_output=True, text=True, check=True
    )
    size, held, most = map(int, reported.stdout.split())
    assert held / 3000 < 1300
    assert most - held < 4 * size


provenances = st.builds(
    Provenance,
    campaign=st.just("c"),
    plan=st.integers(1, 9),
    plan_hash=texts,
    head_commit=st.integers(0, 9),
    shard=texts,
    attempt=texts,
    session=st.integers(0, 9),
    stack_id=texts,
    node=texts,
    device_serial=st.none() | texts.filter(bool),
    rank=st.integers(0, 7),
    runtime=st.sampled_from(Runtime),
    image_digest=st.none() | texts.filter(bool),
    collector_version=texts,
    raw_key=st.none() | texts.filter(bool),
)


def timing_of(least, p10, median, p90, low, mean, high, spread):
    """Numbers of any kind, in the order that a timing has them."""
    ordered, interval = sorted((least, p10, median, p90)), sorted((low, mean, high))
    ordered[0] = min(ordered[0], interval[1])
    low, mean, high = interval
    return Timing(mean, low, high, ordered[2], ordered[0], ordered[1], ordered[3], spread)


whole, shares = st.integers(0, 10**6), st.floats(0, 9e4).map(lambda share: round(share, 4))
durations = st.floats(1e-3, 1e9)
timings = st.builds(timing_of, *[durations] * 4, numbers, durations, durations, numbers)
measurements = st.builds(
    Measurement,
    case_id=texts,
    kernel_type=texts,
    outcome=st.sampled_from(Outcome),
    reason=texts,
    provenance=provenances,
    n_expected=st.integers(0, 99),
    timing=st.none() | timings,
    compute_dtype=st.none() | texts.filter(bool),
    companions=st.lists(st.builds(Companion, texts, st.integers(1, 9), numbers), max_size=2).map(
        tuple
    ),
    counters=st.lists(st.tuples(texts, numbers), max_size=2).map(tuple),
    warnings=st.lists(texts, max_size=2).map(tuple),
    opened=st.builds(DeviceState, st.none() | numbers, st.none() | numbers),
    disturbance=st.none()
    | st.builds(
        Disturbance,
        *(whole, whole, shares, shares, whole),
        *[st.none() | reported for reported in (*[shares] * 3, whole, *[shares] * 4)],
    ),
    canaries=st.lists(
        st.builds(
            CanaryReading,
            texts,
            texts,
            numbers,
            st.floats(1e-3, 1e9),
            st.floats(0, 10),
            st.integers(2, 99),
        ),
        max_size=3,
    ).map(tuple),
    identity=st.sampled_from(Proof),
    library=st.sampled_from(Library),
    assumes=texts,
    recorded=st.just(())
    | st.tuples(*[st.tuples(st.just(name), texts) for name in (*INPUT_CELLS, *OUTPUT_CELLS)]),
)


@pytest.mark.thorough
@given(measurements)
@settings(max_examples=100)
def test_measurement_round_trips_as_a_row(measurement):
    row = to_row(measurement)
    assert tuple(row) == ROW_COLUMNS
    assert from_row(row) == measurement


@given(measurements)
@settings(max_examples=20)
def test_row_with_a_wrong_measurement_id_is_refused(measurement):
    with pytest.raises(BadInput, match=naming(to_row(measurement)["measurement"])):
        from_row(to_row(measurement) | {"session": "77"})


def example_plan():
    return Plan(
        campaign="llama",
        number=2,
        head_commit=1,
        inputs_hash="abc",
        round="",
        stack=Stack("CPU_x_2t", "2.13.0+cpu", details=(("threads", "2"),)),
        backend="cpu",
        devices=1,
        operators=None,
        update="missing-only",
        measure=MeasureSettings(),
        shard_settings=ShardSettings(),
        limits=Limits(),
        sources=(PlannedSource("bundled:quickstart", "00", 109, False),),
        op_mapping=None,
        forecast=Forecast(109, 1, 0, 30.0, 31.0, 30.0),
        shards=(PlannedShard("s1", 100, 10.0, "00"),),
    )


def test_plan_round_trips_with_its_hash():
    plan = example_plan()
    data = plan_to_json(plan)
    assert plan_from_json(data) == plan
    assert plan_to_json(plan_from_json(data)) == data
    with pytest.raises(BadInput, match=naming("plans/2.json:", "plan")):
        plan_from_json(b"{}", key="plans/2.json")


def test_manifest_and_commit_round_trip():
    stored = StoredObject("k", 3, "00")
    entries = (
        PartEntry(stored, (stored,), Usage(4.0, 3.0, 2.0, 1.0)),
        PartEntry(stored, (), Usage(1.0, 1.0, 1.0, 0.5)),
    )
    manifest = AttemptManifest("c", 1, "h", "s", "a", "node", "0.1", entries, {"x": "m"})
    assert manifest_from_json(manifest_to_json(manifest)) == manifest
    assert manifest.usage == Usage(5.0, 4.0, 3.0, 1.5)
    for entry in manifest.parts:
        assert entry_from_json(entry_to_json(entry)) == entry
    with pytest.raises(BadInput, match=naming("entry-1.json:")):
        entry_from_json(b"{}", key="entry-1.json")
    commit = ShardCommit("s", "a", stored, "nonce")
    assert shard_commit_from_json(shard_commit_to_json(commit)) == commit
    with pytest.raises(BadInput, match=naming("committed/s.json:")):
        shard_commit_from_json(b"[]", key="committed/s.json")


@pytest.mark.parametrize(
    ("vllm", "torch", "cann", "name"),
    [
        ("0.18.0", "2.9.0+cpu", "cann8.5", "vllm0.18.0_torch2.9.0_cann8.5"),
        ("v0.13.0", "torch2.8.0", "8.3.RC1", "vllm0.13.0_torch2.8.0_cann8.3.RC1"),
        ("", "2.13.0+cu130", "", "vllm0_torch2.13.0_cann0"),
    ],
)
def test_version_names_are_composed_of_their_components(vllm, torch, cann, name):
    assert version_name(vllm, torch, cann) == name


def test_names_that_could_leave_their_folder_are_refused():
    for wrong in ("..", "a/b", "", "-a", "A" * 200):
        with pytest.raises(BadInput):
            keys.shard("llama", wrong)
        with pytest.raises(BadInput):
            keys.plan(wrong, 1)
    with pytest.raises(BadInput):
        version_name("../x", "2", "8")
    with pytest.raises(BadInput):
        Stack("../x", "2")


def test_no_key_is_the_parent_of_another():
    every = [
        keys.source("c", "00"),
        keys.plan("c", 1),
        keys.shard("c", "s"),
        keys.raw_summary("c", "s", "a", 1),
        keys.raw_journal("c", "s", "a", 1),
        keys.part("c", "s", "a", 1),
        keys.attempt_log("c", "s", "a"),
        keys.progress("c", "s", "a"),
        keys.attempt_manifest("c", "s", "a"),
        keys.committed("c", "s"),
        keys.commit(1),
        keys.measurements("d/vllm_ascend/v", "00"),
        keys.snapshot_manifest("1-ab"),
        keys.HEAD,
    ]
    assert not [(a, b) for a in every for b in every if b.startswith(a + "/")]
