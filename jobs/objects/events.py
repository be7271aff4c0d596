"""Events, as the API server lists them in their two forms: who said what, and when. Pure."""

from collections.abc import Iterable

from jobs.objects.deployment import Manifest

LONGEST_WORDS = 400  # characters of what somebody says that are passed on in a line


def events_of(events: Iterable[Manifest], kind: str, name: str = "") -> list[Manifest]:
    """Events about a kind of object, or about one, oldest first."""
    found = [e for e in events if (e.get("involvedObject") or {}).get("kind") == kind]
    return sorted((e for e in found if name in ("", about(e))), key=said_at)


def of_group(job: Manifest, events: Iterable[Manifest]) -> list[Manifest]:
    """What Kueue says of the Job's Workload, Volcano and Kubernetes of its PodGroup."""
    name, uid = job["metadata"]["name"], job["metadata"].get("uid") or "-"
    known = list(events)
    groups = (*events_of(known, "Workload"), *events_of(known, "PodGroup"))
    named = [e for e in groups if name in about(e) or uid in about(e)]
    return sorted(named, key=said_at)


def about(event: Manifest) -> str:
    """The name of the object that an Event is about."""
    return str((event.get("involvedObject") or {}).get("name") or "")


def said_at(event: Manifest) -> str:
    """When an Event was last said; the two forms of Events write it in different places."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return str(next(filter(None, times), "") or event["metadata"].get("creationTimestamp") or "")


def message_of(event: Manifest) -> str:
    """What an Event says, in both of their forms."""
    return str(event.get("message") or event.get("note") or "").strip()[:LONGEST_WORDS]
