"""A cluster's side of a campaign, and the words that its objects share.

What is neither plan nor machine type: where images, store and volumes are. Each field is a key of
the campaign's ConfigMap, but for those in NO_KEYS.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Manifest = dict[str, Any]

LABEL = "opmeter.io/"
PART_OF = "app.kubernetes.io/part-of"
COMPONENT_LABEL = "app.kubernetes.io/component"
JOB_NAME = "batch.kubernetes.io/job-name"  # which Job a pod belongs to
NO_KEYS = frozenset({"namespace", "owner", "leased"})


@dataclass(frozen=True, slots=True)
class Deployment:
    """A cluster's side of a campaign: what is neither plan nor machine type.

    `root` is the store as pods reach it; `store_secret` names a Secret of AWS's files
    (`credentials`, `config`), `worker_secret` that of workers and probes, where it is another: they
    write below a campaign's attempts and commits alone. `store_claim` is a volume for a `file://`
    store under /store.
    `site_packages` names a read-only claim that holds torch, for images that have none.
    `merge_memory` is what a merge may take, which holds the rows of a database.
    `allow_unpinned` takes an NPU image without a digest. `owner` is the
    ConfigMap (name, uid) with which everything goes. `leased` is found out: the store does not
    honour create-only writes, and merges take turns by a Lease.
    """

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

    @property
    def looks_first(self) -> bool:
        """Whether workers look before they write, since the store would not tell them.

        That is as good for a shard's commit, because an index has one pod at a time. Only a pod on
        a lost node may live beside its successor; where both commit at the same moment, the later
        one names the attempt that counts, and both attempts are complete.
        """
        return self.single_writer or self.leased


# Amounts as Kubernetes writes them.

_AMOUNT = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)([a-zA-Z]*)")
_FACTORS = {"m": 1e-3, "k": 1e3, "": 1.0} | {
    letter + i: base**power
    for power, letter in enumerate("KMGTPE", start=1)
    for i, base in (("", 1000.0), ("i", 1024.0))
}
del _FACTORS["K"]  # a thousand is a small k


def quantity(text: str) -> float:
    """Of cpu, bytes or devices: `8`, `500m`, `1k`, `40Gi`; 0 for what is none."""
    found = _AMOUNT.fullmatch(text)
    return float(found[1]) * _FACTORS.get(found[2], 0.0) if found else 0.0


# Events, as the API server lists them in their two forms: who said what, and when. Pure.

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
