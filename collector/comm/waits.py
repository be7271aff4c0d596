"""How long the messages of a run wait for other ranks, from captures of several of its ranks.

The ranks of a collective end together: none has its result before the last one has arrived. So the
rank that arrives last has the shortest duration, which is the time of the transfer, and what it
takes another rank beyond that is the wait of that rank. This requires no common clock.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from collector.codec.text import counted
from collector.profiles.transfers import Transfer
from collector.ranks.collective import OPERATIONS

# Ranks of the others do not end together: the sender of a broadcast does not wait for receivers.
_TOGETHER = frozenset(
    OPERATIONS[name].kernel_type
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_single")
)


@dataclass(frozen=True, slots=True)
class MessageWaits:
    """The wait of each rank for each message, in us; 0 for the rank that arrived last.

    `partial` messages lack ranks that were not captured: if one of these arrived last, the waits
    are too short."""

    waits_us: tuple[float, ...]
    messages: int
    ranks: int
    partial: int

    def __str__(self) -> str:
        text = f"{counted(self.messages, 'message')} of {counted(self.ranks, 'rank')}"
        return text + (f", {self.partial} without all of their ranks" if self.partial else "")


def message_waits(ranks: Iterable[Sequence[Transfer]]) -> MessageWaits:
    """Return the waits of the messages that at least two of these ranks recorded; each has the
    messages of one rank, in order. A name that a rank has several times is paired in order."""
    found: dict[tuple[str, str, int], list[Transfer]] = defaultdict(list)
    count = 0
    for transfers in ranks:
        count += 1
        times: dict[tuple[str, str], int] = defaultdict(int)
        for one in transfers:
            if one.kernel_type in _TOGETHER:
                key = (one.group, one.name)
                found[*key, times[key]].append(one)
                times[key] += 1
    shared = [of for of in found.values() if len(of) > 1]
    waits_us = (
        one.duration_us - min(other.duration_us for other in of) for of in shared for one in of
    )
    partial = sum((of[0].group_size or len(of)) > len(of) for of in shared)
    return MessageWaits(tuple(waits_us), len(shared), count, partial)
