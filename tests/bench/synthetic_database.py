"""A database of many measurements for benchmarks: made as rows, since measuring them takes days."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from collector.codec.canonical import canonical_json
from collector.database.commits import Commit, commit_to_json
from collector.database.intervals import INTERVAL_SCHEMA, VersionIntervals
from collector.database.lent import LentPairs
from collector.database.plans import MergedPlan
from collector.database.snapshot import Base
from collector.database.snapshot_writing import (
    added_files,
    measurement_digests,
    write_snapshot,
)
from collector.database.state import CASE_SCHEMA, MEASUREMENT_SCHEMA, TEXT, State
from collector.database.versions import Ranked, VersionProperties
from collector.database.view import VIEW_VERSION, View, view_of
from collector.model import keys
from collector.model.stack import Runtime, Stack
from collector.quality.evidence import Pairs
from collector.store.base import Store

A_SHARD = 100
_WORDS = {
    "outcome": "ok",
    "cache": "warm",
    "n_expected": "40",
    "n_observed": "40",
    "n_accepted": "38",
    "kernel_type": "Add",
    "attempt": "0a1b2c3d-12-0a1b2c3d-1",
    "node": "worker-17",
    "runtime": "fake",
    "collector_version": "1.0.0",
    "image_digest": "sha256:" + "0" * 64,
    "started_at": "2026-11-21T16:00:00.000000+00:00",
    "ended_at": "2026-11-21T16:00:01.000000+00:00",
    "opened_clock_mhz": "1800.0",
    "closed_clock_mhz": "1800.0",
    "plan": "1",
    "head_commit": "0",
    "session": "0",
    "rank": "0",
}
_TIMES = ("mean_us", "ci_low_us", "ci_high_us", "median_us", "min_us", "p10_us", "p90_us", "spread")


def write_database(store: Store, campaign: str, stack: Stack, measurements: int) -> Commit:
    """Write one commit of this many final measurements of one campaign, in shards of 100."""
    return write_versions(store, campaign, [stack], measurements)


def write_versions(
    store: Store, campaign: str, stacks: Sequence[Stack], measurements: int
) -> Commit:
    """A commit for each stack, with this many final measurements each."""
    numbered = enumerate(stacks, 1)
    return write_states(store, [_state(campaign, one, measurements, n) for n, one in numbered])


def write_states(store: Store, states: Sequence[State], *, with_view: bool = False) -> Commit:
    """Write a commit for each state, which has one version directory; with its tree and index,
    which takes longer, if requested."""
    commit = manifest = None
    for number, state in enumerate(states, 1):
        (path,) = state.versions
        name, manifest_sha256, manifest = write_snapshot(
            *(Base(store, commit, manifest), number, state),
            view_of(state) if with_view else View({}, INTERVAL_SCHEMA.empty_table()),
            intervals={path: VersionIntervals({}, {}, {}, None, LentPairs.of(NONE, NONE), "made")},
            folders=(),
            runtime=Runtime.FAKE,
            added=added_files(state.measurements),
            digests=measurement_digests(state),
        )
        commit = Commit(
            number=number,
            parent=number - 1,
            parent_sha256=commit.sha256 if commit else "",
            snapshot=name,
            manifest_sha256=manifest_sha256,
            content_hash=manifest.content_hash,
            plans=tuple(state.plans),
            nonce="made",
            guard="create",
            author="bench",
            time="",
            runtime=Runtime.FAKE,
            counts={},
            view_version=VIEW_VERSION,
            written_by="made",
        )
        store.create(keys.commit(number), commit_to_json(commit))
    assert commit is not None
    return commit


_OTHER = np.empty(0, np.float64)
_NUMBERS, _MEMBERS = np.empty(0, np.int64), np.empty((0, 2), np.int64)
NONE = Pairs(_OTHER, _OTHER, _OTHER, [], _NUMBERS, _OTHER, _MEMBERS, _MEMBERS, _NUMBERS)


def _state(campaign: str, stack: Stack, measurements: int, seed: int) -> State:
    random = np.random.default_rng(seed)
    plan = MergedPlan(campaign, 1, "f" * 20)
    path = stack.version_path
    cases = _hex(random, measurements)
    shards = np.repeat(_hex(random, -(-measurements // A_SHARD)), A_SHARD)[:measurements]
    words = _WORDS | {
        "campaign": campaign,
        "stack_id": stack.stack_id,
        "plan_hash": plan.plan_hash,
        "version_path": path,
    }
    columns: dict[str, pa.Array] = {}
    for name in MEASUREMENT_SCHEMA.names:
        columns[name] = pa.repeat(pa.scalar(words.get(name, ""), TEXT), measurements)
    columns["final"] = pa.repeat(pa.scalar(True), measurements)
    columns["measurement"] = pa.array(_hex(random, measurements), TEXT)
    columns["case"], columns["shard"] = pa.array(cases, TEXT), pa.array(shards, TEXT)
    columns["raw_key"] = pa.array([f"campaigns/{campaign}/attempts/{s}/raw" for s in shards], TEXT)
    columns["counters"] = pa.array(
        [
            f'[["aic_time(us)",{t:.6f}],["aiv_time(us)",{t / 2:.6f}]]'
            for t in random.random(measurements)
        ],
        TEXT,
    )
    for name in _TIMES:
        if name in columns:
            columns[name] = pa.array(
                [repr(float(t)) for t in 100 * random.random(measurements)], TEXT
            )
    rank = (0, 1, plan.plan_hash)
    spelled = {
        "version_path": columns["version_path"],
        "case": columns["case"],
        "head_commit": pa.repeat(0, measurements),
        "plan": pa.repeat(1, measurements),
        "plan_hash": columns["plan_hash"],
        "kernel_type": columns["kernel_type"],
        "Input Shapes": pa.array([f'"{n},64;{n},64"' for n in range(measurements)], TEXT),
    }
    empty = pa.repeat(pa.scalar("", TEXT), measurements)
    version = VersionProperties(Ranked(rank, canonical_json(stack.as_json()).decode()), None)
    return State.of_rows(
        measurements=[pa.table(columns, schema=MEASUREMENT_SCHEMA)],
        cases=[pa.table({n: spelled.get(n, empty) for n in CASE_SCHEMA.names}, schema=CASE_SCHEMA)],
        versions={path: version},
        plans=[plan],
    )


def _hex(random: np.random.Generator, count: int) -> list[str]:
    """Return ids of the real form: 20 digits that cannot be compressed."""
    data = random.bytes(10 * count).hex()
    return [data[20 * n : 20 * n + 20] for n in range(count)]
