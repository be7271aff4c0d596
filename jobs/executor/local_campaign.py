"""`opmeter run`: plan, measure on this machine, merge; and continue an interrupted run."""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

from collector.codec.errors import BadInput
from collector.codec.scratch import scratch_folder
from collector.codec.text import counted
from collector.database.merge import SINGLE_WRITER, Guard
from collector.host.operator_library import static_kernel_problem
from collector.host.stack import device_locks, local_stack
from collector.model.plan import Plan
from collector.model.stack import Stack
from collector.replay.lock import DeviceLock
from collector.store.base import Store
from collector.worker.assignment import check_stack
from collector.worker.blame import WrongImage, WrongNode
from jobs.campaign.campaign_file import Campaign, RunOptions
from jobs.executor.environments import MeasuredEnvironment
from jobs.executor.local_run import LocalRun, RunView, start_worker
from jobs.planning import lifecycle
from jobs.planning.gaps import describe_forecast
from jobs.planning.sources import LoadedSource, static_cases
from jobs.planning.stored_plans import committed_shards


def run_campaign(
    campaign: Campaign,
    store: Store,
    watched: Store,
    guard: Callable[[], Guard],
    options: RunOptions,
    view: RunView,
    stop: threading.Event,
    within: MeasuredEnvironment | None = None,
    stack: Stack | None = None,
) -> lifecycle.NextPlan:
    """Run a whole campaign on this machine. Return early, with shards missing, once `stop` is set.

    Workers run `within` an environment, whose `stack` is known, or in that of this process.
    `watched` is the same store without waiting: progress is read there. `guard` is called before
    anything is written, and after the campaign's input is accepted."""

    def measure(planned: lifecycle.NextPlan) -> int:
        plan = planned.plan
        missing = _outstanding(plan, planned.state.committed)
        if not missing:
            return 0
        for line in describe_forecast(plan):
            view.say("  " + line)
        purpose = f"campaign {plan.campaign}, plan {plan.number}, store {store.url}"
        tally = Tally(plan, missing, view)
        with ExitStack() as held:
            for device in device_locks(plan.backend)[: plan.devices]:
                held.enter_context(DeviceLock(device, purpose))
            LocalRun(
                store=store,
                watched=watched,
                plan=plan,
                scratch=held.enter_context(scratch_folder(f"{plan.backend}0")),
                devices=range(plan.devices),
                stop=stop,
                on_progress=tally.add,
                on_finished=tally.finished,
                single_writer=guard() == SINGLE_WRITER,
                start=start_worker if within is None else within.start,
                operators=tuple(file.sha256 for file in campaign.planned_operators),
            ).measure(missing)
        return len(_outstanding(plan, committed_shards(store, plan.campaign)))

    state = lifecycle.read_state(campaign, store, stack)
    if within is None:
        check_here(state)
    if unbuilt := unbuilt_kernels(campaign, state.sources):
        view.say(unbuilt)
    return lifecycle.run_plans(state, guard, options, view.say, measure, stop.is_set)


def check_here(state: lifecycle.PlanningState) -> None:
    """Raise BadInput if this machine is not the one that the campaign requires."""
    campaign = state.campaign
    try:
        check_stack(state.stack, local_stack(campaign.backend, state.stack.device))
    except (WrongImage, WrongNode) as error:
        raise BadInput(f"campaign {campaign.name} cannot be measured here: {error}") from error
    here = len(device_locks(campaign.backend))
    if campaign.devices > here:
        raise BadInput(
            f"campaign {campaign.name} requires {counted(campaign.devices, 'device')}, but this "
            f"machine has {here} ({campaign.backend}; a cpu is one device, all its cores)"
        )


def unbuilt_kernels(campaign: Campaign, sources: Iterable[LoadedSource]) -> str:
    """Return how many of a campaign's cases have kernels that this machine cannot build for their
    shapes, and why; empty if it can. A worker refuses them."""
    count = static_cases(campaign, sources)
    problem = static_kernel_problem() if count else ""
    if not problem:
        return ""
    what = counted(count, "case of static kernels is", "cases of static kernels are")
    return f"{what} not measured on this machine: {problem}"


def _outstanding(plan: Plan, done: frozenset[str]) -> list[str]:
    return [shard.shard_id for shard in plan.beyond(done)]


class Tally:
    """Sums the progress of the workers for the view.

    The next worker of a shard continues after the stored results of the previous one, so progress
    never decreases."""

    def __init__(self, plan: Plan, outstanding: Sequence[str], view: RunView):
        self._cases = {shard.shard_id: shard.cases for shard in plan.shards}
        self._done = {s: n for s, n in self._cases.items() if s not in set(outstanding)}
        self._view = view
        self._show()

    def add(self, shard: str, done: int) -> None:
        self._done[shard] = max(done, self._done.get(shard, 0))
        self._show()

    def finished(self, shard: str) -> None:
        self._done[shard] = self._cases[shard]
        self._show()

    def _show(self) -> None:
        self._view.measure(sum(self._done.values()), sum(self._cases.values()))
