"""A collective: its operation, its bytes by the consumer's convention, and its group.

Operations have the names of torch.distributed's functions. HCCL has two kernels of all-to-all, of
two calls: a list of tensors, or one tensor with the sizes of its parts, is HcclAlltoAllV, whose
kernel is `hcom_alltoallv_`; one tensor without sizes is HcclAlltoAll, `hcom_alltoall_`. They are
different collectives, as profilers record them. The consumer looks its all_to_all up in the first,
with equal parts (msmodeling, comm_bench/generate_comm_microbench.py and op_mapping.yaml of v0.18).

`message_bytes` is the size that the existing consumer looks up: for all_gather one rank's input,
for reduce_scatter one rank's share of the output, for all others one rank's whole tensor. Bus
bandwidth is as in nccl-tests' PERFORMANCE.md: the bytes that have to cross the slowest link of a
ring, divided by time, so that it can be compared with the link's bandwidth.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

from collector.codec.errors import BadInput
from collector.codec.numbers import decimal_text
from collector.model.case import Case
from collector.model.lookup import Lookup, make_lookups
from collector.model.record import CaseRecord
from collector.model.stack import COLLECTIVE_LIBRARIES
from collector.model.vocabulary import (
    BASE_CELLS,
    INPUT_DTYPES,
    INPUT_SHAPES,
    RUNTIME_PREFIX,
    dtype_of,
)
from collector.ranks.topology import Grid


@dataclass(frozen=True, slots=True)
class Operation:
    """A collective operation. `file` is the CSV's name in a tree. `sends` and `receives` are the
    sizes of a rank's input and output tensors in messages, by the group's size; `crosses` is the
    same for the data that a ring moves over each link. `is_split` if each rank gets its part of the
    message. `lookups` are the operators of a model whose duration a consumer takes from it."""

    name: str
    file: str
    sends: Callable[[int], int]
    receives: Callable[[int], int]
    crosses: Callable[[int], float]
    is_split: bool = False
    lookups: tuple[Lookup, ...] = ()

    @property
    def kernel_type(self) -> str:
        """Return the kernel type, as profilers name it."""
        return self.file.removesuffix(".csv")


def _once(size: int) -> int:
    return 1


def _each(size: int) -> int:
    return size


def _simulated_as(name: str) -> tuple[Lookup, ...]:
    return make_lookups(f"tensor_cast.{name}.default", category="communication")


OPERATIONS = {
    one.name: one
    for one in (
        Operation(
            *("all_reduce", "hcom_allReduce_.csv", _once, _once),
            lambda size: 2 * (size - 1) / size,
            lookups=_simulated_as("all_reduce"),
        ),
        Operation(
            *("all_gather", "hcom_allGather_.csv", _once, _each),
            lambda size: size - 1,
            lookups=_simulated_as("all_gather"),
        ),
        Operation(
            *("reduce_scatter", "hcom_reduceScatter_.csv", _each, _once),
            lambda size: size - 1,
            lookups=_simulated_as("reduce_scatter"),
        ),
        Operation(
            *("all_to_all", "hcom_alltoallv_.csv", _once, _once),
            *(lambda size: (size - 1) / size, True),
            lookups=_simulated_as("all_to_all"),
        ),
        Operation(
            *("all_to_all_single", "hcom_alltoall_.csv", _once, _once),
            *(lambda size: (size - 1) / size, True),
        ),
        Operation("broadcast", "hcom_broadcast_.csv", _once, _once, lambda size: 1.0),
        # Each rank to the next one of its group, and the last to the first.
        Operation("send_recv", "hcom_batchSendRecv_.csv", _once, _once, lambda size: 1.0),
    )
}

BY_KERNEL_TYPE = {one.kernel_type: one for one in OPERATIONS.values()}

# Spelling of the consumer's files, and the bytes of an element.
DTYPES = {
    "bfloat16": ("DT_BF16", 2),
    "float16": ("DT_FP16", 2),
    "float32": ("DT_FLOAT", 4),
    "int8": ("DT_INT8", 1),
}


@dataclass(frozen=True, slots=True)
class Collective:
    """One case: `dtype` is a key of DTYPES. With `together` every group of the tier works at the
    same time, otherwise one alone while the others are idle."""

    operation: str
    message_bytes: int
    dtype: str
    group_size: int
    tier: int
    together: bool = False

    def __str__(self) -> str:
        how = ", all groups at once" if self.together else ""
        what = f"{self.operation} of {self.message_bytes} bytes of {self.dtype}"
        return f"{what} over {self.group_size} ranks of tier {self.tier}{how}"

    @property
    def elements(self) -> int:
        """Return the number of elements of a message."""
        return self.message_bytes // DTYPES[self.dtype][1]

    @property
    def input_bytes(self) -> int:
        """Return the bytes of one rank's input tensor."""
        return self.message_bytes * OPERATIONS[self.operation].sends(self.group_size)

    @property
    def output_bytes(self) -> int:
        return self.message_bytes * OPERATIONS[self.operation].receives(self.group_size)

    @property
    def bus_bytes(self) -> float:
        """Return the bytes that a ring moves over each of its links."""
        return self.message_bytes * OPERATIONS[self.operation].crosses(self.group_size)


def check_collective(collective: Collective) -> None:
    """Raise BadInput for a message that is not a whole number of elements: the label of its row
    would state a wrong number of bytes."""
    whole = whole_bytes(collective)
    if collective.message_bytes < whole or collective.message_bytes % whole:
        is_split = OPERATIONS[collective.operation].is_split
        each = f" for each of {collective.group_size} ranks" if is_split else ""
        raise BadInput(
            f"{collective}: expected a multiple of {whole} bytes (whole elements{each}), got "
            f"{collective.message_bytes}"
        )


def whole_bytes(collective: Collective) -> int:
    """Return the bytes that a message must be a multiple of: one element, or one for each rank if
    the operation splits the message."""
    parts = collective.group_size if OPERATIONS[collective.operation].is_split else 1
    return DTYPES[collective.dtype][1] * parts


def dtype_named(text: str) -> str:
    """Return the dtype of `torch.bfloat16`, `bfloat16` or `DT_BF16`. Raises BadInput for others."""
    plain = text.removeprefix("torch.")
    by_cell = {cell: name for name, (cell, _) in DTYPES.items()}
    found = plain if plain in DTYPES else by_cell.get(plain)
    if found is None:
        raise BadInput(f"dtype: expected one of {', '.join(DTYPES)}, got {text!r}")
    return found


# Conversion between a collective and a case: its row in shards, parts and the database.
#
# The kernel type is the profiler's name of the operation, so that rows of a profile and of a bench
# match. Facts that shapes do not show (groups, their tier, how calls are timed) are in `Runtime
# ...` columns, which are part of a case's identity.

_COLUMNS = tuple(
    RUNTIME_PREFIX + name
    for name in (
        *("message_bytes", "num_devices", "topology_tier", "grid_shape", "concurrent_groups"),
        *("ranks", "bench_mode"),
    )
)
MESSAGE_BYTES = _COLUMNS[0]  # follows from the tensor of a rank, the operation and the group
ENVIRONMENT = RUNTIME_PREFIX + "environment"
MODES = ("kernel", "event", "alternating")  # how calls are timed
_ONE, _ALL = "1", "all"
MOST_RANKS = 1 << 16  # several times the largest super-pod
_EXTENT = re.compile(r"[1-9][0-9]{0,4}")
_WHOLE = re.compile(r"0|[1-9][0-9]{0,15}")
# Variables that change how a collective runs, from the libraries' own documentation.
SETTING_PREFIXES = tuple(f"{name.upper()}_" for name in COLLECTIVE_LIBRARIES.values())
# Of these, variables for the ranks' addresses, timeouts and debug output: no duration depends on
# them, and they differ between machines.
NO_MATTER = ("_IF_IP", "_IF_BASE_PORT", "_SOCKET_IFNAME", "_TIMEOUT", "_DEBUG")
# Only variables that the libraries read: a case comes from a file and sets them in a process.
_SETTING = re.compile(
    f"({'|'.join(SETTING_PREFIXES)})" + r"[A-Z0-9_]{1,60}=[A-Za-z0-9_.,:;/=-]{0,200}"
)


@dataclass(frozen=True, slots=True)
class CollectiveCase:
    """A collective with the settings that a bench needs to run it: the grid of ranks, how many are
    started, how calls are timed, and `NAME=value ...` that is added to the ranks' environment."""

    collective: Collective
    grid: Grid
    ranks: int
    mode: str
    environment: str = ""

    def record(self) -> CaseRecord:
        """Return the case as a row: one rank's tensors, flat."""
        one = self.collective
        _, item_bytes = DTYPES[one.dtype]
        sent, received = one.input_bytes // item_bytes, one.output_bytes // item_bytes
        spelling = _SPELLED[one.dtype]
        cells = ("", "", str(sent), spelling, "ND", str(received), spelling, "ND")
        values = (
            *(one.message_bytes, one.group_size, one.tier, self.grid),
            *(_ALL if one.together else _ONE, self.ranks, self.mode),
        )
        extra = dict(zip(_COLUMNS, map(str, values), strict=True))
        if self.environment:
            extra[ENVIRONMENT] = self.environment
        kernel_type = OPERATIONS[one.operation].kernel_type
        return CaseRecord(kernel_type, dict(zip(BASE_CELLS, cells, strict=True)), extra)


def is_collective(kernel_type: str) -> bool:
    """Return whether a kernel type is that of an operation over several ranks."""
    return kernel_type in BY_KERNEL_TYPE


def with_message_bytes(kernel_type: str, cells: dict[str, str]) -> dict[str, str]:
    """Return the cells of a case with the bytes of its message, which follow from its tensor; as
    they are if it is no collective or has no group."""
    group, dtype = cells.get(_COLUMNS[1], ""), dtype_of(cells[INPUT_DTYPES])
    size = cells[INPUT_SHAPES].strip('"')
    if not (is_collective(kernel_type) and _WHOLE.fullmatch(group) and size.isdecimal() and dtype):
        return cells
    sent = dtype.bytes_of(int(size)) // max(1, BY_KERNEL_TYPE[kernel_type].sends(int(group)))
    return {**cells, MESSAGE_BYTES: str(sent)}


def collective_case_of(case: Case) -> CollectiveCase:
    """Return the collective of a case of such a kernel type. Raises BadInput, with the column, for
    a row with missing or contradictory columns."""
    operation = BY_KERNEL_TYPE[case.kernel_type]
    columns = dict(case.attributes)
    if missing := [name for name in _COLUMNS if name not in columns]:
        raise BadInput(f"missing column {missing[0]!r}: a collective requires it")
    message_bytes, group_size, tier = (_whole(columns, name) for name in _COLUMNS[:3])
    if (mode := columns[_COLUMNS[6]]) not in MODES:
        raise BadInput(f"{_COLUMNS[6]}: expected one of {', '.join(MODES)}, got {mode!r}")
    together = columns[_COLUMNS[4]]
    if together not in (_ONE, _ALL):
        raise BadInput(f"{_COLUMNS[4]}: expected {_ONE} or {_ALL}, got {together!r}")
    slots = case.inputs or ()
    dtype = next((name for name, text in _SPELLED.items() if slots and slots[0].dtype == text), "")
    if not dtype:
        raise BadInput(f"expected a collective of dtype {', '.join(_SPELLED.values())}")
    found = CollectiveCase(
        Collective(operation.name, message_bytes, dtype, group_size, tier, together == _ALL),
        Grid(tuple(_extent(text) for text in columns[_COLUMNS[3]].split(" "))),
        _whole(columns, _COLUMNS[5]),
        mode,
        checked_environment(columns.get(ENVIRONMENT, "")),
    )
    if found.grid.size > MOST_RANKS:
        raise BadInput(f"grid {found.grid}: expected at most {MOST_RANKS} ranks")
    there = found.grid.has_group(group_size, tier, found.ranks)
    if not 2 <= group_size <= found.ranks <= found.grid.size or not there:
        raise BadInput(
            f"grid {found.grid}: no group of {group_size} ranks of tier {tier} among "
            f"{found.ranks} ranks"
        )
    check_collective(found.collective)
    if case != found.record().case:
        raise BadInput("expected the tensors of the message that the columns describe, got others")
    return found


def checked_environment(text: str) -> str:
    """Return `NAME=value NAME=value` if names are sorted and unique. Raises BadInput also for a
    variable that no library of collectives reads."""
    settings = text.split(" ") if text else []
    for setting in settings:
        if not _SETTING.fullmatch(setting):
            raise BadInput(
                "environment: expected NAME=value with a name HCCL_..., NCCL_... or GLOO_..."
            )
    names = [setting.partition("=")[0] for setting in settings]
    if names != [name for name, _ in groupby(sorted(names))]:
        raise BadInput("environment: expected sorted names, each once")
    return text


def _whole(columns: dict[str, str], name: str) -> int:
    if not _WHOLE.fullmatch(columns[name]):
        raise BadInput(f"{name}: expected an integer >= 0, got {columns[name][:40]!r}")
    return int(columns[name])


def _extent(text: str) -> int:
    if not _EXTENT.fullmatch(text):
        raise BadInput(f"{_COLUMNS[3]}: expected extents such as 48 8 2, got {text[:40]!r}")
    return int(text)


def _spelling(dtype: str) -> str:
    known = dtype_of("FLOAT16" if dtype == "float16" else DTYPES[dtype][0])
    assert known is not None, dtype
    return known.spelling


_SPELLED = {dtype: _spelling(dtype) for dtype in DTYPES}


# A row of `hcom_allReduce_.csv` and similar files: the columns, and the measured cells.
#
# The first six columns are the consumer's, in its order; it reads by name and ignores the others.
# `Duration(us)` is the measured duration, the median over calls: nothing is added to it.

KEY = ("message_bytes", "num_devices", "dtype", "topology_tier")
DURATION = "Duration(us)"
_ALONE = (
    *(DURATION, "bandwidth_gbps", "bus_bandwidth_gbps", "mode", "backend", "rounds", "iterations"),
    *("round_spread", "min_us", "p90_us", "max_us", "rank_min_us", "rank_max_us", "skew_us"),
    *("environment", "jump"),
)
# Those of the calls of a bench.
OF_CALLS = frozenset(_ALONE) - {DURATION, "bandwidth_gbps", "bus_bandwidth_gbps", "mode", "backend"}
_TOGETHER = ("concurrent_groups", "concurrent_us", "concurrent_slowest_us")
COLUMNS = (*KEY, *_ALONE, *_TOGETHER)
# Columns that a database adds, from all sessions that measured the row: of one group, and of all.
OF_SESSIONS = ("stack_low_us", "stack_high_us", "stack_variance", "sessions", "warnings")
OF_SESSIONS_TOGETHER = ("concurrent_low_us", "concurrent_high_us", "concurrent_warnings")
# What each of these columns contains, for the documentation.
DESCRIPTIONS = {
    "message_bytes": "bytes of a message: one rank's tensor; for all_gather its input, for "
    "reduce_scatter its share of the output",
    "num_devices": "number of ranks of a group",
    "dtype": "dtype of the elements",
    "topology_tier": "tier of the topology that the group spans; 0 is the outermost",
    DURATION: "median over calls, groups and rounds, from the arrival of the last rank to the end "
    "of the last rank",
    "bandwidth_gbps": "bytes of a message over the duration",
    "bus_bandwidth_gbps": "bytes that a ring moves over each link, over the duration",
    "mode": "how calls were timed: `event`, `alternating` or `kernel`",
    "backend": "communication library",
    "rounds": "number of times that the size was measured",
    "iterations": "number of calls of a round",
    "round_spread": "distance of a round from the median of the rounds, relative to it",
    "min_us": "shortest duration of a call",
    "p90_us": "90th percentile of the durations",
    "max_us": "longest duration of a call",
    "rank_min_us": "smallest median of a rank, including its waiting",
    "rank_max_us": "largest median of a rank, including its waiting",
    "skew_us": "spread of the arrivals of the ranks",
    "environment": "variables of the library that were set and change its algorithm",
    "jump": "change of protocol between this size and the next larger one",
    "concurrent_groups": "number of groups that worked at once",
    "concurrent_us": "median duration with all groups of the tier at once",
    "concurrent_slowest_us": "median duration of the slowest of these groups",
    "stack_low_us": "lower end of the 95 % interval of the duration over sessions and devices",
    "stack_high_us": "upper end of that interval",
    "stack_variance": "the most specific data that the variance comes from",
    "sessions": "number of sessions of the duration",
    "warnings": "names of the gates that warn of the duration, separated by `;`",
    "concurrent_low_us": "lower end of the interval of `concurrent_us`",
    "concurrent_high_us": "upper end of that interval",
    "concurrent_warnings": "the same as `warnings`, of `concurrent_us`",
}

Cells = dict[str, str]


@dataclass(frozen=True, slots=True)
class CollectiveFacts:
    """The results of a bench for a case: durations in microseconds over all its calls, the smallest
    and the largest of the ranks' own medians, and the skew of their arrivals. `jump` describes one
    between this size and the next. `groups` groups worked at once; the slowest took
    `slowest_us`."""

    duration_us: float
    mode: str
    backend: str
    rounds: int
    iterations: int
    round_spread: float
    min_us: float
    p90_us: float
    max_us: float
    rank_min_us: float
    rank_max_us: float
    skew_us: float
    environment: str
    jump: str = ""
    groups: int = 1
    slowest_us: float = 0.0


def key_cells(collective: Collective) -> Cells:
    """Return the cells that identify a row of a file."""
    dtype, _ = DTYPES[collective.dtype]
    values = (collective.message_bytes, collective.group_size, dtype, collective.tier)
    return dict(zip(KEY, map(str, values), strict=True))


def fact_cells(collective: Collective, facts: CollectiveFacts) -> Cells:
    """Return the measured cells: of one group alone, or of all groups at once."""
    if collective.together:
        return {
            "concurrent_groups": str(facts.groups),
            "concurrent_us": decimal_text(facts.duration_us),
            "concurrent_slowest_us": decimal_text(facts.slowest_us),
        }
    return {
        DURATION: decimal_text(facts.duration_us),
        "bandwidth_gbps": decimal_text(collective.message_bytes / facts.duration_us / 1e3),
        "bus_bandwidth_gbps": decimal_text(collective.bus_bytes / facts.duration_us / 1e3),
        "mode": facts.mode,
        "backend": facts.backend,
        "rounds": str(facts.rounds),
        "iterations": str(facts.iterations),
        "round_spread": decimal_text(facts.round_spread),
        "min_us": decimal_text(facts.min_us),
        "p90_us": decimal_text(facts.p90_us),
        "max_us": decimal_text(facts.max_us),
        "rank_min_us": decimal_text(facts.rank_min_us),
        "rank_max_us": decimal_text(facts.rank_max_us),
        "skew_us": decimal_text(facts.skew_us),
        "environment": facts.environment,
        "jump": facts.jump,
    }
