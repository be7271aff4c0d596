"""Kubernetes' Job controller, its scheduler and its garbage collector, as far as they affect Jobs:
Indexed Jobs, a retry budget per index, podFailurePolicy, suspension, replacement of failed pods but
not of pods that still end."""

import math

from jobs.objects.waves import parse_indexes
from tests.attack.simulation.api import NAMESPACE, ApiServer, Object, made_by

INDEX = "batch.kubernetes.io/job-completion-index"
JOB_NAME = "batch.kubernetes.io/job-name"
_LONGEST_BACKOFF_S = 360.0
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class JobController:
    """Reconcile every Job shortly after any change."""

    def __init__(self, server: ApiServer):
        self._server = server
        self._is_due = False
        self._counted: set[str] = set()  # uids of pods
        self._failures: dict[tuple[str, int], int] = {}  # of a Job's index
        self._not_before: dict[tuple[str, int], float] = {}
        self._ends: dict[str, tuple[str, str, str]] = {}  # what a Job will be once its pods ended
        server.changed.append(self._wake)

    def _wake(self, kind: str) -> None:
        if kind in ("jobs", "pods") and not self._is_due:
            self._is_due = True
            self._server.world.after(self._server.world.chance.uniform(0.05, 1.5), self._sync)

    def _sync(self) -> None:
        self._is_due = False
        for job in list(self._server.kinds["jobs"].values()):
            if not job["status"].get("conditions"):
                self._sync_job(job)
        self._collect()

    def _sync_job(self, job: Object) -> None:
        name, uid = job["metadata"]["name"], job["metadata"]["uid"]
        pods = [p for p in self._server.kinds["pods"].values() if made_by(p) == uid]
        done = set(parse_indexes(job["status"].get("completedIndexes", "")))
        failed = set(parse_indexes(job["status"].get("failedIndexes", "")))
        for pod in pods:
            if self._is_over(job, pod) and pod["metadata"]["uid"] not in self._counted:
                self._count(job, pod, done, failed)
        live = [pod for pod in pods if not self._is_over(job, pod)]
        if uid in self._ends or job["spec"]["suspend"]:
            for pod in live:
                self._server.delete_pod(pod["metadata"]["name"])
        else:
            self._scale(job, live, done | failed)
        active = sum("deletionTimestamp" not in pod["metadata"] for pod in live)
        status: Object = {"active": active}
        status |= {"completedIndexes": _text(done), "failedIndexes": _text(failed)}
        if uid not in self._ends and len(failed) > job["spec"].get("maxFailedIndexes", math.inf):
            words = "Job has exceeded the specified maximal number of failed indexes"
            self._ends[uid] = ("Failed", "MaxFailedIndexesExceeded", words)
        if uid not in self._ends and len(done | failed) == job["spec"]["completions"]:
            why = ("Failed", "FailedIndexes", "some indexes failed")
            self._ends[uid] = why if failed else ("Complete", "CompletionsReached", "")
        if uid in self._ends and not live:
            kind, reason, words = self._ends[uid]
            reported = {"type": kind, "status": "True", "reason": reason, "message": words}
            status["conditions"] = [reported]
            keep_s = float(job["spec"].get("ttlSecondsAfterFinished", 1e9))
            self._server.world.after(keep_s, lambda: self._forget(name, uid))
        if any(job["status"].get(key) != value for key, value in status.items()):
            self._server.change("jobs", name, status=status)

    def _is_over(self, job: Object, pod: Object) -> bool:
        """Return whether a pod may be replaced: not while it still ends, if replacement requires a
        failed pod."""
        waits = job["spec"].get("podReplacementPolicy") == "Failed" or job["spec"]["suspend"]
        return has_ended(pod) or (not waits and "deletionTimestamp" in pod["metadata"])

    def _forget(self, name: str, uid: str) -> None:
        """Its time to live is over."""
        if self._server.kinds["jobs"].get(name, {}).get("metadata", {}).get("uid") == uid:
            self._server.delete_job(name)

    def _count(self, job: Object, pod: Object, done: set[int], failed: set[int]) -> None:
        uid, index = job["metadata"]["uid"], int(pod["metadata"]["labels"].get(INDEX, 0))
        self._counted.add(pod["metadata"]["uid"])
        if pod["status"]["phase"] == "Succeeded":
            done.add(index)
            return
        action = _action(job, pod)
        if action == "FailJob":
            self._ends[uid] = ("Failed", "PodFailurePolicy", "a pod failed with exit code 43")
        if action != "Count":
            return
        count = self._failures[uid, index] = self._failures.get((uid, index), 0) + 1
        rest_s = min(10.0 * 2 ** (count - 1), _LONGEST_BACKOFF_S)
        self._not_before[uid, index] = self._server.world.now + rest_s
        self._server.world.after(rest_s, lambda: self._wake("jobs"))
        spec = job["spec"]
        if "backoffLimitPerIndex" in spec:
            if count > spec["backoffLimitPerIndex"]:
                failed.add(index)
        elif count > spec.get("backoffLimit", 6):
            words = "Job has reached the specified backoff limit"
            self._ends[uid] = ("Failed", "BackoffLimitExceeded", words)

    def _scale(self, job: Object, live: list[Object], over: set[int]) -> None:
        """Start as many pods as may run for the remaining indexes; the youngest are removed
        first."""
        uid, spec = job["metadata"]["uid"], job["spec"]
        busy = {int(pod["metadata"]["labels"].get(INDEX, 0)) for pod in live}
        active = [pod for pod in live if "deletionTimestamp" not in pod["metadata"]]
        active.sort(key=lambda pod: (pod["status"]["phase"] == "Pending", _age(pod)))
        for pod in active[spec["parallelism"] :]:
            self._server.delete_pod(pod["metadata"]["name"])
        now = self._server.world.now
        free = [i for i in range(spec["completions"]) if i not in over and i not in busy]
        for index in free[: max(0, spec["parallelism"] - len(active))]:
            if self._not_before.get((uid, index), 0.0) <= now:
                self._create(job, index)

    def _create(self, job: Object, index: int) -> None:
        name, template = job["metadata"]["name"], job["spec"]["template"]
        suffix = f"{self._server.world.chance.getrandbits(20):05x}"
        labels = {**template["metadata"]["labels"], JOB_NAME: name, INDEX: str(index)}
        pod = {
            "metadata": {
                "name": f"{name}-{index}-{suffix}",
                "namespace": NAMESPACE,
                "labels": labels,
                "ownerReferences": [{"uid": job["metadata"]["uid"], "controller": True}],
            },
            "spec": dict(template["spec"]),
            "status": {"phase": "Pending"},
        }
        self._server.put("pods", pod)

    def _collect(self) -> None:
        """Remove pods that have ended and are counted."""
        jobs = {job["metadata"]["uid"] for job in self._server.kinds["jobs"].values()}
        for name, pod in list(self._server.kinds["pods"].items()):
            metadata = pod["metadata"]
            is_free = made_by(pod) not in jobs or metadata["uid"] in self._counted
            never_began = "nodeName" not in pod["spec"]
            if "deletionTimestamp" in metadata and (never_began or (has_ended(pod) and is_free)):
                self._server.remove("pods", name)


class Scheduler:
    """Assign pods to nodes with free resources."""

    def __init__(self, server: ApiServer):
        self._server = server
        self._is_due = False
        server.changed.append(self._wake)

    def _wake(self, kind: str) -> None:
        if kind in ("pods", "nodes") and not self._is_due:
            self._is_due = True
            self._server.world.after(self._server.world.chance.uniform(0.05, 1.0), self._sync)

    def _sync(self) -> None:
        self._is_due = False
        waiting = [pod for pod in self._server.kinds["pods"].values() if _is_waiting(pod)]
        for pod in waiting:
            nodes = [n for n in self._nodes() if not (_avoids(pod, n) or self._repels(pod, n))]
            name = pod["metadata"]["name"]
            if nodes:
                chosen = self._server.world.chance.choice(nodes)
                self._server.change(
                    "pods", name, spec={"nodeName": chosen}, status={"conditions": []}
                )
            elif not pod["status"].get("conditions"):
                words = f"0/{len(self._server.kinds['nodes'])} nodes are available"
                reported = {"type": "PodScheduled", "status": "False", "message": words}
                self._server.change("pods", name, status={"conditions": [reported]})

    def _repels(self, pod: Object, node: str) -> bool:
        """Return whether a pod may not run next to one of those labels."""
        affinity = (pod["spec"].get("affinity") or {}).get("podAntiAffinity") or {}
        apart = [term["labelSelector"]["matchLabels"] for term in affinity.get(_REQUIRED, ())]
        return any(
            other["spec"].get("nodeName") == node
            and not has_ended(other)
            and any(labels.items() <= other["metadata"]["labels"].items() for labels in apart)
            for other in (self._server.kinds["pods"].values() if apart else ())
        )

    def _nodes(self) -> list[str]:
        held: dict[str, int] = {}
        for pod in self._server.kinds["pods"].values():
            if "nodeName" in pod["spec"] and not has_ended(pod):
                held[pod["spec"]["nodeName"]] = held.get(pod["spec"]["nodeName"], 0) + 1
        return [
            name
            for name, node in self._server.kinds["nodes"].items()
            if is_ready(node)
            and not node["spec"].get("unschedulable")
            and held.get(name, 0) < int(node["status"]["allocatable"]["cpu"])
        ]


def has_ended(pod: Object) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")


def is_ready(node: Object) -> bool:
    return bool(node["status"]["conditions"][0]["status"] == "True")


def _is_waiting(pod: Object) -> bool:
    return "nodeName" not in pod["spec"] and "deletionTimestamp" not in pod["metadata"]


def _avoids(pod: Object, node: str) -> bool:
    return f"'{node}'" in str(pod["spec"].get("affinity", ""))


def _age(pod: Object) -> str:
    return str(pod["metadata"]["creationTimestamp"])


def _action(job: Object, pod: Object) -> str:
    """Return the action of the Job's podFailurePolicy for a failed pod: the first rule that
    fits."""
    rules = (job["spec"].get("podFailurePolicy") or {}).get("rules") or ()
    conditions = [c["type"] for c in pod["status"].get("conditions") or ()]
    statuses = pod["status"].get("containerStatuses") or ()
    codes = [s["state"]["terminated"]["exitCode"] for s in statuses if "terminated" in s["state"]]
    for rule in rules:
        if any(c["type"] in conditions for c in rule.get("onPodConditions") or ()):
            return str(rule["action"])
        requested = rule.get("onExitCodes")
        if requested and any(
            code != 0 and (code in requested["values"]) == (requested["operator"] == "In")
            for code in codes
        ):
            return str(rule["action"])
    return "Count"


def _text(indexes: set[int]) -> str:
    return ",".join(map(str, sorted(indexes)))
