"""`opmeter doctor --cluster`: reads the objects that the checks use."""

import contextlib
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace

from collector.codec.errors import BadInput
from jobs.controller.launching import named_probe
from jobs.controller.performer import stack_of_workers
from jobs.doctor import cluster_checks as checks
from jobs.doctor.machine import Check
from jobs.kube.cluster import Cluster
from jobs.kube.errors import ClusterError, ObjectMissing
from jobs.kube.leader_election import LeaderCheck, leader_fix
from jobs.objects.applied_campaign import SELECTOR, Applied, applied_from
from jobs.objects.deployment import COMPONENT_LABEL, JOB_NAME
from jobs.objects.kueue import by_job, why_waiting
from jobs.objects.site import Site, load_site

_PATIENCE_S, _POLL_S = 180.0, 2.0
_ACCOUNT = "opmeter-controller"  # of manifests/base


def check_cluster(namespace: str | None, site: str | None, root: str | None) -> Iterator[Check]:
    """Yield every check of a cluster.

    A campaign that is applied in the namespace gives the image, the store and, if `site` is not
    set, the machines."""
    cluster = Cluster.connect(namespace)
    try:
        yield checks.check_version(cluster.version())
    except ClusterError as error:
        fix = "kubectl get --raw /version must succeed too: check KUBECONFIG and the network"
        yield Check("version", False, str(error), fix)
        return
    leader = _leader_check(cluster)
    applied, trouble = _applied(cluster)
    if trouble:
        yield trouble
    chosen = load_site(site) if site else (applied.site if applied else load_site("cpu"))
    yield Check("site", True, chosen.name)
    served = {group: cluster.has_api(group) for group in checks.APIS}
    yield from checks.check_apis(served, chosen)
    has_room = True
    if chosen.kueue_queue and served[checks.KUEUE]:
        for check in _queues(cluster, chosen, applied):
            has_room = has_room and check.ok
            yield check
    allowed = {permission: cluster.may(*permission) for permission in checks.NEEDED}
    yield checks.check_permissions(allowed, f"this account, in {cluster.namespace},")
    yield checks.check_account(_of_controller(cluster), f"ServiceAccount {_ACCOUNT}")
    yield _leads(cluster, leader, is_needed=applied is not None)
    yield from checks.check_nodes(cluster.nodes(), chosen)
    yield checks.check_device_plugin(cluster.daemon_sets(), chosen)
    yield _dry_run(cluster, chosen, applied)
    if applied is None:
        yield checks.not_probed(cluster.namespace)
        return
    if not has_room:
        yield checks.not_admitted()
        return
    yield _probe(cluster, applied, chosen, root)


def _leader_check(cluster: Cluster) -> LeaderCheck | str:
    """Begin to observe the controller's Lease; return why it cannot be read, if so."""
    try:
        return LeaderCheck(cluster)
    except ClusterError as error:
        return str(error)


def _leads(cluster: Cluster, leader: LeaderCheck | str, *, is_needed: bool) -> Check:
    """Check whether a controller leads. If none is installed and none `is_needed`, that is no
    failure."""
    try:
        words = leader if isinstance(leader, str) else leader.complaint()
    except ClusterError as error:
        leader = words = str(error)
    if isinstance(leader, str):
        return Check("leader", True, f"not known whether a controller leads: {words}", skipped=True)
    if not words:
        return Check("leader", True, f"{leader.holder} leads")
    is_skipped = not (leader.holder or is_needed)
    return Check("leader", is_skipped, words, leader_fix(cluster.namespace), skipped=is_skipped)


def _of_controller(cluster: Cluster) -> dict[checks.Permission, bool] | None:
    """Return the controller's permissions; None if they may not be reviewed."""
    try:
        return {one: cluster.may(*one, account=_ACCOUNT) for one in checks.NEEDED}
    except ClusterError:
        return None


def _queues(cluster: Cluster, site: Site, applied: Applied | None) -> Iterator[Check]:
    """Check the LocalQueue that the site names, and its ClusterQueue."""
    try:
        local = cluster.kueue.local_queue(site.kueue_queue)
    except ClusterError as error:
        yield checks.check_local_queue(site, None, str(error))
        return
    yield checks.check_local_queue(site, local, "")
    name = checks.cluster_queue_of(local)
    try:
        found, reported, is_missing = cluster.kueue.cluster_queue(name), "", False
    except ClusterError as error:
        found, reported, is_missing = None, str(error), isinstance(error, ObjectMissing)
    yield from checks.check_cluster_queue(
        site, name, found, reported, is_missing=is_missing, applied=applied
    )


def _applied(cluster: Cluster) -> tuple[Applied | None, Check | None]:
    """Return the first readable campaign of the namespace, and a fault of another."""
    trouble = None
    try:
        found = cluster.config_maps(SELECTOR)
    except ClusterError as error:
        return None, Check("campaigns", False, str(error), "request the Role in manifests/base")
    for config_map in found:
        try:
            return applied_from(config_map), trouble
        except BadInput as error:
            trouble = Check("campaigns", False, str(error), "correct the ConfigMap: kubectl edit")
    return None, trouble


def _dry_run(cluster: Cluster, site: Site, applied: Applied | None) -> Check:
    bare = replace(checks.NO_DEPLOYMENT, namespace=cluster.namespace)
    job = checks.sample_job(site, applied.deployment if applied else bare)
    try:
        return checks.check_features(job, cluster.dry_run(job))
    except ClusterError as error:
        return checks.refused_job(str(error))


def _probe(cluster: Cluster, applied: Applied, site: Site, root: str | None) -> Check:
    """Run a new Job, so that no older one gives the result; it is deleted afterwards."""
    deployment = replace(applied.deployment, root=root or applied.deployment.root)
    campaign = replace(applied.campaign, name=f"doctor-{uuid.uuid4().hex[:8]}")
    requested = replace(applied, campaign=campaign, site=site, deployment=deployment)
    job = named_probe(campaign, site, deployment)["metadata"]["name"]
    try:
        return _probe_result(cluster, requested, job)
    finally:
        with contextlib.suppress(ClusterError):  # otherwise it expires within the hour
            cluster.delete_job(job)


def _probe_result(cluster: Cluster, requested: Applied, job: str) -> Check:
    until = time.monotonic() + _PATIENCE_S
    try:
        while time.monotonic() < until:
            stack = stack_of_workers(cluster, requested)
            if stack is not None:
                return checks.check_probe(stack.version_path, "")
            time.sleep(_POLL_S)
        error = f"no response after {_PATIENCE_S:.0f} s"
    except (BadInput, ClusterError) as raised:
        error = str(raised)
    pods = cluster.pods(f"{JOB_NAME}={job}")
    named = [job, *(pod["metadata"]["name"] for pod in pods)]
    reported = (event for name in named for event in cluster.events(f"involvedObject.name={name}"))
    queued = _held_back(cluster, job) if requested.site.kueue_queue else ""
    return checks.check_probe("", f"{error}; {queued}" if queued else error, reported)


def _held_back(cluster: Cluster, name: str) -> str:
    """Return Kueue's reason why it has not started a Job."""
    workloads = by_job(cluster.kueue.workloads())
    jobs = (job["metadata"] for job in cluster.jobs(f"{COMPONENT_LABEL}=probe"))
    found = (workloads.get(job.get("uid", "")) for job in jobs if job["name"] == name)
    return next((why_waiting(workload) for workload in found if workload), "")
