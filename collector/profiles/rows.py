"""Rows of a profiler's CSV files: their headers, their cells, and their line numbers."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from collector.codec.errors import BadInput, file_errors
from collector.codec.files import lines_of, open_own_file, refuse_pointer
from collector.codec.numbers import parse_number
from collector.codec.table import Row, csv_rows, is_text
from collector.model import vocabulary
from collector.model.case import case_from_cells, split_cell

# The rows of a CSV file, each with the line it starts on.
#
# This is the exact reader: Python's csv module, one row at a time, so that a message can name the
# line. Files that are not CSV text (a git-lfs pointer, a binary file, UTF-16) are refused here,
# with a hint.

_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_HEAD_BYTES = 1 << 16
_MOST_BLANK = 1_000_000


def open_rows(path: Path) -> tuple[list[str], Iterator[Row]]:
    """Return the header of a file, and its rows with the line each starts on.

    Raises BadInput for a file that is not CSV text. Bytes that are not UTF-8 become lone surrogates
    in a row; `is_utf8_row` detects them."""
    _refuse_other_formats(path)
    rows = _rows(path)
    line, names = next(rows, (1, []))
    if not names:
        raise BadInput("the file is empty", path=path)
    if not is_utf8_row(names):
        raise BadInput("expected UTF-8 text", path=path, line=line)
    return names, rows


def is_utf8_row(row: Sequence[str]) -> bool:
    """Return whether no cell holds bytes of another encoding."""
    return is_text("".join(row))


def _rows(path: Path) -> Iterator[Row]:
    """Yield the rows that are not entirely blank. Raises BadInput for too many blank ones."""
    blank = 0
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        for line, row in csv_rows(lines_of(file, path), path=path):
            if "\0" in "".join(row):
                raise BadInput("expected a CSV file, got a binary file", path=path, line=line)
            if row and not (len(row) == 1 and row[0].isspace()):
                yield line, row
                continue
            blank += 1
            if blank > _MOST_BLANK:
                what = f"expected at most {_MOST_BLANK:,} blank lines, got more"
                raise BadInput(what, path=path, line=line)


def _refuse_other_formats(path: Path) -> None:
    with file_errors(path), open_own_file(path) as file:
        head = file.read(_HEAD_BYTES)
    refuse_pointer(head, path)
    if head.startswith(_UTF16):
        raise BadInput("expected UTF-8, got UTF-16", path=path, line=1)
    if b"\0" in head:
        line = 1 + head.count(b"\n", 0, head.index(b"\0"))
        raise BadInput("expected a CSV file, got a binary file", path=path, line=line)


# One vocabulary for the headers of kernel_details and op_summary.
#
# The columns differ with the version of CANN, the chip and the aic_metrics group, so a column is
# found by its name and never by its position. torch_npu copies msprof's op_summary and renames six
# columns; `Block Dim` became `Block Num` in CANN 9; old releases wrote starts without their unit. A
# column is a counter if its name is like that of msprof's counters. Any other column, such as an
# identifier or a time stamp, is not read: its mean has no meaning.

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


# Valid values of a profile's cells. A ValueError or BadInput for another value names its column. It
# never quotes the cell: the reader of the message may not be permitted to read the file.
#
# A row with shifted columns has the right number of cells with the wrong contents; the checks of
# the identity cells detect this.

NO_NUMBER = ("N/A", "NA", "")

# A start that identifies a launch, and the texts of all starts of a profile.
EXACT_START = r"^[0-9]+(\.[0-9]*)?$"
STARTS = r"^[ \t]*([0-9]+(\.[0-9]*)?([eE][+]?[0-9]+)?|N/A|NA|)[ \t]*$"

_START = re.compile(r"(\d+)(?:\.(\d{1,9}))?", re.ASCII)
_STARTS = re.compile(STARTS)
_TYPE = re.compile(r"[A-Za-z]")
_CORE = re.compile(r"[A-Z][A-Z0-9_]*|N/A|")
_STATE = re.compile(r"[a-z]*|N/A")
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_:]*|N/A|")
_WORD_CELLS = (
    vocabulary.INPUT_DTYPES,
    vocabulary.INPUT_FORMATS,
    vocabulary.OUTPUT_DTYPES,
    vocabulary.OUTPUT_FORMATS,
)
_COMMUNICATION_CORES = frozenset({"HCCL", "COMMUNICATION"})


def start_ns_of(text: str) -> int:
    """Return the exact nanoseconds of `1764246877083299.960<tab>` microseconds.

    Raises ValueError for other text."""
    match = _START.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{START}: expected a time such as 1764246877083299.960")
    whole, fraction = match.group(1), match.group(2) or ""
    return int(whole) * 1000 + int((fraction + "000")[:3])


def check_start(text: str) -> None:
    """Raise ValueError for a start that is neither a time nor unknown."""
    if not _STARTS.fullmatch(text):
        raise ValueError(f"{START}: expected a time such as 1764246877083299.960, or N/A")


def parse_duration_us(text: str) -> float:
    """Return a duration: a finite number, not negative; raise ValueError otherwise."""
    duration_us = _number(text)
    if duration_us is None or duration_us < 0:
        raise ValueError(f"{DURATION}: expected a number of microseconds")
    return duration_us


def profiled_us_of(text: str) -> float:
    """Return a duration of a profile, which is positive; raise ValueError otherwise."""
    duration_us = parse_duration_us(text)
    if not duration_us:
        raise ValueError(f"{DURATION}: expected a number above 0, got 0")
    return duration_us


def counter_of(name: str, text: str) -> float | None:
    """Return a counter's number; None for `N/A`. Raises ValueError for other text."""
    if text in NO_NUMBER:
        return None
    number = _number(text)
    if number is None:
        raise ValueError(f"{name}: expected a number")
    return number


def is_communication(kernel_type: str, core: str) -> bool:
    """Return whether a row is a collective: it has no shapes, and is no compute kernel."""
    return core.strip() in _COMMUNICATION_CORES or kernel_type.strip().startswith("hcom_")


def is_communication_key(key: Sequence[str]) -> bool:
    """Return whether the KEY_COLUMNS of a row are those of a collective."""
    return is_communication(key[KEY_AT[TYPE]], key[KEY_AT[vocabulary.ACCELERATOR_CORE]])


def is_unnamed(kernel_type: str) -> bool:
    """Return whether the profiler did not know the operator (level 0)."""
    return kernel_type.strip() in NO_NUMBER


@lru_cache(maxsize=1 << 16)
def check_row_key(key: tuple[str, ...]) -> None:
    """Raise BadInput if KEY_COLUMNS have invalid values; each key is checked once."""
    cells = dict(zip(KEY_COLUMNS, key, strict=True))
    core, state = cells[vocabulary.ACCELERATOR_CORE].strip(), cells[vocabulary.OP_STATE].strip()
    if not _CORE.fullmatch(core):
        raise BadInput(f"{vocabulary.ACCELERATOR_CORE}: expected a name such as AI_CORE")
    if not _STATE.fullmatch(state):
        raise BadInput(f"{vocabulary.OP_STATE}: expected static, dynamic or {vocabulary.NOT_KNOWN}")
    for name in _WORD_CELLS:
        for word in split_cell(cells[name]):
            if not _WORD.fullmatch(word):
                raise BadInput(f"{name}: expected a name such as FLOAT or ND in each slot")
    runtime_values(cells.pop(vocabulary.CALL_VALUES))
    if not is_unnamed(cells[TYPE]):
        if not _TYPE.search(cells[TYPE]):
            raise BadInput(f"{TYPE}: expected the name of a kernel")
        case_from_cells(cells[TYPE], cells)


def runtime_values(text: str) -> dict[str, str]:
    """Return the `Runtime ...` cells of a completed row. Raises BadInput for other text."""
    if not text:
        return {}
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{vocabulary.CALL_VALUES}: expected JSON") from error
    is_one = isinstance(values, dict) and all(
        isinstance(value, str) and name.startswith(vocabulary.RUNTIME_PREFIX)
        for name, value in values.items()
    )
    if not is_one:
        raise BadInput(f"{vocabulary.CALL_VALUES}: expected an object of Runtime columns")
    return dict(values)


def has_unknown_inputs(cells: Mapping[str, str]) -> bool:
    """Return whether the profiler wrote `N/A` for the inputs, so that no replay is possible."""
    return cells[vocabulary.INPUT_SHAPES].strip().strip('"').upper() == vocabulary.NOT_KNOWN


def _number(text: str) -> float | None:
    try:
        return parse_number(text)
    except ValueError:
        return None
