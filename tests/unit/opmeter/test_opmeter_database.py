"""A database is opened where it is stored, and a stack finds its version directory."""

import csv
import json
import re
import shutil
import threading
from pathlib import Path

import pytest

import opmeter
from collector.codec.canonical import sha256_hex
from collector.codec.errors import DamagedObject
from collector.database import layout
from collector.database.commits import find_head
from collector.database.merge import CREATE, merge_plans
from collector.database.pull import MARKER, pull_version
from collector.model import keys
from collector.model.demand import read_misses, record_of_cells
from collector.model.stack import Runtime, Stack
from collector.model.vocabulary import INPUT_CELLS, OUTPUT_CELLS
from collector.store.base import Store
from collector.store.file import FileStore
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    add_record,
    answered,
    write_campaign,
)
from tests.unit.opmeter.made import Row, product, version_of

pytestmark = pytest.mark.fast

DEVICE = "ATLAS_800_A3_752T_128G_DIE"
RECORDS = [add_record(rows) for rows in (1, 4, 16)]


def stack(vllm: str, cann: str) -> Stack:
    return Stack(device=DEVICE, torch="2.9.0", torch_npu="2.9.0", cann=cann, vllm=vllm)


def publish(store: Store, *stacks: Stack) -> None:
    for number, one in enumerate(stacks, start=1):
        shard = MadeShard(f"shard-{number}", RECORDS, [answered(RECORDS, 10.0 * number)])
        plan = MadePlan([shard], number=number, head_commit=number - 1, stack=one)
        write_campaign(store, plan)
        merge_plans(store, [plan.name], guard=CREATE, author="test")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    stacks = (stack("0.17.0", "8.5"), stack("0.18.0", "8.5"), stack("0.18.0", "9.0"))
    publish(FileStore(folder), *stacks)
    return folder


def test_store_is_opened_at_any_version(folder: Path) -> None:
    db = opmeter.open(folder)
    assert db.number == 3 and len(db.directories) == 3
    assert len(opmeter.open(folder.as_uri(), number=1).directories) == 1
    version = db.directory_of(DEVICE, vllm="v0.18.0", cann="8.5")
    assert version.path == f"{DEVICE}/vllm_ascend/vllm0.18.0_torch2.9.0_cann8.5"
    assert version.rows == 3 and version.kernels == ("Add",) and version.differs == ()
    answer = version.query("Add", [(4, 64), (4, 64)], "bf16")
    assert answer.value_us == 21.0 and answer.channel == "measured"
    assert answer.low_us < 21.0 < answer.high_us
    with pytest.raises(opmeter.OpmeterError, match="no database"):
        opmeter.open(folder / "none")
    with pytest.raises(opmeter.OpmeterError, match="newest is 3"):
        opmeter.open(folder, number=4)
    with pytest.raises(opmeter.OpmeterError, match="both"):
        opmeter.open(folder, number=1, channel="stable")


def test_stack_finds_the_nearest_version_and_its_distance(folder: Path) -> None:
    db = opmeter.open(folder)
    for expected, path, differs in (
        ({"cann": "9.1"}, "vllm0.18.0_torch2.9.0_cann9.0", ("cann 9.0 instead of 9.1",)),
        (
            {"vllm": "0.17.1", "cann": "8.5"},
            "vllm0.17.0_torch2.9.0_cann8.5",
            ("vllm 0.17.0 instead of 0.17.1",),
        ),
        ({"vllm": "0.17.0"}, "vllm0.17.0_torch2.9.0_cann8.5", ()),
    ):
        found = db.directory_of(DEVICE, **expected, nearest=True)
        assert (found.path.rpartition("/")[2], found.differs) == (path, differs)
    reused = db.directory_of(DEVICE, cann="9.1", nearest=True)
    assert reused.query("Add", [(4, 64), (4, 64)], "bf16").channel == "reused"
    for wrong in ({"cann": "9.1"}, {"vllm": "0.18.0"}, {}):
        with pytest.raises(opmeter.OpmeterError, match="cann8.5"):
            db.directory_of(DEVICE, **wrong)
    with pytest.raises(opmeter.OpmeterError) as several:
        db.directory_of(DEVICE, vllm="0.18.0")
    assert "vllm0.18.0" in str(several.value) and "vllm0.17.0" not in str(several.value)
    with pytest.raises(opmeter.OpmeterError, match=DEVICE):
        db.directory_of("ATLAS_800_A2_280T_64G", vllm="0.18.0")


def test_pulled_tree_gives_the_results_of_its_store(folder: Path, tmp_path: Path) -> None:
    store = FileStore(folder)
    commit = find_head(store)
    assert commit is not None
    pull_version(store, commit, tmp_path / "tree")
    stored, pulled = opmeter.open(folder), opmeter.open(tmp_path / "tree")
    assert (pulled.number, pulled.directories) == (stored.number, stored.directories)
    for path in stored.directories:
        versions = (stored.directory(path), pulled.directory(path))
        for rows in (1, 4, 9, 16, 99):
            one, other = (each.query("Add", [(rows, 64)] * 2, "bf16") for each in versions)
            assert one[3:] == other[3:]
            assert one[:3] == pytest.approx(other[:3], rel=1e-6, nan_ok=True)


def test_pulled_tree_with_impossible_numbers_is_refused(folder: Path, tmp_path: Path) -> None:
    commit = find_head(FileStore(folder))
    assert commit is not None
    pull_version(FileStore(folder), commit, tmp_path / "tree")
    db = opmeter.open(tmp_path / "tree")
    file = tmp_path / "tree" / db.directories[0] / "Add.csv"
    header, row, *rest = file.read_text().splitlines()
    cells = next(csv.reader([row]))
    low, high = layout.STACK_INTERVAL
    for column, text, is_valid in (
        *((low, text, False) for text in ("-1", "1e9", "x")),
        *((high, text, False) for text in ("0", "inf")),
        *((layout.SESSIONS, text, False) for text in ("-1", "1.5", "1e30")),
        *((low, "0", True), (layout.SESSIONS, "2", True)),
    ):
        changed = dict(zip(header.split(","), cells, strict=True)) | {column: text}
        quoted = [f'"{cell.replace(chr(34), 2 * chr(34))}"' for cell in changed.values()]
        file.write_text("\n".join([header, ",".join(quoted), *rest, ""]))
        declare(tmp_path / "tree", file)
        db = opmeter.open(tmp_path / "tree")
        if is_valid:
            found = db.directory(db.directories[0]).explain("Add", [(2, 64)] * 2, "bf16")
            assert found.widest is not None
        else:
            with pytest.raises(opmeter.OpmeterError, match=re.escape(column.split(" (")[0])):
                db.directory(db.directories[0])


def declare(tree: Path, file: Path) -> None:
    """Write the hash of a file into the marker of its pull, as if the pull had written it so."""
    marker = json.loads((tree / MARKER).read_bytes())
    marker["files"][file.relative_to(tree).as_posix()] = sha256_hex(file.read_bytes())
    (tree / MARKER).write_text(json.dumps(marker))


@pytest.mark.parametrize(
    "change", ["edited", "deleted", "added", "linked", "linked folder", "folder deleted"]
)
def test_pulled_tree_that_was_changed_is_refused(folder: Path, tmp_path: Path, change: str) -> None:
    commit = find_head(FileStore(folder))
    assert commit is not None
    pull_version(FileStore(folder), commit, tmp_path / "tree")
    version = opmeter.open(tmp_path / "tree").directories[0]
    file = tmp_path / "tree" / version / "Add.csv"
    if change == "edited":
        file.write_bytes(file.read_bytes().replace(b"64", b"65"))
    elif change == "deleted":
        file.unlink()
    elif change == "added":
        file.with_name("Sub.csv").write_bytes(file.read_bytes())
    elif change == "linked":
        file.rename(tmp_path / "own.csv")
        file.symlink_to(tmp_path / "own.csv")
    elif change == "linked folder":
        own = tmp_path / "own"
        own.mkdir()
        (own / "Add.csv").write_bytes(file.read_bytes())
        (file.parent / layout.UNKNOWN_INPUTS).symlink_to(own)
    else:
        shutil.rmtree(file.parent)
    db = opmeter.open(tmp_path / "tree")
    changed = {"added": "Sub.csv", "linked folder": layout.UNKNOWN_INPUTS}
    name = changed.get(change, "Add.csv")
    with pytest.raises(opmeter.OpmeterError, match=re.escape(f"{version}/{name}")):
        db.directory(version).query("Add", [(4, 64)] * 2, "bf16")


def test_durations_of_a_fake_runtime_have_a_warning(tmp_path: Path) -> None:
    shard = MadeShard("shard", RECORDS, [answered(RECORDS, 10.0)])
    plan = MadePlan([shard], runtime=Runtime.FAKE)
    write_campaign(FileStore(tmp_path), plan)
    merge_plans(FileStore(tmp_path), [plan.name], guard=CREATE, author="test")
    db = opmeter.open(tmp_path)
    for rows in (4, 8):
        answer = db.directory(db.directories[0]).query("Add", [(rows, 64)] * 2, "bf16")
        assert answer.reason is None and "fake runtime" in answer.warnings[0]


def test_damaged_index_is_refused(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    publish(store, stack("0.18.0", "8.5"))
    commit = find_head(store)
    assert commit is not None
    key = keys.index(commit.snapshot, stack("0.18.0", "8.5").version_path)
    data = bytearray(store.get(key))
    data[-9] ^= 1
    store.put(key, bytes(data))
    with pytest.raises(DamagedObject, match="index"):
        opmeter.open(tmp_path).directory_of(DEVICE)


def test_misses_are_counted_as_cases_of_a_source(folder: Path, tmp_path: Path) -> None:
    version = opmeter.open(folder).directory_of(DEVICE, cann="9.0")
    path = tmp_path / "misses.jsonl"
    for _ in range(2):
        with version.recording_misses(path):
            version.query("Add", [(4, 64), (4, 64)], "bf16")
            version.query("Add", [(9000, 64), (9000, 64)], "bf16", weight=3.0)
            version.query("Mul", [(8, 8), (8, 8)], "bf16")
    version.query("Add", [(7000, 64), (7000, 64)], "bf16")  # not recorded
    outside, unknown = read_misses(path)
    assert (outside.reason, outside.count, outside.weight) == ("outside", 2, 6.0)
    assert outside.demand.record.case_id == add_record(9000).case_id
    assert (unknown.kernel_type, unknown.reason, unknown.weight) == ("Mul", "no kernel", 2.0)
    path.write_text('{"kernel_type": 3}\n')
    with (
        pytest.raises(opmeter.OpmeterError, match="misses.jsonl:1"),
        version.recording_misses(path),
    ):
        version.query("Mul", [(8, 8), (8, 8)], "bf16")


def test_misses_of_a_table_have_its_outputs_and_scalars(folder: Path, tmp_path: Path) -> None:
    version = opmeter.open(folder).directory_of(DEVICE, cann="9.0")
    requested = [
        Row("Cast", [(16, 8)], [(16, 8)], 1.0, "FLOAT"),
        Row("Fill", [(1,), None], [(241,)], 1.0, "INT64;INT32"),
        Row("Add", [(4, 64), None], [(4, 64)], 1.0, "DT_BF16;DT_BF16"),
        Row("Mul", [(4, 64), (4, 64)], [(4, 64)], 1.0),
    ]
    columns = (*INPUT_CELLS, *OUTPUT_CELLS)
    table = {name: [row.record.cells[name] for row in requested] for name in columns}
    table["Output Data Types"][0] = "INT8"
    table["Output Shapes"][3] = "N/A"
    path = tmp_path / "misses.jsonl"
    with version.recording_misses(path):
        version.query_many({"kernel_type": [row.kernel for row in requested], **table})
    found = {one.kernel_type: one.demand.record for one in read_misses(path)}
    for at, row in enumerate(requested):
        expected = record_of_cells(row.kernel, {name: table[name][at] for name in columns})
        assert found[row.kernel].case_id == expected.case_id, row
    assert found["Mul"].cells["Output Shapes"] == "N/A"
    with pytest.raises(opmeter.OpmeterError, match="shape"), version.recording_misses(path):
        version.query("Mul", [(4, 64)] * 2, "bf16", outputs={"Output Shapes": "x"})


def test_missed_product_of_another_orientation_has_no_outputs_of_the_measured(
    tmp_path: Path,
) -> None:
    version = version_of([product(m, 512, 128, 5.0 + m) for m in (1, 2)])
    path = tmp_path / "misses.jsonl"
    with version.recording_misses(path):
        version.query("MatMulV2", [(4, 128), (128, 512)], "bf16")
        version.query("MatMulV2", [(4, 128), (512, 128)], "bf16")
    found = {one.cells["Input Shapes"]: one.cells["Output Shapes"] for one in read_misses(path)}
    assert found == {'"4,128;128,512"': '"4,512"', '"4,128;512,128"': "N/A"}


def test_misses_of_several_writers_are_all_in_the_file(folder: Path, tmp_path: Path) -> None:
    version = opmeter.open(folder).directory_of(DEVICE, cann="9.0")
    path = tmp_path / "misses.jsonl"
    both = threading.Barrier(4)

    def record(rows: int) -> None:
        for number in range(5):
            both.wait()  # all begin before one ends
            with version.recording_misses(path):
                both.wait()
                if rows == number:
                    version.query("Add", [(9000 + rows, 64)] * 2, "bf16")
                both.wait()

    threads = [threading.Thread(target=record, args=(rows,)) for rows in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    found = read_misses(path)  # each miss in each of the four logs
    assert sorted((one.cells["Input Shapes"], one.count) for one in found) == [
        (f'"{9000 + rows},64;{9000 + rows},64"', 4) for rows in range(4)
    ]
