"""Channels point at versions that passed their gates, and every promotion is recorded."""

import json
from pathlib import Path
from typing import Any

import pytest

import opmeter
from collector.codec.errors import BadInput, DamagedObject
from collector.database import channels as channels_module
from collector.database.channels import channels, commit_of, promotions
from collector.database.commits import read_commit
from collector.database.merge import CREATE, merge_plans
from collector.database.retired import Retirement, retire, retired_versions
from collector.model import keys
from collector.store import open_store
from collector.store.base import Store
from jobs.cli.cleanup import gc_command
from jobs.cli.database import log_command, verify_command
from jobs.cli.opening import chosen_commit
from jobs.cli.options import WorkloadOptions
from jobs.cli.promote import promote_command
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    write_campaign,
)

NOTHING = WorkloadOptions()


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Three versions: the second has the same numbers, the third is ten times slower."""
    store = open_store(str(tmp_path / "store"))
    for number, us in ((1, 10.0), (2, 10.0), (3, 1000.0)):
        records = [add_record(rows) for rows in range(1, 6)]
        tried = {record.case_id: Tried(us + at, n_accepted=30) for at, record in enumerate(records)}
        shard = MadeShard(f"shard-{number}", records, [tried])
        plan = MadePlan([shard], number=number, head_commit=number - 1, campaign=f"made-{number}")
        write_campaign(store, plan)
        merge_plans(store, [plan.name], guard=CREATE, author="test")
    return str(tmp_path / "store")


def store_at(root: str) -> Store:
    return open_store(root)


def test_a_channel_points_at_a_version_and_back(
    root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = store_at(root)
    assert promote_command("stable", NOTHING, root=root, version="1") == 0
    assert promote_command("candidate", NOTHING, root=root) == 0
    assert promote_command("stable", NOTHING, root=root, version="candidate") == 0
    assert channels(store) == ["candidate", "stable"]
    assert commit_of(store, "stable").number == 3 == chosen_commit(store, root, "stable").number
    assert opmeter.open(root, channel="stable").number == 3
    assert promote_command("stable", NOTHING, root=root, back=True, force="slower") == 0
    assert commit_of(store, "stable").number == 1
    capsys.readouterr()
    promote_command("stable", NOTHING, root=root, list_records=True, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert [one["commit"] for one in found] == [1, 3, 1]
    with pytest.raises(BadInput, match="go back"):  # not to the version before the last change
        promote_command("stable", NOTHING, root=root, back=True)
    assert found[0]["checks"].keys() == {"verify", "half-width"} and found[2]["reason"] == "slower"


def test_gc_retires_what_no_channel_needs_and_a_retired_version_cannot_be_promoted(
    root: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = store_at(root)
    promote_command("stable", NOTHING, root=root, version="1")
    gc_command(root=root, keep=2)
    assert "0 versions would be retired: none" in capsys.readouterr().out
    promote_command("stable", NOTHING, root=root, version="2")
    capsys.readouterr()
    gc_command(root=root, keep=2, keep_promoted=1, as_json=True)
    dry = json.loads(capsys.readouterr().out)
    assert dry["retired"] == [1] and retired_versions(store) == set()
    gc_command(root=root, keep=2, keep_promoted=1, delete=True)
    first, *deleted, last = capsys.readouterr().out.splitlines()
    assert first == "1 version retired: 1" and last.endswith("deleted")
    assert [line.split()[-1] for line in deleted] == [one["key"] for one in dry["objects"]]
    assert retired_versions(store) == {1}
    log_command(root=root)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.endswith("retired")] == ["1"]
    assert verify_command(root=root) == 0
    assert "1 retired version: only" in capsys.readouterr().out
    for action in (
        lambda: promote_command("stable", NOTHING, root=root, version="1", skip_verify=True),
        lambda: promote_command("stable", NOTHING, root=root, back=True, force="slower"),
        lambda: chosen_commit(store, root, "1"),
    ):
        with pytest.raises(BadInput, match="version 1 is retired"):
            action()
    assert commit_of(store, "stable").number == 2
    written = channels_module.record_promotion

    def retired_meanwhile(*arguments: Any) -> bool:
        if not retired_versions(store) - {1}:
            retire(store, Retirement(2, (3,), 2, 1, "test", "now"))
        return written(*arguments)

    monkeypatch.setattr(channels_module, "record_promotion", retired_meanwhile)
    with pytest.raises(BadInput, match="version 3 is retired"):
        promote_command("stable", NOTHING, root=root, version="3", skip_verify=True)
    assert commit_of(store, "stable").number == 2
    assert promotions(store, "stable")[-1].reason == "version 3 was retired"


def test_refusing_gate_changes_nothing_unless_forced(
    root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = store_at(root)
    promote_command("stable", NOTHING, root=root, version="1")
    assert promote_command("stable", NOTHING, root=root, version="2", max_changed=0.0) == 0
    assert promote_command("stable", NOTHING, root=root, max_half_width="0.001%") == 1
    assert promote_command("first", NOTHING, root=root, max_changed=0.0) == 0
    assert promotions(store, "first")[0].checks["changed"].startswith("no earlier")
    assert commit_of(store, "stable").number == 2
    key = keys.plan("made-3", 3)
    whole = store.get(key)
    store.delete(key)
    assert promote_command("stable", NOTHING, root=root) == 1
    assert promote_command("stable", NOTHING, root=root, force="known") == 0
    last = promotions(store, "stable")[-1]
    assert last.commit == 3 and last.reason == "known" and key in last.checks["verify"]
    store.put(key, whole)
    assert "refused" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("tried", "allowing"),
    [
        (Tried(5.0), "100%"),  # a single repeat
        (Tried(5.0, n_accepted=30, warnings=("4 of 30 repeats were undisturbed",)), None),
        (Tried(reason="lost"), None),
    ],
    ids=["wide", "disturbed", "nothing measured"],
)
def test_wide_and_disturbed_durations_are_not_promoted_by_default(
    tmp_path: Path, tried: Tried, allowing: str | None
) -> None:
    store = open_store(str(tmp_path))
    records = [add_record(rows) for rows in range(1, 4)]
    shard = MadeShard("shard", records, [{record.case_id: tried for record in records}])
    made = MadePlan([shard])
    write_campaign(store, made)
    merge_plans(store, [made.name], guard=CREATE, author="test")
    root = str(tmp_path)
    assert promote_command("stable", NOTHING, root=root) == 1
    assert promote_command("stable", NOTHING, root=root, max_half_width="10") == (not allowing)
    if allowing:
        assert promote_command("stable", NOTHING, root=root, max_half_width=allowing) == 0
    assert promote_command("stable", NOTHING, root=root, force="an example") == 0
    for text in ("0", "-1%", "nan", "inf", "wide"):
        with pytest.raises(BadInput, match="--max-half-width"):
            promote_command("stable", NOTHING, root=root, max_half_width=text)


def test_unknown_and_damaged_channels_are_refused(root: str) -> None:
    store = store_at(root)
    with pytest.raises(BadInput, match="stable"):
        chosen_commit(store, root, "stable")
    with pytest.raises(BadInput, match="channel"):
        promote_command("3", NOTHING, root=root)
    with pytest.raises(BadInput, match="go back"):
        promote_command("stable", NOTHING, root=root, back=True)
    for number in ("1", "2"):
        promote_command("stable", NOTHING, root=root, version=number)
    store.put(keys.promotion("stable", 1), b"{}")
    with pytest.raises(DamagedObject, match=keys.promotion("stable", 1)):
        commit_of(store, "stable")
    promote_command("other", NOTHING, root=root, version="2")
    key = keys.commit(2)
    store.put(key, store.get(key).replace(b'"author": "test"', b'"author": "tess"'))
    assert read_commit(store, 2).author == "tess"
    with pytest.raises(DamagedObject, match=key):
        commit_of(store, "other")
