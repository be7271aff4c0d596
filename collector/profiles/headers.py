"""One vocabulary for the headers of kernel_details and op_summary.

The columns differ with the version of CANN, the chip and the aic_metrics group, so a column is
found by its name and never by its position. torch_npu copies msprof's op_summary and renames six
columns; `Block Dim` became `Block Num` in CANN 9; old releases wrote starts without their unit. A
column is a counter if its name is like that of msprof's counters. Any other column, such as an
identifier or a time stamp, is not read: its mean has no meaning."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from collector.codec.errors import BadInput
from collector.model import vocabulary

NAME = "Name"
TYPE = "Type"
START = "Start Time(us)"
DURATION = "Duration(us)"
STREAM = "Stream ID"
DEVICE = "Device_id"
CONTEXT = "Context ID"  # a number for a part of a task

# The columns that identify the case (of the last two, one is derived from the others, and one is
# only in tables that a log of calls completed), and those that distinguish communication rows.
KEY_COLUMNS = (TYPE, *vocabulary.BASE_CELLS, vocabulary.LAUNCHED_BY, vocabulary.CALL_VALUES)
EVENT_COLUMNS = (DEVICE, STREAM, NAME, START)

# The position of each of the KEY_COLUMNS in a key.
KEY_AT = {name: at for at, name in enumerate(KEY_COLUMNS)}

# The names in op_summary of the columns of kernel_details.
_RENAMED = {
    "Op Name": NAME,
    "OP Type": TYPE,
    "Task Type": vocabulary.ACCELERATOR_CORE,
    "Task Start Time(us)": START,
    "Task Start Time": START,
    "Start Time": START,
    "Task Duration(us)": DURATION,
    "Task Wait Time(us)": "Wait Time(us)",
    "Block Num": "Block Dim",
    "Mix Block Num": "Mix Block Dim",
}
_SHAPE_CELLS = (*vocabulary.INPUT_CELLS, *vocabulary.OUTPUT_CELLS)
_REQUIRED = (TYPE, vocabulary.ACCELERATOR_CORE, DURATION, *_SHAPE_CELLS)
_BASE = frozenset(
    (
        *("Step Id", DEVICE, "Model Name", "Model ID", "Infer ID", "Task ID", STREAM),
        *(NAME, TYPE, START, DURATION, "Wait Time(us)"),
        *("Block Dim", "Mix Block Dim", "HF32 Eligible", CONTEXT),
        *vocabulary.BASE_CELLS,
    )
)
_COUNTER_NAME = re.compile(
    r"(?!.*\b(Start|Begin|End)\b)"  # a time stamp
    r"(.+(\((us|GB/s|KB|%)\)|_(ratio|rate|cycles|fops|bound|hit|miss|allocate|victim))"
    r"|0x[0-9A-Fa-f]+)"  # a register of the user's choice
)

LEVEL_0 = "profiled at level 0 (no shapes); profile at Level1"


@dataclass(frozen=True, slots=True)
class Header:
    """The columns of one file. `positions` is keyed by our names, `names` are the file's own."""

    names: tuple[str, ...]
    positions: Mapping[str, int]
    counters: tuple[str, ...]

    def spelled(self, name: str) -> str:
        """Return the file's own spelling of one of our names."""
        return self.names[self.positions[name]]

    def has(self, name: str) -> bool:
        return name in self.positions

    def cell(self, row: Sequence[str], name: str) -> str:
        """Return the cell of a row under one of our names; empty if the file lacks the column."""
        position = self.positions.get(name)
        return "" if position is None else row[position]

    def base_cells(self, row: Sequence[str]) -> dict[str, str]:
        """Return the eight cells that identify the case, as in the row."""
        return {name: self.cell(row, name) for name in vocabulary.BASE_CELLS}


def is_counter_name(name: str) -> bool:
    """Return whether a counter of msprof has such a name: its cells must be numbers or `N/A`."""
    return _COUNTER_NAME.fullmatch(name) is not None


def read_header(names: Sequence[str], *, path: Path) -> Header:
    """Return the header of a file. Raises BadInput for a missing or duplicate required column."""
    positions: dict[str, int] = {}
    for position, raw in enumerate(names):
        name = _RENAMED.get(raw.strip(), raw.strip())
        if name and name in positions:
            raise BadInput(f"duplicate column {name!r} in the header", path=path, line=1)
        if name:
            positions[name] = position
    if missing := [name for name in _REQUIRED if name not in positions]:
        if TYPE in positions and DURATION in positions and set(missing) <= set(_SHAPE_CELLS):
            found = LEVEL_0
            if vocabulary.INPUT_SHAPES in positions:  # a table that another program wrote
                found = _missing_columns(missing)
            raise BadInput(found, path=path, line=1)
        what = "expected the columns of kernel_details or op_summary; missing: "
        raise BadInput(what + ", ".join(missing), path=path, line=1)
    counters = tuple(name for name in positions if name not in _BASE and is_counter_name(name))
    return Header(tuple(names), positions, counters)


def _missing_columns(missing: Sequence[str]) -> str:
    """Return which columns of the arguments are missing: those of the inputs first."""
    inputs = [name for name in missing if name in vocabulary.INPUT_CELLS]
    others = [name for name in missing if name not in vocabulary.INPUT_CELLS]
    first = inputs or others
    noun, verb = ("column", "is") if len(first) == 1 else ("columns", "are")
    words = f"{noun} {', '.join(first)} {verb} missing"
    words += f", and {', '.join(others)}" if inputs and others else ""
    return f"{words}: expected those of kernel_details or op_summary, as the profiler writes them"
