"""`opmeter plan`."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.counting import counted
from collector.errors import BadInput
from collector.printable import in_one_line
from jobs.cli.model_options import (
    ConcurrencyOption,
    GraphSizesOption,
    ImbalanceOption,
    InputOption,
    LayoutOption,
    MaxBatchedTokensOption,
    MixedOption,
    ModelOption,
    OutputOption,
    PhaseOption,
    PredictedTokensOption,
    ProfileOption,
    ReleaseOption,
    SkewOption,
)
from jobs.cli.options import (
    CommitOption,
    DirectoryOption,
    NoCollectivesOption,
    RanksGridOption,
    RootOption,
    SingleWriterOption,
)
from jobs.cli.terminal import say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collector.database.plans import Damage
    from jobs.campaign.run_options import RunOptions
    from jobs.planning.situation import Situation

_LISTED = 25


def plan_verb(
    campaign: Annotated[
        str | None,
        typer.Argument(help="a campaign.yaml, or the name of a bundled campaign: quickstart"),
    ] = None,
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
    budget: Annotated[
        str | None,
        typer.Option(
            help="instead of a plan: what is worth measuring first in so many device-hours (20h), "
            "and what it brings"
        ),
    ] = None,
    curve: Annotated[
        Path | None,
        typer.Option(help="with --budget, a new .svg or .png: what measuring brings for its hours"),
    ] = None,
    missing: Annotated[
        Path | None,
        typer.Option(help="with --budget, a new folder: what it pays for, as a tree to measure"),
    ] = None,
    profile: ProfileOption = None,
    model: ModelOption = None,
    layout: LayoutOption = "",
    concurrency: ConcurrencyOption = None,
    input_tokens: InputOption = None,
    output_tokens: OutputOption = None,
    max_batched_tokens: MaxBatchedTokensOption = None,
    graph_sizes: GraphSizesOption = None,
    phase: PhaseOption = None,
    mixed: MixedOption = False,
    predicted_tokens: PredictedTokensOption = None,
    skew: SkewOption = None,
    imbalance: ImbalanceOption = None,
    release: ReleaseOption = None,
    grid: RanksGridOption = "",
    version: CommitOption = None,
    directory: DirectoryOption = None,
    device: Annotated[
        str | None, typer.Option(help="with --budget, of a stack without a version: its device")
    ] = None,
) -> None:
    """Forecast a campaign and write its plan, which is never changed afterwards; or, with --budget,
    say what of a campaign, a model or a profile to measure first."""
    from jobs.campaign.run_options import RunOptions
    from jobs.cli.look_up import Asked, Where
    from jobs.cli.one_source import ServedModel
    from jobs.cli.plan_budget import Budget, plan_within

    served = ServedModel(
        model or "",
        layout,
        tuple(concurrency or ()),
        input_tokens,
        output_tokens,
        max_batched_tokens,
        tuple(graph_sizes or ()),
        phase,
        release,
        mixed,
        predicted_tokens,
        skew,
        imbalance,
    )
    asked, where = Asked(campaign, profile, served, grid), Where(root, version, directory, device)
    if budget is not None:
        if again or retry_failed or dry_run or why or no_collectives or single_writer:
            raise BadInput("--budget writes no plan: it takes no options of one")
        plan_within(asked, where, Budget(budget, curve, missing))
        return
    if asked != Asked(campaign, None, ServedModel("")) or where != Where(root) or curve or missing:
        raise BadInput(
            "options of a model, a profile and a version want --budget; what plans a model is a "
            "campaign with it as a source"
        )
    if campaign is None:
        raise BadInput("expected a CAMPAIGN, or --budget with --model or --profile")
    _plan(
        campaign,
        root,
        RunOptions(again, retry_failed),
        dry_run=dry_run,
        why=why,
        collectives=not no_collectives,
        single_writer=single_writer,
    )


def _plan(
    campaign: str,
    root: str | None,
    options: RunOptions,
    *,
    dry_run: bool,
    why: bool,
    collectives: bool,
    single_writer: bool,
) -> None:
    from jobs.cli.opening import choose_guard, open_campaign, open_root
    from jobs.planning.damage import Told
    from jobs.planning.forecast_lines import describe_forecast
    from jobs.planning.situation import choose_step, survey
    from jobs.publishing.due_merges import to_merge
    from jobs.publishing.next_plan import advance, intended, plan_in_hand

    described = open_campaign(campaign, collectives=collectives)
    store = open_root(root, described, single_writer=single_writer)
    situation = survey(described, store)
    if dry_run:
        found = _damage_to_merge(situation)
        step = choose_step(
            situation,
            again=options.again,
            retry_failed=options.retry_failed,
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
