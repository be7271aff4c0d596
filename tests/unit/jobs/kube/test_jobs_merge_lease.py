"""Stores without create-only writes on a cluster: merges take turns, and nothing is lost."""

import threading
from contextlib import suppress
from functools import partial

import pytest

from collector.codec.canonical import sha256_hex
from collector.codec.errors import BadInput, OpmeterError, StoreError
from collector.database.commits import find_head, history
from collector.database.merge import SINGLE_WRITER, merge_plans
from collector.database.query import held_shards
from collector.database.snapshot import load_state
from collector.database.verify import find_problems
from collector.model import keys
from collector.model.record import write_table
from collector.model.stack import Stack
from collector.store.in_memory import MemoryStore
from collector.store.waiting import SingleWriterStore
from jobs.cli import database as merge_file
from jobs.cli import opening
from jobs.cli.database import merge_command
from jobs.cli.opening import Stores, choose_guard
from jobs.controller.controller import Controller
from jobs.kube import leader_election
from jobs.kube.cluster import Cluster
from jobs.kube.errors import ClusterAway, ClusterError
from jobs.kube.leader_election import DURATION_S, MERGE_LEASE, Election, LeaseTaken, MergeLease
from jobs.objects.applied_campaign import LEASED, applied_from, config_map, config_map_name
from jobs.objects.deployment import Deployment
from jobs.planning.stored_plans import committed_shards, read_plans
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    add_record,
    answered,
    write_campaign,
)
from tests.unit.jobs.fake_cluster import FakeCluster
from tests.unit.jobs.printed import numbers, raises_naming
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

ROOT = "s3://dull/x"
MAP = config_map_name("small")
TEXT = (
    "campaign: small\nsources: [{{cases: {}}}]\nbackend: cpu\ndevices: 4\n"
    "target: {{device: CPU_test_2t, torch: 2.13.0+cpu}}\nshards: {{target_s: 0.01, session_s: 1}}\n"
)


class Dull(MemoryStore):
    """Supports no conditional write, and reports that: code that relies on one fails."""

    def create(self, key, data):
        raise StoreError(f"{key}: 501 NotImplemented: If-None-Match")


class Meeting(Dull):
    """A writer of a commit waits for a second writer, so that both have read the state first."""

    def __init__(self, wait_s=0.3):
        super().__init__()
        self._barrier = threading.Barrier(2, timeout=wait_s)

    def put(self, key, data):
        if key.startswith(keys.COMMITS):
            with suppress(threading.BrokenBarrierError):
                self._barrier.wait()
        super().put(key, data)


class Shared(FakeCluster):
    """For several threads."""

    def __init__(self, store=None):
        super().__init__(store)
        self._lock = threading.Lock()

    def _call(self, name, effect):
        with self._lock:
            return super()._call(name, effect)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Turns of a fraction of a second."""
    monkeypatch.setattr(leader_election, "_POLL_S", 0.02)


def together(*actions):
    """Each in its own thread; their results, in order."""
    given = [None] * len(actions)

    def run(at):
        given[at] = actions[at]()

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return given


def two_plans(store):
    for number in (1, 2):
        records = [add_record(8 * number + n) for n in range(2)]
        shard = MadeShard(f"shard-{number}", records, [answered(records, 10.0)])
        write_campaign(SingleWriterStore(store), MadePlan([shard], number=number))


def held_plans(store):
    return {plan.number for plan in load_state(store, find_head(store)).plans}


# `opmeter db merge --lease` ---------------------------------------------------------------------


@pytest.fixture
def of_cluster(monkeypatch):
    """A store and a cluster -> a function that merges one plan in a pod there."""

    def prepare(store, cluster, turn_s=60.0):
        brief = partial(MergeLease, duration_s=3.0)
        monkeypatch.setattr(leader_election, "MergeLease", brief)
        monkeypatch.setattr(merge_file, "_TURN_S", turn_s)
        monkeypatch.setattr(merge_file, "open_bare", lambda root, campaign: store)
        monkeypatch.setattr(Cluster, "connect", lambda namespace: cluster)
        return lambda number: merge_command("made", root=ROOT, plan=[number], lease="bench")

    return prepare


def test_two_concurrent_merges_lose_one_without_a_lease():
    store = Meeting(wait_s=30.0)
    two_plans(store)

    def publish(number):
        looking = SingleWriterStore(store)
        return merge_plans(looking, [("made", number)], guard=SINGLE_WRITER, author="test")

    together(lambda: publish(1), lambda: publish(2))
    assert len(held_plans(store)) == 1  # what the Lease is for


def test_two_concurrent_merges_lose_nothing_with_a_lease(of_cluster, caplog):
    store, cluster = Meeting(), Shared()
    two_plans(store)
    publish = of_cluster(store, cluster)
    assert together(lambda: publish(1), lambda: publish(2)) == [0, 0]
    assert held_plans(store) == {1, 2}
    assert [commit.guard for commit in history(store)] == ["lease", "lease"]
    assert find_problems(store) == []
    assert cluster.leases[MERGE_LEASE]["spec"]["holderIdentity"] == ""
    assert f"Lease {MERGE_LEASE}" in caplog.text


def test_two_pods_of_one_merge_make_one_version(of_cluster, capsys):
    store, cluster = Meeting(), Shared()
    two_plans(store)
    publish = of_cluster(store, cluster)
    assert together(lambda: publish(1), lambda: publish(1)) == [0, 0]
    assert [commit.number for commit in history(store)] == [1]
    printed = capsys.readouterr().out.splitlines()
    assert sorted(map(numbers, printed)) == [["1"], ["1", "2"]]  # the version, and what is new


def test_merge_that_waits_in_vain_exits_as_temporary(of_cluster, capsys):
    store, cluster = Dull(), Shared()
    two_plans(store)
    assert Election(cluster, "another", name=MERGE_LEASE).hold()
    assert of_cluster(store, cluster, turn_s=0.1)(1) == 75
    assert find_head(store) is None
    assert MERGE_LEASE in capsys.readouterr().err


def test_lease_of_a_killed_pod_is_taken_over(of_cluster):
    store, cluster = Dull(), Shared()
    two_plans(store)
    assert Election(cluster, "killed", name=MERGE_LEASE, duration_s=1.0).hold()
    assert of_cluster(store, cluster)(1) == 0
    assert cluster.leases[MERGE_LEASE]["spec"]["leaseTransitions"] == 1


def test_store_without_create_only_writes_is_refused_with_the_options():
    with raises_naming(OpmeterError, "501", "--single-writer", "--lease"):
        choose_guard(Dull(), single_writer=False)
    assert choose_guard(Dull(), single_writer=True) is SINGLE_WRITER


def test_single_writer_and_lease_are_mutually_exclusive(of_cluster):
    with raises_naming(BadInput, "--single-writer", "--lease"):
        merge_command("made", root=ROOT, single_writer=True, lease="bench")


# The Lease --------------------------------------------------------------------------------------


def cut_off(cluster):
    def away(number, name):
        raise ClusterAway("503")

    cluster.before = away


def test_merge_that_lost_its_lease_commits_nothing():
    store, cluster, clock = Dull(), Shared(), Clock()
    two_plans(store)
    with MergeLease(cluster, "one", clock=clock).held() as guard:
        assert guard.name == "lease" and guard.still_holds()
        cut_off(cluster)
        clock.now += DURATION_S * 0.7
        looking = SingleWriterStore(store, guard.still_holds)
        with pytest.raises(OpmeterError, match="lost the lease"):
            merge_plans(looking, [("made", 1)], guard=guard, author="test")
    assert find_head(store) is None


def test_lease_held_by_another_in_between_is_lost():
    cluster, clock = Shared(), Clock()
    one, two = (MergeLease(cluster, name, clock=clock) for name in ("one", "two"))
    with one.held() as guard:
        with pytest.raises(LeaseTaken):
            two.held().__enter__()
        renews, one._election.renew = one._election.renew, lambda: False  # as if it were paused
        clock.now += DURATION_S + 1
        with two.held():
            pass
        one._election.renew = renews
        clock.now += DURATION_S
        assert renews() and one._election.leads
        assert not guard.still_holds()


def test_lease_is_renewed_while_held():
    cluster, clock = Shared(), Clock()
    one, two = (MergeLease(cluster, name, clock=clock) for name in ("one", "two"))
    with one.held() as guard:
        for _ in range(12):
            before = cluster.requests
            clock.now += DURATION_S / 5
            wait_for(lambda before=before: cluster.requests >= before + 2)
            with pytest.raises(LeaseTaken):
                two.held().__enter__()
            assert guard.still_holds()
    clock.now += DURATION_S / 5  # nothing is requested between two polls
    with two.held():
        assert not guard.still_holds()


def test_forbidden_lease_is_reported_immediately():
    cluster = Shared()

    def refuse(number, name):
        raise ClusterError("403: leases is forbidden")

    cluster.before = refuse
    with pytest.raises(ClusterError, match="403"):
        MergeLease(cluster, "one").held(600.0).__enter__()


# A campaign -------------------------------------------------------------------------------------


class Simulation:
    """A campaign on a cluster whose store supports no conditional write, and the real
    controller."""

    def __init__(self, monkeypatch, cases=8):
        self.store, self.clock = Dull(), Clock()
        self.cluster = Shared(self.store)
        monkeypatch.setattr(opening, "open_bare", lambda root, **_: self.store)
        self.apply(cases)
        self.controller, self.election = self.new_controller("one")

    def new_controller(self, name, **more):
        election = Election(self.cluster, name)
        reached = Stores(election.hold)
        made = Controller(self.cluster, reached.open, may_perform=election.hold, **more)
        return made, election

    def apply(self, cases):
        table = write_table([add_record(64 * n) for n in range(1, cases + 1)])
        digest = sha256_hex(table)
        self.store.put(keys.source("small", digest), table)
        there = Deployment("bench", "here/collector:1", "here/controller:1", ROOT)
        self.cluster.apply(config_map("small", TEXT.format(digest), {"site": "cpu"}, there))
        self.cluster.has_answered(MAP, Stack(device="CPU_test_2t", torch="2.13.0+cpu"))

    def run(self, most=100):
        for _ in range(most):
            if self.controller.reconcile()["small"]:
                return
            self.cluster.step()
        raise AssertionError(f"the campaign does not end: {self.cluster.reasons()}")

    def check(self):
        plan = read_plans(self.store, "small")[-1]
        expected = {shard.shard_id for shard in plan.shards}
        assert expected <= set(committed_shards(self.store, "small"))
        held = held_shards(load_state(self.store, find_head(self.store)))
        assert {("small", shard) for shard in expected} <= held
        assert {commit.guard for commit in history(self.store)} == {"lease"}


def test_campaign_on_a_store_without_create_only_writes_merges_under_a_lease(monkeypatch):
    simulation = Simulation(monkeypatch)
    simulation.run()
    simulation.check()
    assert simulation.cluster.maps[MAP]["metadata"]["annotations"][LEASED] == ROOT
    (event,) = [e for e in simulation.cluster.reported.values() if e["reason"] == "NoCreateOnly"]
    assert event["warning"] and "501" in event["message"] and "Lease" in event["message"]
    (name,) = (name for name in simulation.cluster.created if "-merge-" in name)
    assert simulation.cluster.live[name]["spec"]["template"]["spec"]["automountServiceAccountToken"]
    assert simulation.cluster.leases[MERGE_LEASE]["spec"]["holderIdentity"] == ""


def test_result_of_the_store_probe_is_remembered(monkeypatch):
    simulation = Simulation(monkeypatch)
    simulation.controller.reconcile()

    def request(store):
        raise AssertionError("requested again")

    simulation.election.release()
    simulation.controller, _ = simulation.new_controller("two", probe_store=request)
    simulation.run()
    simulation.check()


def test_shards_of_an_older_plan_are_merged_under_the_lease(monkeypatch):
    simulation = Simulation(monkeypatch, cases=24)
    simulation.controller.reconcile()
    simulation.cluster.step()
    assert committed_shards(simulation.store, "small") and find_head(simulation.store) is None
    simulation.apply(25)
    simulation.controller.reconcile()
    assert len(read_plans(simulation.store, "small")) == 1  # its Job has not finished
    simulation.cluster.step()
    head = find_head(simulation.store)
    assert head is not None and head.guard == "lease"
    simulation.controller.reconcile()
    assert len(read_plans(simulation.store, "small")) == 2
    simulation.run()
    simulation.check()


def test_controller_without_the_lease_writes_nothing(monkeypatch):
    simulation = Simulation(monkeypatch)
    simulation.controller.reconcile()
    config = simulation.cluster.maps[MAP]
    assert config["metadata"]["annotations"][LEASED]
    reached = Stores(lambda: False)
    store = reached.open(applied_from(config))
    with pytest.raises(StoreError, match="campaigns/small/plans/9.json") as refused:
        store.create("campaigns/small/plans/9.json", b"{}")
    assert "501" not in str(refused.value)
