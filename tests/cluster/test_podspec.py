"""The API server accepts every Job of every site, and admission accepts their pods, both
strictly."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from jobs.objects.job_manifest import Deployment, Manifest, merge_job, probe_job, worker_job
from jobs.objects.site import Site, bundled_sites, load_site
from jobs.objects.waves import Wave
from tests.cluster.cluster import Cluster
from tests.cluster.namespace import Namespace
from tests.unit.jobs.plans import plan_of, shards_of

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

_RUNTIME_CLASS = "ascend"
_PLAN = plan_of(shards_of(10.0, 10.0, 10.0), campaign="small")
_WAVE = Wave("small", 1, "feed", 0, (("s0",), ("s1",), ("s2",)), avoid=("bad-node",))


def _deployments(namespace: str) -> Iterator[Deployment]:
    on_s3 = Deployment(
        namespace=namespace,
        image="here/collector:1",
        controller_image="here/controller:1",
        root="s3://perf/x",
        store_secret="s3",
        site_packages="torch",
        owner=("opmeter-campaign-small", "0123"),
    )
    yield on_s3
    yield replace(on_s3, store_secret="", store_claim="disk", root="file:///store", owner=None)


def _jobs(site: Site, namespace: str) -> Iterator[Manifest]:
    for deployment in _deployments(namespace):
        yield worker_job(_WAVE, _PLAN, site, deployment, cap=2)
        yield merge_job(_PLAN.campaign, [_PLAN.number], "beef", site, deployment, partial=True)
        yield probe_job(site, deployment, "opmeter-probe-1")


def _pod_of(job: Manifest) -> Manifest:
    template = job["spec"]["template"]
    metadata = {**template["metadata"], "name": "one", "namespace": job["metadata"]["namespace"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


@pytest.fixture
def prepared(cluster: Cluster, namespace: Namespace) -> Iterator[Namespace]:
    """A `restricted` namespace with the accounts and the runtime class that pods name."""
    namespace.make_accounts("opmeter-worker", "opmeter-merge")
    found = cluster.kubectl.succeeds("get", "runtimeclass", _RUNTIME_CLASS)
    if not found:
        kind = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "runc"}
        cluster.kubectl.create({**kind, "metadata": {"name": _RUNTIME_CLASS}})
    yield namespace
    if not found:
        cluster.kubectl("delete", "runtimeclass", _RUNTIME_CLASS)


def test_every_job_of_every_site_is_accepted_and_an_unknown_field_is_refused(
    prepared: Namespace,
):
    assert len(bundled_sites()) > 5
    wrong = {}
    access = {"image_pull_secrets": "[registry]", "store_ca": "{config_map: ca}"}
    sites = {name: load_site(name) for name in bundled_sites()}
    for name, site in (sites | {"access": load_site("cpu", access)}).items():
        for number, job in enumerate(_jobs(site, prepared.name)):
            component = job["metadata"]["labels"]["app.kubernetes.io/component"]
            refused, pod_refused = prepared.refusal(job), prepared.refusal(_pod_of(job))
            mounts_drivers = site.backend == "npu" and site.runtime == "hostpath"
            if mounts_drivers and component != "merge":
                is_right = not refused and 'restricted volume type "hostPath"' in pod_refused
            else:
                is_right = refused == pod_refused == ""
            if not is_right:
                wrong[f"{name}: {component} {number}"] = (refused, pod_refused)
    assert wrong == {}
    job = worker_job(_WAVE, _PLAN, load_site("cpu"), next(_deployments(prepared.name)), cap=2)
    job["spec"]["backofLimit"] = 1
    assert "backofLimit" in prepared.refusal(job)
