"""`opmeter plan`."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput, file_errors
from collector.codec.text import counted, percent, time_text, whole_in_one_line
from collector.ops.own import find
from collector.store.atomic import write_through
from jobs.cli.drawing import check_picture_file, drawn, picture_of
from jobs.cli.look_up import check_missing, find_covered, written
from jobs.cli.opening import choose_guard, open_campaign, open_root
from jobs.cli.options import (
    NoCollectivesOption,
    SingleWriterOption,
    VersionOptions,
    WorkloadOptions,
)
from jobs.cli.terminal import print_json, say, say_lines

if TYPE_CHECKING:
    from collector.database.reuse import ReusedKernel
    from collector.model.plan import UpgradeFrom
    from jobs.planning.gaps import RefusedCases
    from jobs.planning.lifecycle import NextPlan, PlanningState
    from jobs.planning.upgrades import KernelSample
    from jobs.planning.worth import Gain, WorthPoint


_PLAN_LISTED = 25


def plan_command(
    workload: WorkloadOptions,
    where: VersionOptions,
    *,
    again: Annotated[bool, typer.Option("--again", help="plan every case again")] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="plan the cases that failed again")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the forecast without writing a plan")
    ] = False,
    why: Annotated[bool, typer.Option("--why", help="list every case that is refused")] = False,
    no_collectives: NoCollectivesOption = False,
    single_writer: SingleWriterOption = False,
    budget: Annotated[
        str | None,
        typer.Option(help="device-hours, such as 20h: report what to measure first, write no plan"),
    ] = None,
    curve: Annotated[
        Path | None,
        typer.Option(help="new .svg or .png file for the coverage over device-hours (--budget)"),
    ] = None,
    missing: Annotated[
        Path | None,
        typer.Option(help="new folder for the cases within the budget, as a tree (--budget)"),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="device of a stack that has no version yet (--budget)")
    ] = None,
    upgrade_from: Annotated[
        str | None,
        typer.Option(
            help="version directory of an older stack: measure a sample of each kernel, and reuse "
            "the durations of equal ones"
        ),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            help="share by which a reused duration may differ (--upgrade-from)  [default: 0.05]"
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print forecast and gaps as JSON")
    ] = False,
) -> None:
    """Forecast a campaign and write its plan, which never changes afterwards.

    With --budget, report instead which cases of a campaign, a model or a profile to measure first.
    With --upgrade-from, plan a sample of what the older stack has measured; once it is merged, the
    same command plans the kernels that are not shown equal, and records which cases are reused.

    \b
    Examples:
      opmeter plan campaign.yaml --dry-run
      opmeter plan campaign.yaml --upgrade-from DEVICE/vllm_ascend/vllm0.18.0_torch2.9.0_cann8.5.0
      opmeter plan --budget 20h --model qwen3-32b --layout tp=4 --device ATLAS_800_A3_752T_128G_DIE
    """
    from jobs.campaign.campaign_file import RunOptions
    from jobs.executor.local_campaign import unbuilt_kernels
    from jobs.planning.gaps import describe_forecast
    from jobs.planning.lifecycle import next_plan, preview, read_state

    if budget is not None:
        if again or retry_failed or dry_run or why or no_collectives or single_writer or as_json:
            raise BadInput("--budget writes no plan: it excludes the options of a plan and --json")
        if upgrade_from is not None:
            raise BadInput("--budget excludes --upgrade-from")
        plan_within(workload, where, _device_hours(budget), device, curve, missing)
        return
    is_bare = workload == WorkloadOptions(workload.campaign) and where == VersionOptions(where.root)
    if not is_bare or curve or missing or device:
        raise BadInput(
            "options of a model, a profile or a version require --budget; to plan a model, name it "
            "as a source in a campaign file"
        )
    if workload.campaign is None:
        raise BadInput("expected a CAMPAIGN, or --budget with --model, --recording or --profile")
    described = open_campaign(workload.campaign, collectives=not no_collectives)
    store = open_root(where.root, described, single_writer=single_writer)
    options = RunOptions(again, retry_failed, upgrade_from=_upgrade(upgrade_from, margin))
    if options.upgrade_from is not None and again:
        raise BadInput("--upgrade-from reuses durations: it excludes --again")
    state = read_state(described, store)
    if unbuilt := unbuilt_kernels(described, state.sources):
        say(unbuilt, err=True)  # not an error: another host may run the plan
    if dry_run:
        planned = preview(state, options, say)
    else:
        guard = cache(partial(choose_guard, store, single_writer=single_writer))
        planned = next_plan(state, guard, options, say)
    unwritten = ", not written" if dry_run and planned.tables is not None else ""
    if as_json:
        print_json(_as_json(planned, store.url, planned.news + unwritten))
        return
    say(f"{described.name} at {store.url}: {planned.news}{unwritten}")
    does_nothing = dry_run or planned.is_finished
    say_lines(planned.damage.advice(planned.plan) if does_nothing else (), err=True)
    say_lines(describe_forecast(planned.plan))
    say_lines(_upgrade_lines(planned))
    say_lines(_gap_lines(planned.state, why=why))


def _upgrade(version_path: str | None, margin: float | None) -> UpgradeFrom | None:
    from collector.model.plan import UpgradeFrom
    from collector.quality.upgrades import MARGIN

    if version_path is None:
        if margin is not None:
            raise BadInput("--margin requires --upgrade-from")
        return None
    if margin is not None and not 0 < margin < 1:
        raise BadInput(f"--margin: expected a share between 0 and 1, got {margin:g}")
    return UpgradeFrom(version_path.strip("/"), MARGIN if margin is None else margin)


def _upgrade_lines(planned: NextPlan) -> Iterator[str]:
    """The kernels of which a new plan samples or reuses cases."""

    def name(kernel: KernelSample | ReusedKernel) -> str:
        parts = (kernel.kernel_type, kernel.dtypes, kernel.formats, kernel.op_state)
        return whole_in_one_line(" ".join(filter(None, parts)))

    for one in planned.samples:
        cases = counted(len(one.cases) + len(one.waiting), "case")
        yield f"sample     {name(one)}: {len(one.cases)} of {cases}, power {percent(one.power, 0)}"
    for kernel in planned.reuse.kernels if planned.reuse else ():
        low, high = kernel.ratio.interval()
        yield (
            f"reused     {name(kernel)}: {counted(len(kernel.cases), 'case')}, "
            f"x{kernel.ratio.ratio:.3f} [{low:.3f}, {high:.3f}] of "
            f"{counted(kernel.ratio.cases, 'measured case')}"
        )


def _as_json(planned: NextPlan, store: str, news: str) -> dict[str, object]:
    plan = planned.plan
    _, gaps = _gaps(planned.state)
    return {
        "campaign": plan.campaign,
        "plan": plan.number,
        "store": store,
        "news": news,
        "stack": plan.stack.as_json(),
        "devices": plan.devices,
        "shards": len(plan.shards),
        "forecast": plan.forecast,
        "upgrade_from": plan.upgrade_from,
        "samples": [
            {
                "kernel_type": one.kernel_type,
                "dtypes": one.dtypes,
                "formats": one.formats,
                "op_state": one.op_state,
                "power": one.power,
                "cases": len(one.cases),
                "waiting": len(one.waiting),
            }
            for one in planned.samples
        ],
        "reuse": planned.reuse,
        "gaps": [
            {
                "kernel_type": gap.kernel_type,
                "reason": gap.reason,
                "cases": len(gap.cases),
                "rows": gap.rows,
                "time_us": gap.time_us,
            }
            for gap in gaps
        ],
    }


def _gaps(state: PlanningState) -> tuple[str, list[RefusedCases]]:
    from jobs.planning.candidates import distinct_cases, only_operators
    from jobs.planning.gaps import find_gaps, refused_cases, share_line, shares

    campaign, sources = state.campaign, state.sources
    records = ((source.planned, source.records) for source in sources)
    candidates = only_operators(distinct_cases(records), campaign.operators)
    cache, device = campaign.measure.cache, campaign.device
    refused = refused_cases(candidates, find, campaign.backend, campaign.devices, cache, device)
    unmeasured = [case.candidate for case in refused]
    planned = [source.planned for source in sources]
    share = share_line(shares(candidates, unmeasured), planned)
    return share, list(find_gaps(refused))


def _gap_lines(state: PlanningState, *, why: bool) -> Iterator[str]:
    """The share of the sources' time that can be measured, and the largest gaps; with `why` every
    refused case."""
    share, found = _gaps(state)
    if share:
        yield f"share      {share}"
    for gap in found if why else found[:_PLAN_LISTED]:
        yield (
            f"gap        {gap.kernel_type}: {counted(len(gap.cases), 'case')}, "
            f"{counted(gap.rows, 'row')}, {time_text(gap.time_us)} of compute time: "
            f"{whole_in_one_line(gap.reason)}"
        )
        for case in gap.cases if why else ():
            one = case.candidate
            weight = f"{counted(one.weight.rows, 'row')}, {time_text(one.weight.time_us)}"
            yield f"  why      {whole_in_one_line(one.record.case.describe())}: {weight}"
    if len(found) > _PLAN_LISTED and not why:
        more = counted(len(found) - _PLAN_LISTED, "more gap")
        yield f"... and {more}; --why lists every refused case"


# `opmeter plan --budget`: what to measure first, and the coverage that device-hours give.

_HOURS = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,6})?)\s*h?")
_BAR = 40
_PARTS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of the time that measuring all takes
_PLAN_BUDGET_LISTED = 10


def _device_hours(text: str) -> float:
    found = _HOURS.fullmatch(text.strip())
    if found is None:
        raise BadInput(f"--budget: expected device-hours such as 20h, got {text!r}")
    return float(found[1])


def plan_within(
    workload: WorkloadOptions,
    where: VersionOptions,
    hours: float,
    device: str | None,
    picture: Path | None,
    missing: Path | None,
) -> None:
    """Print which missing cases cover most of the workload's time for their device time, and the
    coverage over device-hours. Draw a `picture` of it, and write the `missing` cases to a folder.
    """
    from jobs.planning.worth import curve, ranked_gains, within

    check_missing(missing)
    if picture is not None:
        check_picture_file(picture)
    advice = "for a stack without a version name its device: --device NAME"
    found = find_covered(workload, where, device=device, advice=advice)
    ordered = ranked_gains(found.cases, found.campaign, found.peaks, find)
    points = curve(found.cases, ordered)
    paid = within(ordered, hours)
    say_lines((f"version     {found.place}", *_curve_lines(points, hours), *_first_lines(paid)))
    if picture is not None:
        title = f"{workload}: time with a duration in {found.place}"
        data = drawn(picture_of(points, hours, title), picture)
        with file_errors(picture, "written"):
            write_through(picture, data)
    if missing is not None and ordered and not paid:
        say(
            "nothing written: no case fits the budget, which includes the start of a session",
            err=True,
        )
    elif missing is not None:
        say(written(missing, [gain.record for gain in paid]), err=True)
    else:
        say("no plan written: --missing DIR writes these cases as a source for a campaign")


def _curve_lines(points: Sequence[WorthPoint], budget_h: float) -> Iterator[str]:
    last = points[-1]
    cases, spent = counted(last.cases, "case"), _spent(last.device_h)
    yield (
        f"missing     {cases}, {spent} of device time; those with the highest gain for their time "
        "first"
    )
    hours = [point.device_h for point in points]
    steps = {bisect_right(hours, last.device_h * part) - 1 for part in _PARTS}
    end = bisect_right(hours, budget_h) - 1
    for at in sorted({*steps, end}):
        point = points[at]
        bar = "#" * round(_BAR * point.share)
        mark = "  budget" if at == end else ""
        reached = f"{_spent(point.device_h):>11} {point.cases:7,} cases {percent(point.share):>7}"
        yield f"  {reached} {bar:<{_BAR}}{mark}".rstrip()


def _spent(device_h: float) -> str:
    seconds = 3600 * device_h
    if seconds < 100:
        return f"{seconds:,.1f} s"
    return f"{seconds / 60:,.1f} min" if seconds < 6000 else f"{device_h:,.2f} h"


def _first_lines(paid: Sequence[Gain]) -> Iterator[str]:
    if paid:
        yield "first cases: share of the workload's time, device time"
    for gain in paid[:_PLAN_BUDGET_LISTED]:
        yield f"  {percent(gain.share):>7} {gain.device_s:8.2f} s {gain.record.case.describe()}"
