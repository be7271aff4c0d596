"""Which cases the next session gets, and whom a session without an answer blames.

A session can die outside of every case: in the profiler, at a limit, for memory between cases.
Then some case of its batch did it, nobody knows which, and the whole batch again would end the
same way. The batch is halved until one case is alone with its session; that one is to blame.
Sessions that never come as far as a case blame the node, and so does one with a single case of
whose launches the profiler leaves no record that can be read.

A session can also take its worker with it: where memory runs out, the kernel may kill a container
whole. The next attempt finds what it was about to run, and goes on halving from there.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from collector.codec.errors import OpmeterError
from collector.model.case import Case
from collector.model.manifest import Usage
from collector.model.measurement import Library, Measurement, Outcome, Provenance
from collector.model.plan import AGAIN_SHARE, ShardCase
from collector.model.record import CaseRecord
from collector.model.vocabulary import GRAPH, LAUNCHED_BY, LIBRARY, STATIC
from collector.quality.canaries import is_doubted

# What is said of cases: by a session that ran them, or without one.


@dataclass(frozen=True, slots=True)
class RawRecords:
    """The files that a session left; `group` tells the further passes of an NPU's session apart,
    one for each further group of counters."""

    summary: Path
    journal: Path
    group: str = ""


@dataclass(frozen=True, slots=True)
class SessionAnswers:
    """What one session gave: its measurements, and the files they were made from.

    `began` says whether it came as far as a case, `reason` why it ended before it was complete,
    `unread` why nothing could be read of what the profiler had recorded.
    """

    measurements: tuple[Measurement, ...]
    raw: tuple[RawRecords, ...]
    usage: Usage
    began: bool
    reason: str
    unread: str = ""


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """How a case ended that no session has a measurement of: it was refused, blamed for the end of
    its session, or given up."""

    record: CaseRecord
    outcome: Outcome
    reason: str

    def certificate(self, provenance: Provenance, cache: str) -> Measurement:
        """This as a measurement without a number."""
        record = self.record
        return Measurement(
            record.case_id,
            record.case.kernel_type,
            self.outcome,
            self.reason,
            provenance,
            cache=cache,
        )


_FAILED_STARTS = 3  # in a row, after which the node is to blame
_KILLED_TIMES = 2  # a worker can be killed for something else, once


class SessionsFail(OpmeterError):
    """Session after session ended before its first case: something on this node is wrong."""


class Batches:
    """Cuts what is left to measure into sessions; remembers which cases are suspected."""

    def __init__(self, session_s: float, killed: Sequence[Sequence[str]] = (), backend: str = ""):
        """`killed` are the case ids of sessions that took their workers with them."""
        self._session_s = session_s
        self._is_npu = backend == "npu"
        self._suspects = frozenset(case_id for batch in killed for case_id in batch)
        # How many suspects share a session.
        self._most = max(1, min(map(len, killed)) // 2) if killed else 0
        self._failed_starts = 0

    def next(self, todo: Sequence[ShardCase]) -> list[ShardCase]:
        """The cases of the next session: what is left of the suspects, else as many as fit."""
        suspects = [case for case in todo if case.record.case_id in self._suspects]
        if suspects:
            return self._alike(suspects)[: self._most]
        return next_session(self._alike(todo), self._session_s)

    def _alike(self, todo: Sequence[ShardCase]) -> list[ShardCase]:
        """The cases that one process can measure: of CANN's own kernels, or of those that serve;
        on an NPU of kernels built for one shape, or of the others."""
        asked = [self._process_of(case.record.case) for case in todo]
        return [case for case, one in zip(todo, asked, strict=True) if one == asked[0]]

    def _process_of(self, case: Case) -> tuple[bool, bool]:
        of_cann = case.attribute(LIBRARY) == Library.CANN
        return of_cann, self._is_npu and asks_for_static_kernel(case)

    def learn(self, batch: Sequence[ShardCase], answers: SessionAnswers) -> Unmeasured | None:
        """Take in how the session of a batch ended: what that says of a case, if it is known which
        is to blame.

        Raises SessionsFail where one session after the other does not begin, or where even that
        of a single case leaves no records.
        """
        if answers.measurements:
            self._failed_starts = 0
            return None
        if not answers.began:
            self._failed_starts += 1
            if self._failed_starts == _FAILED_STARTS:
                raise SessionsFail(
                    f"{_FAILED_STARTS} sessions in a row ended before their first case; "
                    f"the last: {answers.reason}"
                )
            return None
        self._failed_starts = 0
        if answers.unread and len(batch) == 1:
            case = batch[0].record.case.describe()
            raise SessionsFail(f"{case}, measured alone, left no recording: {answers.unread}")
        self._suspects = frozenset(case.record.case_id for case in batch)
        self._most = max(1, len(batch) // 2)
        if len(batch) > 1:
            return None
        return Unmeasured(batch[0].record, Outcome.CRASHED, answers.reason)


def asks_for_static_kernel(case: Case) -> bool:
    """Whether an NPU is to build the case's kernel for its shapes, which CANN then takes for every
    call of them. A graph has kernels of its own."""
    return case.op_state == STATIC and case.attribute(LAUNCHED_BY) != GRAPH


def killers(todo: Sequence[ShardCase], killed: Sequence[Sequence[str]]) -> list[Unmeasured]:
    """The cases that have killed their worker: alone in such a session, and in another before."""
    times = Counter(case_id for batch in killed for case_id in batch)
    alone = {batch[0] for batch in killed if len(batch) == 1}
    why = "{} workers died measuring it, one of them measuring it alone"
    return [
        Unmeasured(case.record, Outcome.CRASHED, why.format(times[case_id]))
        for case in todo
        if (case_id := case.record.case_id) in alone and times[case_id] >= _KILLED_TIMES
    ]


def next_session(todo: Sequence[ShardCase], session_s: float) -> list[ShardCase]:
    """The cases of one session, in order: at least one, and about `session_s` by forecast."""
    batch: list[ShardCase] = []
    predicted_s = 0.0
    for case in todo:
        if batch and predicted_s + case.predicted_s > session_s:
            break
        batch.append(case)
        predicted_s += case.predicted_s
    return batch


# Which outcomes are believed at once, which only when they come again, and which numbers are
# measured again because something else had the device, or because it did not stay the same.

_TRIES = 2
_MOST = 3  # tries of a case that is doubted each time
# Outcomes that may have nothing to do with the case: records were lost, or the cases before it
# had left too little of the session's memory. The next session is a fresh one.
TRIED_AGAIN = frozenset({Outcome.PROFILER_LOST, Outcome.OOM})


def is_answered(outcomes: Sequence[Outcome]) -> bool:
    """Whether a case with these outcomes is left as it is."""
    doubtful = sum(outcome in TRIED_AGAIN for outcome in outcomes)
    return len(outcomes) > doubtful or doubtful >= _TRIES


def worth_again(
    cases: Sequence[ShardCase], tried: Mapping[str, Sequence[Measurement]]
) -> list[ShardCase]:
    """The answered cases that are measured again, in their order: those whose every number was
    disturbed, or of a session that drifted, a few times each. By forecast that takes a bounded
    share of all the cases' time, so the shortest come first. Where it is more than half of the
    cases, or where trying again has helped none, the machine is always busy, and none is tried.
    `tried` is by case id."""
    numbers = [
        (case, [m for m in tried.get(case.record.case_id, ()) if m.is_good]) for case in cases
    ]
    again = [m for _, good in numbers for m in good[1:]]
    doubted = [case for case, good in numbers if good and all(map(is_doubted, good))]
    if 2 * len(doubted) > len(cases) or (again and all(map(is_doubted, again))):
        return []
    left_s = AGAIN_SHARE * sum(case.predicted_s for case in cases)
    left_s -= sum(case.predicted_s * len(good[1:]) for case, good in numbers)
    doubted = [case for case in doubted if len(tried[case.record.case_id]) < _MOST]
    chosen = set()
    for case in sorted(doubted, key=lambda case: case.predicted_s):
        left_s -= case.predicted_s
        if left_s < 0:
            break
        chosen.add(case.record.case_id)
    return [case for case in doubted if case.record.case_id in chosen]
