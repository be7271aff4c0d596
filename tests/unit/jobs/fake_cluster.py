"""A simulated cluster: the calls of `jobs.kube.cluster.Cluster` on objects in memory, a Job
controller, and a kubelet whose workers commit to a real store.

Nothing here makes decisions for the controller: Jobs, pods and nodes only do what Kubernetes would.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from collector.codec.canonical import canonical_json, sha256_hex
from collector.codec.errors import BadInput, NotFound
from collector.database.merge import CREATE, merge_plans
from collector.model.measurement import Outcome
from collector.model.stack import Stack
from collector.store.base import Store
from collector.store.waiting import SingleWriterStore
from collector.worker.assignment import Assignment, abandon
from jobs.controller.launching import named_probe
from jobs.kube.errors import ClusterError, ObjectConflict, ObjectMissing
from jobs.kube.leader_election import MergeLease
from jobs.objects.applied_campaign import applied_from
from jobs.objects.job_manifest import is_same
from jobs.objects.waves import parse_indexes, wave_from_json
from tests.unit.jobs.simulated_kueue import NoKueue

Object = dict[str, Any]
Worker = Callable[[str, str], int]  # shard, node -> exit code; 0 commits the shard

COMPONENT = "app.kubernetes.io/component"
INDEX = "batch.kubernetes.io/job-completion-index"
NO_FAULT = (45, 47, 75)
RUNS = -1  # what a worker prints that has not finished


def copied(thing: Any) -> Any:
    """Like `copy.deepcopy` of JSON values, in a fifth of the time."""
    if isinstance(thing, dict):
        return {key: copied(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return type(thing)(map(copied, thing))
    return thing


def _versioned(thing: Object) -> Object:
    """With a version that changes whenever anything in it changes."""
    version = sha256_hex(canonical_json(thing))[:16]
    return {**thing, "metadata": {**thing["metadata"], "resourceVersion": version}}


class Killed(BaseException):
    """The calling process was killed."""


class FakeCluster:
    """`store` is the store that its pods use. `before` and `after` are called around every call,
    with its number, and may raise: before it has an effect, or when only the reply is lost."""

    def __init__(self, store: Store, nodes: tuple[str, ...] = ("n1", "n2"), devices: int = 2):
        self.namespace = "bench"
        self.requests = 0
        self.store = store
        self.worker: Worker = lambda shard, node: 0
        self.stack: Stack | None = None
        self.before: Callable[[int, str], None] = lambda number, name: None
        self.after: Callable[[int, str], None] = lambda number, name: None
        self.kueue = NoKueue()
        self.room: int | None = None  # pods that get a node at once; any number where it is None
        self.devices = devices
        self.maps: dict[str, Object] = {}
        self.live: dict[str, Object] = {}
        self.running: list[Object] = []
        self.going: list[tuple[Object, Object]] = []
        self.foreign: list[Object] = []  # pods of other users
        self.reported: dict[str, Object] = {}
        self.warnings: dict[str, list[str]] = {}
        self.leases: dict[str, Object] = {}
        self.names = dict.fromkeys(nodes, True)
        self.created: list[str] = []
        self.merges_fail = ""
        self.merges_wait = False  # a merge takes some time
        self.grace = False  # pods of a deleted Job continue until the next step
        self.forbidden: frozenset[str] = frozenset()
        self.drops: frozenset[str] = frozenset()
        self.most = 0
        self.tried: list[tuple[str, str]] = []
        self._uid = itertools.count()
        self._random = random.Random(1)

    # The calls of jobs.kube.cluster.Cluster.

    def config_maps(self, selector: str) -> list[Object]:
        return self._call(
            "config_maps", lambda: list(map(_versioned, _chosen(self.maps, selector)))
        )

    def jobs(self, selector: str) -> list[Object]:
        return self._call("jobs", lambda: _chosen(self.live, selector))

    def pods(self, selector: str, fields: str = "") -> list[Object]:
        def found() -> list[Object]:
            here = (p for p in self.foreign if p["metadata"]["namespace"] == self.namespace)
            named = {pod["metadata"]["name"]: pod for pod in [*self.running, *here]}
            left = _chosen(named, selector)
            return [p for p in left if fields == "" or p["status"]["phase"] != "Succeeded"]

        return self._call("pods", found)

    def nodes(self) -> list[Object]:
        return self._call("nodes", lambda: [] if "nodes" in self.forbidden else self._nodes())

    def pods_everywhere(self, fields: str) -> Iterator[Object]:
        assert f"metadata.namespace!={self.namespace}" in fields
        return (p for p in self.foreign if p["metadata"]["namespace"] != self.namespace)

    def events(self, fields: str) -> list[Object]:
        """Warnings about an object, as its kubelet writes them."""
        name = fields.removeprefix("involvedObject.name=").removesuffix(",type=Warning")
        words = self.warnings.get(name, ())
        return self._call(
            "events",
            lambda: [
                {"metadata": {}, "lastTimestamp": f"{at:04d}", "message": text}
                for at, text in enumerate(words)
            ],
        )

    def log(self, pod: str) -> str:
        assert self.stack is not None
        text = canonical_json(self.stack.as_json()).decode()
        return self._call("log", lambda: f"store ok\n{text}\n")

    def create_or_adopt(self, job: Object) -> bool:
        def create() -> bool:
            name = job["metadata"]["name"]
            if name in self.live:
                if not is_same(job, self.live[name]):
                    raise ObjectConflict(f"Job {name} exists with other content")
                return False
            if "create" in self.forbidden:
                raise ClusterError("403: exceeded quota")
            self.live[name] = copied(job)
            self.kueue.webhook(self.live[name])
            self.live[name]["metadata"]["uid"] = f"uid-{next(self._uid)}"
            self.live[name]["status"] = {}
            self.created.append(name)
            return True

        return self._call("create_or_adopt", create)

    def dry_run(self, job: Object) -> Object:
        def answer() -> Object:
            kept = copied(job)
            self.kueue.webhook(kept)
            for field in self.drops:
                kept["spec"].pop(field, None)
            return kept

        return self._call("dry_run", answer)

    def patch_job(self, name: str, spec: Object, notes: dict[str, str] | None = None) -> None:
        def patch() -> None:
            if name not in self.live:
                raise ObjectMissing(f"404: {name}")
            self.live[name]["spec"] |= spec
            annotations = self.live[name]["metadata"]["annotations"]
            for message_before in ("opmeter.io/held", "opmeter.io/resumed"):
                annotations.pop(message_before, None)
            annotations |= notes or {}
            if spec["suspend"]:
                self.suspend(name)

        self._call("patch_job", patch)

    def delete_job(self, name: str) -> None:
        def delete() -> None:
            job = self.live.pop(name, None)
            mine = [p for p in self.running if _job_of(p) == name and not _ended(p)]
            self.running = [p for p in self.running if _job_of(p) != name]
            if job is not None and self.grace:
                self.going += [(job, pod) for pod in mine]
                self.running += mine

        self._call("delete_job", delete)

    def announce(
        self, owner: Object, reason: str, message: str, *, about: str = "", warning: bool
    ) -> None:
        def put() -> None:
            key = f"{reason} {about or message}"
            self.reported.setdefault(
                key, {"reason": reason, "message": message, "warning": warning}
            )

        self._call("announce", put)

    def annotate_config_map(self, name: str, notes: dict[str, str | None]) -> None:
        def annotate() -> None:
            if name not in self.maps:
                raise ObjectMissing(f"404: {name}")
            held = self.maps[name]["metadata"].setdefault("annotations", {})
            for key, value in notes.items():
                held.pop(key, None)
                held |= {key: value} if value is not None else {}

        self._call("annotate_config_map", annotate)

    def lease(self, name: str) -> Object | None:
        return self._call("lease", lambda: copied(self.leases.get(name)))

    def create_lease(self, lease: Object) -> Object:
        def create() -> Object:
            name = lease["metadata"]["name"]
            if name in self.leases:
                raise ObjectConflict("409")
            self.leases[name] = copied(lease)
            self.leases[name]["metadata"]["resourceVersion"] = str(next(self._uid))
            return lease

        return self._call("create_lease", create)

    def replace_lease(self, lease: Object) -> Object:
        def replace() -> Object:
            name = lease["metadata"]["name"]
            held = self.leases[name]["metadata"]["resourceVersion"]
            if lease["metadata"]["resourceVersion"] != held:
                raise ObjectConflict("409")
            self.leases[name] = copied(lease)
            self.leases[name]["metadata"]["resourceVersion"] = str(next(self._uid))
            return lease

        return self._call("replace_lease", replace)

    def watch_jobs(self, selector: str, seconds: int) -> Iterator[str]:
        return iter(())

    # Actions of people and Kubernetes.

    def apply(self, config_map: Object) -> None:
        name = config_map["metadata"]["name"]
        old = self.maps.get(name, {"metadata": {"uid": f"uid-{next(self._uid)}"}})
        kept = copied(config_map)
        kept["metadata"]["uid"] = old["metadata"]["uid"]
        kept["metadata"]["annotations"] = dict(old["metadata"].get("annotations") or {})
        self.maps[name] = kept

    def has_answered(self, name: str, stack: Stack) -> None:
        """The probe of the workers of an applied campaign has ended, and this is what it found."""
        self.stack = stack
        applied = applied_from(self.maps[name])
        job = named_probe(applied.campaign, applied.site, applied.deployment)
        if (known := job["metadata"]["name"]) not in self.live:
            job["metadata"]["uid"], job["status"] = f"uid-{next(self._uid)}", {}
            self.live[known] = job
            self._run_single("probe", job)

    def delete_config_map(self, name: str) -> None:
        """With everything that it owns."""
        uid = self.maps.pop(name)["metadata"]["uid"]
        for job, found in list(self.live.items()):
            owners = found["metadata"].get("ownerReferences", ())
            if any(owner["uid"] == uid for owner in owners):
                del self.live[job]
                self.running = [p for p in self.running if _job_of(p) != job]

    def suspend(self, name: str) -> None:
        """The pods of a Job are deleted; those that have ended stay."""
        self.live[name]["spec"]["suspend"] = True
        self.live[name]["status"].pop("active", None)
        self.running = [p for p in self.running if _job_of(p) != name or _ended(p)]

    def step(self) -> None:
        """Pods start where there is capacity, and running pods finish."""
        self.kueue.step()
        for name, job in list(self.live.items()):
            component = job["metadata"]["labels"][COMPONENT]
            if component == "worker":
                self._start(name, job)
            elif not job["status"].get("conditions") and not self._waits(component, job):
                self._run_single(component, job)
        self._place()
        self.most = max(self.most, sum(not _ended(p) for p in self.running))
        for _, pod in self.going:
            self._work(pod, int(pod["metadata"]["labels"][INDEX]))
            self.running.remove(pod)
        self.going = []
        for pod in [p for p in self.running if not _ended(p)]:
            if self.names.get(pod["spec"]["nodeName"]) and "waiting" not in str(pod["status"]):
                self._end(pod)

    def _waits(self, component: str, job: Object) -> bool:
        return bool(job["spec"].get("suspend")) or (component == "merge" and self.merges_wait)

    def worker_jobs(self) -> list[Object]:
        return [j for j in self.live.values() if j["metadata"]["labels"][COMPONENT] == "worker"]

    def reasons(self) -> list[str]:
        return [event["reason"] for event in self.reported.values()]

    def _call(self, name: str, effect: Callable[[], Any]) -> Any:
        self.requests += 1
        number = self.requests
        self.before(number, name)
        result = effect()
        self.after(number, name)
        return copied(result)

    def _nodes(self) -> list[Object]:
        return [
            {
                "metadata": {"name": name, "labels": {}},
                "spec": {},
                "status": {
                    "allocatable": {"cpu": str(self.devices)},
                    "conditions": [{"type": "Ready", "status": str(up)}],
                },
            }
            for name, up in self.names.items()
        ]

    def _start(self, name: str, job: Object) -> None:
        spec, status = job["spec"], job["status"]
        if spec["suspend"] or status.get("conditions"):
            return
        mine = [p for p in self.running if _job_of(p) == name and not _ended(p)]
        ended = _indexes(status, "completedIndexes") | _indexes(status, "failedIndexes")
        busy = ended | {int(p["metadata"]["labels"][INDEX]) for p in mine}
        free = [i for i in range(spec["completions"]) if i not in busy]
        for index in free[: max(0, spec["parallelism"] - len(mine))]:
            mine.append(self._pod(name, job, index))
            if self.room is not None:
                mine[-1]["spec"]["nodeName"], mine[-1]["status"] = "", {"phase": "Pending"}
        self.running += [p for p in mine if p not in self.running]
        status["active"] = len(mine)

    def _place(self) -> None:
        """Pods that wait for a node get one while there is capacity; else they continue to wait."""
        if self.room is None:
            return
        there = [p for p in self.running if not _ended(p)]
        for pod in [p for p in there if p["status"]["phase"] == "Pending"]:
            if sum(p["status"]["phase"] == "Running" for p in there) < self.room:
                pod["spec"]["nodeName"] = self._random.choice(sorted(self.names))
                pod["status"] = {"phase": "Running"}

    def _pod(self, name: str, job: Object, index: int) -> Object:
        spec = job["spec"]["template"]["spec"]
        avoid = str(spec.get("affinity", ""))
        nodes = [n for n, up in self.names.items() if up and f"'{n}'" not in avoid]
        labels = job["spec"]["template"]["metadata"]["labels"]
        number = next(self._uid)
        return {
            "metadata": {
                "name": f"{name}-{index}-{number}",
                "namespace": self.namespace,
                "uid": f"uid-{number}",
                "creationTimestamp": str(number),
                "ownerReferences": [{"uid": job["metadata"]["uid"], "controller": True}],
                "labels": {**labels, "batch.kubernetes.io/job-name": name, INDEX: str(index)},
            },
            "spec": {"nodeName": self._random.choice(nodes), "containers": spec["containers"]},
            "status": {"phase": "Running"},
        }

    def _end(self, pod: Object) -> None:
        job = self.live[_job_of(pod)]
        index = int(pod["metadata"]["labels"][INDEX])
        code = self._work(pod, index)
        if code == RUNS:
            return
        said = {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}
        pod["status"] = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{"name": "worker", "state": {"terminated": said}}],
        }
        self._count(job, index, code)

    def _work(self, pod: Object, index: int) -> int:
        said = {e["name"]: e.get("value", "") for e in pod["spec"]["containers"][0]["env"]}
        campaign, key = said["OPMETER_CAMPAIGN"], said["OPMETER_WAVE"]
        where = f"campaigns/{campaign}/waves/{key}.json"
        try:
            wave = wave_from_json(self.store.get(where), key=where)
        except BadInput:
            return 43
        worst = 0
        for shard in wave.indexes[index]:
            if _holds(self.store, f"campaigns/{campaign}/committed/{shard}.json"):
                continue
            self.tried.append((shard, pod["spec"]["nodeName"]))
            code = self.worker(shard, pod["spec"]["nodeName"])
            if code == 0:
                attempt = pod["metadata"]["uid"]
                task = Assignment(campaign, wave.plan, wave.plan_hash, shard, attempt)
                reconciliations = "OPMETER_SINGLE_WRITER" in said
                store = SingleWriterStore(self.store) if reconciliations else self.store
                abandon(store, task, Outcome.FAILED, "played")
            worst = worst or code
        return worst

    def _count(self, job: Object, index: int, code: int) -> None:
        """How the Job controller handles the end of a pod."""
        status, spec = job["status"], job["spec"]
        done = _indexes(status, "completedIndexes")
        failed = _indexes(status, "failedIndexes")
        tries = status.setdefault("tries", {})
        if code == 0:
            done |= {index}
        elif code == 43:
            status["conditions"] = [_condition("Failed", "PodFailurePolicy", "exit code 43")]
        elif code not in NO_FAULT:
            tries[index] = tries.get(index, 0) + 1
            if "backoffLimitPerIndex" not in spec:
                if sum(tries.values()) > spec["backoffLimit"]:
                    words = "Job has reached the specified backoff limit"
                    status["conditions"] = [_condition("Failed", "BackoffLimitExceeded", words)]
            elif tries[index] > spec["backoffLimitPerIndex"]:
                failed |= {index}
        status["completedIndexes"] = ",".join(map(str, sorted(done)))
        status["failedIndexes"] = ",".join(map(str, sorted(failed)))
        if len(done | failed) == spec["completions"]:
            kind = ("Failed", "FailedIndexes") if failed else ("Complete", "CompletionsReached")
            status["conditions"] = [_condition(*kind, "all indexes have ended")]
        active = [p for p in self.running if self.live.get(_job_of(p)) is job and not _ended(p)]
        status["active"] = len(active)

    def _run_single(self, component: str, job: Object) -> None:
        """A probe, or a merge: its one pod does its work at once."""
        failure = ""
        if component == "merge":
            failure = self.merges_fail or self._merge(job)
        else:
            self.running.append(self._pod(job["metadata"]["name"], job, 0))
            self.running[-1]["status"] = {"phase": "Succeeded"}
        kind = ("Failed", "BackoffLimitExceeded") if failure else ("Complete", "")
        job["status"]["conditions"] = [_condition(*kind, failure)]

    def _merge(self, job: Object) -> str:
        command = job["spec"]["template"]["spec"]["containers"][0]["command"]
        campaign = command[3]
        plans = [int(command[at + 1]) for at, word in enumerate(command) if word == "--plan"]
        with ExitStack() as turn:
            store, guard = self.store, CREATE
            if "--lease" in command:
                guard = turn.enter_context(MergeLease(self, "merge").held())
                store = SingleWriterStore(store, guard.still_holds)
            result = merge_plans(
                store,
                [(campaign, number) for number in plans],
                guard=guard,
                author="merge",
                allow_missing="--allow-missing" in command,
                sleep=lambda seconds: None,
            )
        if result.damaged and "--allow-damaged" not in command:
            return "something is damaged"
        return "shards are missing" if result.missing and "--allow-missing" not in command else ""


def _chosen(objects: dict[str, Object], selector: str) -> list[Object]:
    expected = [part.partition("=") for part in selector.split(",") if part]

    def has(labels: dict[str, str], key: str, eq: str, value: str) -> bool:
        if key.endswith("!"):
            return labels.get(key[:-1]) != value
        return key in labels and (not eq or labels[key] == value)

    def matches(labels: dict[str, str]) -> bool:
        return all(has(labels, *part) for part in expected)

    return [o for o in objects.values() if matches(o["metadata"].get("labels") or {})]


def _job_of(pod: Object) -> str:
    return str(pod["metadata"]["labels"]["batch.kubernetes.io/job-name"])


def _ended(pod: Object) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")


def _indexes(status: Object, key: str) -> set[int]:
    return set(parse_indexes(status.get(key) or ""))


def _condition(kind: str, reason: str, message: str) -> Object:
    return {"type": kind, "status": "True", "reason": reason, "message": message}


def _holds(store: Store, key: str) -> bool:
    try:
        store.get(key)
    except NotFound:
        return False
    return True
