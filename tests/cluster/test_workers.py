"""What a worker needs of a cluster is there: torch, the store, and an API that takes its Jobs."""

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.namespace import Namespace
from tests.cluster.pods import pod
from tests.cluster.testbed.testbed import Testbed

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


def test_a_pod_finds_the_store_honest_with_credentials_from_a_mounted_secret(
    cluster: Cluster, testbed: Testbed, namespace: Namespace
):
    store = testbed.store
    store.make_bucket("doctor")
    namespace.make_secret("store", store.credentials())
    settings = {
        "AWS_SHARED_CREDENTIALS_FILE": "/etc/store/credentials",
        "AWS_CONFIG_FILE": "/etc/store/config",
        "COLUMNS": "200",
    }
    command = ["opmeter", "doctor", "--root", "s3://doctor/here"]
    made = pod("doctor", cluster.controller_image, command, environment=settings)
    made["spec"]["volumes"].append({"name": "store", "secret": {"secretName": "store"}})
    mount = {"name": "store", "mountPath": "/etc/store", "readOnly": True}
    made["spec"]["containers"][0]["volumeMounts"].append(mount)
    ended = namespace.run(made)
    lines = [line for line in ended.log.splitlines() if "store" in line]
    assert any("ok" in line for line in lines), ended.log
