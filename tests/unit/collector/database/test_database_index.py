"""The index of a version directory: it has every displayed duration, and nothing else."""

import json

import pyarrow.compute as pc
import pytest

from collector.codec.canonical import sha256_hex
from collector.codec.errors import DamagedObject
from collector.database.index import Index, hash_of, hashes_of
from collector.database.index_build import index_bytes
from collector.database.merge import CREATE, merge_plans
from collector.database.verify import find_problems
from collector.database.view import view_of
from collector.model import keys
from collector.model.vocabulary import LENGTH_COLUMNS
from collector.store.in_memory import MemoryStore
from tests.unit.collector.database.campaign_maker import (
    PATH,
    MadePlan,
    MadeShard,
    add_record,
    answered,
    record_of_shapes,
    write_campaign,
)
from tests.unit.collector.database.forging import forge_version, head_of
from tests.unit.collector.database.test_database_intervals import state_of

pytestmark = pytest.mark.fast

KEYS = "Runtime actual_seq_lengths_kv_values"


def plan(records, name: str = "shard-1") -> MadePlan:
    return MadePlan([MadeShard(name, records, [answered(records, 10.0)])])


def test_index_finds_each_displayed_duration_by_its_sizes() -> None:
    records = [add_record(rows) for rows in range(1, 40)]
    records += [record_of_shapes("Mul", f'"{n},8;;{n}"', f'"{n},8"') for n in (1, 2, 3)]
    lengths = ("10,20", "15,15", "1,2,3")
    records += [
        record_of_shapes("Attend", '"2,4,8"', '"2,4,8"', extra={KEYS: text}) for text in lengths
    ]
    state = state_of(plan(records))
    shown = view_of(state).intervals
    data, rows = index_bytes(state.cases, shown, PATH)
    index = Index(memoryview(data), key="index")
    assert rows == index.rows == shown.num_rows == len(records)
    by_case = dict(zip(shown["case"].to_pylist(), shown["mean_us"].to_pylist(), strict=True))
    for record in records:
        case = record.case
        (block,) = (one for one in index.blocks if one.kernel == case.kernel_type)
        sizes = [size for slot in case.inputs for size in slot.shape or ()]
        found = {index.case(row): index.mean_us[row] for row in index.find(block, sizes)}
        assert found[record.case_id] == by_case[record.case_id]
        assert len(found) == (3 if case.kernel_type == "Attend" else 1)
        assert list(index.find(block, [7, *sizes[1:-1], 7])) == []
    (attention,) = (one for one in index.blocks if one.lengths)
    assert attention.lengths == (KEYS,) and KEYS in LENGTH_COLUMNS
    means = sorted(index.sizes_of(attention)[:, -2:].tolist())  # and skews, in thousandths
    assert means == [[2000, 1500], [15000, 1000], [15000, 1333]]
    texts = [index.text("lengths", index.lengths[row]) for row in range(*span(attention))]
    assert json.dumps({KEYS: [10.0, 20.0]}, separators=(",", ":")) in texts


def span(block) -> tuple[int, int]:
    return block.begin, block.end


def test_rows_have_equal_bytes_in_any_order() -> None:
    records = [add_record(rows) for rows in range(1, 30)]
    state = state_of(plan(records))
    shown = view_of(state).intervals
    turned = state.cases.take(pc.sort_indices(state.cases["Input Shapes"]))
    assert index_bytes(turned, shown, PATH) == index_bytes(state.cases, shown, PATH)
    one, other = hash_of([3, 4]), hash_of([4, 3])
    block_sizes = Index(memoryview(index_bytes(state.cases, shown, PATH)[0]), key="k")
    own = block_sizes.sizes_of(block_sizes.blocks[0])[:, :4]
    assert one != other and hashes_of(own).tolist() == list(map(hash_of, own.tolist()))


@pytest.mark.parametrize("data", [b"", b"opmeter index 1\n", b"opmeter index 1\n" + bytes(64)])
def test_malformed_index_is_damage(data: bytes) -> None:
    with pytest.raises(DamagedObject, match="^db/x: "):
        Index(memoryview(data), key="db/x")


def test_verify_detects_an_index_that_contradicts_its_state() -> None:
    store = MemoryStore()
    write_campaign(store, plan([add_record(rows) for rows in range(1, 5)]))
    merge_plans(store, [("made", 1)], guard=CREATE, author="test")
    assert find_problems(store) == []
    commit = head_of(store)
    key = keys.index(commit.snapshot, PATH)
    data = bytearray(store.get(key))
    data[-30] ^= 1
    store.put(key, bytes(data))
    sha256 = sha256_hex(bytes(data))
    forge_version(store, commit, lambda files: files["index"].update(sha256=sha256))
    (problem,) = (one for one in find_problems(store) if one.key == key)
    assert "state" in problem.text
