"""The cluster provides the needs of a worker: torch, the store, and an API that accepts its
Jobs."""

import json
from collections.abc import Mapping

import pytest

from jobs.objects.job_manifest import Deployment, probe_job
from jobs.objects.site import load_site
from tests.cluster.cluster import Cluster
from tests.cluster.namespace import Namespace
from tests.cluster.pods import pod
from tests.cluster.testbed.testbed import Testbed
from tests.servers.faults import Answer, FaultProxy, Rule

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

_MULTIPLY = """
import torch
x = torch.ones(64, 64)
print(torch.__version__, float((x @ x).sum()))
"""


@pytest.mark.torch
def test_torch_computes_in_a_restricted_pod_of_an_image_without_it(
    cluster: Cluster, testbed: Testbed, namespace: Namespace
):
    import torch

    namespace.mount_folder("site-packages", cluster.site_packages())
    settings = {"PYTHONPATH": "/site-packages", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    made = pod(
        "torch",
        cluster.collector_image,
        ["python3", "-c", _MULTIPLY],
        environment=settings,
        claims={"site-packages": "/site-packages"},
    )
    ended = namespace.run(made)
    assert ended.exit_code == 0, ended.log
    assert ended.log.split() == [torch.__version__, str(64.0**3)]


@pytest.mark.torch
def test_probe_prints_the_stack_of_a_worker(
    cluster: Cluster, testbed: Testbed, namespace: Namespace
):
    namespace.mount_folder("torch", cluster.site_packages())
    namespace.make_accounts("opmeter-worker")
    deployment = Deployment(
        namespace=namespace.name,
        image=cluster.collector_image,
        controller_image=cluster.controller_image,
        root="file:///work/store",
        site_packages="torch",
    )
    namespace.create(probe_job(load_site("cpu"), deployment, "probe"))
    namespace("wait", "--for=condition=Complete", "job/probe", "--timeout=180s")
    stack = json.loads(namespace("logs", "job/probe").splitlines()[-1])
    assert stack["device"].startswith("CPU_")
    assert stack["torch"].startswith("2.")


def _doctor_report(cluster: Cluster, namespace: Namespace, secret: Mapping[str, str]) -> list[str]:
    """Return what `opmeter doctor` reports about the store in a pod with these files mounted."""
    namespace.make_secret("store", secret)
    settings = {
        "AWS_SHARED_CREDENTIALS_FILE": "/etc/store/credentials",
        "AWS_CONFIG_FILE": "/etc/store/config",
    }
    command = ["opmeter", "doctor", "--root", "s3://doctor/here"]
    made = pod("doctor", cluster.controller_image, command, environment=settings)
    made["spec"]["volumes"].append({"name": "store", "secret": {"secretName": "store"}})
    mount = {"name": "store", "mountPath": "/etc/store", "readOnly": True}
    made["spec"]["containers"][0]["volumeMounts"].append(mount)
    lines = namespace.run(made).log.splitlines()
    return [line for line in lines if line.split()[1:2] == ["store"]]


def test_pod_with_mounted_credentials_passes_the_store_probe(
    cluster: Cluster, testbed: Testbed, namespace: Namespace
):
    testbed.store.make_bucket("doctor")
    message = _doctor_report(cluster, namespace, testbed.store.credentials())
    assert [line.split()[0] for line in message] == ["ok"], message


def test_pod_reaches_the_store_through_a_faulty_proxy(
    cluster: Cluster, testbed: Testbed, namespace: Namespace, store_proxy: FaultProxy
):
    testbed.store.make_bucket("doctor")
    store_proxy.add(Rule(Answer(403), method="PUT"))
    message = _doctor_report(cluster, namespace, testbed.store.credentials(store_proxy.url))
    assert [line.split()[0] for line in message] == ["FAIL"], message
    assert any(request.method == "PUT" for request in store_proxy.requests)
