"""`opmeter comm validate`: what cannot be in the files of collectives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.counting import counted
from collector.errors import BadInput
from jobs.cli.comm_lines import fit_lines
from jobs.cli.terminal import say

if TYPE_CHECKING:
    from collector.comm.check import Point
    from collector.comm.production import Held


def validate_verb(
    folder: Annotated[Path, typer.Argument(help="the folder of hcom_*.csv")],
    *,
    link_gbps: Annotated[
        float | None, typer.Option(help="what a link carries, in 1e9 bytes a second")
    ] = None,
    hccl_test: Annotated[
        Path | None, typer.Option(help="what CANN's hccl_test printed, to compare with")
    ] = None,
    op: Annotated[str | None, typer.Option(help="its operation")] = None,
    num_devices: Annotated[int | None, typer.Option(help="its ranks")] = None,
    profiling_path: Annotated[
        Path | None, typer.Option(help="a profile of a real step, to compare with")
    ] = None,
    grid_shape: Annotated[
        list[int] | None, typer.Option(help="how its ranks lay, outermost first  [48 8 2]")
    ] = None,
    write_offsets: Annotated[
        bool,
        typer.Option("--write-offsets", help="add what a real step adds, as a column Offset(us)"),
    ] = False,
) -> int:
    """Hold hcom_*.csv against the link, their neighbours, hccl_test, and a profile."""
    from collector.collective import OPERATIONS
    from collector.comm.check import points_of, problems, series_of, tier_problems
    from collector.comm.comm_table import read_comm_table

    points: list[Point] = []
    for operation in OPERATIONS.values():
        path = folder / operation.file
        if path.exists():
            points += points_of(operation.name, read_comm_table(path), str(path))
    if not points:
        raise BadInput("expected hcom_*.csv files with durations", path=folder)
    all_series = series_of(points)
    found = [line for series in all_series for line in problems(series, link_gbps)]
    found += tier_problems(all_series)
    for line in fit_lines(points):
        say(line)
    for line in found:
        say(f"wrong: {line}")
    if hccl_test is not None:
        found += _held_against(hccl_test, op, num_devices, points)
    if profiling_path is not None:
        grid = tuple(grid_shape or (48, 8, 2))
        tree = folder if write_offsets else None
        found += _held_against_profile(profiling_path, grid, points, tree)
    elif write_offsets or grid_shape:
        asked = "--write-offsets" if write_offsets else "--grid-shape"
        raise BadInput(f"{asked} needs the --profiling-path that it is about")
    verdict = counted(len(found), "row is", "rows are") if found else "nothing is"
    say(f"{counted(len(points), 'row')}: {verdict} wrong")
    return int(bool(found))


def _held_against(
    path: Path, operation: str | None, group_size: int | None, points: list[Point]
) -> list[str]:
    """Says how each row compares; those that fail, and the ranks that hccl_test found wrong."""
    from collector.collective import OPERATIONS
    from collector.comm.check import verdict
    from collector.comm.hccl_test import compared, read_hccl_test

    if operation not in OPERATIONS or group_size is None:
        raise BadInput("--hccl-test needs its --op and --num-devices, which it does not print")
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", path=path) from error
    test = read_hccl_test(lines, str(path))
    failed = [f"hccl_test: the result of rank {rank} is wrong" for rank in test.failed_ranks]
    for line in failed:
        say(line)
    for one in compared(test, operation, group_size, points):
        mark = verdict(one.ratio)
        say(f"{mark} {one.ratio:.2f} x hccl_test: {one.point}")
        if mark == "FAIL":
            failed.append(str(one.point))
    return failed


def _held_against_profile(
    path: Path, extents: tuple[int, ...], points: list[Point], tree: Path | None
) -> list[str]:
    """Says how each message of a profile compares; those that fail. Into a `tree`, where one is
    given, goes what the network adds."""
    from collector.comm.check import verdict
    from collector.comm.production import held, in_network
    from collector.topology import Grid
    from jobs.cli.comm import profiled_at

    # Of both only as much is used as a row may lack: its own tier and dtype come first.
    messages = in_network(profiled_at(path, Grid(extents), "bfloat16"))
    found = [(message, held(message, points)) for message in messages]
    failed = []
    for message, one in found:
        if one is None:
            say(f"not compared: {message}; no rows of sizes around it")
            continue
        mark, between = verdict(one.ratio), ""
        if not one.is_exact:
            sizes = f"{one.below.message_bytes} and {one.above.message_bytes}"
            between = f" (on the line between {sizes} bytes)"
        if not one.is_own:
            between += f" (rows of {one.below.dtype}, tier {one.below.tier})"
        say(f"{mark} {one.ratio:.2f} x {message}; alone {one.isolated_us:g} us{between}")
        if mark == "FAIL":
            failed.append(str(message))
    if tree is not None:
        _write_offsets(tree, [one for _, one in found if one is not None])
    return failed


def _write_offsets(tree: Path, found: list[Held]) -> None:
    from collector.collective import OPERATIONS
    from collector.comm.comm_table import OFFSET, write_offsets
    from collector.comm.production import offsets_by_key

    for operation in OPERATIONS.values():
        path = tree / operation.file
        offsets = offsets_by_key(operation.name, found)
        if path.exists():
            rows = counted(write_offsets(path, offsets), "row")
            say(f"{path}: {OFFSET} of {rows}")
