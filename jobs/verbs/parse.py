"""`opmeter parse`."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import typer

from collector.errors import BadInput
from collector.profiles.bundled import write_bundled_profile
from collector.profiles.kernel_details import GroupBy, ProfileReport
from collector.singlehost.parse import ParseResult, parse
from jobs.verbs.version_folder import version_folder

_LISTED = 20


def parse_verb(
    profiling_paths: list[Path],
    bundled: str | None,
    database_path: Path | None,
    device: str | None,
    versions: tuple[str, str, str],
    group_by: str,
    skip_bad_rows: bool,
) -> None:
    """Parse, and say what was read and what became of each kernel's CSV."""
    if group_by not in ("identity", "shapes"):
        raise BadInput(f"--group-by {group_by!r}: identity or shapes is wanted")
    target = version_folder(database_path, device, versions)
    with _profiles(profiling_paths, bundled) as paths:
        result = parse(paths, target, group_by=cast(GroupBy, group_by), skip_bad_rows=skip_bad_rows)
    for line in _describe(result):
        typer.echo(line)


@contextmanager
def _profiles(paths: list[Path], bundled: str | None) -> Iterator[list[Path]]:
    """The profiles that were named, or a bundled one, which is written for the while."""
    if bool(paths) == (bundled is not None):
        raise BadInput("--profiling-path PROFILE is wanted, or --bundled quickstart: one of them")
    if bundled is None:
        yield paths
        return
    with tempfile.TemporaryDirectory(prefix="opmeter-sample-") as folder:
        yield [write_bundled_profile(bundled, Path(folder))]


def _describe(result: ParseResult) -> Iterator[str]:
    report = result.report
    yield (
        f"read {report.rows:,} rows of {len(report.files)} files: {report.compute_rows:,} compute, "
        f"{report.communication_rows:,} communication"
    )
    yield from _left_out(report)
    yield from _attention(report)
    added, updated = (
        sum(getattr(k, name) for k in result.kernels) for name in ("added", "updated")
    )
    unchanged = sum(kernel.unchanged for kernel in result.kernels)
    yield (
        f"{len(result.kernels)} kernel types in {result.version_dir}: {added} rows added, "
        f"{updated} updated, {unchanged} unchanged"
    )
    for kernel in result.kernels:
        for duplicate in kernel.duplicates:
            yield f"twice in {kernel.path.name}: {duplicate}; the first row was updated"
    if result.communication:
        yield f"communication rows are in {result.communication}"


def _attention(report: ProfileReport) -> Iterator[str]:
    """What speaks against the pairing of fused attention with its operators."""
    for found in report.pairings:
        if found.doubt or found.kernel_rows != found.operator_rows:
            yield (
                f"{found.folder}: {found.kernel_rows} rows of fused attention, "
                f"{found.operator_rows} of its operators: {found.paired} were paired"
                + (f"; {found.doubt}" if found.doubt else "")
            )
    for text in report.disputed[:_LISTED]:
        yield f"operators of one row disagree, so the kernel's own row counts: {text}"


def _left_out(report: ProfileReport) -> Iterator[str]:
    if report.duplicates_dropped:
        yield f"{report.duplicates_dropped} communication rows stood twice and count once"
    for kernel_type, rows in report.unknown_input_rows:
        yield f"{rows} rows of {kernel_type} have unknown inputs (N/A) and no place in a tree"
    for row in report.skipped[:_LISTED]:
        yield f"skipped {row.path}:{row.line}: {row.reason}"
    if len(report.skipped) > _LISTED:
        yield f"skipped {len(report.skipped) - _LISTED} more rows"
