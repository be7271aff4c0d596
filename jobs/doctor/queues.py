"""Checks of Kueue's queues, over what was fetched of them, each with what to do about it. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from jobs.doctor.machine import Check
from jobs.objects.deployment import Manifest
from jobs.objects.kueue import is_held
from jobs.objects.pod_template import resources
from jobs.objects.site import Site


def check_local_queue(site: Site, queue: Manifest | None, error: str) -> Check:
    """Whether the queue that the site names is there and admits; `error` says why it was not
    read."""
    name = site.kueue_queue
    if queue is None:
        fix = (
            "create it (manifests/components/kueue), or correct kueue_queue in the profile: "
            "kubectl get localqueues.kueue.x-k8s.io; reading it requires the Role opmeter-launcher"
        )
        return Check("queue", False, f"LocalQueue {name} cannot be read: {error}", fix)
    words = f"LocalQueue {name} of ClusterQueue {cluster_queue_of(queue)}"
    return _held("queue", words, queue, "localqueues")


def check_cluster_queue(
    site: Site, name: str, queue: Manifest | None, error: str, *, is_missing: bool
) -> Iterator[Check]:
    """Whether it admits, and covers all that a worker requests. One that may not be read need not
    be missing: it is the cluster's."""
    if queue is None:
        words = f"ClusterQueue {name} cannot be read: {error}"
        fix = "create it, or have the LocalQueue name another: kubectl get "
        fix += "clusterqueues.kueue.x-k8s.io"
        yield Check("cluster queue", not is_missing, words, fix, skipped=not is_missing)
        return
    yield _held("cluster queue", f"ClusterQueue {name}", queue, "clusterqueues")
    yield _covers(site, name, queue)


def cluster_queue_of(local_queue: Manifest) -> str:
    """The ClusterQueue behind a LocalQueue."""
    return str((local_queue.get("spec") or {}).get("clusterQueue") or "")


def _held(check: str, words: str, queue: Manifest, kind: str) -> Check:
    if held := is_held(queue):
        fix = f"nothing is admitted until that is fixed: kubectl describe {kind}.kueue.x-k8s.io"
        return Check(check, False, f"{words}: {held}", fix)
    return Check(check, True, words)


def _covers(site: Site, name: str, queue: Manifest) -> Check:
    """A worker that asks for one resource more than a queue covers is never admitted."""
    wanted = resources(site)
    covered = {resource for group in _groups(queue) for resource in _texts(group)}
    missing = sorted(set(wanted) - covered)
    if not missing:
        return Check("quota", True, f"ClusterQueue {name} covers all that a worker requests")
    fix = (
        "add them to coveredResources of the ClusterQueue, with a quota in each flavor; or let "
        "Kueue ignore them: resources.excludeResourcePrefixes in its configuration, as for "
        "ephemeral-storage"
    )
    words = ", ".join(f"{resource} ({wanted[resource]})" for resource in missing)
    return Check("quota", False, f"ClusterQueue {name} does not cover {words}", fix)


def _groups(queue: Manifest) -> list[Mapping[str, Any]]:
    return (queue.get("spec") or {}).get("resourceGroups") or []


def _texts(group: Mapping[str, Any]) -> list[str]:
    return [str(resource) for resource in group.get("coveredResources") or ()]
