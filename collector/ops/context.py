"""Which of the launches before a case a replay runs: the nearest that it can launch, as many as
replace what a cache holds, so that hardly anything of the repeat before is left in it."""

from collections.abc import Sequence
from dataclasses import dataclass

from collector.model.record import CaseRecord
from collector.ops.refusals import UNFORESEEN, FindOperator, refusal
from collector.ops.spec import OpSpec
from collector.ranks.gangs import is_of_gangs

OVER_CACHE = 1.25  # what is written in one go to have all of a cache replaced

# Of what runs before a case more: no cache replaces the oldest first. Where it takes any, 37 % of
# what stood there is left behind as much again as it holds, and 5 % behind three times as much.
BEFORE_CACHE = 3.0


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A launch before a case, what launches it, and what it reads and writes."""

    record: CaseRecord
    op: OpSpec
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Context:
    """The launches before a case that are run, the nearest last; the kernel types of those between
    them that nobody can launch here."""

    neighbours: tuple[Neighbour, ...]
    left_out: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(one.size_bytes for one in self.neighbours)

    def without(self, position: int) -> "Context":
        """The context with one of its launches left out."""
        kept = (*self.neighbours[:position], *self.neighbours[position + 1 :])
        kernel = self.neighbours[position].record.kernel_type
        return Context(kept, (*self.left_out, kernel))


def context_of(
    before: Sequence[CaseRecord], find: FindOperator, backend: str, cache_bytes: int
) -> Context:
    """The nearest launches that a backend can run, until they fill a cache of that size."""
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
    except UNFORESEEN:  # the session meets a mistake in a declaration again
        return 0
