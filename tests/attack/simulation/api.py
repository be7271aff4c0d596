"""The API server of a simulation: objects with versions, and the requests that the real
`jobs.kube.cluster` sends. The actions of Kubernetes' own controllers need no requests here."""

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import urllib3
from kubernetes import client

from tests.attack.simulation.faults import Faults
from tests.attack.simulation.process import Process
from tests.attack.simulation.world import World

Object = dict[str, Any]
NAMESPACE = "bench"
_CALL_S = 0.03
_OF_NAMESPACE = re.compile(r"/apis?/(?:[^/]+/)?v1/namespaces/[^/]+/([a-z]+)(?:/([^/]+))?(/log)?")
_OF_CLUSTER = re.compile(r"/api/v1/(nodes|pods)")


class ApiServer:
    """Each of `changed` is called with the kind that changed, `admission` with each Job that is
    created, `others` with the path of a group that the server does not have."""

    def __init__(self, world: World, faults: Faults):
        self.world, self.faults = world, faults
        self.kinds: dict[str, dict[str, Object]] = {
            kind: {} for kind in ("jobs", "pods", "configmaps", "events", "leases", "nodes")
        }
        self.away_until = 0.0
        self.changed: list[Callable[[str], None]] = []
        self.logs: dict[str, str] = {}
        self.admission: Callable[[Object], None] = lambda job: None  # of a webhook, for Jobs
        self.others: Callable[[str], Object | None] = lambda path: None  # groups of others
        self._applied: dict[str, set[str]] = {}
        self._history: dict[str, deque[tuple[float, dict[str, Object]]]] = {
            kind: deque(maxlen=40) for kind in self.kinds
        }
        self._version = 0
        self._written: dict[str, str] = {}  # by the version, which is unique

    def put(self, kind: str, thing: Object) -> Object:
        """Create or replace an object; old listings keep the old one."""
        self._version += 1
        metadata = {**thing["metadata"], "resourceVersion": str(self._version)}
        metadata.setdefault("uid", f"uid-{self._version}")
        metadata.setdefault("creationTimestamp", f"{self._version:012d}")
        kept = {**thing, "metadata": metadata}
        self._renew(kind, {**self.kinds[kind], metadata["name"]: kept})
        return kept

    def remove(self, kind: str, name: str) -> None:
        self._renew(kind, {key: o for key, o in self.kinds[kind].items() if key != name})

    def change(self, kind: str, name: str, **parts: Mapping[str, Any]) -> None:
        """Set members of an object's metadata, spec or status."""
        found = self.kinds[kind].get(name)
        if found is None:
            return
        new = {part: {**found.get(part, {}), **more} for part, more in parts.items()}
        self.put(kind, {**found, **new})

    def written(self, thing: Object) -> str:
        """Return an object as JSON, which is the same at every request until its version
        changes."""
        version = thing["metadata"]["resourceVersion"]
        if version not in self._written:
            self._written[version] = json.dumps(thing)
        return self._written[version]

    def listed(self, kind: str, lag_s: float) -> dict[str, Object]:
        """Return all objects of a kind as they were some time ago."""
        found = self.kinds[kind]
        for when, older in reversed(self._history[kind]):
            if when <= self.world.now - lag_s:
                break
            found = older
        return found

    def delete_job(self, name: str) -> None:
        """Delete a Job in the background: the Job is gone at once, and its pods begin to end."""
        uid = self.kinds["jobs"][name]["metadata"]["uid"]
        self.remove("jobs", name)
        self.world.after(self.world.chance.random() * 3.0, lambda: self._orphans(uid))

    def delete_pod(self, name: str, *, disrupted: bool = False) -> None:
        """Request a pod to end."""
        pod = self.kinds["pods"].get(name)
        if pod is None or "deletionTimestamp" in pod["metadata"]:
            return
        status = pod["status"]
        if disrupted:
            reported = {"type": "DisruptionTarget", "status": "True", "reason": "Evicted"}
            status = {**status, "conditions": [*status.get("conditions", ()), reported]}
        self.change("pods", name, metadata={"deletionTimestamp": "now"}, status=status)

    def apply_job(self, name: str, body: Object) -> Object:
        """Remove the fields that an earlier apply set and this one does not."""
        job = self.kinds["jobs"][name]
        notes = dict(job["metadata"].get("annotations") or {})
        message = body["metadata"].get("annotations") or {}
        for key in self._applied.get(name, set()) - set(message):
            notes.pop(key, None)
        self._applied[name] = set(message)
        self.change(
            "jobs",
            name,
            metadata={"annotations": {**notes, **message}},
            spec=body.get("spec") or {},
        )
        return self.kinds["jobs"][name]

    def _orphans(self, uid: str) -> None:
        for name, pod in list(self.kinds["pods"].items()):
            if made_by(pod) == uid:
                self.delete_pod(name)

    def without_owner(self) -> None:
        """Delete Jobs whose owner is gone too."""
        owners = {one["metadata"]["uid"] for one in self.kinds["configmaps"].values()}
        for name, job in list(self.kinds["jobs"].items()):
            references = job["metadata"].get("ownerReferences") or ()
            if references and not any(one["uid"] in owners for one in references):
                self.delete_job(name)

    def _renew(self, kind: str, objects: dict[str, Object]) -> None:
        self._history[kind].append((self.world.now, self.kinds[kind]))
        self.kinds[kind] = objects
        for reported in self.changed:
            reported(kind)


class _Answer:
    def __init__(self, text: str):
        self.data = text.encode()

    def stream(self, amt: int | None, decode_content: bool) -> Iterator[bytes]:
        yield self.data


class Client:
    """Replaces `kubernetes.client.ApiClient` of `jobs.kube.cluster`: one call is one request."""

    def __init__(self, server: ApiServer, process: Process):
        self._server, self._process = server, process

    def call_api(
        self,
        path: str,
        method: str,
        query_params: Sequence[tuple[str, str]] = (),
        body: Any = None,
        **more: Any,
    ) -> _Answer:
        server, chance, faults = self._server, self._process.chance, self._server.faults
        server.world.pause(chance.random() * _CALL_S)
        if server.world.now < server.away_until:
            raise urllib3.exceptions.ConnectTimeoutError("no response")
        if chance.random() < faults.api_errors:
            raise _refusal(chance.choice((429, 500, 503, 504)), "overloaded")
        value = self._do(method, path, dict(query_params), body)
        if server.world.is_traced:
            server.world.say(f"{self._process.name}: {method} {path}")
        server.world.pause(chance.random() * _CALL_S)
        if chance.random() < faults.api_lost_reply:
            raise urllib3.exceptions.ProtocolError("the connection broke")
        return _Answer(value if isinstance(value, str) else json.dumps(value))

    def _do(self, method: str, path: str, query: Mapping[str, str], body: Any) -> Any:
        if found := _OF_NAMESPACE.fullmatch(path):
            kind, name, log = found.groups()
            if kind in self._server.kinds:
                return self._of_namespace(method, kind, name or "", bool(log), query, body)
        elif found := _OF_CLUSTER.fullmatch(path):
            return self._list(found[1], query) if found[1] == "nodes" else '{"items": []}'
        if path.endswith("accessreviews"):
            return {"status": {"allowed": True}}
        if path == "/version":
            return {"gitVersion": "v1.36.3"}
        if (answer := self._server.others(path)) is not None:
            return answer
        raise _refusal(404, f"{path} not found")

    def _of_namespace(
        self, method: str, kind: str, name: str, log: bool, query: Mapping[str, str], body: Any
    ) -> Any:
        there = self._server.kinds[kind]
        if log:
            return self._server.logs.get(name, "")
        if method == "GET" and not name:
            return self._list(kind, query)
        if method == "POST":
            return self._create(kind, body, dry_run="dryRun" in query)
        if name not in there:
            raise _refusal(404, f"{kind} {name} not found")
        if method == "GET":
            return self._server.written(there[name])
        if method == "PUT":
            return self._replace(kind, name, body)
        if method == "DELETE":
            return self._delete(kind, name)
        return self._patch(kind, name, body)

    def _list(self, kind: str, query: Mapping[str, str]) -> str:
        lag_s = self._server.faults.api_lag_s * self._process.chance.random()
        chosen = [
            self._server.written(thing)
            for thing in self._server.listed(kind, lag_s).values()
            if _matches(thing, query.get("labelSelector", ""))
            and _fields_match(thing, query.get("fieldSelector", ""))
        ]
        return f'{{"metadata": {{"resourceVersion": "1"}}, "items": [{", ".join(chosen)}]}}'

    def _create(self, kind: str, body: Object, *, dry_run: bool) -> Object:
        if dry_run:
            return body
        name = body["metadata"]["name"]
        if name in self._server.kinds[kind]:
            raise _refusal(409, f"{kind} {name} already exists")
        if kind == "jobs":
            spec = {"completions": 1, "parallelism": 1, "suspend": False, **body["spec"]}
            body = {**body, "spec": spec, "status": {}}
            self._server.admission(body)
        if kind == "events" and body["reason"] == "InternalError":
            self._server.world.broken(f"{self._process.name}: {body['message']}")
        return self._server.put(kind, body)

    def _replace(self, kind: str, name: str, body: Object) -> Object:
        held = self._server.kinds[kind][name]["metadata"]["resourceVersion"]
        if body["metadata"].get("resourceVersion", held) != held:
            raise _refusal(409, f"{kind} {name} has changed")
        return self._server.put(kind, body)

    def _delete(self, kind: str, name: str) -> Object:
        if kind == "jobs":
            self._server.delete_job(name)
        elif kind == "configmaps":
            self._server.remove(kind, name)
            self._server.world.after(2.0, self._server.without_owner)
        else:
            self._server.world.broken(f"{self._process.name} deletes {kind} {name}")
        return {}

    def _patch(self, kind: str, name: str, body: Object) -> Object:
        if kind == "jobs":
            return self._server.apply_job(name, body)
        held = self._server.kinds[kind][name]["metadata"].get("annotations") or {}
        message = body["metadata"].get("annotations") or {}
        notes = {k: v for k, v in {**held, **message}.items() if v is not None}
        self._server.change(kind, name, metadata={"annotations": notes})
        return self._server.kinds[kind][name]


def _refusal(status: int, words: str) -> client.ApiException:
    error = client.ApiException(status=status, reason=words)
    error.body = json.dumps({"message": words})
    return error


def _matches(thing: Object, selector: str) -> bool:
    labels = thing["metadata"].get("labels") or {}
    for part in filter(None, selector.split(",")):
        key, equals, value = part.partition("=")
        if key.endswith("!"):
            if labels.get(key[:-1]) == value:
                return False
        elif key not in labels or (equals and labels[key] != value):
            return False
    return True


def made_by(pod: Object) -> str:
    """Return the uid of a pod's Job."""
    (owner,) = pod["metadata"]["ownerReferences"]
    return str(owner["uid"])


def _fields_match(thing: Object, selector: str) -> bool:
    """Field selectors by phase and by the object of an Event; no others are used."""
    for part in filter(None, selector.split(",")):
        key, _, value = part.partition("=")
        if key == "status.phase!" and thing.get("status", {}).get("phase") == value:
            return False
        if key == "involvedObject.name" and thing["involvedObject"]["name"] != value:
            return False
    return True
