"""What a controller remembers of a campaign between two looks: only what saves it a second look.

Nothing here may decide anything that the store and the live objects would not decide again.
"""

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from collector import environment as surroundings
from collector.database.published import HeldShards
from collector.environment import Running
from collector.model.plan import Plan
from collector.store.base import Store
from jobs.decide.live_objects import Since
from jobs.objects.applied_campaign import Applied
from jobs.objects.job_manifest import Features
from jobs.objects.waves import Wave
from jobs.planning.plan_making import PlannedRound
from jobs.publishing.next_plan import Advanced

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


# Rounds of campaigns that learn surfaces, made beside a controller's looks.
#
# To learn them takes minutes, in which other campaigns want to be looked at. So a thread makes the
# round, and the looks ask whether it is there; whatever is written is written by a look. A
# controller that ends while a round is made leaves nothing of it.

Intended = tuple[Advanced, PlannedRound | None]

# A small one is there by then: it does not want another look.
_AT_ONCE_S = 0.5


@dataclass(eq=False)
class _Making:
    about: str
    found: Intended | None = None
    error: Exception | None = None
    thread: Running | None = None
    # What was made for a campaign that has changed since, nobody asks for: it ends unseen.
    is_wanted: bool = True


class Rounds:
    """What is being made, by campaign; one at a time, and the others wait for their turn. `wait_s`
    is how long a look waits for it: None as long as it takes."""

    def __init__(self, wait_s: float | None = _AT_ONCE_S):
        self._wait_s = wait_s
        self._turn = threading.Lock()
        self._making: dict[str, _Making] = {}

    def is_making(self, campaign: str, about: str) -> bool:
        """Whether a round of a campaign, as it is wanted now, is not there yet."""
        making = self._making.get(campaign)
        return making is not None and making.about == about and _is_at_work(making)

    def begin(self, campaign: str, about: str, make: Callable[[], Intended]) -> Intended | None:
        """Begin to make a round, `about` a campaign as it is wanted now; the round where it is made
        soon. Raises what making it raised."""
        self.forget(campaign)
        making = self._making[campaign] = _Making(about)
        making.thread = surroundings.begin(lambda: self._make(making, make), f"round of {campaign}")
        making.thread.join(self._wait_s)
        return self.take(campaign, about)

    def take(self, campaign: str, about: str) -> Intended | None:
        """The round that was begun for the campaign as it is wanted now, once; None where there is
        none yet. Raises what making it raised."""
        making = self._making.get(campaign)
        if making is None or making.about != about or _is_at_work(making):
            return None
        del self._making[campaign]
        if making.error is not None:
            raise making.error
        return making.found

    def forget(self, campaign: str) -> None:
        """Nobody wants what is made for a campaign any more."""
        if (making := self._making.pop(campaign, None)) is not None:
            making.is_wanted = False

    def _make(self, making: _Making, make: Callable[[], Intended]) -> None:
        with self._turn:
            if not making.is_wanted:
                return
            try:
                making.found = make()
            except Exception as error:  # raised again by the look that asks
                making.error = error


def _is_at_work(making: _Making) -> bool:
    return making.thread is not None and making.thread.is_alive()
