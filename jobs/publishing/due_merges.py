"""The plans whose commits must be published, and their publication by the current user."""

import getpass
import logging
import platform
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from collector import environment as surroundings
from collector.codec.errors import OpmeterError
from collector.database.merge import Guard, MergeResult, merge_plans
from collector.model.plan import Plan
from collector.store.base import Store
from jobs.campaign.campaign_file import RunOptions
from jobs.kube.leader_election import DURATION_S, Election, Leases
from jobs.planning.lifecycle import Continue, Finished, NewPlan
from jobs.planning.situation import Situation


def own_plans(situation: Situation, plan: Plan) -> list[int]:
    """Return the plans that can be merged with the current one: those of its stack.

    A merge skips everything that the head already has.
    """
    numbers = {other.number for other in situation.plans}
    return sorted({*own_numbers(situation, numbers), plan.number})


def own_numbers(situation: Situation, numbers: Collection[int]) -> list[int]:
    """Return the plans that were measured on the campaign's stack, in order."""
    stack_id = situation.stack.stack_id
    own = (plan.number for plan in situation.plans if plan.stack.stack_id == stack_id)
    return sorted(number for number in own if number in numbers)


def to_merge(
    situation: Situation, step: Continue | NewPlan | Finished, say: Callable[[str], None]
) -> list[int]:
    """Return the plans that must be merged before the next step can be determined.

    A plan that still lacks shards is merged when it has them, with all late commits.
    """
    match step:
        case NewPlan(_, numbers) | Finished(_, numbers):
            wanted = set(numbers)
        case Continue(plan, numbers):
            is_open = bool(plan.beyond(situation.committed))
            wanted = set() if is_open else {*numbers, plan.number}
    own = own_numbers(situation, wanted)
    for other in sorted(wanted.difference(own)):
        say(
            f"plan {other} was measured on another stack and is not merged; to publish it: "
            f"opmeter merge {situation.campaign.name} --plan {other} --supersede-stack"
        )
    return own


def publish(
    store: Store,
    campaign: str,
    numbers: Sequence[int],
    guard: Guard,
    options: RunOptions,
) -> MergeResult:
    """Merge the commits of these plans of a campaign, with the current user as author."""
    return merge_plans(
        store,
        [(campaign, number) for number in numbers],
        guard=guard,
        author=author(),
        supersede_stack=options.supersede_stack,
        allow_missing=True,
    )


def author() -> str:
    """Return the author as `user@machine`, for readers of the log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's uid may have no name
        user = "unknown"
    return f"{user}@{platform.node()}"


# Mutual exclusion of merges with a Lease, if the store does not support create-only writes.
#
# One Lease serves a namespace, whatever the store: the same store may have several URLs, and two
# merges that exclude each other needlessly lose at most a minute.
#
# A Lease is not a fence: a write sent while it was held may arrive after it is lost. The next
# holder waits until the Lease has not changed for its whole duration, and the holder stops at two
# thirds of it. So a conflict requires a write in transit for that long, by a process that is frozen
# or cannot reach the API server meanwhile.

logger = logging.getLogger(__name__)

MERGE_LEASE = "opmeter-merge"
GUARD = "lease"
_LOOK_S = 1.0


class LeaseTaken(OpmeterError):
    """Another merge holds the Lease; a later retry may succeed."""


class MergeLease:
    """The Lease as one process acquires it, repeatedly.

    The observed silence of another holder is kept from one try to the next.
    """

    def __init__(
        self,
        leases: Leases,
        identity: str,
        *,
        duration_s: float = DURATION_S,
        clock: Callable[[], float] = surroundings.monotonic,
        sleep: Callable[[float], None] = surroundings.sleep,
    ):
        self._leases, self._clock, self._sleep = leases, clock, sleep
        self._election = Election(
            leases, identity, name=MERGE_LEASE, duration_s=duration_s, clock=clock
        )

    @contextmanager
    def held(self, patience_s: float = 0.0) -> Iterator[Guard]:
        """Hold the Lease, renewed until the end of the `with`.

        Raises:
            LeaseTaken: it was not released within `patience_s`.
            ClusterError: this account may not read it.
        """
        self._take(patience_s)
        term = self._election.term
        where = f"the Lease {MERGE_LEASE} of namespace {self._leases.namespace}"
        logger.warning(
            "the store does not support create-only writes: this merge holds %s instead", where
        )
        with self._election.kept():
            # Check `leads` before `term`, because the term is written first.
            yield Guard(GUARD, lambda: self._election.leads and self._election.term == term)

    def _take(self, patience_s: float) -> None:
        self._leases.lease(MERGE_LEASE)  # an election would treat a refusal as a temporary error
        deadline = self._clock() + patience_s
        while not self._election.hold():
            if self._clock() >= deadline:
                raise LeaseTaken(
                    f"another merge holds the Lease {MERGE_LEASE} of namespace "
                    f"{self._leases.namespace}; this merge waits until it is released"
                )
            self._sleep(_LOOK_S)
