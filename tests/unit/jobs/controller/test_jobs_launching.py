"""A launched campaign is the one that its file describes, wherever its sources are stored."""

from dataclasses import replace
from pathlib import Path

import pytest

from collector.model.record import write_table
from collector.store.in_memory import MemoryStore
from jobs.campaign.campaign_file import Campaign, campaign_from_text, load_campaign
from jobs.campaign.source_kinds import CasesSource
from jobs.controller.launching import campaign_object
from jobs.objects.applied_campaign import CAMPAIGN
from jobs.objects.deployment import Deployment
from jobs.planning.sources import load_sources
from tests.unit.collector.database.campaign_maker import add_record

pytestmark = pytest.mark.fast

DEPLOYMENT = Deployment("bench", "here/collector:1", "here/controller:1", "s3://perf/opmeter")

# YAML would read numbers, booleans, dates and null from these words.
WORDS = """\
# of one model
campaign: launched
sources:
  - bundled: quickstart
  - {tree: tree}
operators: [Add, Yes, MatMulV3]
target: {device: ATLAS_800_A3_752T_128G_DIE, vllm: 0.10, torch: 2.10, cann: 8.10,
         driver: 25_2, firmware: "7.10", torch_npu: 2024-01-01}
backend: npu
measure: &how {budget_s: 0.50, repeats: [5, 50]}
limits: {case_s: 30}
store: s3://perf/opmeter
"""


def launched(folder: Path, text: str) -> tuple[Campaign, Campaign]:
    """The campaign of a file, and the campaign of its ConfigMap."""
    tree = folder / "tree"
    tree.mkdir()
    (tree / "Add.csv").write_bytes(write_table([add_record(1), add_record(2)]))
    path = folder / "c.yaml"
    path.write_text(text)
    requested = load_campaign(path)
    loaded = load_sources(requested, MemoryStore())
    made = campaign_object(requested, str(path), "simulated", DEPLOYMENT, loaded)
    reported = campaign_from_text(made["data"][CAMPAIGN], path="ConfigMap", base=Path("/"))
    return requested, reported


@pytest.mark.parametrize(
    "text",
    [
        WORDS,
        WORDS.replace("0.10", "'0.10'").replace("Yes", '"Yes"'),
        "{campaign: 1e3, sources: [{tree: tree}], backend: npu, operators: ['No', 1e3]}\n",
    ],
)
def test_launched_campaign_equals_its_file(tmp_path: Path, text: str) -> None:
    requested, reported = launched(tmp_path, text)
    assert replace(reported, sources=()) == replace(requested, sources=(), store=None)
    assert reported.sources[:-1] == requested.sources[:-1]
    assert isinstance(reported.sources[-1], CasesSource)
