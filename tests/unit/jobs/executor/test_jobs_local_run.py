"""Workers that crash, stop or fail, and how the executor of this machine handles it."""

import errno
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import zstandard

from collector.codec.errors import StoreUnavailable
from collector.database.shard_commits import read_shard_commit
from collector.measuring.batches import Unmeasured
from collector.model import keys
from collector.model.manifest import manifest_from_json
from collector.model.measurement import Outcome
from collector.model.plan import read_shard
from collector.store.file import FileStore
from collector.store.in_memory import MemoryStore
from collector.worker.answers import ShardResults
from collector.worker.assignment import Assignment
from collector.worker.attempt import Attempt
from collector.worker.exit_codes import ExitCode
from jobs.executor.local_run import LocalRun, LocalRunFailed
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    add_record,
    write_campaign,
)
from tests.unit.collector.worker.stored_parts import measured

ROOT = Path(__file__).parents[4]
SIGKILLED = -signal.SIGKILL


@dataclass(frozen=True, kw_only=True)
class ScriptedRun(LocalRun):
    """A run whose workers only do what `worker` specifies."""

    worker: Callable[[Assignment], tuple[int, str]]

    def attempt(self, assignment):
        return self.worker(assignment)


def reported_run(store, tmp_path, worker, finished=None):
    """A run of one shard of two cases, and that shard."""
    shard = MadeShard("s1", [add_record(1), add_record(2)], is_committed=False)
    plan = write_campaign(store, MadePlan([shard]))
    return ScriptedRun(
        store=store,
        watched=MemoryStore(),
        plan=plan,
        scratch=tmp_path,
        devices=[0],
        stop=threading.Event(),
        on_progress=lambda shard, done: None,
        on_finished=(finished if finished is not None else []).append,
        worker=worker,
    )


def outcomes(store, plan):
    """The final outcomes of the committed shard."""
    commit = read_shard_commit(store, plan.campaign, "s1")
    final = manifest_from_json(store.get(commit.manifest.key)).final
    rows = {m.measurement_id: m for m in measured(store, plan.campaign)}
    return [rows[m].outcome for m in final.values()]


@pytest.mark.fast
def test_abandoned_shard_keeps_the_parts_of_its_last_worker(tmp_path):
    store, finished = MemoryStore(), []
    cases = []

    def dies_with_a_part(assignment):
        attempt = Attempt(store, run.plan, assignment.shard, assignment.attempt, "here")
        answers = ShardResults(attempt, cases)
        answers.add_unmeasured([Unmeasured(cases[0].record, Outcome.REJECTED, "no")])
        return SIGKILLED, ""

    run = reported_run(store, tmp_path, dies_with_a_part, finished)
    cases += read_shard(store.get(keys.shard("made", "s1")))
    run.measure(["s1"])
    assert sorted(outcomes(store, run.plan)) == [Outcome.CRASHED, Outcome.REJECTED]
    assert finished == ["s1"]


@pytest.mark.fast
def test_stopped_worker_is_not_a_failed_attempt(tmp_path):
    codes = [ExitCode.TEMPORARY] * 5 + [SIGKILLED, ExitCode.TEMPORARY, ExitCode.HANG, ExitCode.DONE]
    finished = []
    run = reported_run(MemoryStore(), tmp_path, lambda assignment: (codes.pop(0), ""), finished)
    run.measure(["s1"])
    assert codes == [] and finished == ["s1"]


@pytest.mark.fast
def test_shard_is_given_up_after_three_dead_workers(tmp_path):
    store, codes = MemoryStore(), [SIGKILLED, ExitCode.HANG, -signal.SIGSEGV, ExitCode.DONE]
    run = reported_run(store, tmp_path, lambda assignment: (codes.pop(0), ""))
    run.measure(["s1"])
    assert codes == [ExitCode.DONE] and outcomes(store, run.plan) == [Outcome.CRASHED] * 2


@pytest.mark.fast
@pytest.mark.parametrize("code", [1, ExitCode.IMAGE, ExitCode.NODE, ExitCode.STORE, ExitCode.SPACE])
def test_worker_that_blames_the_machine_ends_the_run_but_no_shard(tmp_path, code):
    store = MemoryStore()
    run = reported_run(store, tmp_path, lambda assignment: (code, "torch 2.9 is expected"))
    with pytest.raises(LocalRunFailed, match="torch 2.9 is expected"):
        run.measure(["s1"])
    assert read_shard_commit(store, "made", "s1") is None


@pytest.mark.fast
@pytest.mark.parametrize(
    ("code", "tried"),
    [
        (ExitCode.NODE, 3),
        (ExitCode.HANG, 3),
        (SIGKILLED, 3),
        (ExitCode.IMAGE, 1),
        (ExitCode.STORE, 1),
    ],
)
def test_bad_shard_does_not_prevent_the_others_if_all_are_tried(tmp_path, code, tried):
    seen = []

    def worker(assignment):
        seen.append(assignment.shard)
        return (code, "no") if assignment.shard == "s1" else (0, "")

    run = replace(reported_run(MemoryStore(), tmp_path, worker), gives_up=False, tries_all=True)
    with pytest.raises(LocalRunFailed, match="no") as failure:
        run.measure(["s1", "s2", "s3"])
    assert len(seen) == tried and failure.value.shard == "s1"


@pytest.mark.fast
def test_machine_error_ends_the_run_with_one_line(tmp_path):
    def no_room(assignment):
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/x")

    run = reported_run(MemoryStore(), tmp_path, no_room)
    with pytest.raises(LocalRunFailed, match="shard s1: .*No space left on device: '/tmp/x'"):
        run.measure(["s1"])


class SlowWorker:
    """A worker that is still running at this many checks, and then exits with success."""

    def __init__(self, reconciliations):
        self.reconciliations, self.waited_s = reconciliations, []

    def wait(self, timeout):
        self.waited_s.append(timeout)
        if len(self.waited_s) > self.reconciliations:
            return 0
        raise subprocess.TimeoutExpired("worker", timeout)


@pytest.mark.fast
def test_run_does_not_wait_for_progress(tmp_path):
    class Requested(MemoryStore):
        def get(self, key):
            requested.append(key)
            raise StoreUnavailable("away")

    class Patient(MemoryStore):
        def get(self, key):
            assert "progress" not in key
            return super().get(key)

    requested = []
    run = reported_run(Patient(), tmp_path, worker=None)
    run, slow = replace(run, watched=Requested(), progress_s=0.0), SlowWorker(reconciliations=3)
    assert run._watch(slow, Assignment("made", 1, "h", "s1", "a1")) == 0
    assert requested == [keys.progress("made", "s1", "a1")] * 3
    assert max(slow.waited_s) <= 1.0


@pytest.mark.fast
def test_progress_is_read_at_most_as_often_as_it_is_written(tmp_path):
    class Requested(MemoryStore):
        def get(self, key):
            requested.append(key)
            raise StoreUnavailable("away")

    requested = []
    run = reported_run(MemoryStore(), tmp_path, worker=None)
    run = replace(run, watched=Requested(), progress_s=30.0)
    assert run._watch(SlowWorker(reconciliations=4), Assignment("made", 1, "h", "s1", "a1")) == 0
    assert len(requested) == 1


@pytest.mark.fast
def test_worker_gets_the_hash_of_its_plan(tmp_path):
    reported = []
    run = reported_run(
        MemoryStore(), tmp_path, lambda a: (reported.append(a), (ExitCode.DONE, ""))[1]
    )
    run.measure(["s1"])
    assert [a.plan_hash for a in reported] == [run.plan.plan_hash]
    assert ["--plan-hash", run.plan.plan_hash] == reported[0].as_arguments()[4:6]


@pytest.fixture
def dying_worker(tmp_path, monkeypatch, real_starts):
    """Workers that print a message and end as specified."""

    def put(end):
        package = tmp_path / "dying" / "collector" / "worker"
        package.mkdir(parents=True)
        for folder in (package, package.parent):
            (folder / "__init__.py").touch()
        (package / "__main__.py").write_text(
            "import os, sys, time\n"
            "print('session 3: Add 4,4', file=sys.stderr, flush=True)\n"
            f"{end}\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "dying"))

    return put


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("os.kill(os.getpid(), 9)", -9),
        ("os.abort()", -signal.SIGABRT),
        ("raise RuntimeError('nobody foresaw it')", 1),
        (f"sys.exit({int(ExitCode.HANG)})", ExitCode.HANG),
    ],
)
def test_log_of_a_killed_worker_is_stored_by_its_parent(tmp_path, dying_worker, end, code):
    dying_worker(end)
    store = FileStore(tmp_path / "data")
    run = replace(reported_run(store, tmp_path / "work", worker=None), watched=store)
    assert LocalRun.attempt(run, Assignment("made", 1, "h", "s1", "a1"))[0] == code
    log = zstandard.decompress(store.get(keys.attempt_log("made", "s1", "a1"))).decode()
    assert log.startswith("session 3: Add 4,4\n")


def test_log_stored_by_a_worker_is_kept(tmp_path, dying_worker):
    dying_worker(f"sys.exit({int(ExitCode.HANG)})")
    store = FileStore(tmp_path / "data")
    store.create(keys.attempt_log("made", "s1", "a1"), b"its own")
    run = replace(reported_run(store, tmp_path / "work", worker=None), watched=store)
    LocalRun.attempt(run, Assignment("made", 1, "h", "s1", "a1"))
    assert store.get(keys.attempt_log("made", "s1", "a1")) == b"its own"


@pytest.mark.parametrize(("code", "left"), [(ExitCode.DONE, False), (ExitCode.NODE, True)])
def test_scratch_folder_of_a_finished_worker_is_removed(tmp_path, dying_worker, code, left):
    dying_worker(f"sys.exit({int(code)})")
    run = reported_run(FileStore(tmp_path / "data"), tmp_path / "work", worker=None)
    LocalRun.attempt(run, Assignment("made", 1, "h", "s1", "a1"))
    assert (tmp_path / "work" / "a1").exists() is left


def test_log_of_a_worker_that_exits_is_not_stored_by_its_parent(tmp_path, dying_worker):
    dying_worker(f"sys.exit({int(ExitCode.TEMPORARY)})")
    run = reported_run(FileStore(tmp_path / "data"), tmp_path / "work", worker=None)
    LocalRun.attempt(run, Assignment("made", 1, "h", "s1", "a1"))
    assert list(run.watched.list(keys.attempts("made", "s1"))) == []


@pytest.mark.usefixtures("real_starts")
def test_files_in_the_working_directory_are_not_imported_by_a_worker(tmp_path, monkeypatch):
    (tmp_path / "statistics.py").write_text("raise SystemExit('a file of the user')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    run = reported_run(FileStore(tmp_path / "data"), tmp_path, worker=None)
    code, words = LocalRun.attempt(run, Assignment("made", 7, "h", "s1", "a1"))
    assert code == ExitCode.IMAGE and "plans/7.json" in words
