"""Shards that nobody can finish: which they are, and what their missing cases become. Pure."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from collector.measurement import Outcome
from collector.worker.exit_codes import ExitCode
from jobs.actions import GiveUp
from jobs.observed import JobView, Observed, PodView

_FAILED_WAVES = 2
_WAVES = 5  # of which one failed: Jobs that ended are not kept for ever
_NO_FAULT = (ExitCode.DONE, ExitCode.STORE, ExitCode.TEMPORARY)

Place = tuple[str, int]  # a Job's name and an index


def given_up(
    observed: Observed, jobs: Sequence[JobView], avoid: Collection[str], left: Sequence[str]
) -> Iterator[GiveUp]:
    """The shards among `left` that failed in as many waves as may be. What failed only on nodes
    that are quarantined is not the shard's fault."""
    pods = _by_place(observed.pods)
    failed_at: dict[str, list[Place]] = defaultdict(list)
    for job in jobs:
        wave = observed.by_hash.get(job.wave)
        if wave is None:
            continue
        for index in sorted(_failed(job, pods)):
            if index < len(wave.indexes) and not _is_nodes_fault(pods[job.name, index], avoid):
                for shard in wave.indexes[index]:
                    failed_at[shard].append((job.name, index))
    if not failed_at:
        return
    tries = Counter(s for wave in observed.waves for s in wave.shards if s in failed_at)
    for shard in left:
        places = failed_at.get(shard, [])
        if len(places) >= _FAILED_WAVES or (places and tries[shard] >= _WAVES):
            yield GiveUp(shard, *_blame([pod for place in places for pod in pods[place]]))


def _by_place(pods: Iterable[PodView]) -> Mapping[Place, list[PodView]]:
    found: dict[Place, list[PodView]] = defaultdict(list)
    for pod in pods:
        found[pod.job, pod.index].append(pod)
    return found


def _failed(job: JobView, pods: Mapping[Place, list[PodView]]) -> frozenset[int]:
    """The indexes that a Job says have failed. One without a budget for each (before 1.29) only
    says that it has failed: then those with a pod that did."""
    if job.state != "Failed" or job.reason != "BackoffLimitExceeded" or job.failed:
        return job.failed
    return frozenset(
        index
        for (name, index), found in pods.items()
        if name == job.name
        and index not in job.succeeded
        and any(pod.phase == "Failed" and pod.exit_code not in _NO_FAULT for pod in found)
    )


def _is_nodes_fault(pods: Sequence[PodView], avoid: Collection[str]) -> bool:
    ended = [pod for pod in pods if pod.phase == "Failed" and pod.node]
    return bool(ended) and all(pod.node in avoid for pod in ended)


def _blame(pods: Sequence[PodView]) -> tuple[Outcome, str]:
    hung = any(pod.exit_code == ExitCode.HANG for pod in pods)
    ends = sorted({f"{pod.reason or 'exit'} {pod.exit_code}" for pod in pods if pod.exit_code})
    reason = f"its workers ended in it, in one wave after another ({', '.join(ends) or 'no word'})"
    return (Outcome.HUNG if hung else Outcome.CRASHED), reason
