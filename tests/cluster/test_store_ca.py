"""Pods reach a bucket whose endpoint has a certificate of a private CA, by the site profile."""

from pathlib import Path

import pytest

from jobs.objects.deployment import Deployment
from jobs.objects.job_manifest import merge_job
from jobs.objects.site import load_site
from tests.cluster.cluster import Cluster
from tests.cluster.namespace import Namespace
from tests.cluster.testbed.testbed import Testbed
from tests.servers.faults import FaultProxy
from tests.servers.private_ca import PrivateCa

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_merge_reaches_a_store_with_the_ca_of_the_profile_and_names_the_key_without_it(
    cluster: Cluster, testbed: Testbed, namespace: Namespace, tmp_path: Path
):
    gateway = testbed.settings.gateway
    ca = PrivateCa(tmp_path, host=gateway)
    testbed.store.make_bucket("private")
    namespace.make_accounts("opmeter-merge")
    content = {"ca.crt": ca.bundle.read_text()}
    metadata = {"name": "ours", "namespace": namespace.name}
    namespace.create(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": content}
    )
    deployment = Deployment(
        namespace=namespace.name,
        image=cluster.controller_image,
        controller_image=cluster.controller_image,
        root="s3://private/empty",
        store_secret="s3",
        merge_memory="512Mi",
    )
    with FaultProxy(testbed.store.endpoint, own_context=ca.context, host=gateway) as proxy:
        namespace.make_secret("s3", testbed.store.credentials(proxy.url))
        pods = {"with": {"store_ca": "{config_map: ours}"}, "without": {}}
        for name, changes in pods.items():
            site = load_site("cpu", changes)
            job = merge_job("small", [1], name, site, deployment, partial=True)
            of_pod = {"name": name, "namespace": namespace.name}
            spec = job["spec"]["template"]["spec"]
            namespace.create({"apiVersion": "v1", "kind": "Pod", "metadata": of_pod, "spec": spec})
        ended = {name: namespace.end_of(name) for name in pods}
        assert all(pod.exit_code for pod in ended.values())  # there is no campaign
        assert "store_ca" in ended["without"].log, ended["without"].log
        assert "CERTIFICATE" not in ended["with"].log and "small" in ended["with"].log
        assert proxy.requests
