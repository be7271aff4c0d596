"""Records of reused cases: the latest decision is last, and a changed record is reported."""

from dataclasses import asdict, replace

import pytest

from collector.codec.canonical import readable_json
from collector.codec.errors import BadInput, DamagedObject
from collector.database.reuse import Reuse, ReusedKernel, read_reuses, reuse_from_json, store_reuse
from collector.database.verify import find_strays
from collector.model import keys
from collector.quality.upgrades import RatioEstimate
from collector.store.in_memory import MemoryStore

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


def test_impossible_records_are_refused():
    ratio = KERNEL.ratio
    wrong = [replace(ratio, ratio=-1.0), replace(ratio, error=5.0), replace(ratio, degrees=0.0)]
    records = [replace(REUSE, kernels=(replace(KERNEL, ratio=one),)) for one in wrong]
    for one in (*records, replace(REUSE, margin=2.0), replace(REUSE, of="../x")):
        with pytest.raises(BadInput, match="a/key"):
            reuse_from_json(readable_json(asdict(one)), key="a/key")
    assert reuse_from_json(readable_json(asdict(REUSE)), key="a/key") == REUSE
