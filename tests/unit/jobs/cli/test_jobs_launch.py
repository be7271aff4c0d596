"""`opmeter launch --watch`: a controller on a laptop serves everything that the single Lease of the
namespace covers."""

import itertools
import threading
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest

from collector.codec.errors import BadInput, StoreUnavailable
from collector.store.in_memory import MemoryStore
from jobs.cli import launch, opening
from jobs.cli.opening import Stores
from jobs.controller import controller, loop
from jobs.kube import leader_election
from jobs.kube.cluster import Cluster
from jobs.kube.errors import ClusterAway
from jobs.objects.applied_campaign import SELECTOR, applied_from, config_map
from jobs.objects.deployment import Deployment
from tests.unit.jobs.fake_cluster import FakeCluster

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
    monkeypatch.setattr(launch, "stop_on_signals", threading.Event)
    monkeypatch.setattr(loop, "run_forever", lambda *a, **k: forever(*a, **k, interval_s=0.0))
    bench = SimpleNamespace(namespace="bench")
    assert launch._watch(bench, "mine", (MINE, FROM_HERE)) == 0
    assert seen == [SELECTOR, "released"]


def test_printed_follow_up_command_works_locally(monkeypatch, capsys, tmp_path):
    applied_there, renewals = [], itertools.count()
    bench = SimpleNamespace(
        namespace="bench",
        apply_config_map=applied_there.append,
        lease=lambda name: {"spec": {"holderIdentity": "one", "renewTime": str(next(renewals))}},
    )
    monkeypatch.setattr(Cluster, "connect", lambda namespace, **settings: bench)
    (tmp_path / "c.yaml").write_text(TEXT.format("mine"))
    root = str(tmp_path / "store")
    code = launch.launch_command(str(tmp_path / "c.yaml"), image="here/a:1", store=MINE, root=root)
    assert code == 0
    assert [one["data"]["root"] for one in applied_there] == [MINE]
    printed = capsys.readouterr()
    reported = printed.out.splitlines()[-1].partition("opmeter status ")[2].split()
    assert reported == ["mine", "--namespace", "bench", "--root", root, "-w"]
    assert "controller: " not in printed.err


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    ("operators", "why"),
    [
        ("MatMulV2, SwiGlo", "no source contains 'SwiGlo'; did you mean 'SwiGlu'"),
        ("MatMulV2, m.py", "m.py"),  # a file, which no pod gets; it is not executed here either
    ],
)
def test_launch_refuses_operators_that_pods_cannot_measure(
    monkeypatch, tmp_path, dry_run, operators, why
):
    applied_there = []
    bench = SimpleNamespace(
        namespace="bench", apply_config_map=applied_there.append, lease=lambda name: None
    )
    monkeypatch.setattr(Cluster, "connect", lambda namespace, **settings: bench)
    (tmp_path / "m.py").write_text("1 / 0\n")
    (tmp_path / "c.yaml").write_text(TEXT.format("mine") + f"operators: [{operators}]\n")
    store = tmp_path / "store"
    given = {"image": "here/a:1", "store": MINE, "root": str(store), "dry_run": dry_run}
    with pytest.raises(BadInput, match=why):
        launch.launch_command(str(tmp_path / "c.yaml"), **given)
    assert not applied_there and not store.exists()


def test_launch_warns_that_no_controller_leads(monkeypatch, capsys, tmp_path):
    fake = FakeCluster(MemoryStore())
    monkeypatch.setattr(fake, "apply_config_map", lambda manifest: None, raising=False)
    monkeypatch.setattr(Cluster, "connect", lambda namespace, **settings: fake)
    now = [0.0]
    clock = {"clock": lambda: now[0], "sleep": lambda seconds: now.__setitem__(0, now[0] + 1)}
    checked = partial(leader_election.LeaderCheck, **clock)
    monkeypatch.setattr(leader_election, "LeaderCheck", checked)
    (tmp_path / "c.yaml").write_text(TEXT.format("mine"))
    given = {"image": "here/a:1", "store": MINE, "root": str(tmp_path / "store")}
    killed = {"spec": {"holderIdentity": "pod-a1", "renewTime": "2026-11-29T10:00:00Z"}}
    for lease, words, dry_run in (
        (None, "none leads in namespace bench", True),
        ({"spec": {"holderIdentity": ""}}, "none leads in namespace bench", False),  # released
        (killed, "pod-a1 has not renewed its Lease in namespace bench", True),
    ):
        fake.leases[leader_election.LEASE] = lease
        assert launch.launch_command(str(tmp_path / "c.yaml"), **given, dry_run=dry_run) == 0
        printed = capsys.readouterr()
        (line,) = [one for one in printed.err.splitlines() if one.startswith("controller: ")]
        assert words in line and "opmeter controller --namespace bench" in line
        assert not dry_run or "namespace: bench" in printed.out

    def away(number, name):
        raise ClusterAway("the API server does not respond")

    fake.before = away
    assert launch.launch_command(str(tmp_path / "c.yaml"), **given, dry_run=True) == 0
    assert "not known whether one leads" in capsys.readouterr().err


def test_dry_run_without_a_cluster_says_nothing_about_controllers(monkeypatch, capsys, tmp_path):
    def connect(namespace, **settings):
        raise BadInput("no cluster: set KUBECONFIG")

    monkeypatch.setattr(Cluster, "connect", connect)
    (tmp_path / "c.yaml").write_text(TEXT.format("mine"))
    given = {"image": "here/a:1", "store": MINE, "root": str(tmp_path / "store")}
    assert launch.launch_command(str(tmp_path / "c.yaml"), **given, dry_run=True) == 0
    printed = capsys.readouterr()
    assert "controller: " not in printed.err and "namespace: default" in printed.out
