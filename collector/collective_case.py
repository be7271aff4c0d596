"""A collective as a case like any other, and back: its row in shards, parts and the database.

The kernel type is the profiler's name of it, so that rows of a profile and of a bench meet. What
shapes cannot tell (groups, their place, how it is timed) stands in `Runtime ...` columns, which are
part of a case's identity.
"""

import re
from dataclasses import dataclass
from itertools import groupby

from collector.case import Case
from collector.collective import BY_KERNEL_TYPE, DTYPES, OPERATIONS, Collective, check
from collector.errors import BadInput
from collector.record import CaseRecord
from collector.stack import COLLECTIVE_LIBRARIES
from collector.topology import Grid
from collector.vocabulary import BASE_CELLS, RUNTIME_PREFIX, dtype_of

_COLUMNS = tuple(
    RUNTIME_PREFIX + name
    for name in (
        *("message_bytes", "num_devices", "topology_tier", "grid_shape", "concurrent_groups"),
        *("ranks", "bench_mode"),
    )
)
_ENVIRONMENT = RUNTIME_PREFIX + "environment"
MODES = ("kernel", "event", "alternating")  # how calls are timed
_ONE, _ALL = "1", "all"
MOST_RANKS = 1 << 16  # several times the largest super-pod
_EXTENT = re.compile(r"[1-9][0-9]{0,4}")
_WHOLE = re.compile(r"0|[1-9][0-9]{0,15}")
# What changes how a collective runs, by the libraries' own documentation.
SETTING_PREFIXES = tuple(f"{name.upper()}_" for name in COLLECTIVE_LIBRARIES.values())
# Only what the libraries themselves read: a case comes from a file, and ends in a process.
_SETTING = re.compile(
    f"({'|'.join(SETTING_PREFIXES)})" + r"[A-Z0-9_]{1,60}=[A-Za-z0-9_.,:;/=-]{0,200}"
)


@dataclass(frozen=True, slots=True)
class CollectiveCase:
    """A collective with what a bench needs to run it: how ranks lie, how many are started, how its
    calls are timed, and `NAME=value ...` of what the ranks' environment says besides."""

    collective: Collective
    grid: Grid
    ranks: int
    mode: str
    environment: str = ""

    def record(self) -> CaseRecord:
        """The case as a row: one rank's tensors, flat."""
        one = self.collective
        _, item_bytes = DTYPES[one.dtype]
        sent, received = one.input_bytes // item_bytes, one.output_bytes // item_bytes
        spelling = _SPELLED[one.dtype]
        told = ("", "", str(sent), spelling, "ND", str(received), spelling, "ND")
        values = (
            *(one.message_bytes, one.group_size, one.tier, self.grid),
            *(_ALL if one.together else _ONE, self.ranks, self.mode),
        )
        extra = dict(zip(_COLUMNS, map(str, values), strict=True))
        if self.environment:
            extra[_ENVIRONMENT] = self.environment
        kernel_type = OPERATIONS[one.operation].kernel_type
        return CaseRecord(kernel_type, dict(zip(BASE_CELLS, told, strict=True)), extra)


def is_collective(kernel_type: str) -> bool:
    """Whether a kernel type is that of an operation over several ranks."""
    return kernel_type in BY_KERNEL_TYPE


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
        checked_environment(columns.get(_ENVIRONMENT, "")),
    )
    if found.grid.size > MOST_RANKS:
        raise BadInput(f"grid {found.grid}: expected at most {MOST_RANKS} ranks")
    there = found.grid.has_group(group_size, tier, found.ranks)
    if not 2 <= group_size <= found.ranks <= found.grid.size or not there:
        raise BadInput(
            f"grid {found.grid}: no group of {group_size} ranks of tier {tier} among "
            f"{found.ranks} ranks"
        )
    check(found.collective)
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
