"""The time and memory of a controller's first reconciliations of a campaign of many shards.

    PYTHONPATH=. python tests/bench/bench_controller.py [SHARDS]

Without SHARDS there are 1,000 and 10,000 (100,000 take minutes).

A store on disk holds a plan, its waves and most commits; a new process runs its first
reconciliation (sources, plan, commits, decision, and the next wave), then further ones; each case
is a shard there. Then a process plans a campaign of a hundred cases per shard, and one reads which
shards a database of half a million measurements holds. Exits with 1 if the first reconciliation
takes 60 s or more, or a process holds 512 MB or more with 10,000 shards, in planning PLANNED cases,
or with the database.
"""

import json
import multiprocessing
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from collector.codec.canonical import sha256_hex
from collector.database.commits import find_head
from collector.database.head_content import HeldShards
from collector.model import keys
from collector.model.plan import Plan, plan_to_json
from collector.model.record import CaseRecord, write_table
from collector.model.stack import Stack
from collector.store.file import FileStore
from jobs.campaign.campaign_file import RunOptions
from jobs.campaign.target import resolve_stack_of
from jobs.controller.controller import Controller
from jobs.decide.decision import decide
from jobs.decide.observed import Desired, Observed
from jobs.objects.applied_campaign import Applied, applied_from, config_map
from jobs.objects.deployment import Deployment, Manifest
from jobs.objects.waves import Wave, wave_to_json
from jobs.planning.lifecycle import NewPlan, make_next, read_state
from jobs.planning.stored_plans import read_plans
from tests.bench.synthetic_database import write_database
from tests.unit.jobs.fake_cluster import FakeCluster

SHARDS = (1_000, 10_000)
LIMIT_S = 60.0
LIMIT_MB = 512.0
LIMIT_MB_UP_TO = 10_000
PLANNED, A_SHARD = 100_000, 100
MEASUREMENTS = 500_000
COMMITTED = 0.95
A_CASE_S = 0.5  # about the forecast of one case
STACK = Stack(device="CPU_bench_2t", torch="2.13.0")
LOOKS, DECISIONS = 3, 9
A_WAVE = 1000
DEVICES = 256
MOST_GROWTH = 30.0  # of a decision with ten times as many shards


def main(arguments: list[str]) -> int:
    """Print one line per figure; return 1 if one misses its limit."""
    failures = 0
    decisions = []
    for shards in [int(text) for text in arguments] or SHARDS:
        with tempfile.TemporaryDirectory(prefix="opmeter-bench-") as name:
            folder = Path(name)
            plan = write_campaign(folder, shards)
            found = in_a_new_process(folder)
        first_s, warm_s = found["reconcile_s"][0], min(found["reconcile_s"][1:])
        decisions.append(decision_s(plan))
        is_large = shards > LIMIT_MB_UP_TO
        failures += first_s >= LIMIT_S
        failures += not is_large and found["peak_mb"] >= LIMIT_MB
        say(
            f"{len(plan.shards):,} shards: first reconciliation {first_s:.1f} s of processor time "
            f"(limit {LIMIT_S:.0f} s), further ones {warm_s:.2f} s, "
            f"a decision {decisions[-1]:.3f} s, at most {found['peak_mb']:.0f} MB"
            + ("" if is_large else f" (limit {LIMIT_MB:.0f} MB)")
        )
    if len(decisions) == len(SHARDS):
        growth = decisions[-1] / decisions[0]
        say(f"ten times the shards: {growth:.1f} times the decision (limit {MOST_GROWTH:.0f})")
        failures += growth >= MOST_GROWTH
    failures += planning() + following()
    return 1 if failures else 0


def planning() -> int:
    """Print the figures of a first reconciliation that plans; return 1 if it misses its limit."""
    with tempfile.TemporaryDirectory(prefix="opmeter-bench-") as name:
        manifest, table = applied_map(PLANNED, target_s=A_CASE_S * A_SHARD)
        write(Path(name), {keys.source("bench", sha256_hex(table)): table})
        (Path(name) / "map.json").write_text(json.dumps(manifest))
        del table
        found = in_a_new_process(Path(name))
        (plan,) = read_plans(FileStore(name), "bench")
    free_mb, used_mb = LIMIT_MB - found["idle_mb"], found["peak_mb"] - found["idle_mb"]
    reach = PLANNED * free_mb / used_mb
    say(
        f"planning {PLANNED:,} cases in {len(plan.shards):,} shards: "
        f"{found['reconcile_s'][0]:.0f} s of processor time, "
        f"at most {found['peak_mb']:.0f} MB (limit {LIMIT_MB:.0f} MB): "
        f"{used_mb * 1000 / PLANNED:.1f} kB a case, so that about {reach:,.0f} cases fit"
    )
    return found["peak_mb"] >= LIMIT_MB


def following() -> int:
    """Print the cost of reading a large database; return 1 if it misses its limit."""
    with tempfile.TemporaryDirectory(prefix="opmeter-bench-") as name:
        run_in_a_new_process(make_database, Path(name))
        found = run_in_a_new_process(held_shards, Path(name))
    say(
        f"{MEASUREMENTS:,} measurements in the database: which shards it holds is known in "
        f"{found['seconds']:.1f} s, at most {found['peak_mb']:.0f} MB (limit {LIMIT_MB:.0f} MB)"
    )
    return found["peak_mb"] >= LIMIT_MB


def make_database(folder: Path, answer: Connection) -> None:
    write_database(FileStore(folder), "bench", STACK, MEASUREMENTS)
    answer.send({})


def held_shards(folder: Path, answer: Connection) -> None:
    """Read what a reconciliation needs of the database's head."""
    started = time.process_time()
    store = FileStore(folder)
    held = HeldShards(store, "bench").at(find_head(store))
    assert len(held) == MEASUREMENTS // A_SHARD
    answer.send({"seconds": time.process_time() - started, "peak_mb": peak_mb()})


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def applied_map(shards: int, target_s: float = 0.001) -> tuple[Manifest, bytes]:
    """Return the campaign of this many cases, each so long that it is a shard, or as many per shard
    as the target gives."""
    cells = {
        "OP State": "dynamic",
        "Accelerator Core": "AI_VECTOR_CORE",
        "Input Data Types": "DT_BF16;DT_BF16",
        "Input Formats": "ND;ND",
        "Output Data Types": "DT_BF16",
        "Output Formats": "ND",
    }
    records = []
    for rows in range(1, shards + 1):
        shapes = {"Input Shapes": f'"{rows},64;{rows},64"', "Output Shapes": f'"{rows},64"'}
        records.append(CaseRecord("Add", cells | shapes, {}, None))
    table = write_table(records)
    text = (
        f"campaign: bench\nsources: [{{cases: {sha256_hex(table)}}}]\nbackend: cpu\n"
        f"target: {{device: CPU_bench_2t, torch: 2.13.0}}\ndevices: {DEVICES}\n"
        f"shards: {{target_s: {target_s}, session_s: {max(1.0, target_s)}}}\n"
    )
    deployment = Deployment("bench", "here/collector:1", "here/controller:1", "file:///store")
    manifest = config_map("bench", text, {"site": "cpu"}, deployment)
    return manifest, table


def write_campaign(folder: Path, shards: int) -> Plan:
    """Write a campaign that is nearly finished. Files are written directly: only reading is
    timed."""
    manifest, table = applied_map(shards)
    applied = applied_of(manifest)
    campaign = applied.campaign
    write(folder, {keys.source("bench", sha256_hex(table)): table})
    stack = resolve_stack_of(campaign, lambda: STACK)
    state = read_state(campaign, FileStore(folder), stack)
    planned = make_next(state, NewPlan(1, ()), RunOptions())
    plan, plan_hash = planned.plan, planned.plan.plan_hash
    write(
        folder, {keys.shard("bench", shard): data for shard, data in (planned.tables or {}).items()}
    )
    write(folder, {keys.plan("bench", 1): plan_to_json(plan)})
    names = [shard.shard_id for shard in plan.shards]
    done = names[: int(COMMITTED * len(names))]
    for serial, at in enumerate(range(0, len(done), A_WAVE)):
        indexes = tuple((shard,) for shard in done[at : at + A_WAVE])
        wave = Wave("bench", 1, plan_hash, serial, indexes)
        write(folder, {keys.wave("bench", wave.wave_hash): wave_to_json(wave)})
    write(folder, {keys.committed("bench", shard): b"{}" for shard in done})
    (folder / "map.json").write_text(json.dumps(manifest))
    return plan


def write(folder: Path, objects: Mapping[str, bytes]) -> None:
    for parent in {(folder / key).parent for key in objects}:
        parent.mkdir(parents=True, exist_ok=True)
    for key, data in objects.items():
        (folder / key).write_bytes(data)


def applied_of(manifest: Manifest) -> Applied:
    return applied_from(manifest)


def in_a_new_process(folder: Path) -> dict[str, Any]:
    """Run the reconciliations of a process that has not built the campaign."""
    return run_in_a_new_process(reconciliations, folder)


def run_in_a_new_process(work: Callable[[Path, Connection], None], folder: Path) -> dict[str, Any]:
    """Run it in a new process, with its own memory, and return its result."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(folder, theirs))
    process.start()
    theirs.close()
    found: dict[str, Any] = ours.recv()
    process.join()
    return found


def peak_mb() -> float:
    """Return the peak memory of this program; getrusage would include its parent's."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def reconciliations(folder: Path, answer: Connection) -> None:
    idle_mb = peak_mb()
    store = FileStore(folder)
    cluster = FakeCluster(store, tuple(f"n{n}" for n in range(DEVICES)))
    manifest = json.loads((folder / "map.json").read_text())
    cluster.apply(manifest)
    cluster.has_answered(manifest["metadata"]["name"], STACK)
    controller = Controller(cluster, lambda applied: store)
    seconds = []
    for _ in range(LOOKS):
        started = time.process_time()
        controller.reconcile()
        seconds.append(time.process_time() - started)
    assert len(cluster.worker_jobs()) >= 1, "the first reconciliation launched nothing"
    answer.send({"reconcile_s": seconds, "peak_mb": peak_mb(), "idle_mb": idle_mb})


def decision_s(plan: Plan) -> float:
    """Decide on the middle of the campaign, with every wave in the store."""
    names = [shard.shard_id for shard in plan.shards]
    plan_hash = plan.plan_hash
    waves = tuple(
        Wave("bench", 1, plan_hash, at, tuple((s,) for s in names[at : at + A_WAVE]))
        for at in range(0, len(names) // 2, A_WAVE)
    )
    observed = Observed(frozenset(names[: len(names) // 2]), waves)
    desired = Desired(plan, DEVICES, per_index=1)
    decide(desired, observed)  # what waves compute once
    seconds = []
    for _ in range(DECISIONS):
        started = time.process_time()
        assert decide(desired, observed)
        seconds.append(time.process_time() - started)
    return min(seconds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
