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
def looks_often(monkeypatch):
    monkeypatch.setattr(worker_pod, "_POLL_S", 0.01)


class Played:
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


def ends_well(played, folder, tick):
    played.left.clear()


def gets_a_second_leader(played, folder, tick):
    played.lead("second")


def is_gone(played, folder, tick):
    played.lead("second")
    raise Gone("no leader")


def fails_together(played, folder, tick):
    words = ("comparing", "a first message", "a case")
    steps = [{"process": [1, 1], "step": "joining"}, *({"step": word} for word in words)]
    (folder / "rank-2.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    played.lead("second")
    raise GangFailed("rank 2 was killed")


def fails_alone(played, folder, tick):
    raise GangFailed("rank 2 exited with 1 in: before its first step")


def is_stopped(played, folder, tick):
    played.stop.set()
    tick(0)


def test_pod_follows_until_all_shards_are_committed(tmp_path):
    assert Played(tmp_path, ends_well).run() == [("first", 1)]


@pytest.mark.parametrize("turn", [gets_a_second_leader, is_gone, fails_together])
def test_next_leader_is_followed_after_any_end_of_the_last(tmp_path, turn):
    assert Played(tmp_path, turn, ends_well).run() == [("first", 1), ("second", 1)]


def test_ranks_that_do_not_begin_blame_their_node(tmp_path):
    with pytest.raises(LocalRunFailed, match="rank 2 exited with 1") as failed:
        Played(tmp_path, fails_alone).run()
    assert (failed.value.code, failed.value.shard) == (ExitCode.NODE, "g0")


def is_unreached(played, folder, tick):
    raise Unreached("cannot reach the first node at host:1: timed out")


def test_unreachable_leader_is_reported_with_both_addresses_and_blames_no_node(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(worker_pod, "GATHER_S", 0.0)
    played = Played(tmp_path, is_unreached, is_unreached)
    with pytest.raises(
        LocalRunFailed, match="cannot reach the first node at host:1: timed out"
    ) as failed:
        played.run()
    assert platform.node() in str(failed.value)
    assert (failed.value.code, failed.value.shard) == (ExitCode.PEERS, "g0")
    assert list(played.scratch.iterdir()) == [] and len(played.met) == 2


def test_connection_that_opens_later_is_not_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_pod, "GATHER_S", 0.0)
    turns = [is_unreached, is_gone, is_unreached, ends_well]
    assert len(Played(tmp_path, *turns).run()) == 4


def test_stopped_follower_blames_no_node(tmp_path):
    assert Played(tmp_path, is_stopped).run() == [("first", 1)]


def test_meeting_leaves_no_files(tmp_path):
    played = Played(tmp_path, fails_together, ends_well)
    played.run()
    assert list(played.scratch.iterdir()) == []


def lead_at_second_read(played):
    """Write a sound place just before the store is read for it the second time."""
    looks, read = itertools.count(1), played.store.get

    def get(key):
        if next(looks) == 2:
            played.lead("first")
        return read(key)

    played.store.get = get


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff"])
def test_damaged_leader_address_is_retried(tmp_path, damage):
    played = Played(tmp_path, ends_well)
    played.store.put(keys.meeting("c", WAVE.wave_hash), damage)
    lead_at_second_read(played)
    assert played.run() == [("first", 1)]


def test_missing_leader_address_is_retried(tmp_path):
    played = Played(tmp_path, ends_well)
    played.store.delete(keys.meeting("c", WAVE.wave_hash))
    lead_at_second_read(played)
    assert played.run() == [("first", 1)]


def test_no_leader_is_followed_if_all_shards_are_committed(tmp_path):
    played = Played(tmp_path)
    played.left.clear()
    assert played.run() == []
