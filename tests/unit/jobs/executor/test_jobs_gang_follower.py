"""Every pod of a gang except the first follows the leader until all is committed."""

import itertools
import json
import platform
import threading
from pathlib import Path

import pytest

from collector.comm.gang import GangFailed
from collector.comm.meeting import Gone, MeetingAddress, Unreached
from collector.model import keys
from collector.store.file import FileStore
from collector.worker.exit_codes import ExitCode
from jobs.executor import worker_pod
from jobs.executor.local_run import LocalRunFailed
from jobs.executor.worker_pod import follow_gang
from jobs.objects.waves import Wave

pytestmark = pytest.mark.fast

WAVE = Wave("c", 1, "h", 0, (("g0",), ("g0",)), pods=2)


@pytest.fixture(autouse=True)
def reconciles_often(monkeypatch):
    monkeypatch.setattr(worker_pod, "_POLL_S", 0.01)


class Simulated:
    """Follows by a script: each meeting does what its turn specifies. `left` are the shards."""

    def __init__(self, tmp_path: Path, *turns):
        self.store = FileStore(tmp_path / "store")
        self.scratch, self.turns = tmp_path / "work", list(turns)
        self.met: list[tuple[str, int]] = []
        self.left, self.stop = ["g0"], threading.Event()
        self.lead("first")

    def lead(self, token: str) -> None:
        self.store.put(
            keys.meeting("c", WAVE.wave_hash), MeetingAddress("host", 1, token).to_json()
        )

    def follow(self, place, node_rank, node, folder, tick):
        self.met.append((place.token, node_rank))
        assert list(folder.iterdir()) == []
        self.turns.pop(0)(self, folder, tick)

    def run(self):
        follow_gang(
            self.store, WAVE, 1, self.scratch, self.stop, lambda: self.left, follow=self.follow
        )
        return self.met


def ends_well(simulated, folder, tick):
    simulated.left.clear()


def gets_a_second_leader(simulated, folder, tick):
    simulated.lead("second")


def is_gone(simulated, folder, tick):
    simulated.lead("second")
    raise Gone("no leader")


def fails_together(simulated, folder, tick):
    words = ("comparing", "a first message", "a case")
    steps = [{"process": [1, 1], "step": "joining"}, *({"step": word} for word in words)]
    (folder / "rank-2.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    simulated.lead("second")
    raise GangFailed("rank 2 was killed")


def fails_alone(simulated, folder, tick):
    raise GangFailed("rank 2 exited with 1 in: before its first step")


def is_stopped(simulated, folder, tick):
    simulated.stop.set()
    tick(0)


def test_pod_follows_until_all_shards_are_committed(tmp_path):
    assert Simulated(tmp_path, ends_well).run() == [("first", 1)]


@pytest.mark.parametrize("turn", [gets_a_second_leader, is_gone, fails_together])
def test_next_leader_is_followed_after_any_end_of_the_last(tmp_path, turn):
    assert Simulated(tmp_path, turn, ends_well).run() == [("first", 1), ("second", 1)]


def test_ranks_that_do_not_begin_blame_their_node(tmp_path):
    with pytest.raises(LocalRunFailed, match="rank 2 exited with 1") as failed:
        Simulated(tmp_path, fails_alone).run()
    assert (failed.value.code, failed.value.shard) == (ExitCode.NODE, "g0")


def is_unreached(simulated, folder, tick):
    raise Unreached("cannot reach the first node at host:1: timed out")


def test_unreachable_leader_is_reported_with_both_addresses_and_blames_no_node(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(worker_pod, "GATHER_S", 0.0)
    simulated = Simulated(tmp_path, is_unreached, is_unreached)
    with pytest.raises(
        LocalRunFailed, match="cannot reach the first node at host:1: timed out"
    ) as failed:
        simulated.run()
    assert platform.node() in str(failed.value)
    assert (failed.value.code, failed.value.shard) == (ExitCode.PEERS, "g0")
    assert list(simulated.scratch.iterdir()) == [] and len(simulated.met) == 2


def test_connection_that_opens_later_is_not_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_pod, "GATHER_S", 0.0)
    turns = [is_unreached, is_gone, is_unreached, ends_well]
    assert len(Simulated(tmp_path, *turns).run()) == 4


def test_stopped_follower_blames_no_node(tmp_path):
    assert Simulated(tmp_path, is_stopped).run() == [("first", 1)]


def test_meeting_leaves_no_files(tmp_path):
    simulated = Simulated(tmp_path, fails_together, ends_well)
    simulated.run()
    assert list(simulated.scratch.iterdir()) == []


def lead_at_second_read(simulated):
    """Write a sound place just before the store is read for it the second time."""
    reconciliations, read = itertools.count(1), simulated.store.get

    def get(key):
        if next(reconciliations) == 2:
            simulated.lead("first")
        return read(key)

    simulated.store.get = get


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff"])
def test_damaged_leader_address_is_retried(tmp_path, damage):
    simulated = Simulated(tmp_path, ends_well)
    simulated.store.put(keys.meeting("c", WAVE.wave_hash), damage)
    lead_at_second_read(simulated)
    assert simulated.run() == [("first", 1)]


def test_missing_leader_address_is_retried(tmp_path):
    simulated = Simulated(tmp_path, ends_well)
    simulated.store.delete(keys.meeting("c", WAVE.wave_hash))
    lead_at_second_read(simulated)
    assert simulated.run() == [("first", 1)]


def test_no_leader_is_followed_if_all_shards_are_committed(tmp_path):
    simulated = Simulated(tmp_path)
    simulated.left.clear()
    assert simulated.run() == []
