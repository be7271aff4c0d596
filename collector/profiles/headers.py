"""One vocabulary for the headers of kernel_details and op_summary.

Columns come and go with the version of CANN, the chip and the aic_metrics group, so a column is
found by its name and never by its position. torch_npu copies msprof's op_summary and renames six
columns; `Block Dim` became `Block Num` in CANN 9. What is not one of the base columns here is a
counter, as long as it holds numbers.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from collector.errors import BadInput
from collector.vocabulary import (
    ACCELERATOR_CORE,
    BASE_CELLS,
    INPUT_CELLS,
    LAUNCHED_BY,
    OUTPUT_CELLS,
)

NAME = "Name"
TYPE = "Type"
START = "Start Time(us)"
DURATION = "Duration(us)"
STREAM = "Stream ID"
DEVICE = "Device_id"

# The columns that tell the case (the last is read off the others), and those that tell one
# communication row from another.
KEY_COLUMNS = (TYPE, *BASE_CELLS, LAUNCHED_BY)
EVENT_COLUMNS = (DEVICE, STREAM, NAME, START)

# Where each of the KEY_COLUMNS stands in a key.
KEY_AT = {name: at for at, name in enumerate(KEY_COLUMNS)}

# What op_summary calls the columns of kernel_details.
_RENAMED = {
    "Op Name": NAME,
    "OP Type": TYPE,
    "Task Type": ACCELERATOR_CORE,
    "Task Start Time(us)": START,
    "Task Duration(us)": DURATION,
    "Task Wait Time(us)": "Wait Time(us)",
    "Block Num": "Block Dim",
    "Mix Block Num": "Mix Block Dim",
}
_SHAPE_CELLS = (*INPUT_CELLS, *OUTPUT_CELLS)
_REQUIRED = (TYPE, ACCELERATOR_CORE, DURATION, *_SHAPE_CELLS)
_BASE = frozenset(
    (
        *("Step Id", DEVICE, "Model Name", "Model ID", "Infer ID", "Task ID", STREAM),
        *(NAME, TYPE, START, DURATION, "Wait Time(us)"),
        *("Block Dim", "Mix Block Dim", "HF32 Eligible", "Context ID"),
        *BASE_CELLS,
    )
)
_COUNTER_NAME = re.compile(
    r".+(\((us|GB/s|KB|%)\)|_(ratio|rate|cycles|fops|bound|hit|miss|allocate|victim))"
)

LEVEL_0 = "profiled at level 0 (no shapes); profile at Level1"


@dataclass(frozen=True, slots=True)
class Header:
    """The columns of one file. `positions` leads from our names, `names` are the file's own."""

    names: tuple[str, ...]
    positions: Mapping[str, int]
    counters: tuple[str, ...]

    def spelled(self, name: str) -> str:
        """The file's own spelling of one of our names."""
        return self.names[self.positions[name]]

    def has(self, name: str) -> bool:
        return name in self.positions

    def cell(self, row: Sequence[str], name: str) -> str:
        """The text a row holds under one of our names; empty where the file has no such column."""
        position = self.positions.get(name)
        return "" if position is None else row[position]

    def base_cells(self, row: Sequence[str]) -> dict[str, str]:
        """The eight cells that tell the case, as the row spells them."""
        return {name: self.cell(row, name) for name in BASE_CELLS}


def is_counter_name(name: str) -> bool:
    """Whether msprof names a counter like this, so that its cells must be numbers."""
    return _COUNTER_NAME.fullmatch(name) is not None


def read_header(names: Sequence[str], *, path: Path) -> Header:
    """The header of a file. Raises BadInput where a needed column is missing or comes twice."""
    positions: dict[str, int] = {}
    for position, raw in enumerate(names):
        name = _RENAMED.get(raw.strip(), raw.strip())
        if name and name in positions:
            raise BadInput(f"duplicate column {name!r} in the header", path=path, line=1)
        if name:
            positions[name] = position
    _check_required(positions, path)
    counters = tuple(name for name in positions if name not in _BASE)
    return Header(tuple(names), positions, counters)


def _check_required(positions: Mapping[str, int], path: Path) -> None:
    missing = [name for name in _REQUIRED if name not in positions]
    if not missing:
        return
    if TYPE in positions and DURATION in positions and set(missing) <= set(_SHAPE_CELLS):
        raise BadInput(LEVEL_0, path=path, line=1)
    raise BadInput(
        "expected the columns of kernel_details or op_summary; missing: " + ", ".join(missing),
        path=path,
        line=1,
    )
