"""The columns of a `{KernelType}.csv`: their names, their order, and how numbers are written.

The order of the first 62 is msmodeling's, whose readers go by name; what else a row carries
follows in a fixed order, so that equal content gives equal bytes. Names of earlier days that say
something else than they do now are translated here and nowhere else.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat

from collector.record import CaseRecord, ProfileStatistics
from collector.table import table_bytes
from collector.vocabulary import BASE_CELLS, COUNTERS, EP_SIZE, RUNTIME_PREFIX

AVERAGE_DURATION = "Average Duration(us)"
PROFILING_AVERAGE = "Profiling Average Duration(us)"
PROFILING_MEDIAN = "Profiling Median Duration(us)"
PROFILING_STD = "Profiling Std Duration(us)"
PROFILING_DURATIONS = (PROFILING_AVERAGE, PROFILING_MEDIAN, PROFILING_STD)
# Of how many launches these are, in trees into which profiles are pooled.
PROFILING_COUNT = "Profiling Count"

_MICROBENCH = "MicroBench "
# Whether the repeats found their inputs in the caches: `warm`, or `cold`.
CACHE = _MICROBENCH + "Cache"
# Whose kernel answered, and what its inputs were taken to hold where no row tells.
_ANSWERING = (_MICROBENCH + "Library", _MICROBENCH + "Assumes")
# Where the mean lies with 95 %: of this stack over sessions and devices, by how many degrees of
# freedom, and what most is known of its variance from.
STACK_INTERVAL = _STACK_LOW, _STACK_HIGH = (
    _MICROBENCH + "Stack Low(us)",
    _MICROBENCH + "Stack High(us)",
)
STACK_DEGREES = _MICROBENCH + "Stack Degrees"
STACK_VARIANCE = _MICROBENCH + "Stack Variance"
# How many sessions the mean is of, and the interval of that with the highest rank.
SESSIONS = _MICROBENCH + "Sessions"
_SESSION_LOW, _SESSION_HIGH = _MICROBENCH + "Session Low(us)", _MICROBENCH + "Session High(us)"
# The shortest duration that the profiler tells, by which both intervals of a number near it reach
# down.
PROFILER_FLOOR = _MICROBENCH + "Profiler Floor(us)"
_PROFILING = "Profiling Average "

# What a row of fused attention has besides, in msmodeling's order.
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


def microbench(counter: str) -> str:
    """The column of a counter's mean in the microbenchmark."""
    return _MICROBENCH + counter


def profiling(counter: str) -> str:
    """The column of a counter's mean in the source run."""
    return _PROFILING + counter


PARSER_COLUMNS = (*BASE_CELLS, *PROFILING_DURATIONS, *map(profiling, COUNTERS))
DATABASE_COLUMNS = (
    *BASE_CELLS,
    AVERAGE_DURATION,
    *PROFILING_DURATIONS,
    *(column for name in COUNTERS for column in (microbench(name), profiling(name))),
)
_FIRST = frozenset(DATABASE_COLUMNS)
_FIXED = {name: at for at, name in enumerate((*DATABASE_COLUMNS, *ATTENTION_COLUMNS))}

# msmodeling's first parser wrote the profile's own mean as `Average Duration(us)`.
_OLD_MEDIAN = "Median Duration(us)"
_OLD_PARSER = {
    _OLD_MEDIAN: PROFILING_MEDIAN,
    "Std Duration(us)": PROFILING_STD,
    "avg_seq_len": RUNTIME_PREFIX + "avg_seq_len",
    **{f"Average {name}": profiling(name) for name in COUNTERS},
}
_OLD_MICROBENCH = "MicroBench Duration(us)"
_DROPPED = frozenset({"MicroBench Task Duration(us)", "MicroBench Kernel Duration(us)"})


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """The names, each once, in the one order of columns: the 62, further counters by name with
    the microbenchmark's before the profile's, `Runtime ...`, `EP Size`, and what is unknown."""
    return tuple(sorted(set(names), key=_place))


def database_columns(names: Iterable[str]) -> tuple[str, ...]:
    """The columns of a version's CSV: all of the 62, and what else `names` brings."""
    return ordered((*DATABASE_COLUMNS, *names))


def inserted(existing: Sequence[str], names: Iterable[str]) -> tuple[str, ...]:
    """An existing header as it is, each new name placed behind what precedes it in order."""
    columns = list(existing)
    for name in ordered(names):
        if name not in columns:
            before = [at for at, other in enumerate(columns) if _place(other) < _place(name)]
            columns.insert(before[-1] + 1 if before else 0, name)
    return tuple(columns)


def present_names(columns: Sequence[str]) -> dict[str, str]:
    """What each column of a file is called today; those that are no longer kept are left out."""
    names = {name: _OLD_PARSER.get(name, name) for name in columns if name not in _DROPPED}
    if _OLD_MICROBENCH in names:
        names[_OLD_MICROBENCH] = AVERAGE_DURATION
    if AVERAGE_DURATION in names and _is_of_the_profile(columns):
        names[AVERAGE_DURATION] = PROFILING_AVERAGE
    return names


def number_text(value: float) -> str:
    """Six decimals, as msmodeling writes numbers."""
    return f"{value:.6f}"


def profile_cells(profile: ProfileStatistics) -> dict[str, str]:
    """The cells that carry a source run's statistics."""
    durations = zip(
        PROFILING_DURATIONS, (profile.mean_us, profile.median_us, profile.std_us), strict=True
    )
    return {
        **{name: number_text(value) for name, value in durations},
        **{profiling(name): number_text(value) for name, value in profile.counters},
    }


def duration_cells(
    mean_us: float, counters: Iterable[tuple[str, float]], cache: str = ""
) -> dict[str, str]:
    """The cells of a microbenchmark's mean duration and counters, and of the state of the caches
    that it was taken in, where that is known."""
    return {
        AVERAGE_DURATION: number_text(mean_us),
        **({CACHE: cache} if cache else {}),
        **{microbench(name): number_text(value) for name, value in counters},
    }


def answering_cells(library: str, assumes: str) -> dict[str, str]:
    """The cells of whose kernel answered and what it assumed, of those that there are."""
    told = zip(_ANSWERING, (library, assumes), strict=True)
    return {name: text for name, text in told if text}


def interval_cells(
    stack_us: tuple[float, float],
    degrees: float,
    variance: str,
    session_us: tuple[float, float],
    sessions: int,
    near_floor_us: float,
) -> dict[str, str]:
    """The cells of both intervals of a mean, which is of so many sessions. `variance` says what
    tells of it most closely, `near_floor_us` the profiler's floor where the mean is near it."""
    (low_us, high_us), (session_low_us, session_high_us) = stack_us, session_us
    # As `number_text` has it: to call that takes half as long again.
    return {
        _STACK_LOW: f"{low_us:.6f}",
        _STACK_HIGH: f"{high_us:.6f}",
        STACK_DEGREES: f"{degrees:.1f}",
        STACK_VARIANCE: variance,
        SESSIONS: str(sessions),
        _SESSION_LOW: f"{session_low_us:.6f}",
        _SESSION_HIGH: f"{session_high_us:.6f}",
        **({PROFILER_FLOOR: number_text(near_floor_us)} if near_floor_us else {}),
    }


def case_cells(record: CaseRecord) -> dict[str, str]:
    """The cells that tell the case, spelled as its source did."""
    return {**record.extra, **{name: record.cells.get(name, "") for name in BASE_CELLS}}


def csv_bytes(columns: Sequence[str], rows: Iterable[Mapping[str, str]]) -> bytes:
    """A CSV of the rows, UTF-8 without BOM, CRLF; a row without a cell has it empty. Raises
    BadInput, with the row and the column, for text that no table can hold."""
    cells = (list(map(row.get, columns, repeat(""))) for row in rows)
    return table_bytes(columns, cells, line_end="\r\n")


def _is_of_the_profile(columns: Sequence[str]) -> bool:
    """Whether `Average Duration(us)` here is the mean of the profile, not of a microbenchmark."""
    if _OLD_MEDIAN not in columns or any(name.startswith("Profiling ") for name in columns):
        return False
    return _OLD_MICROBENCH in columns or not any(name.startswith(_MICROBENCH) for name in columns)


def _place(name: str) -> tuple[int, int, str, int]:
    """Where a column stands: kind, then place in its kind, then name."""
    if name in _FIXED:
        return (0 if name in _FIRST else 2, _FIXED[name], "", 0)
    if name == PROFILING_COUNT:
        return (1, -1, "", 0)
    for rank, prefix in enumerate((_MICROBENCH, _PROFILING)):
        if name.startswith(prefix):
            return (1, 0, name.removeprefix(prefix), rank)
    if name.startswith(RUNTIME_PREFIX):
        return (3, 0, name, 0)
    return (4 if name == EP_SIZE else 5, 0, name, 0)
