"""The schedule of a controller's reconciliations.

The controller reconciles soon after a change, with a minimum interval, and also periodically,
because a watch does not report every relevant change.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from collector import environment
from jobs.controller.controller import Controller
from jobs.kube.errors import ClusterError

logger = logging.getLogger(__name__)

_WATCH_S = 240
_LONGEST_S = 15.0  # between two reconciliations
_SLICE_S = 0.5
# The share of time for reconciliations. One long reconciliation, such as one that plans, costs at
# most _LONGEST_S.
_BUSY_SHARE = 0.25


class JobWatch(Protocol):
    """The part of a cluster that reports changes."""

    def watch_jobs(self, selector: str, seconds: int) -> Iterator[str]: ...


class Changes:
    """A flag that any Job of a selector has changed, set by a watch in its own thread.

    A watch that breaks counts as a change and is started again after a pause."""

    def __init__(self, jobs: JobWatch, selector: str, pause_s: float = 5.0):
        self._jobs, self._selector, self._pause_s = jobs, selector, pause_s
        self._changed, self._ended = threading.Event(), threading.Event()

    def start(self) -> "Changes":
        environment.begin(self._watch, "watch")
        return self

    def stop(self) -> None:
        self._ended.set()

    def wait(self, seconds: float) -> bool:
        """Return whether something changed since the last call that returned True."""
        changed = environment.wait(self._changed, seconds)
        self._changed.clear()
        return changed

    def _watch(self) -> None:
        while not self._ended.is_set():
            try:
                for _ in self._jobs.watch_jobs(self._selector, _WATCH_S):
                    self._changed.set()
                    if self._ended.is_set():
                        return
            except ClusterError as error:
                logger.info("polling Jobs, because they cannot be watched: %s", error)
            self._changed.set()
            environment.wait(self._ended, self._pause_s)


def run_forever(
    controller: Controller,
    leads: Callable[[], bool],
    stop: threading.Event,
    *,
    changes: Changes | None = None,
    until: str = "",
    interval_s: float = 5.0,
) -> bool:
    """Reconcile every campaign repeatedly while this process leads; the caller keeps the Lease.

    With `until`, end when that campaign is finished, whichever process leads, or is no longer
    applied; return whether it is finished."""
    while not stop.is_set():
        started = environment.monotonic()
        try:
            if leads():
                found = controller.reconcile()
            else:
                found = controller.read_state(until) if until else {}
            if until and found.get(until, True):
                return until in found
        except ClusterError as error:
            logger.warning("%s", error)
        took_s = environment.monotonic() - started
        rest_s = min(took_s / _BUSY_SHARE, took_s + _LONGEST_S)
        soonest = started + max(interval_s, rest_s)
        latest = max(soonest, started + _LONGEST_S)
        while (now := environment.monotonic()) < soonest and not stop.is_set():
            environment.wait(stop, min(_SLICE_S, soonest - now))
        while changes is not None and environment.monotonic() < latest and not stop.is_set():
            if changes.wait(_SLICE_S):
                break
    return False
