"""`opmeter grid`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from collector.codec.errors import BadInput
from collector.codec.text import GIB, counted
from jobs.cli.options import (
    DatabasePathOption,
    DeviceOption,
    VersionOption,
    VllmOption,
    version_folder,
)
from jobs.cli.terminal import say

if TYPE_CHECKING:
    from collector.profiles.kernel_details import ProfileReport
    from collector.shapes.grid import Chosen
    from collector.singlehost.grow import Grown
    from collector.singlehost.parse import ParseResult


_ROWS = 1000  # for each kernel type, where nobody says a number


def grid_verb(
    *,
    target_models: Annotated[
        str | None,
        typer.Option(help="models, by commas: `opmeter model list`, or a config.json  [any size]"),
    ] = None,
    database_path: Annotated[
        Path | None,
        typer.Option("--database-path", "--data-dir", help="the version directory of a tree"),
    ] = None,
    device: DeviceOption = None,
    vllm_version: VllmOption = "",
    torch_version: VersionOption = "",
    cann_version: VersionOption = "",
    rows: Annotated[
        int | None,
        typer.Option(
            help="at most for each kernel type; 0 for all  [1000; of --standard all]", min=0
        ),
    ] = None,
    standard: Annotated[
        str | None,
        typer.Option(help="density-v1: what it wants between rows that are there, and no sample"),
    ] = None,
    seed: Annotated[int, typer.Option(help="of the choice among all cases")] = 0,
    max_hbm_gb: Annotated[
        float, typer.Option(help="GiB that a case may take; 0 for any", min=0)
    ] = 32.0,
    reserve_gb: Annotated[
        float,
        typer.Option(help="GiB of that for workspaces and the runtime", min=0),
    ] = 1.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="say what would be added, and write nothing")
    ] = False,
) -> int:
    """Add rows without durations to a tree: shapes on the grid of each of its kernels."""
    from collector.shapes.density import find_standard
    from collector.shapes.kernel_set import USUAL_RELEASE
    from collector.shapes.models import find_decoder
    from collector.singlehost.grow import GridOptions, grow_tree

    folder = version_folder(database_path, device, (vllm_version, torch_version, cann_version))
    names = [name.strip() for name in (target_models or "").split(",") if name.strip()]
    if target_models is not None and not names:
        raise BadInput("--target-models: expected at least one model")
    if standard is not None:
        find_standard(standard)
        if names:
            raise BadInput("--standard goes by rows that are there: it takes no --target-models")
    options = GridOptions(
        rows=(_ROWS if rows is None and standard is None else rows) or None,
        seed=seed,
        largest_gib=_room(max_hbm_gb, reserve_gb),
        decoders=tuple(map(find_decoder, names)),
        release=USUAL_RELEASE,
        standard=standard or "",
    )
    added, is_any = 0, False
    for one in grow_tree(folder, options, write=not dry_run):
        say(_line(one))
        added += len(one.chosen.records) if one.chosen else 0
        is_any = is_any or (one.chosen is not None and _is_anything(one.chosen))
    verb = "would be added" if dry_run else "added"
    say(f"{counted(added, 'row')} {verb} to {folder}")
    return 0 if is_any else 1


def _room(most_gib: float, reserve_gib: float) -> float | None:
    """What is left for tensors; None where nobody limits them."""
    if not most_gib:
        return None
    if reserve_gib >= most_gib:
        raise BadInput(
            f"--max-hbm-gb {most_gib:g} leaves no room beside --reserve-gb {reserve_gib:g}"
        )
    return most_gib - reserve_gib


def _is_anything(chosen: Chosen) -> bool:
    """Whether the tree has a case of those that were asked for; else nobody was helped."""
    return bool(chosen.records or chosen.known)


def _line(one: Grown) -> str:
    if one.chosen is None:
        return f"{one.kernel_type:<32} left as it is: {one.reason}"
    chosen = one.chosen
    left_out = (
        (chosen.known, "are there"),
        (chosen.repeated, "come twice"),
        (chosen.too_large, "are too large"),
        (chosen.refused, f"are no cases, the first: {chosen.why}"),
    )
    told = "".join(f"; {number:,} {what}" for number, what in left_out if number)
    largest = f", {chosen.largest_bytes / GIB:.2g} GiB at most" if chosen.records else ""
    return (
        f"{one.kernel_type:<32} {len(chosen.records):,} added{largest}: "
        f"{chosen.looked_at:,} of {chosen.points:,} points looked at{told}"
    )


# `opmeter parse`.

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
