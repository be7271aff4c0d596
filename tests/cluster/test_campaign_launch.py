"""`opmeter launch --watch` on a real cluster: the same campaign as on one machine, with an operator
of the user."""

import json
import shutil
from pathlib import Path

import pytest

from collector.model.vocabulary import INPUT_CELLS, OUTPUT_CELLS
from tests.cluster.drill import SECRET, SITE, TEXT, TORCH, Drill

OWN = Path(__file__).parents[1] / "fixtures" / "own_operators.py"
ROW = '"8,32;32",FLOAT;FLOAT,ND;ND,"8,32",FLOAT,ND\n'

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.torch]


def test_campaign_launched_from_a_laptop_has_the_cases_of_a_local_plan(
    drill: Drill, tmp_path: Path
):
    campaign, site = tmp_path / "campaign.yaml", tmp_path / "site.yaml"
    sources, operators = "{bundled: quickstart}", "Slice]"
    text = TEXT.replace(sources, f"{sources}, {{tree: tree}}")
    campaign.write_text(text.replace(operators, "Slice, my_ops.py]"))
    shutil.copy(OWN, tmp_path / "my_ops.py")
    (tmp_path / "tree").mkdir()
    header = ",".join((*INPUT_CELLS, *OUTPUT_CELLS))
    (tmp_path / "tree" / "ScaledSilu.csv").write_text(f"{header}\n{ROW}")
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
    shown = drill.opmeter("query", "ScaledSilu 8,32;32 fp32", "--root", drill.root, "--json")
    assert json.loads(shown)[0]["channel"] in ("measured", "pooled")
    assert "no problems" in drill.opmeter("db", "verify", "--root", drill.root)
    assert "Merged" in drill.reasons()
