"""When a whole Job is better stopped for a while: none of its pods gets anywhere. Pure.

A pod that fares worse than the others of its Job is its node's matter, and stops nobody else. What
counts is what happened since the Job last began: else what stopped it once would for ever.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from collector.worker.exit_codes import ExitCode
from jobs.observed import JobView, PodView
from jobs.troubles import not_starting, runs_anywhere
from jobs.waves import Wave

HOLD_S = 900.0  # before such a Job is tried again
_RECENT_S = 3600.0
_REFUSALS = 3  # pods of one Job that could not reach the store
_FEW = 3  # indexes that failed by their nodes' fault


@dataclass(frozen=True, slots=True)
class Brake:
    """Why a Job is stopped, as an Event's reason and in words."""

    reason: str
    why: str


def brake(
    job: JobView, wave: Wave, pods: Sequence[PodView], avoid: Collection[str]
) -> Brake | None:
    """Why a Job that is not suspended should be; `pods` are its own."""
    if job.suspended:
        return None
    stuck = [pod for pod in pods if not_starting(pod)]
    if stuck and not runs_anywhere(job, pods):
        why = f"{stuck[0].name} does not start: {not_starting(stuck[0])}"
        return Brake("NotStarting", why)
    return _store_brake(job, pods) or _node_brake(job, wave, pods, avoid)


def refused_by_store(job: JobView, pods: Sequence[PodView]) -> Sequence[PodView]:
    """The pods that lately waited for the store in vain; none while that may be chance."""
    found = [pod for pod in _recent(job, pods) if pod.exit_code == ExitCode.STORE]
    return found if len(found) >= _REFUSALS else ()


def _recent(job: JobView, pods: Sequence[PodView]) -> Sequence[PodView]:
    since_s = min(job.in_state_s, _RECENT_S)
    return [pod for pod in pods if pod.phase == "Failed" and pod.in_state_s < since_s]


def _store_brake(job: JobView, pods: Sequence[PodView]) -> Brake | None:
    refused = refused_by_store(job, pods)
    nodes = {pod.node for pod in refused}
    there = nodes | {pod.node for pod in pods if pod.phase == "Running"}
    if 2 * len(nodes) <= len(there):
        return None
    why = f"the store cannot be reached: {len(refused)} of its workers waited for it in vain"
    return Brake("StoreRefusesWorkers", why)


def _node_brake(
    job: JobView, wave: Wave, pods: Sequence[PodView], avoid: Collection[str]
) -> Brake | None:
    """Most of it fails, on whatever node: something has changed under the campaign."""
    by_node = [
        pod
        for pod in _recent(job, pods)
        if (pod.refused or pod.exit_code == ExitCode.NODE) and pod.node not in avoid
    ]
    blamed = {pod.index for pod in by_node}
    well = {index for index in job.succeeded if index < len(wave.indexes) and wave.indexes[index]}
    well |= {pod.index for pod in pods if pod.phase == "Running"} - blamed
    if len(blamed) <= max(_FEW, len(well)):
        return None
    last = min(by_node, key=lambda pod: pod.in_state_s)
    words = last.words or last.reason or f"exit {last.exit_code}"
    return Brake(
        "NodesFail",
        f"most of it fails on whatever node it meets, as {last.name} on {last.node}: {words}",
    )
