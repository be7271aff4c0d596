"""`opmeter merge`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.counting import counted
from collector.errors import BadInput, NotFound
from jobs.cli.options import RootOption, SingleWriterOption, SupersedeOption
from jobs.cli.terminal import say

if TYPE_CHECKING:
    from collector.database.merge import Guard, MergeResult
    from collector.plan import Plan
    from collector.store.base import Store
    from jobs.planning.damage import Told

_NOT_COMMITTED = 3
_TURN_S = 900.0  # how long a merge waits for others; a Job starts it again


def merge_verb(
    campaign: Annotated[str, typer.Argument(help="the campaign's name or its file")],
    *,
    root: RootOption = None,
    plan: Annotated[list[int] | None, typer.Option(help="these plans only  [all]")] = None,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="publish what there is")
    ] = False,
    single_writer: SingleWriterOption = False,
    supersede_stack: SupersedeOption = False,
    lease: Annotated[
        str | None,
        typer.Option(help="the store cannot tell writers apart: take turns in this namespace"),
    ] = None,
    allow_damaged: Annotated[
        bool, typer.Option("--allow-damaged", help="exit 0 though something cannot be read")
    ] = False,
) -> int:
    """Publish what a campaign's plans have committed as the next version of the database."""
    from collector.database.merge import merge_plans
    from jobs.cli.opening import choose_guard, open_bare, open_campaign, open_root
    from jobs.planning.damage import Told
    from jobs.publishing.due_merges import author

    # 1 where something committed of the newest of these plans is damaged (everything else is
    # published), 3 where shards are missing and nothing was published, 75 where others merged all
    # the while.
    if lease and single_writer:
        raise BadInput("--lease is for several writers, and --single-writer for one: say one")
    described = open_campaign(campaign) if Path(campaign).is_file() else None
    name = described.name if described else campaign

    def publish(store: Store, guard: Callable[[], Guard]) -> int:
        chosen = _chosen(store, name, plan or [])
        plans = [(name, number) for number in chosen]
        result = merge_plans(
            store,
            plans,
            guard=guard(),
            author=author(),
            supersede_stack=supersede_stack,
            allow_missing=allow_missing,
        )
        told = Told.of(result.damaged, max(chosen))
        code = _told(result, told, allow_missing=allow_missing)
        if told.needed:
            for line in told.advice(_plan_of(store, name, max(chosen))):
                say(line, err=True)
        return code or int(bool(told.needed) and not allow_damaged)

    if lease:
        return _in_turn(lease, open_bare(root, described), publish)
    store = open_root(root, described, single_writer=single_writer)
    return publish(store, lambda: choose_guard(store, single_writer=single_writer))


def _in_turn(
    namespace: str, store: Store, publish: Callable[[Store, Callable[[], Guard]], int]
) -> int:
    """Publish while the Lease is ours; it is asked for before every object that must be new."""
    from collector.store.single_writer import SingleWriterStore
    from collector.worker.exit_codes import ExitCode
    from jobs.cli.opening import patient

    # The client of Kubernetes takes half a second to import, and other merges need none.
    from jobs.kube.cluster import Cluster
    from jobs.kube.leader_election import identity
    from jobs.publishing.merge_lease import LeaseTaken, MergeLease

    turns = MergeLease(Cluster.connect(namespace), identity())
    try:
        with turns.held(_TURN_S) as guard:
            return publish(patient(SingleWriterStore(store, guard.still_holds)), lambda: guard)
    except LeaseTaken as error:
        say(f"opmeter: {error}", err=True)
        return ExitCode.TEMPORARY


def _plan_of(store: Store, campaign: str, number: int) -> Plan | None:
    from collector.database.plans import read_plan

    try:
        return read_plan(store, campaign, number)
    except (BadInput, NotFound):
        return None


def _told(result: MergeResult, told: Told, *, allow_missing: bool) -> int:
    for line in told.lines():
        say(line)
    for _, number, shard in result.missing:
        say(f"missing     shard {shard} of plan {number}")
    if result.missing and not allow_missing:
        say("nothing published: measure the rest, or say --allow-missing", err=True)
        return _NOT_COMMITTED
    if result.commit:
        new = counted(result.added_measurements, "measurement")
        say(f"version {result.commit.number}: {new} new")
    else:
        stands = (
            f"version {result.head.number} stands" if result.head else "there is no version yet"
        )
        say(f"nothing new: {stands}")
    return 0


def _chosen(store: Store, campaign: str, numbers: list[int]) -> list[int]:
    """The plans that were asked for, or all. BadInput where the store has none of that number."""
    from jobs.planning.stored_plans import plan_numbers

    known = plan_numbers(store, campaign)
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
