"""Communication rows: they have no shapes, so they make no cases; a report sums them up.

A collective may stand in a profile twice, once on Stream `N/A` and once on the hardware stream
that carried it, with the same start and duration: the latter is dropped.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from collector.profiles.cells import is_communication
from collector.profiles.headers import DEVICE, DURATION, NAME, START, STREAM, TYPE
from collector.vocabulary import ACCELERATOR_CORE, NOT_KNOWN

# hcom_allReduce__170_1_1: the digits before the last two numbers tell the communicator.
_GROUP = re.compile(r"_([^_]+)_\d+_\d+$")

_COLUMNS = (DEVICE, TYPE, ACCELERATOR_CORE, STREAM, NAME, START, DURATION)

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Communication:
    """The rows of one collective on one communicator (`group`, as far as its name tells)."""

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


@dataclass(frozen=True, slots=True)
class Events:
    """The communication rows of one block. Two have the same mark where device, type, start and
    duration are the same."""

    keys: list[Key]
    marks: npt.NDArray[np.int64]
    on_hardware: npt.NDArray[np.bool_]
    durations_us: npt.NDArray[np.float64]


def events_of(block: pa.Table) -> Events | None:
    """The communication rows among the rows of a block; None where there are none."""
    is_event = _distinct(block, ACCELERATOR_CORE, lambda core: is_communication("", core))
    is_event |= _distinct(block, TYPE, lambda kernel_type: is_communication(kernel_type, ""))
    if not is_event.any():
        return None
    wanted = [name for name in _COLUMNS if name in block.column_names]
    events = block.select(wanted).filter(pa.array(is_event))
    types, cores, names = (_texts(events, name) for name in (TYPE, ACCELERATOR_CORE, NAME))
    durations = events.column(DURATION).to_numpy()
    starts = _texts(events, START)
    told = zip(_texts(events, DEVICE), types, starts, durations.tolist(), strict=True)
    streams = np.array([text != NOT_KNOWN for text in _texts(events, STREAM)], np.bool_)
    return Events(
        keys=list(zip(types, map(_communicator, names), cores, strict=True)),
        marks=np.fromiter(map(hash, told), np.int64, len(types)),
        on_hardware=streams & np.array([bool(start) for start in starts], np.bool_),
        durations_us=durations,
    )


class FileCommunication:
    """The communication rows of one file, added block by block."""

    def __init__(self) -> None:
        self._numbers: dict[Key, int] = {}
        self._ids: list[npt.NDArray[np.int32]] = []
        self._events: list[Events] = []

    def add(self, events: Events) -> None:
        numbers = self._numbers
        ids = [numbers.setdefault(key, len(numbers)) for key in events.keys]
        self._ids.append(np.array(ids, np.int32))
        self._events.append(replace(events, keys=[]))

    def __len__(self) -> int:
        return sum(map(len, self._ids))

    def without_duplicates(self) -> tuple[dict[Key, npt.NDArray[np.float64]], int]:
        """The durations of each key's rows, and how many rows were dropped."""
        if not self._ids:
            return {}, 0
        ids = np.concatenate(self._ids)
        marks = np.concatenate([events.marks for events in self._events])
        on_hardware = np.concatenate([events.on_hardware for events in self._events])
        durations = np.concatenate([events.durations_us for events in self._events])
        dropped = on_hardware & np.isin(marks, marks[~on_hardware])
        kept = {key: durations[(ids == at) & ~dropped] for key, at in self._numbers.items()}
        return kept, int(dropped.sum())


def summed_up(
    files: Iterable[Mapping[Key, npt.NDArray[np.float64]]],
) -> tuple[Communication, ...]:
    """One entry for each collective and communicator, in order of first appearance."""
    gathered: dict[Key, list[npt.NDArray[np.float64]]] = {}
    for file in files:
        for key, durations in file.items():
            gathered.setdefault(key, []).append(durations)
    joined = {key: np.sort(np.concatenate(parts)) for key, parts in gathered.items()}
    return tuple(_summary(key, durations) for key, durations in joined.items() if len(durations))


def _summary(key: Key, durations: npt.NDArray[np.float64]) -> Communication:
    kernel_type, group, core = key
    return Communication(
        kernel_type=kernel_type,
        group=group,
        core=core,
        count=len(durations),
        total_us=float(durations.sum()),
        mean_us=float(durations.mean()),
        median_us=float(np.median(durations)),
        std_us=float(durations.std()),
        min_us=float(durations[0]),
        max_us=float(durations[-1]),
    )


def _distinct(block: pa.Table, name: str, holds: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
    """For each row whether its text holds, asked once a distinct text."""
    column = block.column(name).combine_chunks()
    answers = np.array([holds(text) for text in column.dictionary.to_pylist()], np.bool_)
    chosen: npt.NDArray[np.bool_] = answers[column.indices.to_numpy()]
    return chosen


def _texts(block: pa.Table, name: str) -> list[str]:
    if name not in block.column_names:
        return [""] * block.num_rows
    return [text.strip() for text in block.column(name).to_pylist()]


def _communicator(name: str) -> str:
    match = _GROUP.search(name)
    return match.group(1) if match else ""
