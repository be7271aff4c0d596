"""Sources of a campaign file that are steps of a model."""

from pathlib import Path

import pytest

from collector.ranks.topology import Grid
from jobs.campaign.campaign_file import campaign_from_text
from jobs.campaign.source_kinds import ModelSource

pytestmark = pytest.mark.fast

TEXT = """\
campaign: a
backend: cpu
sources:
  - model: qwen3-32b
    layout: {{tp: 4}}
    serving: {{concurrency: [1], input: 8, output: 8}}
{more}"""


def source(more: str = "") -> ModelSource:
    campaign = campaign_from_text(TEXT.format(more=more), path="c.yaml", base=Path("/campaigns"))
    (found,) = campaign.sources
    assert isinstance(found, ModelSource)
    return found


def test_collectives_of_a_model_are_cases_only_on_request():
    assert source().collectives is None
    found = source("    collectives: {grid: [1, 8, 2]}\n").collectives
    assert found is not None and found.grid == Grid((1, 8, 2))
