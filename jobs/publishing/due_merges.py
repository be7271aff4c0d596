"""Which plans' commits are due to be published, and publishing them as whoever runs this."""

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
    """The plans that can be merged beside the one in hand: those of its stack. Of what the head
    holds already a merge reads nothing."""
    numbers = {other.number for other in situation.plans}
    return sorted({*own_numbers(situation, numbers), plan.number})


def own_numbers(situation: Situation, numbers: Collection[int]) -> list[int]:
    """Those of the plans that were measured on the campaign's stack, in order."""
    stack_id = situation.stack.stack_id
    own = (plan.number for plan in situation.plans if plan.stack.stack_id == stack_id)
    return sorted(number for number in own if number in numbers)


def to_merge(
    situation: Situation, step: Continue | NewPlan | Finished, say: Callable[[str], None]
) -> list[int]:
    """What has to be merged before it is known how to go on: a plan that still lacks shards is
    merged when it has them, with all that came late."""
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
    """Merge what these plans of a campaign have committed, in the name of whoever runs this."""
    return merge_plans(
        store,
        [(campaign, number) for number in numbers],
        guard=guard,
        author=author(),
        supersede_stack=options.supersede_stack,
        allow_missing=True,
    )


def author() -> str:
    """Who publishes: `user@machine`, for people who read the log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's uid need not have a name
        user = "unknown"
    return f"{user}@{platform.node()}"


# Merges that take turns by a Lease, where the store cannot tell two writers apart.
#
# One Lease serves a namespace, whatever the store: the same store may be spelt in several ways, and
# two merges that need not wait for one another lose a minute at most.
#
# A Lease is no fence: a write that was sent while it was held may arrive when it is lost. Whoever
# takes over waits until it has been silent for all of its duration, and we stop at two thirds of
# it, so that this wants a write under way for that long, by a process that is frozen or cannot
# reach the API server meanwhile.

logger = logging.getLogger(__name__)

MERGE_LEASE = "opmeter-merge"
GUARD = "lease"
_LOOK_S = 1.0


class LeaseTaken(OpmeterError):
    """Another merge holds the Lease; trying again later helps."""


class MergeLease:
    """The Lease as one process takes it, again and again: what it saw of another holder's silence
    is remembered from one try to the next."""

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
        """The Lease, renewed until the end of the `with`. Raises LeaseTaken where it is not free
        for so long, and ClusterError where this account may not ask."""
        self._take(patience_s)
        term = self._election.term
        where = f"the Lease {MERGE_LEASE} of namespace {self._leases.namespace}"
        logger.warning(
            "the store does not support create-only writes: this merge holds %s instead", where
        )
        with self._election.kept():
            # Led: asked before the term, which is written before that.
            yield Guard(GUARD, lambda: self._election.leads and self._election.term == term)

    def _take(self, patience_s: float) -> None:
        self._leases.lease(MERGE_LEASE)  # an election would take a refusal for a bad moment
        deadline = self._clock() + patience_s
        while not self._election.hold():
            if self._clock() >= deadline:
                raise LeaseTaken(
                    f"another merge holds the Lease {MERGE_LEASE} of namespace "
                    f"{self._leases.namespace}; this merge waits until it is released"
                )
            self._sleep(_LOOK_S)
