"""`opmeter plan`."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput
from collector.codec.text import counted, in_one_line
from jobs.cli.drawing import check_picture_file, drawn, picture_of
from jobs.cli.look_up import Asked, Where, check_missing, find_covered, written
from jobs.cli.options import (
    CommitOption,
    ConcurrencyOption,
    DirectoryOption,
    GraphSizesOption,
    ImbalanceOption,
    InputOption,
    LayoutOption,
    MaxBatchedTokensOption,
    MixedOption,
    ModelOption,
    NoCollectivesOption,
    OutputOption,
    PhaseOption,
    PredictedTokensOption,
    ProfileOption,
    RanksGridOption,
    ReleaseOption,
    RootOption,
    SingleWriterOption,
    SkewOption,
)
from jobs.cli.terminal import say

if TYPE_CHECKING:
    from collector.database.plans import Damage
    from jobs.campaign.campaign_file import RunOptions
    from jobs.planning.situation import Situation
    from jobs.planning.worth import Gain, Point


_PLAN_LISTED = 25


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
    from jobs.campaign.campaign_file import RunOptions
    from jobs.cli.look_up import Asked, ServedModel, Where

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
    from jobs.planning.gaps import describe_forecast
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
    for gap in found if why else found[:_PLAN_LISTED]:
        yield (
            f"gap        {gap.kernel_type}: {counted(len(gap.cases), 'case')}, "
            f"{counted(gap.rows, 'row')}, {gap.time_us / 1000:.2f} ms of compute time: "
            f"{in_one_line(gap.reason)}"
        )
        for case in gap.cases if why else ():
            told = f"{counted(case.weight.rows, 'row')}, {case.weight.time_us / 1000:.2f} ms"
            yield f"  why      {in_one_line(case.record.case.describe())}: {told}"
    if len(found) > _PLAN_LISTED and not why:
        more = counted(len(found) - _PLAN_LISTED, "more gap")
        yield f"... and {more}; --why names every refused case"


def _damage_to_merge(situation: Situation) -> list[Damage]:
    """What a merge before the next plan would find damaged."""
    from jobs.planning.damage import damage_outside
    from jobs.publishing.due_merges import own_numbers

    numbers = own_numbers(situation, {plan.number for plan in situation.plans})
    own = [plan for plan in situation.plans if plan.number in numbers]
    return damage_outside(situation.published.store, own, situation.committed, situation.held)


# What `opmeter plan --budget` says: what is worth measuring first, and what that brings for its
# device-hours. It writes no plan.

_HOURS = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,6})?)\s*h?")
_BAR = 40
_PARTS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of the time that measuring all takes
_PLAN_BUDGET_LISTED = 10


@dataclass(frozen=True, slots=True)
class Budget:
    """Device-hours as they were typed, a picture of what they bring, and a folder for the cases
    that they pay for."""

    hours: str
    curve: Path | None
    missing: Path | None

    @property
    def device_h(self) -> float:
        found = _HOURS.fullmatch(self.hours.strip())
        if found is None:
            raise BadInput(f"--budget: expected device-hours such as 20h, got {self.hours!r}")
        return float(found[1])


def plan_within(asked: Asked, where: Where, budget: Budget) -> None:
    """Say which cases without a duration tell most of unknown time for the device time that they
    take, and how much of the time has a duration after how many device-hours."""
    from collector.ops.registry import find
    from collector.store.atomic import write_whole
    from jobs.planning.worth import curve, gains, within

    hours = budget.device_h
    check_missing(budget.missing)
    if budget.curve is not None:
        check_picture_file(budget.curve)
    found = find_covered(asked, where, "--device NAME says what a stack without a version takes")
    ordered = gains(found.cases, found.campaign, found.peaks, find)
    points = curve(found.cases, ordered)
    paid = within(ordered, hours)
    for line in (f"version     {found.place}", *_curve_lines(points, hours), *_first_lines(paid)):
        say(line)
    if budget.curve is not None:
        title = f"{asked}: time with a duration in {found.place}"
        write_whole(budget.curve, drawn(picture_of(points, hours, title), budget.curve))
    if budget.missing is not None:
        say(written(budget.missing, [gain.record for gain in paid]), err=True)
    else:
        say("no plan is written: --missing DIR makes of what the budget pays for a source of one")


def _curve_lines(points: Sequence[Point], budget_h: float) -> Iterator[str]:
    """What measuring brings for its time, to the budget and beyond."""
    last = points[-1]
    cases, spent = counted(last.cases, "case"), _spent(last.device_h)
    yield (
        f"measuring   {cases} without a duration take {spent} of a device; those that tell most "
        "for their time come first"
    )
    hours = [point.device_h for point in points]
    steps = {bisect_right(hours, last.device_h * part) - 1 for part in _PARTS}
    end = bisect_right(hours, budget_h) - 1
    for at in sorted({*steps, end}):
        point = points[at]
        bar = "#" * round(_BAR * point.share)
        mark = "  the budget" if at == end else ""
        told = f"{_spent(point.device_h):>11} {point.cases:7,} cases {point.share:6.1%}"
        yield f"  {told} {bar:<{_BAR}}{mark}".rstrip()


def _spent(device_h: float) -> str:
    """Device time, in the unit that suits it."""
    seconds = 3600 * device_h
    if seconds < 100:
        return f"{seconds:,.1f} s"
    return f"{seconds / 60:,.1f} min" if seconds < 6000 else f"{device_h:,.2f} h"


def _first_lines(paid: Sequence[Gain]) -> Iterator[str]:
    """The first of the cases that the budget pays for."""
    if paid:
        yield "first of them, with their share of the time and what they take of a device"
    for gain in paid[:_PLAN_BUDGET_LISTED]:
        yield f"  {gain.share:6.1%} {gain.device_s:8.2f} s {gain.record.case.describe()}"
