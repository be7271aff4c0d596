"""`opmeter run`: plan, measure on this machine, merge; and continue an interrupted run."""

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from collector.codec.errors import BadInput
from collector.codec.text import counted
from collector.database.commits import Commit
from collector.database.merge import SINGLE_WRITER, Guard
from collector.host.stack import device_locks, local_stack
from collector.model.plan import Plan
from collector.replay.lock import DeviceLock, scratch_folder
from collector.store.base import Store
from collector.worker.assignment import check_stack
from collector.worker.blame import WrongImage, WrongNode
from jobs.campaign.campaign_file import Campaign, RunOptions
from jobs.executor.local_run import LocalRun, ShardProgress, View
from jobs.planning.damage import Told
from jobs.planning.gaps import describe_forecast
from jobs.planning.situation import Situation, is_measured_again, once_more, survey
from jobs.planning.stored_plans import committed_shards
from jobs.publishing.due_merges import own_plans, publish
from jobs.publishing.next_plan import advance


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run.

    Attributes:
        plan: the plan of the run.
        missing: the number of its shards that are not committed.
        told: the damage in commits.
        head: the head of the database afterwards.
        is_doubted: sessions with suspect canaries measured some of it.
    """

    situation: Situation
    plan: Plan
    missing: int
    told: Told
    head: Commit | None
    is_doubted: bool = False

    @property
    def goes_on(self) -> bool:
        """Return whether another round follows automatically.

        All of this round is published, and surfaces are not learned yet, or suspect measurements
        are measured again.
        """
        follows = self.plan.forecast.learning > 0 or self.is_doubted
        return not (self.missing or self.told.needed) and follows


def run_campaign(
    campaign: Campaign,
    store: Store,
    watched: Store,
    guard: Callable[[], Guard],
    options: RunOptions,
    view: View,
    stop: threading.Event,
) -> RunResult:
    """Run a whole campaign on this machine. Return early, with shards missing, once `stop` is set.

    `watched` is the same store without waiting: progress is read there. `guard` is called before
    anything is written, and after the campaign's input is accepted. If surfaces are learned, plans
    follow each other until they are known; the measurements of suspect sessions are repeated by
    another plan.
    """
    situation = survey(campaign, store)
    check_here(situation)
    while True:
        result = _one_plan(situation, store, watched, guard, options, view, stop)
        if not result.goes_on or stop.is_set():
            return result
        # The next round differs only in what it has learned.
        options = replace(options, again=False, retry_failed=False)
        situation = once_more(result.situation, store)


def _one_plan(
    situation: Situation,
    store: Store,
    watched: Store,
    guard: Callable[[], Guard],
    options: RunOptions,
    view: View,
    stop: threading.Event,
) -> RunResult:
    say = _once(view.say)
    advanced = advance(situation, store, guard, options, say)
    plan, situation = advanced.plan, advanced.situation
    view.say(advanced.news)
    missing = _outstanding(plan, situation.committed)
    if missing:
        for line in describe_forecast(plan):
            view.say("  " + line)
        word = guard() == SINGLE_WRITER
        _measure(store, watched, plan, missing, view, stop, single_writer=word)
        missing = _outstanding(plan, committed_shards(store, plan.campaign))
    if missing:
        return RunResult(situation, plan, len(missing), advanced.told, situation.head)
    if advanced.is_finished:
        return RunResult(situation, plan, 0, advanced.told, situation.head)
    view.say("merging")
    merged = publish(store, plan.campaign, own_plans(situation, plan), guard(), options)
    told = Told.of([*situation.stored.damaged, *merged.damaged], plan.number)
    for line in told.lines():
        say(line)
    doubted = is_measured_again(situation, plan, merged.head)
    return RunResult(situation, plan, 0, told, merged.head, doubted)


def _once(say: Callable[[str], None]) -> Callable[[str], None]:
    told = set[str]()

    def once(line: str) -> None:
        if line not in told:
            told.add(line)
            say(line)

    return once


def check_here(situation: Situation) -> None:
    """Raise BadInput if this machine is not the one that the campaign requires."""
    campaign = situation.campaign
    try:
        check_stack(situation.stack, local_stack(campaign.backend, situation.stack.device))
    except (WrongImage, WrongNode) as error:
        raise BadInput(f"campaign {campaign.name} cannot be measured here: {error}") from error
    here = len(device_locks(campaign.backend))
    if campaign.devices > here:
        raise BadInput(
            f"campaign {campaign.name} requires {counted(campaign.devices, 'device')}, but this "
            f"machine has {here} ({campaign.backend}; a cpu is one device, all its cores)"
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
    tally = Tally(plan, shards, view)
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


def _outstanding(plan: Plan, done: frozenset[str]) -> list[str]:
    return [shard.shard_id for shard in plan.beyond(done)]


class Tally:
    """Sums the progress of the workers for the view.

    The next worker of a shard continues after the stored results of the previous one, so progress
    never decreases.
    """

    def __init__(self, plan: Plan, outstanding: Sequence[str], view: View):
        self._cases = {shard.shard_id: shard.cases for shard in plan.shards}
        self._done = {s: n for s, n in self._cases.items() if s not in set(outstanding)}
        self._view = view
        self._show()

    def told(self, progress: ShardProgress) -> None:
        self._done[progress.shard] = max(progress.done, self._done.get(progress.shard, 0))
        self._show()

    def finished(self, shard: str) -> None:
        self._done[shard] = self._cases[shard]
        self._show()

    def _show(self) -> None:
        self._view.measure(sum(self._done.values()), sum(self._cases.values()))
