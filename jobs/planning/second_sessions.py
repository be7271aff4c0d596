"""Which cases a plan measures a second time, in separate shards: in other sessions and, with
several devices, mostly on other devices. The differences are the basis of the intervals.

The cases are drawn by a pseudo-random choice that follows from the plan, not from knowledge of a
case, and equally often from each decade of durations. A worker cannot recognise them. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, zip_longest
from math import ceil, floor, fsum, inf, log10
from types import MappingProxyType

from collector.codec.canonical import short_hash
from jobs.campaign.campaign_file import REPEAT_SHARE
from jobs.planning import shard_cutting
from jobs.planning.candidates import (
    PricedCase,
)

_OF_DECADE = 12  # more cases of one decade would add little information
_LEAST_REPEATED = 12  # cases of a small plan, for which the share alone would give one or two
_FEWEST = 4  # fewer cases do not justify a session
_COST_SHARE = 0.03  # of the plan's time in cases
_ALL_SHARE = 0.048  # of the plan's time, with session starts; canaries take the rest
_MOST_SHARDS = 12

NO_LANES: Mapping[str, int] = MappingProxyType({})


def repeated_shards(
    priced: Sequence[PricedCase],
    share: float,
    *,
    total_s: float,
    start_s: float,
    token: object,
    lanes: Mapping[str, int] = NO_LANES,
) -> list[list[PricedCase]]:
    """Return the cases to measure a second time, as the shards that hold them.

    More sessions give more information. With their starts of `start_s` each, they cost at most 4.8
    % of the plan's `total_s`, or more if the share is above the default; each has at least four
    cases. Cases that one device should measure first (`lanes` maps case ids to devices) are
    together, so that the shard can go to another device.

    Example: for a plan of 120 s and a session start of 5 s, the budget of 5.76 s pays for one
    session and cases of 0.76 s."""
    budget_s = _ALL_SHARE * _more(share) * total_s
    cases = repeated_cases(priced, share, token, most_s=budget_s - start_s)
    affordable = int((budget_s - fsum(item.cost_s for item in cases)) / start_s)
    count = min(affordable, _MOST_SHARDS, len(cases) // _FEWEST)
    if not count:
        return []
    by_lane = sorted(cases, key=lambda item: lanes.get(item.candidate.record.case_id, 0))
    if len(set(lanes.values())) > 1:
        ends = [len(cases) * end // count for end in range(count + 1)]
        return [by_lane[begin:end] for begin, end in pairwise(ends)]
    dealt = shard_cutting.longest_first([item.cost_s for item in cases], count)
    return [[cases[at] for at in shard] for shard in dealt]


def repeated_cases(
    priced: Sequence[PricedCase], share: float, token: object, most_s: float = inf
) -> list[PricedCase]:
    """Return the cases to measure a second time, all with the same number of ranks.

    The number is this share of the cases: at least twelve of a small plan, at most twelve per
    decade. They cost no more than 3 % of all and no more than `most_s`. The limits of twelve per
    decade and 3 % grow with a share above the default. `token` determines which cases are chosen.
    """
    able = [item for item in priced if item.launch_s > 0]
    more = _more(share)
    repeat_count = max(ceil(share * len(able)), _LEAST_REPEATED) if share else 0
    left_s = min(_COST_SHARE * more * fsum(item.cost_s for item in priced), most_s)
    chosen: list[PricedCase] = []
    for item in _by_turns(able, ceil(_OF_DECADE * more), token):
        if len(chosen) == repeat_count:
            break
        if item.cost_s <= left_s:
            left_s -= item.cost_s
            chosen.append(item)
    return chosen


def _more(share: float) -> float:
    return max(1.0, share / REPEAT_SHARE)


def _by_turns(able: Sequence[PricedCase], most: int, token: object) -> Iterator[PricedCase]:
    """Yield one case of each decade in turn, shortest decade first, at most `most` of each."""
    decades: dict[int, list[PricedCase]] = {}
    for item in sorted(able, key=lambda item: short_hash([item.candidate.record.case_id, token])):
        decades.setdefault(floor(log10(item.launch_s)), []).append(item)
    turns = zip_longest(*(decades[decade][:most] for decade in sorted(decades)))
    return (item for turn in turns for item in turn if item is not None)
