"""The steps of docs/tutorials/cluster-without-npus.md: the demo overlay, on a volume."""

import base64
import io
import shutil
import tarfile
from pathlib import Path

import pytest

from collector.codec.text import counted
from tests.cluster.drill import TORCH, Drill
from tests.cluster.shipped import apply_overlay

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.torch]


_CLAIM = "opmeter-store"


_CONTROLLER = "deploy/opmeter-controller"


def test_demo_overlay_ends_with_the_csvs_of_the_quickstart_on_the_users_disk(
    drill: Drill, tmp_path: Path
):
    namespace, image = drill.namespace, drill.cluster.controller_image
    volume = drill.cluster.own.settings.run / f"store-of-{namespace.name}"
    namespace.offer_volume(_CLAIM, volume)
    drill.name, drill.root, drill.seen_at = "quickstart", "file:///store", f"file://{volume}"
    torch = f'[{{"op": "add", "path": "/data/site_packages", "value": "{TORCH}"}}]'
    apply_overlay(
        namespace,
        tmp_path / "demo",
        resources=["overlays/cpu-demo"],
        images={"opmeter/controller": image, "opmeter/collector-cpu": image},
        patches=[{"target": {"kind": "ConfigMap"}, "patch": torch}],
    )
    namespace("rollout", "status", "deployment/opmeter-controller", "--timeout=120s")
    namespace("rollout", "restart", "deployment/opmeter-controller")
    namespace("rollout", "status", "deployment/opmeter-controller", "--timeout=120s")
    drill.finish(2400)
    outcomes = drill.outcomes()
    assert set(outcomes) == drill.planned_here("quickstart")
    assert set(outcomes.values()) <= {"ok", "unsupported", "oom", "crashed"}
    in_pod = ("exec", _CONTROLLER, "--", "opmeter")
    count = len(drill.plan().shards)
    committed = f"{count} of {counted(count, 'shard')} committed"
    assert committed in namespace(*in_pod, "status", "quickstart")
    assert "no problems" in namespace(*in_pod, "db", "verify", "--root", "file:///store")
    namespace(*in_pod, "db", "pull", "csv", "--root", "file:///store")
    packed = namespace("exec", _CONTROLLER, "--", "sh", "-c", "tar -cf - csv | base64")
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(packed))) as archive:
        names = archive.getnames()
    assert any(name.endswith("/MatMulV3.csv") for name in names), names
    shutil.rmtree(volume)
