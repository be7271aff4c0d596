"""`opmeter microbench`."""

import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

import typer

from collector.errors import BadInput
from collector.host.stack import local_stack
from collector.plan import MeasureSettings
from collector.singlehost.from_profile import microbench_from_profile
from collector.singlehost.from_replay import microbench_by_replay
from collector.singlehost.kernels import chosen
from collector.singlehost.machine import check_device, tree_device
from collector.singlehost.outcome import MicrobenchResult, Unanswered, Update, gaps, shapes_of
from collector.singlehost.reports import Reports, write_reports
from collector.stack import Stack
from jobs.verbs.run import stop_on_signals
from jobs.verbs.version_folder import version_folder
from jobs.view import view_for

_BACKENDS = ("npu", "cpu", "cuda")
_LISTED = 20


def microbench_verb(
    database_path: Path | None,
    device: str | None,
    versions: tuple[str, str, str],
    prof_paths: list[Path],
    kernels: list[str],
    repeat_count: int | None,
    update_mode: str,
    fail_fast: bool,
    prune_empty: bool,
    backend: str | None,
    several_ranks: Mapping[str, str | None],
) -> int:
    """The exit code: 0, or 1 where it was ended before its end, by `fail_fast` or by hand."""
    _refuse_several_ranks(several_ranks)
    if update_mode not in list(Update):
        raise BadInput(f"--update-mode {update_mode!r}: {' or '.join(Update)} is wanted")
    update, only = Update(update_mode), chosen(kernels)
    folder = version_folder(database_path, device, versions)
    if prof_paths:
        result = microbench_from_profile(
            folder, prof_paths, kernels=only, update=update, prune_empty=prune_empty
        )
    else:
        name, stack = _machine(backend, folder)
        measure = MeasureSettings(repeat_count=repeat_count)
        with view_for(sys.stderr.isatty()) as view:
            if difference := check_device(folder, stack):
                view.say(f"warning: {difference}")
            result = microbench_by_replay(
                folder,
                name,
                stack,
                measure,
                kernels=only,
                update=update,
                fail_fast=fail_fast,
                prune_empty=prune_empty,
                stop=stop_on_signals(view),
                on_progress=view.measure,
            )
    reports = write_reports(result, datetime.now())
    for line in _describe(result, reports):
        typer.echo(line)
    return int(not result.is_complete or (fail_fast and bool(result.failed)))


def _refuse_several_ranks(flags: Mapping[str, str | None]) -> None:
    given = [name for name, value in flags.items() if value is not None]
    if given:
        raise BadInput(f"{given[0]}: DispatchFFNCombine needs several ranks, not measured yet")


def _machine(backend: str | None, folder: Path) -> tuple[str, Stack]:
    """The backend to measure with, and its stack. Nothing but an NPU is chosen unasked: numbers of
    a cpu in a tree of an NPU would be taken for the NPU's."""
    if backend is not None and backend not in _BACKENDS:
        raise BadInput(f"--backend {backend!r}: {', '.join(_BACKENDS)} is wanted")
    wanted = tree_device(folder)
    if backend is not None:
        return backend, local_stack(backend, wanted)
    try:
        return "npu", local_stack("npu", wanted)
    except BadInput as error:
        raise BadInput(
            f"no NPU to measure on ({error}); say --backend cpu or cuda to measure that device, "
            "or --prof-path to read what a profiler has written"
        ) from error


def _describe(result: MicrobenchResult, reports: Reports) -> Iterator[str]:
    new = sum(row.is_new for row in result.written)
    launches = sum(row.launches for row in result.written)
    yield (
        f"{result.folder}: {len(result.written) - new} rows written, {new} added, {result.kept} "
        f"left alone, from {launches:,} launches"
    )
    if not result.is_complete:
        yield (
            "ended early; what was measured is written. --update-mode missing-only goes on with "
            "rows that have no duration at all"
        )
    yield from _answers("failed", result.failed)
    yield from _answers("not launched", result.skipped)
    for left in result.leftover[:_LISTED]:
        name = f"{left.case.kernel_type} {shapes_of(left.case)}"
        yield f"no row for {name}: {left.launches} launches, {left.mean_us:.3f} us; {left.fate}"
    if len(result.leftover) > _LISTED:
        yield f"no row for {len(result.leftover) - _LISTED} more cases of the profile"
    if result.alone:
        yield f"no launch for {len(result.alone)} rows"
    for case, count in result.duplicates[:_LISTED]:
        yield f"{count} rows of {case.kernel_type} {shapes_of(case)}: all were updated alike"
    if result.deleted:
        yield f"{len(result.deleted)} rows without a duration were removed; the report lists them"
    hot = sum(gap.is_hot for gap in gaps(result))
    if hot:
        yield f"{hot} rows are far from the source's own run"
    yield f"report: {reports.page}"


def _answers(what: str, cases: tuple[Unanswered, ...]) -> Iterator[str]:
    for u in cases[:_LISTED]:
        yield f"{what}: {u.case.kernel_type} {shapes_of(u.case)}: {u.outcome}, {u.reason}"
    if len(cases) > _LISTED:
        yield f"{what}: {len(cases) - _LISTED} more cases; the report lists them"
