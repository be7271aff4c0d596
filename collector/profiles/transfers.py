"""What collectives of a run sent: `communication.json` and `communication_matrix.json`, which
Ascend's profiler writes beside `kernel_details.csv`.

The first has a member for each collective, `hcom_allReduce__586_0_1@<group>`, with its time and
with what this rank sent over each kind of link, in 1e6 bytes; `Total Op Info` sums them up and is
none. SDMA holds what went over HCCS, PCIE and SIO, too. The second names both ends of every link
that a group's collectives used, `0-1`: so many ranks it has, at least. Which ones they are stands
in a third file, if anywhere (`group_ranks`), and what was asked for in a fourth (`trace_view`).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from collector.counting import counted
from collector.decoding import json_object
from collector.errors import BadInput
from collector.profiles.group_ranks import read_group_ranks
from collector.profiles.kernel_details import read_profile
from collector.profiles.small_file import read_small_file
from collector.profiles.trace_view import Asked, asked_of_collectives

_TIMES, _MATRIX = "communication.json", "communication_matrix.json"
_MOST_BYTES = 1 << 28
_NAME = re.compile(r"((hcom_[A-Za-z]+_)_\w+)@(\w+)")
_LINK = re.compile(r"(\d+)-(\d+)")
_CARRIERS = ("SDMA", "RDMA")  # of other kinds SDMA is the sum
_MB = 1e6


@dataclass(frozen=True, slots=True)
class Transfer:
    """One collective of one rank: its kernel type, its group by the profiler's name and its size
    (None where nothing tells), the bytes this rank sent to others, how long it took, the waiting
    for others within, the group's ranks (empty where the profile does not tell), and the elements
    that HCCL was called with and their type in its own words, `FP32` (None where it tells none)."""

    kernel_type: str
    group: str
    group_size: int | None
    sent_bytes: int
    duration_us: float
    ranks: tuple[int, ...] = ()
    elements: int | None = None
    dtype: str | None = None


def find_transfers(path: Path) -> tuple[Path, ...]:
    """The folders of runs at or below a path that tell of collectives. BadInput where none does."""
    if path.is_file() and path.name == _TIMES:
        return (path.parent,)
    found = sorted(file.parent for file in path.rglob(_TIMES) if file.is_file())
    if not found:
        raise BadInput(f"no {_TIMES} in this folder or below it{_told_instead(path)}", path=path)
    return tuple(found)


def _told_instead(path: Path) -> str:
    """What the kernels of a run without that file say of communication; nothing without a run."""
    try:
        rows = read_profile([path]).report.communication_rows
    except BadInput:
        return ""
    if not rows:
        return "; none of its kernels is communication"
    return (
        f"; found {counted(rows, 'kernel')} of communication without the transferred sizes, "
        "which torch_npu.profiler records from Level1 on"
    )


def read_transfers(folder: Path) -> tuple[Transfer, ...]:
    """The collectives of a run, in the file's order. BadInput for a file of another kind."""
    sizes = _group_sizes(folder / _MATRIX)
    groups = {
        group: ranks
        for group, ranks in read_group_ranks(folder).items()
        if len(ranks) >= max(2, sizes.get(group, 0))  # else the links speak against them
    }
    asked = asked_of_collectives(folder)
    return tuple(
        _transfer(folder / _TIMES, name, told, sizes, groups, asked)
        for name, told in _collectives(folder / _TIMES)
        if _NAME.fullmatch(name)
    )


def _transfer(
    path: Path,
    name: str,
    told: Mapping[str, object],
    sizes: Mapping[str, int],
    groups: Mapping[str, tuple[int, ...]],
    asked: Mapping[str, Asked],
) -> Transfer:
    found = _NAME.fullmatch(name)
    assert found is not None
    plain_name, kernel_type, group = found.groups()
    times = _members(told, "Communication Time Info", path)
    links = _members(told, "Communication Bandwidth Info", path)
    sent = sum(_number(_members(links, one, path), "Transit Size(MB)", path) for one in _CARRIERS)
    duration_us = 1e3 * _number(times, "Elapse Time(ms)", path)
    ranks = groups.get(group, ())
    size, sent_bytes = len(ranks) or sizes.get(group), round(sent * _MB)
    told_by_call = asked.get(plain_name)
    if told_by_call is None:
        return Transfer(kernel_type, group, size, sent_bytes, duration_us, ranks)
    return Transfer(
        *(kernel_type, group, size or told_by_call.group_size, sent_bytes, duration_us, ranks),
        elements=told_by_call.elements,
        dtype=told_by_call.data_type,
    )


def _group_sizes(path: Path) -> dict[str, int]:
    """How many ranks the links of each group join; nothing where the file is not there."""
    if not path.exists():
        return {}
    ranks: dict[str, set[str]] = {}
    for name, links in _collectives(path):
        _, _, group = name.partition("@")
        ends = (end for link in links if (one := _LINK.fullmatch(link)) for end in one.groups())
        ranks.setdefault(group, set()).update(ends)
    return {group: len(ends) for group, ends in ranks.items() if len(ends) > 1}


def _collectives(path: Path) -> Iterator[tuple[str, Mapping[str, object]]]:
    """The members of every step and kind."""
    try:
        data = read_small_file(path, _MOST_BYTES)
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror or error}", path=path) from error
    steps = json_object(data, what="the collectives of a profiled run", key=str(path))
    for step in steps:
        kinds = _members(steps, step, path)
        for kind in kinds:
            members = _members(kinds, kind, path)
            for name in members:
                yield name, _members(members, name, path)


def _members(of: Mapping[str, object], name: str, path: Path) -> Mapping[str, object]:
    found = of.get(name)
    if not isinstance(found, dict):
        raise BadInput(f"{name!r}: expected an object", path=path)
    return found


def _number(of: Mapping[str, object], name: str, path: Path) -> float:
    found = of.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise BadInput(f"{name!r}: expected a number", path=path)
    if not 0 <= found < 1e12:  # nor what is no number at all
        raise BadInput(f"{name!r}: value {found!r} is out of range", path=path)
    return float(found)
