"""A packaged model on one rank, its campaign, and a database that lacks some of its cases."""

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
from tests.unit.jobs.cli.in_process import invoked

MODEL, LACKS = "qwen3-vl-8b", "SoftmaxV2"
CAMPAIGN = f"""\
campaign: small
sources:
- model: {MODEL}
  layout: tp=1
  serving: {{concurrency: [1, 4], input: 32, output: 8}}
backend: cpu
"""
SERVING = ("--input", "32", "--output", "8")


def coverage(*words):
    return invoked("coverage", *words, "--root", "data")


def write_small_model(folder: Path) -> None:
    """Writes campaign.yaml, and in `data` all cases except those of LACKS."""
    (folder / "campaign.yaml").write_text(CAMPAIGN)
    campaign = campaign_from_text(CAMPAIGN, path="c.yaml", base=folder)
    (source,) = load_sources(campaign, MemoryStore())
    records = [record for record in source.records if record.kernel_type != LACKS]
    write_database(folder / "data", records)


def write_database(folder: Path, records: Sequence[CaseRecord], us: float = 5.0) -> None:
    """A database in which each of these has this duration."""
    made = MadePlan([MadeShard("shard", records, [answered(records, us)])])
    store = open_store(str(folder))
    write_campaign(store, made)
    merge_plans(store, [made.name], guard=CREATE, author="test")
