"""Valid values of a profile's cells. A ValueError or BadInput for another value names its column.
It never quotes the cell: the reader of the message may not be permitted to read the file.

A row with shifted columns has the right number of cells with the wrong contents; the checks of
the identity cells detect this."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from collector.codec.errors import BadInput
from collector.codec.numbers import parse_number
from collector.model import vocabulary
from collector.model.case import case_from_cells, split_cell
from collector.profiles.headers import DURATION, KEY_AT, KEY_COLUMNS, START, TYPE

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
