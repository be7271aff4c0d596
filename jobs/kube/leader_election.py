"""Leader election: one process holds a Lease, and the others wait until it expires.

Clocks of machines differ, so times in the Lease are never compared with the local clock: a waiting
process measures with its own monotonic clock how long the Lease has not changed.
"""

import logging
import os
import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, Protocol

from collector import environment
from collector.codec.errors import OpmeterError
from collector.database.merge import Guard
from jobs.kube.errors import ClusterError, ObjectConflict

logger = logging.getLogger(__name__)

LEASE = "opmeter-controller"
DURATION_S = 30.0
# A leader that does not call `hold` for this long is stuck: planning a large campaign takes
# minutes.
STUCK_S = 3600.0
_POLL_S = 1.0


class Leases(Protocol):
    """The requests of an election to a cluster."""

    namespace: str

    def lease(self, name: str) -> dict[str, Any] | None: ...
    def create_lease(self, lease: dict[str, Any]) -> dict[str, Any]: ...
    def replace_lease(self, lease: dict[str, Any]) -> dict[str, Any]: ...


class Election:
    """One candidate of the election.

    `hold` is called before every action: it reads the Lease only now and then, and returns whether
    this process is the leader. Within `kept` the Lease is also renewed, concurrently with long
    work.

    A process is the leader for two thirds of the Lease's duration, counted from before its last
    renewal was sent. Other processes wait a whole duration from the time when they read it. So
    clocks may run at speeds that differ by up to that ratio."""

    def __init__(
        self,
        leases: Leases,
        identity: str,
        *,
        name: str = LEASE,
        duration_s: float = DURATION_S,
        clock: Callable[[], float] = environment.monotonic,
    ):
        self._leases, self._identity, self._name = leases, identity, name
        self._duration_s, self._clock = duration_s, clock
        self._seen: tuple[Any, ...] | None = None
        self._seen_at = 0.0
        self._renewed_at: float | None = None
        self._tried_at: float | None = None
        self._term: tuple[Any, ...] = ()
        self._held_at = clock()
        self._renewing = threading.Lock()

    @property
    def leads(self) -> bool:
        """Return whether this process is still the leader.

        Other processes take over only after a whole duration without renewal."""
        renewed = self._renewed_at
        return renewed is not None and self._clock() - renewed < self._duration_s * 2 / 3

    @property
    def idle_s(self) -> float:
        """Return the seconds since `hold` was last called: the process makes progress by it."""
        return self._clock() - self._held_at

    @property
    def term(self) -> tuple[Any, ...]:
        """Return a value that changes whenever the Lease is acquired.

        While it is the same, no other process was the leader."""
        return self._term

    def hold(self) -> bool:
        """Acquire or renew the Lease if possible; the caller is the process that acts as leader."""
        self._held_at = self._clock()
        return self._renewed_once()

    @contextmanager
    def kept(self, stuck_s: float = inf) -> Iterator[None]:
        """Acquire and renew the Lease during the `with` block, then release it.

        The renewal stops if `hold` was not called for `stuck_s`: another process must take over if
        this one hangs."""
        self._held_at, ended = self._clock(), threading.Event()
        keeper = environment.begin(lambda: self._keep(ended, stuck_s), "lease")
        try:
            yield
        finally:
            ended.set()
            keeper.join()
            self.release()

    def _keep(self, ended: threading.Event, stuck_s: float) -> None:
        while not environment.wait(ended, _POLL_S):
            if self.idle_s < stuck_s:
                self._renewed_once()

    def _renewed_once(self) -> bool:
        """Renew in one thread at a time: two threads would see each other as another candidate."""
        if not self._renewing.acquire(blocking=False):
            return self.leads
        try:
            return self.renew()
        finally:
            self._renewing.release()

    def renew(self) -> bool:
        """Renew the Lease if due; return whether this process is the leader."""
        now = self._clock()
        if self._tried_at is not None and now - self._tried_at < self._duration_s / 6:
            return self.leads
        self._tried_at = now
        try:
            self._renewed_at = now if self._try() else None
        except ObjectConflict:
            logger.info("another controller acquired the Lease %s first", self._name)
            self._renewed_at = None
        except ClusterError as error:
            logger.warning("the Lease %s cannot be renewed: %s", self._name, error)
        return self.leads

    def release(self) -> None:
        """Release the Lease, so that the next process can take over at once."""
        if not self.leads:
            return
        self._renewed_at = self._tried_at = None
        try:
            lease = self._leases.lease(self._name)
            if lease is not None and lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"]["holderIdentity"] = ""
                self._leases.replace_lease(lease)
        except ClusterError as error:
            logger.info("the Lease %s was not released: %s", self._name, error)

    def _try(self) -> bool:
        lease = self._leases.lease(self._name)
        if lease is None:
            lease = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._name, "namespace": self._leases.namespace},
                "spec": {
                    "holderIdentity": self._identity,
                    "leaseDurationSeconds": int(self._duration_s),
                    "acquireTime": _now(),
                    "renewTime": _now(),
                    "leaseTransitions": 0,
                },
            }
            self._leases.create_lease(lease)
            self._term = _term(lease)
            return True
        holder = lease["spec"].get("holderIdentity") or ""
        if holder and holder != self._identity and not self._is_silent(lease):
            return False
        if holder != self._identity:
            lease["spec"]["leaseTransitions"] = int(lease["spec"].get("leaseTransitions") or 0) + 1
            lease["spec"]["acquireTime"] = _now()
        lease["spec"]["holderIdentity"] = self._identity
        lease["spec"]["renewTime"] = _now()
        self._leases.replace_lease(lease)
        self._term = _term(lease)
        return True

    def _is_silent(self, lease: dict[str, Any]) -> bool:
        """Return whether the Lease has not changed for its duration while it was observed."""
        spec = lease["spec"]
        now, state = self._clock(), (spec.get("holderIdentity"), spec.get("renewTime"))
        if state != self._seen:
            self._seen, self._seen_at = state, now
        return now - self._seen_at > float(spec.get("leaseDurationSeconds") or self._duration_s)


class LeaderCheck:
    """Whether a controller leads in a namespace, for users who are about to need one.

    A controller that was killed leaves its name in the Lease, and clocks of machines differ: only a
    Lease that changes while it is observed is held by a process that lives."""

    def __init__(
        self,
        leases: Leases,
        clock: Callable[[], float] = environment.monotonic,
        sleep: Callable[[float], None] = environment.sleep,
    ):
        self._leases, self._clock, self._sleep = leases, clock, sleep
        self._first, self._began_at = self._state(), clock()

    def complaint(self) -> str:
        """Return why no controller starts the Jobs of the namespace; empty if a controller leads.

        This takes as long as the next renewal is away: without one, the duration of the Lease. If
        the Lease has not changed since an earlier call, the time since then counts."""
        while (state := self._state()) == self._first:
            if not self.holder:
                return no_leader(self._leases.namespace)
            if self._clock() - self._began_at > DURATION_S:
                return no_leader(self._leases.namespace, silent=self.holder)
            self._sleep(_POLL_S)
        self._first, self._began_at = state, self._clock()
        return "" if self.holder else no_leader(self._leases.namespace)

    @property
    def holder(self) -> str:
        """Return the process that the Lease named when it changed last; empty if it named none."""
        return self._first[0]

    def _state(self) -> tuple[str, str]:
        spec = (self._leases.lease(LEASE) or {}).get("spec") or {}
        return spec.get("holderIdentity") or "", spec.get("renewTime") or ""


def no_leader(namespace: str, silent: str = "") -> str:
    """Return what it means that no controller leads; `silent` did before."""
    who = f"{silent} has not renewed its Lease in" if silent else "none leads in"
    return f"{who} namespace {namespace}, so that nothing is started"


def leader_fix(namespace: str) -> str:
    """Return what helps if no controller leads."""
    return (
        "check the Deployment opmeter-controller, or run a controller on a machine that can reach "
        f"the store: opmeter controller --namespace {namespace}"
    )


def identity() -> str:
    """Return the identity of this process in a Lease."""
    return f"{os.environ.get('POD_NAME') or platform.node()}-{environment.token(6)}"


def _term(lease: dict[str, Any]) -> tuple[Any, ...]:
    """Return two fields that are written when a Lease is acquired, but not when it is renewed."""
    return lease["spec"].get("leaseTransitions"), lease["spec"].get("acquireTime")


def _now() -> str:
    """Return the current time for users who read the Lease."""
    return environment.utc_now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")


# Mutual exclusion of merges with a Lease, if the store does not support create-only writes.
#
# One Lease serves a namespace, whatever the store: the same store may have several URLs, and two
# merges that exclude each other needlessly lose at most a minute.
#
# A Lease is not a fence: a write sent while it was held may arrive after it is lost. The next
# holder waits until the Lease has not changed for its whole duration, and the holder stops at two
# thirds of it. So a conflict requires a write in transit for that long, by a process that is frozen
# or cannot reach the API server meanwhile.

MERGE_LEASE = "opmeter-merge"
GUARD = "lease"


class LeaseTaken(OpmeterError):
    """Another merge holds the Lease; a later retry may succeed."""


class MergeLease:
    """The Lease as one process acquires it, repeatedly.

    The observed silence of another holder is kept from one try to the next."""

    def __init__(
        self,
        leases: Leases,
        identity: str,
        *,
        duration_s: float = DURATION_S,
        clock: Callable[[], float] = environment.monotonic,
        sleep: Callable[[float], None] = environment.sleep,
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
            ClusterError: this account may not read it."""
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
            self._sleep(_POLL_S)
