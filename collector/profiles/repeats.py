"""One run exported twice: which rows of a file another file of the same run has already.

The same launches stand in the kernel_details of a run and in the op_summary that it was made from,
in two exports of one folder, in a copy of it. A launch is known by its device, type, start and
duration. Two files are of one run where at least half of the smaller one's launches are in the
other: of two ranks of one job a few may agree by chance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from collector.profiles.grouping import Rows
from collector.profiles.headers import DEVICE, KEY_COLUMNS, START, TYPE

Marks = npt.NDArray[np.uint64]

_TYPE = KEY_COLUMNS.index(TYPE)
_SAMPLE = 1024
_UNKNOWN = np.uint64(0)
_FACTORS = tuple(map(np.uint64, (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)))


@dataclass(frozen=True, slots=True)
class Repeated:
    """A file whose run another file told before it, and how many of its rows were left out."""

    path: Path
    of: Path
    rows: int


def marks_of(block: pa.Table, rows: Rows) -> Marks:
    """What tells each launch of a block from all others; 0 where its start is not known."""
    starts = starts_of(block)
    types = np.array([_number(key[_TYPE].strip()) for key in rows.keys], np.uint64)
    marks = starts.view(np.uint64) * _FACTORS[0]
    marks ^= np.ascontiguousarray(rows.durations_us, np.float64).view(np.uint64) * _FACTORS[1]
    marks ^= types[rows.ids] * _FACTORS[2]
    marks ^= devices_of(block)
    return np.where(np.isnan(starts), _UNKNOWN, np.maximum(marks, np.uint64(1)))


def known_launches(marks: Marks) -> Marks:
    """The launches that can be known again, each once, in ascending order."""
    found = np.unique(marks)
    return np.asarray(found[found != _UNKNOWN], np.uint64)


def are_of_one_run(one: Marks, other: Marks) -> bool:
    """Whether the launches of two files (of `known_launches`) are those of one run."""
    small, large = sorted((one, other), key=len)
    sample = small[:: max(1, len(small) // _SAMPLE)]
    return bool(len(sample)) and 2 * int(is_among(sample, large).sum()) >= len(sample)


def is_among(marks: Marks, known: Marks) -> npt.NDArray[np.bool_]:
    """For each mark whether it is among the known ones, which are in ascending order."""
    if not len(known):
        return np.zeros(len(marks), np.bool_)
    at = np.minimum(np.searchsorted(known, marks), len(known) - 1)
    return np.asarray(known[at] == marks)


def joined(known: Sequence[Marks]) -> Marks:
    return known_launches(np.concatenate([np.empty(0, np.uint64), *known]))


def starts_of(block: pa.Table) -> npt.NDArray[np.float64]:
    """When each row began, in microseconds as exact as a float is: the same text gives the same
    number. NaN where a block does not tell."""
    if START in block.column_names:
        try:
            text = pc.utf8_trim_whitespace(block.column(START))
            return np.asarray(text.cast(pa.float64()).to_numpy(), np.float64)
        except pa.ArrowInvalid:  # N/A somewhere: the launches of this block are not known again
            pass
    return np.full(block.num_rows, np.nan)


def devices_of(block: pa.Table) -> Marks:
    """A number for each row's device; 0 where a file does not tell."""
    if DEVICE not in block.column_names:
        return np.zeros(block.num_rows, np.uint64)
    coded = pc.utf8_trim_whitespace(block.column(DEVICE)).combine_chunks().dictionary_encode()
    numbers = np.array([_number(text) for text in coded.dictionary.to_pylist()], np.uint64)
    return np.asarray(numbers[coded.indices.to_numpy()], np.uint64)


@lru_cache(maxsize=4096)
def _number(text: str) -> int:
    """The same in every process: marks are kept (`run_sketch`)."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
