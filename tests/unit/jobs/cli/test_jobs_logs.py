"""`opmeter logs`: the stored log of an attempt, and the log of its pod where none is stored."""

import tracemalloc

import pytest
import zstandard

from collector.codec.errors import BadInput
from collector.model import keys
from collector.store import open_store
from jobs.cli.cluster import logs_command
from jobs.kube.cluster import Cluster
from jobs.kube.errors import ClusterError
from jobs.objects.applied_campaign import config_map
from jobs.objects.deployment import Deployment
from jobs.objects.waves import Wave, wave_to_json
from jobs.status import follower
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    add_record,
    write_campaign,
)
from tests.unit.jobs.printed import missing, raises_naming

pytestmark = pytest.mark.fast

TEXT = "campaign: small\nsources: [{bundled: quickstart}]\nbackend: cpu\n"
ONE, TWO = add_record(1), add_record(2)
WAVE = Wave("small", 1, "hash", 0, (("s-done",), ("s-open",)))


class Pods:
    """A namespace whose pods have logs."""

    namespace = "bench"

    def __init__(self, root):
        deployment = Deployment("bench", "here/a:1", "here/b:1", root)
        self.campaigns = [config_map("small", TEXT, {"site": "cpu"}, deployment)]
        self.found, self.logs, self.refuses = [], {}, False

    def config_maps(self, selector):
        return self.campaigns

    def pods(self, selector):
        assert selector == "opmeter.io/campaign=small"
        if self.refuses:
            raise ClusterError("403: forbidden")
        return self.found

    def log(self, pod):
        if pod not in self.logs:
            raise ClusterError("400: container is waiting to start")
        return self.logs[pod]

    def add(self, name, index, text=None, phase="Failed", job=WAVE.job_name):
        labels = {
            "batch.kubernetes.io/job-name": job,
            "batch.kubernetes.io/job-completion-index": str(index),
        }
        metadata = {"name": name, "uid": name, "labels": labels}
        metadata["creationTimestamp"] = str(len(self.found))
        self.found.append(
            {"metadata": metadata, "spec": {"nodeName": "n1"}, "status": {"phase": phase}}
        )
        if text is not None:
            self.logs[name] = text


@pytest.fixture
def store(tmp_path):
    found = open_store(str(tmp_path / "store"))
    shards = [
        MadeShard("s-done", [ONE], [{}]),
        MadeShard("s-open", [TWO], is_committed=False),
    ]
    write_campaign(found, MadePlan(shards, campaign="small"))
    found.put(keys.wave("small", WAVE.wave_hash), wave_to_json(WAVE))
    return found


@pytest.fixture
def pods(tmp_path, monkeypatch):
    simulated = Pods(f"file://{tmp_path}/store")
    monkeypatch.setattr(Cluster, "connect", classmethod(lambda cls, namespace=None: simulated))
    return simulated


def store_log(store, shard, attempt, text):
    store.put(keys.attempt_log("small", shard, attempt), zstandard.compress(text.encode()))


def test_log_of_a_killed_worker_has_the_output_of_its_pod(store, pods, tmp_path, capsys):
    pods.add("wave-1-a", 1, "out of memory")
    pods.add("wave-1-b", 1, "it goes on", phase="Running")
    pods.add("wave-0-a", 0, "of another index")
    pods.add("other", 1, "of another wave", job="opmeter-small-other")
    logs_command("s-op", root=str(tmp_path / "store"))
    of_a, first, of_b, second = capsys.readouterr().out.splitlines()
    assert missing(of_a, ["wave-1-a", "Failed", "n1"]) == [] and first == "out of memory"
    assert missing(of_b, ["wave-1-b", "Running", "n1"]) == [] and second == "it goes on"


def test_stored_logs_precede_and_replace_pod_output_of_committed_shards(
    store, pods, tmp_path, capsys
):
    for shard in ("s-done", "s-open"):
        store_log(store, shard, "a-1", f"stored of {shard}")
    pods.add("wave-0-a", 0, "printed")
    pods.add("wave-1-a", 1, "printed")
    logs_command("s-done", root=str(tmp_path / "store"), campaign="small")
    printed = capsys.readouterr().out
    assert "stored of s-done" in printed and "wave-" not in printed
    logs_command("s-open", root=str(tmp_path / "store"), campaign="small")
    printed = capsys.readouterr().out
    assert printed.index("stored of s-open") < printed.index("wave-1-a")


def test_store_is_found_by_the_address_in_the_cluster(store, pods, tmp_path, monkeypatch, capsys):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    store_log(store, "s-done", "a-1", "stored")
    for campaign in ("small", None):
        logs_command("s-done", campaign=campaign)
        assert "stored" in capsys.readouterr().out


def test_local_folder_precedes_the_cluster(store, pods, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pods.campaigns = []
    store_log(store, "s-done", "a-1", "stored here")
    (tmp_path / "store").rename(tmp_path / "opmeter-data")
    logs_command("s-done")
    assert "stored here" in capsys.readouterr().out


def test_the_shards_of_a_finished_campaign_are_listed_too(store, pods, tmp_path, capsys):
    logs_command(root=str(tmp_path / "store"))
    done, still_open = capsys.readouterr().out.splitlines()
    assert missing(done, ["s-done", "small", "plan 1", "1 case", "committed"]) == []
    assert missing(still_open, ["s-open", "small", "plan 1", "1 case", "open"]) == []


def test_unknown_shard_is_refused_with_the_existing_ones(store, pods, tmp_path):
    with raises_naming(BadInput, "'x'", "0", "s-done, s-open"):
        logs_command("x", root=str(tmp_path / "store"), campaign="small")


def test_unknown_campaign_is_refused_with_the_existing_ones(store, pods, tmp_path):
    with raises_naming(BadInput, "'smal'", "small"):
        logs_command("s-done", root=str(tmp_path / "store"), campaign="smal")


def test_missing_logs_are_reported_with_the_reason(store, pods, tmp_path, monkeypatch):
    root = str(tmp_path / "store")
    with raises_naming(BadInput, "s-open", "small"):
        logs_command("s-open", root=root)
    pods.add("wave-1-a", 1, phase="Pending")
    with raises_naming(BadInput, "wave-1-a", "Pending", "n1", "400: container is waiting"):
        logs_command("s-open", root=root)
    pods.refuses = True
    with pytest.raises(BadInput, match="403: forbidden"):
        logs_command("s-open", root=root)
    with raises_naming(BadInput, "'s-'", "2", "s-done, s-open"):
        logs_command("s-", root=root)


def test_an_empty_log_is_reported_as_empty(store, pods, tmp_path, capsys):
    store_log(store, "s-open", "a-1", "")
    pods.add("wave-1-a", 1, "")
    logs_command("s-open", root=str(tmp_path / "store"))
    stored, empty, pod, *_, also_empty = capsys.readouterr().out.splitlines()
    assert "a-1" in stored and "wave-1-a" in pod and empty == also_empty and empty.startswith("(")


def displayed_log(store, tmp_path, capsys, data):
    store.put(keys.attempt_log("small", "s-done", "a-1"), data)
    logs_command("s-done", root=str(tmp_path / "store"), campaign="small")
    return capsys.readouterr().out


def test_control_characters_of_a_stored_log_are_escaped(store, pods, tmp_path, capsys):
    steering = "ok\r\n\x1b]52;c;aGk=\x07\ttitle \x1b]0;x\x07 \x9b2J back\u202ewards\rgone\n\udcff"
    text = zstandard.compress(steering.encode("utf-8", "surrogateescape"))
    shown = displayed_log(store, tmp_path, capsys, text)
    _, *lines = shown.splitlines()
    assert lines[0] == "ok"
    assert lines[1].startswith(r"\x1b]52;c;aGk=\x07") and "\ttitle" in lines[1]
    assert r"\x9b2J back\u202ewards\rgone" in lines[1]
    assert all(c.isprintable() or c in "\n\t" for c in shown)


@pytest.mark.thorough
def test_decompressed_log_is_bounded(store, pods, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(follower, "_MOST_BYTES", 1 << 20)
    bomb = zstandard.compress(b"a" * (256 << 20))  # a few KiB that decompress to 256 MiB
    tracemalloc.start()
    try:
        shown = displayed_log(store, tmp_path, capsys, bomb)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert "1 MiB" in shown.splitlines()[-1]


def test_too_large_log_is_not_fetched(store, pods, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(follower, "_MOST_BYTES", 10)
    assert "0 MiB" in displayed_log(store, tmp_path, capsys, b"x" * 11)


# A frame header that declares an exabyte, one with a window of two gigabytes, and random bytes.
CLAIMS = bytes.fromhex("28b52ffde0") + (1 << 60).to_bytes(8, "little") + bytes(9)
WIDE = bytes.fromhex("28b52ffd00a8") + bytes(9)


@pytest.mark.parametrize("data", [CLAIMS, WIDE, b"no log", b"", zstandard.compress(b"a" * 99)[:-3]])
def test_malformed_log_is_reported_and_the_others_are_shown(store, pods, tmp_path, capsys, data):
    store_log(store, "s-done", "a-2", "the other")
    shown = displayed_log(store, tmp_path, capsys, data)
    assert shown.rstrip().endswith("the other")
    assert "a-1/log.zst" in shown and len(shown) < 1000


def test_control_characters_of_a_pod_log_are_escaped(store, pods, tmp_path, capsys):
    pods.add("wave-1-a", 1, "\x1b[2Jgone")
    logs_command("s-op", root=str(tmp_path / "store"))
    assert r"\x1b[2Jgone" in capsys.readouterr().out
