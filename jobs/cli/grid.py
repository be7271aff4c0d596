"""`opmeter tree grid` and `opmeter tree parse`: the rows of a tree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from collector.codec.errors import BadInput
from collector.codec.text import counted, size_text
from collector.workloads.models import find_decoder
from jobs.cli.mappings import mapping_command
from jobs.cli.options import TreeOptions
from jobs.cli.recordings import RECORDING_SUFFIX
from jobs.cli.terminal import say, say_lines

if TYPE_CHECKING:
    from collector.profiles.kernel_details import ProfileReport
    from collector.singlehost.grow import Grown
    from collector.singlehost.parse import ParseResult


_ROWS = 1000  # of each kernel type, without --rows


@dataclass(frozen=True, slots=True)
class GridTreeOptions(TreeOptions):
    database_path: Annotated[
        Path | None,
        typer.Option("--database-path", "--data-dir", help="version directory of a tree"),
    ] = None


def grid_command(
    tree: GridTreeOptions,
    *,
    target_models: Annotated[
        str | None,
        typer.Option(
            help="models that give the sizes, separated by commas: names of `opmeter model list`, "
            "config.json files or recordings  [default: sizes of the patterns]"
        ),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            help="maximum of cases per kernel type; 0 for all  "
            "[default: 1000; with --standard all]",
            min=0,
        ),
    ] = None,
    standard: Annotated[
        str | None,
        typer.Option(
            help="density standard (density-v1) to apply between existing rows, instead of a sample"
        ),
    ] = None,
    patterns: Annotated[
        Path | None,
        typer.Option(help="YAML file of own patterns, used for the kernel types that it names"),
    ] = None,
    seed: Annotated[int, typer.Option(help="seed of the sample")] = 0,
    max_hbm_gb: Annotated[
        float, typer.Option(help="largest memory of a case, in GiB; 0 for any", min=0)
    ] = 32.0,
    reserve_gb: Annotated[
        float,
        typer.Option(help="part of --max-hbm-gb for workspaces and the runtime, in GiB", min=0),
    ] = 1.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the result without writing it")
    ] = False,
) -> int:
    """Add rows without durations to a tree: a grid of shapes for each kernel.

    Rows are added to existing files of kernels that have a pattern; --patterns adds and replaces
    patterns. The exit code is 1 if no kernel has a case on its grid.

    \b
    Examples:
      opmeter tree grid --database-path tree --target-models qwen3-32b,deepseek-v3
      opmeter tree grid --database-path tree --patterns patterns.yaml
      opmeter tree grid --database-path tree --standard density-v1 --dry-run
    """
    from collector.singlehost.grow import GridOptions, grow_tree
    from collector.workloads.density import find_standard
    from collector.workloads.deployments import USUAL_RELEASE
    from collector.workloads.patterns import read_patterns

    folder = tree.folder
    names = [name.strip() for name in (target_models or "").split(",") if name.strip()]
    if target_models is not None and not names:
        raise BadInput("--target-models: expected at least one model")
    if standard is not None:
        find_standard(standard)
        if names:
            raise BadInput("--standard uses the existing rows: it excludes --target-models")
    options = GridOptions(
        rows=(_ROWS if rows is None and standard is None else rows) or None,
        seed=seed,
        largest_gib=_memory_left(max_hbm_gb, reserve_gb),
        decoders=tuple(find_decoder(one) for one in names if not one.endswith(RECORDING_SUFFIX)),
        release=USUAL_RELEASE,
        standard=standard or "",
        recordings=tuple(Path(one) for one in names if one.endswith(RECORDING_SUFFIX)),
    )
    added, is_any = 0, False
    own = read_patterns(patterns) if patterns else None
    for one in grow_tree(folder, options, write=not dry_run, own=own):
        say(_line(one))
        added += len(one.chosen.records) if one.chosen else 0
        is_any |= one.chosen is not None and bool(one.chosen.records or one.chosen.known)
    done = "would be added" if dry_run else "added"
    say(f"{counted(added, 'row')} {done} to {folder}")
    return 0 if is_any else 1


def _memory_left(most_gib: float, reserve_gib: float) -> float | None:
    """Return the memory left for tensors, in GiB; None without a limit."""
    if not most_gib:
        return None
    if reserve_gib >= most_gib:
        raise BadInput(
            f"--max-hbm-gb ({most_gib:g}) must be larger than --reserve-gb ({reserve_gib:g})"
        )
    return most_gib - reserve_gib


def _line(one: Grown) -> str:
    if one.chosen is None:
        return f"{one.kernel_type:<32} unchanged: {one.reason}"
    chosen = one.chosen
    left_out = (
        (chosen.known, "exist already"),
        (chosen.repeated, "repeated"),
        (chosen.too_large, "too large"),
        (chosen.refused, f"refused, the first: {chosen.why}"),
    )
    text = "".join(f"; {number:,} {what}" for number, what in left_out if number)
    largest = f", largest {size_text(chosen.largest_bytes)}" if chosen.records else ""
    return (
        f"{one.kernel_type:<32} {len(chosen.records):,} added{largest}: "
        f"{chosen.examined:,} of {chosen.points:,} points examined{text}"
    )


# `opmeter tree parse`.

_LISTED = 20


def parse_command(
    tree: TreeOptions,
    profiles: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PROFILE]...", help="a file, an archive or a folder each"),
    ] = None,
    *,
    profile: Annotated[
        list[str] | None,
        typer.Option("--profile", "--profiling-path", help="a further profile; may be given again"),
    ] = None,
    bundled: Annotated[
        str | None, typer.Option(help="bundled profile, instead of --profile: quickstart")
    ] = None,
    group_by: Annotated[
        str, typer.Option(help="key of a case: identity, or shapes as in msmodeling")
    ] = "identity",
    skip_bad_rows: Annotated[
        bool, typer.Option("--skip-bad-rows", help="list bad rows and files, and continue")
    ] = False,
    pool: Annotated[
        bool,
        typer.Option(
            "--pool", help="combine statistics of a case by counts, instead of replacing them"
        ),
    ] = False,
) -> int:
    """Convert profiles into a tree of CSVs, one per kernel type.

    Rows of an existing tree are updated. The exit code is 1 if no row is kept.

    \b
    Examples:
      opmeter tree parse PROF_000001 --database-path tree
      opmeter tree parse --bundled quickstart --database-path tree
    """
    from collector.profiles.kernel_details import GroupBy
    from collector.singlehost.parse import parse_profile

    if group_by not in ("identity", "shapes"):
        raise BadInput(f"--group-by: expected identity or shapes, got {group_by!r}")
    named = [*(profiles or []), *(profile or [])]
    if "" in named:
        raise BadInput("--profile: expected the path of a profile, got an empty value")
    target = tree.folder
    with _profiles([Path(path) for path in named], bundled) as paths:
        result = parse_profile(
            paths,
            target,
            group_by=cast(GroupBy, group_by),
            skip_bad_rows=skip_bad_rows,
            pool=pool,
        )
    mapping_command(target)
    say_lines(_describe(result, "pooled" if pool else "updated"))
    if result.kernels or result.communication is not None:
        return 0
    say("no row was kept", err=True)
    return 1


@contextmanager
def _profiles(paths: list[Path], bundled: str | None) -> Iterator[list[Path]]:
    from jobs.planning.sources import bundled_profile

    if bool(paths) == (bundled is not None):
        raise BadInput("expected either a PROFILE or --bundled quickstart")
    if bundled is None:
        yield paths
        return
    with bundled_profile(bundled) as path:
        yield [path]


def _describe(result: ParseResult, became: str) -> Iterator[str]:
    report = result.report
    yield (
        f"read {counted(report.rows, 'row')} of {counted(len(report.files), 'file')}: "
        f"{report.compute_rows:,} compute, "
        f"{report.communication_rows:,} communication"
    )
    if result.cann:
        releases = ", ".join(result.cann)
        yield (
            f"warning: durations of several releases of CANN in one tree ({releases}); parse the "
            "profiles of each release into a version of its own"
        )
    yield from _left_out(report)
    yield from _unknown(result)
    yield from _attention(report)
    added, updated, unchanged = (
        sum(getattr(kernel, name) for kernel in result.kernels.values())
        for name in ("added", "updated", "unchanged")
    )
    kernel_types = len({path.stem for path in result.kernels})
    yield (
        f"{counted(kernel_types, 'kernel type')} in {result.version_dir}: "
        f"{counted(added, 'row')} added, {updated:,} {became}, {unchanged:,} unchanged"
    )
    for path, kernel in result.kernels.items():
        for duplicate in kernel.duplicates:
            yield f"repeated in {path.name}: {duplicate}; only the first row was {became}"
    if result.communication:
        yield f"communication rows written to {result.communication}"


def _attention(report: ProfileReport) -> Iterator[str]:
    """Yield what logs of calls gave, and the evidence against the pairing of fused attention with
    its operators."""
    yield from map(str, report.completed)
    for found in report.pairings:
        if found.warning or found.kernel_rows != found.operator_rows:
            yield (
                f"{found.folder}: {counted(found.kernel_rows, 'row')} of fused attention, "
                f"{found.operator_rows:,} of its operators: {found.paired:,} paired"
                + (f"; {found.warning}" if found.warning else "")
            )
    for text in report.disputed[:_LISTED]:
        yield f"operators of one row disagree, so the kernel's row is used: {text}"


def _unknown(result: ParseResult) -> Iterator[str]:
    from collector.database.layout import UNKNOWN_INPUTS

    held = {path.stem for path in result.kernels}
    for kernel_type, rows in result.report.unknown_input_rows:
        place = f"written to {UNKNOWN_INPUTS}/" if kernel_type in held else "not stored"
        yield f"{counted(rows, 'row')} of {kernel_type}: unknown inputs (N/A), {place}"


def _left_out(report: ProfileReport) -> Iterator[str]:
    if report.duplicates_dropped:
        yield f"{counted(report.duplicates_dropped, 'repeated communication row')} dropped"
    for repeated in report.repeated:
        of = "itself" if repeated.of == repeated.path else f"the run of {repeated.of}"
        rows = counted(repeated.rows, "repeated row")
        yield f"{repeated.path} repeats {of}: {rows} left out"
    for reason in report.unusable:
        yield f"skipped file: {reason}"
    if report.unanalysed:
        yield f"skipped {counted(len(report.unanalysed), 'capture')} without kernels:"
    for capture in report.unanalysed:
        yield f"skipped capture: {capture}"
    for row in report.skipped[:_LISTED]:
        yield f"skipped {row.path}:{row.line}: {row.reason}"
    if len(report.skipped) > _LISTED:
        yield f"skipped {counted(len(report.skipped) - _LISTED, 'more row')}"
