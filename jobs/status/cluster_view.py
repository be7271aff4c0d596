"""What a cluster knows of a campaign, for `opmeter status`; silent where there is none."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from collector.errors import BadInput
from jobs.decide.live_objects import pod_view
from jobs.kube.cluster import Cluster
from jobs.kube.errors import ClusterError
from jobs.kube.leader_election import LEASE
from jobs.objects.applied_campaign import SELECTOR, applied_from, is_named
from jobs.objects.deployment import COMPONENT_LABEL, JOB_NAME, Manifest
from jobs.objects.kueue import queue_of
from jobs.objects.strikes import Strikes
from jobs.status.why import Seen, waiting_pods

_FILE = "file://"
_ASKED = 3  # pods whose own Events are asked for: what waits, waits for the same
_GROUPS = ("Workload", "PodGroup")  # in which Kueue, Volcano and Kubernetes speak of a Job


class ClusterView:
    """Looks at a campaign's objects, or at those of any, where none is named. `trouble` is why
    the last look saw nothing, where somebody should know: no cluster at all is no trouble."""

    def __init__(self, campaign: str | None, namespace: str | None):
        self.trouble = ""
        self._campaign, self._is_asked_for = campaign or "", namespace is not None
        try:
            self._cluster: Cluster | None = Cluster.connect(namespace)
        except BadInput as error:
            self._cluster = None
            self.trouble = str(error) if self._is_asked_for else ""

    def seen(self, strikes: Strikes | None = None) -> Seen | None:
        """All that is there now; None where the campaign is not applied, or nobody answers."""
        if self._cluster is None:
            return None
        self.trouble = ""
        try:
            config_map = self._config_map(self._cluster)
            return self._look(self._cluster, config_map, strikes) if config_map else None
        except ClusterError as error:
            self.trouble = f"not available: {error}"
            return None

    def root(self) -> str | None:
        """The store's address where the ConfigMap names one that this machine may reach too."""
        if self._cluster is None:
            return None
        try:
            config_map = self._config_map(self._cluster)
            root = applied_from(config_map).deployment.root if config_map else ""
        except (BadInput, ClusterError):
            return None
        is_here = not root.startswith(_FILE) or Path(root.removeprefix(_FILE)).is_dir()
        return root if root and is_here else None

    def pod_logs(self, campaign: str, places: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """What pods printed that have or had an index of a Job, in the order in which they came:
        whose it is, and its text. `places` is Job -> index."""
        if self._cluster is None or not places:
            return
        try:
            found = self._cluster.pods(f"{SELECTOR}={campaign}")
        except ClusterError as error:
            self.trouble = f"not available: {error}"
            return
        found.sort(key=lambda pod: str(pod["metadata"].get("creationTimestamp") or ""))
        for pod in map(pod_view, found):
            if places.get(pod.job) != pod.index:
                continue
            whose = f"pod {pod.name}, {pod.phase} on {pod.node or 'no node'}"
            try:
                yield whose, self._cluster.log(pod.name)
            except ClusterError as error:
                self.trouble = f"{whose}: {error}"

    def _config_map(self, cluster: Cluster) -> Manifest | None:
        which = f"{SELECTOR}={self._campaign}" if self._campaign else SELECTOR
        found = [one for one in cluster.config_maps(which) if is_named(one)]
        if not found and self._is_asked_for:
            none = f"no campaign {self._campaign!r}" if self._campaign else "no campaign"
            self.trouble = f"{none} is applied in {cluster.namespace}"
        return found[0] if found else None

    def _look(self, cluster: Cluster, config_map: Manifest, strikes: Strikes | None) -> Seen:
        selector = f"{SELECTOR}={self._campaign}"
        jobs, pods = cluster.jobs(selector), cluster.pods(selector)
        for probe in _open_probes(cluster, config_map) if not jobs else ():
            jobs.append(probe)
            pods += cluster.pods(f"{JOB_NAME}={probe['metadata']['name']}")
        return Seen(
            namespace=cluster.namespace,
            campaign=self._campaign,
            config_map=config_map,
            lease=cluster.lease(LEASE),
            jobs=tuple(jobs),
            pods=tuple(pods),
            events=tuple(_events(cluster, config_map, pods)),
            workloads=tuple(_workloads(cluster, jobs)),
            quarantined=_quarantined(cluster, strikes),
        )


def _open_probes(cluster: Cluster, config_map: Manifest) -> list[Manifest]:
    """The Jobs that ask for the workers' stack: until one has answered there is no plan."""
    uid = config_map["metadata"]["uid"]
    return [
        job
        for job in cluster.jobs(f"{COMPONENT_LABEL}=probe")
        if any(owner["uid"] == uid for owner in job["metadata"].get("ownerReferences") or ())
        and not (job.get("status") or {}).get("succeeded")
    ]


def _workloads(cluster: Cluster, jobs: list[Manifest]) -> list[Manifest]:
    """Kueue's side, where anything may wait for it."""
    waits = any(queue_of(job) or job["spec"].get("suspend") for job in jobs)
    return cluster.kueue.workloads() if waits else []


def _events(cluster: Cluster, config_map: Manifest, pods: list[Manifest]) -> Iterator[Manifest]:
    named = [config_map, *waiting_pods(pods)[:_ASKED]]
    for name in (one["metadata"]["name"] for one in named):
        yield from cluster.events(f"involvedObject.name={name}")
    yield from cluster.events("involvedObject.kind=Job,type=Warning")
    for kind in _GROUPS:
        yield from cluster.events(f"involvedObject.kind={kind}")


def _quarantined(cluster: Cluster, strikes: Strikes | None) -> frozenset[str]:
    if strikes is None or not strikes.seen:
        return frozenset()
    return strikes.quarantined([node["metadata"]["name"] for node in cluster.nodes()])
