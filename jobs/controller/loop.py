"""When a controller looks again: soon after something changes, never too often, and now and then
anyway, since not everything that matters is told by a watch."""

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from collector import environment
from jobs.controller.controller import Controller
from jobs.kube.errors import ClusterError

logger = logging.getLogger(__name__)

_WATCH_S = 240
_LONGEST_S = 15.0  # between two looks
_SLICE_S = 0.5
# Of the time may go into looking, but for one long look, as one that plans: it costs _LONGEST_S.
_BUSY_SHARE = 0.25


class JobWatch(Protocol):
    """What of a cluster tells changes."""

    def watch_jobs(self, selector: str, seconds: int) -> Iterator[str]: ...


class Changes:
    """Whether any Job of a selector has changed, told by a watch in a thread of its own. A watch
    that breaks counts as a change, and is begun again after a pause."""

    def __init__(self, jobs: JobWatch, selector: str, pause_s: float = 5.0):
        self._jobs, self._selector, self._pause_s = jobs, selector, pause_s
        self._changed, self._ended = threading.Event(), threading.Event()

    def start(self) -> "Changes":
        environment.begin(self._watch, "watch")
        return self

    def stop(self) -> None:
        self._ended.set()

    def wait(self, seconds: float) -> bool:
        """Whether something changed since the last call that said so."""
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
    """Look at every campaign, again and again, while we lead; the caller keeps the Lease. Where the
    campaign `until` is waited for, whoever leads, ends when it is finished, which is what it says,
    or is applied no more."""
    while not stop.is_set():
        started = environment.monotonic()
        try:
            found = controller.look() if leads() else _followed(controller, until)
            if until and found.get(until, True):
                return until in found
        except ClusterError as error:
            logger.warning("%s", error)
        took_s = environment.monotonic() - started
        rest_s = min(took_s / _BUSY_SHARE, took_s + _LONGEST_S)
        soonest = started + max(interval_s, rest_s)
        _wait(stop, changes, soonest, max(soonest, started + _LONGEST_S))
    return False


def _followed(controller: Controller, campaign: str) -> dict[str, bool]:
    return controller.follow(campaign) if campaign else {}


def _wait(
    stop: threading.Event,
    changes: Changes | None,
    soonest: float,
    latest: float,
) -> None:
    """Until something changes, but not before `soonest`."""
    while (now := environment.monotonic()) < soonest and not stop.is_set():
        environment.wait(stop, min(_SLICE_S, soonest - now))
    while changes is not None and environment.monotonic() < latest and not stop.is_set():
        if changes.wait(_SLICE_S):
            return
