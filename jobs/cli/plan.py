"""`opmeter plan`."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated

import typer

from collector.counting import counted
from collector.printable import in_one_line
from jobs.cli.options import (
    CampaignArgument,
    NoCollectivesOption,
    RootOption,
    SingleWriterOption,
)
from jobs.cli.terminal import say

if TYPE_CHECKING:
    from collector.database.plans import Damage
    from jobs.planning.situation import Situation


def plan_verb(
    campaign: CampaignArgument,
    *,
    root: RootOption = None,
    again: Annotated[bool, typer.Option("--again", help="plan everything once more")] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="plan what failed once more")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the forecast and write nothing")
    ] = False,
    no_collectives: NoCollectivesOption = False,
    single_writer: SingleWriterOption = False,
) -> None:
    """Forecast a campaign and write its plan, which is never changed afterwards."""
    from jobs.campaign.run_options import RunOptions
    from jobs.cli.opening import choose_guard, open_campaign, open_root
    from jobs.planning.damage import Told
    from jobs.planning.plan_making import describe_forecast
    from jobs.planning.situation import choose_step, survey
    from jobs.publishing.due_merges import to_merge
    from jobs.publishing.next_plan import advance, intended, plan_in_hand

    described = open_campaign(campaign, collectives=not no_collectives)
    store = open_root(root, described, single_writer=single_writer)
    situation = survey(described, store)
    options = RunOptions(again, retry_failed)
    if dry_run:
        found = _damage_to_merge(situation)
        step = choose_step(
            situation,
            again=again,
            retry_failed=retry_failed,
            damaged=[damage.shard for damage in found],
        )
        told = Told.of([*situation.stored.damaged, *found], plan_in_hand(situation, step))
        for line in told.lines():
            say(line)
        if to_merge(situation, step, say):
            say("results that are not merged yet would be merged first; nothing is done now")
        advanced, planned = intended(situation, step, options)
        advanced = replace(advanced, told=told)
        news = advanced.news if planned is None else f"{advanced.news}, not written"
    else:
        guard = cache(partial(choose_guard, store, single_writer=single_writer))
        advanced = advance(situation, store, guard, options, say)
        news = advanced.news
    say(f"{described.name} at {store.url}: {news}")
    does_nothing = dry_run or advanced.is_finished
    for line in advanced.told.advice(advanced.plan) if does_nothing else ():
        say(line, err=True)
    for line in describe_forecast(advanced.plan):
        say(line)
    for item in advanced.unsupported:
        say(
            f"unsupported  {item.kernel_type}: {counted(item.cases, 'case')}, "
            f"{counted(item.rows, 'row')}, "
            f"{item.time_us / 1000:.2f} ms of compute time: {in_one_line(item.reason)}"
        )


def _damage_to_merge(situation: Situation) -> list[Damage]:
    """What a merge before the next plan would find damaged."""
    from jobs.planning.damage import damage_outside
    from jobs.publishing.due_merges import own_numbers

    numbers = own_numbers(situation, {plan.number for plan in situation.plans})
    own = [plan for plan in situation.plans if plan.number in numbers]
    return damage_outside(situation.published.store, own, situation.committed, situation.held)
