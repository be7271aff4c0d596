"""The collectives of a version directory with their durations, and others like them."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from collector.codec.errors import BadInput
from collector.model.demand import record_of_cells
from collector.model.record import CaseRecord
from collector.ops.expression import align
from collector.ranks.collective import (
    BY_KERNEL_TYPE,
    CollectiveCase,
    collective_case_of,
    whole_bytes,
)
from opmeter.answers import Answer
from opmeter.version import Version


def collectives_alone(version: Version, kernel: str) -> Iterator[tuple[CollectiveCase, Answer]]:
    """Yield the collectives of a kernel type in which one group works alone. Rows that lack a
    column are left out."""
    if kernel not in BY_KERNEL_TYPE:
        return
    for cells, answer in version.cases(kernel):
        with suppress(BadInput):
            one = collective_case_of(record_of_cells(kernel, cells).case)
            if not one.collective.together:
                yield one, answer


def with_message(
    measured: Iterable[CollectiveCase], message_bytes: int, group_size: int, tier: int | None
) -> CaseRecord | None:
    """Return a collective of this size over this group, like a measured one whose grid has such a
    group: without a `tier` of the nearest ranks. None if there is no such grid."""
    for one in measured:
        if not 2 <= group_size <= one.ranks:
            continue
        own = one.grid.natural_tier(group_size) if tier is None else tier
        if not one.grid.has_group(group_size, own, one.ranks):
            continue
        found = replace(one.collective, group_size=group_size, tier=own)
        whole = whole_bytes(found)
        found = replace(found, message_bytes=align(max(1, message_bytes), whole))
        return replace(one, collective=found).record()
    return None
