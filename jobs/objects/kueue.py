"""What Kueue says of Jobs: by its label on them, and by the conditions of their Workloads. Pure.

A Job that bears the label is Kueue's to start, to stop and to narrow, whoever put the label there;
a Workload is Kueue's own object for a Job, one for each. Its words are passed on as they are.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from jobs.objects.deployment import LONGEST_WORDS, Manifest

QUEUE = "kueue.x-k8s.io/queue-name"
GROUP = "kueue.x-k8s.io"
# By its whole name: `kubectl get workloads` is Kubernetes' own kind since 1.36.
WORKLOADS = f"workloads.{GROUP}"
# Reasons that Kueue gives when it stops trying: a person's word has no `DueTo`.
_GAVE_UP = "DeactivatedDueTo"
_EVICTED, _RESERVED, _ADMITTED = "Evicted", "QuotaReserved", "Admitted"


def queue_of(job: Mapping[str, Any]) -> str:
    """The LocalQueue that a live Job names; empty where it names none."""
    return str(((job.get("metadata") or {}).get("labels") or {}).get(QUEUE) or "")


def by_job(workloads: Iterable[Manifest]) -> dict[str, Manifest]:
    """uid of a Job -> its Workload; of several, as while one is replaced, the youngest."""
    found: dict[str, Manifest] = {}
    for one in sorted(workloads, key=_made):
        for owner in one["metadata"].get("ownerReferences") or ():
            if owner.get("kind") == "Job" and "deletionTimestamp" not in one["metadata"]:
                found[str(owner.get("uid"))] = one
    return found


def is_given_up(workload: Manifest) -> bool:
    """Whether Kueue itself has switched it off, as after so many tries: it is never tried again."""
    reason = _condition(workload, _EVICTED).get("reason", "")
    return not _is_active(workload) and str(reason).startswith(_GAVE_UP)


def why_waiting(workload: Manifest) -> str:
    """Why its Job is suspended, in Kueue's words; empty where it has said nothing yet."""
    evicted, reserved = _condition(workload, _EVICTED), _condition(workload, _RESERVED)
    admitted = _condition(workload, _ADMITTED)
    if not _is_active(workload):
        return f"deactivated ({_words(evicted) or 'a user set active: false'})"
    said = reserved if reserved.get("status") == "False" else admitted
    words = _words(said) if said.get("status") == "False" else ""
    if evicted.get("status") == "True" and (before := _words(evicted)) != words:
        return "; ".join(filter(None, (words, f"evicted before: {before}")))
    return words


def is_held(queue: Manifest) -> str:
    """Why a LocalQueue or ClusterQueue admits nothing; empty where it does."""
    policy = str((queue.get("spec") or {}).get("stopPolicy") or "None")
    if policy != "None":
        return f"it is stopped (stopPolicy: {policy})"
    active = _condition(queue, "Active")
    return _words(active) if active.get("status") == "False" else ""


def _is_active(workload: Manifest) -> bool:
    return (workload.get("spec") or {}).get("active") is not False


def _condition(thing: Manifest, kind: str) -> Mapping[str, Any]:
    conditions = (thing.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c.get("type") == kind), {})


def _words(condition: Mapping[str, Any]) -> str:
    """`Reason: message`, as the scheduler of Kueue wrote them."""
    reason, message = condition.get("reason") or "", condition.get("message") or ""
    return f"{reason}: {message}".strip(": ")[:LONGEST_WORDS]


def _made(workload: Manifest) -> str:
    return str(workload["metadata"].get("creationTimestamp") or "")
