"""The testbed works: its API server, its scheduler, its nodes and their devices. Further
requirements: long/test_long_testbed_*.py."""

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.namespace import Namespace
from tests.cluster.pods import pod
from tests.cluster.testbed.testbed import Testbed

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_pods_of_a_node_get_disjoint_devices(
    cluster: Cluster, testbed: Testbed, namespace: Namespace
):
    node = testbed.nodes[0].name
    show = ["sh", "-c", "echo $ASCEND_VISIBLE_DEVICES; sleep 4"]
    image = cluster.controller_image
    for name in ("one", "two"):
        made = pod(name, image, show, devices=4)
        made["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
        namespace.create(made)
    seen = [namespace.end_of(name).log.strip().split(",") for name in ("one", "two")]
    assert sorted(int(device) for part in seen for device in part) == list(range(8))
