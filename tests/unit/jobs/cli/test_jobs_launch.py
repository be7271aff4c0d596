"""`opmeter launch --watch`: a controller on a laptop serves everything that the single Lease of the
namespace covers."""

import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from collector.codec.errors import StoreUnavailable
from collector.store.in_memory import MemoryStore
from jobs.cli import cluster, opening
from jobs.cli.opening import Stores
from jobs.controller import controller, loop
from jobs.kube import leader_election
from jobs.kube.cluster import Cluster
from jobs.objects.applied_campaign import SELECTOR, applied_from, config_map
from jobs.objects.deployment import Deployment

pytestmark = pytest.mark.fast

MINE, FROM_HERE = "s3://inside/x", "s3://outside/x"
TEXT = "campaign: {}\nsources: [{{bundled: quickstart}}]\nbackend: cpu\n"


def applied(name, root):
    there = Deployment("bench", "here/a:1", "here/b:1", root)
    return applied_from(config_map(name, TEXT.format(name), {"site": "cpu"}, there))


@pytest.fixture
def opened(monkeypatch):
    """The addresses that were opened."""
    found = []

    def open_bare(root, *, single_writer, location):
        found.append(root)
        return MemoryStore()

    monkeypatch.setattr(opening, "open_bare", open_bare)
    return found


def test_own_store_of_a_launch_has_another_address_outside_of_the_cluster(opened):
    reached = Stores(lambda: True, (MINE, FROM_HERE))
    reached.open(applied("mine", MINE))
    reached.open(applied("other", "s3://else/y"))
    assert opened == [FROM_HERE, "s3://else/y"]


def test_local_folder_is_not_mistaken_for_a_volume_of_pods(opened):
    reached = Stores(lambda: True, (MINE, FROM_HERE))
    with pytest.raises(StoreUnavailable, match="file:///store"):
        reached.open(applied("other", "file:///store"))
    Stores(lambda: True).open(applied("other", "file:///store"))  # a mount of the controller itself
    Stores(lambda: True, ("file:///store", "file:///mnt")).open(applied("mine", "file:///store"))
    assert opened == ["file:///store", "file:///mnt"]


class Looking:
    """A controller of two campaigns, the first of which is finished at the second
    reconciliation."""

    def __init__(self, cluster, open_store, *, may_perform):
        self.reconciliations = 0

    def reconcile(self):
        self.reconciliations += 1
        return {"mine": self.reconciliations > 1, "other": False}


def test_launch_watches_every_campaign_and_ends_with_its_own(monkeypatch):
    seen = []
    changes = SimpleNamespace(stop=lambda: None, wait=lambda seconds: True)

    @contextmanager
    def kept(stuck_s):
        yield
        seen.append("released")

    election = SimpleNamespace(hold=lambda: True, kept=kept)

    def watching(cluster, selector):
        seen.append(selector)
        return SimpleNamespace(start=lambda: changes)

    forever = loop.run_forever
    monkeypatch.setattr(leader_election, "Election", lambda *given: election)
    monkeypatch.setattr(controller, "Controller", Looking)
    monkeypatch.setattr(loop, "Changes", watching)
    monkeypatch.setattr(cluster, "stop_on_signals", threading.Event)
    monkeypatch.setattr(loop, "run_forever", lambda *a, **k: forever(*a, **k, interval_s=0.0))
    bench = SimpleNamespace(namespace="bench")
    assert cluster._watch(bench, "mine", (MINE, FROM_HERE)) == 0
    assert seen == [SELECTOR, "released"]


def test_printed_follow_up_command_works_locally(monkeypatch, capsys, tmp_path):
    applied_there = []
    bench = SimpleNamespace(namespace="bench", apply_config_map=applied_there.append)
    monkeypatch.setattr(Cluster, "connect", lambda namespace: bench)
    (tmp_path / "c.yaml").write_text(TEXT.format("mine"))
    root = str(tmp_path / "store")
    code = cluster.launch_command(str(tmp_path / "c.yaml"), image="here/a:1", store=MINE, root=root)
    assert code == 0
    assert [one["data"]["root"] for one in applied_there] == [MINE]
    reported = capsys.readouterr().out.splitlines()[-1].partition("opmeter status ")[2].split()
    assert reported == ["mine", "--namespace", "bench", "--root", root, "-w"]
