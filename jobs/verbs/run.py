"""`opmeter run`."""

import signal
import sys
import threading

import typer

from collector.database.snapshot import load_state
from jobs.advancing import Wish
from jobs.running import run_campaign
from jobs.summary import describe, plan_usage, summarise
from jobs.verbs.opening import choose_guard, open_bare, open_campaign, patient
from jobs.view import View, view_for

_NOT_COMMITTED = 3


def run_verb(
    campaign_name: str,
    root: str | None,
    again: bool,
    retry_failed: bool,
    strict: bool,
    single_writer: bool,
    supersede_stack: bool,
) -> int:
    """The exit code: 0, 1 where `strict` and a case has no duration, 3 where shards are left."""
    campaign = open_campaign(campaign_name)
    wish = Wish(again, retry_failed, supersede_stack)
    with view_for(sys.stderr.isatty()) as view:
        stop = stop_on_signals(view)
        watched = open_bare(root, campaign, single_writer=single_writer)
        store = patient(watched, stop)
        view.say(f"store {store.url}")
        guard = choose_guard(store, single_writer=single_writer)
        result = run_campaign(campaign, store, watched, guard, wish, view, stop)
    if result.missing:
        typer.echo(
            f"stopped with {result.missing} of {len(result.plan.shards)} shards to go; "
            f"`opmeter run {campaign_name}` continues (without --again or --retry-failed)",
            err=True,
        )
        return _NOT_COMMITTED
    state = load_state(store, result.head)
    sources = [source.records for source in result.situation.sources]
    usage = plan_usage(store, result.plan)
    summary = summarise(state, result.plan, sources, usage)
    for line in describe(summary, result.plan, result.head, store.url):
        typer.echo(line)
    return int(strict and summary.measured_cases < summary.cases)


def stop_on_signals(view: View) -> threading.Event:
    """An event that Ctrl-C and SIGTERM set; a second one ends the process at once."""
    stop = threading.Event()

    def ask(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)
        view.say("stopping after the case in hand; once more stops at once")

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)
    return stop
