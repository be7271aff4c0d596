"""`opmeter status`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput, StoreError
from collector.codec.text import printable
from jobs.cli.opening import open_bare, open_existing, open_followed, open_of_pods, patient
from jobs.cli.options import RootOption
from jobs.cli.terminal import print_json, say, say_lines

if TYPE_CHECKING:
    from collector.store.base import Store
    from jobs.status.picture import CampaignStatus
    from jobs.status.plan_status import PlanStatus

_EVERY_S, _LINES_EVERY_S = 5.0, 60.0
_PATIENCE_S = 10.0  # of a store: the cluster is shown meanwhile
_IDLE_TIMES = 4.0  # as long as a look took is waited at least
_BARS, _FEW_BARS = 30, 4  # where they are printed again and again


def status_command(
    campaign: Annotated[
        str | None, typer.Argument(help="name or file of a campaign  [default: all]")
    ] = None,
    *,
    root: RootOption = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            help="namespace of its Jobs on a cluster; without a campaign, list those applied "
            "there  [default: the context's]"
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="repeat until the campaign is merged")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the status as JSON")] = False,
) -> None:
    """Show campaign progress, failures and the reason anything is pending.

    \b
    Examples:
      opmeter status
      opmeter status --namespace opmeter
      opmeter status nightly --watch
    """
    from jobs.planning.stored_plans import campaigns
    from jobs.status.picture import CampaignStatus

    if campaign is None:
        if watch:
            raise BadInput("--watch requires the name of a campaign")
        if namespace is not None:
            _applied(namespace, root, as_json=as_json)
            return
        store = open_existing(root)
        if as_json:
            print_json([campaign_as_json(store, name) for name in campaigns(store)])
        else:
            _all(store)
        return
    store, name, view = open_followed(campaign, root, namespace, patience_s=_PATIENCE_S)
    screen = CampaignStatus(store, name, view)
    if as_json:
        if watch:
            raise BadInput("--json and --watch exclude each other")
        lines = list(screen.lines())
        damage = screen.follower.unreadable(name).lines()
        print_json(_as_json(store.url, name, screen.plans, damage) | {"lines": lines})
        return
    if watch:
        _watch(screen)
        return
    say_lines(screen.lines())


def _all(store: Store) -> None:
    from collector.database.commits import readable_log
    from jobs.planning.stored_plans import campaigns
    from jobs.status.follower import Follower
    from jobs.status.lines import head_line

    follower, known = Follower(store), campaigns(store)
    if warning := readable_log(store).warning:
        say(warning)
    for name in known:
        for plan in follower.read(name, deep=False):
            say(head_line(plan))
        say_lines(follower.unreadable(name).lines())
    if not known:
        say(f"no campaigns at {store.url}")


def _applied(namespace: str, root: str | None, *, as_json: bool) -> None:
    """Print the campaigns that are applied in a namespace, and what the store has of each."""
    from jobs.objects.applied_campaign import applied_from
    from jobs.status.follower import Follower
    from jobs.status.lines import head_line
    from jobs.status.picture import devices_at_work
    from jobs.status.why import ClusterView, brief_line, controller_line

    view = ClusterView(None, namespace)
    there, found = view.applied(), []
    if view.trouble:
        raise BadInput(view.trouble)
    for seen in there:
        name, damage = seen.campaign, list[str]()
        plans: list[PlanStatus] = []
        url = root or str((seen.config_map.get("data") or {}).get("root", ""))
        try:
            of_pods = applied_from(seen.config_map).deployment.root
            bare = open_bare(root) if root else open_of_pods(of_pods)
            follower = Follower(patient(bare, patience_s=_PATIENCE_S))
            plans = follower.read(name, deep=False)
            damage = list(follower.unreadable(name).lines())
            lines = [head_line(plan, devices_at_work(seen)) for plan in plans] + damage
            lines = lines or [f"{name}: no plan exists yet"]
        except (BadInput, StoreError) as error:
            lines = [f"{name}: not available: {error}"]
        lines.append(brief_line(seen))
        found.append(_as_json(url, name, plans, damage) | {"lines": lines})
        if not as_json:
            say_lines(lines)
    if as_json:
        print_json(found)
    elif there:
        say(controller_line(there[0]))


def campaign_as_json(store: Store, name: str, lines: Sequence[str] = ()) -> dict[str, object]:
    """Return the progress of a campaign, with these lines for people, as a value for JSON."""
    from jobs.status.follower import Follower

    follower = Follower(store)
    plans = follower.read(name, deep=False)
    found = _as_json(store.url, name, plans, follower.unreadable(name).lines())
    return found | ({"lines": lines} if lines else {})


def _as_json(
    url: str, name: str, plans: Sequence[PlanStatus], damage: Iterable[str]
) -> dict[str, object]:
    """The progress of a campaign, whose store is at `url`: a value for JSON."""
    return {
        "campaign": name,
        "store": url,
        "plans": [
            {
                "plan": status.plan.number,
                "stack": status.plan.stack.version_path,
                "devices": status.plan.devices,
                "shards": len(status.shards),
                "committed_shards": status.committed,
                "cases": sum(shard.cases for shard in status.of_cases),
                "measured_cases": sum(shard.done for shard in status.of_cases),
                "repeats": sum(shard.cases for shard in status.of_repeats),
                "measured_repeats": sum(shard.done for shard in status.of_repeats),
                "remaining_s": status.remaining_s(),
                "open_shards": [
                    {"shard": s.shard, "cases": s.cases, "measured": s.done, "case": s.measuring}
                    for s in status.shards
                    if not s.committed
                ],
            }
            for status in plans
        ],
        "damage": list(damage),
    }


def _watch(screen: CampaignStatus) -> None:
    try:
        if sys.stdout.isatty():
            _draw(screen)
        else:
            _print_now_and_then(screen)
    except KeyboardInterrupt:
        return


def _draw(screen: CampaignStatus) -> None:
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
            live.update(Text(printable("\n".join(lines)), overflow="fold"), refresh=True)
            rows = sum(len(line) // console.width + 1 for line in lines)
            bars = max(_FEW_BARS, bars + console.height - rows - 1)
            if not screen.is_finished:
                time.sleep(_pause_s(_EVERY_S, took_s))


def _print_now_and_then(screen: CampaignStatus) -> None:
    while not screen.is_finished:
        started = time.monotonic()
        say_lines(screen.lines(_BARS))
        if not screen.is_finished:
            time.sleep(_pause_s(_LINES_EVERY_S, time.monotonic() - started))
            say()


def _pause_s(least_s: float, took_s: float) -> float:
    """Return the pause between two queries: slow ones are repeated less often."""
    return max(least_s, _IDLE_TIMES * took_s)
