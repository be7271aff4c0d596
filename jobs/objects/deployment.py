"""The deployment of a campaign in a cluster, and constants that its objects share.

It is independent of the plan and the machine type: the locations of images, store and volumes. Each
field is a key of the campaign's ConfigMap, except those in NO_KEYS.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from collector.codec.errors import BadInput

Manifest = dict[str, Any]

LABEL = "opmeter.io/"
PART_OF = "app.kubernetes.io/part-of"
COMPONENT_LABEL = "app.kubernetes.io/component"
JOB_NAME = "batch.kubernetes.io/job-name"  # the Job of a pod
NO_KEYS = frozenset({"namespace", "owner", "leased", "operators"})


@dataclass(frozen=True, slots=True)
class Deployment:
    """The deployment of a campaign in a cluster, without plan and machine type.

    Attributes:
        root: the store as pods reach it.
        store_secret: names a Secret with AWS files (`credentials`, `config`).
        worker_secret: the Secret of workers and probes, if it is another: they write only below a
            campaign's attempts and commits.
        store_claim: a volume for a `file://` store under /store.
        site_packages: names a read-only claim that contains torch, for images without it.
        merge_memory: the memory of a merge, which holds the rows of a database.
        allow_unpinned: accepts an NPU image without a digest.
        owner: the ConfigMap (name, uid) whose deletion deletes everything.
        leased: detected: the store does not support create-only writes, and merges exclude each
            other with a Lease.
        operators: hashes of the campaign's files of operators, which its workers may execute."""

    namespace: str
    image: str
    controller_image: str
    root: str
    store_secret: str = ""
    worker_secret: str = ""
    store_claim: str = ""
    site_packages: str = ""
    owner: tuple[str, str] | None = None
    single_writer: bool = False
    allow_unpinned: bool = False
    pull_policy: str = "IfNotPresent"
    merge_memory: str = "8Gi"
    leased: bool = False
    operators: tuple[str, ...] = ()

    @property
    def checks_before_write(self) -> bool:
        """Return whether workers check before they write: the store does not refuse overwrites.

        This is as safe for a shard's commit, because an index has one pod at a time. Only a pod on
        a lost node may run concurrently with its successor; if both commit at the same moment, the
        later commit names the attempt that counts, and both attempts are complete."""
        return self.single_writer or self.leased


# Names that the API server accepts.

_DNS = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_SUBDOMAIN = rf"{_DNS}(?:\.{_DNS})*"  # of RFC 1123, without its limit of each part
_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_NAMESPACE = re.compile(rf"(?=.{{1,63}}$){_DNS}")
OBJECT_NAME = re.compile(rf"(?=.{{1,253}}$){_SUBDOMAIN}")  # of most objects
LABEL_VALUE = re.compile(rf"(?:{_WORD})?")
# The key of a label, the name of a resource.
QUALIFIED_NAME = re.compile(rf"(?:(?=[^/]{{1,253}}/){_SUBDOMAIN}/)?{_WORD}")
# An image has a tag or a digest: without, it is the newest one of the moment.
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:[A-Za-z0-9.-]+(?::[0-9]{{1,5}})?/)?{_PART}(?:/{_PART})*"
    r"(?:(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?@sha256:[0-9a-f]{64}|:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})"
)
_PULL_POLICIES = ("IfNotPresent", "Always", "Never")


def check_deployment_values(deployment: Deployment) -> None:
    """Raise BadInput, with the key and the option, for a value that the API server would refuse."""
    name = "the name of an object: small letters, digits, dashes and dots"
    image = "an image with a tag or a digest, such as registry.example.com/opmeter/collector:1"
    objects = ("store_secret", "worker_secret", "store_claim", "site_packages")
    rules = (
        *(("image", _IMAGE, image), ("controller_image", _IMAGE, image)),
        ("namespace", _NAMESPACE, "up to 63 small letters, digits and dashes"),
        *((key, OBJECT_NAME, name) for key in objects),
        ("pull_policy", re.compile("|".join(_PULL_POLICIES)), ", ".join(_PULL_POLICIES)),
    )
    for key, pattern, expected in rules:
        text = getattr(deployment, key)
        if text and not pattern.fullmatch(text):
            raise _refusal(key, expected, text)
    if quantity(deployment.merge_memory) <= 0:
        raise _refusal("merge_memory", "a quantity such as 8Gi", deployment.merge_memory)


def _refusal(key: str, expected: str, text: str) -> BadInput:
    option = f"--{key.replace('_', '-')}"
    return BadInput(f"{key} ({option}): expected {expected}, got {text!r}")


# Kubernetes quantities.

_AMOUNT = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+$)?)([a-zA-Z]*)")
_FACTORS = {"m": 1e-3, "k": 1e3, "": 1.0} | {
    letter + i: base**power
    for power, letter in enumerate("KMGTPE", start=1)
    for i, base in (("", 1000.0), ("i", 1024.0))
}
del _FACTORS["K"]  # a thousand is a small k


def quantity(text: str) -> float:
    """Return the number of a quantity of cpu, bytes or devices; 0 if it is invalid.

    Examples: `8`, `500m`, `1k`, `40Gi`."""
    found = _AMOUNT.fullmatch(text)
    return float(found[1]) * _FACTORS.get(found[2], 0.0) if found else 0.0


# Events, in the two forms in which the API server lists them. Pure.

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
