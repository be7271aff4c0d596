"""`opmeter merge`."""

from collections.abc import Callable
from pathlib import Path

import typer

from collector.database.merge import Guard, MergeResult, merge
from collector.errors import BadInput
from collector.store.base import Store
from collector.store.single_writer import SingleWriterStore
from collector.worker.exit_codes import ExitCode
from jobs.advancing import author
from jobs.leader import identity
from jobs.merge_lease import LeaseTaken, MergeLease
from jobs.rounds import read_plans
from jobs.verbs.opening import choose_guard, open_bare, open_campaign, open_root, patient

_NOT_COMMITTED = 3
_TURN_S = 900.0  # how long a merge waits for others; a Job starts it again


def merge_verb(
    name: str,
    root: str | None,
    numbers: list[int],
    allow_missing: bool,
    single_writer: bool,
    supersede_stack: bool,
    lease: str | None = None,
) -> int:
    """The exit code: 0, 3 where shards are missing and nothing was published, or 75 where others
    merged all the while. `lease` names the namespace whose Lease is taken."""
    if lease and single_writer:
        raise BadInput("--lease is for several writers, and --single-writer for one: say one")
    campaign = open_campaign(name) if Path(name).is_file() else None
    campaign_name = campaign.name if campaign else name

    def publish(store: Store, guard: Callable[[], Guard]) -> int:
        plans = [(campaign_name, number) for number in _chosen(store, campaign_name, numbers)]
        result = merge(
            store,
            plans,
            guard=guard(),
            author=author(),
            supersede_stack=supersede_stack,
            allow_missing=allow_missing,
        )
        return _told(result, allow_missing=allow_missing)

    if lease:
        return _in_turn(lease, open_bare(root, campaign), publish)
    store = open_root(root, campaign, single_writer=single_writer)
    return publish(store, lambda: choose_guard(store, single_writer=single_writer))


def _in_turn(
    namespace: str, store: Store, publish: Callable[[Store, Callable[[], Guard]], int]
) -> int:
    """Publish while the Lease is ours; it is asked for before every object that must be new."""
    # The client of Kubernetes takes half a second to import, and other merges need none.
    from jobs.cluster import Cluster

    turns = MergeLease(Cluster.connect(namespace), identity())
    try:
        with turns.held(_TURN_S) as guard:
            return publish(patient(SingleWriterStore(store, guard.still_holds)), lambda: guard)
    except LeaseTaken as error:
        typer.echo(f"opmeter: {error}", err=True)
        return ExitCode.TEMPORARY


def _told(result: MergeResult, *, allow_missing: bool) -> int:
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
