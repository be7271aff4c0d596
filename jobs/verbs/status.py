"""`opmeter status`."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from collector import keys
from collector.database.commits import find_head
from collector.database.published import HeldShards
from collector.database.snapshot import load_state
from collector.errors import BadInput
from collector.record import CaseRecord, read_table
from collector.store.base import Store
from jobs.applied import applied_from
from jobs.pace import devices_measuring
from jobs.rounds import stored_strikes
from jobs.sources import completed_records
from jobs.status import Follower, PlanStatus, campaigns, has_plans
from jobs.status_lines import (
    efficiency_lines,
    failure_lines,
    head_line,
    hours_line,
    kernel_lines,
    shard_lines,
)
from jobs.summary import describe, summarise
from jobs.verbs.cluster_view import ClusterView
from jobs.verbs.finding import find_root
from jobs.verbs.opening import open_campaign, open_root
from jobs.why import Seen, explain, running_pods

_EVERY_S, _LINES_EVERY_S = 5.0, 60.0
_IDLE_TIMES = 4.0  # as long as a look took is waited at least
_BARS, _FEW_BARS = 30, 4  # where they are printed again and again


def status_verb(
    campaign: str | None, root: str | None, namespace: str | None, *, watch: bool
) -> None:
    """One line a plan; for one campaign also its kernel types, its time, what failed, and why it
    waits on its cluster, where there is one."""
    described = open_campaign(campaign) if campaign and Path(campaign).is_file() else None
    name = described.name if described else campaign
    if name is None:
        if watch:
            raise BadInput("--watch follows one campaign: name it")
        _all(open_root(root))
        return
    view = ClusterView(name, namespace)
    if not (described and described.store):
        root = find_root(root, name, view)
    store = open_root(root, described)
    if not has_plans(store, name) and not view.seen():
        known = ", ".join(campaigns(store)) or "none"
        raise BadInput(f"no campaign {name!r} at {store.url}; there are: {known}")
    screen = _Screen(store, name, view)
    if watch:
        _watch(screen)
        return
    for line in screen.lines():
        typer.echo(line)


class _Screen:
    """Everything about one campaign, as often as it is asked for."""

    def __init__(self, store: Store, campaign: str, view: ClusterView):
        self._store, self._campaign, self._view = store, campaign, view
        self._follower, self._held = Follower(store), HeldShards(store, campaign)
        self.is_finished = False

    def lines(self, bars: int = 0) -> Iterator[str]:
        plans = self._follower.look(self._campaign)
        seen = self._view.seen(stored_strikes(self._store, self._campaign))
        at_work = _at_work(seen) if seen else 0
        for plan in plans:
            yield head_line(plan, at_work)
        if plans:
            yield from self._details(plans[-1], bars)
        else:
            yield f"{self._campaign}: no plan is written yet"
        if seen:
            yield from explain(seen)
        if self._view.trouble:
            yield f"cluster     {self._view.trouble}"

    def _details(self, status: PlanStatus, bars: int) -> Iterator[str]:
        plan, head = status.plan, find_head(self._store)
        yield from shard_lines(status)
        yield from kernel_lines(status, bars)
        yield hours_line(status)
        all_committed = status.committed == len(plan.shards)
        self.is_finished = all_committed and self._held.at(head).issuperset(
            shard.shard_id for shard in plan.shards
        )
        if not self.is_finished:
            yield f"database    {self._store.url}, version {head.number if head else 'none yet'}"
            yield f"stack       {plan.stack.version_path}"
            yield from efficiency_lines(status)
            yield from failure_lines(status)
            return
        sources = [_source(self._store, plan.campaign, source.sha256) for source in plan.sources]
        summary = summarise(load_state(self._store, head), plan, sources, status.usage)
        yield from describe(summary, plan, head, self._store.url)


def _all(store: Store) -> None:
    follower, known = Follower(store), campaigns(store)
    for name in known:
        for plan in follower.look(name, deep=False):
            typer.echo(head_line(plan))
    if not known:
        typer.echo(f"no campaigns at {store.url}")


def _watch(screen: _Screen) -> None:
    """Until it is merged, or somebody has seen enough."""
    try:
        if sys.stdout.isatty():
            _draw(screen)
        else:
            _print_now_and_then(screen)
    except KeyboardInterrupt:
        return


def _draw(screen: _Screen) -> None:
    """As many bars as the terminal has room for beside the rest."""
    console = Console(highlight=False)
    bars = console.height // 3
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while not screen.is_finished:
            started = time.monotonic()
            lines = list(screen.lines(bars))
            took_s = time.monotonic() - started
            text = Text("\n".join(lines), overflow="ellipsis", no_wrap=True)
            live.update(text, refresh=True)
            bars = max(_FEW_BARS, bars + console.height - len(lines) - 1)
            if not screen.is_finished:
                time.sleep(_pause_s(_EVERY_S, took_s))


def _print_now_and_then(screen: _Screen) -> None:
    while not screen.is_finished:
        started = time.monotonic()
        for line in screen.lines(_BARS):
            typer.echo(line)
        if not screen.is_finished:
            time.sleep(_pause_s(_LINES_EVERY_S, time.monotonic() - started))
            typer.echo()


def _at_work(seen: Seen) -> int:
    """How many devices measure on the cluster now; 0 where its ConfigMap cannot be read."""
    try:
        return devices_measuring(running_pods(seen.pods), applied_from(seen.config_map).site)
    except BadInput:
        return 0


def _pause_s(least_s: float, took_s: float) -> float:
    """Between two looks: what takes long is done less often."""
    return max(least_s, _IDLE_TIMES * took_s)


def _source(store: Store, campaign: str, sha256: str) -> list[CaseRecord]:
    key = keys.source(campaign, sha256)
    return list(completed_records(read_table(store.get(key), path=key)))
