"""The description of a version directory follows from its content, and names its files."""

import json
from dataclasses import replace
from posixpath import normpath

import pytest

from collector.codec.canonical import sha256_hex
from collector.database.commits import find_head
from collector.database.manifest import read_manifest
from collector.database.merge import CREATE, merge_plans
from collector.model import keys
from collector.model.stack import Runtime
from collector.store.in_memory import MemoryStore
from tests.unit.collector.database.campaign_maker import (
    PATH,
    MadePlan,
    MadeShard,
    add_record,
    answered,
    write_campaign,
)

pytestmark = pytest.mark.fast


def described(*plans: MadePlan) -> tuple[MemoryStore, str, str]:
    """Return a database of these plans, and both descriptions of its version directory."""
    store = MemoryStore()
    for plan in plans:
        write_campaign(store, plan)
        merge_plans(store, [plan.name], guard=CREATE, author="test")
    head = find_head(store)
    assert head is not None
    ((path, entry),) = read_manifest(store, head).versions.items()
    texts = (store.get(spell(entry.snapshot, path)) for spell in (keys.dataset, keys.croissant))
    return (store, *(data.decode() for data in texts))


def is_newest(key: str) -> bool:
    return key.startswith("db/versions/00000002-") and key.endswith("/croissant.json")


def plan(number: int, **changes: object) -> MadePlan:
    records = [add_record(rows) for rows in (1, 2)]
    shard = MadeShard(f"shard-{number}", records, [answered(records, 10.0 + number)])
    made = MadePlan([shard], number=number, head_commit=number - 1)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_card_counts_the_contents_of_a_version_directory() -> None:
    _, page, _ = described(plan(1), plan(2))
    assert "| cases | 2 of 1 kernel type |" in page
    assert "| with a duration | 2, of which 2 from several sessions |" in page
    assert "| measurements | 4 in 2 sessions on 1 device |" in page
    assert page.startswith(f"# {PATH}\n") and "runtime" not in page
    _, page, _ = described(plan(1, runtime=Runtime.FAKE))
    assert "fake runtime, not of a device" in page


def test_croissant_metadata_has_the_files_and_their_columns() -> None:
    store, _, text = described(plan(1), plan(2))
    value = json.loads(text)
    assert value["@type"] == "sc:Dataset" and value["conformsTo"].endswith("croissant/1.0")
    files = value["distribution"]
    assert len(files) == 3
    (folder,) = {info.key.rpartition("/")[0] for info in store.list("db/") if is_newest(info.key)}
    for file in files:
        data = store.get(normpath(f"{folder}/{file['contentUrl']}"))
        assert sha256_hex(data) == file["sha256"]
        assert file["contentSize"] == f"{len(data)} B"
    shown = normpath(f"{folder}/{value['url']}")
    assert next(iter(store.list(f"{shown}/"))).key.endswith(".parquet")
    named = {file["@id"] for file in files}
    fields = [field for records in value["recordSet"] for field in records["field"]]
    assert {field["source"]["fileObject"]["@id"] for field in fields} <= named
    means = [one for one in fields if one["source"]["extract"]["column"] == "mean_us"]
    assert [one["dataType"] for one in means] == ["sc:Float", "sc:Float"]
    assert len({field["@id"] for field in fields}) == len(fields)
