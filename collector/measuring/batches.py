"""The cases of the next session, and the case to blame for a session without results.

A session can die outside of every case: in the profiler, at a limit, or for memory between cases.
Then an unknown case of its batch is the cause, and the same batch would end in the same way. The
batch is halved until one case is alone in its session; that case is to blame. Sessions that never
reach a case blame the node, or the image if Python's own errors end them, and a session with a
single case whose launches leave no readable profiler record blames the node.

A session can also end its worker: if memory runs out, the kernel may kill a whole container. The
next attempt reads which cases the worker was about to run, and continues to halve from there.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from collector.codec.errors import OpmeterError
from collector.model.case import Case
from collector.model.manifest import Usage
from collector.model.measurement import Library, Measurement, Outcome, Provenance
from collector.model.plan import AGAIN_SHARE, MeasureSettings, ShardCase
from collector.model.record import CaseRecord
from collector.model.vocabulary import LIBRARY
from collector.ops.refusals import requires_static_kernel
from collector.quality.canaries import is_suspect
from collector.replay.disk_space import most_launches
from collector.replay.lock import concurrency_limit


@dataclass(frozen=True, slots=True)
class RawRecords:
    """The files of a session; `group` identifies the further passes of an NPU's session, one for
    each further group of counters."""

    summary: Path
    journal: Path
    group: str = ""


@dataclass(frozen=True, slots=True)
class SessionResults:
    """The results of one session: its measurements, and the files that they were made from.

    `began` is true if it reached a case, `reason` is why it ended early, `unread` is why the
    profiler's recording could not be read."""

    measurements: tuple[Measurement, ...]
    raw: tuple[RawRecords, ...]
    usage: Usage
    began: bool
    reason: str
    unread: str = ""


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """The outcome of a case that no session measured: it was refused, blamed for the end of its
    session, or given up."""

    record: CaseRecord
    outcome: Outcome
    reason: str

    def certificate(self, provenance: Provenance, cache: str) -> Measurement:
        """Return a measurement without a duration."""
        named = (self.record.case_id, self.record.case.kernel_type, self.outcome, self.reason)
        return Measurement(*named, provenance, cache=cache)


@dataclass(frozen=True, slots=True)
class SessionSize:
    """The limits of a session: its duration by forecast and, under msprof, its launches, whose
    records must fit on the disk of `scratch` and into memory when they are read."""

    session_s: float
    measure: MeasureSettings
    scratch: Path

    def most_launches(self) -> int:
        """Return how many launches the next session may have, with the disk as it is now."""
        return most_launches(self.scratch, concurrency_limit() or 1)


_FAILED_STARTS = 3  # in a row, after which the node is to blame
_EQUAL_STARTS = 2  # in a row that failed in the same way: a third would, too
# Errors of a program that does not suit its libraries, at the end of a session's output. An error
# of a device or of a driver is a RuntimeError, or a refusal of the session itself.
_OF_SOFTWARE = re.compile(
    r"\b(?:AttributeError|ImportError|ModuleNotFoundError|NameError|TypeError): "
)
_KILLED_TIMES = 2  # a single kill may have another cause


class SessionsFail(OpmeterError):
    """Several sessions in a row ended before their first case: this node has a problem."""


class SoftwareFails(SessionsFail):
    """They ended with an error of the software, which every worker of the image has."""


class Batches:
    """Divides the remaining cases into sessions, and remembers the suspect cases."""

    def __init__(self, size: SessionSize, killed: Sequence[Sequence[str]] = (), backend: str = ""):
        """`killed` are the case ids of sessions that ended with their workers."""
        self._size = size
        self._is_npu = backend == "npu"
        self._suspects = frozenset(case_id for batch in killed for case_id in batch)
        # The number of suspects of a session.
        self._most = max(1, min(map(len, killed)) // 2) if killed else 0
        self._failed_starts: list[str] = []  # the reasons, in a row

    def next(self, todo: Sequence[ShardCase]) -> list[ShardCase]:
        """Return the cases of the next session: the remaining suspects, or as many as fit."""
        suspects = [case for case in todo if case.record.case_id in self._suspects]
        if suspects:
            return self._alike(suspects)[: self._most]
        most = self._size.most_launches() if self._is_npu else inf
        return next_session(self._alike(todo), self._size, most)

    def _alike(self, todo: Sequence[ShardCase]) -> list[ShardCase]:
        """Return the cases that one process can measure: of CANN's own kernels, or of those that
        serve; on an NPU, of kernels built for one shape, or of the others."""

        def process_of(case: Case) -> tuple[bool, bool]:
            of_cann = case.attribute(LIBRARY) == Library.CANN
            return of_cann, self._is_npu and requires_static_kernel(case)

        first = process_of(todo[0].record.case)
        return [case for case in todo if process_of(case.record.case) == first]

    def learn(self, batch: Sequence[ShardCase], results: SessionResults) -> Unmeasured | None:
        """Record how the session of a batch ended; return the outcome of a case if it is known to
        be the cause.

        Raises SessionsFail if two sessions in a row do not begin for the same reason, or several
        for any, or if even the session of a single case leaves no records."""
        if results.measurements:
            self._failed_starts.clear()
            return None
        if not results.began:
            self._failed_starts.append(results.reason)
            self._check_starts()
            return None
        self._failed_starts.clear()
        if results.unread and len(batch) == 1:
            case = batch[0].record.case.describe()
            raise SessionsFail(f"{case}, measured alone, left no recording: {results.unread}")
        self._suspects = frozenset(case.record.case_id for case in batch)
        self._most = max(1, len(batch) // 2)
        if len(batch) > 1:
            return None
        return Unmeasured(batch[0].record, Outcome.CRASHED, results.reason)

    def _check_starts(self) -> None:
        """Raise SessionsFail if another session would not begin either."""
        starts = self._failed_starts
        are_equal = len(starts) >= _EQUAL_STARTS and len(set(starts[-_EQUAL_STARTS:])) == 1
        if not are_equal and len(starts) < _FAILED_STARTS:
            return
        how = "in the same way" if are_equal else "the last"
        words = f"{len(starts)} sessions in a row ended before their first case; {how}: "
        is_software = are_equal and _OF_SOFTWARE.search(starts[-1])
        raise (SoftwareFails if is_software else SessionsFail)(
            f"{words}{starts[-1]}; `opmeter doctor` checks this machine"
        )


def cases_that_killed(
    todo: Sequence[ShardCase], killed: Sequence[Sequence[str]]
) -> list[Unmeasured]:
    """Return the cases that killed their worker: alone in a session, and in an earlier session."""
    times = Counter(case_id for batch in killed for case_id in batch)
    alone = {batch[0] for batch in killed if len(batch) == 1}
    why = "{} workers died measuring it, one of them measuring it alone"
    return [
        Unmeasured(case.record, Outcome.CRASHED, why.format(times[case_id]))
        for case in todo
        if (case_id := case.record.case_id) in alone and times[case_id] >= _KILLED_TIMES
    ]


def next_session(
    todo: Sequence[ShardCase], size: SessionSize, most_launches: float = inf
) -> list[ShardCase]:
    """Return the cases of one session, in order: at least one, about `size.session_s` by forecast
    and no more than `most_launches`."""
    batch: list[ShardCase] = []
    left_s, left = size.session_s, most_launches
    for case in todo:
        left_s -= case.predicted_s
        left -= size.measure.most_launches(len(case.record.before))
        if batch and (left_s < 0 or left < 0):
            break
        batch.append(case)
    return batch


# Outcomes that are accepted at once, outcomes that are accepted only if they occur again, and
# measurements that are repeated because of a disturbance or of drift.

_TRIES = 2
_MOST = 3  # tries of a case that is suspect each time
# Outcomes that may not depend on the case: records were lost, or earlier cases left too little of
# the session's memory. The next session is a fresh one.
TRIED_AGAIN = frozenset({Outcome.PROFILER_LOST, Outcome.OOM})


def is_final(outcomes: Sequence[Outcome]) -> bool:
    """Return whether a case with these outcomes is final."""
    suspect = sum(outcome in TRIED_AGAIN for outcome in outcomes)
    return len(outcomes) > suspect or suspect >= _TRIES


def cases_to_repeat(
    cases: Sequence[ShardCase], tried: Mapping[str, Sequence[Measurement]]
) -> list[ShardCase]:
    """Return the measured cases to measure again, in their order: those whose every measurement was
    disturbed, had too many outliers, or was of a session that drifted, a few times each. Their
    forecast time is a bounded share of all the cases' time, so the shortest come first. If they are
    more than half of the cases, or if no repetition has helped, the machine is always busy, and
    none is repeated. `tried` is by case id."""
    numbers = [
        (case, [m for m in tried.get(case.record.case_id, ()) if m.is_good or is_suspect(m)])
        for case in cases
    ]
    again = [m for _, good in numbers for m in good[1:]]
    suspect = [case for case, good in numbers if good and all(map(is_suspect, good))]
    if 2 * len(suspect) > len(cases) or (again and all(map(is_suspect, again))):
        return []
    left_s = AGAIN_SHARE * sum(case.predicted_s for case in cases)
    left_s -= sum(case.predicted_s * len(good[1:]) for case, good in numbers)
    suspect = [case for case in suspect if len(tried[case.record.case_id]) < _MOST]
    chosen = set()
    for case in sorted(suspect, key=lambda case: case.predicted_s):
        left_s -= case.predicted_s
        if left_s < 0:
            break
        chosen.add(case.record.case_id)
    return [case for case in suspect if case.record.case_id in chosen]
