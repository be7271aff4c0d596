"""The state of Jobs in Kueue: its label on them, and the conditions of their Workloads. Pure.

Kueue starts, stops and narrows every Job with the label, even if a user added it. A Workload is
Kueue's own object for a Job, one for each. Its messages are passed on unchanged.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jobs.objects.deployment import Manifest
from jobs.objects.events import MAX_MESSAGE_CHARACTERS
from jobs.objects.object_values import quantity

QUEUE = "kueue.x-k8s.io/queue-name"
GROUP = "kueue.x-k8s.io"
# The full name: `workloads` alone is a built-in kind of Kubernetes since 1.36.
WORKLOADS = f"workloads.{GROUP}"
# Reasons of Kueue for giving up: a deactivation by a user has no `DueTo`.
_GAVE_UP = "DeactivatedDueTo"
_EVICTED, _RESERVED, _ADMITTED = "Evicted", "QuotaReserved", "Admitted"


def queue_of(job: Mapping[str, Any]) -> str:
    """Return the LocalQueue that a live Job names; empty if it names none."""
    return str(((job.get("metadata") or {}).get("labels") or {}).get(QUEUE) or "")


def by_job(workloads: Iterable[Manifest]) -> dict[str, Manifest]:
    """Return the Workload of each Job by the Job's uid.

    Of several, for example while one is replaced, the youngest is used."""
    found: dict[str, Manifest] = {}
    for one in sorted(workloads, key=_made):
        for owner in one["metadata"].get("ownerReferences") or ():
            if owner.get("kind") == "Job" and "deletionTimestamp" not in one["metadata"]:
                found[str(owner.get("uid"))] = one
    return found


def is_given_up(workload: Manifest) -> bool:
    """Return whether Kueue deactivated a Workload, for example after too many tries.

    Such a Workload is never retried."""
    reason = _condition(workload, _EVICTED).get("reason", "")
    return not _is_active(workload) and str(reason).startswith(_GAVE_UP)


def why_waiting(workload: Manifest) -> str:
    """Return why its Job is suspended, as Kueue reports it; empty if there is no report yet."""
    evicted, reserved = _condition(workload, _EVICTED), _condition(workload, _RESERVED)
    admitted = _condition(workload, _ADMITTED)
    if not _is_active(workload):
        return f"deactivated ({_words(evicted) or 'a user set active: false'})"
    reported = reserved if reserved.get("status") == "False" else admitted
    words = _words(reported) if reported.get("status") == "False" else ""
    is_news = not words or evicted.get("message") != reported.get("message")
    if evicted.get("status") == "True" and is_news:
        return "; ".join(filter(None, (words, f"evicted before: {_words(evicted)}")))
    return words


def why_held(queue: Manifest) -> str:
    """Return why a LocalQueue or ClusterQueue admits nothing; empty if it admits Jobs."""
    policy = str((queue.get("spec") or {}).get("stopPolicy") or "None")
    if policy != "None":
        return f"it is stopped (stopPolicy: {policy})"
    active = _condition(queue, "Active")
    return _words(active) if active.get("status") == "False" else ""


@dataclass(frozen=True, slots=True)
class Room:
    """How many pods with the same requests one Job of a queue can have at most (infinite, if the
    queue borrows without a limit), and the `resource` and `limit` that decide it."""

    pods: float
    resource: str = ""
    limit: float = math.inf


def uncovered(queue: Manifest, requests: Mapping[str, str]) -> list[str]:
    """Return the requested resources for which a ClusterQueue has no quota at all."""
    groups = (queue.get("spec") or {}).get("resourceGroups") or ()
    return sorted(set(requests).difference(*map(_covered, groups)))


def room(queue: Manifest, requests: Mapping[str, str]) -> Room:
    """Return the room of a ClusterQueue that covers these requests, if nothing else used it.

    The pods of a Job take one flavor of each resource group, at most its nominalQuota, and what it
    may borrow from its cohort: borrowingLimit, without one anything (Kueue's API,
    ClusterQueueSpec; `cohort` is `cohortName` from v1beta2 on)."""
    spec = queue.get("spec") or {}
    borrows = bool(spec.get("cohort") or spec.get("cohortName"))
    least = Room(math.inf)
    for group in spec.get("resourceGroups") or ():
        needed = {name: quantity(requests[name]) for name in requests.keys() & _covered(group)}
        flavors = [_room_of(flavor, needed, borrows) for flavor in group.get("flavors") or ()]
        best = max(flavors, key=lambda one: one.pods, default=Room(0))
        least = min(least, best, key=lambda one: one.pods)
    return least


def _room_of(flavor: Manifest, needed: Mapping[str, float], borrows: bool) -> Room:
    limits = {one["name"]: _limit(one, borrows) for one in flavor.get("resources") or ()}
    found = (
        # A little more: 0.3 is not three times 0.1 in binary.
        Room(math.floor(limits.get(name, 0) / size + 1e-9), name, limits.get(name, 0))
        if size and math.isfinite(limits.get(name, 0))
        else Room(math.inf)
        for name, size in needed.items()
    )
    return min(found, key=lambda one: one.pods, default=Room(math.inf))


def _limit(resource: Manifest, borrows: bool) -> float:
    borrowed = resource.get("borrowingLimit")
    more = (math.inf if borrowed is None else quantity(str(borrowed))) if borrows else 0.0
    return quantity(str(resource.get("nominalQuota", 0))) + more


def _covered(group: Manifest) -> set[str]:
    return set(map(str, group.get("coveredResources") or ()))


def _is_active(workload: Manifest) -> bool:
    return (workload.get("spec") or {}).get("active") is not False


def _condition(thing: Manifest, kind: str) -> Mapping[str, Any]:
    conditions = (thing.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c.get("type") == kind), {})


def _words(condition: Mapping[str, Any]) -> str:
    """Return `Reason: message`, as Kueue's scheduler wrote them."""
    reason, message = condition.get("reason") or "", condition.get("message") or ""
    return f"{reason}: {message}".strip(": ")[:MAX_MESSAGE_CHARACTERS]


def _made(workload: Manifest) -> str:
    return str(workload["metadata"].get("creationTimestamp") or "")
