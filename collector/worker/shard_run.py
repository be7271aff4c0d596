"""From a shard's cases to its commit: what needs no device first, then session after session."""

import threading
from collections.abc import Callable, Sequence

from collector.measurement import Outcome
from collector.measuring.answers import Unmeasured
from collector.measuring.batches import Batches, killers
from collector.measuring.instrument import Instrument
from collector.measuring.sessions import measure_all
from collector.ops.refusals import FindOperator, refusal_on_ranks
from collector.shard import ShardCase
from collector.worker.answers import ShardAnswers


def complete(
    answers: ShardAnswers,
    instrument: Instrument,
    *,
    find: FindOperator,
    backend: str,
    ranks: int = 1,
    session_s: float,
    stop: threading.Event,
    on_progress: Callable[[int, int], None],
) -> bool:
    """Measure what is missing and commit. True once the shard is committed, by anyone; False
    where `stop` was set first (what was measured is kept).

    Raises SessionsFail, and whatever the store or the instrument raises.
    """
    # Phase 1: what is known already. Somebody may have committed the shard, or answered some cases.
    if answers.is_closed():
        return True
    answers.load()
    # Phase 2: what needs no device. Nobody could launch these cases, or they have killed a session.
    answers.give(_refused(answers.unanswered(), find, backend, ranks))
    answers.give(killers(answers.unanswered(), answers.killed))
    # Phase 3: the device, session after session, until every case has its answer.
    left = {case.record.case_id for case in answers.unanswered()}
    killed = [batch for batch in answers.killed if left.intersection(batch)]
    batches = Batches(session_s, killed, backend)
    if not measure_all(answers, instrument, batches, stop=stop, on_progress=on_progress):
        return False
    # Phase 4: the commit. Where somebody else's came first, ours would leave a manifest that no
    # commit names.
    if not answers.is_closed():
        answers.commit()
    return True


def _refused(
    cases: Sequence[ShardCase], find: FindOperator, backend: str, ranks: int
) -> list[Unmeasured]:
    found = []
    for record in (case.record for case in cases):
        no = refusal_on_ranks(record.case, find, backend, ranks)
        if no is not None:
            found.append(Unmeasured(record, no.outcome, no.reason))
    return found


def give_up(answers: ShardAnswers, outcome: Outcome, reason: str) -> None:
    """Commit a shard that nobody could finish: what nobody answered gets `outcome`."""
    answers.load()
    if answers.is_closed():
        return
    answers.give([Unmeasured(case.record, outcome, reason) for case in answers.unanswered()])
    answers.commit()
