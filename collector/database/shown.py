"""What the commits of a log must show, one after the other, each computed from its state.

A commit changes few files of the tree. Only those are rendered that follow from rows which the
commit before did not have: of the kernel types of the cases that they speak of, and of version
directories that stand for something else since, or whose variance is known otherwise. The others
follow from the same rows as before.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from collector.canonical import sha256_hex
from collector.collective_case import is_collective
from collector.database.intervals import VersionIntervals, intervals_of
from collector.database.layout import (
    OP_MAPPING,
    OTHER_SETTINGS,
    UNKNOWN_INPUTS,
    collective_folder,
    kernel_file_name,
)
from collector.database.row_sets import differing, distinct, identities, is_among
from collector.database.state import TEXT, State
from collector.database.view import render

_CASE = ("version_path", "case")
_KERNEL = ("version_path", "kernel_type")


@dataclass(frozen=True, slots=True)
class ShownFile:
    sha256: str
    rows: int


@dataclass(frozen=True, slots=True)
class Shown:
    """The tree that a state shows, and the files of measurements that the state was read from."""

    state: State
    measurements: Mapping[str, pa.Table]
    intervals: Mapping[str, VersionIntervals]
    files: Mapping[str, ShownFile]


def shown_after(before: Shown | None, state: State, measurements: Mapping[str, pa.Table]) -> Shown:
    """The tree of a state, given that of another. `measurements` are by key; a file of one key
    is the same in both."""
    intervals = intervals_of(state)
    if before is None or not before.measurements.keys() <= measurements.keys():
        return Shown(state, measurements, intervals, _rendered(state, intervals))
    added = [table for key, table in measurements.items() if key not in before.measurements]
    touched = _touched(before, state, intervals, added)
    both = pa.concat_tables([before.state.cases.select(_KERNEL), state.cases.select(_KERNEL)])
    touched = _with_shared_files(both, touched)
    gone = {
        file
        for pair in distinct(both.filter(is_among(both, _KERNEL, touched)), _KERNEL)
        for file in _files(*pair)
    }
    kept = {
        path: file
        for path, file in before.files.items()
        if path not in gone and path.rpartition("/")[2] != OP_MAPPING
    }
    shown = _rendered(_of_kernels(state, touched), intervals)
    return Shown(state, measurements, intervals, {**kept, **shown})


def _touched(
    last: Shown,
    state: State,
    intervals: Mapping[str, VersionIntervals],
    added: Iterable[pa.Table],
) -> pa.Array:
    """The kernel types, as identities, whose rows may show otherwise than before."""
    before = last.state
    new = [table.select(_CASE) for table in added]
    for name in ("cases", "profiles"):
        new.append(differing(getattr(before, name), getattr(state, name)).select(_CASE))
    cases = pa.concat_tables([before.cases, state.cases]).select((*_CASE, "kernel_type"))
    other = [
        path
        for path in {*before.versions, *state.versions}
        if _stands_for(before, path) != _stands_for(state, path)
        or _model(last.intervals, path) != _model(intervals, path)
    ]
    is_new = is_among(cases, _CASE, identities(pa.concat_tables(new), _CASE))
    is_other = pc.is_in(cases["version_path"], value_set=pa.array(other, TEXT))
    return identities(cases.filter(pc.or_(is_new, is_other)), _KERNEL)


def _stands_for(state: State, path: str) -> str | None:
    """What of a version decides which rows show: its stack, whichever plan it comes from."""
    version = state.versions.get(path)
    return version.stack.text if version is not None else None


def _model(intervals: Mapping[str, VersionIntervals], path: str) -> object:
    """What decides, beside a case's own measurements, how wide the intervals of a version are."""
    return intervals[path].model if path in intervals else None


def _of_kernels(state: State, kernels: pa.Array) -> State:
    """The part of a state that the files of these kernel types follow from."""
    cases = state.cases.filter(is_among(state.cases, _KERNEL, kernels))
    known = identities(cases, _CASE)
    measurements = state.measurements.filter(is_among(state.measurements, _CASE, known))
    return replace(state, cases=cases, measurements=measurements)


def _rendered(state: State, intervals: Mapping[str, VersionIntervals]) -> dict[str, ShownFile]:
    files = render(state, intervals=intervals)
    return {path: ShownFile(sha256_hex(file.data), file.rows) for path, file in files.items()}


def _with_shared_files(kernels: pa.Table, touched: pa.Array) -> pa.Array:
    """The same with the other version directories whose collectives stand in one file with those
    of a touched one."""
    pairs = distinct(kernels.filter(is_among(kernels, _KERNEL, touched)), _KERNEL)
    files = {_collectives(*pair) for pair in pairs if is_collective(pair[1])}
    if not files:
        return touched
    every = distinct(kernels, _KERNEL)
    shared = [pair for pair in every if is_collective(pair[1]) and _collectives(*pair) in files]
    columns = dict(zip(_KERNEL, map(list, zip(*{*pairs, *shared}, strict=True)), strict=True))
    return identities(pa.table({name: pa.array(columns[name], TEXT) for name in _KERNEL}), _KERNEL)


def _files(path: str, kernel: str) -> list[str]:
    """The files in which the rows of a kernel type may stand."""
    name = kernel_file_name(kernel)
    places = [path, f"{path}/{UNKNOWN_INPUTS}"]
    if is_collective(kernel):
        folder = collective_folder(path)
        places += [folder, f"{folder}/{OTHER_SETTINGS}"]
    return [f"{place}/{name}" for place in places]


def _collectives(path: str, kernel: str) -> str:
    return f"{collective_folder(path)}/{kernel_file_name(kernel)}"
