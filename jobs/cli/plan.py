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
    from collections.abc import Iterator

    from collector.database.plans import Damage
    from jobs.planning.situation import Situation

_LISTED = 25


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
    why: Annotated[bool, typer.Option("--why", help="name every case that is refused")] = False,
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
    for line in _gap_lines(advanced.situation, why=why):
        say(line)


def _gap_lines(situation: Situation, *, why: bool) -> Iterator[str]:
    """What of the sources' time can be measured, and the largest gaps; every refused case with
    `why`."""
    from collector.ops.registry import find
    from jobs.planning.candidates import distinct_cases, only_operators
    from jobs.planning.gaps import find_gaps, refused_cases, share_line, shares

    campaign, sources = situation.campaign, situation.sources
    records = ((source.planned, source.records) for source in sources)
    candidates = only_operators(distinct_cases(records), campaign.operators)
    cache = campaign.measure.cache
    refused = refused_cases(candidates, find, campaign.backend, campaign.devices, cache)
    told = share_line(shares(candidates, refused, (source.planned for source in sources)))
    if told:
        yield f"share      {told}"
    found = find_gaps(refused)
    for gap in found if why else found[:_LISTED]:
        yield (
            f"gap        {gap.kernel_type}: {counted(len(gap.cases), 'case')}, "
            f"{counted(gap.rows, 'row')}, {gap.time_us / 1000:.2f} ms of compute time: "
            f"{in_one_line(gap.reason)}"
        )
        for case in gap.cases if why else ():
            told = f"{counted(case.weight.rows, 'row')}, {case.weight.time_us / 1000:.2f} ms"
            yield f"  why      {in_one_line(case.record.case.describe())}: {told}"
    if len(found) > _LISTED and not why:
        yield f"... and {counted(len(found) - _LISTED, 'more gap')}; --why names every refused case"


def _damage_to_merge(situation: Situation) -> list[Damage]:
    """What a merge before the next plan would find damaged."""
    from jobs.planning.damage import damage_outside
    from jobs.publishing.due_merges import own_numbers

    numbers = own_numbers(situation, {plan.number for plan in situation.plans})
    own = [plan for plan in situation.plans if plan.number in numbers]
    return damage_outside(situation.published.store, own, situation.committed, situation.held)
