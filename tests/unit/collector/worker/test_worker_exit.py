"""How a worker ends when it cannot continue: its exit code, its last line, and the log it
leaves."""

import errno
import logging
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from collector.codec.errors import (
    AlreadyExists,
    BadInput,
    DeviceBusy,
    HostFault,
    NotFound,
    OpmeterError,
    PeersAway,
    PeersUnreached,
    StoreRefused,
    StoreUnavailable,
)
from collector.environment import Environment, use_environment
from collector.measuring.batches import SessionsFail, SoftwareFails
from collector.model import keys
from collector.model.plan import plan_to_json
from collector.replay.disk_space import NoSpace
from collector.replay.process import SessionStuck
from collector.store.file import FileStore
from collector.store.in_memory import MemoryStore
from collector.worker.__main__ import run
from collector.worker.assignment import LOG, Assignment
from collector.worker.blame import WrongImage, WrongNode, exit_code
from collector.worker.exit_codes import ExitCode
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    add_record,
    write_campaign,
)
from tests.unit.collector.naming import names

ROOT = Path(__file__).parents[4]
ASSIGNMENT = Assignment("made", 1, "h", "s1", "a1")


@pytest.mark.fast
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (WrongImage("other torch"), ExitCode.IMAGE),
        (BadInput("campaigns/c/attempts/s/a/part-1.csv: damaged"), ExitCode.FAILED),
        (NotFound("gone meanwhile"), ExitCode.FAILED),
        (AlreadyExists("taken"), ExitCode.FAILED),
        (WrongNode("other device"), ExitCode.NODE),
        (HostFault("npu-smi does not answer"), ExitCode.NODE),
        (SessionsFail("no torch"), ExitCode.NODE),
        (SoftwareFails("AttributeError: x"), ExitCode.IMAGE),
        (PeersAway("node 1: connection closed"), ExitCode.TEMPORARY),
        (PeersUnreached("expected 2 nodes, nodes 1 did not connect"), ExitCode.PEERS),
        (SessionStuck("still there"), ExitCode.HANG),
        (DeviceBusy("another run holds it", "wait"), ExitCode.NODE),
        (OpmeterError("unforeseen"), ExitCode.FAILED),
        (StoreUnavailable("away"), ExitCode.STORE),
        (OSError(errno.ENOSPC, "full"), ExitCode.SPACE),
        (OSError(errno.EDQUOT, "full"), ExitCode.SPACE),
        (NoSpace("no room for a profile"), ExitCode.SPACE),
        (OSError(errno.EIO, "Input/output error"), ExitCode.NODE),
        (PermissionError(errno.EACCES, "not yours"), ExitCode.FAILED),
    ],
)
def test_error_is_mapped_to_an_exit_code(error, code):
    assert exit_code(error) is code


class Away(MemoryStore):
    def get(self, key):
        raise StoreUnavailable("away")


class StopRequested(Environment):
    """Its own clock, and a request to stop one minute after the start."""

    def __init__(self, stop):
        self.now_s, self._stop = 0.0, stop

    def monotonic(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds

    def wait(self, event, seconds):
        assert event is self._stop
        self.now_s = min(self.now_s + seconds, 60.0)
        if self.now_s == 60.0:
            event.set()
        return event.is_set()


@pytest.mark.fast
def test_stopped_worker_does_not_wait_for_an_unavailable_store(tmp_path):
    stop = threading.Event()
    simulated = StopRequested(stop)
    with use_environment(simulated):
        code = run(Away(), ASSIGNMENT, tmp_path, 600.0, stop)
    assert (
        code is ExitCode.STORE and 60 < simulated.now_s < 90
    )  # its parent waits 30 s longer than the case


@pytest.mark.fast
def test_nearly_full_volume_ends_the_worker_before_an_eviction(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("OPMETER_VOLUME_BYTES", str((1 << 30) - 1))
    code = run(MemoryStore(), ASSIGNMENT, tmp_path, 1.0, threading.Event())
    assert code is ExitCode.SPACE and names(caplog.text, "1023 MiB", "1 GiB")


def of_an_npu(store):
    """A shard of a plan for an NPU."""
    shard = MadeShard("s1", [add_record(1)], is_committed=False)
    plan = replace(write_campaign(store, MadePlan([shard])), backend="npu")
    store.put(keys.plan("made", plan.number), plan_to_json(plan))
    return Assignment("made", plan.number, plan.plan_hash, "s1", "a1")


@pytest.mark.fast
@pytest.mark.parametrize(
    ("npu_smi", "named"),
    [
        (None, ("PATH", "/usr/local/bin/npu-smi")),
        ("exec sleep 30", ("0.2 s",)),
        ("echo dcmi module initialize failed. ret is -8005", ("dcmi module initialize failed",)),
    ],
)
def test_unresponsive_driver_is_a_fault_of_the_node(tmp_path, monkeypatch, caplog, npu_smi, named):
    store, work = MemoryStore(), tmp_path / "work"
    if npu_smi is not None:
        (tmp_path / "npu-smi").write_text(f"#!/bin/sh\n{npu_smi}\n")
        (tmp_path / "npu-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("collector.host.processes._TOOL_PATIENCE_S", 0.2)
    monkeypatch.setattr("collector.host.stack.installed_torch", lambda: "2.9.0")
    work.mkdir()
    assert run(store, of_an_npu(store), work, 1.0, threading.Event()) is ExitCode.NODE
    assert names(caplog.text, "npu-smi", *named)


@pytest.mark.fast
def test_missing_software_is_a_fault_of_the_image(tmp_path, monkeypatch):
    store = MemoryStore()
    monkeypatch.setattr("collector.host.stack.installed_torch", lambda: None)
    assert run(store, of_an_npu(store), tmp_path, 1.0, threading.Event()) is ExitCode.IMAGE


class FullDisk(MemoryStore):
    """Reading fails once because the disk is full."""

    def get(self, key):
        raise OSError(errno.ENOSPC, "No space left on device", "/scratch/x")


@pytest.mark.fast
def test_failing_worker_stores_its_log(tmp_path, caplog):
    (tmp_path / LOG).write_text("the last words")
    store = FullDisk()
    with caplog.at_level(logging.ERROR):
        assert run(store, ASSIGNMENT, tmp_path, 1.0, threading.Event()) is ExitCode.SPACE
    assert caplog.messages == ["[Errno 28] No space left on device: '/scratch/x'"]
    stored = MemoryStore.get(store, keys.attempt_log("made", "s1", "a1"))
    assert zstandard.decompress(stored) == b"the last words"


def test_stored_log_has_the_last_line_of_its_worker(tmp_path):
    url = (tmp_path / "data").as_uri()
    done = _worker(url, tmp_path)
    assert done.returncode == ExitCode.IMAGE
    last = done.stderr.splitlines()[-1]
    assert "plans/1.json" in last
    log = FileStore(tmp_path / "data").get(keys.attempt_log("made", "s1", "a1"))
    assert zstandard.decompress(log).decode().splitlines()[-1] == last


def test_worker_without_a_folder_reports_it_in_one_line(tmp_path):
    done = _worker((tmp_path / "data").as_uri(), tmp_path / "absent")
    assert done.returncode == ExitCode.FAILED
    assert len(done.stderr.splitlines()) == 1 and "absent/worker.log" in done.stderr


def _worker(root, scratch):
    arguments = [*ASSIGNMENT.as_arguments(), "--root", root, "--scratch", str(scratch)]
    return subprocess.run(
        [sys.executable, "-P", "-m", "collector.worker", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


class FullStore(MemoryStore):
    """A store without space for its first two requests."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0

    def get(self, key: str) -> bytes:
        self.requests += 1
        if self.requests < 3:
            raise StoreRefused(f"{key}: No space left on device")
        return super().get(key)


@pytest.mark.parametrize(("waits", "requests"), [(False, 1), (True, 3)])
def test_worker_waits_for_a_full_store_only_on_request(
    tmp_path: Path, waits: bool, requests: int
) -> None:
    store = FullStore()
    code = run(store, ASSIGNMENT, tmp_path, 600.0, threading.Event(), waits_for_refusals=waits)
    assert (code is ExitCode.STORE, store.requests) == (not waits, requests)
