"""The observed state of a campaign: commits and waves in the store, and live objects."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from collector.model.plan import Plan
from jobs.objects.waves import NodeFailures, Wave

WORKER, MERGE = "worker", "merge"


@dataclass(frozen=True, slots=True)
class JobView:
    name: str
    uid: str
    component: str  # worker | merge
    wave: str  # the hash of its wave
    plan_hash: str
    completions: int  # the number of its indexes
    parallelism: int  # the maximum number of its pods that run at once
    suspended: bool
    active: int  # the number of its pods that wait or run
    succeeded: frozenset[int] = frozenset()  # indexes that succeeded
    failed: frozenset[int] = frozenset()  # indexes that failed finally
    state: str = ""  # Complete or Failed; empty while it is live
    reason: str = ""  # why it failed: the reason of Kubernetes
    message: str = ""  # why it failed: the message for users
    deleting: bool = False
    made_of: str = ""  # the hash of what its pods were made from: image, store and site
    merges: str = ""  # the key of what it merges, see `merge_key`
    queue: str = ""  # the Kueue queue in its label
    given_up: bool = False  # Kueue no longer retries it
    stopped: bool = False  # a controller has suspended it
    held: bool = False  # a controller has suspended it for a fixed time
    resumed: int = 0  # how often a controller resumed it after others had suspended it
    launched: str = ""  # the token of the last launch of its campaign at that time
    gang: bool = False  # its pods are one gang: all at once, or none
    in_state_s: float = 0.0  # time observed as suspended, active or ended; by the local clock

    @property
    def is_live(self) -> bool:
        return not self.state and not self.deleting


@dataclass(frozen=True, slots=True)
class PodView:
    name: str
    uid: str
    job: str  # the name of its Job
    index: int
    node: str  # empty until it is scheduled
    phase: str  # Pending, Running, Succeeded or Failed
    exit_code: int | None = None  # None if no container of it has ended
    reason: str = ""  # why it ended: the reason of Kubernetes
    waiting: str = ""  # why a container does not start, as the cluster reports it
    unschedulable: str = ""  # why no node takes it: the scheduler's message
    event: str = ""  # the last warning about a pod that has a node and does not start
    deleting: bool = False
    shard: str = ""  # the shard that it reports as failed
    words: str = ""  # the cause of the failure that it reports
    refused: bool = False  # it failed, and none of its containers ever started
    in_state_s: float = 0.0  # time observed in this state, by the local clock
    job_uid: str = ""  # the uid of its Job; empty if it has no such reference

    @property
    def has_ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node that the site's pods may run on."""

    name: str
    ready: bool  # its kubelet responds
    schedulable: bool  # it is not cordoned
    devices: int  # of the kind that the site measures on
    free_devices: int  # devices that no pod holds


@dataclass(frozen=True)  # without slots: what follows from its fields is cached on it
class Observed:
    """The observed state at one moment.

    If the store is unreachable, its values are those that were read last."""

    committed: frozenset[str]  # shards of the plan
    waves: tuple[Wave, ...]  # of the plan
    jobs: tuple[JobView, ...] = ()
    pods: tuple[PodView, ...] = ()
    nodes: tuple[NodeView, ...] = ()  # empty if they may not be listed
    node_failures: NodeFailures = NodeFailures()  # the failures that the store records
    merged: bool = False  # the head has all commits of this plan and of earlier plans
    damaged: tuple[tuple[str, str], ...] = ()  # except these shards of this plan, with reasons
    # Damaged shards of earlier plans that were not known when this plan was determined.
    damaged_of_earlier_plans: frozenset[str] = frozenset()
    late: tuple[int, ...] = ()  # earlier plans with commits that are not merged
    committed_of_earlier_plans: frozenset[str] = (
        frozenset()
    )  # all shards that earlier plans have committed
    # Indexes (a Job's name and a number) that succeeded and whose commits are not listed yet.
    settling: frozenset[tuple[str, int]] = frozenset()
    store_works: bool = True

    @cached_property
    def by_hash(self) -> Mapping[str, Wave]:
        return {wave.wave_hash: wave for wave in self.waves}

    @cached_property
    def _pods_of(self) -> Mapping[str, list[PodView]]:
        uids = {job.name: job.uid for job in self.jobs}
        pods_of = defaultdict[str, list[PodView]](list)
        for pod in self.pods:
            if pod.job_uid in ("", uids.get(pod.job)):
                pods_of[pod.job].append(pod)
        return dict(pods_of)

    def usable_nodes(self, avoid: Collection[str]) -> list[NodeView]:
        """Return the nodes that take pods, without those to avoid."""
        return [n for n in self.nodes if n.ready and n.schedulable and n.name not in avoid]

    @property
    def nodes_in_use(self) -> set[str]:
        return {pod.node for pod in self.pods if pod.node and not pod.has_ended}

    def pods_of(self, job: JobView) -> Sequence[PodView]:
        """Return the pods of a Job, in the order of `pods`.

        Pods of an older Job with the same name are excluded: if a wave's Job was created again,
        such pods may remain on a lost node."""
        return self._pods_of.get(job.name, ())


@dataclass(frozen=True, slots=True)
class Desired:
    """The desired state of a campaign's plan on a cluster."""

    plan: Plan
    workers: int  # the maximum number of pods that run at once
    per_index: int  # the number of shards per pod
    paused: bool = False
    allow_missing: bool = False  # commits may be merged without the rest
    queue: str = ""  # the Kueue queue that the site names
    # Kueue starts each Job when it is admitted, whether the site names a queue or not
    kueue: bool = False
    at_once: int = 1  # the number of shards of an index that are measured concurrently
    made_of: str = ""  # the hash of what workers' pods are made from now: image, store and site
    launched: str = ""  # a token of the last launch of the campaign
    # gang -> the number of pods that it needs at once
    wide: Mapping[str, int] = field(default_factory=dict)
    is_last: bool = False  # no plan follows this one
    # the merge Job of another campaign that waits in the same queue: no wave is added meanwhile
    merge_first: str = ""

    @property
    def plan_hash(self) -> str:
        return self.plan.plan_hash
