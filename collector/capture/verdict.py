"""Whether a capture can be used: for each rank what was recorded, and what is missing.

A profiler reports success for a capture without device rows, without shapes or with half of the
ranks, and days pass until a user reads it. The verdict reads what is in the folder as `parse` and
`plan` do.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from pathlib import Path
from statistics import median
from typing import Any

from collector.codec.canonical import json_object
from collector.codec.errors import BadInput, OpmeterError
from collector.codec.files import read_small_file
from collector.codec.text import counted, share_of
from collector.profiles.discovery import CAPTURE_SUFFIXES, unanalysed_captures
from collector.profiles.kernel_details import Profile, read_profile
from collector.profiles.logged_calls import Completed
from collector.profiles.rows import open_rows

CAPTURE_FILE = "opmeter_capture_{rank}.json"  # what a rank was asked for, and saw
_FACTS = "opmeter_capture_*.json"
# Numbers of these facts, with the largest that is one: a file may be damaged.
_NUMBERS = {
    "rank": 1 << 20,
    "world_size": 1 << 20,
    "steps": 1 << 30,
    "repeat": 1 << 30,
    "steps_kept": 1 << 30,
    "pid": 1 << 40,
    "began_s": 1 << 40,
}
_MOST_MISSING = 64  # ranks without a capture that get a line each
_STEP = "Step Id"
_TAIL_SHARE = 0.5  # of the last step: decodes that end make it smaller
_HEAD_SHARE = 0.9  # of the rows of the other steps; the first step of a complete capture has all
_LEAST_STEPS = 3  # of which the first is compared with the others
_LISTED = 5


@dataclass(frozen=True, slots=True)
class RankVerdict:
    """What one rank recorded.

    `rank` is None if nothing names it. `share` is the part of the device time whose rows are cases,
    with known inputs. `faults` are what is wrong, and `is_empty` is set if there is nothing to
    use. `steps` is 0 if the rows name no steps."""

    rank: int | None
    folder: Path
    rows: int = 0
    rows_with_inputs: int = 0
    share: float = 0.0
    steps: int = 0
    without_inputs: tuple[tuple[str, int], ...] = ()  # kernel types and their rows
    faults: tuple[str, ...] = ()
    completed: tuple[Completed, ...] = ()  # what logs of calls gave

    @property
    def is_empty(self) -> bool:
        """Whether no row of a kernel with inputs was recorded."""
        return not self.rows_with_inputs

    def __str__(self) -> str:
        name = "?" if self.rank is None else str(self.rank)
        if self.is_empty and not self.rows:
            return f"rank {name}: empty: {'; '.join(self.faults)}"
        steps = f" of {counted(self.steps, 'step')}" if self.steps else ""
        line = (
            f"rank {name}: {counted(self.rows, 'row')}{steps}, {self.rows_with_inputs:,} with "
            f"shapes, {share_of(self.share, 1)} of the device time is cases"
        )
        if self.without_inputs:
            listed = ", ".join(f"{kernel} ({n:,})" for kernel, n in self.without_inputs[:_LISTED])
            line += f"; without shapes: {listed}"
        if rows := sum(one.rows for one in self.completed):
            line += f"; {counted(rows, 'row')} completed by the log of calls"
        unpaired = [f"not paired: {note}" for one in self.completed for note in one.unpaired]
        return "; ".join([line, *self.faults, *unpaired[:_LISTED]])


def verdicts(folder: Path) -> tuple[RankVerdict, ...]:
    """Return the verdict of each rank whose capture is in a folder, and of each that is missing.

    With the facts that `capture` writes, only the folders of those processes are judged, and others
    are named as older. Raises BadInput if there is no capture at all."""
    if not folder.is_dir():
        raise BadInput("expected the folder of a capture", path=folder)
    known, damaged = list[Mapping[str, Any]](), list[RankVerdict]()
    for path in sorted(folder.glob(_FACTS)):
        try:
            known.append(_facts(path))
        except BadInput as error:
            damaged.append(RankVerdict(None, folder, faults=(str(error),)))
    runs = sorted(run for run in _runs(folder))
    if not (runs or known or damaged):
        raise BadInput(
            f"no capture: expected folders that end in {' or '.join(CAPTURE_SUFFIXES)}", path=folder
        )
    if not known:
        return (*damaged, *(_of_run(run, _rank_in(run), {}) for run in runs))
    judged, found = set[Path](), damaged
    for facts in known:
        own = [run for run in runs if _is_of(run, facts)]
        judged.update(own)
        rank = int(facts.get("rank", 0))
        noted = tuple(map(str, facts.get("faults", ())))  # what stopped or prevented the capture
        if not own:
            faults = noted or ("no folder of this process: the profiler wrote nothing",)
            found.append(RankVerdict(rank, folder, faults=faults))
        for run in own:
            one = _of_run(run, rank, facts)
            found.append(replace(one, faults=(*one.faults, *noted)))
    found += _missing(folder, known)
    if older := [run.name for run in runs if run not in judged]:
        note = f"{counted(len(older), 'folder')} of other captures here: {', '.join(older[:3])}"
        found = [_with_fault(one, note) for one in found]
    return tuple(found)


def captured_on(folder: Path) -> str:
    """Return the backend on which the profile in a folder was captured: npu, if nothing names it,
    because only NPUs have profilers that write such files."""
    for path in sorted(folder.glob(_FACTS)) if folder.is_dir() else ():
        return str(_facts(path).get("backend", "npu"))
    return "npu"


def _with_fault(one: RankVerdict, fault: str) -> RankVerdict:
    return replace(one, faults=(*one.faults, fault))


def _facts(path: Path) -> Mapping[str, Any]:
    found = json_object(read_small_file(path), what="the facts of a capture", key=str(path))
    for name, most in _NUMBERS.items():
        value = found.get(name, 0)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
            raise BadInput(f"{name}: expected a number from 0 to {most}, got {value!r}", path=path)
    if not all(isinstance(one, str) for one in _listed(found.get("faults", []), path)):
        raise BadInput("faults: expected a list of texts", path=path)
    return found


def _listed(value: object, path: Path) -> list[object]:
    if not isinstance(value, list):
        raise BadInput(f"faults: expected a list of texts, got {value!r}", path=path)
    return value


def _runs(folder: Path) -> Iterable[Path]:
    if folder.name.endswith(CAPTURE_SUFFIXES):
        return [folder]
    found = [
        one for one in folder.rglob("*") if one.name.endswith(CAPTURE_SUFFIXES) and one.is_dir()
    ]
    # msprof names its folders otherwise
    return found or [Path(one.folder) for one in unanalysed_captures([folder])]


def _is_of(run: Path, facts: Mapping[str, Any]) -> bool:
    """Return whether the process of these facts wrote a folder: its name has the process id, and it
    is not older than the capture."""
    pid, began_s = facts.get("pid"), float(facts.get("began_s", 0.0))
    return f"_{pid}_" in run.name and run.stat().st_mtime >= began_s - 1.0


def _rank_in(run: Path) -> int | None:
    for path in sorted(run.glob("profiler_info_*.json")):
        if number := re.search(r"_(\d+)$", path.stem):
            return int(number[1])
    return None


def _missing(folder: Path, known: Sequence[Mapping[str, Any]]) -> list[RankVerdict]:
    world = max(int(facts.get("world_size", 1)) for facts in known)
    present = {int(facts.get("rank", 0)) for facts in known}
    fault = f"this rank of {world} left no capture here"
    absent = [rank for rank in range(world) if rank not in present]
    found = [RankVerdict(rank, folder, faults=(fault,)) for rank in absent[:_MOST_MISSING]]
    if more := absent[_MOST_MISSING:]:
        found[-1] = _with_fault(found[-1], f"and {counted(len(more), 'further rank')}")
    return found


def _of_run(run: Path, rank: int | None, facts: Mapping[str, Any]) -> RankVerdict:
    try:
        profile = read_profile([run], skip_bad_rows=True)
    except OpmeterError as error:
        return RankVerdict(rank, run, faults=(str(error),))
    faults = list(_faults_of_rows(profile))
    counts = _rows_of_steps(profile.report.files)
    faults += _faults_of_steps(counts, facts)
    unknown = profile.report.unknown_input_rows
    rows = profile.report.compute_rows
    times_us = [
        (one, one.profile.mean_us * one.profile.count) for one in profile.records if one.profile
    ]
    total_us = fsum(us for _, us in times_us)
    known_us = fsum(us for one, us in times_us if one.case.inputs is not None)
    with_inputs = rows - sum(count for _, count in unknown)
    if rows and not with_inputs:
        faults.append(
            "no row has shapes: record with shapes and Level1 or Level2, and without a graph mode "
            "that drops them"
        )
    return RankVerdict(
        rank,
        run,
        rows,
        with_inputs,
        known_us / total_us if total_us else 0.0,
        len(counts),
        tuple(sorted(unknown, key=lambda one: -one[1])),
        tuple(faults),
        profile.report.completed,
    )


def _faults_of_rows(profile: Profile) -> Iterable[str]:
    report = profile.report
    if not report.compute_rows:
        yield "no row of a device: the profiler recorded the host alone"
    if report.skipped:
        first = report.skipped[0]
        yield (
            f"{counted(len(report.skipped), 'row')} cannot be read, the first in "
            f"{first.path.name}:{first.line} ({first.reason}): a full disk or a killed analysis "
            "cuts files"
        )
    yield from report.unusable
    yield from map(str, report.unanalysed)


def _rows_of_steps(files: Sequence[Path]) -> Counter[str]:
    """Return the number of rows of each step; empty if the rows name no steps."""
    counts: Counter[str] = Counter()
    for file in files:
        if not file.is_file():
            continue  # in an archive or a database
        header, rows = open_rows(file)
        if _STEP in header:
            at = header.index(_STEP)
            counts.update(row[at] for _, row in rows if len(row) > at)
    return counts


def _faults_of_steps(counts: Counter[str], facts: Mapping[str, Any]) -> Iterable[str]:
    requested = int(facts.get("steps", 0)) * int(facts.get("repeat", 1))
    if requested and counts and len(counts) != requested:
        yield f"expected {counted(requested, 'step')}, got {len(counts)}"
    elif requested and not counts and int(facts.get("steps_kept", requested)) < requested:
        kept = int(facts["steps_kept"])
        yield f"expected {counted(requested, 'step')}, the program ended after {kept} of them"
    if len(counts) >= _LEAST_STEPS:
        sizes = [counts[step] for step in sorted(counts, key=_number)]
        usual = median(sizes)
        if sizes[0] < _HEAD_SHARE * usual:
            yield (
                f"the head is lost: the first step has {counted(sizes[0], 'row')}, the others "
                f"{usual:.0f}; use a warmup of at least 1"
            )
        if sizes[-1] < _TAIL_SHARE * usual:
            yield (
                f"the tail is lost: the last step has {counted(sizes[-1], 'row')}, the others "
                f"{usual:.0f}: a full disk or a killed program cuts files"
            )


def _number(step: str) -> tuple[int, str]:
    return (int(step), "") if step.isdigit() else (1 << 62, step)
