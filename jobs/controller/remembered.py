"""What a controller remembers of a campaign between two looks: only what saves it a second look.

Nothing here may decide anything that the store and the live objects would not decide again.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from collector import surroundings
from collector.database.published import HeldShards
from collector.plan import Plan
from collector.store.base import Store
from jobs.decide.live_objects import Since
from jobs.objects.applied_campaign import Applied
from jobs.objects.job_features import Features
from jobs.objects.waves import Wave

_LONGEST_S = 60.0


@dataclass(frozen=True, slots=True)
class KnownPlan:
    """The plan in hand. `others` are the campaign's other plans of the same stack: what comes late
    of them is merged with this one. It `is_last` where all of it was published when somebody asked
    what comes next, and nothing does."""

    plan: Plan
    others: tuple[Plan, ...] = ()
    is_last: bool = False

    @property
    def plan_hash(self) -> str:
        return self.plan.plan_hash


@dataclass
class Aged:
    """A value that is asked for again when it is older than `every_s`, and than so many `times` as
    asking for it took, up to a minute (who waits long has asked for much), or at once when what it
    is `about` changes."""

    every_s: float
    clock: Callable[[], float] = surroundings.monotonic
    times: float = 0.0
    value: Any = None
    at: float | None = None
    took_s: float = 0.0
    about: Hashable = None

    def get(self, ask: Callable[[], Any], about: Hashable = None) -> Any:
        now = self.clock()
        good_s = max(self.every_s, min(self.times * self.took_s, _LONGEST_S))
        if self.at is None or now - self.at >= good_s or about != self.about:
            self.value, self.at, self.about = ask(), now, about
            self.took_s = self.clock() - now
        return self.value


@dataclass
class Memory:
    """Of one campaign. `made_for` is what the plan was made for, and `asks_again` that it is asked
    what follows behind it; `committed` was last seen."""

    clock: Callable[[], float] = surroundings.monotonic
    applied: Applied | None = None
    applied_at: str = ""  # the version of the ConfigMap it was read from
    made_for: str = ""
    asks_again: bool = False
    plan: KnownPlan | None = None
    waves: dict[str, Wave | None] = field(default_factory=dict)
    committed: frozenset[str] = frozenset()
    held: HeldShards | None = None
    # What a merge has left out, by shard: why it is damaged; empty where nothing is wrong with it.
    unmerged: dict[str, str] = field(default_factory=dict)
    leaving: bool = True  # pods may be ending whose Jobs are gone
    features: Features | None = None
    queued: bool = False  # somebody takes this namespace's Jobs as they are made
    store_of: str = ""
    store: Store | None = None
    honest: str = ""  # the root of a store that was found to honour create-only writes
    jobs: Since = field(init=False)
    pods: Since = field(init=False)
    unlisted: Since = field(init=False)  # indexes that ended well, and whose commits are not seen
    workers: Aged = field(init=False)
    nodes: Aged = field(init=False)
    others: Aged = field(init=False)
    warnings: Aged = field(init=False)
    workloads: Aged = field(init=False)
    announced: dict[tuple[str, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.jobs, self.pods = Since(self.clock), Since(self.clock)
        self.unlisted = Since(self.clock)
        self.workers = Aged(0.0, self.clock, times=40.0)
        self.nodes = Aged(15.0, self.clock)
        self.others, self.warnings = Aged(60.0, self.clock), Aged(60.0, self.clock)
        self.workloads = Aged(15.0, self.clock)

    def forget_plan(self) -> None:
        """Everything that belongs to a plan."""
        self.plan, self.made_for = None, ""
        self.waves.clear()
        self.committed, self.held, self.leaving = frozenset(), None, True
        self.unmerged.clear()
