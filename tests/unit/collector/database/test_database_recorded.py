"""The rendered bytes of one set of parts are fixed until a change is declared."""

from dataclasses import replace

import pytest

from collector.database import view
from collector.database.commits import Commit
from collector.database.manifest import read_manifest
from collector.database.merge import CREATE, merge_plans
from collector.database.snapshot import load_state
from collector.database.view import VIEW_VERSION
from collector.model.measurement import CanaryReading, Disturbance, Outcome
from collector.model.plan import CANARY_PLACES
from collector.model.stack import Stack
from collector.store.in_memory import MemoryStore
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    write_campaign,
)

pytestmark = pytest.mark.fast

# The version of the view, and the content hash of the plans below. If this fails, a change has
# published bytes changed: raise VIEW_VERSION if intended, and record the new hash. A change of
# the format of a plan changes only the hash of each plan, which is in every measurement.
RECORDED = (10, "869b19f1bed0c2d25bc90e48b7146d67716262723456719aa73c358c67ce7fb5")

NPU = Stack(device="ATLAS_800_A3_752T_128G_DIE", cann="8.5.2", torch="2.10.0", torch_npu="2.10.0")
KERNELS = ("Add", "Mul", "Nobody")


def _tried(at: int, session: int) -> Tried:
    """Return results of every kind, depending on the numbers alone."""
    if at % 11 == 3:
        return Tried(outcome=(Outcome.FAILED, Outcome.OOM, Outcome.HUNG)[at % 3])
    mean_us = (1.7 + at) * (1 + 0.01 * ((at * 7 + session * 5) % 9))
    tried = Tried(mean_us, counters=(("aiv_time(us)", mean_us / 2),) if at % 2 else ())
    if at % 5 == 1:
        tried = replace(tried, disturbance=Disturbance(30, at % 2 * 30, 0.03, 0.0, 4))
    if at % 7 == 2:
        tried = replace(tried, profiler_floor_us=0.4)
    if at % 13 == 5:
        tried = replace(tried, outlier_share=0.125)
    canaries = tuple(
        CanaryReading("Add 4096,4096", place, when, 90.0 + session, 0.01, 8)
        for when, place in enumerate(CANARY_PLACES)
    )
    return replace(tried, canaries=canaries)


def _plan(number: int, stack: Stack, node: str, cases: range) -> MadePlan:
    records = [add_record(1 + at, kernel=KERNELS[at % 3]) for at in cases]
    session = {
        record.case_id: _tried(at, number) for at, record in zip(cases, records, strict=True)
    }
    shard = MadeShard(f"shard-{number}", records, [session])
    return MadePlan([shard], number=number, head_commit=number - 1, stack=stack, node=node)


def _publish(store: MemoryStore) -> Commit:
    """Merge the plans of the recorded database."""
    cpu = Stack(device="CPU_test_2t", torch="2.13.0+cpu", details=(("flags", "avx2"),))
    plans = [
        _plan(1, cpu, "n1", range(60)),
        _plan(2, cpu, "n2", range(20, 50)),
        _plan(3, NPU, "n1", range(40)),
        _plan(4, NPU, "n1", range(10, 30)),
        _plan(5, NPU, "n2", range(15, 60)),
    ]
    for plan in plans:
        write_campaign(store, plan)
        commit = merge_plans(store, [plan.name], guard=CREATE, author="test").commit
    assert commit is not None
    return commit


@pytest.mark.thorough
def test_view_of_a_recorded_database_has_a_fixed_hash() -> None:
    store = MemoryStore()
    commit = _publish(store)
    shown = (VIEW_VERSION, read_manifest(store, commit).content_hash)
    assert shown == RECORDED, "if it was intended, raise VIEW_VERSION of view.py, and record this"


def test_view_in_batches_of_any_size_has_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    state = load_state(store, _publish(store))
    expected = view.view_of(state)
    for rows in (1, 7):  # later batches have columns that earlier ones lack
        monkeypatch.setattr(view, "_BATCH", rows)
        assert view.view_of(state) == expected
