"""Events, in the two forms in which the API server lists them. Pure."""

from collections.abc import Iterable
from datetime import datetime

from jobs.objects.deployment import Manifest

MAX_MESSAGE_CHARACTERS = 400  # characters of a message that are shown in a line


def events_about(events: Iterable[Manifest], kind: str, name: str = "") -> list[Manifest]:
    """Return Events about a kind of object, or about one object, oldest first."""
    found = [e for e in events if (e.get("involvedObject") or {}).get("kind") == kind]
    return sorted((e for e in found if name in ("", about(e))), key=last_seen_at)


def of_group(job: Manifest, events: Iterable[Manifest]) -> list[Manifest]:
    """Return the Events about a Job's group: of Kueue, Volcano and Kubernetes.

    Kueue reports them for the Workload, Volcano and Kubernetes for the PodGroup."""
    name, uid = job["metadata"]["name"], job["metadata"].get("uid") or "-"
    known = list(events)
    groups = (*events_about(known, "Workload"), *events_about(known, "PodGroup"))
    named = [e for e in groups if name in about(e) or uid in about(e)]
    return sorted(named, key=last_seen_at)


def about(event: Manifest) -> str:
    """Return the name of the object that an Event is about."""
    return str((event.get("involvedObject") or {}).get("name") or "")


def last_seen_at(event: Manifest) -> str:
    """Return the time of an Event's last occurrence; its two forms use different keys."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return str(next(filter(None, times), "") or event["metadata"].get("creationTimestamp") or "")


def moment(text: object) -> datetime | None:
    """Return a time that the API server wrote, such as `2026-11-30T10:00:00Z`; None if it is not
    one."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else None


def event_message(event: Manifest) -> str:
    """Return the message of an Event, in either form."""
    return str(event.get("message") or event.get("note") or "").strip()[:MAX_MESSAGE_CHARACTERS]
