"""The launches that msprof recorded, one by one; a replay attributes them to its cases.

Starts are integer nanoseconds: a float cannot hold sixteen digits and three decimals of
microseconds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from collector.codec.errors import BadInput
from collector.model.vocabulary import ACCELERATOR_CORE
from collector.profiles.rows import (
    DURATION,
    NAME,
    START,
    TYPE,
    Header,
    counter_of,
    duration_us_of,
    is_utf8_row,
    open_rows,
    read_header,
    start_ns_of,
)


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One row of an op_summary.

    `cells` are the eight base cells as in the row; `counters` holds msprof's numbers by name,
    without those of `N/A`."""

    op_type: str
    name: str
    task_type: str
    start_ns: int
    duration_us: float
    cells: Mapping[str, str]
    counters: Mapping[str, float]


def read_op_summary(path: Path) -> Iterator[KernelLaunch]:
    """Yield the launches of an op_summary or kernel_details file, in order of start.

    Raises BadInput, with the line, for any other content. All launches are held in memory: this
    function is for the file of one session."""
    yield from sorted(_launches(path), key=attrgetter("start_ns"))


def _launches(path: Path) -> Iterator[KernelLaunch]:
    names, rows = open_rows(path)
    header = read_header(names, path=path)
    if not header.has(START):
        raise BadInput(f"missing column {START!r}", path=path, line=1)
    for line, row in rows:
        if len(row) != len(names):
            raise BadInput(f"expected {len(names)} cells, got {len(row)}", path=path, line=line)
        if not is_utf8_row(row):
            raise BadInput("expected UTF-8 text", path=path, line=line)
        try:
            yield _launch(header, row)
        except ValueError as error:
            raise BadInput(str(error), path=path, line=line) from error


def _launch(header: Header, row: Sequence[str]) -> KernelLaunch:
    counters = {name: counter_of(name, row[header.positions[name]]) for name in header.counters}
    return KernelLaunch(
        op_type=header.cell(row, TYPE).strip(),
        name=header.cell(row, NAME).strip(),
        task_type=header.cell(row, ACCELERATOR_CORE).strip(),
        start_ns=start_ns_of(header.cell(row, START)),
        duration_us=duration_us_of(header.cell(row, DURATION)),
        cells=header.base_cells(row),
        counters={name: value for name, value in counters.items() if value is not None},
    )
