"""Data that the collectives of a run sent, from files that Ascend's profiler writes next to
`kernel_details.csv`.

`communication.json` has a member for each collective, `hcom_allReduce__586_0_1@<group>`, with its
time and the data that this rank sent over each kind of link, in 1e6 bytes; `Total Op Info` is their
sum. SDMA includes HCCS, PCIE and SIO. `communication_matrix.json` names both ends of every link of
a group, `0-1`: the minimum number of ranks. `profiler_metadata.json` may have the ranks, and
`trace_view.json` the parameters of the calls.
"""

import codecs
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from collector.codec.canonical import json_object
from collector.codec.errors import BadInput, file_errors
from collector.codec.files import open_own_file, read_small_file
from collector.codec.text import counted
from collector.profiles.discovery import folders_below, note_of, unanalysed_captures
from collector.profiles.kernel_details import read_profile

logger = logging.getLogger(__name__)

# The parameters of the collectives of a run: `trace_view.json`, which Ascend's profiler writes next
# to `communication.json`.
#
# It is a list of events with hundreds of MB for a long step, so it is read event by event. The
# event of a collective has its name, `hcom_allReduce__586_0_1`, and the `count` and `data_type` of
# the HCCL call; newer ones also have its `rank_size`.

TRACE = "trace_view.json"
_PIECE_BYTES = 1 << 20
_LONGEST_EVENT = 1 << 24  # characters; a call stack has some thousands
_TRACE_VIEW_NAME = re.compile(r"hcom_[A-Za-z]+__\w+")
_UNKNOWN = ("N/A", "RESERVED", "INVALID_TYPE")  # of msprof, for a call that it knows little about
_MOST_ELEMENTS = 1 << 48
_MOST_RANKS = 1 << 20
_BLANK = re.compile(r"[ \t\r\n]*")
_event_at = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True)
class CallParameters:
    """The parameters of an HCCL call.

    They are the number of elements as its function counts them, their type in HCCL's names (`FP32`,
    `BFP16`), and the ranks of the group (None if the trace does not record it)."""

    elements: int
    data_type: str
    group_size: int | None = None


def call_parameters(folder: Path) -> Mapping[str, CallParameters]:
    """Return the parameters by the collectives' names in a run's folder.

    A name with several different parameters is left out. Empty if there is no trace. Raises
    BadInput for a file of another kind."""
    path = folder / TRACE
    if not path.exists():
        return {}
    found: dict[str, set[CallParameters]] = {}
    for at, event in transfer_events(path):
        name = event.get("name")
        if isinstance(name, str) and _TRACE_VIEW_NAME.fullmatch(name):
            parameters = _parameters(event.get("args"), f"event {at}, {name}", path)
            if parameters is not None:
                found.setdefault(name, set()).add(parameters)
    return {name: next(iter(recorded)) for name, recorded in found.items() if len(recorded) == 1}


def transfer_events(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the events of a trace and their positions, from 1 on, with one event in memory.

    Raises BadInput, with the position, for anything that is not a list of objects."""
    with file_errors(path), open_own_file(path) as file:
        yield from _Text(file, path).events()


class _Text:
    """The characters of a file; those that were parsed are released."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text, self._at, self._place = "", 0, 0
        self._is_whole = False

    def events(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        self._take("[")
        mark = self._take("]") if self._next() == "]" else ","
        while mark == ",":
            self._place += 1
            yield self._place, self._event()
            mark = self._take(",]")
        if self._next():
            raise self._refusal("unexpected text after the list")

    def _event(self) -> Mapping[str, Any]:
        if self._next() != "{":  # otherwise a prefix could be taken for the whole value
            raise self._refusal("expected an object")
        while True:
            try:
                event, self._at = _event_at(self._text, self._at)
                break
            except RecursionError as error:
                raise self._refusal("nested too deeply") from error
            except ValueError as error:  # an invalid event, or an incomplete one
                if len(self._text) - self._at > _LONGEST_EVENT or not self._more():
                    recorded = error.msg if isinstance(error, json.JSONDecodeError) else error
                    raise self._refusal(f"invalid JSON: {recorded}") from error
        found: Mapping[str, Any] = event
        return found

    def _take(self, marks: str) -> str:
        """Consume the next character, which must be one of `marks`."""
        mark = self._next()
        if not mark or mark not in marks:
            raise self._refusal(f"expected a list of events: missing {marks[-1]}")
        self._at += 1
        return mark

    def _next(self) -> str:
        """Return the next character that is not blank, without consuming it; empty at the end."""
        while True:
            blank = _BLANK.match(self._text, self._at)
            assert blank is not None
            self._at = blank.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _more(self) -> bool:
        """Read another piece; return False at the end of the file."""
        if self._is_whole:
            return False
        piece = self._file.read(_PIECE_BYTES)
        self._is_whole = not piece
        try:
            text = self._decoder.decode(piece, final=not piece)
        except UnicodeDecodeError as error:
            raise self._refusal("expected UTF-8 text") from error
        self._text, self._at = self._text[self._at :] + text, 0
        return True

    def _refusal(self, reason: str) -> BadInput:
        place = f"event {self._place}: " if self._place else ""
        return BadInput(f"{place}{reason}", path=self._path)


def _parameters(args: object, place: str, path: Path) -> CallParameters | None:
    if args is None:
        return None
    if not isinstance(args, dict):
        raise BadInput(f"{place}: 'args': expected an object", path=path)
    count, data_type = args.get("count"), args.get("data_type")
    if count is None or data_type is None or count in _UNKNOWN:
        return None
    if not isinstance(data_type, str):
        raise BadInput(f"{place}: 'data_type': expected text", path=path)
    elements = _whole(count, "count", place, path)
    if data_type in _UNKNOWN or not 0 < elements < _MOST_ELEMENTS:
        return None
    size = _whole(args.get("rank_size", 0), "rank_size", place, path)
    return CallParameters(elements, data_type, size if 1 < size < _MOST_RANKS else None)


def _whole(value: object, name: str, place: str, path: Path) -> int:
    if type(value) is not int or value < 0:
        raise BadInput(f"{place}: {name!r}: expected a non-negative integer", path=path)
    return value


# The ranks of each group of a run: `profiler_metadata.json`, which Ascend's profiler writes next to
# its output folder if the program has named its groups.
#
# Its `parallel_group_info` is keyed by the groups' names, `group_name_19`; `communication.json`
# uses a number derived from that name. In a training run (CANN 8.3) this held for all five numbers.

METADATA, GROUPS = "profiler_metadata.json", "parallel_group_info"
_GROUP_RANKS_MOST_BYTES = 1 << 26  # thousands of groups of thousands of ranks
_HIGH, _LOW = 29, 131
_MASK = (1 << 32) - 1


def read_group_ranks(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each group, ascending, by the group's number in `communication.json`.

    `folder` is the folder of that file. Empty if the run does not record the ranks. Raises BadInput
    for a file of another kind."""
    path = folder.parent / METADATA
    if not path.exists():
        return {}
    with file_errors(path):
        data = read_small_file(path, _GROUP_RANKS_MOST_BYTES)
    recorded = json_object(data, what="the metadata of a profiled run", key=str(path))
    groups = recorded.get(GROUPS, {})
    if not isinstance(groups, dict):
        raise BadInput("'parallel_group_info': expected an object", path=path)
    return {group_number(name): _ranks(name, group, path) for name, group in groups.items()}


def group_number(name: str) -> str:
    """Return the number of a named group in `communication.json`: two 32-bit rolling hashes.

    The first hash is in the upper half, the second in the lower half."""
    high = low = 0
    for byte in name.encode("utf-8", "surrogatepass"):
        high, low = (high * _HIGH + byte) & _MASK, (low * _LOW + byte) & _MASK
    return str(high << 32 | low)


def _ranks(name: str, group: object, path: Path) -> tuple[int, ...]:
    found = group.get("global_ranks") if isinstance(group, Mapping) else None
    if not isinstance(found, list) or not all(
        type(one) is int and 0 <= one < _MOST_RANKS for one in found
    ):
        raise BadInput(f"{name!r}: 'global_ranks': expected a list of ranks", path=path)
    if len(set(found)) != len(found):
        raise BadInput(f"{name!r}: duplicate rank in 'global_ranks'", path=path)
    return tuple(sorted(found))


TIMES, _MATRIX = "communication.json", "communication_matrix.json"
_TRANSFERS_MOST_BYTES = 1 << 28
_TRANSFERS_NAME = re.compile(r"((hcom_[A-Za-z]+_)_\w+)@(\w+)")
_LINK = re.compile(r"(\d+)-(\d+)")
_SUM = "Total Op Info"
CALL = "Call"  # the parameters of a call, in a capture of a CPU or a GPU: its trace has none
_CARRIERS = ("SDMA", "RDMA")  # SDMA is the sum of the other kinds
_MB = 1e6


@dataclass(frozen=True, slots=True)
class Transfer:
    """One collective of one rank.

    It has the kernel type, the group by the profiler's name and its size (None if unknown), the
    bytes this rank sent to others, and the duration including waiting for others. `ranks` are the
    group's ranks (empty if the profile does not record them). `elements` and `dtype` are those of
    the HCCL call, with HCCL's type names such as `FP32` (None if not recorded). `name` is the one
    of this collective on all ranks of its group, `hcom_allReduce__586_0_1`."""

    kernel_type: str
    group: str
    group_size: int | None
    sent_bytes: int
    duration_us: float
    ranks: tuple[int, ...] = ()
    elements: int | None = None
    dtype: str | None = None
    name: str = ""


def find_transfers(path: Path) -> tuple[Path, ...]:
    """Return the folders of runs at or below a path that record collectives.

    Logs captures without them that were not analysed. Raises BadInput if there is none."""
    if path.is_file() and path.name == TIMES:
        return (path.parent,)
    found = [folder for folder in folders_below(path) if (folder / TIMES).is_file()]
    unanalysed = unanalysed_captures([path])
    if found:
        read = {parent for folder in found for parent in (folder, *folder.parents)}
        for capture in unanalysed:
            if capture.folder not in read:
                logger.warning("left out: %s", capture)
        return tuple(found)
    note = ""  # on communication kernels in a run without that file
    with suppress(BadInput):
        rows = read_profile([path]).report.communication_rows
        note = (
            f"; found {counted(rows, 'kernel')} of communication without the transferred sizes, "
            "which torch_npu.profiler records from Level1 on"
            if rows
            else "; none of its kernels is communication"
        )
    raise BadInput(f"no {TIMES} in this folder or below it{note_of(unanalysed) or note}", path=path)


def read_transfers(folder: Path) -> tuple[Transfer, ...]:
    """Return the collectives of a run, in file order; one that is in two steps counts once. Raises
    BadInput for an invalid file."""
    sizes = _group_sizes(folder / _MATRIX)
    groups = {
        group: ranks
        for group, ranks in read_group_ranks(folder).items()
        if len(ranks) >= max(2, sizes.get(group, 0))  # otherwise the links contradict them
    }
    path = folder / TIMES
    collectives = list(_distinct(one for one in _collectives(path) if one[0] != _SUM))
    is_captured = any(CALL in recorded for _, recorded in collectives)
    parameters = {} if is_captured else call_parameters(folder)
    named = [(found, of) for name, of in collectives if (found := _TRANSFERS_NAME.fullmatch(name))]
    if collectives and not named:
        raise _other_layout(f"a collective {collectives[0][0]!r}", path)
    return tuple(
        _transfer(path, found.groups(), recorded, sizes, groups, parameters)
        for found, recorded in named
    )


def _distinct(
    collectives: Iterable[tuple[str, Mapping[str, object]]],
) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the collectives; of those with one name and one start, the first."""
    seen = set[tuple[str, object]]()
    for name, recorded in collectives:
        times = recorded.get("Communication Time Info")
        start = times.get("Start Timestamp(us)") if isinstance(times, dict) else None
        if not isinstance(start, int | float | str):
            yield name, recorded
        elif (name, start) not in seen:
            seen.add((name, start))
            yield name, recorded


def _transfer(
    path: Path,
    names: Sequence[str],
    recorded: Mapping[str, object],
    sizes: Mapping[str, int],
    groups: Mapping[str, tuple[int, ...]],
    parameters: Mapping[str, CallParameters],
) -> Transfer:
    plain_name, kernel_type, group = names
    times = _members(recorded, "Communication Time Info", path)
    links = _members(recorded, "Communication Bandwidth Info", path)
    sent = sum(_number(_members(links, one, path), "Transit Size(MB)", path) for one in _CARRIERS)
    duration_us = 1e3 * _number(times, "Elapse Time(ms)", path)
    ranks = groups.get(group, ())
    size, sent_bytes = len(ranks) or sizes.get(group), round(sent * _MB)
    found = Transfer(kernel_type, group, size, sent_bytes, duration_us, ranks, name=plain_name)
    call = _parameters(recorded.get(CALL), f"{plain_name}, {CALL!r}", path)
    if (call := call or parameters.get(plain_name)) is None:
        return found
    size = size or call.group_size
    return replace(found, group_size=size, elements=call.elements, dtype=call.data_type)


def _group_sizes(path: Path) -> dict[str, int]:
    """Return how many ranks the links of each group join; empty if the file does not exist."""
    if not path.exists():
        return {}
    ranks: dict[str, set[str]] = {}
    for name, links in _collectives(path):
        _, _, group = name.partition("@")
        ends = (end for link in links if (one := _LINK.fullmatch(link)) for end in one.groups())
        ranks.setdefault(group, set()).update(ends)
    return {group: len(ends) for group, ends in ranks.items() if len(ends) > 1}


def _collectives(path: Path) -> Iterator[tuple[str, Mapping[str, object]]]:
    with file_errors(path):
        data = read_small_file(path, _TRANSFERS_MOST_BYTES)
    steps = json_object(data, what="the collectives of a profiled run", key=str(path))
    for step, kinds in steps.items():
        for kind, members in _object(kinds, f"{step!r}", path).items():
            for name, found in _object(members, f"{step!r}, {kind!r}", path).items():
                yield name, _object(found, f"{step!r}, {kind!r}, {name!r}", path)


def _object(value: object, place: str, path: Path) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise _other_layout(f"no object in {place}", path)
    return value


def _other_layout(found: str, path: Path) -> BadInput:
    return BadInput(
        "another layout: expected that of torch_npu.profiler (steps, then p2p and collective, then "
        f"collectives such as hcom_allReduce__586_0_1@GROUP), got {found}",
        path=path,
    )


def _members(of: Mapping[str, object], name: str, path: Path) -> Mapping[str, object]:
    found = of.get(name)
    if not isinstance(found, dict):
        raise BadInput(f"{name!r}: expected an object", path=path)
    return found


def _number(of: Mapping[str, object], name: str, path: Path) -> float:
    found = of.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise BadInput(f"{name!r}: expected a number", path=path)
    if not 0 <= found < 1e12:  # also false for NaN
        raise BadInput(f"{name!r}: value {found!r} is out of range", path=path)
    return float(found)
