"""A simulated Kueue: it suspends, admits and evicts the Jobs of a simulated cluster as Kueue 0.19
was observed to do on Kubernetes 1.36, by its label and by `spec.suspend`.

A unit of quota is one pod. Time passes in steps; nothing is random, so that the same calls give the
same result.
"""

import copy
from dataclasses import dataclass, field
from typing import Any, Protocol

from jobs.kube.errors import ObjectMissing
from jobs.objects.kueue import QUEUE

Object = dict[str, Any]

LEAST = "kueue.x-k8s.io/job-min-parallelism"
DEFAULT = "default"  # a LocalQueue of this name takes every Job that names none


class Jobs(Protocol):
    """The objects that it acts on: `live` Jobs by name, and pods with their phases."""

    live: dict[str, Object]
    running: list[Object]

    def suspend(self, name: str) -> None: ...


@dataclass
class NoKueue:
    """A cluster without it."""

    def webhook(self, job: Object) -> None:
        """No Job is changed at creation."""

    def workloads(self) -> list[Object]:
        return []

    def local_queue(self, name: str) -> Object:
        raise ObjectMissing(f"404: {name}")

    def cluster_queue(self, name: str) -> Object:
        raise ObjectMissing(f"404: {name}")

    def step(self) -> None:
        """Nothing happens."""


@dataclass
class SimulatedKueue(NoKueue):
    """`quota` is that of CPUs of the one ClusterQueue behind all `queues`, `quotas` those of other
    resources that it `covers`, if they are not large; `holds` is its stopPolicy. A merge takes
    `merge_units` of it; while it waits for them, later Jobs that fit are admitted. With
    `takes_all` it also suspends Jobs that name no queue (manageJobsWithoutQueueName), and never
    starts them. `ready_steps` is how long all pods of a Job may take to run (waitForPodsReady), and
    `tries` how often one is tried again before it gives up."""

    cluster: Jobs
    quota: int = 8
    queues: tuple[str, ...] = ("team",)
    covers: tuple[str, ...] = ("cpu",)
    takes_all: bool = False
    holds: str = "None"
    ready_steps: int | None = None
    tries: int | None = None
    merge_units: int = 1
    is_running: bool = True  # its manager; its webhook is unreachable then
    quotas: dict[str, str] = field(default_factory=dict)
    made: dict[str, Object] = field(default_factory=dict)  # Workloads, by the uids of their Jobs
    fights: int = 0  # Jobs that ran without its admission, and were stopped
    _waited: dict[str, int] = field(default_factory=dict)

    # Calls of the API server.

    def webhook(self, job: Object) -> None:
        """At creation: the label of the default queue, and suspended."""
        labels = job["metadata"]["labels"]
        if DEFAULT in self.queues:
            labels.setdefault(QUEUE, DEFAULT)
        if self._has(job):
            job["spec"]["suspend"] = True

    def workloads(self) -> list[Object]:
        return copy.deepcopy(list(self.made.values()))

    def local_queue(self, name: str) -> Object:
        if name not in self.queues:
            raise ObjectMissing(f"404: localqueues.kueue.x-k8s.io {name!r} not found")
        return {"metadata": {"name": name}, "spec": {"clusterQueue": "cluster-queue"}}

    def cluster_queue(self, name: str) -> Object:
        quotas = dict.fromkeys(self.covers, "1Ti") | {"cpu": str(self.quota)} | self.quotas
        resources = [{"name": one, "nominalQuota": quota} for one, quota in quotas.items()]
        flavor = {"name": "f", "resources": resources}
        group = {"coveredResources": list(self.covers), "flavors": [flavor]}
        return {
            "metadata": {"name": name},
            "spec": {"stopPolicy": self.holds, "resourceGroups": [group]},
        }

    # Actions of people.

    def preempt(self, job: str) -> None:
        """A Job with higher priority takes its quota; it returns to the queue."""
        self._evict(self.cluster.live[job], "Preempted", "Preempted to accommodate a workload")

    def set_active(self, job: str, active: bool) -> None:
        """As a person does it on the Job's Workload."""
        self.made[self.cluster.live[job]["metadata"]["uid"]]["spec"]["active"] = active

    # What happens automatically.

    def step(self) -> None:
        """One pass over all Jobs, the oldest first."""
        if not self.is_running:
            return
        jobs = {j["metadata"]["uid"]: j for j in self.cluster.live.values() if self._has(j)}
        self.made = {uid: self.made.get(uid) or _workload(job) for uid, job in jobs.items()}
        for uid, job in jobs.items():
            self._update_admission(job, self.made[uid])
        for uid, job in jobs.items():
            self._try(job, self.made[uid])

    @property
    def used(self) -> int:
        """Pods that are admitted."""
        return sum(one["status"]["pods"] for one in self.made.values())

    def _has(self, job: Object) -> bool:
        return self.takes_all or QUEUE in job["metadata"]["labels"]

    def _update_admission(self, job: Object, workload: Object) -> None:
        """End the admission of a Job if there is a reason."""
        if _has_ended(job):
            workload["status"]["pods"] = 0
            _say(workload, "Finished", True, "Succeeded", "Job finished successfully")
            return
        if not workload["status"]["pods"]:
            if not job["spec"].get("suspend"):
                self.fights += 1
                self.cluster.suspend(job["metadata"]["name"])
            return
        if not workload["spec"]["active"]:
            self._evict(job, "Deactivated", "The workload is deactivated")
        elif self.holds == "HoldAndDrain":
            self._evict(job, "ClusterQueueStopped", "The ClusterQueue is stopped")
        elif self.ready_steps is not None:
            self._wait_for_pods(job, workload)

    def _wait_for_pods(self, job: Object, workload: Object) -> None:
        uid, status = job["metadata"]["uid"], workload["status"]
        ready = self._running(job) + _succeeded(job) >= status["pods"]
        self._waited[uid] = 0 if ready else self._waited.get(uid, 0) + 1
        if self._waited[uid] <= (self.ready_steps or 0):
            return
        status["requeues"] += 1
        self._evict(job, "PodsReadyTimeout", "Exceeded the PodsReady timeout")
        if self.tries is not None and status["requeues"] > self.tries:
            workload["spec"]["active"] = False
            why = "exceeding the maximum number of re-queuing retries"
            words = f"The workload is deactivated due to {why}"
            _say(workload, "Evicted", True, "DeactivatedDueToRequeuingLimitExceeded", words)

    def _running(self, job: Object) -> int:
        name = job["metadata"]["name"]
        mine = (p for p in self.cluster.running if _job_of(p) == name)
        return sum(p["status"]["phase"] == "Running" for p in mine)

    def _try(self, job: Object, workload: Object) -> None:
        """Admit it, or report why not."""
        status = workload["status"]
        if status["pods"] or _has_ended(job) or not workload["spec"]["active"]:
            return
        if status["rests"]:
            status["rests"] -= 1
            return
        reason, words = self._against(job)
        expected = min(job["spec"].get("parallelism") or 1, job["spec"].get("completions") or 1)
        least = int(job["metadata"]["annotations"].get(LEAST, expected))
        if job["metadata"]["labels"]["app.kubernetes.io/component"] == "merge":
            expected = least = self.merge_units
        given = min(expected, max(0, self.quota - self.used))
        if not words and given < least:
            more = expected - given
            reason = "Pending"
            words = (
                "couldn't assign flavors to pod set main: insufficient unused quota for cpu in "
                f"flavor f, {more} more needed"
            )
        if words:
            _say(workload, "QuotaReserved", False, reason, words)
            return
        for kind in ("QuotaReserved", "Admitted"):
            _say(workload, kind, True, kind, "Quota reserved in ClusterQueue cluster-queue")
        _say(workload, "Evicted", False, "QuotaReserved", "Previously evicted")
        status["pods"] = given
        self._waited[job["metadata"]["uid"]] = 0
        job["spec"] |= {"suspend": False} | ({"parallelism": given} if given < expected else {})

    def _against(self, job: Object) -> tuple[str, str]:
        queue = job["metadata"]["labels"].get(QUEUE, "")
        if queue not in self.queues:
            return "Inadmissible", f"LocalQueue {queue} doesn't exist"
        if self.holds != "None":
            return "Inadmissible", "ClusterQueue cluster-queue is stopped"
        return "", ""

    def _evict(self, job: Object, reason: str, message: str) -> None:
        workload = self.made[job["metadata"]["uid"]]
        workload["status"] |= {"pods": 0, "rests": 1}
        self.cluster.suspend(job["metadata"]["name"])
        _say(workload, "Evicted", True, reason, message)
        _say(workload, "Admitted", False, "NoReservation", "The workload has no reservation")
        _say(workload, "QuotaReserved", False, "Pending", message)
        # It goes to the end of its queue.
        self.made[job["metadata"]["uid"]] = self.made.pop(job["metadata"]["uid"])
        name = job["metadata"]["name"]
        self.cluster.live[name] = self.cluster.live.pop(name)


def _workload(job: Object) -> Object:
    metadata = job["metadata"]
    owner = {"kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "metadata": {"name": f"job-{metadata['name']}-1a2b3", "ownerReferences": [owner]},
        "spec": {"active": True, "queueName": metadata["labels"].get(QUEUE, "")},
        "status": {"conditions": [], "pods": 0, "requeues": 0, "rests": 0},
    }


def _say(workload: Object, kind: str, true: bool, reason: str, message: str) -> None:
    conditions = workload["status"]["conditions"]
    conditions[:] = [c for c in conditions if c["type"] != kind]
    conditions.append({"type": kind, "status": str(true), "reason": reason, "message": message})


def _has_ended(job: Object) -> bool:
    return bool(job["status"].get("conditions"))


def _succeeded(job: Object) -> int:
    done = job["status"].get("completedIndexes") or ""
    return len(done.split(",")) if done else 0


def _job_of(pod: Object) -> str:
    return str(pod["metadata"]["labels"]["batch.kubernetes.io/job-name"])
