"""`opmeter parse`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from collector.counting import counted
from collector.errors import BadInput
from jobs.cli.terminal import say
from jobs.cli.tree_options import (
    DatabasePathOption,
    DeviceOption,
    VersionOption,
    VllmOption,
    version_folder,
)

if TYPE_CHECKING:
    from collector.profiles.kernel_details import ProfileReport
    from collector.singlehost.parse import ParseResult

_LISTED = 20


def parse_verb(
    stray: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    *,
    profiling_path: Annotated[
        list[str] | None, typer.Option(help="a profile: a file, an archive or a folder")
    ] = None,
    bundled: Annotated[
        str | None, typer.Option(help="instead: a sample that comes along: quickstart")
    ] = None,
    database_path: DatabasePathOption = None,
    device: DeviceOption = None,
    vllm_version: VllmOption = "",
    torch_version: VersionOption = "",
    cann_version: VersionOption = "",
    group_by: Annotated[
        str, typer.Option(help="identity, or shapes as the first design had it")
    ] = "identity",
    skip_bad_rows: Annotated[
        bool, typer.Option("--skip-bad-rows", help="list bad rows and files, and go on")
    ] = False,
    pool: Annotated[
        bool, typer.Option("--pool", help="add to a case's statistics, by counts, not replace them")
    ] = False,
) -> int:
    """Turn profiles into a tree of CSVs, one per kernel type."""
    from collector.profiles.kernel_details import GroupBy
    from collector.singlehost.parse import parse_profile

    # 1 where nothing was kept.
    if group_by not in ("identity", "shapes"):
        raise BadInput(f"--group-by: expected identity or shapes, got {group_by!r}")
    if stray:
        raise BadInput(f"{stray[0]!r} stands alone: --profiling-path {stray[0]} is meant?")
    if "" in (profiling_path or []):
        raise BadInput("--profiling-path: expected the path of a profile, got an empty value")
    named = [Path(path) for path in profiling_path or []]
    target = version_folder(database_path, device, (vllm_version, torch_version, cann_version))
    with _profiles(named, bundled) as paths:
        result = parse_profile(
            paths,
            target,
            group_by=cast(GroupBy, group_by),
            skip_bad_rows=skip_bad_rows,
            pool=pool,
        )
    for line in _describe(result, "pooled" if pool else "updated"):
        say(line)
    if result.kernels or result.communication is not None:
        return 0
    say("nothing was kept", err=True)
    return 1


@contextmanager
def _profiles(paths: list[Path], bundled: str | None) -> Iterator[list[Path]]:
    """The profiles that were named, or a bundled one, which is written for the while."""
    from tempfile import TemporaryDirectory

    from collector.profiles.bundled import write_bundled_profile

    if bool(paths) == (bundled is not None):
        raise BadInput("expected either --profiling-path PROFILE or --bundled quickstart")
    if bundled is None:
        yield paths
        return
    with TemporaryDirectory(prefix="opmeter-sample-") as folder:
        yield [write_bundled_profile(bundled, Path(folder))]


def _describe(result: ParseResult, became: str) -> Iterator[str]:
    report = result.report
    yield (
        f"read {counted(report.rows, 'row')} of {counted(len(report.files), 'file')}: "
        f"{report.compute_rows:,} compute, "
        f"{report.communication_rows:,} communication"
    )
    yield from _left_out(report)
    yield from _unknown(result)
    yield from _attention(report)
    added, updated = (
        sum(getattr(k, name) for k in result.kernels) for name in ("added", "updated")
    )
    unchanged = sum(kernel.unchanged for kernel in result.kernels)
    kernel_types = len({kernel.kernel_type for kernel in result.kernels})
    yield (
        f"{counted(kernel_types, 'kernel type')} in {result.version_dir}: "
        f"{counted(added, 'row')} added, {updated:,} {became}, {unchanged:,} unchanged"
    )
    for kernel in result.kernels:
        for duplicate in kernel.duplicates:
            yield f"twice in {kernel.path.name}: {duplicate}; the first row was {became}"
    if result.communication:
        yield f"communication rows are in {result.communication}"


def _attention(report: ProfileReport) -> Iterator[str]:
    """What speaks against the pairing of fused attention with its operators."""
    for found in report.pairings:
        if found.doubt or found.kernel_rows != found.operator_rows:
            yield (
                f"{found.folder}: {counted(found.kernel_rows, 'row')} of fused attention, "
                f"{found.operator_rows:,} of its operators: {found.paired:,} paired"
                + (f"; {found.doubt}" if found.doubt else "")
            )
    for text in report.disputed[:_LISTED]:
        yield f"operators of one row disagree, so the kernel's own row counts: {text}"


def _unknown(result: ParseResult) -> Iterator[str]:
    from collector.database.layout import UNKNOWN_INPUTS

    held = {kernel.kernel_type for kernel in result.kernels}
    for kernel_type, rows in result.report.unknown_input_rows:
        place = f"filed in {UNKNOWN_INPUTS}/" if kernel_type in held else "no place in a tree"
        yield f"{counted(rows, 'row')} of {kernel_type}: unknown inputs (N/A), {place}"


def _left_out(report: ProfileReport) -> Iterator[str]:
    if report.duplicates_dropped:
        twice = counted(report.duplicates_dropped, "communication row")
        yield f"{twice} stood twice, and counted once"
    for repeated in report.repeated:
        yield (
            f"{repeated.path} is of the same run as {repeated.of}: "
            f"{counted(repeated.rows, 'of its rows counts', 'of its rows count')} once"
        )
    for reason in report.unusable:
        yield f"skipped a whole file: {reason}"
    for row in report.skipped[:_LISTED]:
        yield f"skipped {row.path}:{row.line}: {row.reason}"
    if len(report.skipped) > _LISTED:
        yield f"skipped {counted(len(report.skipped) - _LISTED, 'more row')}"
