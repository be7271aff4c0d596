"""`opmeter launch --watch`: a controller on a laptop serves all that the namespace's one Lease is
for."""

import threading
from types import SimpleNamespace

import pytest

from collector.errors import StoreUnavailable
from collector.store.memory import MemoryStore
from jobs.advancing import Wish
from jobs.applied import SELECTOR, applied_from, config_map
from jobs.deployment import Deployment
from jobs.verbs import launch, stores
from jobs.verbs.stores import Stores

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

    def open_bare(root, *, single_writer):
        found.append(root)
        return MemoryStore()

    monkeypatch.setattr(stores, "open_bare", open_bare)
    return found


def test_a_laptop_reaches_its_own_store_by_another_address_and_others_by_their_own(opened):
    reached = Stores(lambda: True, None, (MINE, FROM_HERE))
    reached.open(applied("mine", MINE))
    reached.open(applied("other", "s3://else/y"))
    assert opened == [FROM_HERE, "s3://else/y"]


def test_a_laptop_takes_no_folder_of_its_own_for_a_volume_of_pods(opened):
    reached = Stores(lambda: True, None, (MINE, FROM_HERE))
    with pytest.raises(StoreUnavailable, match="volume of other's pods.*controller in the cluster"):
        reached.open(applied("other", "file:///store"))
    Stores(lambda: True, None).open(applied("other", "file:///store"))  # a controller's own mount
    Stores(lambda: True, None, ("file:///store", "file:///mnt")).open(
        applied("mine", "file:///store")
    )
    assert opened == ["file:///store", "file:///mnt"]


class Looking:
    """A controller of two campaigns, the first of which is finished at the second look."""

    def __init__(self, cluster, open_store, guard_of, *, may_act):
        self.looks = 0

    def look(self):
        self.looks += 1
        return {"mine": self.looks > 1, "other": False}


def test_who_watches_follows_every_campaign_and_ends_with_its_own(monkeypatch):
    seen = []
    changes = SimpleNamespace(stop=lambda: None, wait=lambda seconds: True)
    election = SimpleNamespace(hold=lambda: True, release=lambda: seen.append("released"))

    def watching(cluster, selector):
        seen.append(selector)
        return SimpleNamespace(start=lambda: changes)

    loop = launch.run_forever
    monkeypatch.setattr(launch, "Election", lambda *given: election)
    monkeypatch.setattr(launch, "Controller", Looking)
    monkeypatch.setattr(launch, "Changes", watching)
    monkeypatch.setattr(launch, "stop_on_signals", threading.Event)
    monkeypatch.setattr(launch, "run_forever", lambda *a, **k: loop(*a, **k, interval_s=0.0))
    cluster = SimpleNamespace(namespace="bench")
    assert launch._watch(cluster, "mine", (MINE, FROM_HERE)) == 0
    assert seen == [SELECTOR, "released"]


def test_what_follows_a_launch_is_a_command_that_works_from_here(monkeypatch, capsys, tmp_path):
    applied_there = []
    cluster = SimpleNamespace(namespace="bench", apply_config_map=applied_there.append)
    monkeypatch.setattr(launch.Cluster, "connect", lambda namespace: cluster)
    (tmp_path / "c.yaml").write_text(TEXT.format("mine"))
    there = Deployment("", "here/a:1", "here/b:1", MINE)
    asked = {"dry_run": False, "watch": False, "unpinned": False, "wish": Wish()}
    root = str(tmp_path / "store")
    assert launch.launch_verb(str(tmp_path / "c.yaml"), "cpu", there, root, **asked) == 0
    assert [one["data"]["root"] for one in applied_there] == [MINE]
    told = capsys.readouterr().out.splitlines()[-1].partition("opmeter status ")[2].split()
    assert told == ["mine", "--namespace", "bench", "--root", root, "-w"]
