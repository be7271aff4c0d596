"""A node is quarantined when two shards failed on it and on no other node. Pure.

One shard is no proof: it may break every node it meets. At most half of the nodes are quarantined,
so that a campaign always has somewhere to run. A strike is one witness against one node.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from collector.canonical import readable_json
from collector.decoding import decode_object

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
