"""`opmeter db promote`: point a channel at a version that passes its gates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput
from collector.codec.text import half_width_text, percent
from jobs.cli import options
from jobs.cli.options import VersionOptions, WorkloadOptions
from jobs.cli.terminal import print_json, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from collector.database.changes import ShownCases
    from collector.database.channels import Promotion
    from collector.database.commits import Commit
    from collector.store.base import Store

_REFUSED = 1


def promote_command(
    channel: Annotated[str, typer.Argument(help="channel, such as candidate or stable")],
    workload: WorkloadOptions,
    *,
    root: options.DatabaseRootOption = "opmeter-data",
    version: options.CommitOption = None,
    min_coverage: Annotated[
        float | None,
        typer.Option(help="share of the workload's time that must be measured", min=0, max=1),
    ] = None,
    max_changed: Annotated[
        float | None,
        typer.Option(
            help="share of the cases of the channel's version that may have changed or be missing",
            min=0,
            max=1,
        ),
    ] = None,
    max_half_width: Annotated[
        str,
        typer.Option(
            help="largest median half-width of the intervals, as a share of the mean; that of a "
            "disturbed session has no limit"
        ),
    ] = "50%",
    skip_verify: Annotated[
        bool, typer.Option("--skip-verify", help="do not verify the version first")
    ] = False,
    force: Annotated[
        str, typer.Option(help="why to promote although a gate refuses; is recorded")
    ] = "",
    back: Annotated[
        bool, typer.Option("--back", help="point the channel at its previous version instead")
    ] = False,
    list_records: Annotated[
        bool, typer.Option("--list", help="list the records of the channel instead")
    ] = False,
    as_json: options.JsonOption = False,
) -> int:
    """Point a channel at a version of the database, if its gates pass.

    A version is verified first, fewer than half of its durations may be imported, and the median
    half-width of its intervals must be within --max-half-width. With a workload, its measured share
    is a gate. Readers name a channel where they name a version: `opmeter db pull tree --version
    stable`. The exit code is 1 if a gate refuses.

    \b
    Examples:
      opmeter db promote candidate
      opmeter db promote stable --version candidate --max-changed 0.05
      opmeter db promote stable --back --force "regression in MatMulV2"
    """
    from collector import environment
    from collector.database.channels import Promotion, channel_name, promotions, record_promotion
    from collector.database.retired import check_is_kept
    from jobs.cli.opening import chosen_commit, open_root
    from jobs.planning.lifecycle import current_author

    widest = options.share_of_option("--max-half-width", max_half_width)
    store = open_root(root)
    known = promotions(store, channel_name(channel))
    if list_records:
        if as_json:
            print_json(known)
            return 0
        for one in known:
            why = f"  {one.reason}" if one.reason else ""
            say(f"{one.number:>4}  version {one.commit}  {one.time}  {one.author}{why}")
        return 0
    checks: dict[str, str] = {}
    if back:
        commit = _previous(store, channel, known)
        check_is_kept(store, commit.number)
        refused = False
    else:
        commit = chosen_commit(store, root, version)
        gates = _Gates(min_coverage, max_changed, widest, not skip_verify)
        last = known[-1].commit if known else None
        found = list(gates.results(store, commit, last, workload, root))
        checks = {name: text for name, text, _ in found}
        refused = not all(passed for *_, passed in found)
        if not as_json:
            for name, text, passed in found:
                say(f"{'ok' if passed else 'refused':<8} {name:<11} {text}")
    if refused and not force:
        what = "fix the cause, change the option of the gate, or give the reason with --force"
        say(f"{channel} was not changed: {what}", err=True)
        return _REFUSED
    made = Promotion(
        channel=channel,
        number=len(known) + 1,
        commit=commit.number,
        commit_sha256=commit.sha256,
        checks=checks,
        reason=force or ("back" if back else ""),
        author=current_author(),
        time=environment.utc_now().isoformat(timespec="seconds"),
    )
    if not record_promotion(store, made):
        raise BadInput(f"{channel}: another process promoted a version; look at --list, and repeat")
    _check_is_kept(store, made, known)
    if as_json:
        print_json(made)
    else:
        say(f"{channel} points at version {commit.number} (record {made.number})")
    return 0


def _check_is_kept(store: Store, made: Promotion, known: list[Promotion]) -> None:
    """Raise BadInput if `db gc` retired the version while it was promoted; the channel then goes
    back to where it was."""
    from collector.database.channels import record_promotion
    from collector.database.retired import check_is_kept

    try:
        check_is_kept(store, made.commit)
    except BadInput:
        if known:
            reason = f"version {made.commit} was retired"
            record_promotion(
                store, replace(known[-1], number=made.number + 1, checks={}, reason=reason)
            )
        raise


def _previous(store: Store, channel: str, known: list[Promotion]) -> Commit:
    """Return the version that a channel pointed at before the one that it points at now. To go back
    twice goes back two promotions."""
    from collector.database.commits import read_commit

    path: list[int] = []  # the versions on the way to the present one, without those left by --back
    for one in known:
        if one.commit in path[:-1] and not one.checks:
            del path[path.index(one.commit) + 1 :]
        elif path[-1:] != [one.commit]:
            path.append(one.commit)
    if len(path) < 2:
        raise BadInput(f"{channel}: expected an earlier version to go back to, found none")
    return read_commit(store, path[-2])


class _Gates:
    """The gates of a promotion; None for one that is not requested."""

    def __init__(
        self,
        min_coverage: float | None,
        max_changed: float | None,
        max_half_width: float,
        is_verified: bool,
    ) -> None:
        self._min_coverage = min_coverage
        self._max_changed = max_changed
        self._max_half_width = max_half_width
        self._is_verified = is_verified

    def results(
        self, store: Store, commit: Commit, last: int | None, workload: WorkloadOptions, root: str
    ) -> Iterator[tuple[str, str, bool]]:
        """Yield the name of each gate, its result as text, and whether it passes."""
        if self._is_verified:
            from collector.database.verify import find_problems

            problems = find_problems(store, [commit])
            yield "verify", problems[0].text if problems else "no problems", not problems
        if (workload != WorkloadOptions()) != (self._min_coverage is not None):
            raise BadInput("a workload and --min-coverage require each other")
        if self._min_coverage is not None:
            measured = _measured_share(workload, root, commit)
            text = f"{percent(measured)} of the time of {workload} is measured"
            yield "coverage", text, measured >= self._min_coverage
        yield from _imported_gate(store, commit)
        yield self._half_width(store, commit)
        if self._max_changed is not None and last is not None:
            changed, known = _changed(store, last, commit)
            text = f"{changed:,} of {known:,} cases of version {last} changed or are missing"
            yield "changed", text, known > 0 and changed / known <= self._max_changed
        if self._max_changed is not None and last is None:
            yield "changed", "no earlier version of the channel", True

    def _half_width(self, store: Store, commit: Commit) -> tuple[str, str, bool]:
        width = _median_half_width(store, commit)
        if width is None:
            return "half-width", "no duration has an interval", False
        text = "at least half of the durations are of disturbed sessions"
        if width < inf:
            limit = half_width_text(self._max_half_width)
            text = f"{half_width_text(width)} in the median, expected at most {limit}"
        return "half-width", text, width <= self._max_half_width


def _imported_gate(store: Store, commit: Commit) -> Iterator[tuple[str, str, bool]]:
    """Yield the gate of imported durations, if there are any."""
    sessions = [
        count
        for shown in _shown(store, commit).values()
        for count in shown.intervals["sessions"].to_pylist()
    ]
    if imported := sum(not count for count in sessions):
        of = f"{imported:,} of {len(sessions):,} durations are imported"
        yield "imported", f"{of}, expected fewer than half", 2 * imported < len(sessions)


def _measured_share(workload: WorkloadOptions, root: str, commit: Commit) -> float:
    from jobs.cli.look_up import find_covered
    from jobs.planning.coverage import CoverageStatus, share

    found = find_covered(workload, VersionOptions(root=root, version=str(commit.number)))
    return share(found.cases, CoverageStatus.EXACT).time


def _median_half_width(store: Store, commit: Commit) -> float | None:
    """Return the median half-width of the intervals, as a share of the mean. That of a disturbed
    session is infinite, since no interval covers what disturbed it. None without intervals."""
    from statistics import median_high

    from collector.quality.gates import is_of_disturbed_session

    names = ("stack_high_us", "mean_us", "warnings")
    widths = [
        inf if is_of_disturbed_session(warnings) else high / mean - 1
        for shown in _shown(store, commit).values()
        for high, mean, warnings in zip(
            *(shown.intervals[name].to_pylist() for name in names), strict=True
        )
    ]
    return median_high(widths) if widths else None


def _changed(store: Store, last: int, commit: Commit) -> tuple[int, int]:
    """Return how many cases of another version changed or are missing, and how many it has."""
    from collector.database.changes import directory_changes
    from collector.database.commits import read_commit

    before, after = _shown(store, read_commit(store, last)), _shown(store, commit)
    known = sum(shown.intervals.num_rows for shown in before.values())
    lost = sum(before[path].intervals.num_rows for path in before.keys() - after.keys())
    found = [directory_changes(before[path], after[path]) for path in before.keys() & after.keys()]
    return lost + sum(one.count("changed") + one.count("removed") for one in found), known


def _shown(store: Store, commit: Commit) -> Mapping[str, ShownCases]:
    from collector.database.manifest import read_manifest
    from collector.database.snapshot import read_shown

    manifest = read_manifest(store, commit)
    return {path: read_shown(store, commit, manifest, path) for path in manifest.versions}
