"""The Prometheus metrics of a controller, and whether its loop makes progress: text over HTTP."""

import threading
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from itertools import groupby
from math import fsum
from typing import Any
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.registry import Collector

from collector import environment
from collector.model.plan import Plan
from jobs.decide.observed import WORKER, Observed
from jobs.kube.leader_election import STUCK_S
from jobs.objects.site import Site
from jobs.status.plan_status import devices_measuring, remaining_s

# The work of worker pods while a controller observes them: used only for its metrics.
#
# Counted between reconciliations, so each controller starts at zero, as Prometheus counters may.

NO_CODE = "none"  # a pod that ended without an exit code of its container


class WorkDone:
    """The work of one campaign.

    `attempts` are pods that ended, by exit code; `device_s` is the time that running pods held
    their devices."""

    def __init__(self, clock: Callable[[], float] = environment.monotonic):
        self.attempts: Counter[str] = Counter()
        self.device_s = self._measured_s = 0.0
        self._clock = clock
        self._observed_at = 0.0
        self._running: frozenset[str] = frozenset()
        self._ended: frozenset[str] = frozenset()
        self._succeeded: dict[str, int] = {}
        self._before: frozenset[str] | None = None  # committed at the first reconciliation

    def count(self, observed: Observed, site: Site) -> None:
        """Count what happened since the last reconciliation."""
        now = self._clock()
        running = frozenset(pod.uid for pod in observed.pods if pod.phase == "Running")
        held = len(running & self._running)
        self.device_s += held * site.devices_per_worker * (now - self._observed_at)
        self._measured_s += devices_measuring(held, site) * (now - self._observed_at)
        self._observed_at, self._running = now, running
        self._count_ends(observed)
        if self._before is None:
            self._before = observed.committed

    def _count_ends(self, observed: Observed) -> None:
        """Count the pods that ended; succeeded pods are not listed and are counted by Job."""
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
        """Return the remaining wall time in seconds on the devices in use.

        If no device is in use, use the devices of the plan."""
        left_s = [s.predicted_s for s in plan.shards if s.shard_id not in observed.committed]
        at_once = devices_measuring(len(self._running), site)
        return remaining_s(left_s, at_once or plan.devices, self._pace(plan, observed, at_once))

    def _pace(self, plan: Plan, observed: Observed, at_once: int) -> float:
        """Return the ratio of actual to forecast time, once every device has finished a shard.

        Running shards count as half done on average."""
        before = self._before or frozenset()
        new = observed.committed - before
        done_s = fsum(s.predicted_s for s in plan.shards if s.shard_id in new)
        in_hand_s = at_once * fsum(s.predicted_s for s in plan.shards) / max(1, len(plan.shards))
        if done_s < in_hand_s or done_s <= 0 or self._measured_s <= 0:
            return 1.0
        return self._measured_s / (done_s + in_hand_s / 2)


Labels = tuple[tuple[str, str], ...]

_HELP = {
    "opmeter_shards": "Shards of the newest plan, by state.",
    "opmeter_cases": "Cases of the newest plan, by state of their shard.",
    "opmeter_repeats": "Cases of the newest plan that are measured "
    "a second time, by state of their shard.",
    "opmeter_pods": "Worker pods of live Jobs, by phase.",
    "opmeter_attempts_total": "Worker pods that ended since this "
    "controller became the leader, by exit code.",
    "opmeter_npu_seconds_total": "Device-seconds held by running worker pods "
    "since this controller became the leader.",
    "opmeter_eta_seconds": "Estimated remaining wall time on the devices in use, in seconds.",
    "opmeter_node_failures": "Shards that failed only on this node.",
    "opmeter_reconcile_seconds": "Duration of the last reconciliation of a campaign, in seconds.",
    "opmeter_api_requests_total": "Requests to the API server.",
    "opmeter_is_leader": "Whether this controller is the leader.",
    "opmeter_idle_seconds": "Seconds since the loop of the controller last made a step.",
}

LIVENESS = "/livez"


class Metrics(Collector):
    """The latest values; a scrape collects them.

    `idle_s` returns how long the loop has made no step: one that waits for a store or an API server
    that is unavailable makes steps, since each request has a time limit."""

    def __init__(self, idle_s: Callable[[], float] = lambda: 0.0) -> None:
        self._idle_s = idle_s
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._values: dict[tuple[str, Labels], float] = {}
        self._work: dict[str, WorkDone] = {}
        self._lock = threading.Lock()

    def set(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        with self._lock:
            self._values[name, tuple(sorted((labels or {}).items()))] = value

    def reconciled(self, campaign: str, seconds: float, requests: int) -> None:
        self.set("opmeter_reconcile_seconds", seconds, {"campaign": campaign})
        self.set("opmeter_api_requests_total", requests)

    def campaign(self, name: str, plan: Plan, observed: Observed, site: Site) -> None:
        """Set all values of one campaign."""
        done = [s for s in plan.shards if s.shard_id in observed.committed]
        left = [s for s in plan.shards if s.shard_id not in observed.committed]
        again = frozenset(plan.repeats)
        for state, shards in (("committed", done), ("open", left)):
            labels = {"campaign": name, "state": state}
            repeats = sum(shard.cases for shard in shards if shard in again)
            self.set("opmeter_shards", len(shards), labels)
            self.set("opmeter_cases", sum(shard.cases for shard in shards) - repeats, labels)
            self.set("opmeter_repeats", repeats, labels)
        phases = Counter(pod.phase for pod in observed.pods)
        # Succeeded pods are not listed: their Jobs count them.
        workers = (job for job in observed.jobs if job.component == WORKER)
        phases["Succeeded"] = sum(len(job.succeeded) for job in workers)
        for phase in ("Pending", "Running", "Succeeded", "Failed"):
            self.set("opmeter_pods", phases[phase], {"campaign": name, "phase": phase})
        work = self._work.setdefault(name, WorkDone())
        work.count(observed, site)
        for code, count in work.attempts.items():
            self.set("opmeter_attempts_total", count, {"campaign": name, "exit": code})
        self.set("opmeter_npu_seconds_total", work.device_s, {"campaign": name})
        self.set("opmeter_eta_seconds", work.eta_s(plan, observed, site), {"campaign": name})
        self._drop(name, ("opmeter_node_failures",))
        for node, shards_of in observed.node_failures.against().items():
            labels = {"campaign": name, "node": node}
            self.set("opmeter_node_failures", len(shards_of), labels)

    def forget(self, campaign: str) -> None:
        self._work.pop(campaign, None)
        self._drop(campaign, frozenset(_HELP))

    def _drop(self, campaign: str, metrics: Container[str]) -> None:
        """Serve the values of a campaign no longer."""
        label = ("campaign", campaign)
        with self._lock:
            self._values = {
                key: value
                for key, value in self._values.items()
                if label not in key[1] or key[0] not in metrics
            }

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            values = sorted([*self._values.items(), (("opmeter_idle_seconds", ()), self._idle_s())])
        for name, samples in groupby(values, key=lambda item: item[0][0]):
            base = name.removesuffix("_total")
            metric = Metric(base, _HELP.get(name, ""), "gauge" if base == name else "counter")
            for (_, labels), value in samples:
                metric.add_sample(name, dict(labels), value)
            yield metric

    def serve(self, port: int) -> WSGIServer:
        """Serve scrapes and the liveness probe on a port, in a separate thread."""
        server, _ = start_http_server(port, registry=self.registry)
        scrapes: Any = server.get_app()

        def serve_one(environ: dict[str, Any], start_response: Any) -> Any:
            if environ["PATH_INFO"] != LIVENESS:
                return scrapes(environ, start_response)
            idle_s = self._idle_s()
            status = "200 OK" if idle_s < STUCK_S else "503 Service Unavailable"
            start_response(status, [("Content-Type", "text/plain")])
            words = f"the loop made its last step {idle_s:.0f} s ago, of at most {STUCK_S:.0f} s\n"
            return [words.encode()]

        server.set_app(serve_one)
        return server
