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
from collections.abc import Sequence

from collector.case import Case
from collector.errors import OpmeterError
from collector.measurement import Library, Outcome
from collector.measuring.answers import SessionAnswers, Unmeasured
from collector.shard import ShardCase
from collector.vocabulary import GRAPH, LAUNCHED_BY, LIBRARY, STATIC

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
