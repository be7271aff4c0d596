"""`opmeter db diff`: what two versions, or two stacks, show differently."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import expm1
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput
from collector.codec.text import counted, half_width_text, time_text
from jobs.cli import options
from jobs.cli.options import WorkloadOptions
from jobs.cli.terminal import print_json, say, say_lines

if TYPE_CHECKING:
    from collector.database.changes import CaseChange, DirectoryChanges, Kind, ShownCases
    from collector.database.commits import Commit
    from collector.database.manifest import SnapshotManifest
    from collector.store.base import Store

_LISTED = 20
_LISTED_KINDS = ("changed", "added", "removed")


SideArgument = Annotated[
    str,
    typer.Argument(help="version, part of a version directory such as torch2.9, or 3:DIRECTORY"),
]
LaterSideArgument = Annotated[str, typer.Argument(help="the same, of the later one")]


def diff_command(
    before: SideArgument,
    after: LaterSideArgument,
    workload: WorkloadOptions,
    *,
    root: options.DatabaseRootOption = "opmeter-data",
    other_root: Annotated[
        str | None, typer.Option(help="store of the later one  [default: --root]")
    ] = None,
    list_all: Annotated[
        bool,
        typer.Option(
            "--all",
            help=f"list every compared case  [default: {_LISTED} changed, added and removed ones]",
        ),
    ] = False,
    margin: Annotated[
        str, typer.Option(help="share of a duration within which two are equal")
    ] = "5%",
    as_csv: Annotated[bool, typer.Option("--csv", help="print every case as CSV")] = False,
    as_json: options.JsonOption = False,
) -> None:
    """List the cases that changed between two versions of the database, or between two stacks.

    A case has changed if its two intervals do not overlap, and if the difference is not among those
    expected by chance (5 % false discoveries, Benjamini-Hochberg). Others are equal within the
    margin (two one-sided tests at 5 %), or inconclusive: their intervals are too wide, or a session
    of theirs was disturbed, which is a warning. Cases with a duration on one side only are listed
    as added or removed. With a workload, only its cases are compared, sorted by what a change adds
    to it.

    \b
    Examples:
      opmeter db diff 3 4
      opmeter db diff torch2.9 torch2.10
      opmeter db diff 3 4 --model qwen3-32b --layout tp=4 --json
    """
    from collector.database.changes import directory_changes

    within = options.share_of_option("--margin", margin, below=1)
    if as_csv and as_json:
        raise BadInput("--csv excludes --json")
    chosen = [chosen_side(root, before), chosen_side(other_root or root, after)]
    pairs = common_directories(*chosen)
    found: list[DirectoryChanges] = []
    for pair in pairs:
        earlier, later = (side.shown(path) for side, path in zip(chosen, pair, strict=True))
        launches = _launches(workload, chosen[0], pair[0])
        found.append(directory_changes(earlier, later, launches, margin=within))
    if as_json:
        print_json(found if list_all else [replace(one, others=()) for one in found])
        return
    if as_csv:
        _write_csv(found)
        return
    for one in found:
        say_lines(_lines(one, None if list_all else _LISTED))
    compared = sum(one.compared for one in found)
    changed, equal, unknown = (
        sum(one.count(kind) for one in found) for kind in ("changed", "equal", "inconclusive")
    )
    same = sum(one.same for one in found)
    say(
        f"{changed:,} of {counted(compared, 'case')} changed between {before} and {after}; "
        f"{equal:,} equal within {100 * found[0].margin:g} %{_same_text(same)}, "
        f"{unknown:,} inconclusive"
    )


def _same_text(count: int) -> str:
    return f" ({count:,} of them by the same sessions, not measured again)" if count else ""


@dataclass(frozen=True, slots=True)
class ChosenSide:
    """One side of a comparison: a version of a database, and its directory if one was named."""

    store: Store
    commit: Commit
    manifest: SnapshotManifest
    directory: str | None

    def shown(self, path: str) -> ShownCases:
        from collector.database.snapshot import read_shown

        return read_shown(self.store, self.commit, self.manifest, path)


def chosen_side(root: str, text: str) -> ChosenSide:
    """Return what `3`, `DIRECTORY` or `3:DIRECTORY` names; a part of a directory's path will do if
    no other has it. Raises BadInput for another text."""
    from collector.database.manifest import read_manifest
    from jobs.cli.opening import chosen_commit, open_database

    number, _, directory = text.rpartition(":") if ":" in text else (text, "", "")
    if not number.isdecimal() and not directory:
        number, directory = "", text
    store = open_database(root)
    commit = chosen_commit(store, root, int(number) if number else None)
    manifest = read_manifest(store, commit)
    if directory and directory not in manifest.versions:
        found = [path for path in manifest.versions if directory in path]
        if len(found) != 1:
            there = ", ".join(sorted(manifest.versions))
            what = "expected the number of a version, or a part of one of its directories"
            raise BadInput(f"{text}: {what} ({there})")
        (directory,) = found
    return ChosenSide(store, commit, manifest, directory or None)


def common_directories(before: ChosenSide, after: ChosenSide) -> Sequence[tuple[str, str]]:
    """Return the version directories to compare: those that are named, or all that both have."""
    one, other = before.directory, after.directory
    if one is not None or other is not None:
        named = one or other or ""
        return [(one or _directory_like(before, named), other or _directory_like(after, named))]
    both = sorted(before.manifest.versions.keys() & after.manifest.versions.keys())
    if not both:
        raise BadInput("expected versions with a directory in common; name one of each")
    return [(path, path) for path in both]


def _directory_like(side: ChosenSide, named: str) -> str:
    """Return the directory of a side that has the name of the other side's, or its only one."""
    there = sorted(side.manifest.versions)
    if named in there:
        return named
    if len(there) != 1:
        known = ", ".join(there)
        raise BadInput(f"expected {side.commit.number}:DIRECTORY with one of {known}")
    return there[0]


def _launches(workload: WorkloadOptions, side: ChosenSide, path: str) -> Mapping[str, int] | None:
    """Return how often a workload launches each case; None without a workload."""
    if workload == WorkloadOptions():
        return None
    from jobs.cli.look_up import workload_on

    stack = side.manifest.versions[path].version.shown_stack
    found = workload_on(workload, stack, side.store)
    return {one.record.case_id: one.launches for one in found.cases}


def _lines(found: DirectoryChanges, most: int | None) -> Iterator[str]:
    names = found.before if found.before == found.after else f"{found.before} -> {found.after}"
    yield f"directory   {names}"
    yield (
        f"cases       {found.compared:,} with a duration in both: "
        f"{found.count('changed'):,} changed, {found.count('equal'):,} equal within "
        f"{100 * found.margin:g} %{_same_text(found.same)}, "
        f"{found.count('inconclusive'):,} inconclusive; "
        f"{found.count('added'):,} added, {found.count('removed'):,} removed"
    )
    if found.compared:
        yield _total_line(found)
    if found.count("inconclusive"):
        yield _power_line(found)
    if found.disturbed:
        yield (
            f"warnings    {counted(found.disturbed, 'compared case')} of a disturbed session: no "
            "change is concluded"
        )
    if found.imported:
        yield (
            f"imported    {counted(found.imported, 'compared case')} with a duration of another "
            "tool: a change may be that of the tool"
        )
    if (one := found.intervals) is not None:
        before, after = (half_width_text(expm1(reach)) for reach in (one.before, one.after))
        yield (
            f"intervals   {counted(one.wider, 'case')} wider, {one.narrower:,} narrower; median "
            f"half-width {before} -> {after}"
        )
    for kind in ("changed", "added", "removed", "inconclusive", "equal"):
        if most is None or kind in _LISTED_KINDS:
            yield from _case_lines(found, kind, most)


def _case_lines(found: DirectoryChanges, kind: Kind, most: int | None) -> Iterator[str]:
    own = [case for case in (*found.cases, *found.others) if case.kind == kind]
    yield from map(_line, own[:most])
    if most is not None and len(own) > most:
        yield f"            {len(own) - most:,} more {kind}: --all lists them"


def _total_line(found: DirectoryChanges) -> str:
    """Return the time of the compared cases on both sides, and which of them differ."""
    before_us, after_us = found.total_us
    name = "workload" if found.is_of_workload else "total"
    each = "" if found.is_of_workload else ", each once"
    ratio = f"x{after_us / before_us:.3f}" if before_us else "-"
    parts = (
        f"{kind} {'-' if us < 0 else '+'}{time_text(abs(us))}"
        for kind, us in found.difference_us.items()
    )
    return (
        f"{name:<11} {time_text(before_us)} -> {time_text(after_us)} of the compared cases{each}, "
        f"{ratio}: {', '.join(parts)}"
    )


def _power_line(found: DirectoryChanges) -> str:
    """Return what the intervals of the inconclusive cases could show."""
    if found.detectable_ratio is None:
        return "power       no inconclusive case has an interval"
    more = _sessions_text(found.sessions_for_10_pct)
    return (
        "power       half of the inconclusive cases would only show a change above "
        f"x{found.detectable_ratio:.3g}; {more} show x1.1"
    )


def _sessions_text(count: int | None) -> str:
    from collector.quality.changes import MOST_SESSIONS

    if count is None:
        return f"more than {MOST_SESSIONS:,} sessions of each would"
    return f"{counted(count, 'session')} of each, on different devices, would"


def _line(change: CaseChange) -> str:
    from collector.quality.changes import MOST_SESSIONS

    times = f"{_duration(change.before_us)} -> {_duration(change.after_us)}"
    more = ""
    if change.ratio is not None:
        more = f"  x{change.ratio:.3f} [{change.ratio_low:.3f}, {change.ratio_high:.3f}]"
    if change.launches:
        more += f"  {change.launches:,} launches, {change.difference_us:+,.1f} us"
    if change.kind == "inconclusive" and change.detectable_ratio is not None:
        sessions = change.sessions_for_10_pct
        count = f"{sessions:,}" if sessions else f"over {MOST_SESSIONS:,}"
        more += f"  detectable x{change.detectable_ratio:.3g}; sessions for x1.1: {count}"
    if change.warnings_before or change.warnings_after:
        more += f"  warnings {change.warnings_before or '-'} -> {change.warnings_after or '-'}"
    case = f"{change.kernel_type} {change.shapes} {change.dtypes}"
    return f"{change.kind:<11} {case}  {times}{more}"


def _duration(value_us: float | None) -> str:
    return "-" if value_us is None else f"{value_us:.3f} us"


def _write_csv(found: Sequence[DirectoryChanges]) -> None:
    from collector.database.changes import CaseChange

    names = [field.name for field in fields(CaseChange)]
    out = csv.writer(sys.stdout)
    out.writerow(["before", "after", *names])
    for one in found:
        for case in (*one.cases, *one.others):
            values = asdict(case)
            out.writerow([one.before, one.after, *(values[name] for name in names)])
