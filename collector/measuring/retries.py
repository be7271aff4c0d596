"""Which outcomes are believed at once, which only when they come again, and which numbers are
measured again because something else had the device, or because it did not stay the same."""

from collections.abc import Mapping, Sequence

from collector.measurement import Measurement, Outcome
from collector.plan import AGAIN_SHARE
from collector.quality.canaries import is_doubted
from collector.shard import ShardCase

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
