"""Which outcomes are believed at once, and which only when they come again."""

from collections.abc import Sequence

from collector.measurement import Outcome

_TRIES = 2
# Outcomes that may have nothing to do with the case: records were lost, or the cases before it
# had left too little of the session's memory. The next session is a fresh one.
TRIED_AGAIN = frozenset({Outcome.PROFILER_LOST, Outcome.OOM})


def is_answered(outcomes: Sequence[Outcome]) -> bool:
    """Whether a case with these outcomes is left as it is."""
    doubtful = sum(outcome in TRIED_AGAIN for outcome in outcomes)
    return len(outcomes) > doubtful or doubtful >= _TRIES
