"""Shards that nobody can finish: which they are, and what their missing cases become. Pure.

A shard is to blame by the word of workers that met it, and by nothing else. A pod that its node
refused has met none; and where many shards fail by their nodes' fault alone, the nodes have
changed under the campaign: those are tried again now and then, however long that takes.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from collector.measurement import Outcome
from collector.worker.exit_codes import ExitCode
from jobs.actions import Announce, GiveUp
from jobs.observed import JobView, Observed, PodView
from jobs.waves import Wave

_FAILED_WAVES = 2
_WAVES = 5  # of which one failed: Jobs that ended are not kept for ever
# So many indexes may fail by their nodes' fault, and be to blame: of a Job, for each that ends
# well, and of a plan, in a wave of nothing but what has failed before.
_FEW, _OF_WELL, _OF_PLAN = 3, 0.1, 0.01
_REST_S = 900.0
_NO_FAULT = (ExitCode.DONE, ExitCode.STORE, ExitCode.TEMPORARY)

Place = tuple[str, int]  # a Job's name and an index


@dataclass(frozen=True, slots=True)
class Verdict:
    """`given_up` failed in as many waves as may be. `unproven` did so too, but it need not be their
    fault, as `words` of one of their pods say; those of them that failed a moment ago rest."""

    given_up: tuple[GiveUp, ...] = ()
    unproven: tuple[str, ...] = ()
    resting: frozenset[str] = frozenset()
    words: str = ""

    def warnings(self) -> Iterable[Announce]:
        """What a person should know of it."""
        if self.unproven:
            yield Announce(
                "NobodyMeasures",
                f"{len(self.unproven)} shards (as {self.unproven[0]}) fail wherever they go, and "
                f"the nodes are blamed: {self.words or 'their pods say nothing'}. None is given "
                "up; they are tried again every quarter of an hour: compare driver, firmware and "
                "device plugin with the plan's stack (opmeter doctor --cluster)",
                "shards",
            )


def judge(
    observed: Observed,
    jobs: Sequence[JobView],
    avoid: Collection[str],
    left: Sequence[str],
    indexes: int,
) -> Verdict:
    """Which of the shards `left` are given up. What failed only on nodes that are quarantined is
    not the shard's fault. `indexes` is how many the whole plan makes."""
    pods = _by_place(observed.pods)
    failed_at: dict[str, list[Place]] = defaultdict(list)
    doubted: set[Place] = set()
    for failure in _failures(observed, jobs, avoid, pods):
        by_nodes = {place for place in failure.places if _blames_node(pods[place])}
        few = max(_few(failure, failed_at, indexes), _OF_WELL * failure.well)
        doubted |= by_nodes if len(by_nodes) > few else set()
        for place in failure.places:
            if failure.is_settled or place not in by_nodes:
                for shard in failure.wave.indexes[place[1]]:
                    failed_at[shard].append(place)
    tries = Counter(s for wave in observed.waves for s in wave.shards if s in failed_at)
    given_up, unproven = [], []
    for shard in left:
        places = failed_at.get(shard, [])
        counted = [p for p in places if p not in doubted and _has_word(pods[p])]
        if len(counted) >= _FAILED_WAVES or (counted and tries[shard] >= _WAVES):
            given_up.append(GiveUp(shard, *_blame([pod for p in counted for pod in pods[p]])))
        elif len(places) >= _FAILED_WAVES:
            unproven.append(shard)
    found = {shard: [pod for p in failed_at[shard] for pod in pods[p]] for shard in unproven}
    return Verdict(
        tuple(given_up),
        tuple(unproven),
        frozenset(s for s, of in found.items() if any(p.in_state_s < _REST_S for p in of)),
        next((pod.words or pod.reason for of in found.values() for pod in of), ""),
    )


@dataclass(frozen=True, slots=True)
class _Failure:
    """The indexes of a Job that have failed, and how many have not. Settled: none of it can turn
    out otherwise."""

    wave: Wave
    places: tuple[Place, ...]
    well: int
    is_settled: bool


def _few(failure: _Failure, failed_at: Collection[str], indexes: int) -> int:
    """How many indexes may fail by their nodes' fault, and be to blame. A wave of nothing but what
    has failed before tells less of the nodes."""
    is_known = all(shard in failed_at for shard in failure.wave.shards)
    return max(_FEW, int(_OF_PLAN * indexes)) if is_known else _FEW


def _by_place(pods: Iterable[PodView]) -> Mapping[Place, list[PodView]]:
    found: dict[Place, list[PodView]] = defaultdict(list)
    for pod in pods:
        found[pod.job, pod.index].append(pod)
    return found


def _failures(
    observed: Observed,
    jobs: Iterable[JobView],
    avoid: Collection[str],
    pods: Mapping[Place, list[PodView]],
) -> Iterator[_Failure]:
    """Of each Job, the oldest first."""
    known = [job for job in jobs if job.wave in observed.by_hash]
    for job in sorted(known, key=lambda job: observed.by_hash[job.wave].serial):
        wave = observed.by_hash[job.wave]
        failed = [i for i in sorted(_failed(job, pods)) if i < len(wave.indexes)]
        places = [(job.name, i) for i in failed]
        ended = job.succeeded | job.failed
        yield _Failure(
            wave,
            tuple(place for place in places if not _is_nodes_fault(pods[place], avoid)),
            sum(bool(wave.indexes[i]) for i in job.succeeded if i < len(wave.indexes)),
            bool(job.state)
            or all(
                i in ended or observed.committed.issuperset(shards)
                for i, shards in enumerate(wave.indexes)
            ),
        )


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


def _has_word(pods: Iterable[PodView]) -> bool:
    """Whether a worker itself says that it failed."""
    return any(pod.exit_code is not None and pod.exit_code not in _NO_FAULT for pod in pods)


def _blames_node(pods: Sequence[PodView]) -> bool:
    """Whether all that is said of a place is that nodes are to blame."""
    codes = {pod.exit_code for pod in pods} - {None, *_NO_FAULT}
    return codes <= {ExitCode.NODE} and any(p.refused or p.exit_code for p in pods)


def _blame(pods: Sequence[PodView]) -> tuple[Outcome, str]:
    hung = any(pod.exit_code == ExitCode.HANG for pod in pods)
    ends = sorted({f"{pod.reason or 'exit'} {pod.exit_code}" for pod in pods if pod.exit_code})
    reason = f"its workers ended in it, in one wave after another ({', '.join(ends)})"
    return (Outcome.HUNG if hung else Outcome.CRASHED), reason
