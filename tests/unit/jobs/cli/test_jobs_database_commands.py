"""Output and refusals of the commands about a database."""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collector.codec.errors import BadInput, DamagedObject
from collector.database import verify
from collector.database.merge import CREATE, merge_plans
from collector.database.verified import verified_commit
from collector.database.version_quality import Need
from collector.model import keys
from collector.model.measurement import Outcome
from collector.store import open_store
from collector.store.base import Store
from jobs.cli.cleanup import du_command, gc_command
from jobs.cli.database import (
    log_command,
    merge_command,
    path_command,
    pull_command,
    quality_command,
    verify_command,
)
from jobs.cli.diff import diff_command
from jobs.cli.options import WorkloadOptions
from tests.unit.collector.database.campaign_maker import (
    PATH,
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    answered,
    write_campaign,
)
from tests.unit.jobs.cli.in_process import invoked, opmeter_here
from tests.unit.jobs.printed import missing, numbers, raises_naming

pytestmark = pytest.mark.fast

RECORDS = [add_record(1), add_record(2)]
MADE = MadePlan([MadeShard("shard", RECORDS, [answered(RECORDS, 5.0)])])


def test_commands_that_messages_suggest_run_as_printed(tmp_path: Path) -> None:
    root = tmp_path / "a folder"
    store = open_store(str(root))
    suspect = Tried(5.0, warnings=("spread 30 % is above 10 %",))
    tried = [{record.case_id: suspect for record in RECORDS}]
    write_campaign(store, MadePlan([MadeShard("shard", RECORDS, tried)]))
    merge_plans(store, [MADE.name], guard=CREATE, author="test")
    quality = opmeter_here("db", "quality", "--root", root, cwd=tmp_path)
    missed = opmeter_here("db", "path", "--version", "9", "--root", root, cwd=tmp_path)
    assert (quality.returncode, missed.returncode) == (0, 2)
    for printed, name in ((quality.stdout, "quality --list"), (missed.stderr, "log")):
        suggested = re.findall(rf"opmeter (db {name}[^`\n]*)", printed)
        assert suggested, printed
        for command in suggested:
            done = opmeter_here(*shlex.split(command), cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert opmeter_here(*shlex.split(command)[:-2], cwd=tmp_path).returncode  # no root


def test_path_of_a_version_is_an_existing_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "a folder"
    store = open_store(str(root))
    write_campaign(store, MADE)
    merge_plans(store, [MADE.name], guard=CREATE, author="test")
    path_command(root=str(root))
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{root}/db/snapshots/") and line.endswith(PATH)
    assert (Path(line) / "Add.csv").is_file()


@pytest.mark.parametrize(
    ("name", "plans", "data"),
    [
        ("nobody", [], ["'nobody'"]),
        ("nobody", [1], ["'nobody'"]),
        ("made", [7, 1, 3], ["'made'", "3, 7", "1"]),
    ],
)
def test_merge_without_a_plan_is_refused(
    tmp_path: Path, name: str, plans: list[int], data: list[str]
) -> None:
    write_campaign(open_store(str(tmp_path)), MADE)
    with raises_naming(BadInput, *data):
        merge_command(name, root=str(tmp_path), plan=plans, single_writer=True)


def of_commits(folder: Path, commits: int) -> Store:
    """A database with this many commits, each of its own plan."""
    store = open_store(str(folder))
    for number in range(1, commits + 1):
        made = replace(MADE, number=number, head_commit=number - 1, attempt=f"attempt-{number}")
        made = replace(made, shards=[replace(MADE.shards[0], name=f"shard-{number}")])
        write_campaign(store, made)
        merge_plans(store, [made.name], guard=CREATE, author="test")
    return store


def test_log_with_a_missing_commit_is_read_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = of_commits(tmp_path, 2)
    store.delete(keys.commit(1))
    path_command(root=str(tmp_path))
    reported = capsys.readouterr()
    assert "/db/snapshots/00000002-" in reported.out
    assert missing(reported.err, [f"warning: {keys.commit(1)}: ", keys.commit(2)]) == []
    with pytest.raises(BadInput, match=f"{keys.commit(1)}: "):
        log_command(root=str(tmp_path))
    assert capsys.readouterr().out.startswith("   2 ")


def test_log_without_any_commit_left_is_damaged(tmp_path: Path) -> None:
    store = of_commits(tmp_path, 1)
    store.delete(keys.commit(1))
    with pytest.raises(DamagedObject, match=f"{keys.commit(1)}: .*HEAD"):
        log_command(root=str(tmp_path))


HOLE = [f"warning: {keys.commit(1)}: ", keys.commit(3)]
FORK = [f"warning: {keys.commit(2)}: ", "sha256"]
ENDLESS = [f"warning: {keys.commit(3)}: "]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("harm", "warning"),
    [
        (lambda store: store.delete(keys.commit(1)), HOLE),
        (lambda store: repoint(store, 2), FORK),
        (lambda store: store.put(keys.commit(3), b"{}"), ENDLESS),
    ],
)
def test_all_readers_of_a_damaged_log_print_the_same_warning(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    harm: Callable[[Store], None],
    warning: list[str],
) -> None:
    store = of_commits(tmp_path / "store", 3)
    harm(store)
    root, reported = str(tmp_path / "store"), []
    for read in (
        lambda: diff_command("2", "2", WorkloadOptions(), root=root),
        lambda: path_command(root=root, version=2),
        lambda: pull_command(tmp_path / "tree", root=root, version=2),
    ):
        read()
        reported.append(capsys.readouterr().err.splitlines()[0])
    assert len(set(reported)) == 1 and reported[0].startswith(warning[0]), reported
    assert missing(reported[0], [*warning, f"`opmeter db verify --root {store.url}`"]) == []


def repoint(store: Store, number: int) -> None:
    """A commit by a different author: it breaks only what relied on its bytes."""
    key = keys.commit(number)
    store.put(key, store.get(key).replace(b'"author": "test"', b'"author": "tess"'))


@pytest.mark.thorough
def test_raw_files_can_be_excluded_from_verification_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(str(tmp_path))
    made = replace(MADE, raw=b"recorded")
    write_campaign(store, made)
    merge_plans(store, [made.name], guard=CREATE, author="test")
    (key, *_) = [i.key for i in store.list(keys.all_attempts("made")) if "/raw/" in i.key]
    store.put(key, b"other")
    assert verify_command(root=str(tmp_path)) == 1
    assert re.search(rf"version 1: {re.escape(key)}: .*sha256 ", capsys.readouterr().out)
    assert verify_command(root=str(tmp_path), skip_raw=True) == 0
    assert "raw" in capsys.readouterr().out


@pytest.mark.thorough
def test_strays_are_listed_without_failing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadInput, match=re.escape(str(tmp_path))):
        verify_command(root=str(tmp_path))
    store = open_store(str(tmp_path))
    write_campaign(store, MADE)
    merge_plans(store, [MADE.name], guard=CREATE, author="test")
    assert verify_command(root=str(tmp_path)) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("1 version ") and "raw" not in line
    store.put("campaigns/made/plans/1.json~", b"an editor's")
    assert verify_command(root=str(tmp_path)) == 0
    reported = capsys.readouterr().out.splitlines()
    assert reported[0].startswith("stray campaigns/made/plans/1.json~: ")
    assert reported[1].startswith("1 version ") and reported[1].endswith(" 1 stray")
    store.put(keys.commit(99_999_999), b"")  # which is not a version
    assert verify_command(root=str(tmp_path)) == 0
    reported = capsys.readouterr().out.splitlines()
    assert reported[-1].startswith("1 version ") and reported[-1].endswith(" 2 strays")
    store.delete(keys.part("made", "shard", "attempt-1", 0))
    assert verify_command(root=str(tmp_path)) == 1
    assert verify_command(root=str(tmp_path), version=1) == 1


@pytest.mark.thorough
def test_damaged_objects_are_not_listed_as_strays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = of_commits(tmp_path, 2)
    for key in (keys.commit(2), keys.plan("made", 1)):
        store.put(key, b"")
    assert verify_command(root=str(tmp_path)) == 1
    reported = capsys.readouterr().out.splitlines()
    assert not [line for line in reported if line.startswith("stray")]
    for harmed in (f"version 1: {keys.plan('made', 1)}: ", f"version 2: {keys.commit(2)}: "):
        assert any(line.startswith(harmed) for line in reported)
    assert re.search(r"\b[1-9]\d* problems?$", reported[-1])


@pytest.mark.thorough
def test_merge_with_damaged_shards_publishes_the_others_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(str(tmp_path))
    shards = [MadeShard(f"s{at}", [r], [answered([r], 5.0)]) for at, r in enumerate(RECORDS)]
    write_campaign(store, MadePlan(shards))
    key = keys.part("made", "s1", "attempt-1", 0)
    store.put(key, b"rot")
    assert merge_command("made", root=str(tmp_path), single_writer=True) == 1
    damaged, published = capsys.readouterr().out.splitlines()
    assert missing(damaged, ["damaged", "s1", "plan 1", key]) == []
    assert published.startswith("version 1") and numbers(published) == ["1", "1"]
    assert merge_command("made", root=str(tmp_path), single_writer=True, allow_damaged=True) == 0
    assert "damaged" in capsys.readouterr().out
    # The plan that measures it again repairs it.
    write_campaign(store, MadePlan([MadeShard("s1m", RECORDS[1:], [{}])], number=2))
    again = MadeShard("s1n", RECORDS[1:], [answered(RECORDS[1:], 6.0)])
    write_campaign(store, MadePlan([again], number=3))
    assert merge_command("made", root=str(tmp_path), plan=[1, 3], single_writer=True) == 0


def test_missing_shards_block_a_merge_with_damaged_shards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(str(tmp_path))
    late = MadeShard("late", RECORDS[1:], is_committed=False)
    shards = [MadeShard("bad", RECORDS[:1], [answered(RECORDS[:1], 5.0)]), late]
    write_campaign(store, MadePlan(shards))
    store.put(keys.committed("made", "bad"), b"")
    assert merge_command("made", root=str(tmp_path), single_writer=True) == 3
    by_label = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert missing(by_label["damaged"], ["bad", "plan 1"]) == []
    assert missing(by_label["missing"], ["late", "bad"]) == ["bad"]
    assert merge_command("made", root=str(tmp_path), allow_missing=True, single_writer=True) == 1


def test_quality_lists_rows_with_warnings_by_interval_width(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reported = {
        RECORDS[0].case_id: Tried(5.0, warnings=("spread 30 % is above 10 %",)),
        RECORDS[1].case_id: Tried(outcome=Outcome.IMPLAUSIBLE, reason="0 us is not a duration"),
    }
    store = open_store(str(tmp_path))
    made = MadePlan([MadeShard("shard", RECORDS, [reported])])
    write_campaign(store, made)
    merge_plans(store, [made.name], guard=CREATE, author="test")
    quality_command(root=str(tmp_path), list_rows=True)
    lines = capsys.readouterr().out.splitlines()
    assert missing(lines[0], [PATH]) == []
    assert missing(lines[1], ["Add 1,64;1,64", "5", "spread", "30"]) == []
    assert missing(lines[2], ["Add 2,64;2,64", "no duration"]) == []
    assert numbers(lines[3]) == ["1", "1", "1"]
    quality_command(root=str(tmp_path), list_rows=True, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert [(one["mean_us"], one["warnings"]) for one in found] == [
        (5.0, ["spread"]),
        (None, ["no duration"]),
    ]


def test_quality_counts_the_usable_durations_and_what_the_others_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disturbed, few = "the session was disturbed: threads waited", "2 accepted repeats: too few"
    of_warnings = [(disturbed,), (few, disturbed), ("canaries: apart",), (few,), ("odd",)]
    records = [add_record(rows) for rows in range(1, 9)]
    tight, wide, once, *warned = (record.case_id for record in records)
    sessions = [
        {tight: Tried(10.0 + at / 1000, n_accepted=30), wide: Tried(10.0 + at, n_accepted=30)}
        for at in range(5)
    ]
    sessions[0][once] = Tried(10.0, n_accepted=30)
    for case, warnings in zip(warned, of_warnings, strict=True):
        sessions[0][case] = Tried(10.0, n_accepted=30, warnings=warnings)
    shards = [
        MadeShard(f"shard-{at}", [r for r in records if r.case_id in session], [session])
        for at, session in enumerate(sessions)
    ]
    store, made = open_store(str(tmp_path)), MadePlan(shards)
    write_campaign(store, made)
    merge_plans(store, [made.name], guard=CREATE, author="test")
    quality_command(root=str(tmp_path), as_json=True)
    (found,) = json.loads(capsys.readouterr().out)
    more, here = (found["verdict"].pop(name) for name in ("more_sessions", "more_sessions_here"))
    assert 1 < more <= here
    assert found["verdict"] == {
        "tolerance": 0.1,
        "durations": 8,
        "usable": 1,
        "needs": {
            Need.UNDISTURBED: 3,
            Need.STEADY: 1,
            Need.CHECK: 1,
            Need.SECOND_SESSION: 1,
            Need.MORE_SESSIONS: 1,
        },
    }
    quality_command(root=str(tmp_path), tolerance="5%")
    lines = capsys.readouterr().out.splitlines()
    assert [numbers(line) for line in lines if line.startswith("usable")] == [["0", "8", "5"]]
    others = [numbers(line)[0] for line in lines if line.startswith("others")]
    assert others == ["3", "2", "1", "1", "1"]
    for text in ("0", "-5%", "10x", "", "inf"):
        with pytest.raises(BadInput, match="--tolerance"):
            quality_command(root=str(tmp_path), tolerance=text)


def test_gc_lists_before_deleting_and_du_counts_the_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = of_commits(tmp_path / "store", 1)
    root, left = str(tmp_path / "store"), keys.shown(PATH, "00000001-0123abcd")
    gc_command(root=root)
    assert numbers(capsys.readouterr().out)[0] == "0"
    store.put(left, b"of a killed merge")
    for delete in (False, True):
        gc_command(root=root, delete=delete)
        first, last = capsys.readouterr().out.splitlines()
        assert first.split() == ["17", "B", left] and numbers(last)[0] == "1"
        assert (left in {info.key for info in store.list("db/")}) is not delete
    du_command(root=root, by=True)
    reported = capsys.readouterr().out
    *_, total, free = reported.splitlines()
    assert "shown cases" in reported and PATH in reported and total.endswith(store.url)
    assert free.split() == ["0", "B", "can", "be", "freed"]


def test_du_names_the_commands_that_free_space(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = of_commits(tmp_path / "a store", 12)
    root = str(tmp_path / "a store")
    store.put(keys.shown(PATH, "00000001-0123abcd"), b"of a killed merge")
    du_command(root=root)
    unnamed, old = capsys.readouterr().out.splitlines()[-2:]
    assert missing(unnamed, ["17 B", "1 object"]) == [] and "2 old versions" in old
    du_command(root=root, as_json=True)
    planned = json.loads(capsys.readouterr().out)["free"]
    for line, free in ((unnamed, planned[0]), (old, planned[1])):
        command = line[line.index("opmeter db gc") :]
        assert command == free["command"] and "--delete" in command
        done = invoked(*shlex.split(command)[1:])
        assert numbers(done.stdout.splitlines()[-1])[0] == str(free["objects"])
    du_command(root=root)
    assert capsys.readouterr().out.splitlines()[-1].endswith(" 0 B  can be freed")
    store.put(keys.commit(12), b"rot")
    du_command(root=root)
    assert keys.commit(12) in capsys.readouterr().out.splitlines()[-1]


def test_verify_marks_the_verified_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor one that a merge adds in the meantime."""
    store, root = of_commits(tmp_path / "store", 2), str(tmp_path / "store")
    monkeypatch.setenv("OPMETER_VERIFY_KEY", "secret")
    find = verify.find_problems

    def with_a_merge(*arguments: Any, **options: Any) -> list[verify.Problem]:
        found = find(*arguments, **options)
        made = replace(MADE, number=9, head_commit=2, attempt="attempt-9", campaign="late")
        write_campaign(store, made)
        merge_plans(store, [made.name], guard=CREATE, author="test")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(verify, "find_problems", with_a_merge)
        assert verify_command(root=root) == 0
    marked = verified_commit(store, "secret", with_raw=True)
    assert marked is not None and marked.number == 2
    assert verify_command(root=root) == 0
    assert "up to 2" in capsys.readouterr().out
    newest = verified_commit(store, "secret", with_raw=True)
    assert newest is not None and newest.number == 3
