"""Choice of the earlier launches that a replay runs before a case.

A replay runs the nearest launches before the case that the backend can launch. Together they move
enough bytes to replace the content of the cache, so that almost no data of the previous repeat is
left in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from collector.model.record import CaseRecord
from collector.ops.refusals import DECLARATION_ERRORS, FindOperator, refusal
from collector.ops.spec import OpSpec
from collector.ranks.gangs import is_of_gangs

OVER_CACHE = 1.25  # written at once to replace the whole cache, in cache sizes

# Launches before a case move more bytes than that, because caches do not replace the oldest lines
# first. With random replacement, 37 % of the old content is left after one cache size of bytes, and
# 5 % after three.
BEFORE_CACHE = 3.0


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A launch before a case, its operator, and the bytes that it reads and writes."""

    record: CaseRecord
    op: OpSpec
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Context:
    """The launches that run before a case, nearest last.

    `left_out` has the kernel types of the launches between them that the backend cannot launch."""

    neighbours: tuple[Neighbour, ...]
    left_out: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(one.size_bytes for one in self.neighbours)

    def without(self, position: int) -> "Context":
        """Return the context without the launch at a position."""
        kept = (*self.neighbours[:position], *self.neighbours[position + 1 :])
        kernel = self.neighbours[position].record.kernel_type
        return Context(kept, (*self.left_out, kernel))


def context_of(
    before: Sequence[CaseRecord], find: FindOperator, backend: str, cache_bytes: int
) -> Context:
    """Return the nearest launches that a backend can run, until they fill a cache of that size."""
    found: list[Neighbour] = []
    left_out: list[str] = []
    size_bytes = 0
    for record in reversed(before):
        if size_bytes >= BEFORE_CACHE * cache_bytes:
            break
        op = find(record.case.kernel_type)
        if op is None or is_of_gangs(record.case) or refusal(record.case, find, backend):
            left_out.append(record.case.kernel_type)
            continue
        found.append(Neighbour(record, op, _moved_bytes(record, op)))
        size_bytes += found[-1].size_bytes
    return Context(tuple(reversed(found)), tuple(reversed(left_out)))


def _moved_bytes(record: CaseRecord, op: OpSpec) -> int:
    try:
        return op.traffic(record.case)
    except DECLARATION_ERRORS:  # the session meets the error in the declaration again
        return 0
