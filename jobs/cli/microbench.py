"""`opmeter microbench`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput, HostFault
from collector.codec.text import counted, in_one_line
from jobs.cli.options import (
    DatabasePathOption,
    DeviceOption,
    VersionOption,
    VllmOption,
    version_folder,
)
from jobs.cli.run import stop_on_signals
from jobs.cli.terminal import say

if TYPE_CHECKING:
    from collector.model.stack import Stack
    from collector.singlehost.fia_backfill import Backfilled
    from collector.singlehost.reports import MicrobenchResult, Unanswered


_LISTED = 20
RanksOption = str | None  # of an operator that needs several ranks: known, and refused so far


def microbench_verb(
    more: Annotated[
        list[str] | None, typer.Argument(metavar="KERNEL", help="further kernel types")
    ] = None,
    *,
    database_path: DatabasePathOption = None,
    device: DeviceOption = None,
    vllm_version: VllmOption = "",
    torch_version: VersionOption = "",
    cann_version: VersionOption = "",
    prof_path: Annotated[
        list[Path] | None,
        typer.Option(help="measure nothing: take what a profiler has written (PROF_..., a folder)"),
    ] = None,
    op: Annotated[
        list[str] | None,
        typer.Option("--op", "--ops", "--kernel-list", help="only these kernel types  [all]"),
    ] = None,
    repeat_count: Annotated[
        int | None,
        typer.Option(
            min=1,
            envvar="MSMODELING_OP_REPLAY_REPEAT_COUNT",
            help="repeats of each case  [as many as a second pays for]",
        ),
    ] = None,
    update_mode: Annotated[
        str, typer.Option(help="all, or missing-only: rows without any duration")
    ] = "all",
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="stop at the first case that fails, with exit 1")
    ] = False,
    prune_empty_duration_rows: Annotated[
        bool,
        typer.Option("--prune-empty-duration-rows", help="remove rows without any duration"),
    ] = False,
    backend: Annotated[str | None, typer.Option(help="npu, cpu or cuda  [npu]")] = None,
    ep_size: Annotated[RanksOption, typer.Option("--dispatch-ffn-combine-ep-size")] = None,
    nproc: Annotated[RanksOption, typer.Option("--dispatch-ffn-combine-nproc-per-node")] = None,
    nnodes: Annotated[RanksOption, typer.Option("--dispatch-ffn-combine-nnodes")] = None,
    node_rank: Annotated[RanksOption, typer.Option("--dispatch-ffn-combine-node-rank")] = None,
    master_addr: Annotated[RanksOption, typer.Option("--dispatch-ffn-combine-master-addr")] = None,
    master_port: Annotated[RanksOption, typer.Option("--dispatch-ffn-combine-master-port")] = None,
) -> int:
    """Measure the rows of a tree on this machine, or take their durations from a profile."""
    from collector.model.plan import MeasureSettings
    from collector.singlehost.from_profile import microbench_from_profile
    from collector.singlehost.from_replay import microbench_by_replay
    from collector.singlehost.machine import check_device
    from collector.singlehost.reports import Update, write_reports
    from collector.singlehost.version_files import chosen
    from jobs.cli.progress_view import view_for

    # 1 where it was ended before its end, by --fail-fast or by hand.
    _refuse_several_ranks(
        {
            "--dispatch-ffn-combine-ep-size": ep_size,
            "--dispatch-ffn-combine-nproc-per-node": nproc,
            "--dispatch-ffn-combine-nnodes": nnodes,
            "--dispatch-ffn-combine-node-rank": node_rank,
            "--dispatch-ffn-combine-master-addr": master_addr,
            "--dispatch-ffn-combine-master-port": master_port,
        }
    )
    if update_mode not in list(Update):
        raise BadInput(f"--update-mode: expected {' or '.join(Update)}, got {update_mode!r}")
    update, only = Update(update_mode), chosen([*(op or []), *(more or [])])
    folder = version_folder(database_path, device, (vllm_version, torch_version, cann_version))
    if prof_path:
        result = microbench_from_profile(
            folder, prof_path, kernels=only, update=update, prune_empty=prune_empty_duration_rows
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
                prune_empty=prune_empty_duration_rows,
                stop=stop_on_signals(view),
                on_progress=view.measure,
            )
    page = write_reports(result, datetime.now())
    for line in _microbench_describe(result, page):
        say(line)
    return int(not result.is_complete or (fail_fast and bool(result.failed)))


def _refuse_several_ranks(flags: Mapping[str, str | None]) -> None:
    given = [name for name, value in flags.items() if value is not None]
    if given:
        raise BadInput(f"{given[0]}: DispatchFFNCombine needs several ranks: opmeter comm dfc")


def _machine(backend: str | None, folder: Path) -> tuple[str, Stack]:
    """The backend to measure with, and its stack. Nothing but an NPU is chosen unasked: numbers of
    a cpu in a tree of an NPU would be taken for the NPU's."""
    from collector.host.stack import local_stack
    from collector.model.stack import BACKENDS
    from collector.singlehost.machine import tree_device

    if backend is not None and backend not in BACKENDS:
        raise BadInput(f"--backend: expected one of {', '.join(BACKENDS)}, got {backend!r}")
    wanted = tree_device(folder)
    if backend is not None:
        return backend, local_stack(backend, wanted)
    try:
        return "npu", local_stack("npu", wanted)
    except (BadInput, HostFault) as error:
        raise BadInput(
            f"no NPU to measure on ({error}); say --backend cpu or cuda to measure that device, "
            "or --prof-path to read what a profiler has written"
        ) from error


def _microbench_describe(result: MicrobenchResult, page: Path) -> Iterator[str]:
    from collector.singlehost.reports import gaps, shapes_of

    new = sum(row.is_new for row in result.written)
    launches = sum(row.launches for row in result.written)
    yield (
        f"{result.folder}: {counted(len(result.written) - new, 'row')} written, {new:,} added, "
        f"{result.kept:,} left alone, from {counted(launches, 'launch', 'launches')}"
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
        launched = counted(left.launches, "launch", "launches")
        yield f"no row for {name}: {launched}, {left.mean_us:.3f} us; {left.fate}"
    if len(result.leftover) > _LISTED:
        yield f"no row for {counted(len(result.leftover) - _LISTED, 'more case')} of the profile"
    if result.alone:
        yield f"no launch for {counted(len(result.alone), 'row')}"
    for case, count in result.duplicates[:_LISTED]:
        yield f"{count} rows of {case.kernel_type} {shapes_of(case)}: all were updated alike"
    if result.deleted:
        deleted = counted(
            len(result.deleted), "row without a duration was", "rows without a duration were"
        )
        yield f"{deleted} removed, as the report lists"
    hot = sum(gap.is_hot for gap in gaps(result))
    if hot:
        yield f"{counted(hot, 'row is', 'rows are')} far from the source's own run"
    yield f"report: {page}"


def _answers(what: str, cases: tuple[Unanswered, ...]) -> Iterator[str]:
    from collector.singlehost.reports import shapes_of

    for u in cases[:_LISTED]:
        reason = in_one_line(u.reason)
        yield f"{what}: {u.outcome}, {reason}: {u.case.kernel_type} {shapes_of(u.case)}"
    if len(cases) > _LISTED:
        yield f"{what}: {counted(len(cases) - _LISTED, 'more case')}; the report lists all"


# `opmeter fia-backfill`.


def fia_backfill_verb(
    *,
    jsonl_path: Annotated[Path, typer.Option(help="runtime values, one JSON object a line")],
    csv_path: Annotated[
        Path | None, typer.Option(help="a FusedInferAttentionScore.csv; or instead its folder:")
    ] = None,
    database_path: DatabasePathOption = None,
    device: DeviceOption = None,
    vllm_version: VllmOption = "",
    torch_version: VersionOption = "",
    cann_version: VersionOption = "",
    output_path: Annotated[
        Path | None, typer.Option(help="write this file  [the file itself]")
    ] = None,
    tag: Annotated[
        str, typer.Option(help="what `Runtime metadata_completeness` says of the rows")
    ] = "runtime_values_dumped",
) -> None:
    """Join the values of a running model into the rows of fused attention."""
    from collector.singlehost.fia_backfill import backfill

    if csv_path is not None and (database_path is not None or device is not None):
        raise BadInput("--csv-path names the file, --database-path or --device its folder: one")
    versions = (vllm_version, torch_version, cann_version)
    source = csv_path or version_folder(database_path, device, versions)
    for line in _fia_backfill_describe(
        backfill(source, jsonl_path, output_path, tag=tag), jsonl_path
    ):
        say(line)


def _fia_backfill_describe(done: Backfilled, jsonl_path: Path) -> Iterator[str]:
    from collector.singlehost.reports import shapes_of

    yield (
        f"{done.path}: {counted(done.filled, 'row got its values', 'rows got their values')}, now "
        f"{counted(done.made, 'row')}; {done.complete:,} had theirs already"
    )
    if done.known:
        yield f"{done.known:,} of the new rows stood there already: each is there once"
    if done.blanked:
        yield (
            f"{counted(done.blanked, 'row')} lost numbers that were not of these values: a "
            "microbenchmark's, and the profile's mean where it is over several"
        )
    for case in done.rows_alone[:_LISTED]:
        yield f"no values for {shapes_of(case)}"
    if len(done.rows_alone) > _LISTED:
        yield f"no values for {counted(len(done.rows_alone) - _LISTED, 'more row')}"
    for line in done.values_alone[:_LISTED]:
        yield f"no row for {jsonl_path}:{line}"
    if len(done.values_alone) > _LISTED:
        yield f"no row for {counted(len(done.values_alone) - _LISTED, 'more line')}"
