"""`opmeter run`: plan, measure here, merge; and continue where an earlier run was ended."""

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from collector.database.commits import Commit
from collector.database.merge import SINGLE_WRITER, Guard
from collector.errors import BadInput
from collector.host.stack import device_locks, local_stack
from collector.plan import Plan
from collector.replay.lock import DeviceLock, scratch_folder
from collector.store.base import Store
from collector.worker.assignment import WrongImage, WrongNode, check_stack
from jobs.advancing import Wish, advance, publish
from jobs.campaign import Campaign
from jobs.local import LocalRun, Progress
from jobs.planning import describe_forecast
from jobs.preparing import Situation, survey
from jobs.rounds import committed_shards
from jobs.view import View


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
    watched: Store,
    guard: Guard,
    wish: Wish,
    view: View,
    stop: threading.Event,
) -> RunResult:
    """The whole way on this machine. Returns early, with shards missing, once `stop` is set.

    `watched` is the same store, not waited for: pictures of the progress are read there.
    """
    situation = survey(campaign, store)
    check_here(situation)
    advanced = advance(situation, store, lambda: guard, wish, view.say)
    plan, situation = advanced.plan, advanced.situation
    view.say(advanced.news)
    missing = _outstanding(store, plan)
    if missing:
        for line in describe_forecast(plan):
            view.say("  " + line)
        word = guard == SINGLE_WRITER
        _measure(store, watched, plan, missing, view, stop, single_writer=word)
        missing = _outstanding(store, plan)
    if missing:
        return RunResult(situation, plan, len(missing), situation.head)
    view.say("merging")
    merged = publish(store, campaign.name, [plan.number], guard, wish)
    return RunResult(situation, plan, 0, merged.head)


def check_here(situation: Situation) -> None:
    """Raise BadInput where this machine is not the one that the campaign wants."""
    campaign = situation.campaign
    try:
        check_stack(situation.stack, local_stack(campaign.backend, situation.stack.device))
    except (WrongImage, WrongNode) as error:
        raise BadInput(f"campaign {campaign.name} cannot be measured here: {error}") from error
    here = len(device_locks(campaign.backend))
    if campaign.devices > here:
        raise BadInput(
            f"campaign {campaign.name} wants {campaign.devices} devices, and this machine has "
            f"{here} ({campaign.backend}; a cpu is one device, all its cores)"
        )


def _measure(
    store: Store,
    watched: Store,
    plan: Plan,
    shards: Sequence[str],
    view: View,
    stop: threading.Event,
    *,
    single_writer: bool,
) -> None:
    purpose = f"campaign {plan.campaign}, plan {plan.number}, store {store.url}"
    tally = _Tally(plan, shards, view)
    with ExitStack() as held:
        for device in device_locks(plan.backend)[: plan.devices]:
            held.enter_context(DeviceLock(device, purpose))
        folder = held.enter_context(scratch_folder(f"{plan.backend}0"))
        run = LocalRun(
            store=store,
            watched=watched,
            plan=plan,
            scratch=folder,
            devices=range(plan.devices),
            stop=stop,
            on_progress=tally.told,
            on_finished=tally.finished,
            single_writer=single_writer,
        )
        run.measure(shards)


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
