"""The tables of a database, as read by readers of Parquet and of Delta tables."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from collector.database import delta
from collector.database.commits import Commit, find_head, read_commit
from collector.database.manifest import own_files, read_manifest, read_version_files
from collector.database.merge import CREATE, merge_plans
from collector.database.verify import find_problems, find_strays
from collector.model import keys
from collector.store.base import Store
from collector.store.file import FileStore
from collector.store.in_memory import MemoryStore
from tests.unit.collector.database.campaign_maker import (
    STACK,
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    answered,
    write_campaign,
)

deltalake = pytest.importorskip("deltalake")
pl = pytest.importorskip("polars")
duckdb = pytest.importorskip("duckdb")

STACKS = [
    replace(STACK, device=device, torch=torch)
    for device in ("CPU_test_2t", "CPU_other_4t")
    for torch in ("2.12.0", "2.13.0")
]
TABLES = {"measurements": keys.MEASUREMENTS, "shown": keys.SHOWN}


def publish(store: Store, number: int, *, rows: Iterable[int] = range(1, 4)) -> Commit:
    """One plan for the stack of its number: the next four replace what the first four show."""
    records = [add_record(n) for n in rows]
    session = answered(records, 10.0 + number)
    session[records[0].case_id] = Tried()
    shard = MadeShard(f"shard-{number}", records, [session])
    stack = STACKS[number % len(STACKS)]
    plan = MadePlan([shard], number=number, head_commit=number - 1, stack=stack)
    write_campaign(store, plan)
    result = merge_plans(store, [plan.name], guard=CREATE, author="test")
    assert result.commit is not None
    return result.commit


def files_of(store: Store, commit: Commit, root: str) -> list[str]:
    """The files of a table in a version, by the manifests."""
    manifest = read_manifest(store, commit)
    own = (
        file.key
        for path, entry in manifest.versions.items()
        for file in own_files(path, entry, read_version_files(store, commit, path, entry))
    )
    return sorted(key for key in own if key.startswith(root))


def rows_of(store: Store, commit: Commit, root: str) -> pa.Table:
    """The rows of a table in a version, by the manifests."""
    found = [store.get(key) for key in files_of(store, commit, root)]
    return pa.concat_tables([pq.read_table(pa.BufferReader(data)) for data in found])


def ids(table: pa.Table) -> list[tuple[Any, ...]]:
    names = ("device", "version", "case", "kernel_type", "mean_us")
    return sorted(zip(*(table[name].to_pylist() for name in names), strict=True), key=repr)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("database")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta, "CHECKPOINT_EVERY", 4)
        for number in range(1, 7):
            publish(FileStore(folder), number)
    return folder


@pytest.mark.parametrize("name", TABLES)
def test_delta_versions_have_the_rows_of_the_commits(folder: Path, name: str) -> None:
    store = FileStore(folder)
    for number in (6, 5, 4, 2, 1):
        commit = read_commit(store, number)
        table = deltalake.DeltaTable(folder / "db" / name, version=number)
        expected = rows_of(store, commit, TABLES[name])
        found = table.to_pyarrow_table()
        assert ids(found) == ids(expected), number
        assert found.num_rows == expected.num_rows
    newest = deltalake.DeltaTable(folder / "db" / name)
    assert newest.version() == 6
    comments = {field.name: field.metadata for field in newest.schema().fields}
    assert comments["mean_us"]["unit"] == "us" and comments["mean_us"]["comment"]
    assert (folder / "db" / name / "_delta_log" / "_last_checkpoint").exists()
    empty = deltalake.DeltaTable(folder / "db" / name, version=0)
    assert empty.to_pyarrow_table().num_rows == 0


FILTERS: dict[str, tuple[str, Any]] = {
    "device": ("=", "CPU_other_4t"),
    "version": ("=", STACKS[1].version),
    "kernel_type": ("=", "Add"),
    "mean_us": (">", 12.0),
    "plan": (">", 1),
    "final": ("=", True),
    "outcome": ("=", "ok"),
}


def chosen(table: pa.Table, name: str) -> list[tuple[Any, ...]]:
    sign, value = FILTERS[name]
    compare = pc.equal if sign == "=" else pc.greater
    column = table[name]
    if pa.types.is_dictionary(column.type):
        column = column.cast(pa.string())
    return ids(table.filter(compare(column, pa.scalar(value).cast(column.type))))


def test_filters_of_every_reader_equal_those_in_memory(folder: Path) -> None:
    """Of the newest version and of two older ones."""
    store = FileStore(folder)
    for number in (6, 4, 2):
        commit = read_commit(store, number)
        files = [str(folder / key) for key in files_of(store, commit, keys.MEASUREMENTS)]
        expected = rows_of(store, commit, keys.MEASUREMENTS)
        at = deltalake.DeltaTable(folder / "db" / "measurements", version=number)
        plain = ds.dataset(files)
        lazy = pl.scan_parquet(files, hive_partitioning=False)
        through_delta = pl.scan_delta(str(folder / "db" / "measurements"), version=number)
        for name, (sign, value) in FILTERS.items():
            known = chosen(expected, name)
            assert known, name
            compared = ds.field(name) == value if sign == "=" else ds.field(name) > value
            assert ids(plain.to_table(filter=compared)) == known, ("pyarrow", name)
            assert ids(at.to_pyarrow_dataset().to_table(filter=compared)) == known, ("delta", name)
            condition = pl.col(name) == value if sign == "=" else pl.col(name) > value
            for frame in (lazy, through_delta):
                assert ids(frame.filter(condition).collect().to_arrow()) == known, ("polars", name)
            spelled = f"'{value}'" if isinstance(value, str) else value
            query = f"SELECT * FROM read_parquet({files}) WHERE {name} {sign} {spelled}"
            assert ids(duckdb.sql(query).to_arrow_table()) == known, ("duckdb", name)
            frame = pa.concat_tables([pq.read_table(file) for file in files]).to_pandas()
            picked = frame[frame[name] == value] if sign == "=" else frame[frame[name] > value]
            assert len(picked) == len(known), ("pandas", name)


def test_log_files_follow_from_the_commits(folder: Path) -> None:
    """A lost or changed log file is written again with the same bytes, also of a lost race."""
    store = MemoryStore()
    for info in FileStore(folder).list(""):
        store.put(info.key, FileStore(folder).get(info.key))
    logs = {i.key: store.get(i.key) for i in store.list("db/") if "/_delta_log/0" in i.key}
    plain = {key: data for key, data in logs.items() if key.endswith(".json")}
    assert len(plain) == 2 * 7 and find_strays(store) == [] and find_problems(store) == []
    for key in logs:
        store.delete(key)
    head = find_head(store)
    assert head is not None and set(delta.complete_log(store, head)) >= set(plain)
    assert {key: store.get(key) for key in plain} == plain
    assert delta.complete_log(store, head) == ()
    changed = keys.delta_log(keys.SHOWN, f"{3:020d}.json")
    store.put(changed, b"{}\n")
    commits = [read_commit(store, number) for number in range(1, 7)]
    assert delta.mend(store, commits) == (changed,)
    assert store.get(changed) == plain[changed]


def test_merge_completes_the_logs_of_a_killed_merge(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    for number in (1, 2, 3):
        publish(store, number)
    for root in TABLES.values():
        for number in (2, 3):
            store.delete(keys.delta_log(root, f"{number:020d}.json"))
    head = publish(store, 4)
    for name, root in TABLES.items():
        table = deltalake.DeltaTable(tmp_path / "db" / name)
        assert table.version() == 4
        assert ids(table.to_pyarrow_table()) == ids(rows_of(store, head, root))
    stale = keys.delta_log(keys.SHOWN, f"{5:020d}.json")
    store.put(stale, b'{"txn":{}}\n')  # of a lost commit
    publish(store, 5)
    assert deltalake.DeltaTable(tmp_path / "db" / "shown").version() == 5
    actions = store.get(keys.delta_log(keys.SHOWN, f"{4:020d}.json")).splitlines()
    plans = [json.loads(line)["txn"]["appId"] for line in actions if b'"txn"' in line]
    assert plans == ["opmeter:made:4"]


def test_merge_writes_the_checkpoint_that_a_killed_merge_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delta, "CHECKPOINT_EVERY", 2)
    store = MemoryStore()
    publish(store, 1)
    publish(store, 2)
    checkpoints = [keys.delta_log(root, f"{2:020d}.checkpoint.parquet") for root in TABLES.values()]
    for key in checkpoints:
        store.delete(key)
    head = publish(store, 3)
    for key in checkpoints:
        assert pq.read_table(pa.BufferReader(store.get(key))).num_rows > 3
    assert delta.complete_log(store, head) == ()


def test_what_another_tool_writes_is_named_and_gone_after_the_next_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delta, "CHECKPOINT_EVERY", 2)
    store = FileStore(tmp_path)
    publish(store, 1)
    publish(store, 2)
    place = tmp_path / "db" / "shown"
    log = place / "_delta_log"
    clean = {path.name: path.read_bytes() for path in log.iterdir()}
    assert found_in(store) == {}

    deltalake.DeltaTable(place).delete()  # empties the table, as version 3
    rows = deltalake.DeltaTable(place, version=2).to_pyarrow_table()
    for _ in range(3):
        deltalake.write_deltalake(place, rows.slice(0, 1), mode="append")
    deltalake.DeltaTable(place).create_checkpoint()
    (log / "_last_checkpoint").write_text('{"version":999999,"size":1}')
    ours = log / f"{2:020d}.checkpoint.parquet"
    empty = pq.read_table(ours)
    pq.write_table(empty.filter(pc.is_null(empty["add"])), ours)
    (log / f"{1:020d}.crc").write_text("{}")
    names = {path.name for path in log.iterdir()}
    changed = "its content does not follow from the commits"
    expected = dict.fromkeys(names - clean.keys(), "another tool wrote it")
    assert found_in(store) == {**expected, "_last_checkpoint": changed, ours.name: changed}

    head = publish(store, 3)
    assert found_in(store) == {}
    assert all((log / name).read_bytes() == data for name, data in clean.items())
    for name, root in TABLES.items():
        table = deltalake.DeltaTable(tmp_path / "db" / name)
        assert table.version() == 3
        assert ids(table.to_pyarrow_table()) == ids(rows_of(store, head, root))
    assert f"{6:020d}.json: removed" in caplog.text


def found_in(store: FileStore) -> dict[str, str]:
    head = find_head(store)
    assert head is not None
    commits = [read_commit(store, number) for number in range(1, head.number + 1)]
    return {one.key.rpartition("/")[2]: one.text for one in delta.check(store, commits)}
