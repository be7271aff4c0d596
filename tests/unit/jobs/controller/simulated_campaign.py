"""A campaign on a simulated cluster, with the real controller."""

from dataclasses import replace

from collector.codec.canonical import sha256_hex
from collector.codec.errors import StoreUnavailable
from collector.database.commits import find_head, history
from collector.database.query import held_shards
from collector.database.snapshot import load_state
from collector.model import keys
from collector.model.record import write_table
from collector.model.stack import Stack
from collector.store.in_memory import MemoryStore
from collector.store.probe import Probe
from jobs.controller.controller import Controller
from jobs.controller.remembered import Rounds
from jobs.objects.applied_campaign import (
    config_map,
    config_map_name,
)
from jobs.objects.deployment import Deployment
from jobs.objects.waves import wave_from_json
from jobs.planning.stored_plans import committed_shards, read_plans
from tests.unit.collector.database.campaign_maker import add_record
from tests.unit.jobs.fake_cluster import FakeCluster

DEPLOYMENT = Deployment("bench", "here/collector:1", "here/controller:1", "memory:")


MAP = config_map_name("small")


STACK = Stack(device="CPU_test_2t", torch="2.13.0+cpu")


class WatchedStore(MemoryStore):
    """Counts the commits of shards; becomes unreachable, or kills the caller, on request."""

    def __init__(self):
        super().__init__()
        self.calls, self.away = 0, False
        self.before = self.after = lambda number: None
        self.commits = []

    def _seen(self, call, *arguments):
        self.calls += 1
        number = self.calls
        self.before(number)
        if self.away:
            raise StoreUnavailable("memory: away")
        answer = call(*arguments)
        self.after(number)
        return answer

    def get(self, key):
        return self._seen(super().get, key)

    def put(self, key, data):
        self._seen(super().put, key, data)

    def create(self, key, data):
        def create():
            super(WatchedStore, self).create(key, data)
            if "/committed/" in key:
                self.commits.append(key)

        self._seen(create)

    def list(self, prefix):
        return self._seen(super().list, prefix)


CPU_TARGET = "target: {device: CPU_test_2t, torch: 2.13.0+cpu}"


def campaign_text(sha256, devices=4, target=CPU_TARGET, more="", target_s=0.01, session_s=1):
    return (
        f"campaign: small\nsources: [{{cases: {sha256}}}]\nbackend: cpu\ndevices: {devices}\n"
        f"{target}\nshards: {{target_s: {target_s}, session_s: {session_s}}}\n{more}"
    )


class Simulation:
    """A campaign on a cluster, with controllers that start and end."""

    def __init__(self, cases=12, site=(), nodes=("n1", "n2"), **text):
        self.store = WatchedStore()
        self.cluster = FakeCluster(self.store, nodes)
        self.cases, self.now, self.chosen = cases, 0.0, None
        self.site, self.text = dict(site), text
        self.apply()
        self.controller = self.new_controller()

    def apply(self, **changes):
        chosen = self.chosen or range(1, self.cases + 1)
        table = write_table([add_record(64 * n) for n in chosen])
        digest = sha256_hex(table)
        self.store.put(keys.source("small", digest), table)
        text = campaign_text(digest, **self.text)
        deployment = replace(DEPLOYMENT, **changes)
        self.cluster.apply(config_map("small", text, {"site": "cpu", **self.site}, deployment))
        if "target" not in self.text:  # asking the machines is tested elsewhere
            self.cluster.has_answered(MAP, STACK)

    def new_controller(self, **more):
        given = {"probe_store": lambda store: Probe(True, "honest"), **more}
        given = {"clock": lambda: self.now, "rounds": Rounds(wait_s=None), **given}
        return Controller(self.cluster, lambda applied: self.store, **given)

    def annotate(self, **notes):
        self.cluster.annotate_config_map(MAP, {f"opmeter.io/{k}": v for k, v in notes.items()})

    def reconcile(self, after_s=5.0):
        self.now += after_s
        return self.controller.reconcile().get("small", False)

    def rounds(self, number):
        for _ in range(number):
            self.reconcile()
            self.cluster.step()

    def run(self, most=300, each=lambda simulation, number: None):
        for number in range(most):
            each(self, number)
            if self.reconcile():
                return self
            self.cluster.step()
        raise AssertionError(f"the campaign does not end: {self.cluster.reasons()}")

    @property
    def plan(self):
        return read_plans(self.store, "small")[-1]

    def waves(self):
        return [
            wave_from_json(self.store.get(info.key), key=info.key)
            for info in self.store.list(keys.waves("small"))
        ]

    def check_complete(self):
        """Every shard is committed once, and the head holds all of them by one merge."""
        expected = {shard.shard_id for shard in self.plan.shards}
        assert expected == set(committed_shards(self.store, "small"))
        assert len(self.store.commits) == len(set(self.store.commits)) == len(expected)
        head = find_head(self.store)
        assert {("small", shard) for shard in expected} <= held_shards(load_state(self.store, head))
        assert len(list(history(self.store))) == 1
        assert not self.cluster.worker_jobs()


def merges(simulation):
    """The commands of the merge Jobs so far."""
    return [
        job["spec"]["template"]["spec"]["containers"][0]["command"]
        for name, job in simulation.cluster.live.items()
        if "-merge-" in name
    ]


def everything_is_held(simulation):
    """Whether the head holds every shard that was ever committed."""
    held = {
        name for _, name in held_shards(load_state(simulation.store, find_head(simulation.store)))
    }
    return held >= committed_shards(simulation.store, "small")


def rot(simulation, number=0, data=b"rot"):
    """Damage a part of a committed shard; return which shard."""
    shard = sorted(committed_shards(simulation.store, "small"))[number]
    [key] = [
        info.key
        for info in simulation.store.list(keys.attempts("small", shard))
        if "/part-" in info.key
    ]
    simulation.store.put(key, data)
    return shard
