"""`opmeter plan`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput
from collector.codec.text import counted, percent, time_text, whole_in_one_line
from collector.ops.own import find_operator
from jobs.cli.opening import choose_guard, open_campaign, open_root
from jobs.cli.options import (
    CampaignArgument,
    NoCollectivesOption,
    RootOption,
    SingleWriterOption,
    share_of_option,
)
from jobs.cli.terminal import print_json, say, say_lines

if TYPE_CHECKING:
    from collector.database.reuse import ReusedKernel
    from collector.model.plan import UpgradeFrom
    from jobs.planning.gaps import RefusedCases
    from jobs.planning.lifecycle import NextPlan, PlanningState
    from jobs.planning.upgrades import KernelSample


_PLAN_LISTED = 25


def plan_command(
    campaign: CampaignArgument,
    *,
    root: RootOption = None,
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
    upgrade_from: Annotated[
        str | None,
        typer.Option(
            help="version directory of an older stack: measure a sample of each kernel, and reuse "
            "the durations of equal ones"
        ),
    ] = None,
    margin: Annotated[
        str | None,
        typer.Option(
            help="share by which a reused duration may differ (--upgrade-from)  [default: 5%]"
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print forecast and gaps as JSON")
    ] = False,
) -> None:
    """Forecast a campaign and write its plan, which never changes afterwards.

    `opmeter coverage --budget` reports which cases of a workload to measure first. With
    --upgrade-from, plan a sample of what the older stack has measured; once it is merged, the
    same command plans the kernels that are not shown equal, and records which cases are reused.

    \b
    Examples:
      opmeter plan campaign.yaml --dry-run
      opmeter plan campaign.yaml --upgrade-from DEVICE/vllm_ascend/vllm0.18.0_torch2.9.0_cann8.5.0
    """
    from jobs.campaign.campaign_file import RunOptions
    from jobs.executor.local_campaign import unbuilt_kernels
    from jobs.planning.gaps import describe_forecast
    from jobs.planning.lifecycle import next_plan, preview, read_state

    described = open_campaign(campaign, collectives=not no_collectives)
    store = open_root(root, described, single_writer=single_writer)
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


def _upgrade(version_path: str | None, margin: str | None) -> UpgradeFrom | None:
    from collector.model.plan import UpgradeFrom
    from collector.quality.upgrades import MARGIN

    if version_path is None:
        if margin is not None:
            raise BadInput("--margin requires --upgrade-from")
        return None
    share = MARGIN if margin is None else share_of_option("--margin", margin, below=1)
    return UpgradeFrom(version_path.strip("/"), share)


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
    refused = refused_cases(
        candidates, find_operator, campaign.backend, campaign.devices, cache, device
    )
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
