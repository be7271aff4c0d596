"""The memory of a controller for a campaign between two reconciliations; it saves reads only.

Every decision must follow from the store and the live objects alone.
"""

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from collector import environment
from collector.codec.errors import StoreError
from collector.database.head_content import HeldShards
from collector.database.plans import Damage
from collector.environment import Running
from collector.model.plan import Plan
from collector.store.base import Store
from jobs.decide.live_objects import StateAges
from jobs.decide.observed import JobView
from jobs.objects.applied_campaign import Applied
from jobs.objects.job_manifest import Features
from jobs.objects.waves import Wave
from jobs.planning.lifecycle import NextPlan

_LONGEST_S = 60.0


@dataclass(frozen=True, slots=True)
class KnownPlan:
    """The current plan.

    `others` are the campaign's other plans of the same stack: their late commits are merged with
    this plan. `is_last` is True if the whole plan was published when the next plan was due and no
    plan follows. `damaged` are the damaged shards that were known when the plan was determined."""

    plan: Plan
    others: tuple[Plan, ...] = ()
    is_last: bool = False
    damaged: frozenset[str] = frozenset()


@dataclass
class CachedValue:
    """A cached value that is read again when it expires.

    It expires after `every_s`, or after `times` the duration of the last read, up to a minute (a
    slow read is an expensive one), or at once when `about` changes."""

    every_s: float
    clock: Callable[[], float] = environment.monotonic
    times: float = 0.0
    value: Any = None
    at: float | None = None
    took_s: float = 0.0
    about: Hashable = None

    def get(self, fetch: Callable[[], Any], about: Hashable = None) -> Any:
        now = self.clock()
        good_s = max(self.every_s, min(self.times * self.took_s, _LONGEST_S))
        if self.at is None or now - self.at >= good_s or about != self.about:
            self.value, self.at, self.about = fetch(), now, about
            self.took_s = self.clock() - now
        return self.value


class Memory:
    """The memory for one campaign.

    `made_for` is the fingerprint of the campaign that the plan was made for. `next_plan_due` means
    that the next plan must be determined. `committed` holds the commits that were read last."""

    def __init__(self, clock: Callable[[], float] = environment.monotonic):
        self.clock = clock
        self.applied: Applied | None = None
        self.applied_at = ""  # the version of the ConfigMap that it was read from
        self.made_for = ""
        self.next_plan_due = False
        self.plan: KnownPlan | None = None
        self.waves: dict[str, Wave | None] = {}
        self.committed = frozenset[str]()
        self.held: HeldShards | None = None
        # The shards that a merge has left out, with the damage; None if nothing is wrong with one.
        self.unmerged: dict[str, Damage | None] = {}
        self.leaving = True  # pods without a Job may still be ending
        self.features: Features | None = None
        self.merge: JobView | None = None  # its merge, while a queue has not started it
        self.queued = False  # a queue takes this namespace's Jobs when they are created
        self.store_of = ""
        self.store: Store | None = None
        self.store_error: StoreError | None = None  # of the last observation
        self.create_only_root = ""  # of a store that is known to support create-only writes
        self.jobs, self.pods = StateAges(clock), StateAges(clock)
        self.unlisted = StateAges(clock)  # indexes that succeeded and whose commits are not listed
        self.workers = CachedValue(0.0, clock, times=40.0)
        self.nodes, self.workloads = CachedValue(15.0, clock), CachedValue(15.0, clock)
        self.others, self.warnings = CachedValue(60.0, clock), CachedValue(60.0, clock)
        self.announced: dict[tuple[str, str], float] = {}

    def forget_plan(self) -> None:
        """Forget everything that belongs to a plan."""
        self.plan, self.made_for = None, ""
        self.waves.clear()
        self.committed, self.held, self.leaving = frozenset(), None, True
        self.unmerged.clear()


# Rounds of campaigns that learn surfaces, made concurrently with reconciliations.
#
# Learning takes minutes, in which other campaigns must be reconciled. So a thread makes the round,
# and each reconciliation checks whether it is done. Only a reconciliation writes results. A
# controller that ends while a round is made leaves no trace of it.

# A small round is done by then and needs no second reconciliation.
_AT_ONCE_S = 0.5


@dataclass(eq=False)
class _Making:
    about: str
    found: NextPlan | None = None
    error: Exception | None = None
    thread: Running | None = None
    # False if the campaign has changed since: the result is then discarded.
    is_current: bool = True


class Rounds:
    """The rounds being made, by campaign; one at a time, the others wait.

    `wait_s` is how long a reconciliation waits for a round; None: until it is done."""

    def __init__(self, wait_s: float | None = _AT_ONCE_S):
        self._wait_s = wait_s
        self._turn = threading.Lock()
        self._making: dict[str, _Making] = {}

    def is_making(self, campaign: str, about: str) -> bool:
        """Return whether the round for the current state of a campaign is not done yet."""
        making = self._making.get(campaign)
        return making is not None and making.about == about and _is_at_work(making)

    def begin(self, campaign: str, about: str, make: Callable[[], NextPlan]) -> NextPlan | None:
        """Start to make a round for the current state `about` of a campaign.

        Return the round if it is done soon. Raises the error of making it."""
        self.forget(campaign)
        making = self._making[campaign] = _Making(about)
        making.thread = environment.begin(lambda: self._make(making, make), f"round of {campaign}")
        making.thread.join(self._wait_s)
        return self.take(campaign, about)

    def take(self, campaign: str, about: str) -> NextPlan | None:
        """Return the round for the current state of the campaign, once; None if it is not done.

        Raises the error of making it."""
        making = self._making.get(campaign)
        if making is None or making.about != about or _is_at_work(making):
            return None
        del self._making[campaign]
        if making.error is not None:
            raise making.error
        return making.found

    def forget(self, campaign: str) -> None:
        if (making := self._making.pop(campaign, None)) is not None:
            making.is_current = False

    def _make(self, making: _Making, make: Callable[[], NextPlan]) -> None:
        with self._turn:
            if not making.is_current:
                return
            try:
                making.found = make()
            except Exception as error:  # raised again by the reconciliation that takes the round
                making.error = error


def _is_at_work(making: _Making) -> bool:
    return making.thread is not None and making.thread.is_alive()
