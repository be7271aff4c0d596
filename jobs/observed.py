"""What a controller sees of a campaign: commits and waves in the store, and live objects."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jobs.nodes import Strikes
from jobs.waves import Wave

WORKER, MERGE = "worker", "merge"


@dataclass(frozen=True, slots=True)
class JobView:
    """One live Job. `state` is its last word: `Complete`, `Failed`, or empty while it lives.

    `made_of` is what its pods were made of, `launched` the token of who had launched its campaign
    last; `merges` the input of a merge. `held` says that it was
    suspended for a while, and `in_state_s` how long this controller has seen it suspended, at
    work, or ended, by its own monotonic clock.
    """

    name: str
    uid: str
    component: str  # worker | merge
    wave: str
    plan_hash: str
    completions: int
    parallelism: int
    suspended: bool
    active: int
    succeeded: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()
    state: str = ""
    reason: str = ""
    message: str = ""
    deleting: bool = False
    made_of: str = ""
    merges: str = ""
    held: bool = False
    launched: str = ""
    in_state_s: float = 0.0

    @property
    def is_live(self) -> bool:
        return not self.state and not self.deleting


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod of a Job. `in_state_s` is how long this controller has seen it like this, by its own
    monotonic clock; `waiting` is why a container does not start, `unschedulable` why no node
    takes the pod, each in the words of who says so; `event` the last warning about one that has
    a node and does not begin. Of a pod that ended, `shard` is the one that
    it says it failed in, `words` why, and `refused` that no container of it ever began."""

    name: str
    uid: str
    job: str
    index: int
    node: str
    phase: str
    exit_code: int | None = None
    reason: str = ""
    waiting: str = ""
    unschedulable: str = ""
    event: str = ""
    deleting: bool = False
    shard: str = ""
    words: str = ""
    refused: bool = False
    in_state_s: float = 0.0

    @property
    def has_ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node that the site's pods may run on."""

    name: str
    ready: bool
    schedulable: bool
    devices: int
    free_devices: int


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything at one moment. `merged` says that the head holds all of the plan that is
    committed; `settling` are indexes (a Job's name and a number) that ended well a moment ago and
    whose commits are not listed yet. Where the store does not answer, its side is what was last
    seen of it."""

    committed: frozenset[str]
    waves: tuple[Wave, ...]
    jobs: tuple[JobView, ...] = ()
    pods: tuple[PodView, ...] = ()
    nodes: tuple[NodeView, ...] = ()
    strikes: Strikes = Strikes()
    merged: bool = False
    settling: frozenset[tuple[str, int]] = frozenset()
    store_works: bool = True
    by_hash: Mapping[str, Wave] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_hash", {wave.wave_hash: wave for wave in self.waves})
