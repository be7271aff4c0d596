"""The controller as the manifests run it: in the cluster, from its image, with a bucket. The demo
overlay, on a volume: long/test_long_campaign_manifests.py."""

from pathlib import Path

import pytest

from tests.cluster.drill import GOOD, Drill
from tests.cluster.faults import Faults
from tests.cluster.shipped import apply_overlay

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.torch]


def test_controller_in_the_cluster_with_a_bucket_survives_a_kill_of_its_container(
    drill: Drill, faults: Faults, tmp_path: Path
):
    namespace = drill.namespace
    apply_overlay(
        namespace,
        tmp_path / "site",
        resources=["base"],
        components=["components/nodes", "components/restricted", "components/s3-secret"],
        images={"opmeter/controller": drill.cluster.controller_image},
    )
    drill.apply()
    namespace("rollout", "status", "deployment/opmeter-controller", "--timeout=120s")
    drill.wait_committed(2)
    (controller,) = namespace.pods("app.kubernetes.io/component=controller")
    faults.kill_container(namespace, controller["metadata"]["name"])
    drill.finish()
    assert set(drill.outcomes().values()) <= GOOD
    (controller,) = namespace.pods("app.kubernetes.io/component=controller")
    assert controller["status"]["containerStatuses"][0]["restartCount"] == 1
