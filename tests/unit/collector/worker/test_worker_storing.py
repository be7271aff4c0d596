"""Nothing is measured that cannot be stored, and what was measured is never measured again: each
step after a session is broken in turn, with the records of a real session."""

import logging
import pkgutil
import shutil
import threading
from pathlib import Path

import pytest
import zstandard

from collector.codec.errors import StoreUnavailable
from collector.database.merge import CREATE, merge_plans
from collector.database.shard_commits import read_shard_commit
from collector.database.verify import find_problems
from collector.host.stack import local_stack
from collector.measuring import instrument
from collector.model import keys
from collector.model.manifest import manifest_from_json
from collector.replay.process import CONTROL
from collector.store.base import Store
from collector.store.file import FileStore
from collector.store.waiting import StoreWrapper
from collector.worker.__main__ import run
from collector.worker.assignment import LOG, Assignment
from collector.worker.attempt import read_part
from collector.worker.exit_codes import ExitCode
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    add_record,
    write_campaign,
)
from tests.unit.collector.naming import names

pytestmark = [pytest.mark.torch, pytest.mark.slow]

RECORDS = [add_record(rows) for rows in (64, 128)]


class Sessions:
    """The sessions of this module: the first one is real; a later one of the same cases has its
    records and its end. `ended` is set once one has ended, `count` is how many began."""

    def __init__(self, folder: Path):
        self._folder, self._real, self._report = folder / "session", instrument.run_session, None
        self.count, self.ended = 0, False

    def __call__(self, spec, folder, **how):
        self.count += 1
        if self._report is None:
            self._report = self._real(spec, folder, **how)
            not_files = shutil.ignore_patterns(CONTROL)
            shutil.copytree(folder, self._folder, ignore=not_files)
        else:
            shutil.copytree(self._folder, folder, dirs_exist_ok=True)
        self.ended = True
        return self._report


class FaultyStore(StoreWrapper):
    """A folder that refuses to create some objects: those with a text in their keys, after a
    session has ended."""

    def __init__(self, store: Store, text: str, sessions: Sessions):
        super().__init__(store)
        self._text, self._sessions = text, sessions

    def create(self, key, data):
        if self._sessions.ended and self._text in key:
            raise StoreUnavailable(f"{key}: the disk is away")
        super().create(key, data)


class Scene:
    """A shard in a folder, and attempts at it that have their own scratch folders."""

    def __init__(self, folder: Path, sessions: Sessions, stack):
        self.folder, self.sessions = folder, sessions
        self.store = FileStore(folder / "store")
        shard = MadeShard("s1", RECORDS, is_committed=False)
        self.plan = write_campaign(self.store, MadePlan([shard], stack=stack))
        sessions.count, sessions.ended = 0, False

    def attempt(self, name: str, store: Store | None = None) -> ExitCode:
        scratch = self.folder / name
        scratch.mkdir()
        (scratch / LOG).write_text("its log\n")
        plan = self.plan
        assignment = Assignment(plan.campaign, plan.number, plan.plan_hash, "s1", name)
        self.sessions.ended = False
        try:
            return run(store or self.store, assignment, scratch, 0.0, threading.Event())
        finally:
            shutil.rmtree(scratch)  # as the disk of a pod

    def committed(self):
        """The attempts of the parts of the committed manifest, and what the parts have."""
        commit = read_shard_commit(self.store, "made", "s1")
        manifest = manifest_from_json(self.store.get(commit.manifest.key))
        parts = [entry.part.key for entry in manifest.parts]
        found = [m for key in parts for m in read_part(self.store.get(key), key=key)]
        assert set(manifest.final.values()) == {m.measurement_id for m in found}
        return {key.split("/")[4] for key in parts}, found


@pytest.fixture(scope="module")
def stack():
    return local_stack("cpu")


@pytest.fixture
def sessions(tmp_path, monkeypatch):
    found = Sessions(tmp_path)
    monkeypatch.setattr(instrument, "run_session", found)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return found


# The functions and the objects of each step, in order.
CODE = (
    "collector.profiles.launches.read_op_summary",
    "collector.replay.results.attribute",
    "collector.replay.certificates.summarise",
    "collector.worker.attempt.Attempt.upload_part",
    "collector.worker.attempt.table_bytes",
    "collector.worker.answers.final_measurements",
)
OBJECTS = ("raw/op_summary", "raw/journal", "entry-", "part-", "log.", "manifest.", "committed/")


def broken(target, sessions, patch):
    """Break a function of the product from the end of a session on."""
    name = target.rpartition(".")[2]
    real = pkgutil.resolve_name(target)

    def fails(*given, **more):
        if sessions.ended:
            raise AttributeError(f"{name} does not suit this library")
        return real(*given, **more)

    patch.setattr(target, fails)


def test_each_step_after_a_session_may_fail_and_nothing_is_measured_again(
    tmp_path, sessions, stack, monkeypatch
):
    times, failed = set(), []
    for number, step in enumerate((*CODE, *OBJECTS)):
        scene = Scene(tmp_path / str(number), sessions, stack)
        if step in CODE:
            with monkeypatch.context() as patch, pytest.raises(AttributeError):
                broken(step, sessions, patch)
                scene.attempt("a1")
        else:
            code = scene.attempt("a1", FaultyStore(scene.store, step, sessions))
            assert code is ExitCode.STORE, step
        done = scene.attempt("a2")
        if (done, sessions.count) != (ExitCode.DONE, 1):
            failed.append(f"{step}: ended with {done} after {sessions.count} sessions")
            continue
        _, found = scene.committed()
        assert {m.case_id for m in found if m.is_good} == {r.case_id for r in RECORDS}
        times.add(tuple((m.case_id, m.timing, m.provenance.node) for m in found))
        if step in ("part-", "raw/journal"):  # the results of copies, from the store and the disk
            merged = merge_plans(scene.store, [("made", 1)], guard=CREATE, author="test")
            assert merged.added_measurements == len(RECORDS) and not merged.damaged
            assert not list(find_problems(scene.store))
    assert failed == []
    assert len(times) == 1  # those of the one session
    assert not list((tmp_path / "state").rglob("*.zst"))  # once it is committed


def test_records_that_are_damaged_or_of_another_plan_are_ignored(tmp_path, sessions, stack, caplog):
    def journal_of(scene):
        return keys.raw_journal("made", "s1", "a1", 1)

    def other_plan(data):
        lines = zstandard.ZstdDecompressor().stream_reader(data).read()
        return zstandard.compress(lines.replace(b'"plan":1,', b'"plan":2,'))

    for number, damage in enumerate(
        (lambda data: data[:-9], lambda data: b"", other_plan, lambda data: data[:40] + data[41:])
    ):
        scene = Scene(tmp_path / str(number), sessions, stack)
        code = scene.attempt("a1", FaultyStore(scene.store, "part-", sessions))
        assert code is ExitCode.STORE
        key = journal_of(scene)
        scene.store.put(key, damage(scene.store.get(key)))
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert scene.attempt("a2") is ExitCode.DONE
        attempts, _ = scene.committed()
        assert sessions.count == 2 and attempts == {"a2"}
        assert any(names(line, "journal-1", "ignoring") for line in caplog.messages)


def test_nothing_is_measured_where_results_cannot_be_stored(
    tmp_path, sessions, stack, monkeypatch, caplog
):
    def missing(*given):
        raise ImportError("pyarrow requires NumPy 2.0 or newer; found NumPy 1.26.4")

    scene = Scene(tmp_path, sessions, stack)
    with monkeypatch.context() as patch:
        patch.setattr("collector.profiles.launches.read_op_summary", missing)
        assert scene.attempt("a1") is ExitCode.IMAGE
    (line,) = [one for one in caplog.messages if "NumPy 2.0" in one]
    assert "\n" not in line and "nothing was measured" in line

    class ReadOnly(StoreWrapper):
        def create(self, key, data):
            raise StoreUnavailable(f"{key}: read-only")

    assert scene.attempt("a2", ReadOnly(scene.store)) is ExitCode.STORE
    assert sessions.count == 0
    assert scene.attempt("a3") is ExitCode.DONE and sessions.count == 1
