"""A pulled snapshot is a folder that consumers read by name; a pull never replaces files of
users."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from collector.codec.errors import BadInput, DamagedObject
from collector.database.commits import Commit, find_head
from collector.database.layout import UNKNOWN_INPUTS
from collector.database.merge import CREATE, merge_plans
from collector.database.pull import MARKER, check_is_real, pull_version
from collector.database.tree import read_kernel_file
from collector.model import keys
from collector.model.measurement import Library
from collector.singlehost.version_files import read_tree
from collector.store.in_memory import MemoryStore
from tests.unit.collector.database.campaign_maker import (
    PATH,
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    answered,
    record_of_shapes,
    write_campaign,
)
from tests.unit.collector.database.consumer import Consumer
from tests.unit.collector.database.wrapped_stores import T, WrappedStore
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

RECORDS = [
    add_record(1),
    add_record(2),
    record_of_shapes("Add", '"16"', '"16"'),
    record_of_shapes("Gelu", "N/A", "N/A"),
]


def database(op_mapping: str | None = "a: 1\n") -> tuple[MemoryStore, Commit]:
    """Return two good Adds, a failed one, and a Gelu with unknown inputs; Adds also measured
    cold."""
    store = MemoryStore()
    tried = answered(RECORDS[:2], 5.0) | {r.case_id: Tried() for r in RECORDS[2:]}
    write_campaign(store, MadePlan([MadeShard("s", RECORDS, [tried])], op_mapping=op_mapping))
    cold = MadeShard("cold", RECORDS[:1], [answered(RECORDS[:1], 77.0)])
    write_campaign(store, MadePlan([cold], number=2, head_commit=1, cache="cold"))
    merge_plans(store, [("made", 1), ("made", 2)], guard=CREATE, author="test")
    head = find_head(store)
    assert head is not None
    return store, head


def read(target: Path, kernel: str) -> pd.DataFrame:
    return pd.read_csv(target / PATH / f"{kernel}.csv")


def test_a_pulled_tree_is_read_by_name_with_quotes_kept_inside_shapes(tmp_path: Path) -> None:
    store, head = database()
    pulled = pull_version(store, head, tmp_path / "tree")
    assert (pulled.files, pulled.rows, pulled.own_mappings) == (3, 4, ())
    add = read(tmp_path / "tree", "Add")
    assert list(add["Input Shapes"]) == ['"1,64;1,64"', '"16"', '"2,64;2,64"']
    durations = add["Average Duration(us)"]
    assert durations[[0, 2]].tolist() == [5.0, 6.0] and durations.isna()[1]
    own = ["Cache", *(f"Session {end}(us)" for end in ("High", "Low")), "Sessions"]
    own += ["Stack Degrees", "Stack High(us)", "Stack Low(us)", "Stack Variance", "Warnings"]
    assert list(add.columns[62:]) == [f"MicroBench {name}" for name in own]
    assert add["MicroBench Cache"][[0, 2]].tolist() == ["warm", "warm"]
    assert (tmp_path / "tree" / PATH / "op_mapping.yaml").read_text() == "a: 1\n"


def test_row_has_the_library_of_its_kernel_and_the_assumptions(tmp_path: Path) -> None:
    records = [add_record(1), add_record(2)]
    reported = Tried(5.0, library=Library.VLLM_ASCEND, assumes="rows all over the table")
    tried = dict(zip((r.case_id for r in records), (reported, Tried(6.0)), strict=True))
    store = MemoryStore()
    write_campaign(store, MadePlan([MadeShard("s", records, [tried])]))
    merge_plans(store, [("made", 1)], guard=CREATE, author="test")
    head = find_head(store)
    assert head is not None
    pull_version(store, head, tmp_path)
    add = read(tmp_path, "Add")
    assert add["MicroBench Library"].fillna("").tolist() == ["vllm-ascend", ""]
    assert add["MicroBench Assumes"].fillna("").tolist() == ["rows all over the table", ""]
    assert [r.case_id for r in read_tree(tmp_path / PATH).records] == [r.case_id for r in records]


def test_case_of_unknown_inputs_is_in_a_separate_folder(tmp_path: Path) -> None:
    store, head = database()
    pull_version(store, head, tmp_path)
    assert not (tmp_path / PATH / "Gelu.csv").exists()
    text = (tmp_path / PATH / UNKNOWN_INPUTS / "Gelu.csv").read_text()
    assert text.splitlines()[1].startswith("dynamic,AI_VECTOR_CORE,N/A,DT_BF16")
    assert sorted(r.case_id for r in read_tree(tmp_path / PATH).records) == sorted(
        r.case_id for r in RECORDS
    )


UNREADABLE = [
    record_of_shapes("Add", shapes, '"8,8"') for shapes in ("N/A", '"N/A"', "", "NULL", " n/a ")
]


@pytest.mark.parametrize("kept", [{}, {"prune_empty": True}, {"cache": "warm"}])
def test_consumer_reads_a_file_next_to_rows_of_unknown_inputs(
    tmp_path: Path, kept: dict[str, Any]
) -> None:
    records = [add_record(1), *UNREADABLE, add_record(2)]
    store = MemoryStore()
    shard = MadeShard("s", records, [answered(records, 5.0)])
    write_campaign(store, MadePlan([shard]))
    merge_plans(store, [("made", 1)], guard=CREATE, author="test")
    head = find_head(store)
    assert head is not None
    pulled = pull_version(store, head, tmp_path / "tree", **kept)
    seen = Consumer(tmp_path / "tree" / PATH).everything()
    assert seen == {"Add": {((1, 64), (1, 64)): 5.0, ((2, 64), (2, 64)): 5.0 + len(UNREADABLE) + 1}}
    assert pulled.rows == len({r.case_id for r in records})
    ids = {r.case_id for r in read_tree(tmp_path / "tree" / PATH).records}
    assert ids == {r.case_id for r in records}


def test_cells_of_any_text_are_pulled_unchanged(tmp_path: Path) -> None:
    reported = {"Runtime x": "a\rb", "Notes": 'l\r\n"2" \u2028, ', "Long": "x" * 200_000}
    record = replace(add_record(1), extra=reported)
    store = MemoryStore()
    shard = MadeShard("s", [record], [{record.case_id: Tried(5.0)}])
    write_campaign(store, MadePlan([shard]))
    merge_plans(store, [("made", 1)], guard=CREATE, author="test")
    head = find_head(store)
    assert head is not None
    pull_version(store, head, tmp_path / "tree")
    path = tmp_path / "tree" / PATH / "Add.csv"
    (row,) = read_kernel_file(path).rows
    (seen,) = pd.read_csv(path, dtype=str, keep_default_na=False).to_dict("records")
    assert (
        {name: row[name] for name in reported}
        == {name: seen[name] for name in reported}
        == reported
    )


def test_a_version_without_an_op_mapping_gets_one_and_a_users_own_stays(tmp_path: Path) -> None:
    store, head = database(op_mapping=None)
    path = tmp_path / PATH / "op_mapping.yaml"
    assert pull_version(store, head, tmp_path).own_mappings == ()
    written = path.read_bytes()
    found = yaml.safe_load(written)
    assert found["operator_mappings"]["aten.add.Tensor"]["kernel_type"] == "Add"
    path.unlink()
    for own in (b"a: 2\n", b"a: 3\n"):
        path.write_bytes(own)
        assert pull_version(store, head, tmp_path).own_mappings == (f"{PATH}/op_mapping.yaml",)
        assert path.read_bytes() == own
    path.unlink()
    pull_version(store, head, tmp_path)
    assert path.read_bytes() == written
    elsewhere = tmp_path / "op_mapping.yaml"  # of no version
    elsewhere.write_bytes(b"a: 2\n")
    with pytest.raises(BadInput) as refused:
        pull_version(store, head, tmp_path)
    assert refused.value.path == elsewhere


def test_rows_without_a_duration_can_be_excluded(tmp_path: Path) -> None:
    store, head = database()
    pulled = pull_version(store, head, tmp_path, prune_empty=True)
    assert pulled.rows == 2
    assert read(tmp_path, "Add")["Average Duration(us)"].tolist() == [5.0, 6.0]


def test_cold_durations_can_be_pulled(tmp_path: Path) -> None:
    store, head = database()
    pull_version(store, head, tmp_path, cache="cold")
    durations = read(tmp_path, "Add")["Average Duration(us)"]
    assert durations[0] == 77.0 and durations.isna().tolist() == [False, True, True]


def test_pull_replaces_an_earlier_pull(tmp_path: Path) -> None:
    store, head = database()
    target = tmp_path / "tree"
    pull_version(store, head, target, prune_empty=True)
    pull_version(store, head, target)
    assert len(read(target, "Add")) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["tree"]


@pytest.mark.parametrize("name", ["mine.txt", f"{PATH}/Mul.csv", f"{PATH}/Add.csv"])
def test_users_file_in_a_pulled_folder_is_kept(tmp_path: Path, name: str) -> None:
    store, head = database()
    pull_version(store, head, tmp_path)
    (tmp_path / name).write_text("mine")
    with pytest.raises(BadInput, match=naming(f"{tmp_path / name}:")):
        pull_version(store, head, tmp_path)
    assert (tmp_path / name).read_text() == "mine"


def test_symlink_to_the_folder_is_kept_and_its_target_is_written(tmp_path: Path) -> None:
    store, head = database()
    real, link = tmp_path / "elsewhere" / "real", tmp_path / "link"
    link.symlink_to(real)  # which does not exist yet
    for prune_empty, rows in ((True, 2), (False, 3)):
        pull_version(store, head, link, prune_empty=prune_empty)
        assert link.is_symlink() and len(read(real, "Add")) == rows
    (real / "mine").write_text("mine")
    with pytest.raises(BadInput, match=naming(f"{real / 'mine'}:")):
        pull_version(store, head, link)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "link"]


def test_links_folders_and_special_files_in_a_pulled_folder_are_kept(tmp_path: Path) -> None:
    store, head = database()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes").write_text("mine")
    copy = tmp_path / "Add.csv"

    def replaced_by_a_link(path: Path) -> None:
        copy.write_bytes(path.read_bytes())  # so that the content is that of the pull
        path.unlink()
        path.symlink_to(copy)

    add: dict[str, Callable[[Path], None]] = {
        "folder": Path.mkdir,
        f"{PATH}/folder": Path.mkdir,
        "link": lambda path: path.symlink_to(mine),
        f"{PATH}/broken": lambda path: path.symlink_to(tmp_path / "nothing"),
        f"{PATH}/Add.csv": replaced_by_a_link,
        MARKER: replaced_by_a_link,
        "pipe": os.mkfifo,
    }
    for at, (name, change) in enumerate(add.items()):
        target = tmp_path / f"tree-{at}"
        pull_version(store, head, target)
        change(target / name)
        before = sorted(target.rglob("*"))
        with pytest.raises(BadInput, match=naming(f"{target / name}:")):
            pull_version(store, head, target)
        assert sorted(target.rglob("*")) == before
    assert (mine / "notes").read_text() == "mine"


def test_file_added_during_a_pull_is_kept(tmp_path: Path) -> None:
    store, head = database()
    pull_version(store, head, tmp_path)

    class ChangingStore(WrappedStore):
        def _call(self, verb: str, key: str, call: Callable[[], T]) -> T:
            (tmp_path / "mine").write_text("mine")
            return call()

    with pytest.raises(BadInput, match=naming(f"{tmp_path / 'mine'}:")):
        pull_version(ChangingStore(store), head, tmp_path)
    assert (tmp_path / "mine").read_text() == "mine" and (tmp_path / MARKER).exists()


def test_folder_that_was_not_pulled_is_refused(tmp_path: Path) -> None:
    store, head = database()
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(BadInput, match=naming(f"{tmp_path}:")):
        pull_version(store, head, tmp_path)
    with pytest.raises(BadInput, match=naming(f"{tmp_path / 'notes'}:")):
        pull_version(store, head, tmp_path / "notes")
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_damaged_snapshot_leaves_the_earlier_pull_unchanged(tmp_path: Path) -> None:
    store, head = database()
    pull_version(store, head, tmp_path)
    key = keys.snapshot(head.snapshot) + f"{PATH}/Add.csv"
    store.put(key, store.get(key).replace(b"5.0", b"4.0"))
    with pytest.raises(DamagedObject, match=naming(f"{key}:", "sha256")):
        pull_version(store, head, tmp_path)
    assert read(tmp_path, "Add")["Average Duration(us)"][0] == 5.0
    assert (tmp_path / MARKER).exists()


@pytest.mark.parametrize("marker", [b"", b"{}", b"[" * 100_000, b'{"runtime": "banana"}'])
def test_unreadable_marker_is_refused(tmp_path: Path, marker: bytes) -> None:
    version = tmp_path / "device" / "vllm_ascend" / "v"
    version.mkdir(parents=True)
    check_is_real(version)
    (tmp_path / MARKER).write_bytes(marker)
    with pytest.raises(BadInput, match=MARKER):
        check_is_real(version)
    with pytest.raises(BadInput, match=MARKER):
        pull_version(*database(), tmp_path)
