"""Records of reused cases: the latest decision is last, and a changed record is reported."""

from dataclasses import asdict, replace

import pytest

from collector.codec.canonical import readable_json
from collector.codec.errors import BadInput, DamagedObject
from collector.database.merge import CREATE, merge_plans
from collector.database.reuse import (
    Reuse,
    ReusedKernel,
    read_reuse,
    read_reuses,
    reuse_from_json,
    store_reuse,
)
from collector.database.verify import find_problems, find_strays
from collector.model import keys
from collector.quality.upgrades import RatioEstimate
from collector.store.in_memory import MemoryStore
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    answered,
    write_campaign,
)

pytestmark = pytest.mark.fast

NEW, OLD = (f"A3/vllm_ascend/vllm0_torch2.9.0_cann{cann}" for cann in ("9.0.0", "8.5.0"))
KERNEL = ReusedKernel(
    "Add", "FLOAT", "ND", "dynamic", RatioEstimate(1.01, 0.01, 3.0, 0.0, 6), ("0" * 20,)
)
REUSE = Reuse("made", 3, 7, NEW, "new", OLD, "old", 0.05, (KERNEL,))


def test_records_are_read_in_the_order_of_their_decisions():
    store = MemoryStore()
    later, earlier = replace(REUSE, head_commit=10), replace(REUSE, head_commit=9, plan=4)
    for one in (later, REUSE, earlier, REUSE):
        store_reuse(store, one)
    assert read_reuses(store, NEW) == [REUSE, earlier, later]
    assert read_reuses(store, OLD) == [] and find_strays(store) == []
    store.put(f"{keys.all_reused(NEW)}notes.json", b"{}")
    assert len(read_reuses(store, NEW)) == 3


def test_a_changed_record_is_reported_by_its_key():
    store = MemoryStore()
    store_reuse(store, REUSE)
    (info,) = store.list(keys.REUSED)
    for data in (b"", b"{", store.get(info.key).replace(b"1.01", b"1.02")):
        store.put(info.key, data)
        with pytest.raises(DamagedObject, match=info.key):
            read_reuses(store, NEW)


def test_verify_reports_records_that_its_versions_do_not_support():
    store = MemoryStore()
    records = [add_record(rows) for rows in (1, 2)]
    shard = MadeShard("one", records, [answered(records[:1], 5.0) | {records[1].case_id: Tried()}])
    plan = MadePlan([shard])
    write_campaign(store, plan)
    head = merge_plans(store, [plan.name], guard=CREATE, author="test").commit
    assert head is not None
    stack = plan.whole_stack
    measured, failed = (replace(KERNEL, cases=(record.case_id,)) for record in records)
    right = replace(
        REUSE,
        head_commit=head.number,
        of=stack.version_path,
        of_stack_id=stack.stack_id,
        kernels=(measured,),
    )
    store_reuse(store, right)
    assert find_problems(store) == []
    wrong = [
        replace(right, head_commit=head.number + 1),
        replace(right, of=OLD),
        replace(right, of_stack_id="another"),
        replace(right, kernels=(measured, failed)),
    ]
    for one in wrong:
        store_reuse(store, one)
    (*_, other) = (info.key for info in store.list(keys.REUSED))
    moved = other.replace("cann9.0.0", "cann9.1.0")
    store.put(moved, store.get(other))
    changed = keys.reused(NEW, "0" * 64)
    store.put(changed, b"{}")
    known = {info.key for info in store.list(keys.REUSED)}
    (first,) = (key for key in known if read_reuses_of(store, key) == right)
    assert {problem.key for problem in find_problems(store)} == known - {first}


def read_reuses_of(store, key):
    """Return the record, or None if it is under a wrong key or was changed."""
    try:
        found = read_reuse(store, key)
    except BadInput:
        return None
    return found if keys.all_reused(found.version_path) in key else None


def test_impossible_records_are_refused():
    ratio = KERNEL.ratio
    wrong = [replace(ratio, ratio=-1.0), replace(ratio, error=5.0), replace(ratio, degrees=0.0)]
    records = [replace(REUSE, kernels=(replace(KERNEL, ratio=one),)) for one in wrong]
    for one in (*records, replace(REUSE, margin=2.0), replace(REUSE, of="../x")):
        with pytest.raises(BadInput, match="a/key"):
            reuse_from_json(readable_json(asdict(one)), key="a/key")
    assert reuse_from_json(readable_json(asdict(REUSE)), key="a/key") == REUSE
