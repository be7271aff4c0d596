"""What a controller remembers of a campaign between two looks: only what saves it a second look.

Nothing here may decide anything that the store and the live objects would not decide again.
"""

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from collector.database.published import HeldShards
from collector.plan import Plan
from collector.store.base import Store
from jobs.features import Features
from jobs.live import Since
from jobs.waves import Wave

_LONGEST_S = 60.0


@dataclass(frozen=True, slots=True)
class KnownPlan:
    """A plan, and its hash: of a large one it takes a second."""

    plan: Plan
    plan_hash: str


@dataclass
class Aged:
    """A value that is asked for again when it is older than `every_s`, and than so many `times` as
    asking for it took, up to a minute (who waits long has asked for much), or at once when what it
    is `about` changes."""

    every_s: float
    clock: Callable[[], float] = time.monotonic
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
    """Of one campaign. `made_for` is what the plan was made for; `committed` was last seen."""

    clock: Callable[[], float] = time.monotonic
    made_for: str = ""
    plan: KnownPlan | None = None
    waves: dict[str, Wave] = field(default_factory=dict)
    committed: frozenset[str] = frozenset()
    held: HeldShards | None = None
    features: Features | None = None
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
    announced: dict[tuple[str, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.jobs, self.pods = Since(self.clock), Since(self.clock)
        self.unlisted = Since(self.clock)
        self.workers = Aged(0.0, self.clock, times=40.0)
        self.nodes = Aged(15.0, self.clock)
        self.others, self.warnings = Aged(60.0, self.clock), Aged(60.0, self.clock)

    def forget_plan(self) -> None:
        """Everything that belongs to a plan."""
        self.plan, self.made_for = None, ""
        self.waves.clear()
        self.committed, self.held = frozenset(), None
