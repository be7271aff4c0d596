"""`opmeter logs`: what an attempt stored, and what its pod printed where it stored nothing."""

import pytest
import zstandard

from collector import keys
from collector.errors import BadInput
from collector.store import open_store
from jobs.applied import config_map
from jobs.cluster import Cluster
from jobs.cluster_errors import ClusterError
from jobs.deployment import Deployment
from jobs.verbs.logs import logs_verb
from jobs.waves import Wave, wave_to_json
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    add_record,
    write_campaign,
)

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
    played = Pods(f"file://{tmp_path}/store")
    monkeypatch.setattr(Cluster, "connect", classmethod(lambda cls, namespace=None: played))
    return played


def store_log(store, shard, attempt, text):
    store.put(keys.attempt_log("small", shard, attempt), zstandard.compress(text.encode()))


def test_a_killed_worker_is_told_by_what_its_pod_printed(store, pods, tmp_path, capsys):
    pods.add("wave-1-a", 1, "out of memory")
    pods.add("wave-1-b", 1, "it goes on", phase="Running")
    pods.add("wave-0-a", 0, "of another index")
    pods.add("other", 1, "of another wave", job="opmeter-small-other")
    logs_verb("s-op", str(tmp_path / "store"), None)
    assert capsys.readouterr().out.splitlines() == [
        *("== pod wave-1-a, Failed on n1", "out of memory"),
        *("== pod wave-1-b, Running on n1", "it goes on"),
    ]


def test_what_attempts_stored_comes_first_and_is_enough_once_the_shard_is_committed(
    store, pods, tmp_path, capsys
):
    for shard in ("s-done", "s-open"):
        store_log(store, shard, "a-1", f"stored of {shard}")
    pods.add("wave-0-a", 0, "printed")
    pods.add("wave-1-a", 1, "printed")
    logs_verb("s-done", str(tmp_path / "store"), "small")
    assert "stored of s-done" in (printed := capsys.readouterr().out) and "pod" not in printed
    logs_verb("s-open", str(tmp_path / "store"), "small")
    printed = capsys.readouterr().out
    assert printed.index("stored of s-open") < printed.index("== pod wave-1-a")


def test_the_store_is_found_as_the_cluster_names_it(store, pods, tmp_path, monkeypatch, capsys):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    store_log(store, "s-done", "a-1", "stored")
    for campaign in ("small", None):
        logs_verb("s-done", None, campaign)
        assert "stored" in capsys.readouterr().out


def test_the_folder_here_comes_before_the_cluster(store, pods, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pods.campaigns = []
    store_log(store, "s-done", "a-1", "stored here")
    (tmp_path / "store").rename(tmp_path / "opmeter-data")
    logs_verb("s-done", None, None)
    assert "stored here" in capsys.readouterr().out


def test_where_nothing_is_left_it_is_said_why(store, pods, tmp_path, monkeypatch):
    root = str(tmp_path / "store")
    with pytest.raises(BadInput, match="no attempt has left a log, and no pod of it is there"):
        logs_verb("s-open", root, None)
    pods.add("wave-1-a", 1, phase="Pending")
    with pytest.raises(BadInput, match="pod wave-1-a, Pending on n1: 400: container is waiting"):
        logs_verb("s-open", root, None)
    pods.refuses = True
    with pytest.raises(BadInput, match="403: forbidden"):
        logs_verb("s-open", root, None)
    with pytest.raises(BadInput, match="2 shards begin so"):
        logs_verb("s-", root, None)
