"""What a controller sees of a campaign: commits and waves in the store, and live objects."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from collector.model.plan import Plan
from jobs.objects.waves import Strikes, Wave

WORKER, MERGE = "worker", "merge"


@dataclass(frozen=True, slots=True)
class JobView:
    """One Job that the cluster knows."""

    name: str
    uid: str
    component: str  # worker | merge
    wave: str  # the hash of its wave
    plan_hash: str
    completions: int  # how many indexes it has
    parallelism: int  # how many of its pods may run at once
    suspended: bool
    active: int  # how many of its pods wait or run
    succeeded: frozenset[int] = frozenset()  # indexes that ended well
    failed: frozenset[int] = frozenset()  # indexes that failed for good
    state: str = ""  # Complete or Failed; empty while it lives
    reason: str = ""  # why it failed, in Kubernetes' word for it
    message: str = ""  # the same, for people
    deleting: bool = False
    made_of: str = ""  # the hash of what its pods were made of: image, store and site
    merges: str = ""  # what a merge is for, see `merge_key`
    queue: str = ""  # the queue of Kueue whose label it bears
    given_up: bool = False  # Kueue tries it no more
    stopped: bool = False  # a controller has suspended it
    held: bool = False  # the same, for a while
    resumed: int = 0  # how often a controller let it go that others had suspended
    launched: str = ""  # the token of whoever had launched its campaign last
    gang: bool = False  # its pods are those of one gang: all at once, or none
    in_state_s: float = 0.0  # how long we see it suspended, at work, or ended; by our clock

    @property
    def is_live(self) -> bool:
        return not self.state and not self.deleting


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod of a Job."""

    name: str
    uid: str
    job: str  # the name of its Job
    index: int
    node: str  # empty until one is found
    phase: str  # Pending, Running, Succeeded or Failed
    exit_code: int | None = None  # None where no container of it has ended
    reason: str = ""  # why it ended, in Kubernetes' word for it
    waiting: str = ""  # why a container does not start, in the words of who says so
    unschedulable: str = ""  # why no node takes it, in the scheduler's words
    event: str = ""  # the last warning about one that has a node and does not start
    deleting: bool = False
    shard: str = ""  # the shard that it says it failed in
    words: str = ""  # why it failed, as it says itself
    refused: bool = False  # it failed, and no container of it ever began
    in_state_s: float = 0.0  # how long we see it like this, by our own clock
    job_uid: str = ""  # of its Job; empty where it does not tell

    @property
    def has_ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node that the site's pods may run on."""

    name: str
    ready: bool  # its kubelet answers
    schedulable: bool  # nobody has cordoned it
    devices: int  # of the kind that the site measures on
    free_devices: int  # those that no pod holds


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything at one moment. Where the store does not answer, its side is what was last seen."""

    committed: frozenset[str]  # shards of the plan
    waves: tuple[Wave, ...]  # of the plan
    jobs: tuple[JobView, ...] = ()
    pods: tuple[PodView, ...] = ()
    nodes: tuple[NodeView, ...] = ()  # empty where they may not be listed
    strikes: Strikes = Strikes()  # those that the store remembers
    merged: bool = False  # the head holds all that is committed of this plan and of those before it
    damaged: tuple[tuple[str, str], ...] = ()  # but for these shards of this plan, and why
    late: tuple[int, ...] = ()  # earlier plans of which something is still to be merged
    of_others: frozenset[str] = frozenset()  # all shards that earlier plans have committed
    # Indexes (a Job's name and a number) that ended well, and whose commits are not listed yet.
    settling: frozenset[tuple[str, int]] = frozenset()
    store_works: bool = True
    by_hash: Mapping[str, Wave] = field(init=False, repr=False, compare=False, default_factory=dict)
    _pods_of: Mapping[str, list[PodView]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_hash", {wave.wave_hash: wave for wave in self.waves})
        uids = {job.name: job.uid for job in self.jobs}
        pods_of = defaultdict[str, list[PodView]](list)
        for pod in self.pods:
            if pod.job_uid in ("", uids.get(pod.job)):
                pods_of[pod.job].append(pod)
        object.__setattr__(self, "_pods_of", dict(pods_of))

    def pods_of(self, job: JobView) -> Sequence[PodView]:
        """The pods of a Job, in the order of `pods`. Those of an older Job of its name are none of
        it: where a wave's Job was made anew, they may be left on a node that is lost."""
        return self._pods_of.get(job.name, ())


# What is wanted of a campaign's plan on a cluster.


@dataclass(frozen=True, slots=True)
class Desired:
    """What is wanted of a plan."""

    plan: Plan
    workers: int  # how many pods may run at once
    per_index: int  # how many shards one pod gets
    paused: bool = False
    allow_missing: bool = False  # what is committed may be merged without the rest
    queue: str = ""  # the queue of Kueue that the site names
    kueue: bool = False  # somebody starts each Job when it is its turn, whether named here or not
    at_once: int = 1  # how many shards of an index are measured at a time
    made_of: str = ""  # the hash of what workers' pods are made of now: image, store and site
    launched: str = ""  # a token of whoever launched the campaign last
    wide: Mapping[str, int] = field(default_factory=dict)  # gang -> how many pods it takes at once
    is_last: bool = False  # it is known that no plan follows behind it

    @property
    def plan_hash(self) -> str:
        return self.plan.plan_hash
