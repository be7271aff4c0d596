"""`opmeter run`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from functools import cache, partial
from typing import Annotated

import typer

from collector.codec.text import counted
from jobs.cli.opening import choose_guard, open_bare, open_campaign, patient
from jobs.cli.options import (
    AgainOption,
    CampaignArgument,
    JsonOption,
    NoCollectivesOption,
    RetryFailedOption,
    RootOption,
    SingleWriterOption,
    SupersedeOption,
)
from jobs.cli.status import campaign_as_json
from jobs.cli.terminal import print_json, say, say_lines, stop_on_signals

_FAILED, _NOT_COMMITTED = 1, 3


def run_command(
    campaign: CampaignArgument,
    *,
    root: RootOption = None,
    again: AgainOption = False,
    retry_failed: RetryFailedOption = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="exit with 1 if a case has no duration")
    ] = False,
    no_collectives: NoCollectivesOption = False,
    single_writer: SingleWriterOption = False,
    supersede_stack: SupersedeOption = False,
    as_json: JsonOption = False,
) -> int:
    """Plan a campaign, measure it on this machine and merge the results into the database.

    An interrupted run continues when the command is run again. The exit code is 3 if shards are
    left, and 1 if the plan is damaged or, with --strict, if a case has no duration.

    \b
    Examples:
      opmeter run quickstart
      opmeter run campaign.yaml --root s3://bucket/prefix
    """
    from collector.database.snapshot import load_state
    from jobs.campaign.campaign_file import RunOptions
    from jobs.cli.progress_view import view_for
    from jobs.executor.local_campaign import run_campaign
    from jobs.status.lines import describe_summary
    from jobs.status.summary import plan_usage, summarise_state

    described = open_campaign(campaign, collectives=not no_collectives)
    options = RunOptions(again, retry_failed, supersede_stack)
    with view_for(sys.stderr.isatty()) as view:
        stop = stop_on_signals(view.say)
        bare = open_bare(root, described, single_writer=single_writer)
        store, watched = patient(bare, stop), patient(bare, stop, patience_s=0.0)
        view.say(f"store {store.url}")
        guard = cache(partial(choose_guard, store, single_writer=single_writer))
        result = run_campaign(described, store, watched, guard, options, view, stop)
    state, plan, damage = result.state, result.plan, result.damage
    if result.missing or result.goes_on:
        left = f"with {result.missing:,} of {counted(len(plan.shards), 'shard')} left"
        flags = {
            "--strict": strict,
            "--no-collectives": no_collectives,
            "--single-writer": single_writer,
            "--supersede-stack": supersede_stack,
        }
        say(
            f"stopped {left if result.missing else 'between two rounds'}; to continue: "
            f"{_continuing(campaign, root, flags)}",
            err=True,
        )
        return _NOT_COMMITTED
    sources = [source.records for source in state.sources]
    usage = plan_usage(store, plan)
    head = load_state(store, state.head, paths=[plan.stack.version_path])
    summary = summarise_state(head, plan, sources, usage, since=result.since)
    lines = list(describe_summary(summary, plan, state.head, store.url))
    if as_json:
        head_number = state.head.number if state.head else None
        print_json(campaign_as_json(store, described.name, lines) | {"version": head_number})
    else:
        say_lines(lines)
    say_lines(damage.advice(plan), err=True)
    if damage.needed:
        return _NOT_COMMITTED if any(d.shard for d in damage.needed) else _FAILED
    return int(strict and summary.lacking(plan.forecast.left_out) > 0)


def _continuing(campaign: str, root: str | None, flags: Mapping[str, bool]) -> str:
    """Return the command that continues a plan: of the options, those that do not begin a new one.
    Another root, or other collectives, would be another plan."""
    words = ["opmeter run", shlex.quote(campaign)]
    words += [f"--root {shlex.quote(root)}"] if root else []
    return " ".join(words + [flag for flag, is_set in flags.items() if is_set])
