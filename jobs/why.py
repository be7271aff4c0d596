"""Why a campaign on a cluster is where it is: live objects and Events in plain lines. Pure.

The words of the scheduler, of Volcano and of Kueue are passed on as they are: who knows them can
search for them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jobs.applied import PAUSED
from jobs.deployment import COMPONENT_LABEL, JOB_NAME, Manifest
from jobs.remedies import remedy

_QUEUE = "kueue.x-k8s.io/queue-name"
_STARTING = ("ContainerCreating", "PodInitializing", "")
_GROUPS, _WARNINGS = 8, 5
_LONGEST = 400
_UNTOLD = "nobody has said why; the controller lets it go on where nothing stands against it"
_NO_WORD, _GOING, _HELD = "no word yet", "starting on ", "held back by "


@dataclass(frozen=True, slots=True)
class Seen:
    """What was fetched of a campaign. `events` are of any of its objects."""

    namespace: str
    campaign: str
    config_map: Manifest
    lease: Manifest | None
    jobs: tuple[Manifest, ...] = ()
    pods: tuple[Manifest, ...] = ()
    events: tuple[Manifest, ...] = ()
    quarantined: frozenset[str] = frozenset()


def explain(seen: Seen) -> Iterator[str]:
    """The lines, the most general first."""
    yield _campaign_line(seen)
    yield _controller_line(seen.lease)
    for job in sorted(seen.jobs, key=_created):
        yield _job_line(job, seen)
        if _is_suspended(job) and not _is_paused(seen):
            yield from _help(_why_suspended(job, seen))
    yield from _pod_lines(seen)
    if seen.quarantined:
        names = ", ".join(sorted(seen.quarantined))
        yield f"quarantine  {names}: several shards failed there and nowhere else"
    warnings = [e for e in _events_of(seen.events, "ConfigMap") if e.get("type") == "Warning"]
    for event in warnings[-_WARNINGS:]:
        yield f"event       {event.get('reason', '')}: {message_of(event)}"


def running_pods(pods: Iterable[Manifest]) -> int:
    """How many worker pods are at work."""
    return sum(_phase(pod) == "Running" and _component(pod) == "worker" for pod in pods)


def waiting_pods(pods: Iterable[Manifest]) -> list[Manifest]:
    """The pods that are there and do not run yet."""
    return [pod for pod in pods if _phase(pod) == "Pending"]


def _campaign_line(seen: Seen) -> str:
    metadata = seen.config_map["metadata"]
    line = f"cluster     applied in namespace {seen.namespace}"
    if "deletionTimestamp" in metadata:
        return f"{line}; it is being taken off"
    if (metadata.get("annotations") or {}).get(PAUSED) == "true":
        return f"{line}; paused: opmeter pause {seen.campaign} --resume lets it go on"
    return line


def _controller_line(lease: Manifest | None) -> str:
    spec = (lease or {}).get("spec") or {}
    if holder := spec.get("holderIdentity"):
        return (
            f"controller  {holder} leads, last heard of {str(spec.get('renewTime', ''))[:19]} UTC"
        )
    return (
        "controller  none leads, so that nothing is started: look at the Deployment "
        "opmeter-controller, or be one yourself, from where the store can be reached: "
        "opmeter controller --namespace NAMESPACE"
    )


def _job_line(job: Manifest, seen: Seen) -> str:
    spec, status = job["spec"], job.get("status") or {}
    name = job["metadata"]["name"]
    done, failed = int(status.get("succeeded") or 0), int(status.get("failed") or 0)
    failed_indexes = status.get("failedIndexes") or ""
    parts = [f"{done} of {spec.get('completions') or 1} done"]
    if active := int(status.get("active") or 0):
        parts.append(f"{active} pods of at most {spec.get('parallelism')}")
    if failed:
        indexes = f", given up: indexes {failed_indexes}" if failed_indexes else ""
        parts.append(f"{failed} pods failed{indexes}")
    line = f"job         {name}: {', '.join(parts)}"
    ending = _ending(status.get("conditions") or ())
    if ending:
        words = ending.get("message") or ending.get("reason") or ""
        return f"{line}; {ending['type'].lower()}{f': {words}' if words else ''}"
    if _is_suspended(job):
        line += f"; suspended: {_why_suspended(job, seen)}"
    trouble = [e for e in _events_of(seen.events, "Job", name) if e.get("type") == "Warning"]
    return f"{line}; {trouble[-1].get('reason')}: {message_of(trouble[-1])}" if trouble else line


def _is_suspended(job: Manifest) -> bool:
    return bool(job["spec"].get("suspend")) and not _ending(
        (job.get("status") or {}).get("conditions") or ()
    )


def _is_paused(seen: Seen) -> bool:
    return (seen.config_map["metadata"].get("annotations") or {}).get(PAUSED) == "true"


def _why_suspended(job: Manifest, seen: Seen) -> str:
    name, labels = job["metadata"]["name"], job["metadata"].get("labels") or {}
    if queue := labels.get(_QUEUE):
        said = _group_events(job, seen.events)
        words = message_of(said[-1]) if said else "it has said nothing yet (kubectl get workloads)"
        return f"Kueue has it in the queue {queue}: {words}"
    if _is_paused(seen):
        return "the campaign is paused"
    for event in reversed(_events_of(seen.events, "ConfigMap")):
        about, _, why = str(event.get("message", "")).partition(": ")
        if event.get("reason") == "Suspended" and about == name and why:
            return why
    return _UNTOLD


def _pod_lines(seen: Seen) -> Iterator[str]:
    if not seen.pods:
        return
    phases = Counter(_phase(pod).lower() for pod in seen.pods)
    yield f"pods        {', '.join(f'{count} {phase}' for phase, count in sorted(phases.items()))}"
    groups: dict[str, list[str]] = defaultdict(list)
    jobs = {job["metadata"]["name"]: job for job in seen.jobs}
    for pod in waiting_pods(seen.pods):
        groups[_why_pending(pod, jobs, seen.events)].append(pod["metadata"]["name"])
    ordered = sorted(groups.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    for words, names in ordered[:_GROUPS]:
        yield f"pending     {len(names)} (as {names[0]}): {words}"
        yield from _help(words)
    for node, names in _on_their_way(seen.pods):
        yield f"ending      {len(names)} on {node} (as {names[0]}) do not end"
        yield (
            f"            what helps: kubectl describe node {node}, and the pods' finalizers; "
            f"where the node is gone for good, kubectl delete node {node}"
        )


def _help(words: str) -> Iterator[str]:
    """What can be done about somebody's words, where there are any but that all goes its way."""
    going = words.startswith((_UNTOLD, _HELD)) or (words.startswith(_GOING) and ": " not in words)
    if not going and not words.endswith(_NO_WORD):
        yield f"            what helps: {remedy(words)}"


def _why_pending(pod: Manifest, jobs: Mapping[str, Manifest], events: tuple[Manifest, ...]) -> str:
    spec, status = pod["spec"], pod.get("status") or {}
    if gates := spec.get("schedulingGates"):
        return f"{_HELD}{', '.join(gate['name'] for gate in gates)}"
    by_volcano = spec.get("schedulerName") == "volcano"
    who = "Volcano" if by_volcano else "the scheduler"
    scheduled = {c["type"]: c for c in status.get("conditions") or ()}.get("PodScheduled", {})
    own = _events_of(events, "Pod", pod["metadata"]["name"])
    if not spec.get("nodeName"):
        job = jobs.get((pod["metadata"].get("labels") or {}).get(JOB_NAME, ""))
        group = _group_events(job, events) if job else []
        said = scheduled.get("message") if scheduled.get("status") == "False" else ""
        words = [said or "", *(message_of(event) for event in (own[-1:] if not said else []))]
        words += [f"of its group: {message_of(event)}" for event in group[-1:]]
        return f"{who}: {'; '.join(dict.fromkeys(filter(None, words))) or _NO_WORD}"
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason", "") not in _STARTING:
            return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")[:_LONGEST]
    warned = [event for event in own if event.get("type") == "Warning"]
    starting = f"{_GOING}{spec['nodeName']}"
    return f"{starting}: {message_of(warned[-1])}" if warned else starting


def _group_events(job: Manifest, events: tuple[Manifest, ...]) -> list[Manifest]:
    """What Kueue says of the Job's Workload, Volcano and Kubernetes of its PodGroup."""
    name, uid = job["metadata"]["name"], job["metadata"].get("uid") or "-"
    about = (*_events_of(events, "Workload"), *_events_of(events, "PodGroup"))
    named = [e for e in about if name in _about(e) or uid in _about(e)]
    return sorted(named, key=said_at)


def _on_their_way(pods: Iterable[Manifest]) -> list[tuple[str, list[str]]]:
    """Node -> pods that were told to end, and are there still."""
    found: dict[str, list[str]] = defaultdict(list)
    for pod in pods:
        if "deletionTimestamp" in pod["metadata"] and _phase(pod) in ("Pending", "Running"):
            found[pod["spec"].get("nodeName") or "no node"].append(pod["metadata"]["name"])
    return sorted(found.items())


def _events_of(events: Iterable[Manifest], kind: str, name: str = "") -> list[Manifest]:
    """Events about a kind of object, or about one, oldest first."""
    found = [e for e in events if (e.get("involvedObject") or {}).get("kind") == kind]
    return sorted((e for e in found if name in ("", _about(e))), key=said_at)


def _about(event: Manifest) -> str:
    return str((event.get("involvedObject") or {}).get("name") or "")


def said_at(event: Manifest) -> str:
    """When an Event was last said; the two forms of Events write it in different places."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return str(next(filter(None, times), "") or event["metadata"].get("creationTimestamp") or "")


def message_of(event: Manifest) -> str:
    """What an Event says, in both of their forms."""
    return str(event.get("message") or event.get("note") or "").strip()[:_LONGEST]


def _ending(conditions: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    found = {c["type"]: c for c in conditions if c.get("status") == "True"}
    return found.get("Complete") or found.get("Failed") or {}


def _created(job: Manifest) -> str:
    return str(job["metadata"].get("creationTimestamp") or "")


def _phase(pod: Manifest) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def _component(pod: Manifest) -> str:
    return str((pod["metadata"].get("labels") or {}).get(COMPONENT_LABEL, ""))
