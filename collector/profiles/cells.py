"""What a cell of a profile may hold; a ValueError or BadInput names the column of one that holds
something else. It never quotes the cell: who reads the message need not be who may read the file.

A row whose columns are shifted has the right number of cells and the wrong things in them: that
is what the checks of the identity cells are for.
"""

import re
from collections.abc import Mapping, Sequence
from math import isfinite

from collector.case import case_from_cells, split_cell
from collector.errors import BadInput
from collector.profiles.headers import DURATION, KEY_AT, KEY_COLUMNS, START, TYPE, is_counter_name
from collector.vocabulary import (
    ACCELERATOR_CORE,
    INPUT_DTYPES,
    INPUT_FORMATS,
    INPUT_SHAPES,
    NOT_KNOWN,
    OP_STATE,
    OUTPUT_DTYPES,
    OUTPUT_FORMATS,
)

NO_NUMBER = ("N/A", "NA", "")

# How the profilers write a number; RE2 and Python read it alike.
NUMBER = r"-?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?"

_NUMBER = re.compile(NUMBER, re.ASCII)
_START = re.compile(r"(\d+)(?:\.(\d{1,9}))?")
_TYPE = re.compile(r"[A-Za-z]")
_CORE = re.compile(r"[A-Z][A-Z0-9_]*|N/A|")
_STATE = re.compile(r"[a-z]*|N/A")
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_:]*|N/A|")
_WORD_CELLS = (INPUT_DTYPES, INPUT_FORMATS, OUTPUT_DTYPES, OUTPUT_FORMATS)
_COMMUNICATION_CORES = frozenset({"HCCL", "COMMUNICATION"})


def start_ns_of(text: str) -> int:
    """Nanoseconds of `1764246877083299.960<tab>` microseconds, exactly; ValueError otherwise."""
    match = _START.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{START}: expected a time such as 1764246877083299.960")
    whole, fraction = match.group(1), match.group(2) or ""
    return int(whole) * 1000 + int((fraction + "000")[:3])


def duration_us_of(text: str) -> float:
    """A duration: a finite number, not negative; ValueError otherwise."""
    duration_us = _number(text)
    if duration_us is None or duration_us < 0:
        raise ValueError(f"{DURATION}: expected a number of microseconds")
    return duration_us


def counter_of(name: str, text: str) -> float | None:
    """A counter's number; None for `N/A`, and for text in a column not known to be one.

    ValueError for a text where a counter that we know must have its number.
    """
    if text in NO_NUMBER:
        return None
    number = _number(text)
    if number is None and is_counter_name(name):
        raise ValueError(f"{name}: expected a number")
    return number


def is_communication(kernel_type: str, core: str) -> bool:
    """Whether a row is a collective: it has no shapes, and is no compute kernel."""
    return core.strip() in _COMMUNICATION_CORES or kernel_type.strip().startswith("hcom_")


def is_communication_key(key: Sequence[str]) -> bool:
    """The same of a row's KEY_COLUMNS."""
    return is_communication(key[KEY_AT[TYPE]], key[KEY_AT[ACCELERATOR_CORE]])


def is_unnamed(kernel_type: str) -> bool:
    """Whether the profiler did not know the operator (level 0)."""
    return kernel_type.strip() in NO_NUMBER


def check_key(key: Sequence[str]) -> None:
    """Raise BadInput where KEY_COLUMNS hold what they cannot hold."""
    cells = dict(zip(KEY_COLUMNS, key, strict=True))
    core, state = cells[ACCELERATOR_CORE].strip(), cells[OP_STATE].strip()
    if not _CORE.fullmatch(core):
        raise BadInput(f"{ACCELERATOR_CORE}: expected a name such as AI_CORE")
    if not _STATE.fullmatch(state):
        raise BadInput(f"{OP_STATE}: expected static, dynamic or {NOT_KNOWN}")
    for name in _WORD_CELLS:
        for word in split_cell(cells[name]):
            if not _WORD.fullmatch(word):
                raise BadInput(f"{name}: expected a name such as FLOAT or ND in each slot")
    if not is_unnamed(cells[TYPE]):
        if not _TYPE.search(cells[TYPE]):
            raise BadInput(f"{TYPE}: expected the name of a kernel")
        case_from_cells(cells[TYPE], cells)


def has_unknown_inputs(cells: Mapping[str, str]) -> bool:
    """Whether the profiler wrote `N/A` for the inputs, so that the case cannot be replayed."""
    return cells[INPUT_SHAPES].strip().strip('"').upper() == NOT_KNOWN


def _number(text: str) -> float | None:
    stripped = text.strip(" \t")  # what pyarrow takes off, and no more
    if not _NUMBER.fullmatch(stripped):
        return None
    number = float(stripped)
    return number if isfinite(number) else None
