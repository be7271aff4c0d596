"""Communication rows: they have no shapes, so they are no cases; a report summarises them.

A collective may be in a profile twice with the same start and duration: once on Stream `N/A` and
once on the hardware stream that ran it. The latter is dropped.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from collector.model.vocabulary import ACCELERATOR_CORE, NOT_KNOWN
from collector.profiles.grouping import Floats, Rows
from collector.profiles.headers import EVENT_COLUMNS, KEY_COLUMNS, TYPE
from collector.profiles.row_values import is_communication

# hcom_allReduce__170_1_1: the digits before the last two numbers identify the communicator.
_GROUP = re.compile(r"_([^\W_][^_]*)_\d+_\d+$")

_TYPE, _CORE = KEY_COLUMNS.index(TYPE), KEY_COLUMNS.index(ACCELERATOR_CORE)

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Communication:
    """The rows of one collective on one communicator (`group`, if its name has it)."""

    # The fields of a key.
    kernel_type: str
    group: str
    core: str
    count: int
    total_us: float
    mean_us: float
    median_us: float
    std_us: float
    min_us: float
    max_us: float


class FileCommunication:
    """The communication rows of one file, added block by block."""

    def __init__(self) -> None:
        self._numbers: dict[Key, int] = {}
        self._ids: list[int] = []
        self._marks: list[int] = []  # equal if device, type, start and duration are equal
        self._on_hardware: list[bool] = []
        self._durations: list[Floats] = []

    def add(self, block: pa.Table, rows: Rows) -> None:
        """Add the communication rows of a block."""
        reported = [(key[_TYPE].strip(), key[_CORE].strip()) for key in rows.keys]
        is_event = np.array([is_communication(*pair) for pair in reported], np.bool_)
        at = np.flatnonzero(is_event[rows.ids])
        if not len(at):
            return
        durations = rows.durations_us[at]
        pairs = [reported[number] for number in rows.ids[at].tolist()]
        devices, streams, names, starts = _event_texts(block, at)
        for (kernel_type, core), name in zip(pairs, names, strict=True):
            match = _GROUP.search(name)
            key = (kernel_type, match.group(1) if match else "", core)
            self._ids.append(self._numbers.setdefault(key, len(self._numbers)))
        self._marks += map(hash, zip(devices, pairs, starts, durations.tolist(), strict=True))
        self._on_hardware += [
            stream != NOT_KNOWN and start != ""
            for stream, start in zip(streams, starts, strict=True)
        ]
        self._durations.append(durations)

    def __len__(self) -> int:
        return len(self._ids)

    def without_duplicates(self) -> tuple[dict[Key, Floats], int]:
        """Return the durations of each key's rows, and the number of dropped rows."""
        ids, marks = np.array(self._ids, np.int64), np.array(self._marks, np.int64)
        on_hardware = np.array(self._on_hardware, np.bool_)
        durations = np.concatenate([np.empty(0), *self._durations])
        dropped = on_hardware & np.isin(marks, marks[~on_hardware])
        kept = {key: durations[(ids == at) & ~dropped] for key, at in self._numbers.items()}
        return kept, int(dropped.sum())


def summed_up(files: Iterable[Mapping[Key, Floats]]) -> tuple[Communication, ...]:
    """Return one entry for each collective and communicator, in order of first appearance."""
    gathered: dict[Key, list[Floats]] = {}
    for file in files:
        for key, durations in file.items():
            gathered.setdefault(key, []).append(durations)
    joined = {key: np.sort(np.concatenate(parts)) for key, parts in gathered.items()}
    return tuple(
        Communication(
            *key,
            count=len(durations),
            total_us=float(durations.sum()),
            mean_us=float(durations.mean()),
            median_us=float(np.median(durations)),
            std_us=float(durations.std()),
            min_us=float(durations[0]),
            max_us=float(durations[-1]),
        )
        for key, durations in joined.items()
        if len(durations)
    )


def _event_texts(block: pa.Table, at: npt.NDArray[np.intp]) -> Iterator[list[str]]:
    """Yield the texts of each of EVENT_COLUMNS in these rows; empty for a missing column."""
    for name in EVENT_COLUMNS:
        if name in block.column_names:
            texts = block.column(name).take(pa.array(at)).to_pylist()
            yield [text.strip() for text in texts]
        else:
            yield [""] * len(at)
