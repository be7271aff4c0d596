"""`opmeter launch --watch` on a real cluster: the same campaign as on one machine."""

from pathlib import Path

import pytest

from tests.cluster.drill import SECRET, SITE, TEXT, TORCH, Drill

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.torch]


def test_campaign_launched_from_a_laptop_has_the_cases_of_a_local_plan(
    drill: Drill, tmp_path: Path
):
    campaign, site = tmp_path / "campaign.yaml", tmp_path / "site.yaml"
    campaign.write_text(TEXT)
    site.write_text(SITE)
    account = f"--serviceaccount={drill.namespace.name}:opmeter-controller"
    drill.namespace("create", "rolebinding", "launcher", "--role=opmeter-launcher", account)
    message = drill.opmeter(
        *("launch", str(campaign), "--site", str(site), "--namespace", drill.namespace.name),
        *("--image", drill.deployment.image, "--store", drill.root),
        *("--controller-image", drill.deployment.controller_image),
        *("--store-secret", SECRET, "--site-packages", TORCH, "--merge-memory", "2Gi", "--watch"),
        limit_s=900,
    )
    assert message.splitlines()[-1] == "merged"
    outcomes = drill.check()
    assert set(outcomes) == drill.planned_here(str(campaign))
    assert {"ok", "unsupported"} >= set(outcomes.values())
    assert "no problems" in drill.opmeter("db", "verify", "--root", drill.root)
    assert "Merged" in drill.reasons()
