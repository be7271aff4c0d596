"""Waves: the shards that one Indexed Job holds, and where each index finds its own.

A wave is an object of the store, and its hash names the Job, so that whoever creates the Job
again creates the same one. Pure: what is committed and what runs is told.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from collector.codec.canonical import decode_object, readable_json, short_hash
from collector.model.plan import PlannedShard

# A wave has four indexes for each worker, so that one slow index holds up little; at least so many,
# so that a small cluster does not make a Job after every few shards; and at most so many, so that
# the status of a Job stays readable, and what has failed comes again soon.
_INDEXES_PER_WORKER = 4
_LEAST_INDEXES, _MOST_INDEXES = 64, 1000
# What a queue gives a Job it gives for the whole of its life: the next one may get more.
QUEUED_S = 900.0


@dataclass(frozen=True)
class Wave:
    """Shards that are launched together."""

    campaign: str
    plan: int
    plan_hash: str
    serial: int  # counts the plan's waves: shards that are launched again make another wave
    indexes: tuple[tuple[str, ...], ...]  # the shards of each index
    avoid: tuple[str, ...] = ()  # nodes that it keeps away from
    # How many pods each shard takes. Those of a gang over several are the wave's indexes, and each
    # has the same shards: all of them run at once, or none gets anywhere.
    pods: int = 1

    @cached_property
    def wave_hash(self) -> str:
        return short_hash(_as_json(self), 12)

    @property
    def job_name(self) -> str:
        """At most 52 characters: Kubernetes appends `-{index}` and a suffix of its own."""
        return f"opmeter-{self.campaign[:27].strip('-')}-{self.wave_hash}"

    @property
    def is_gang(self) -> bool:
        return self.pods > 1

    def at_once(self, cap: int) -> int:
        """How many of its pods may run at once where `cap` may: all of a gang, whatever may."""
        return self.pods if self.is_gang else parallelism(len(self.indexes), cap)

    @cached_property
    def shards(self) -> frozenset[str]:
        return frozenset(shard for index in self.indexes for shard in index)


def wave_size(workers: int) -> int:
    """How many indexes a wave has where there are shards enough.

    Example: 4 workers have waves of 64 indexes, 100 workers of 400, and 1000 workers of 1000.
    """
    return max(_LEAST_INDEXES, min(_MOST_INDEXES, _INDEXES_PER_WORKER * workers))


def cut(
    shards: Sequence[str], per_index: int, workers: int, gangs: Collection[str] = ()
) -> tuple[tuple[str, ...], ...]:
    """The indexes of the next wave: the first shards, `per_index` together, each of the `gangs`
    alone, since it has all devices of its pod. Where all of several indexes could run at once, an
    empty one comes last: without it one of them would have to wait for another (see `parallelism`),
    and take twice as long in all.

    Example: 4 gangs and 20 other shards, on pods of 8 devices: 4 indexes of a gang each, two of 8
    shards and one of 4, and an empty one.
    """
    indexes = _grouped(shards, per_index, gangs)[: wave_size(workers)]
    if 1 < len(indexes) <= workers:
        indexes.append(())
    return tuple(indexes)


def cut_for_queue(
    shards: Sequence[str],
    per_index: int,
    width: int,
    workers: int,
    takes_s: Callable[[Sequence[str]], float],
    gangs: Collection[str] = (),
) -> tuple[tuple[str, ...], ...]:
    """The indexes of the next wave where a queue decides what runs: for `width` pods at once, who
    end within a quarter of an hour by what an index takes, or after one index each; never more of
    them than a fair share for so many workers. It is no gang either: see `cut`."""
    indexes = _grouped(shards, per_index, gangs)
    most = min(_MOST_INDEXES, width * max(1, -(-len(indexes) // workers)))
    ends_s, chosen = [0.0] * width, list[tuple[str, ...]]()
    for index in indexes[:most]:
        end_s = ends_s[0] + takes_s(index)
        if len(chosen) >= width and end_s > QUEUED_S:
            break
        heapq.heapreplace(ends_s, end_s)
        chosen.append(index)
    if 1 < len(chosen) <= width:
        chosen.append(())
    return tuple(chosen)


def _grouped(
    shards: Sequence[str], per_index: int, gangs: Collection[str]
) -> list[tuple[str, ...]]:
    """The shards in their order, so many together; a gang ends what was begun."""
    found: list[list[str]] = []
    alone = True
    for shard in shards:
        if shard in gangs or alone or len(found[-1]) == per_index:
            found.append([])
        found[-1].append(shard)
        alone = shard in gangs
    return [tuple(index) for index in found]


def index_s(shards: Sequence[str], planned: Mapping[str, PlannedShard], at_once: int) -> float:
    """What an index takes by forecast: its gangs, one after the other; then its other shards share
    the pod's devices, so many of which measure at once, and none of them can be shared."""
    known = [planned[shard] for shard in shards if shard in planned]
    gangs_s = sum(shard.predicted_s for shard in known if shard.is_gang)
    each = [shard.predicted_s for shard in known if not shard.is_gang]
    return gangs_s + max(max(each, default=0.0), sum(each) / max(1, at_once))


def parallelism(indexes: int, cap: int) -> int:
    """How many pods of a wave may run at once. Never all of several: from 1.36 on Kubernetes may
    take a Job with completions = parallelism for a gang, which waits for the whole fleet."""
    return max(1, min(indexes - 1, cap))


def wave_to_json(wave: Wave) -> bytes:
    return readable_json(_as_json(wave))


def wave_from_json(data: bytes, *, key: str) -> Wave:
    """The wave of an object. Raises BadInput for anything else."""
    return decode_object(Wave, data, what="a wave", key=key)


def parse_indexes(text: str) -> frozenset[int]:
    """`1,3-5` as the Job's status writes its completed and failed indexes -> {1, 3, 4, 5}."""
    return frozenset(_ranges(part for part in text.split(",") if part))


def _ranges(parts: Iterable[str]) -> Iterable[int]:
    for part in parts:
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _as_json(wave: Wave) -> dict[str, object]:
    return {
        "campaign": wave.campaign,
        "plan": wave.plan,
        "plan_hash": wave.plan_hash,
        "serial": wave.serial,
        "indexes": [list(index) for index in wave.indexes],
        "avoid": list(wave.avoid),
    } | ({"pods": wave.pods} if wave.is_gang else {})


# A node is quarantined when two shards failed on it and on no other node. Pure.
#
# One shard is no proof: it may break every node it meets. At most half of the nodes are
# quarantined, so that a campaign always has somewhere to run. A strike is one witness against one
# node.

# Shards that failed on one node alone, before it is quarantined. One shard proves nothing; a third
# would cost each broken node one more measurement that is lost.
_PROVING_SHARDS = 2


@dataclass(frozen=True, slots=True, order=True)
class Strike:
    """One shard that failed on a node, by the fault of the node."""

    node: str
    shard: str


@dataclass(frozen=True, slots=True)
class Strikes:
    """All strikes of a campaign. None is ever taken back, and adding one again changes nothing.

    Example: of 4 nodes, shards s1, s2 and s3 fail on n1 alone, s4 and s5 on n2 alone, and s6 on n3
    and on n4. n1 and n2 are quarantined, and s6 speaks against nobody. Of 3 nodes only n1 would be:
    half of 3, rounded down, is 1, and n1 has more shards against it.
    """

    seen: frozenset[Strike] = frozenset()

    def plus(self, strikes: Iterable[Strike]) -> "Strikes":
        return Strikes(self.seen | frozenset(strikes))

    def against(self) -> dict[str, frozenset[str]]:
        """Node -> the shards that speak against it: those that failed on this node alone."""
        nodes_of: dict[str, set[str]] = defaultdict(set)
        for strike in self.seen:
            nodes_of[strike.shard].add(strike.node)
        held: dict[str, set[str]] = defaultdict(set)
        for shard, nodes in nodes_of.items():
            if len(nodes) == 1:
                held[next(iter(nodes))].add(shard)
        return {node: frozenset(shards) for node, shards in held.items()}

    def quarantined(self, nodes: Collection[str]) -> frozenset[str]:
        """The nodes to keep away from: at most half of `nodes`, the worst first."""
        against = self.against()
        bad = [n for n, shards in against.items() if len(shards) >= _PROVING_SHARDS and n in nodes]
        bad.sort(key=lambda node: (-len(against[node]), node))
        return frozenset(bad[: len(nodes) // 2])


def strikes_to_json(strikes: Strikes) -> bytes:
    return readable_json({"strikes": [[s.node, s.shard] for s in sorted(strikes.seen)]})


def strikes_from_json(data: bytes, *, key: str) -> Strikes:
    """The strikes of an object. Raises BadInput for anything else."""
    held = decode_object(
        _Held, data, what="the failures counted against a campaign's nodes", key=key
    )
    return Strikes(frozenset(Strike(node, shard) for node, shard in held.strikes))


@dataclass(frozen=True, slots=True)
class _Held:
    strikes: tuple[tuple[str, str], ...]
