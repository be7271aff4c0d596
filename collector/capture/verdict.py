"""Whether a capture can be used: for each rank what was recorded, and what is missing.

A profiler reports success for a capture without device rows, without shapes or with half of the
ranks, and days pass until a user reads it. The verdict reads what is in the folder as `tree parse`
and `plan` do.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import fsum
from pathlib import Path
from statistics import median
from typing import Any

from collector.codec.canonical import json_object
from collector.codec.errors import BadInput, OpmeterError
from collector.codec.files import read_small_file
from collector.codec.text import counted, share_of
from collector.model.case import Case
from collector.ops.own import find_operator
from collector.ops.refusals import refusal
from collector.profiles.archives import (
    has_only_archives,
    is_archive,
    may_have_profile,
    unpacked,
)
from collector.profiles.discovery import (
    CAPTURE_FACTS,
    CAPTURE_SUFFIXES,
    RUN_SUFFIX,
    files_below,
    others_note,
    unanalysed_captures,
)
from collector.profiles.kernel_details import Profile, read_profile
from collector.profiles.logged_calls import Completed
from collector.profiles.rows import open_rows
from collector.profiles.step_trace import FILE as STEP_TRACE

CAPTURE_FILE = CAPTURE_FACTS.replace("*", "{worker}")  # what a process should record, and saw
# Numbers of these facts, with the largest that is one: a file may be damaged.
_NUMBERS = {
    "rank": 1 << 20,
    "world_size": 1 << 20,
    "steps": 1 << 30,
    "repeat": 1 << 30,
    "steps_kept": 1 << 30,
}
_MOST_MISSING = 64  # ranks without a capture that get a line each
_STEP = "Step Id"
_TABLES = "ASCEND_PROFILER_OUTPUT"  # in the folder of a run
_DEVICE_ALONE = "activities NPU: the rows have no steps, so that a lost step is not noticed"
_HOST_ALONE = "activities CPU: the host alone was recorded; kernels require activities with NPU"
_LEAST_SHARE_OF_STEP = 0.5  # of the rows of the others: decodes that end make a step smaller
_HEAD_SHARE = 0.9  # the same of the first step, which has all in a complete capture
_LISTED = 5
_LEAST_SHARE = 0.5  # of the rows, that have inputs


@dataclass(frozen=True, slots=True)
class RankVerdict:
    """What one rank recorded.

    `rank` is None if nothing names it. `share` is the part of the device time whose rows are cases:
    kernels with known inputs. `faults` are what is wrong, and `is_empty` is set if there is nothing
    to use. `steps` is 0 if the rows name no steps."""

    rank: int | None
    folder: Path
    rows: int = 0
    rows_with_inputs: int = 0
    share: float = 0.0
    steps: int = 0
    without_inputs: tuple[tuple[str, int], ...] = ()  # kernel types and their rows
    without_kernel: tuple[tuple[str, int], ...] = ()  # operators of torch, of a CPU or GPU
    faults: tuple[str, ...] = ()
    completed: tuple[Completed, ...] = ()  # what logs of calls gave

    @property
    def is_empty(self) -> bool:
        """Whether no row of a kernel with inputs was recorded."""
        return not self.rows_with_inputs

    @property
    def is_usable(self) -> bool:
        """Whether most rows have inputs: a plan from fewer would miss most of the step."""
        return not self.is_empty and self.rows_with_inputs >= _LEAST_SHARE * self.rows

    def __str__(self) -> str:
        name = "?" if self.rank is None else str(self.rank)
        where = f"rank {name} in {self.folder}"  # ranks of several roles have the same numbers
        if self.is_empty and not self.rows:
            return f"{where}: empty: {'; '.join(self.faults)}"
        steps = f" of {counted(self.steps, 'step')}" if self.steps else ""
        line = (
            f"{where}: {counted(self.rows, 'row')}{steps}, {self.rows_with_inputs:,} with "
            f"shapes, {share_of(self.share, 1)} of the device time is cases"
        )
        for what, kinds in (
            ("without shapes", self.without_inputs),
            ("unsupported operators", self.without_kernel),
        ):
            if kinds:
                listed = ", ".join(f"{kind} ({n:,})" for kind, n in kinds[:_LISTED])
                line += f"; {what}: {listed}"
        if rows := sum(one.rows for one in self.completed):
            line += f"; {counted(rows, 'row')} completed by the log of calls"
        unpaired = [f"not paired: {note}" for one in self.completed for note in one.unpaired]
        return "; ".join([line, *self.faults, *unpaired[:_LISTED]])


def verdicts(folder: Path) -> tuple[RankVerdict, ...]:
    """Return the verdict of each rank whose capture is in a folder or an archive, and of each that
    is missing.

    With the facts that `capture` writes, only the folders of those processes are judged, and others
    are named as older. Raises BadInput if there is no capture at all."""
    if folder.is_dir():
        is_packed = list(_runs(folder)) == [folder] and has_only_archives(folder)
        if not is_packed or folder.name.endswith(CAPTURE_SUFFIXES):
            return _of_folder(folder)
    elif not (folder.is_file() and is_archive(folder.name)):
        raise BadInput("expected the folder of a capture, or an archive", path=folder)
    with unpacked([folder], skip_unusable=folder.is_dir()) as given:
        found = [RankVerdict(None, folder, faults=(reason,)) for reason in given.unusable]
        found += [verdict for path in given.paths for verdict in _of_folder(path)]
        return tuple(
            replace(
                one,
                folder=given.user_path(one.folder),
                faults=tuple(map(given.with_user_paths, one.faults)),
            )
            for one in found
        )


def _of_folder(folder: Path) -> tuple[RankVerdict, ...]:
    known, damaged = list[Mapping[str, Any]](), list[RankVerdict]()
    paths = sorted(folder.glob(CAPTURE_FACTS))
    if not paths and (below := sorted({path.parent for path in folder.rglob(CAPTURE_FACTS)})):
        return tuple(one for each in below for one in _of_folder(each))
    for path in paths:
        try:
            known.append(_facts(path))
        except BadInput as error:
            damaged.append(RankVerdict(None, folder, faults=(str(error),)))
    runs = sorted(run for run in _runs(folder))
    if not (runs or known or damaged):
        raise BadInput(
            f"no capture: expected folders that end in {' or '.join(CAPTURE_SUFFIXES)}, or tables "
            f"of kernels{others_note(files_below(folder))}",
            path=folder,
        )
    if not known:
        return (*damaged, *(_of_run(run, _rank_in(run)) for run in runs))
    judged, found = set[Path](), damaged
    ranks: dict[int, list[_Process]] = defaultdict(list)
    for facts in known:
        own = [run for run in runs if _is_of(run, facts)]
        judged.update(own)
        ranks[_rank_of(facts)].append(_of_process(folder, own, facts))
    for _, processes in sorted(ranks.items()):
        found += _of_rank(processes)
    found += _missing(folder, known)
    if older := [run.name for run in runs if run not in judged]:
        note = f"{counted(len(older), 'folder')} of other captures here: {', '.join(older[:3])}"
        found = [_with_fault(one, note) for one in found]
    return tuple(found)


def _rank_of(facts: Mapping[str, Any]) -> int:
    return int(facts.get("rank", 0))


@dataclass(frozen=True, slots=True)
class _Process:
    """The verdict of each folder that a process wrote, or one if it wrote none, and what it noted.
    torch_npu writes a folder for each round of the schedule, torch one for all."""

    verdicts: tuple[RankVerdict, ...]
    noted: tuple[str, ...]

    @property
    def has_launched(self) -> bool:
        return any(one.rows for one in self.verdicts)


def _of_process(folder: Path, own: Sequence[Path], facts: Mapping[str, Any]) -> _Process:
    rank, rounds, steps = _rank_of(facts), int(facts.get("repeat", 1)), int(facts.get("steps", 0))
    noted = _noted(facts)
    if not own:
        faults = noted or ("no folder of this process: the profiler wrote nothing",)
        return _Process((RankVerdict(rank, folder, faults=faults),), noted)
    faults = noted
    if len(own) not in (1, rounds):
        number = f"expected {counted(rounds, 'folder')}, one for each round, got {len(own)}"
        faults = (*faults, number)
    kept = expected = steps * rounds
    if facts.get("is_complete", True):  # else these are the facts of the begin
        kept = int(facts.get("steps_kept", expected))
    if len(own) > 1:
        kept, expected = min(kept, steps), steps
    activities = facts.get("activities", ["CPU", "NPU"]) if facts.get("backend") == "npu" else []
    if activities == ["NPU"]:
        faults = (*faults, _DEVICE_ALONE)
    if activities == ["CPU"]:
        found = [RankVerdict(rank, run, faults=(_HOST_ALONE, *faults)) for run in own]
        return _Process(tuple(found), noted)
    found = [_of_run(run, rank, expected, kept) for run in own]
    verdicts = (replace(one, faults=(*one.faults, *faults)) for one in found)
    return _Process(tuple(verdicts), noted)


def _noted(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a process noted: what stopped or prevented its capture."""
    noted = tuple(map(str, facts.get("faults", ())))
    if not facts.get("is_complete", True):
        noted += ("the capture did not end: the process was killed, or its disk was full",)
    return noted


def _of_rank(processes: Sequence[_Process]) -> Sequence[RankVerdict]:
    """Return the verdicts of the processes that count for a rank: those that launched kernels. A
    program may start others, which inherit its rank and launch nothing; if all are such, the first
    counts. What the others noted is kept."""
    ordered = sorted(processes, key=lambda one: not one.has_launched)
    number = max(1, sum(one.has_launched for one in processes))
    first, *more = [verdict for one in ordered[:number] for verdict in one.verdicts]
    if silent := ordered[number:]:
        which = counted(len(silent), "other process", "other processes")
        others = [text for one in silent for text in one.noted[:1]]
        note = f"{which} of this rank launched nothing"
        first = _with_fault(first, "; ".join([note, *others[:_LISTED]]))
    return [first, *more]


def captured_on(folder: Path) -> str:
    """Return the backend on which the profile in a folder was captured: npu, if nothing names it,
    because only NPUs have profilers that write such files."""
    for path in sorted(folder.glob(CAPTURE_FACTS)) if folder.is_dir() else ():
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
    for name in ("faults", "earlier", "activities"):
        value = found.get(name, [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise BadInput(f"{name}: expected a list of texts, got {value!r:.60}", path=path)
    return found


def _runs(folder: Path) -> Iterable[Path]:
    if folder.name.endswith(CAPTURE_SUFFIXES):
        return [folder]
    found = [
        one for one in folder.rglob("*") if one.name.endswith(CAPTURE_SUFFIXES) and one.is_dir()
    ]
    # msprof names its folders otherwise, and users copy tables into any
    found = found or [Path(one.folder) for one in unanalysed_captures([folder])]
    return found or ([folder] if may_have_profile(folder) else [])


def _is_of(run: Path, facts: Mapping[str, Any]) -> bool:
    """Return whether the process of these facts wrote a folder: its name begins with the worker,
    and it was not there when the capture began. Times do not decide: a file server has its own
    clock."""
    return is_run_of(run.name, str(facts.get("worker"))) and run.name not in facts.get(
        "earlier", ()
    )


def is_run_of(name: str, worker: str) -> bool:
    """Return whether a folder of this name is of a worker: `{worker}_{time}_ascend_pt`. The name of
    another worker may begin with that of this one."""
    time = name.removeprefix(f"{worker}_").removesuffix(RUN_SUFFIX)
    return name == f"{worker}_{time}{RUN_SUFFIX}" and time.isdecimal()


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


def _of_run(run: Path, rank: int | None, expected: int = 0, kept: int = 0) -> RankVerdict:
    """Return the verdict of a folder that should have the `expected` steps, 0 if only the profiler
    knows; the program ran `kept` of them."""
    try:
        profile = read_profile([run], skip_bad_rows=True)
    except OpmeterError as error:
        return RankVerdict(rank, run, faults=(str(error),))
    faults = list(_faults_of_rows(profile))
    counts = _rows_of_steps(profile.report.files)
    folders = {run, *(file.parent for file in profile.report.files)}
    folders |= {one.parent for one in folders if one.name == _TABLES}  # given by itself
    faults += _faults_of_number(counts, expected, kept, _recorded_steps(folders))
    faults += _faults_of_sizes(counts)
    unknown = profile.report.unknown_input_rows
    rows = profile.report.compute_rows
    times_us = [
        (one, one.profile.mean_us * one.profile.count) for one in profile.records if one.profile
    ]
    total_us = fsum(us for _, us in times_us)
    known_us = fsum(
        us for one, us in times_us if one.case.inputs is not None and not _is_unsupported(one.case)
    )
    without_kernel = Counter[str]()
    for record in profile.records:
        if record.profile and _is_unsupported(record.case):
            without_kernel[record.case.kernel_type] += record.profile.count
    with_inputs = rows - sum(count for _, count in unknown)
    if rows and not with_inputs:
        faults.append(
            "no row has shapes: record with shapes and Level1 or Level2, and without a graph mode "
            "that drops them"
        )
    if 0 < with_inputs < _LEAST_SHARE * rows:
        faults.append(f"expected shapes of at least {share_of(_LEAST_SHARE, 1)} of the rows")
    return RankVerdict(
        rank,
        run,
        rows,
        with_inputs,
        known_us / total_us if total_us else 0.0,
        len(counts),
        tuple(sorted(unknown, key=lambda one: -one[1])),
        tuple(without_kernel.most_common()),
        tuple(faults),
        profile.report.completed,
    )


def _is_unsupported(case: Case) -> bool:
    """Return whether a row is an operator of torch, written in place of a kernel that is not known
    (`dispatched`), that cannot be called again; no kernel type has a dot."""
    return "." in case.kernel_type and refusal(case, find_operator, "cpu") is not None


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
            steps = (row[at].strip() for _, row in rows if len(row) > at)
            counts.update(filter(None, steps))  # rows between steps name none
    return counts


@dataclass(frozen=True, slots=True)
class _RecordedSteps:
    """What the profiler's other files report: the steps of its schedule, 0 if it had none, and the
    numbers of the steps with a line in the table of steps."""

    scheduled: int
    numbers: frozenset[str]


def _recorded_steps(folders: Iterable[Path]) -> _RecordedSteps:
    scheduled, numbers = 0, set[str]()
    for folder in sorted(folders):
        for path in sorted(folder.glob("profiler_info*.json")):
            scheduled = max(scheduled, _scheduled(path))
        file = folder / STEP_TRACE
        if file.is_file():
            with suppress(BadInput):  # the rows do not depend on it
                header, rows = open_rows(file)
                at = header.index("Step") if "Step" in header else None
                numbers |= {row[at] for _, row in rows if at is not None and len(row) > at}
    return _RecordedSteps(scheduled, frozenset(filter(str.isdecimal, numbers)))


def _scheduled(path: Path) -> int:
    """Return the active steps of a round, which has its own folder; 0 without a schedule."""
    try:
        found: Any = json_object(read_small_file(path), what="a profiler_info", key=str(path))
    except (OSError, BadInput):
        return 0
    for name in ("config", "common_config", "schedule", "active"):
        found = found.get(name) if isinstance(found, Mapping) else None
    is_one = isinstance(found, int) and not isinstance(found, bool)
    return found if is_one and 0 < found <= _NUMBERS["steps"] else 0


def _faults_of_number(
    counts: Counter[str], expected: int, kept: int, recorded: _RecordedSteps
) -> Iterable[str]:
    """Yield the steps that have no row: by what was requested, or else by the profiler's files, or
    by a gap in the numbers."""
    if expected and not counts and kept < expected:
        yield f"expected {counted(expected, 'step')}, the program ended after {kept} of them"
    if not counts:
        return
    missing = recorded.numbers - counts.keys()
    known = sorted(int(step) for step in counts if step.isdecimal())
    if not (expected or recorded.scheduled or recorded.numbers) and len(known) == len(counts):
        missing = frozenset(map(str, {*range(known[0], known[-1])} - {*known}))
    named = sorted(missing, key=_number)
    which = f": no row of step {', '.join(named[:_LISTED])}" if named else ""
    which += f" and {len(named) - _LISTED} more" if len(named) > _LISTED else ""
    total = expected or max(recorded.scheduled, len(counts) + len(named))
    if total > len(counts) or (expected and expected != len(counts)):
        yield f"expected {counted(total, 'step')}, got {len(counts)}{which}"


def _faults_of_sizes(counts: Counter[str]) -> Iterable[str]:
    """Yield the steps that have fewer rows than the others."""
    steps = sorted(counts, key=_number)
    if len(steps) < 2:
        return
    usual = [median(counts[other] for other in steps if other != step) for step in steps]
    sizes = list(zip((counts[step] for step in steps), usual, strict=True))
    first, last = sizes[0], sizes[-1]
    if first[0] < _HEAD_SHARE * first[1]:
        yield (
            f"the head is lost: the first step has {counted(first[0], 'row')}, the others "
            f"{first[1]:.0f}; use a warmup of at least 1"
        )
    between = zip(steps[1:-1], sizes[1:-1], strict=True)
    short = [one for one in between if one[1][0] < _LEAST_SHARE_OF_STEP * one[1][1]]
    if short:
        listed = ", ".join(f"{step} ({size})" for step, (size, _) in short[:_LISTED])
        more = f" and {len(short) - _LISTED} more" if len(short) > _LISTED else ""
        yield (
            f"few rows of step {listed}{more}, the others have {short[0][1][1]:.0f}: rows are "
            "lost, or these steps did less"
        )
    if last[0] < _LEAST_SHARE_OF_STEP * last[1]:
        yield (
            f"the tail is lost: the last step has {counted(last[0], 'row')}, the others "
            f"{last[1]:.0f}: a full disk or a killed program cuts files"
        )


def _number(step: str) -> tuple[int, str]:
    return (int(step), "") if step.isdigit() else (1 << 62, step)
