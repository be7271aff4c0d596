"""A model of two layers, its campaign, and a database that lacks some of its cases."""

import json
from collections.abc import Sequence
from pathlib import Path

from collector.database.merge import CREATE, merge_plans
from collector.model.record import CaseRecord
from collector.store import open_store
from collector.store.in_memory import MemoryStore
from jobs.campaign.campaign_file import campaign_from_text
from jobs.planning.sources import load_sources
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    answered,
    write_campaign,
)

_CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}
CAMPAIGN = """\
campaign: small
sources:
- model: config.json
  layout: {nz: 0}
  serving: {concurrency: [1, 4], input: 32, output: 8}
backend: cpu
"""
SERVING = ("--layout", "nz=0", "--input", "32", "--output", "8")


def write_small_model(folder: Path) -> None:
    """Writes config.json, campaign.yaml, and in `data` all cases except those of Sort."""
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    (folder / "campaign.yaml").write_text(CAMPAIGN)
    campaign = campaign_from_text(CAMPAIGN, path="c.yaml", base=folder)
    (source,) = load_sources(campaign, MemoryStore())
    records = [record for record in source.records if record.kernel_type != "Sort"]
    write_database(folder / "data", records)


def write_database(folder: Path, records: Sequence[CaseRecord]) -> None:
    """A database in which each of these has a duration."""
    made = MadePlan([MadeShard("shard", records, [answered(records, 5.0)])])
    store = open_store(str(folder))
    write_campaign(store, made)
    merge_plans(store, [made.name], guard=CREATE, author="test")
