"""A shard is given up when it failed in two waves, by the word of workers that met it. Pure.

A pod that its node refused met no shard, and proves nothing. A worker that blames its node, or
that cannot say who is to blame (exit 44 or 1), counts against its shard only while few indexes of
its Job end so. Where many do, something has changed under the campaign: those shards are tried
again every quarter of an hour, however long that takes.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from collector.counting import counted
from collector.measurement import Outcome
from collector.worker.exit_codes import NOT_THE_SHARDS, ExitCode
from jobs.decide.actions import Announce, GiveUp
from jobs.decide.observed import JobView, Observed, PodView
from jobs.objects.waves import Wave

# A shard must fail in so many waves. A wave tries an index several times already; the second wave
# is another Job, on whatever nodes are there then.
_LEAST_FAILED_WAVES = 2
# After so many waves one that failed is enough: Kubernetes does not keep the Jobs that ended, and
# the other failures may be forgotten.
_MOST_TRIED_WAVES = 5
# So many indexes of a Job may blame their nodes, and their shards still be to blame, whatever the
# others do: a plan has a few shards that break a device.
_FEW_INDEXES = 3
# For each index that ends well so many more: in a Job of a thousand, a hundred bad shards are few.
_FEW_SHARE_OF_WELL = 0.1
# In a wave of nothing but what has failed before nothing is expected to end well: so many of the
# indexes of the whole plan.
_FEW_SHARE_OF_PLAN = 0.01
# Before what is nobody's proven fault is tried again: as long as a suspended Job rests.
_REST_S = 900.0
# Who ends so says nothing against its shard.
_NO_FAULT = (ExitCode.DONE, ExitCode.STORE, ExitCode.PEERS, ExitCode.TEMPORARY)

Place = tuple[str, int]  # a Job's name and an index


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is said of the shards that failed."""

    given_up: tuple[GiveUp, ...] = ()  # they failed in two waves, and it is their fault
    unproven: tuple[str, ...] = ()  # they failed in two waves, and it need not be their fault
    resting: frozenset[str] = frozenset()  # of the unproven those that failed a moment ago
    words: str = ""  # what a pod of an unproven shard says

    def warnings(self) -> Iterable[Announce]:
        """Return the warnings for the user."""
        if self.unproven:
            shards = counted(len(self.unproven), "shard")
            yield Announce(
                "NobodyMeasures",
                f"{shards} (such as {self.unproven[0]}) failed "
                "on every node, so the nodes are suspect: "
                f"{self.words or 'their pods report no reason'}. They are not given up but retried "
                "every 15 minutes: compare driver, firmware and device plugin with the "
                "plan's stack (opmeter doctor --cluster)",
                "shards",
            )


def judge(
    observed: Observed,
    jobs: Sequence[JobView],
    avoid: Collection[str],
    left: Sequence[str],
    indexes: int,
) -> Verdict:
    """Which of the shards `left` are given up. `indexes` is how many the whole plan makes. What
    failed only on quarantined nodes (`avoid`) is not the fault of its shard.

    Example: 3 indexes fail with exit 44, 40 pass, and the 3 fail again in the next wave: their
    shards are given up. If 5 fail, 40 pass, and the 5 fail again, no shard is: 5 is more than 3,
    and more than a tenth of 40. The 5 are unproven, and are tried again.
    """
    pods = _by_place(pod for job in jobs for pod in observed.pods_of(job))
    failed_at: dict[str, list[Place]] = defaultdict(list)
    doubted: set[Place] = set()
    for failure in _failures(observed, jobs, avoid, pods):
        by_nodes = {place for place in failure.places if _blames_no_shard(pods[place])}
        few = max(_few(failure, failed_at, indexes), _FEW_SHARE_OF_WELL * failure.well)
        doubted |= by_nodes if len(by_nodes) > few else set()
        for place in failure.places:
            # Who blames its node waits for the others of its Job: they tell what that is worth.
            if failure.is_settled or place not in by_nodes:
                for shard in failure.wave.indexes[place[1]]:
                    failed_at[shard].append(place)
    tries = Counter(s for wave in observed.waves for s in wave.shards if s in failed_at)
    given_up, unproven = [], []
    for shard in left:
        places = failed_at.get(shard, [])
        proofs = [p for p in places if p not in doubted and _has_word(pods[p])]
        is_old = tries[shard] >= _MOST_TRIED_WAVES
        if len(proofs) >= _LEAST_FAILED_WAVES or (proofs and is_old):
            given_up.append(GiveUp(shard, *_blame([pod for p in proofs for pod in pods[p]])))
        elif len(places) >= _LEAST_FAILED_WAVES:
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
    """The indexes of a Job that have failed."""

    wave: Wave
    places: tuple[Place, ...]  # without those whose every pod ended on a quarantined node
    well: int  # the indexes that ended well, but for an empty one
    is_settled: bool  # no index of the Job can end otherwise any more


def _few(failure: _Failure, failed_at: Collection[str], indexes: int) -> int:
    """How many indexes are few, whatever ended well. A wave of nothing but what has failed before
    tells less of the nodes.

    Example: of a plan of 1000 indexes 10 fail again, in a wave of their own: that is one in a
    hundred, and their shards are to blame. 11 would not be.
    """
    is_known = all(shard in failed_at for shard in failure.wave.shards)
    return max(_FEW_INDEXES, int(_FEW_SHARE_OF_PLAN * indexes)) if is_known else _FEW_INDEXES


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
    """What failed in each Job, the oldest first: so a wave knows what has failed before it."""
    known = [job for job in jobs if job.wave in observed.by_hash]
    for job in sorted(known, key=lambda job: observed.by_hash[job.wave].serial):
        wave = observed.by_hash[job.wave]
        failed = [i for i in sorted(_failed(job, pods)) if i < len(wave.indexes)]
        # A gang fails as one, by whichever of its nodes.
        places = [(job.name, i) for i in (failed[:1] if wave.is_gang else failed)]
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
    """The indexes that a Job says have failed. Before Kubernetes 1.29 a Job only says that it has
    failed itself: then those indexes failed that have a failed pod."""
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
    """Whether every pod of a place that failed did so on a quarantined node."""
    ended = [pod for pod in pods if pod.phase == "Failed" and pod.node]
    return bool(ended) and all(pod.node in avoid for pod in ended)


def _has_word(pods: Iterable[PodView]) -> bool:
    """Whether a worker itself says that it failed."""
    return any(pod.exit_code is not None and pod.exit_code not in _NO_FAULT for pod in pods)


def _blames_no_shard(pods: Sequence[PodView]) -> bool:
    """Whether all that is said of a place is exit 44 (its node) or 1 (nobody known), or that the
    node refused the pod."""
    codes = {pod.exit_code for pod in pods} - {None, *_NO_FAULT}
    return codes <= NOT_THE_SHARDS and any(p.refused or p.exit_code for p in pods)


def _blame(pods: Sequence[PodView]) -> tuple[Outcome, str]:
    """What the missing cases of a shard become, and why: hung where one worker says so."""
    hung = any(pod.exit_code == ExitCode.HANG for pod in pods)
    ends = sorted({f"{pod.reason or 'exit'} {pod.exit_code}" for pod in pods if pod.exit_code})
    reason = f"its workers failed in it in consecutive waves ({', '.join(ends)})"
    return (Outcome.HUNG if hung else Outcome.CRASHED), reason
