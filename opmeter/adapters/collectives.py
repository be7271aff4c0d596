"""The collectives of a version directory, with their durations."""

from collections.abc import Iterator
from contextlib import suppress

from collector.codec.errors import BadInput
from collector.model.demand import record_of_cells
from collector.ranks.collective import BY_KERNEL_TYPE, Collective, collective_case_of
from opmeter.answers import Answer
from opmeter.version import Version


def collectives_of(version: Version, kernel: str) -> Iterator[tuple[Collective, Answer]]:
    """Yield the collectives of a kernel type in which one group works alone. Rows that lack a
    column are left out."""
    if kernel not in BY_KERNEL_TYPE:
        return
    for cells, answer in version.cases(kernel):
        with suppress(BadInput):
            one = collective_case_of(record_of_cells(kernel, cells).case).collective
            if not one.together:
                yield one, answer
