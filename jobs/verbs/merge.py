"""`opmeter merge`."""

from pathlib import Path

import typer

from collector.database.merge import merge
from collector.errors import BadInput
from collector.store.base import Store
from jobs.advancing import author
from jobs.rounds import read_plans
from jobs.verbs.opening import choose_guard, open_campaign, open_root

_NOT_COMMITTED = 3


def merge_verb(
    name: str,
    root: str | None,
    numbers: list[int],
    allow_missing: bool,
    single_writer: bool,
    supersede_stack: bool,
) -> int:
    """The exit code: 0, or 3 where shards are missing and nothing was published."""
    campaign = open_campaign(name) if Path(name).is_file() else None
    store = open_root(root, campaign, single_writer=single_writer)
    campaign_name = campaign.name if campaign else name
    result = merge(
        store,
        [(campaign_name, number) for number in _chosen(store, campaign_name, numbers)],
        guard=choose_guard(store, single_writer=single_writer),
        author=author(),
        supersede_stack=supersede_stack,
        allow_missing=allow_missing,
    )
    for _, number, shard in result.missing:
        typer.echo(f"missing     shard {shard} of plan {number}")
    if result.missing and not allow_missing:
        typer.echo("nothing published: measure the rest, or say --allow-missing", err=True)
        return _NOT_COMMITTED
    if result.commit:
        typer.echo(f"version {result.commit.number}: {result.added_measurements} measurements new")
    else:
        typer.echo(f"nothing new: version {result.head.number if result.head else 0} stands")
    return 0


def _chosen(store: Store, campaign: str, numbers: list[int]) -> list[int]:
    """The plans that were asked for, or all. BadInput where the store has none of that number."""
    known = [plan.number for plan in read_plans(store, campaign)]
    if not known:
        raise BadInput(
            f"no campaign {campaign!r} at {store.url}: nothing was planned under that name; "
            "`opmeter status` lists what was"
        )
    if unknown := sorted(set(numbers) - set(known)):
        raise BadInput(
            f"campaign {campaign!r} at {store.url} has no plan {', '.join(map(str, unknown))}; "
            f"there are: {', '.join(map(str, known))}"
        )
    return numbers or known
