"""`opmeter status`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput
from collector.codec.text import visible
from jobs.cli.options import RootOption
from jobs.cli.terminal import say

if TYPE_CHECKING:
    from collector.store.base import Store
    from jobs.status.picture import Picture

_EVERY_S, _LINES_EVERY_S = 5.0, 60.0
_IDLE_TIMES = 4.0  # as long as a look took is waited at least
_BARS, _FEW_BARS = 30, 4  # where they are printed again and again


def status_verb(
    campaign: Annotated[
        str | None, typer.Argument(help="one campaign, by its name or its file  [all]")
    ] = None,
    *,
    root: RootOption = None,
    namespace: Annotated[
        str | None, typer.Option(help="where its Jobs run, if on a cluster  [the context's]")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="look again and again, until it is merged")
    ] = False,
) -> None:
    """Say how far campaigns are, what failed, and what they wait for."""
    from jobs.cli.opening import find_root, open_campaign, open_root
    from jobs.planning.stored_plans import has_plans, no_campaign
    from jobs.status.picture import Picture
    from jobs.status.why import ClusterView

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
        raise no_campaign(store, name)
    screen = Picture(store, name, view)
    if watch:
        _watch(screen)
        return
    for line in screen.lines():
        say(line)


def _all(store: Store) -> None:
    from collector.database.commits import readable_log
    from jobs.planning.stored_plans import campaigns
    from jobs.status.follower import Follower
    from jobs.status.lines import head_line

    follower, known = Follower(store), campaigns(store)
    if warning := readable_log(store).warning:
        say(warning)
    for name in known:
        for plan in follower.look(name, deep=False):
            say(head_line(plan))
        for line in follower.unreadable(name).lines():
            say(line)
    if not known:
        say(f"no campaigns at {store.url}")


def _watch(screen: Picture) -> None:
    """Until it is merged, or somebody has seen enough."""
    try:
        if sys.stdout.isatty():
            _draw(screen)
        else:
            _print_now_and_then(screen)
    except KeyboardInterrupt:
        return


def _draw(screen: Picture) -> None:
    """As many bars as the terminal has room for beside the rest."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    bars = console.height // 3
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while not screen.is_finished:
            started = time.monotonic()
            lines = list(screen.lines(bars))
            took_s = time.monotonic() - started
            live.update(Text(visible("\n".join(lines)), overflow="fold"), refresh=True)
            rows = sum(len(line) // console.width + 1 for line in lines)
            bars = max(_FEW_BARS, bars + console.height - rows - 1)
            if not screen.is_finished:
                time.sleep(_pause_s(_EVERY_S, took_s))


def _print_now_and_then(screen: Picture) -> None:
    while not screen.is_finished:
        started = time.monotonic()
        for line in screen.lines(_BARS):
            say(line)
        if not screen.is_finished:
            time.sleep(_pause_s(_LINES_EVERY_S, time.monotonic() - started))
            say()


def _pause_s(least_s: float, took_s: float) -> float:
    """Between two looks: what takes long is done less often."""
    return max(least_s, _IDLE_TIMES * took_s)
