"""One reconciliation: compare the desired with the observed state and list actions. Pure.

No state is kept between two reconciliations. The waves in the store record what was tried, live
Jobs show what is running, and commits record what is done. So a controller may be killed at any
point and restarted anywhere. The rules are evaluated in `findings`; this module defines the order
of the actions.
"""

from collections.abc import Collection, Iterator, Sequence

from collector.codec.text import counted
from jobs.decide import wave_choice
from jobs.decide.actions import Action, Announce, Delete, LaunchWave, RecordFailures
from jobs.decide.findings import Findings, ending
from jobs.decide.job_rules import drained
from jobs.decide.job_shares import JobShare, obsolete, scaling
from jobs.decide.observed import Desired, Observed
from jobs.decide.pod_problems import warnings
from jobs.decide.remaining_work import left_of, same_node
from jobs.decide.suspensions import refused_by_store
from jobs.objects.waves import Wave

# A Job that completed is kept this long so that a user can read the logs of its pods.
_KEPT_S = 600.0


def decide(desired: Desired, observed: Observed) -> tuple[Action, ...]:
    """Return the actions that bring the observed state closer to the desired state, in order."""
    return tuple(_actions(Findings(desired, observed)))


def _actions(found: Findings) -> Iterator[Action]:
    """Yield the actions in order: record, announce, delete, give up, launch, scale, end."""
    if not found.observed.store_works:
        # The commits are unknown: Jobs may only be suspended and resumed.
        yield from _scaling(found)
        return
    if found.node_failures != found.observed.node_failures:
        yield RecordFailures(found.node_failures)
    yield from _warnings(found)
    yield from obsolete(found.desired, found.observed)
    retired = list(_retired(found))
    yield from retired
    gone = {action.job for action in retired if isinstance(action, Delete)}
    done: set[str] = set()  # the shards given up in this reconciliation
    launches: list[LaunchWave] = []
    # With a wrong image, every new wave would fail.
    if found.refusal is None or not found.refusal.is_proved:
        for action in found.verdict.given_up:
            done.add(action.shard)
            yield action
        launches = list(_launches(found, done))
        yield from launches
        yield from _scaling(found, gone, [launch.wave for launch in launches])
    moving = bool(launches or done or found.observed.settling or found.desired.merge_first)
    left = found.open_shards(done)
    live, more = found.live, found.can_progress()
    yield from ending(
        found.desired, found.observed, live, left, is_moving=moving, can_progress=more
    )


def _warnings(found: Findings) -> Iterator[Announce]:
    for node in sorted(found.avoid):
        shards = len(found.node_failures.against()[node])
        yield Announce(
            "NodeQuarantined",
            f"{node}: {counted(shards, 'shard')} failed there and succeeded elsewhere",
            node,
        )
    if (merge := found.desired.merge_first) and found.todo():
        yield Announce(
            "MergeFirst",
            f"no wave is added until {merge} has started, which waits in the same queue",
            merge,
        )
    yield from warnings(found.observed)
    if found.refusal is not None:
        yield from found.refusal.warnings()
    yield from found.verdict.warnings()
    yield from wave_choice.unplaceable_gangs(
        found.desired, found.observed, found.open_shards(), found.unfit
    )
    if found.desired.plan.kept_from:
        yield from same_node(found.desired, found.observed, found.todo(), found.unfit)
    for job in found.live:
        if refused := refused_by_store(job, found.observed.pods_of(job)):
            nodes = ", ".join(sorted({pod.node for pod in refused}))
            yield Announce(
                "StoreRefusesWorkers",
                f"{counted(len(refused), 'pod')} of {job.name} "
                f"on {nodes} timed out waiting for the "
                "store, and this controller reaches it: check their Secret and the network "
                "policies",
                job.name,
            )
        if (stops := found.suspensions.get(job.name)) and (helps := stops.advice):
            yield Announce(stops.reason, f"{job.name}: {stops.why}. To do: {helps}", job.name)


def _retired(found: Findings) -> Iterator[Action]:
    """Yield the deletion or narrowing of Jobs that are no longer useful. Never force-delete.

    Delete Jobs whose shards are committed, if they ended or one of their pods is lost or stuck, and
    Jobs that have no node left. Narrow or delete Jobs that may use a quarantined node.

    A completed Job is kept for ten minutes while others work: deleting a thousand pods costs as
    much as creating them. Example: a Job that ended 599 s ago is kept; at 600 s it is deleted. Once
    the last shard of the plan is committed, it is deleted at once."""
    is_over = not found.open_shards()
    for job in found.jobs:
        wave = found.observed.by_hash.get(job.wave)
        if job.deleting or wave is None:
            continue
        done = wave.shards <= found.observed.committed
        has_ended = bool(job.state) and (is_over or job.in_state_s >= _KEPT_S)
        if done and (has_ended or any(name == job.name for name, _ in found.lost)):
            yield Delete(job.name, "its shards are committed")
        elif not done and job.is_live and found.is_broken(job):
            yield Delete(job.name, "a node of its gang is lost, and the other pods wait for it")
        elif not done and job.is_live and found.is_shut_out(job):
            yield Delete(job.name, "the other nodes that it waits for are gone or not free")
        elif not done and job.is_live and found.is_retired(job):
            kept = len(found.awaited[job.name])
            if not kept or not (job.gang or wave_choice.is_managed_elsewhere(job, found.desired)):
                yield from drained(job, kept, found.avoid)


def _launches(found: Findings, handled: set[str]) -> Iterator[LaunchWave]:
    """Yield the next wave, made of the shards that no Job has, when workers are free."""
    desired = found.desired
    if desired.paused or desired.merge_first:
        return
    todo = found.todo(handled)
    if desired.kueue:
        yield from wave_choice.queued_launches(
            desired, found.observed, found.live, todo, found.unfit
        )
        return
    if not todo:
        return
    free = desired.workers - found.waiting() - found.resuming_workers()
    # Only running pods block a gang. Pods that wait in the same Jobs can wait longer.
    begun_pods = found.waiting(only_begun=True) + found.resuming_workers()
    free_for_gang = 0 if found.is_gang_moving() else desired.workers - begun_pods
    # A gang deleted a moment ago was deleted because of a node: do not launch it there again.
    begun = wave_choice.wave_without_job(desired, found.observed, found.avoid)
    single = begun if begun is not None and not begun.is_gang else None
    if (
        begun is None
        or begun is single
        or not wave_choice.may_begin(begun, desired, found.observed, free_for_gang, found.unfit)
    ):
        begun = wave_choice.next_gang_wave(
            desired, found.observed, todo, found.unfit, free_for_gang
        )
    if begun is not None:
        yield LaunchWave(begun, begun.pods)
        return
    free -= found.reserved(todo)
    if free < 1:
        return
    wave = single or wave_choice.next_wave(desired, found.observed, todo, found.unfit)
    if wave is not None:
        yield LaunchWave(wave, wave.at_once(free))


def _scaling(
    found: Findings, gone: Collection[str] = (), launched: Sequence[Wave] = ()
) -> Iterator[Action]:
    """Suspend, resume, widen and narrow the campaign's own Jobs, oldest first.

    Jobs that another controller starts, and Jobs that may use a quarantined node, get their workers
    first. An older Job must not start shards that a wave launched in this reconciliation takes from
    it."""
    desired, observed = found.desired, found.observed
    remaining = left_of(found.live, observed, found.lost, launched)
    jobs = sorted(
        (job for job in found.live if job.name not in gone and not found.is_retired(job)),
        key=lambda job: observed.by_hash[job.wave].serial,
    )
    theirs = [job for job in jobs if wave_choice.is_managed_elsewhere(job, desired)]
    ours = [
        JobShare(job, remaining[job.name])
        for job in jobs
        if not wave_choice.is_managed_elsewhere(job, desired)
    ]
    taken = sum(len(found.awaited[job.name]) for job in found.live if found.is_retired(job))
    taken += sum(job.parallelism for job in theirs if not job.suspended)
    # Gangs always have all of their pods; the other Jobs share the rest.
    ours.sort(key=lambda claim: not claim.job.gang)
    taken += sum(wave.pods for wave in launched if wave.is_gang)
    taken += found.reserved(found.todo(), launched)
    taken += found.next_gang.completions if found.next_gang else 0
    left = max(0, desired.workers - taken)
    yield from scaling(ours, found.suspensions, observed, left, paused=desired.paused)
    half = {name: stops.why for name, stops in found.suspensions.items() if stops.holds_nodes_idle}
    yield from wave_choice.queueing(desired, found.live, theirs, half)
