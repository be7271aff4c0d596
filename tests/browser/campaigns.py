"""Made campaigns in a store, for the tests of their page and for screenshots."""

import random
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import zstandard

from collector.model import keys
from collector.model.manifest import Usage
from collector.model.measurement import CanaryReading, Measurement, Outcome
from collector.model.plan import Forecast, Plan, PlannedShard, plan_to_json
from collector.store.base import Store, create_once
from collector.store.opening import open_store
from jobs.objects.waves import NodeFailure, NodeFailures, node_failures_to_json
from tests.bench.varied_database import HOSTILE
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    commit_sessions,
    measurement_of,
    plan_of,
    table_of,
)

BEGAN = datetime(2026, 11, 20, 8, 0, tzinfo=UTC).timestamp()
DEVICES_A_NODE = 16
_KERNELS = ("MatMulV2", "FusedInferAttentionScore", "RmsNorm", "SwiGlu", "AddRmsNorm")
_SHARD_S = 700.0


def write_made_campaign(
    folder: Path, devices: int, shards_each: int = 4, cases: int = 12, *, is_open: bool = False
) -> Path:
    """Write a campaign of this many devices, and return the folder of its store. One node is slow
    and fails shards; sessions are lost; some cases fail; with `is_open` the last shards still
    run."""
    root = folder / f"campaign-{devices}{'-open' if is_open else ''}"
    if root.exists():
        return root
    store, chance = open_store(str(root)), random.Random(7)
    count = devices * shards_each
    records = [add_record(rows + 1, kernel=_KERNELS[rows % 5]) for rows in range(count * cases)]
    shards = [
        MadeShard(f"shard-{at:05d}", records[at * cases : (at + 1) * cases], is_committed=False)
        for at in range(count)
    ]
    made = MadePlan(shards)
    plan = replace(
        plan_of(made),
        devices=devices,
        forecast=Forecast(count * cases, 0, 0, count * _SHARD_S, shards_each * _SHARD_S, 2000.0),
        shards=tuple(
            replace(shard, predicted_s=_SHARD_S * (0.8 + 0.4 * chance.random()))
            for shard in plan_of(made).shards
        ),
    )
    for shard in shards:
        create_once(store, keys.shard(plan.campaign, shard.name), table_of(shard))
    create_once(store, keys.plan(plan.campaign, plan.number), plan_to_json(plan))
    free_s = [BEGAN + 30 * chance.random() for _ in range(devices)]
    for at, (shard, planned) in enumerate(zip(shards, plan.shards, strict=True)):
        device = min(range(devices), key=free_s.__getitem__)
        if is_open and at >= count - devices // 2:
            break
        free_s[device] = _write_shard(
            *(store, made, plan, shard, planned, device, free_s[device], chance)
        )
    bad = "node-001" if devices > DEVICES_A_NODE else "node-000"
    failures = NodeFailures(frozenset(NodeFailure(bad, shards[at].name) for at in range(3)))
    store.put(keys.nodes(plan.campaign), node_failures_to_json(failures))
    return root


def _write_shard(
    store: Store,
    made: MadePlan,
    plan: Plan,
    shard: MadeShard,
    planned: PlannedShard,
    device: int,
    begin_s: float,
    chance: random.Random,
) -> float:
    """Write the attempt of a device at a shard; return when the device is free again."""
    node, serial = f"node-{device // DEVICES_A_NODE:03d}", f"SN{device:04d}"
    slow = 1.3 if device // DEVICES_A_NODE == 1 else 1.0
    lost = chance.random() < 0.03
    startup_s, export_s = 18 + 8 * chance.random(), 30 + 20 * chance.random()
    lost_s = 200 * chance.random() if lost else 0.0
    first_s = now_s = begin_s + lost_s + startup_s
    wall_s = planned.predicted_s * slow * (0.8 + 0.3 * chance.random())
    measurements = []
    for record in shard.records:
        took_s = (
            (wall_s - startup_s - export_s) / len(shard.records) * (0.6 + 0.8 * chance.random())
        )
        one = _measured(
            *(made, plan, shard, int(lost), record.case_id, record.kernel_type, device, chance)
        )
        measurements.append(
            replace(
                one,
                provenance=replace(one.provenance, node=node, device_serial=serial),
                started_at=_text(now_s),
                ended_at=_text(now_s + took_s),
                canaries=tuple(
                    CanaryReading("MatMulV2", place, 0.0, slow * chance.gauss(100, 0.4), 0.004, 8)
                    for place in ("start", "middle", "end")
                ),
            )
        )
        now_s += took_s
    usage = Usage(
        busy_us=0.62e6 * (now_s - first_s),
        useful_us=0.4e6 * (now_s - first_s),
        wall_s=lost_s + startup_s + export_s + now_s - first_s,
        startup_s=startup_s * (2 if lost else 1),
        export_s=export_s,
        sessions=2 if lost else 1,
        cases=len(measurements),
    )
    own = replace(made, node=node)
    log = f"{node}: measuring {shard.name}\n" + "".join(
        f"{m.outcome} {m.reason}\n" for m in measurements
    )
    create_once(
        store,
        keys.attempt_log(made.campaign, shard.name, made.attempt),
        zstandard.compress(log.encode()),
    )
    for number in range(1 + lost):
        where = (made.campaign, shard.name, made.attempt, number)
        store.put(keys.session_cases(*where), b'["cases"]')
    commit_sessions(store, own, plan, shard, [measurements], usage, int(lost))
    return now_s + export_s + 4 + 20 * chance.random()


def _measured(
    made: MadePlan,
    plan: Plan,
    shard: MadeShard,
    session: int,
    case: str,
    kernel: str,
    device: int,
    chance: random.Random,
) -> Measurement:
    failed = chance.random() < (0.3 if device % 41 == 7 else 0.01)
    tried = Tried(mean_us=40 * chance.random() + 1)
    if failed:
        reason = (
            HOSTILE if device % 2 else "aclnnMatmul: 161002, expected an even number of columns"
        )
        tried = Tried(outcome=Outcome.FAILED, reason=reason)
    return measurement_of(made, plan, shard.name, session, case, kernel, tried)


def _text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
