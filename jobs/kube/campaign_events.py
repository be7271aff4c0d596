"""Events on a campaign's ConfigMap: what `kubectl describe` and `opmeter status` show of it."""

from collector.canonical import short_hash
from collector.surroundings import utc_now
from jobs.objects.deployment import Manifest

COMPONENT = "opmeter"
_LONGEST = 1000  # Kubernetes takes 1,024


def campaign_event(
    owner: Manifest, reason: str, message: str, *, about: str = "", warning: bool
) -> Manifest:
    """An Event. Its name tells its content, so that it is there once however often it is sent."""
    metadata = owner["metadata"]
    now = utc_now().strftime("%Y-%m-%dT%H:%M:%SZ")  # for people
    name = f"{metadata['name'][:200]}.{reason.lower()}.{short_hash(about or message, 10)}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata.get("uid", ""),
        },
        "reason": reason,
        "message": message[:_LONGEST],
        "type": "Warning" if warning else "Normal",
        "source": {"component": COMPONENT},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
