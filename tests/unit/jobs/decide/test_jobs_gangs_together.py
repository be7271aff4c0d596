"""Several gangs and single shards on one simulated cluster: what starts when, and what is idle."""

import random
from dataclasses import replace

import pytest

from collector.model.measurement import Outcome
from collector.model.plan import PlannedShard
from jobs.decide.actions import LaunchWave, Suspend
from jobs.decide.observed import Desired, NodeView, PodView
from jobs.decide.wave_choice import incomplete_gangs
from tests.unit.jobs.decide.test_jobs_decision import SimulatedCluster
from tests.unit.jobs.plans import plan_of

pytestmark = pytest.mark.fast

_NODES = tuple(f"n{i}" for i in range(8))


class TimedCluster(SimulatedCluster):
    """Nodes of eight devices, each device for one pod, whose shards take as long as the plan says,
    one shard per device. A finished shard holds its device until the shards on the same node
    finish; so does a gang that waits for a pod. A pod of a gang starts up to `late_min` minutes
    after it could."""

    def __init__(self, expected, nodes=_NODES, late_min=0, seed=1):
        super().__init__(expected, nodes=nodes, seed=seed)
        self.took_s = {shard.shard_id: shard.predicted_s for shard in expected.plan.shards}
        self.began_s, self.ended_s, self.made = {}, 0.0, 0
        self.late_min, self.most_gathering, self.most_gangs = late_min, 0, 0

    def busy(self):
        """In which share of the time of all devices something was measured, until the last shard
        ended."""
        pods = self.expected.wide
        held = (took * 8 * pods[s] if s in pods else took for s, took in self.took_s.items())
        return sum(held) / (64 * self.ended_s)

    def observe(self):
        seen = super().observe()
        held = {pod.node for pod in self.pods if not pod.has_ended}
        nodes = tuple(
            NodeView(n, up, True, 8, 0 if n in held else 8) for n, up in self.nodes.items()
        )
        return replace(seen, nodes=nodes)

    def reconcile(self):
        actions = super().reconcile()
        self.most_gathering = max(self.most_gathering, len(incomplete_gangs(self.observe())))
        whole = [j for j in self.jobs.values() if j.gang and j.is_live and not j.suspended]
        self.most_gangs = max(self.most_gangs, len(whole))
        return actions

    def step(self):
        """A pod takes a node that is free; Jobs compete for them in any order."""
        names = list(self.jobs)
        self.random.shuffle(names)
        for name in names:
            self._fill(name)
        self.now += 60.0
        self.pods = [self._ended(pod) for pod in self.pods]

    def _fill(self, name):
        job = self.jobs[name]
        if not job.is_live or job.suspended:
            return
        wave = self.waves[job.wave]
        mine = {p.index for p in self.pods if p.job == name and not p.has_ended}
        left = [i for i in range(job.completions) if i not in mine | job.succeeded | job.failed]
        for index in left[: max(0, job.parallelism - len(mine))]:
            held = {pod.node for pod in self.pods if not pod.has_ended}
            free = [n for n, up in self.nodes.items() if up and n not in held | set(wave.avoid)]
            empty = not wave.indexes[index]
            is_late = job.gang and self.random.randint(0, self.late_min) > 0
            if (free or empty) and not is_late:
                node = "" if empty else self.random.choice(free)
                number = self.made = self.made + 1
                self.pods.append(PodView(f"p{number}", f"u{number}", name, index, node, "Running"))

    def _ended(self, pod):
        job = self.jobs.get(pod.job)
        if job is None:
            return pod
        shards = [s for s in self.waves[job.wave].indexes[pod.index] if s not in self.committed]
        if pod.phase != "Running" or (job.gang and not self._is_whole(job)) or not shards:
            return super()._ended(replace(pod, node=pod.node or _NODES[0]))
        began_s = self.began_s.setdefault(pod.uid, self.now - 60.0)
        if self.now - began_s < max(self.took_s[shard] for shard in shards):
            return pod
        self.ended_s = self.now
        return super()._ended(pod)


def expected(gangs, singles, single_s=600.0):
    """A plan of gangs of this many pods each, ten minutes long, and of single shards."""
    of_gangs = [
        PlannedShard(f"g{i}", 1, 600.0, "0" * 64, ranks=8 * pods) for i, pods in enumerate(gangs)
    ]
    single = [PlannedShard(f"s{i}", 1, single_s, "0" * 64) for i in range(singles)]
    wide = {f"g{i}": pods for i, pods in enumerate(gangs)}
    plan = plan_of((*of_gangs, *single))
    return Desired(plan, 8, per_index=8, wide=wide, at_once=8)


# Gangs by their pods, on 8 nodes; shards; their seconds; the least time that any order takes, since
# in ten minutes no more than 8 pods measure; how busy all devices are at least; and how many gangs
# run beside each other. Of 48 of 64
# devices one gang runs at a time, so 16 devices are busy only while there are shards for them. And
# 20 shards are 3 pods, one of them half empty: in 20 or 30 minutes no order is 80 % busy with them.
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("gangs", "singles", "single_s", "least_s", "busy", "beside"),
    [
        ((8, 8, 8, 8), 20, 600.0, 3000.0, 0.85, 1),
        ((6, 6, 6, 6), 64, 600.0, 2400.0, 0.95, 1),
        ((6, 6, 6, 6), 20, 1200.0, 2400.0, 0.85, 1),
        ((6, 6, 6, 6), 400, 600.0, 6000.0, 0.9, 1),
        ((4, 4, 4, 4), 20, 600.0, 1800.0, 0.68, 2),
        ((4, 4, 4, 4), 400, 600.0, 5400.0, 0.9, 2),
        ((2, 2, 2, 2), 20, 600.0, 1200.0, 0.6, 4),
        ((2, 2, 2, 2), 400, 600.0, 4800.0, 0.9, 4),
        ((6, 4, 2, 2), 20, 600.0, 1800.0, 0.68, 2),
        ((6, 4, 2, 2), 400, 600.0, 4800.0, 0.9, 2),
    ],
)
def test_devices_are_busy_with_gangs_and_single_shards(
    gangs, singles, single_s, least_s, busy, beside
):
    cluster = TimedCluster(expected(gangs, singles, single_s)).run()
    assert set(cluster.committed.values()) == {Outcome.OK}
    assert len(cluster.committed) == len(gangs) + singles
    assert cluster.ended_s <= 1.05 * least_s
    assert cluster.busy() >= busy
    assert cluster.most_gangs == beside and cluster.most_gathering == 1


@pytest.mark.thorough
def test_gangs_never_deadlock_and_all_of_them_end():
    """Whatever the number of their pods, and however late each pod starts."""
    for seed in range(30):
        chance = random.Random(seed)
        gangs = sorted((chance.randint(2, 8) for _ in range(chance.randint(2, 6))), reverse=True)
        cluster = TimedCluster(
            expected(gangs, chance.randint(0, 150)), late_min=chance.randint(0, 4), seed=seed
        ).run()
        assert set(cluster.committed.values()) == {Outcome.OK}, seed
        assert cluster.most_gathering <= 1, seed


def test_younger_of_two_waiting_gangs_releases_its_nodes():
    """The older was complete, and lost a pod while the younger started."""
    cluster = TimedCluster(expected((4, 4), 0))
    cluster.reconcile()
    cluster.step()
    (launch,) = [action for action in cluster.reconcile() if isinstance(action, LaunchWave)]
    older = next(pod for pod in cluster.pods if pod.job != launch.wave.job_name)
    cluster.pods.remove(older)
    (stops,) = [action for action in cluster.reconcile() if isinstance(action, Suspend)]
    assert stops.on and stops.hold and stops.job == launch.wave.job_name
    assert cluster.run().most_gangs == 2


def test_gang_precedes_a_wave_without_a_job():
    """That wave leaves its workers to the gang: otherwise neither would ever start."""
    cluster = TimedCluster(expected((), 20))
    cluster.reconcile()
    cluster.jobs.clear()
    cluster.expected = expected((8,), 20)
    cluster.took_s = {shard.shard_id: 60.0 for shard in cluster.expected.plan.shards}
    cluster.waves = {
        name: replace(wave, plan_hash=cluster.expected.plan_hash)
        for name, wave in cluster.waves.items()
    }
    (launch,) = [action for action in cluster.reconcile() if isinstance(action, LaunchWave)]
    assert launch.wave.is_gang
    assert len(cluster.run().committed) == 21
