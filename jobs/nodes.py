"""Which nodes fail shards by themselves: strikes, and when they make a quarantine.

A strike is a worker's own word that its node is to blame (exit 44 or 46). One shard is no proof:
it may break every node it meets. Pure.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from collector.canonical import readable_json
from collector.errors import BadInput

_SHARDS = 2  # that must fail on a node before it is left alone


@dataclass(frozen=True, slots=True, order=True)
class Strike:
    node: str
    shard: str


@dataclass(frozen=True, slots=True)
class Strikes:
    """All that was ever seen in a campaign; adding one again changes nothing."""

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
        """The nodes to keep away from: never more than half of those there are, the worst first."""
        against = self.against()
        bad = [n for n, shards in against.items() if len(shards) >= _SHARDS and n in nodes]
        bad.sort(key=lambda node: (-len(against[node]), node))
        return frozenset(bad[: len(nodes) // 2])


def strikes_to_json(strikes: Strikes) -> bytes:
    return readable_json({"strikes": [[s.node, s.shard] for s in sorted(strikes.seen)]})


def strikes_from_json(data: bytes, *, key: str) -> Strikes:
    """The strikes of an object. Raises BadInput for anything else."""
    try:
        pairs = json.loads(data)["strikes"]
        return Strikes(frozenset(Strike(str(node), str(shard)) for node, shard in pairs))
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"the strikes of a campaign's nodes are wanted: {error!r}", path=key
        ) from error
