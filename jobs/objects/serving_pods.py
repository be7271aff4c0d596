"""The addresses of serving instances, from the pods that run them."""

from collections.abc import Iterable, Sequence
from ipaddress import IPv6Address, ip_address
from typing import Any

from collector.codec.errors import BadInput
from jobs.objects.deployment import Manifest

_ENDED = ("Succeeded", "Failed")


def serving_urls(pods: Iterable[Manifest], port: int | None = None) -> dict[str, str]:
    """Return the name and the address of each pod that has not ended and is not being deleted.

    Without a port, each pod must declare one. Raises BadInput for a pod that does not run yet:
    without one of its instances, a capture is no step of the whole."""
    urls = {}
    for pod in pods:
        metadata, status = pod["metadata"], pod.get("status", {})
        phase, name = status.get("phase", "Unknown"), metadata["name"]
        if phase in _ENDED or metadata.get("deletionTimestamp"):
            continue
        if phase != "Running":
            raise BadInput(f"pod {name}: expected Running, got {phase}")
        host = _host(name, status.get("podIP"))
        urls[name] = f"http://{host}:{port or _port(name, pod)}"
    return urls


def _host(name: str, address: object) -> str:
    try:
        found = ip_address(str(address))
    except ValueError as error:
        raise BadInput(f"pod {name}: expected an IP address, got {address!r}") from error
    return f"[{found}]" if isinstance(found, IPv6Address) else str(found)


def _port(name: str, pod: Manifest) -> int:
    containers: Sequence[dict[str, Any]] = pod.get("spec", {}).get("containers", ())
    ports = [one["containerPort"] for each in containers for one in each.get("ports", ())]
    if len(set(ports)) != 1:
        got = ", ".join(map(str, ports)) or "none"
        raise BadInput(f"pod {name}: expected one declared port, got {got}: use --port")
    return int(ports[0])
