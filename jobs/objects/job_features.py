"""What this cluster's Jobs can do: asked by a strict dry run of the real Job, not by its version.

A feature gate that is off silently drops its field, and an older server refuses a field that it
does not know. Pure: the answer is compared with what was sent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collector.errors import BadInput
from jobs.objects.kueue import queue_of

_NEEDED = ("completionMode", "podFailurePolicy")


@dataclass(frozen=True, slots=True)
class Features:
    """`per_index`: an index has a retry budget of its own (1.29 and newer). Without it a worker
    commits a shard that keeps killing it, since the Job cannot tell which index to give up."""

    per_index: bool = True
    replacement: bool = True  # a pod is replaced only when the last one has really ended
    queued: bool = False  # somebody takes Jobs as they are made, and starts them when he likes


ALL_FEATURES = Features()
DEGRADED = Features(per_index=False, replacement=False)


def features_of(sent: Mapping[str, Any], kept: Mapping[str, Any]) -> Features:
    """From a Job and what a dry run made of it. Raises BadInput below the floor of 1.26."""
    spec = kept.get("spec") or {}
    if missing := [name for name in _NEEDED if name in sent["spec"] and name not in spec]:
        raise BadInput(
            "Jobs of this cluster do not support "
            f"{', '.join(missing)}; expected Kubernetes 1.26 or newer"
        )
    return Features(
        per_index="backoffLimitPerIndex" in spec,
        replacement="podReplacementPolicy" in spec,
        queued=bool(queue_of(kept) or (spec.get("suspend") and not sent["spec"].get("suspend"))),
    )


def unknown_fields(refusal: str) -> Features | None:
    """From the words of a server that refused the Job; None where it was not for these fields."""
    known = ("backoffLimitPerIndex", "maxFailedIndexes", "podReplacementPolicy")
    if "unknown field" not in refusal or not any(name in refusal for name in known):
        return None
    return DEGRADED
