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
) -> int:
    """Hold hcom_*.csv against the link, against its own neighbours, and against hccl_test."""
    from collector.collective import OPERATIONS
    from collector.comm.check import points_of, problems, series_of, tier_problems
    from collector.comm.comm_table import read_comm_table

    points: list[Point] = []
    for operation in OPERATIONS.values():
        path = folder / operation.file
        if path.exists():
            points += points_of(operation.name, read_comm_table(path), str(path))
    if not points:
        raise BadInput("hcom_*.csv with durations are wanted", path=folder)
    all_series = series_of(points)
    found = [line for series in all_series for line in problems(series, link_gbps)]
    found += tier_problems(all_series)
    for line in fit_lines(points):
        say(line)
    for line in found:
        say(f"wrong: {line}")
    if hccl_test is not None:
        found += _held_against(hccl_test, op, num_devices, points)
    verdict = counted(len(found), "row is", "rows are") if found else "nothing is"
    say(f"{counted(len(points), 'row')}: {verdict} wrong")
    return int(bool(found))


def _held_against(
    path: Path, operation: str | None, group_size: int | None, points: list[Point]
) -> list[str]:
    """Says how each row compares; those that fail, and the ranks that hccl_test found wrong."""
    from collector.collective import OPERATIONS
    from collector.comm.hccl_test import compared, read_hccl_test, verdict

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
