"""`opmeter tree microbench` and `opmeter tree fia-backfill`: the durations of a tree."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput, HostFault
from collector.codec.text import counted, whole_in_one_line
from collector.model.case import Case
from collector.model.stack import BACKENDS, Stack
from collector.ranks.distribution import DISTRIBUTE_KERNELS
from collector.ranks.experts import KERNELS, recorded_ranks
from collector.ranks.gangs import is_of_gangs
from jobs.cli.mappings import mapping_command
from jobs.cli.options import TreeOptions, check_backend
from jobs.cli.terminal import say, say_lines, stop_on_signals

if TYPE_CHECKING:
    from collector.singlehost.fia_backfill import Backfilled
    from collector.singlehost.reports import MicrobenchResult, UnmeasuredCase


_LISTED = 20
# Options of an operator with several ranks: refused with a hint.
_OF_RANKS = tuple(
    f"--dispatch-ffn-combine-{name}"
    for name in ("ep-size", "nproc-per-node", "nnodes", "node-rank", "master-addr", "master-port")
)


def microbench_command(
    tree: TreeOptions,
    more: Annotated[
        list[str] | None, typer.Argument(metavar="KERNEL", help="further kernel types, as --op")
    ] = None,
    *,
    profile: Annotated[
        list[Path] | None,
        typer.Option(
            "--profile",
            "--prof-path",
            help="profile (PROF_..., a folder or a file) to read instead of measuring",
        ),
    ] = None,
    op: Annotated[
        list[str] | None,
        typer.Option(
            "--op", "--ops", "--kernel-list", help="kernel types to measure  [default: all]"
        ),
    ] = None,
    repeat_count: Annotated[
        int | None,
        typer.Option(
            min=1,
            envvar="MSMODELING_OP_REPLAY_REPEAT_COUNT",
            help="number of repeats of each case  "
            "[default: as many as fit into one second, 3 to 100]",
        ),
    ] = None,
    update_mode: Annotated[
        str, typer.Option(help="rows to update: all, or missing-only (without any duration)")
    ] = "all",
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="stop at the first case that fails, with exit 1")
    ] = False,
    prune_empty_duration_rows: Annotated[
        bool,
        typer.Option("--prune-empty-duration-rows", help="remove rows without any duration"),
    ] = False,
    backend: Annotated[
        str | None,
        typer.Option(help="backend to measure on: npu, cpu, cuda or events  [default: npu]"),
    ] = None,
    of_ranks: Annotated[list[str] | None, typer.Option(*_OF_RANKS, hidden=True)] = None,
) -> int:
    """Measure the rows of a tree on this machine, or take their durations from a profile.

    The durations and a report are written into the tree. If the command is interrupted,
    --update-mode missing-only continues. The exit code is 1 if it ended early.

    \b
    Examples:
      opmeter tree microbench --database-path tree --ops Muls Sin
      opmeter tree microbench --database-path tree --profile PROF_000001
    """
    from collector.model.plan import MeasureSettings
    from collector.singlehost.from_profile import microbench_from_profile
    from collector.singlehost.from_replay import microbench_by_replay
    from collector.singlehost.reports import Update, write_reports
    from collector.singlehost.version_files import check_tree_device, chosen
    from jobs.cli.progress_view import view_for

    if of_ranks:
        flags = "--dispatch-ffn-combine-*"
        raise BadInput(f"{flags}: DispatchFFNCombine requires several ranks; use opmeter comm dfc")
    if update_mode not in list(Update):
        raise BadInput(f"--update-mode: expected {' or '.join(Update)}, got {update_mode!r}")
    update, only = Update(update_mode), chosen([*(op or []), *(more or [])])
    folder, name = tree.folder, "npu"
    if profile:
        result = microbench_from_profile(
            folder, profile, kernels=only, update=update, prune_empty=prune_empty_duration_rows
        )
    else:
        name, stack = _machine(backend, folder)
        measure = MeasureSettings(repeat_count=repeat_count)
        with view_for(sys.stderr.isatty()) as view:
            if difference := check_tree_device(folder, stack):
                view.say(f"warning: {difference}")
            result = microbench_by_replay(
                folder,
                name,
                stack,
                measure,
                kernels=only,
                update=update,
                fail_fast=fail_fast,
                prune_empty=prune_empty_duration_rows,
                stop=stop_on_signals(view.say),
                on_progress=view.measure,
            )
    mapping_command(folder)
    page = write_reports(result, datetime.now())
    say_lines(_microbench_describe(result, page, name))
    return int(not result.is_complete or (fail_fast and bool(result.failed)))


def _machine(backend: str | None, folder: Path) -> tuple[str, Stack]:
    """Return the backend to measure on, and its stack.

    Without --backend only an NPU is chosen: durations of a CPU in a tree of an NPU would be taken
    for the NPU's.
    """
    from collector.host.stack import local_stack
    from collector.singlehost.version_files import tree_device

    if backend is not None:
        check_backend(backend, known=BACKENDS)
    requested = tree_device(folder)
    if backend is not None:
        return backend, local_stack(backend, requested)
    try:
        return "npu", local_stack("npu", requested)
    except (BadInput, HostFault) as error:
        raise BadInput(
            f"no NPU to measure on ({error}); pass --backend cpu or cuda to measure on that "
            "device, or --profile to take durations from a profile"
        ) from error


def _microbench_describe(result: MicrobenchResult, page: Path, backend: str) -> Iterator[str]:
    from collector.singlehost.reports import gaps, shapes_text

    new = sum(row.is_new for row in result.written)
    launches = sum(row.launches for row in result.written)
    yield (
        f"{result.folder}: {counted(len(result.written) - new, 'row')} written, {new:,} added, "
        f"{result.kept:,} unchanged; {counted(launches, 'launch', 'launches')}"
    )
    if not result.is_complete:
        yield (
            "ended early; the results so far are written, and --update-mode missing-only continues "
            "with the rows without a duration"
        )
    yield from _outcome_lines("failed", result.failed)
    yield from _outcome_lines("not launched", result.skipped)
    for left in result.leftover[:_LISTED]:
        name = f"{left.case.kernel_type} {shapes_text(left.case)}"
        launched = counted(left.launches, "launch", "launches")
        yield f"no row for {name}: {launched}, {left.mean_us:.3f} us; {left.fate}"
    if len(result.leftover) > _LISTED:
        yield f"no row for {counted(len(result.leftover) - _LISTED, 'more case')} of the profile"
    if result.alone:
        yield f"no launch for {counted(len(result.alone), 'row')}"
    for case, count in result.duplicates[:_LISTED]:
        yield f"{count} rows of {case.kernel_type} {shapes_text(case)}: all got the same duration"
    if result.deleted:
        yield f"removed {counted(len(result.deleted), 'row')} without a duration; see the report"
    hot = sum(gap.is_hot for gap in gaps(result))
    if hot:
        yield f"{counted(hot, 'row differs', 'rows differ')} widely from the profile"
    yield f"report: {page}"
    yield from _lines_of_ranks(result, backend)


def _lines_of_ranks(result: MicrobenchResult, backend: str) -> Iterator[str]:
    """Yield what measures the rows of experts over ranks, which one device cannot."""
    exchanged = [
        one.case.kernel_type
        for one in result.unanswered
        if one.case.kernel_type in DISTRIBUTE_KERNELS and is_of_gangs(one.case)
    ]
    if exchanged:
        named = f"{counted(len(exchanged), 'row')} of {', '.join(sorted(set(exchanged)))}"
        yield f"to measure {named}: a campaign with sources: [{{tree: {result.folder}}}]"
    cases = [one.case for one in result.unanswered if one.case.kernel_type in KERNELS]
    for ranks, rows in sorted(Counter(map(_recorded_ranks, cases)).items()):
        other = f" --backend {backend}" if backend != "npu" else ""
        command = f"opmeter comm dfc --database-path {result.folder} --do-run{other} --ep-size"
        if ranks:
            yield f"to measure {counted(rows, 'row')} over {ranks} ranks: {command} {ranks}"
        else:
            yield f"to measure {counted(rows, 'row')}, set `EP Size` of each, then: {command} N"


def _recorded_ranks(case: Case) -> int:
    """Return the number of ranks of a row of experts; 0 if it has none that is valid."""
    try:
        return recorded_ranks(case)
    except BadInput:
        return 0


def _outcome_lines(what: str, cases: tuple[UnmeasuredCase, ...]) -> Iterator[str]:
    from collector.singlehost.reports import shapes_text

    for u in cases[:_LISTED]:
        reason = whole_in_one_line(u.reason)
        yield f"{what}: {u.outcome}, {reason}: {u.case.kernel_type} {shapes_text(u.case)}"
    if len(cases) > _LISTED:
        yield f"{what}: {counted(len(cases) - _LISTED, 'more case')}; the report lists all"


# `opmeter tree fia-backfill`.


def fia_backfill_command(
    tree: TreeOptions,
    *,
    jsonl_path: Annotated[
        Path, typer.Option(help="file of runtime values, one JSON object per line")
    ],
    csv_path: Annotated[
        Path | None,
        typer.Option(help="FusedInferAttentionScore.csv to fill, instead of a tree"),
    ] = None,
    output_path: Annotated[
        Path | None, typer.Option(help="file to write  [default: the same file]")
    ] = None,
    tag: Annotated[
        str, typer.Option(help="value of `Runtime metadata_completeness` in the filled rows")
    ] = "runtime_values_dumped",
) -> None:
    """Fill the runtime values of a running model into the rows of fused attention.

    Rows and values are matched by their shapes; several values for a row make several rows.

    \b
    Examples:
      opmeter tree fia-backfill --database-path tree --jsonl-path values.jsonl
    """
    from collector.singlehost.fia_backfill import backfill

    if csv_path is not None and (tree.database_path is not None or tree.device is not None):
        raise BadInput("--csv-path excludes --database-path and --device")
    source = csv_path or tree.folder
    for line in _fia_backfill_describe(
        backfill(source, jsonl_path, output_path, tag=tag), jsonl_path
    ):
        say(line)


def _fia_backfill_describe(done: Backfilled, jsonl_path: Path) -> Iterator[str]:
    from collector.singlehost.reports import shapes_text

    yield (
        f"{done.path}: filled {counted(done.filled, 'row')} into {counted(done.made, 'row')}; "
        f"{done.complete:,} had values already"
    )
    if done.known:
        yield f"{done.known:,} of the new rows existed already and were not added again"
    if done.blanked:
        yield (
            f"removed the durations of {counted(done.blanked, 'row')}: they were measured with "
            "other values, or are a mean over several"
        )
    for case in done.rows_alone[:_LISTED]:
        yield f"no values for {shapes_text(case)}"
    if len(done.rows_alone) > _LISTED:
        yield f"no values for {counted(len(done.rows_alone) - _LISTED, 'more row')}"
    for line in done.values_alone[:_LISTED]:
        yield f"no row for {jsonl_path}:{line}"
    if len(done.values_alone) > _LISTED:
        yield f"no row for {counted(len(done.values_alone) - _LISTED, 'more line')}"
    if done.without_values:
        lines = counted(len(done.without_values), "line")
        yield f"left out {lines} without lengths: {jsonl_path}:{done.without_values[0]} ..."
