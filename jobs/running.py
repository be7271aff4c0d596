"""`opmeter run`: plan, measure here, merge; and continue where an earlier run was ended."""

import getpass
import os
import platform
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from collector.database.commits import Commit
from collector.database.merge import Guard, MergeResult, merge
from collector.host.stack import gpu_count
from collector.plan import Plan
from collector.replay.lock import DeviceLock
from collector.store.base import Store
from jobs.campaign import Campaign
from jobs.lifecycle import Continue, Finished, NewPlan
from jobs.local import LocalRun, Progress
from jobs.planning import describe_forecast
from jobs.preparing import Situation, decide, next_round, survey, write
from jobs.rounds import committed_shards
from jobs.view import View


@dataclass(frozen=True, slots=True)
class RunOptions:
    again: bool = False
    retry_failed: bool = False
    supersede_stack: bool = False


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended: the plan it was about, its shards that nobody has committed, and the head
    of the database afterwards."""

    situation: Situation
    plan: Plan
    missing: int
    head: Commit | None


def run_campaign(
    campaign: Campaign,
    store: Store,
    guard: Guard,
    options: RunOptions,
    view: View,
    stop: threading.Event,
) -> RunResult:
    """The whole way on this machine. Returns early, with shards missing, once `stop` is set."""
    situation = survey(campaign, store)
    plan = _plan(situation, store, guard, options, view)
    _measure(store, plan, view, stop)
    missing = _outstanding(store, plan)
    if missing:
        return RunResult(situation, plan, len(missing), situation.head)
    merged = _merge(store, [plan.number], campaign, guard, options)
    return RunResult(situation, plan, 0, merged.head)


def _plan(
    situation: Situation, store: Store, guard: Guard, options: RunOptions, view: View
) -> Plan:
    step = decide(situation, again=options.again, retry_failed=options.retry_failed)
    match step:
        case Finished(plan):
            view.say(f"plan {plan.number} is measured and merged already")
            return plan
        case Continue(plan):
            view.say(f"continuing plan {plan.number}")
        case NewPlan(number, merge_first):
            if merge_first:
                campaign = situation.campaign
                _merge(store, merge_first, campaign, guard, options, allow_missing=True)
                situation = survey(campaign, store)
            planned = next_round(
                situation, number, again=options.again, retry_failed=options.retry_failed
            )
            write(store, situation, planned)
            plan = planned.plan
            view.say(f"plan {plan.number}")
    for line in describe_forecast(plan):
        view.say("  " + line)
    return plan


def _measure(store: Store, plan: Plan, view: View, stop: threading.Event) -> None:
    shards = _outstanding(store, plan)
    if not shards:
        return
    purpose = f"campaign {plan.campaign}, plan {plan.number}, store {store.url}"
    tally = _Tally(plan, shards, view)
    devices = _devices(plan)
    with ExitStack() as held:
        for device in devices:
            held.enter_context(DeviceLock(f"{plan.backend}{device}", purpose))
        folder = held.enter_context(_scratch(f"{plan.backend}{devices[0]}"))
        run = LocalRun(store, plan, folder, devices, stop, tally.told, tally.finished)
        run.measure(shards)


def _devices(plan: Plan) -> Sequence[int]:
    """The devices of this machine that measure: a cpu is one device, all its cores."""
    if plan.backend != "cuda":
        return [0]
    return range(min(plan.devices, gpu_count()))


@contextmanager
def _scratch(device: str) -> Iterator[Path]:
    """A folder for the workers. What a killed run left is removed: its device was locked."""
    prefix = f"opmeter-{device}-"
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        if left.stat().st_uid == os.getuid():
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _merge(
    store: Store,
    numbers: Sequence[int],
    campaign: Campaign,
    guard: Guard,
    options: RunOptions,
    *,
    allow_missing: bool = False,
) -> MergeResult:
    return merge(
        store,
        [(campaign.name, number) for number in numbers],
        guard=guard,
        author=author(),
        supersede_stack=options.supersede_stack,
        allow_missing=allow_missing,
    )


def author() -> str:
    """Who publishes: `user@machine`, for people who read the log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's uid need not have a name
        user = "unknown"
    return f"{user}@{platform.node()}"


def _outstanding(store: Store, plan: Plan) -> list[str]:
    done = committed_shards(store, plan.campaign)
    return [shard.shard_id for shard in plan.shards if shard.shard_id not in done]


class _Tally:
    """Adds up what the workers say, for the view."""

    def __init__(self, plan: Plan, outstanding: Sequence[str], view: View):
        self._cases = {shard.shard_id: shard.cases for shard in plan.shards}
        self._done = {s: n for s, n in self._cases.items() if s not in set(outstanding)}
        self._view = view
        self._show()

    def told(self, progress: Progress) -> None:
        self._done[progress.shard] = progress.done
        self._show()

    def finished(self, shard: str) -> None:
        self._done[shard] = self._cases[shard]
        self._show()

    def _show(self) -> None:
        self._view.measure(sum(self._done.values()), sum(self._cases.values()))
