"""Merges that take turns by a Lease, where the store cannot tell two writers apart.

One Lease serves a namespace, whatever the store: the same store may be spelt in several ways, and
two merges that need not wait for one another lose a minute at most.

A Lease is no fence: a write that was sent while it was held may arrive when it is lost. Whoever
takes over waits until it has been silent for all of its duration, and we stop at two thirds of it,
so that this wants a write under way for that long, by a process that is frozen or cannot reach the
API server meanwhile.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from collector import surroundings
from collector.database.merge import Guard
from collector.errors import OpmeterError
from jobs.kube.leader_election import DURATION_S, Election, Leases

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
