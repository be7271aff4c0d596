"""Waves: the shards of one Indexed Job, and the shards of each of its indexes.

A wave is an object in the store, and its hash names the Job, so that a controller that creates the
Job again creates the same one. Pure: commits and running pods are arguments.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from collector.codec.canonical import decode_object, readable_json, short_hash
from collector.model.plan import PlannedShard

# A wave has four indexes per worker, so that one slow index delays little. The minimum avoids a new
# Job after every few shards in a small cluster. The maximum keeps the status of a Job readable and
# limits the time until failed shards are retried.
_INDEXES_PER_WORKER = 4
_LEAST_INDEXES, _MOST_INDEXES = 64, 1000
# A Job keeps what a queue has admitted for its whole life: the next Job may get more.
QUEUED_S = 900.0


@dataclass(frozen=True)
class Wave:
    """Shards that are launched together."""

    campaign: str
    plan: int
    plan_hash: str
    serial: int  # number in the plan; shards launched again make another wave
    indexes: tuple[tuple[str, ...], ...]  # the shards of each index
    avoid: tuple[str, ...] = ()  # nodes to avoid
    # How many pods each shard needs. The pods of a gang over several are the wave's indexes, and
    # each has the same shards: all of them run at once, or none makes progress.
    pods: int = 1

    @cached_property
    def wave_hash(self) -> str:
        return short_hash(_as_json(self), 12)

    @property
    def job_name(self) -> str:
        """Return a name of at most 52 characters: Kubernetes appends `-{index}` and a suffix."""
        return f"opmeter-{self.campaign[:27].strip('-')}-{self.wave_hash}"

    @property
    def is_gang(self) -> bool:
        return self.pods > 1

    def at_once(self, cap: int) -> int:
        """Return how many of its pods may run at once if `cap` may run; all pods of a gang."""
        return self.pods if self.is_gang else parallelism(len(self.indexes), cap)

    @cached_property
    def shards(self) -> frozenset[str]:
        return frozenset(shard for index in self.indexes for shard in index)


def wave_size(workers: int) -> int:
    """Return how many indexes a wave has if there are enough shards.

    Example: 4 workers have waves of 64 indexes, 100 workers of 400, and 1000 workers of 1000."""
    return max(_LEAST_INDEXES, min(_MOST_INDEXES, _INDEXES_PER_WORKER * workers))


def cut(
    shards: Sequence[str], per_index: int, workers: int, gangs: Collection[str] = ()
) -> tuple[tuple[str, ...], ...]:
    """Return the indexes of the next wave: the first shards, `per_index` together.

    Each of the `gangs` has an index alone, because it uses all devices of its pod. If all of
    several indexes could run at once, an empty one is appended: without it one of them would have
    to wait for another (see `parallelism`), which would double the total time.

    Example: 4 gangs and 20 other shards, on pods of 8 devices: 4 indexes of a gang each, two of 8
    shards and one of 4, and an empty one."""
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
    """Return the indexes of the next wave if a queue decides what runs.

    The wave is for `width` pods at once. They end within a quarter of an hour according to the
    forecast, or after one index each, and there are never more indexes than a fair share for this
    number of workers. Kubernetes must not treat the Job as a gang either: see `cut`."""
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
    """Return the shards in order, in groups of `per_index`; a gang closes the open group."""
    found: list[list[str]] = []
    alone = True
    for shard in shards:
        if shard in gangs or alone or len(found[-1]) == per_index:
            found.append([])
        found[-1].append(shard)
        alone = shard in gangs
    return [tuple(index) for index in found]


def index_s(shards: Sequence[str], planned: Mapping[str, PlannedShard], at_once: int) -> float:
    """Return the forecast duration of an index in seconds.

    Its gangs run one after the other. Then its other shards share the pod's devices: `at_once` of
    them measure concurrently, and a shard uses one device."""
    known = [planned[shard] for shard in shards if shard in planned]
    gangs_s = sum(shard.predicted_s for shard in known if shard.is_gang)
    each = [shard.predicted_s for shard in known if not shard.is_gang]
    return gangs_s + max(max(each, default=0.0), sum(each) / max(1, at_once))


def parallelism(indexes: int, cap: int) -> int:
    """Return how many pods of a wave may run at once.

    Never all of several: from 1.36 on Kubernetes may treat a Job with completions = parallelism as
    a gang, which waits for the whole cluster."""
    return max(1, min(indexes - 1, cap))


def wave_to_json(wave: Wave) -> bytes:
    return readable_json(_as_json(wave))


def wave_from_json(data: bytes, *, key: str) -> Wave:
    """Return the wave of an object.

    Raises:
        BadInput: the object is not a wave."""
    return decode_object(Wave, data, what="a wave", key=key)


def parse_indexes(text: str) -> frozenset[int]:
    """Parse the completed or failed indexes of a Job's status: `1,3-5` -> {1, 3, 4, 5}."""
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


# A node is quarantined when two shards failed on it and on no other node.
#
# One shard is no proof: it may break every node that it runs on. At most half of the nodes are
# quarantined, so that a campaign always has nodes to run on. A `NodeFailure` is one failure counted
# against one node.

# Number of shards that failed only on one node before it is quarantined. One shard proves nothing;
# a third would cost another lost measurement for each broken node.
_PROVING_SHARDS = 2


@dataclass(frozen=True, slots=True, order=True)
class NodeFailure:
    node: str
    shard: str


@dataclass(frozen=True, slots=True)
class NodeFailures:
    """All failures counted against the nodes of a campaign.

    None is ever removed, and adding one again changes nothing.

    Example: of 4 nodes, shards s1, s2 and s3 fail on n1 alone, s4 and s5 on n2 alone, and s6 on n3
    and on n4. n1 and n2 are quarantined, and s6 counts against no node. Of 3 nodes only n1 would be
    quarantined: half of 3, rounded down, is 1, and n1 has more shards against it."""

    seen: frozenset[NodeFailure] = frozenset()

    def plus(self, failures: Iterable[NodeFailure]) -> "NodeFailures":
        return NodeFailures(self.seen | frozenset(failures))

    def against(self) -> dict[str, frozenset[str]]:
        """Return for each node the shards that count against it: those that failed only there."""
        nodes_of: dict[str, set[str]] = defaultdict(set)
        for failure in self.seen:
            nodes_of[failure.shard].add(failure.node)
        held: dict[str, set[str]] = defaultdict(set)
        for shard, nodes in nodes_of.items():
            if len(nodes) == 1:
                held[next(iter(nodes))].add(shard)
        return {node: frozenset(shards) for node, shards in held.items()}

    def quarantined(self, nodes: Collection[str]) -> frozenset[str]:
        """Return the nodes to avoid: at most half of `nodes`, the worst first."""
        against = self.against()
        bad = [n for n, shards in against.items() if len(shards) >= _PROVING_SHARDS and n in nodes]
        bad.sort(key=lambda node: (-len(against[node]), node))
        return frozenset(bad[: len(nodes) // 2])


def node_failures_to_json(failures: NodeFailures) -> bytes:
    return readable_json({"failures": [[s.node, s.shard] for s in sorted(failures.seen)]})


def node_failures_from_json(data: bytes, *, key: str) -> NodeFailures:
    """Return the failures recorded in an object.

    Raises:
        BadInput: the object is of another kind."""
    held = decode_object(
        _Held, data, what="the failures counted against a campaign's nodes", key=key
    )
    return NodeFailures(frozenset(NodeFailure(node, shard) for node, shard in held.failures))


@dataclass(frozen=True, slots=True)
class _Held:
    failures: tuple[tuple[str, str], ...]
