"""The paths of a tree: `{device}/vllm_ascend/{version}/{KernelType}.csv`, and collectives in
`{device}/hccl/v{cann}/`.

Every part that comes from data is checked before it becomes part of a path.

Consumers read these files with pandas, which reads `N/A` and an empty cell as NaN, not as text. As
soon as a row with such input shapes has a duration, they fail at every row of its kernel type. Such
rows are in `{version}/unknown_inputs/{KernelType}.csv`, which only this project reads.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import TypeVar

from collector.codec.errors import file_errors
from collector.codec.table import rows_bytes, table_bytes
from collector.model.case import normal_kernel_type
from collector.model.record import CaseRecord, ProfileStatistics
from collector.model.stack import Stack, backend_of, version_name
from collector.model.vocabulary import (
    BASE_CELLS,
    COUNTERS,
    EP_SIZE,
    INPUT_SHAPES,
    OPERATOR_FILE,
    RUNTIME_PREFIX,
    TORCH_ARGUMENTS,
    TORCH_VALUES,
)
from collector.ranks.collective import is_collective

Row = TypeVar("Row", bound=Mapping[str, str])

UNKNOWN_INPUTS = "unknown_inputs"
OTHER_SETTINGS = "other_settings"  # of collectives
OP_MAPPING = "op_mapping.yaml"
COMMUNICATION_REPORT = "reports/communication.csv"
PARSED_PROFILES = "reports/parsed_profiles.json"

# The texts that pandas reads as NaN and that a profiler or a tool writes.
_NO_SHAPES = frozenset({"N/A", "NA", "NULL", "NONE", "NAN", "<NA>", "#N/A"})
_VERSION_NAME = re.compile(r"vllm[A-Za-z0-9.+-]+_torch[A-Za-z0-9.+-]+_cann[A-Za-z0-9.+-]+")


def is_version_name(text: str) -> bool:
    """Return whether the name of a folder is that of a version: `vllm0.18.0_torch2.9.0_cann8.5`."""
    return _VERSION_NAME.fullmatch(text) is not None


def version_dir_name(vllm: str, torch: str, cann: str) -> str:
    """Return the version's name from its parts. A vllm version that is already such a name is
    returned as it is.

    Raises BadInput for an invalid version."""
    return vllm if is_version_name(vllm) else version_name(vllm, torch, cann)


def version_dir(root: Path, device: str, vllm: str, torch: str, cann: str) -> Path:
    """Return the folder of a version below a tree's root. Raises BadInput for an invalid device
    name."""
    named = Stack(device=device, torch=torch)  # checks the device
    return root / named.device / "vllm_ascend" / version_dir_name(vllm, torch, cann)


def tree_paths(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """Return the root of a tree and the version directories of a folder, by their paths: all of the
    root, or the folder itself. There are none if it is no tree."""
    place = folder.absolute()
    with file_errors(folder):
        if is_version_name(place.name) and place.parent.name == "vllm_ascend":
            return place.parents[2], ("/".join(place.parts[-3:]),)
        found = (path for path in folder.glob("*/vllm_ascend/*") if path.is_dir())
        names = (path.relative_to(folder).as_posix() for path in found)
        return folder, tuple(sorted(n for n in names if is_version_name(n.rpartition("/")[2])))


def collective_folder(version_path: str) -> str:
    """Return the folder of the collectives of a version directory, in the layout of consumers: by
    the library that ran them. It is `{device}/hccl/v8.5` for CANN 8.5. For devices without CANN it
    has the version of torch, which contains the library."""
    device, _, name = version_path.partition("/")
    name = name.rpartition("/")[2]
    software, _, cann = name.rpartition("_cann")
    torch = software.rpartition("_torch")[2]
    if backend_of(device) == "cpu":
        return f"{device}/gloo/v{torch}"
    return f"{device}/nccl/v{torch}" if cann == "0" else f"{device}/hccl/v{cann}"


def is_file_of(path: str, version_path: str) -> bool:
    """Return whether a path is that of a CSV of a version directory or of its collectives. Raises
    BadInput if its name cannot be that of a kernel type."""
    folder, _, name = path.rpartition("/")
    if folder.removesuffix(f"/{OTHER_SETTINGS}") == collective_folder(version_path):
        return name.endswith(".csv") and is_collective(name.removesuffix(".csv"))
    if folder.removesuffix(f"/{UNKNOWN_INPUTS}") != version_path:
        return False
    return kernel_file_name(name.removesuffix(".csv")) == name


def kernel_file_name(kernel_type: str) -> str:
    """Return the file name of a kernel type: `Add.csv` for `Add`. Raises BadInput if it cannot be a
    file name."""
    return f"{normal_kernel_type(kernel_type)}.csv"


def by_file(kernel_type: str, rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return rows of a kernel type by their file in a version folder, in their order: first the
    rows of unknown inputs, then the others. All code that writes rows uses these files. Raises
    BadInput if the kernel type cannot be a file name."""
    name = kernel_file_name(kernel_type)
    files: dict[str, list[Row]] = {f"{UNKNOWN_INPUTS}/{name}": [], name: []}
    for row in rows:
        shapes = row.get(INPUT_SHAPES, "").strip()
        has_inputs = shapes and shapes.strip('"').strip().upper() not in _NO_SHAPES
        files[name if has_inputs else f"{UNKNOWN_INPUTS}/{name}"].append(row)
    return {file: found for file, found in files.items() if found}


def kernel_files(version: Path) -> list[Path]:
    """Return the CSVs of a version folder sorted by name, those for rows of unknown inputs last,
    without collectives, which have a separate folder; none if there is no such folder."""
    folders = (version, version / UNKNOWN_INPUTS)
    found = (path for folder in folders for path in sorted(folder.glob("*.csv")))
    return [path for path in found if not path.name.startswith((".", "hcom_"))]


# The columns of a `{KernelType}.csv`: their names, their order, and the format of numbers.
#
# The order of the first 62 is msmodeling's, whose readers use the names. All other columns follow
# in a fixed order, so that equal content gives equal bytes. Earlier names that now have another
# meaning are translated only here.

AVERAGE_DURATION = "Average Duration(us)"
PROFILING_AVERAGE = "Profiling Average Duration(us)"
PROFILING_MEDIAN = "Profiling Median Duration(us)"
PROFILING_STD = "Profiling Std Duration(us)"
PROFILING_DURATIONS = (PROFILING_AVERAGE, PROFILING_MEDIAN, PROFILING_STD)
# The number of launches of these statistics, in trees that pool several profiles.
PROFILING_COUNT = "Profiling Count"

MICROBENCH = "MicroBench "  # and the name of a counter: its mean
# Whether the repeats found their inputs in the caches: `warm` or `cold`.
CACHE = MICROBENCH + "Cache"
# What timed the launches, in the rows of a tree; empty for a profiler.
TIMED_BY = MICROBENCH + "Timed By"
# The library whose kernel ran, and the assumed content of its inputs if no row records it.
_LIBRARY_COLUMNS = (MICROBENCH + "Library", MICROBENCH + "Assumes")
# The 95 % interval of the mean of this stack over sessions and devices, its degrees of freedom, and
# the main source of its variance.
STACK_INTERVAL = _STACK_LOW, _STACK_HIGH = (
    MICROBENCH + "Stack Low(us)",
    MICROBENCH + "Stack High(us)",
)
STACK_DEGREES = MICROBENCH + "Stack Degrees"
STACK_VARIANCE = MICROBENCH + "Stack Variance"
# The number of sessions of the mean, and the interval of the session with the highest rank.
SESSIONS = MICROBENCH + "Sessions"
_SESSION_LOW, _SESSION_HIGH = MICROBENCH + "Session Low(us)", MICROBENCH + "Session High(us)"
# The names of the gates that warn of the duration, separated by `;`.
WARNINGS = MICROBENCH + "Warnings"
# The share of the repeats that the mean leaves out, if it leaves out any.
OUTLIERS = MICROBENCH + "Outliers"
# The shortest duration that the profiler records, if the mean is near it.
PROFILER_FLOOR = MICROBENCH + "Profiler Floor(us)"
PROFILING = "Profiling Average "  # and the name of a counter

# The further columns of a row of fused attention, in msmodeling's order.
ATTENTION_COLUMNS = tuple(
    RUNTIME_PREFIX + name
    for name in (
        *("source_profile", "actual_seq_lengths_shape", "actual_seq_lengths_values"),
        *("actual_seq_lengths_kv_shape", "actual_seq_lengths_kv_values", "avg_seq_len"),
        *("block_table_shape", "block_table_valid_blocks", "num_heads", "num_key_value_heads"),
        *("sparse_mode", "input_layout", "block_size", "attn_state", "kv_cache_mode"),
        "metadata_completeness",
    )
)


PARSER_COLUMNS = (*BASE_CELLS, *PROFILING_DURATIONS, *(PROFILING + name for name in COUNTERS))
DATABASE_COLUMNS = (
    *BASE_CELLS,
    AVERAGE_DURATION,
    *PROFILING_DURATIONS,
    *(column for name in COUNTERS for column in (MICROBENCH + name, PROFILING + name)),
)
_FIRST = frozenset(DATABASE_COLUMNS)
_FIXED = {name: at for at, name in enumerate((*DATABASE_COLUMNS, *ATTENTION_COLUMNS))}

# msmodeling's first parser wrote the profile's mean as `Average Duration(us)`.
_OLD_MEDIAN = "Median Duration(us)"
_OLD_PARSER = {
    _OLD_MEDIAN: PROFILING_MEDIAN,
    "Std Duration(us)": PROFILING_STD,
    "avg_seq_len": RUNTIME_PREFIX + "avg_seq_len",
    **{f"Average {name}": PROFILING + name for name in COUNTERS},
}
_OLD_MICROBENCH = "MicroBench Duration(us)"
_DROPPED = frozenset({"MicroBench Task Duration(us)", "MicroBench Kernel Duration(us)"})


_FILLED = frozenset({AVERAGE_DURATION, *PROFILING_DURATIONS})
_FILLED_PREFIXES = (MICROBENCH, "Profiling ")


def is_result(name: str) -> bool:
    """Return whether a column has results of a measurement or of a profile, which a case has not:
    only a tree or a database fills it."""
    return name in _FILLED or name.startswith(_FILLED_PREFIXES)


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names, each once, in the order of columns: the 62; further counters by name, the
    microbenchmark's before the profile's; `Runtime ...`; `EP Size`; and unknown names."""
    return tuple(sorted(set(names), key=_column_order))


def database_columns(names: Iterable[str]) -> tuple[str, ...]:
    """Return the columns of a version's CSV: all of the 62, and those of `names`."""
    return ordered((*DATABASE_COLUMNS, *names))


def inserted(existing: Sequence[str], names: Iterable[str]) -> tuple[str, ...]:
    """Return an existing header with each new name inserted after the columns that precede it in
    order."""
    columns = list(existing)
    for name in ordered(names):
        if name not in columns:
            before = [
                at for at, other in enumerate(columns) if _column_order(other) < _column_order(name)
            ]
            columns.insert(before[-1] + 1 if before else 0, name)
    return tuple(columns)


def present_names(columns: Sequence[str]) -> dict[str, str]:
    """Return the present name of each column of a file; columns that are no longer used are left
    out."""
    names = {name: _OLD_PARSER.get(name, name) for name in columns if name not in _DROPPED}
    if _OLD_MICROBENCH in names:
        names[_OLD_MICROBENCH] = AVERAGE_DURATION
    if AVERAGE_DURATION in names and _OLD_MEDIAN in names:
        is_new = any(name.startswith("Profiling ") for name in columns)
        is_measured = any(name.startswith(MICROBENCH) for name in columns)
        if not is_new and (_OLD_MICROBENCH in names or not is_measured):
            names[AVERAGE_DURATION] = PROFILING_AVERAGE
    return names


def number_text(value: float) -> str:
    """Return a number with six decimals, as msmodeling writes numbers."""
    return f"{value:.6f}"


def profile_cells(profile: ProfileStatistics) -> dict[str, str]:
    """Return the cells of a source run's statistics."""
    durations = zip(
        PROFILING_DURATIONS, (profile.mean_us, profile.median_us, profile.std_us), strict=True
    )
    return {
        **{name: number_text(value) for name, value in durations},
        **{PROFILING + name: number_text(value) for name, value in profile.counters},
    }


def duration_cells(
    mean_us: float,
    counters: Iterable[tuple[str, float]],
    cache: str = "",
    warnings: str | None = None,
) -> dict[str, str]:
    """Return the cells of a microbenchmark's mean duration and counters; of the state of the caches
    during the measurement, and of its warnings, if they are known."""
    return {
        AVERAGE_DURATION: number_text(mean_us),
        **({CACHE: cache} if cache else {}),
        **({WARNINGS: warnings} if warnings is not None else {}),
        **{MICROBENCH + name: number_text(value) for name, value in counters},
    }


def outlier_cells(share: float) -> dict[str, str]:
    """Return the cell of the share of repeats that the mean leaves out, if it leaves out any."""
    return {OUTLIERS: f"{share:.4f}"} if share else {}


def library_cells(library: str, assumes: str) -> dict[str, str]:
    """Return the cells of the library of the kernel and of its assumptions, if they are not
    empty."""
    cells = zip(_LIBRARY_COLUMNS, (library, assumes), strict=True)
    return {name: text for name, text in cells if text}


@dataclass(frozen=True, slots=True)
class IntervalColumn:
    """A column of a snapshot's table of intervals, and the cell of a `{KernelType}.csv` that shows
    it, in the format `spelling`."""

    name: str
    type: type[float | int | str]
    cell: str
    spelling: str
    description: str
    is_optional: bool = False


# In the order of an IntervalRow.
INTERVAL_COLUMNS = (
    IntervalColumn(
        *("mean_us", float, AVERAGE_DURATION, "%.6f"),
        "mean duration of the case over its sessions",
    ),
    IntervalColumn(
        *("stack_low_us", float, _STACK_LOW, "%.6f"),
        "lower end of the 95 % interval of mean_us over sessions and devices",
    ),
    IntervalColumn(
        *("stack_high_us", float, _STACK_HIGH, "%.6f"),
        "upper end of the 95 % interval of mean_us over sessions and devices",
    ),
    IntervalColumn(
        *("stack_degrees", float, STACK_DEGREES, "%.1f"),
        "degrees of freedom of that interval, to one decimal",
    ),
    IntervalColumn(
        *("stack_variance", str, STACK_VARIANCE, "%s"),
        "the most specific data that the variance of mean_us comes from",
    ),
    IntervalColumn(
        *("sessions", int, SESSIONS, "%d"),
        "number of sessions that mean_us is the mean of; 0 if it is imported",
    ),
    IntervalColumn(
        *("session_low_us", float, _SESSION_LOW, "%.6f"),
        "lower end of the 95 % interval of the mean within the session of highest rank; "
        "empty if imported",
        is_optional=True,
    ),
    IntervalColumn(
        *("session_high_us", float, _SESSION_HIGH, "%.6f"),
        "upper end of the 95 % interval of the mean within the session of highest rank; "
        "empty if imported",
        is_optional=True,
    ),
    IntervalColumn(
        *("profiler_floor_us", float, PROFILER_FLOOR, "%.6f"),
        "the shortest duration that the profiler records, if mean_us is near it: both intervals "
        "are extended downwards by it",
        is_optional=True,
    ),
    IntervalColumn(
        *("outlier_share", float, OUTLIERS, "%.4f"),
        "share of the repeats that the mean leaves out as outliers, in the session of highest rank",
        is_optional=True,
    ),
    IntervalColumn(
        *("warnings", str, WARNINGS, "%s"),
        "names of the gates that warn of mean_us, separated by `;`",
    ),
)
_Optional = float | None
IntervalRow = tuple[
    float, float, float, float, str, int, _Optional, _Optional, _Optional, _Optional, str
]
_INTERVAL_CELLS = tuple((column.cell, column.spelling) for column in INTERVAL_COLUMNS)


def interval_cells(row: IntervalRow) -> dict[str, str]:
    """Return the cells of a mean and of both its intervals."""
    # In place: a call of `number_text` for each takes half as long again.
    columns = zip(_INTERVAL_CELLS, row, strict=True)
    return {cell: spelling % value for (cell, spelling), value in columns if value is not None}


def case_cells(record: CaseRecord) -> dict[str, str]:
    """Return the cells that identify the case, as its source wrote them."""
    return {**record.extra, **{name: record.cells.get(name, "") for name in BASE_CELLS}}


def csv_bytes(columns: Sequence[str], rows: Iterable[Mapping[str, str]]) -> bytes:
    """Return a CSV of the rows: UTF-8 without BOM, CRLF. A cell that a row lacks is empty. Raises
    BadInput, with the row and the column, for text that a table cannot contain."""
    return table_bytes(columns, _cells(columns, rows), line_end="\r\n")


def csv_body(columns: Sequence[str], rows: Iterable[Mapping[str, str]]) -> bytes:
    """Return the rows of such a CSV without its header."""
    return rows_bytes(_cells(columns, rows), line_end="\r\n")


def _cells(columns: Sequence[str], rows: Iterable[Mapping[str, str]]) -> Iterator[Sequence[str]]:
    return (list(map(row.get, columns, repeat(""))) for row in rows)


def _column_order(name: str) -> tuple[int, int, str, int]:
    if name in _FIXED:
        return (0 if name in _FIRST else 2, _FIXED[name], "", 0)
    if name == PROFILING_COUNT:
        return (1, -1, "", 0)
    for rank, prefix in enumerate((MICROBENCH, PROFILING)):
        if name.startswith(prefix):
            return (1, 0, name.removeprefix(prefix), rank)
    if name.startswith(RUNTIME_PREFIX):
        return (3, 0, name, 0)
    return (4 if name == EP_SIZE else 5, 0, name, 0)


# What the fixed columns of a `{KernelType}.csv` contain, for the documentation; INTERVAL_COLUMNS
# describe the others. A mapping `{counter}` stands for each counter of the profiler.
_DESCRIPTIONS = {
    "OP State": "`dynamic`, or `static` for a kernel compiled for its shapes",
    "Accelerator Core": "core that the kernel runs on",
    INPUT_SHAPES: "shape of each input, separated by `;`",
    "Input Data Types": "dtype of each input, separated by `;`",
    "Input Formats": "format of each input, separated by `;`",
    "Output Shapes": "shape of each output, separated by `;`",
    "Output Data Types": "dtype of each output, separated by `;`",
    "Output Formats": "format of each output, separated by `;`",
    PROFILING_AVERAGE: "mean duration in the source's own run; empty if it had another stack",
    PROFILING_MEDIAN: "median duration in that run",
    PROFILING_STD: "standard deviation of the durations in that run",
    PROFILING_COUNT: "number of launches in that run, in trees that pool several profiles",
    MICROBENCH + "{counter}": "mean of a hardware counter in the isolated replay",
    PROFILING + "{counter}": "mean of a hardware counter in the source's own run",
    CACHE: "content of the cache before each repeat: `warm` or `cold`",
    TIMED_BY: "`events` if events of the device timed the launches; empty for a profiler",
    _LIBRARY_COLUMNS[0]: "library whose kernel ran: `cann`, `vllm-ascend`, `atb` or `triton`",
    WARNINGS: "names of the [gates](gates.md#gates) that warn of the duration, separated by `;`; "
    "empty if none does",
    _LIBRARY_COLUMNS[1]: "assumed values of inputs that no row contains, such as indices",
    RUNTIME_PREFIX + "{name}": "value of the running model, such as sequence lengths, that is part "
    "of the case",
    TORCH_ARGUMENTS: "arguments of an [operator of torch](operators.md#operators-of-torch), "
    "besides tensors",
    TORCH_VALUES: "range of the values of its tensors; it does not distinguish cases",
    OPERATOR_FILE: "hash of the file of [operators of a user]"
    "(../how-to/measure-an-operator-of-your-own.md) that declares the kernel",
    EP_SIZE: "number of ranks that share the experts, in rows over several ranks",
}


def described_columns() -> dict[str, str]:
    """Return what each column of a `{KernelType}.csv` contains, in the order of the columns."""
    intervals = {column.cell: column.description for column in INTERVAL_COLUMNS}
    described = {**_DESCRIPTIONS, **intervals}
    return {name: described[name] for name in ordered(described)}
