"""Waves: the shards that one Indexed Job holds, and where each index finds its own.

A wave is an object of the store, and its hash names the Job, so that whoever creates the Job
again creates the same one. Pure: what is committed and what runs is told.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from collector.canonical import readable_json, short_hash
from collector.errors import BadInput

_LEAST, _MOST = 64, 1000
_INDEXES_PER_WORKER = 4


@dataclass(frozen=True)
class Wave:
    """`indexes[i]` are the shards of index i. `serial` counts the plan's waves, so that shards
    that are launched again make another wave; `avoid` are nodes that it keeps away from."""

    campaign: str
    plan: int
    plan_hash: str
    serial: int
    indexes: tuple[tuple[str, ...], ...]
    avoid: tuple[str, ...] = ()

    @cached_property
    def wave_hash(self) -> str:
        return short_hash(_as_json(self), 12)

    @property
    def job_name(self) -> str:
        """At most 52 characters: Kubernetes appends `-{index}` and a suffix of its own."""
        return f"opmeter-{self.campaign[:27].strip('-')}-{self.wave_hash}"

    @cached_property
    def shards(self) -> frozenset[str]:
        return frozenset(shard for index in self.indexes for shard in index)


def wave_size(workers: int) -> int:
    """How many indexes a wave has where there are shards enough."""
    return max(_LEAST, min(_MOST, _INDEXES_PER_WORKER * workers))


def cut(shards: Sequence[str], per_index: int, workers: int) -> tuple[tuple[str, ...], ...]:
    """The indexes of the next wave: the first shards, `per_index` together. Where all of several
    indexes could run at once, an empty one comes last: without it one of them would have to wait
    for another (see `parallelism`), and take twice as long in all."""
    chosen = shards[: per_index * wave_size(workers)]
    indexes = [tuple(chosen[i : i + per_index]) for i in range(0, len(chosen), per_index)]
    if 1 < len(indexes) <= workers:
        indexes.append(())
    return tuple(indexes)


def parallelism(indexes: int, cap: int) -> int:
    """How many pods of a wave may run at once. Never all of several: from 1.36 on Kubernetes may
    take a Job with completions = parallelism for a gang, which waits for the whole fleet."""
    return max(1, min(indexes - 1, cap))


def uncommitted(wave: Wave, committed: Collection[str]) -> list[int]:
    """The indexes of a wave that still have something to do."""
    done = frozenset(committed)
    return [i for i, shards in enumerate(wave.indexes) if not done.issuperset(shards)]


def wave_to_json(wave: Wave) -> bytes:
    return readable_json(_as_json(wave))


def wave_from_json(data: bytes, *, key: str) -> Wave:
    """The wave of an object. Raises BadInput for anything else."""
    try:
        value = json.loads(data)
        return Wave(
            campaign=value["campaign"],
            plan=int(value["plan"]),
            plan_hash=value["plan_hash"],
            serial=int(value["serial"]),
            indexes=tuple(tuple(map(str, index)) for index in value["indexes"]),
            avoid=tuple(map(str, value["avoid"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"a wave is wanted: {error!r}", path=key) from error


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
    }
