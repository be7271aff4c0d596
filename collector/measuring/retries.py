"""Which outcomes are believed at once, which only when they come again, and which numbers are
measured again because something else had the device."""

from collections.abc import Mapping, Sequence

from collector.measurement import Measurement, Outcome
from collector.plan import AGAIN_SHARE
from collector.shard import ShardCase

_TRIES = 2
_TRIES_OF_DISTURBED = 3
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
    disturbed, a few times each. By forecast that takes a bounded share of all the cases' time, so
    the shortest come first. `tried` is by case id."""
    left_s = AGAIN_SHARE * sum(case.predicted_s for case in cases)
    disturbed = []
    for case in cases:
        measurements = tried.get(case.record.case_id, ())
        left_s -= case.predicted_s * sum(m.is_disturbed for m in measurements[1:])
        good = [m for m in measurements if m.is_good]
        is_clean = any(not m.is_disturbed for m in good)
        if good and not is_clean and len(measurements) < _TRIES_OF_DISTURBED:
            disturbed.append(case)
    chosen = set()
    for case in sorted(disturbed, key=lambda case: case.predicted_s):
        left_s -= case.predicted_s
        if left_s < 0:
            break
        chosen.add(case.record.case_id)
    return [case for case in disturbed if case.record.case_id in chosen]
