"""`opmeter status`."""

from pathlib import Path

import typer

from collector import keys
from collector.database.commits import find_head
from collector.database.snapshot import load_state
from collector.errors import BadInput
from collector.record import CaseRecord, read_table
from collector.store.base import Store
from jobs.sources import completed_records
from jobs.status import PlanStatus, campaign_status, campaigns
from jobs.summary import describe, plan_usage, summarise
from jobs.verbs.opening import open_campaign, open_root


def status_verb(campaign: str | None, root: str | None) -> None:
    """One line a plan; for one campaign also its shards and what its newest plan answered."""
    described = open_campaign(campaign) if campaign and Path(campaign).is_file() else None
    store = open_root(root, described)
    campaign = described.name if described else campaign
    known = campaigns(store)
    if campaign is not None and campaign not in known:
        raise BadInput(f"no campaign {campaign!r} at {store.url}; there are: {', '.join(known)}")
    for name in [campaign] if campaign else known:
        plans = campaign_status(store, name)
        for plan in plans:
            typer.echo(_line(plan))
        if campaign:
            _details(store, plans[-1])
    if not known:
        typer.echo(f"no campaigns at {store.url}")


def _line(status: PlanStatus) -> str:
    plan = status.plan
    done = sum(shard.done for shard in status.shards)
    cases = sum(shard.cases for shard in status.shards)
    left = f", about {status.remaining_s:.0f} s left" if status.committed < len(plan.shards) else ""
    return (
        f"{plan.campaign} plan {plan.number}: {status.committed} of {len(plan.shards)} shards "
        f"committed, {done} of {cases} cases answered{left}"
    )


def _details(store: Store, status: PlanStatus) -> None:
    for shard in status.shards:
        if not shard.committed:
            measuring = f", measuring {shard.measuring}" if shard.measuring else ""
            typer.echo(f"  shard {shard.shard}: {shard.done} of {shard.cases} cases{measuring}")
    plan, head = status.plan, find_head(store)
    sources = [_source(store, plan.campaign, source.sha256) for source in plan.sources]
    summary = summarise(load_state(store, head), plan, sources, plan_usage(store, plan))
    for line in describe(summary, plan, head, store.url):
        typer.echo(line)


def _source(store: Store, campaign: str, sha256: str) -> list[CaseRecord]:
    key = keys.source(campaign, sha256)
    return list(completed_records(read_table(store.get(key), path=key)))
