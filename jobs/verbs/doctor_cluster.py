"""`opmeter doctor --cluster`: fetches what the checks are made of."""

import contextlib
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace

from collector.errors import BadInput
from jobs.applied import SELECTOR, Applied, applied_from
from jobs.cluster import Cluster
from jobs.cluster_errors import ClusterError
from jobs.deployment import JOB_NAME, Deployment
from jobs.device_plugin import check_device_plugin
from jobs.doctor import Check
from jobs.doctor_cluster import (
    APIS,
    NEEDED,
    Permission,
    check_account,
    check_apis,
    check_features,
    check_nodes,
    check_permissions,
    check_probe,
    check_version,
    not_probed,
    refused_job,
    sample_job,
)
from jobs.probing import stack_of_workers
from jobs.rendering import named_probe
from jobs.site import Site, load_site

_PATIENCE_S, _LOOK_S = 180.0, 2.0
_ACCOUNT = "opmeter-controller"  # of manifests/base
_NO_IMAGE = "no-image-is-known-yet"


def check_cluster(namespace: str | None, site: str | None, root: str | None) -> Iterator[Check]:
    """Every check of a cluster. A campaign that is applied in the namespace tells the image, the
    store and, where `site` does not, the machines."""
    cluster = Cluster.connect(namespace)
    try:
        yield check_version(cluster.version())
    except ClusterError as error:
        fix = "kubectl get --raw /version must answer too: look at KUBECONFIG and the network"
        yield Check("version", False, str(error), fix)
        return
    applied, trouble = _applied(cluster)
    if trouble:
        yield trouble
    chosen = load_site(site) if site else (applied.site if applied else load_site("cpu"))
    yield Check("site", True, chosen.name)
    yield from check_apis({group: cluster.has_api(group) for group in APIS}, chosen)
    allowed = {permission: cluster.may(*permission) for permission in NEEDED}
    yield check_permissions(allowed, f"this account, in {cluster.namespace},")
    yield check_account(_of_controller(cluster), f"ServiceAccount {_ACCOUNT}")
    yield from check_nodes(cluster.nodes(), chosen)
    yield check_device_plugin(cluster.daemon_sets(), chosen)
    yield _dry_run(cluster, chosen, applied)
    if applied is None:
        yield not_probed(cluster.namespace)
        return
    yield _probe(cluster, applied, chosen, root)


def _of_controller(cluster: Cluster) -> dict[Permission, bool] | None:
    """What the ServiceAccount of the controller may do; None where that may not be asked."""
    try:
        return {permission: cluster.account_may(_ACCOUNT, *permission) for permission in NEEDED}
    except ClusterError:
        return None


def _applied(cluster: Cluster) -> tuple[Applied | None, Check | None]:
    """The first campaign of the namespace that can be read, and what is wrong with another."""
    trouble = None
    try:
        found = cluster.config_maps(SELECTOR)
    except ClusterError as error:
        return None, Check("campaigns", False, str(error), "ask for the Role in manifests/base")
    for config_map in found:
        try:
            return applied_from(config_map), trouble
        except BadInput as error:
            trouble = Check("campaigns", False, str(error), "correct the ConfigMap: kubectl edit")
    return None, trouble


def _dry_run(cluster: Cluster, site: Site, applied: Applied | None) -> Check:
    bare = Deployment(cluster.namespace, _NO_IMAGE, _NO_IMAGE, "s3://bucket/prefix")
    job = sample_job(site, applied.deployment if applied else bare)
    try:
        return check_features(job, cluster.dry_run(job))
    except ClusterError as error:
        return refused_job(str(error))


def _probe(cluster: Cluster, applied: Applied, site: Site, root: str | None) -> Check:
    """A Job of its own, so that nothing older answers; it is gone afterwards."""
    deployment = replace(applied.deployment, root=root or applied.deployment.root)
    campaign = replace(applied.campaign, name=f"doctor-{uuid.uuid4().hex[:8]}")
    asked = replace(applied, campaign=campaign, site=site, deployment=deployment)
    job = named_probe(campaign, site, deployment)["metadata"]["name"]
    try:
        return _answer(cluster, asked, job)
    finally:
        with contextlib.suppress(ClusterError):  # then it goes by itself within the hour
            cluster.delete_job(job)


def _answer(cluster: Cluster, asked: Applied, job: str) -> Check:
    until = time.monotonic() + _PATIENCE_S
    try:
        while time.monotonic() < until:
            stack = stack_of_workers(cluster, asked)
            if stack is not None:
                return check_probe(stack.version_path, "")
            time.sleep(_LOOK_S)
        error = f"no answer after {_PATIENCE_S:.0f} s"
    except (BadInput, ClusterError) as raised:
        error = str(raised)
    pods = cluster.pods(f"{JOB_NAME}={job}")
    named = [job, *(pod["metadata"]["name"] for pod in pods)]
    said = (event for name in named for event in cluster.events(f"involvedObject.name={name}"))
    return check_probe("", error, said)
