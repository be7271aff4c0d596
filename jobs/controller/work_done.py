"""What worker pods have done while a controller looked on: for its metrics, and nothing else.

Counted from one look to the next, so that it begins anew with each controller, as counters of
Prometheus may.
"""

from collections import Counter
from collections.abc import Callable
from math import fsum

from collector import surroundings
from collector.plan import Plan
from jobs.decide.observed import WORKER, Observed
from jobs.objects.site import Site
from jobs.status.pace import devices_measuring, remaining_s

NO_CODE = "none"  # of a pod that ended without a container's own word


class WorkDone:
    """Of one campaign. `attempts` are pods that ended, by exit code; `device_s` is how long running
    pods held their devices."""

    def __init__(self, clock: Callable[[], float] = surroundings.monotonic):
        self.attempts: Counter[str] = Counter()
        self.device_s = self._measured_s = 0.0
        self._clock = clock
        self._looked_at = 0.0
        self._running: frozenset[str] = frozenset()
        self._ended: frozenset[str] = frozenset()
        self._succeeded: dict[str, int] = {}
        self._before: frozenset[str] | None = None  # committed at the first look

    def look(self, observed: Observed, site: Site) -> None:
        """Count what happened since the last look."""
        now = self._clock()
        running = frozenset(pod.uid for pod in observed.pods if pod.phase == "Running")
        held = len(running & self._running)
        self.device_s += held * site.devices_per_worker * (now - self._looked_at)
        self._measured_s += devices_measuring(held, site) * (now - self._looked_at)
        self._looked_at, self._running = now, running
        self._count_ends(observed)
        if self._before is None:
            self._before = observed.committed

    def _count_ends(self, observed: Observed) -> None:
        """Pods that succeeded are not listed: their Jobs tell how many there are."""
        failed = {pod.uid: pod for pod in observed.pods if pod.phase == "Failed"}
        for uid in failed.keys() - self._ended:
            code = failed[uid].exit_code
            self.attempts[NO_CODE if code is None else str(code)] += 1
        self._ended = frozenset(failed)
        done = {job.uid: len(job.succeeded) for job in observed.jobs if job.component == WORKER}
        for uid, count in done.items():
            self.attempts["0"] += max(0, count - self._succeeded.get(uid, 0))
        self._succeeded = done

    def eta_s(self, plan: Plan, observed: Observed, site: Site) -> float:
        """Wall time to come on the devices that measure now, or on the plan's where none does."""
        left_s = [s.predicted_s for s in plan.shards if s.shard_id not in observed.committed]
        at_once = devices_measuring(len(self._running), site)
        return remaining_s(left_s, at_once or plan.devices, self._pace(plan, observed, at_once))

    def _pace(self, plan: Plan, observed: Observed, at_once: int) -> float:
        """Time taken over time forecast, once every device has had its turn; what is in hand is
        half done on average."""
        before = self._before or frozenset()
        new = observed.committed - before
        done_s = fsum(s.predicted_s for s in plan.shards if s.shard_id in new)
        in_hand_s = at_once * fsum(s.predicted_s for s in plan.shards) / max(1, len(plan.shards))
        if done_s < in_hand_s or done_s <= 0 or self._measured_s <= 0:
            return 1.0
        return self._measured_s / (done_s + in_hand_s / 2)
