"""The controller as the manifests run it: in the cluster, from its image, with a bucket. Its
workers run the image of the collector on the recording runtime: single operators, and a gang of two
ranks. The demo overlay, on a volume: long/test_long_campaign_manifests.py."""

from pathlib import Path

import pytest

from collector.model.measurement import Outcome
from tests.cluster.drill import Drill
from tests.cluster.faults import Faults
from tests.cluster.shipped import apply_overlay

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.torch]


def test_controller_in_the_cluster_with_a_bucket_and_workers_on_npus_survives_a_kill(
    npu_drill: Drill, faults: Faults, tmp_path: Path
):
    drill, namespace = npu_drill, npu_drill.namespace
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
    # The runtime moves no data between ranks: the gang measures, and finds its result wrong.
    others = [outcome for outcome in drill.outcomes().values() if outcome != "ok"]
    assert others == [Outcome.GATED]
    (controller,) = namespace.pods("app.kubernetes.io/component=controller")
    assert controller["status"]["containerStatuses"][0]["restartCount"] == 1
