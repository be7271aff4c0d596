"""Which cases a plan measures a second time, in shards of their own: other sessions and, where
there are several, mostly other devices. What they differ by is what intervals are made of.

Chosen by chance that follows from the plan, not by what is known of a case, and equally often from
each decade of durations; whoever measures them cannot tell. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, zip_longest
from math import ceil, floor, fsum, inf, log10
from types import MappingProxyType

from collector.canonical import short_hash
from jobs.campaign.quality import REPEAT_SHARE
from jobs.planning.candidates import PricedCase
from jobs.planning.packing import longest_first

_OF_DECADE = 12  # so many tell what more would not tell much better
_TO_TELL = 12  # so many are wanted of a small plan, which the share alone would give one or two
_FEWEST = 4  # fewer say nothing that pays for a session
_COST_SHARE = 0.03  # of the plan's time in cases
_ALL_SHARE = 0.048  # of the plan's time, with the starts of their sessions: canaries take the rest
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
    """The cases to measure again, as the shards that hold them. The more sessions meet, the more is
    told; but with their starts of `start_s` each they shall cost no more than 4.8 % of the plan's
    `total_s`, more with a share above the usual one, and each has four cases at least. Cases that
    one device should measure first (`lanes` says which, by their ids) stand together, so that the
    shard can go to another one.

    Example: of a plan of 120 s, where a session starts in 5 s, 5.76 s pay for one session and the
    cases of 0.76 s.
    """
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
    dealt = longest_first([item.cost_s for item in cases], count)
    return [[cases[at] for at in shard] for shard in dealt]


def repeated_cases(
    priced: Sequence[PricedCase], share: float, token: object, most_s: float = inf
) -> list[PricedCase]:
    """The cases to measure again, all of as many ranks: this share of them, at least
    twelve of a small plan and at most twelve of a decade, as long as they cost no more than 3 % of
    all, and no more than `most_s`. The two bounds before that grow with a share above the usual
    one. Which cases, follows from `token`."""
    able = [item for item in priced if item.launch_s > 0]
    more = _more(share)
    wanted = max(ceil(share * len(able)), _TO_TELL) if share else 0
    left_s = min(_COST_SHARE * more * fsum(item.cost_s for item in priced), most_s)
    chosen: list[PricedCase] = []
    for item in _by_turns(able, ceil(_OF_DECADE * more), token):
        if len(chosen) == wanted:
            break
        if item.cost_s <= left_s:
            left_s -= item.cost_s
            chosen.append(item)
    return chosen


def _more(share: float) -> float:
    return max(1.0, share / REPEAT_SHARE)


def _by_turns(able: Sequence[PricedCase], most: int, token: object) -> Iterator[PricedCase]:
    """One of each decade after the other, the shortest decade first, at most so many of each."""
    decades: dict[int, list[PricedCase]] = {}
    for item in sorted(able, key=lambda item: short_hash([item.candidate.record.case_id, token])):
        decades.setdefault(floor(log10(item.launch_s)), []).append(item)
    turns = zip_longest(*(decades[decade][:most] for decade in sorted(decades)))
    return (item for turn in turns for item in turn if item is not None)
