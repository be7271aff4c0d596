"""Reader of `step_trace_time.csv`, which Ascend's profiler writes next to `kernel_details.csv`.

It has the time that each step computed, waited for communication that was not overlapped, and was
idle. The three add up to the step (`Stage`) except for rounding. A file has a line for each step
that was profiled, and in some releases a `Device_id`.
"""

import io
from dataclasses import dataclass
from math import fsum
from pathlib import Path

from collector.codec.errors import BadInput
from collector.codec.files import read_small_file
from collector.codec.numbers import parse_number
from collector.codec.table import csv_rows
from collector.profiles.discovery import find_profiles

FILE = "step_trace_time.csv"
Times = tuple[float, ...]
_MOST_US = 1e15
# Those that torch_npu writes without pipelines of stages.
STEP_COLUMNS = (
    *("Device_id", "Step", "Computing", "Communication(Not Overlapped)", "Overlapped"),
    *("Communication", "Free", "Stage"),
)
_PARTS = ("Computing", "Communication(Not Overlapped)", "Free")


@dataclass(frozen=True, slots=True)
class StepTrace:
    """The time of `steps` steps together, in microseconds.

    Its parts are computing, communication that is not overlapped, and idle time."""

    steps: int
    computing_us: float
    communication_us: float
    free_us: float

    @property
    def whole_us(self) -> float:
        return fsum((self.computing_us, self.communication_us, self.free_us))


def read_step_trace(path: Path) -> StepTrace | None:
    """Return the steps of every run at or below a path; None if no run records them.

    Raises BadInput, with file and line, for an invalid file."""
    folders = dict.fromkeys(file.parent for file in find_profiles([path]))
    found = [
        row
        for folder in folders
        if (folder / FILE).is_file()
        for row in read_step_times(folder / FILE)
    ]
    if not found:
        return None
    return StepTrace(len(found), *(fsum(part) for part in zip(*found, strict=True)))


def read_step_times(file: Path) -> tuple[Times, ...]:
    """Return the computing, communication and idle time of each step of a file, in microseconds.

    Raises BadInput, with the line, for an invalid file."""
    try:
        text = read_small_file(file).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot be read as a table of steps: {error}", path=file) from error
    rows = csv_rows(io.StringIO(text, newline=""), path=file)
    _, header = next(rows, (1, []))
    if missing := [name for name in _PARTS if name not in header]:
        raise BadInput(f"expected the columns {', '.join(_PARTS)}: missing {missing[0]}", path=file)
    places = [header.index(name) for name in _PARTS]
    found = []
    for line, row in rows:
        if not row:
            continue
        try:
            times = tuple(parse_number(row[at]) for at in places)
            is_right = all(0 <= time <= _MOST_US for time in times)
        except (IndexError, ValueError):
            is_right = False
        if not is_right:
            what = f"line {line}: expected times of a step, in microseconds"
            raise BadInput(what, path=file)
        found.append(times)
    return tuple(found)
