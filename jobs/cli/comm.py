"""`opmeter comm`: collectives over the ranks of one or several machines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput, file_errors
from collector.codec.files import MOST_TABLE_BYTES, check_writable, read_small_file
from collector.codec.numbers import decimal_text
from collector.codec.text import counted, percent, time_text
from collector.comm.bench_plan import BenchPlan, LeftOut, chosen_sizes, collectives_of, measurable
from collector.ranks.collective import OPERATIONS, Collective, dtype_named
from collector.ranks.topology import Grid
from jobs.cli import ranks
from jobs.cli.options import check_backend
from jobs.cli.terminal import say, say_lines

if TYPE_CHECKING:
    from collector.comm.check import CheckedRow
    from collector.comm.comm_table import FileChange
    from collector.comm.measured import BenchOutcome
    from collector.comm.profiled import Profiled
    from collector.comm.validation import ComparedMessage


_JUMP_FACTOR = 1.1
# Options that take words up to the next option, as in `tools/perf_data_collection` of msmodeling.
LISTS = ("--ops", "--grid-shape", "--num-devices", "--topology-tier", "--bytes-grid")


def comm_command(
    context: typer.Context,
    nodes: ranks.NodesOptions,
    *,
    ops: Annotated[
        list[str] | None,
        typer.Option(help="operations to measure, such as all_reduce  [default: all]"),
    ] = None,
    num_devices: Annotated[
        list[int] | None, typer.Option(help="group sizes, in ranks  [default: all ranks]")
    ] = None,
    grid_shape: Annotated[
        list[int] | None, typer.Option(help="ranks per tier, outermost first  [default: 48 8 2]")
    ] = None,
    topology_tier: Annotated[
        list[int] | None,
        typer.Option(
            help="tiers of the groups, 0 the outermost  [default: that of the nearest ranks]"
        ),
    ] = None,
    bytes_grid: Annotated[
        list[str] | None,
        typer.Option(help="message sizes in bytes, or full, quick or production  [default: full]"),
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option(min=1, help="largest message size in bytes  [default: none]")
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            "--profiling-path",
            help="profile whose messages give sizes and groups, instead of --bytes-grid",
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="dtype of the tensors")] = "bfloat16",
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--output-dir", "--database-path", help="folder for one hcom_*.csv per operation"
        ),
    ] = None,
    output_csv: Annotated[
        Path | None, typer.Option(help="CSV file of a single operation, instead of a folder")
    ] = None,
    do_run: Annotated[
        bool, typer.Option("--do-run", help="measure, instead of printing the plan")
    ] = False,
    bench_mode: Annotated[
        str, typer.Option(help="timing mode: auto, event, alternating or kernel")
    ] = ranks.BY_CASE,
    jump_factor: Annotated[
        float | None,
        typer.Option(
            help="size ratio within which jumps are located; 0 for no search  "
            "[default: 1.1; gloo: 0]"
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="number of rounds over all cases")] = 3,
    budget_s: Annotated[float, typer.Option(help="seconds for each case in a round")] = 0.2,
    backend: Annotated[
        str, typer.Option(help="backend of the ranks: npu (hccl), cuda (nccl) or cpu (gloo)")
    ] = "npu",
    nproc_per_node: Annotated[
        int | None,
        typer.Option(
            min=1, help="number of ranks on this node  [default: largest group / --nnodes]"
        ),
    ] = None,
    patience_s: ranks.PatienceOption = 120.0,
) -> int:
    """Measure collectives over several ranks, and write one CSV per operation.

    Without --do-run the command prints its plan and measures nothing. On several machines, start
    the same command on every node; node 0 writes the rows.

    \b
    Examples:
      opmeter comm --backend cpu --num-devices 2 --bytes-grid quick
      opmeter comm --do-run --ops all_reduce all_gather --nproc-per-node 16 \\
          --num-devices 16 8 --output-dir hccl
      opmeter comm validate hccl --link-gbps 196
    """
    from collector.comm.comm_table import check_bench_file, check_folder, write_file, write_measured
    from collector.comm.gang import GangWork, Rendezvous, run_gang
    from collector.comm.measured import bench_results
    from collector.comm.rank_files import read_rank_results
    from collector.host.stack import check_devices

    check_backend(backend)
    mode = ranks.requested_mode(bench_mode)
    operations = ops or list(OPERATIONS)
    if output_csv is not None and len(operations) != 1:
        raise BadInput("--output-csv requires --ops with exactly one operation")
    grid = Grid(tuple(grid_shape or (48, 8, 2)))
    required = dtype_named(dtype)
    from_profile = _profiled(profile, grid, required)
    groups = num_devices or sorted({case.group_size for case in from_profile}) or [2]
    local = nproc_per_node or max(1, -(-max(groups) // nodes.nnodes))
    meeting = Rendezvous(local, *astuple(nodes))
    if profile is None:
        cases, left_out = collectives_of(
            operations,
            chosen_sizes(bytes_grid or ["full"], max_bytes),
            required,
            num_devices or [meeting.world],
            topology_tier or [],
            grid=grid,
            world=meeting.world,
        )
    else:
        requested = [one for one in from_profile if one.operation in operations]
        cases, left_out = measurable(requested, grid=grid, world=meeting.world)
    say_lines(left_out_lines("not measured", left_out))
    if not cases:
        raise BadInput("no case to measure: all cases are left out")
    if jump_factor is None and backend != "cpu":  # there other processes cause most jumps
        jump_factor = _JUMP_FACTOR
    plan = BenchPlan(
        *(backend, grid, meeting.world, mode, rounds, budget_s, (5, 100), tuple(cases)),
        jump_factor=jump_factor or None,
    )
    if meeting.is_first:  # it writes the rows: check that before the measurement
        if output_csv is not None:
            check_bench_file(output_csv, plan)
        elif output_dir is not None:
            check_folder(output_dir, plan)
    say_lines(plan_lines(plan))
    if not do_run:
        say("plan only; --do-run measures it")
        return 0
    if meeting.is_first and (folder := output_csv.parent if output_csv else output_dir):
        check_writable(folder)
    check_devices(backend, meeting.nproc_per_node)
    found, failure = ranks.run_ranks(
        lambda folder, tick: run_gang(
            GangWork(plan, patience_s=patience_s, tick=tick), meeting, folder
        ),
        len(plan.collectives) * plan.rounds,
        lambda folder: bench_results(plan, read_rank_results(folder)),
    )
    if meeting.is_first:  # write the results, also those before a failure
        say_lines(found_lines(found))
        changes = []
        if output_csv is not None and found.measured:
            changes = [write_file(output_csv, found.measured)]
        elif output_dir is not None and found.measured:
            changes = write_measured(output_dir, found.measured)
        say_lines(map(change_line, changes))
    return ranks.ended(failure, is_whole=not found.wrong)


def _profiled(path: Path | None, grid: Grid, dtype: str) -> list[Collective]:
    from jobs.planning.generated_sources import profiled_at

    if path is None:
        return []
    found = profiled_at(path, grid, dtype)
    say_lines(profile_lines(found))
    cases = [one.collective for one in found if one.collective is not None]
    return sorted(cases, key=lambda one: (one.operation, one.group_size, one.message_bytes))


# `opmeter comm validate`.


def validate_command(
    folder: Annotated[Path, typer.Argument(help="folder with hcom_*.csv files")],
    *,
    link_gbps: Annotated[
        float | None,
        typer.Option(help="bandwidth of a link, in GB/s (1e9 bytes)  [default: no check]"),
    ] = None,
    hccl_test: Annotated[
        Path | None, typer.Option(help="output of CANN's hccl_test, to compare with")
    ] = None,
    op: Annotated[str | None, typer.Option(help="operation of --hccl-test")] = None,
    num_devices: Annotated[int | None, typer.Option(help="number of ranks of --hccl-test")] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile", "--profiling-path", help="profile of a real step, to compare with"
        ),
    ] = None,
    grid_shape: Annotated[
        list[int] | None,
        typer.Option(help="ranks per tier of --profile, outermost first  [default: 48 8 2]"),
    ] = None,
    write_offsets: Annotated[
        bool,
        typer.Option(
            "--write-offsets", help="write the difference to --profile as column Offset(us)"
        ),
    ] = False,
) -> int:
    """Check hcom_*.csv files for implausible rows.

    Rows are compared with the bandwidth of the link, with neighbouring sizes and tiers, and, if
    given, with the output of hccl_test and a profile. The exit code is 1 if a row is implausible or
    a comparison fails.

    \b
    Examples:
      opmeter comm validate hccl --link-gbps 196
      opmeter comm validate hccl --hccl-test log.txt --op all_reduce --num-devices 8
      opmeter comm validate hccl --profile PROF_000001 --write-offsets
    """
    from collector.comm.check import problems, series_of, tier_problems, timed_points
    from collector.comm.comm_table import read_comm_table

    points: list[CheckedRow] = []
    for operation in OPERATIONS.values():
        path = folder / operation.file
        if path.exists():
            points += timed_points(operation.name, read_comm_table(path), str(path))
    if not points:
        raise BadInput("expected hcom_*.csv files with durations", path=folder)
    all_series = series_of(points)
    found = [line for series in all_series for line in problems(series, link_gbps)]
    found += tier_problems(all_series)
    say_lines(fit_lines(points))
    for line in found:
        say(f"wrong: {line}")
    if hccl_test is not None:
        found += _held_against(hccl_test, op, num_devices, points)
    if profile is not None:
        grid = tuple(grid_shape or (48, 8, 2))
        tree = folder if write_offsets else None
        found += _held_against_profile(profile, grid, points, tree)
    elif write_offsets or grid_shape:
        requested = "--write-offsets" if write_offsets else "--grid-shape"
        raise BadInput(f"{requested} requires --profile")
    say(f"{counted(len(points), 'row')}, {counted(len(found), 'problem')}")
    return int(bool(found))


def _held_against(
    path: Path, operation: str | None, group_size: int | None, points: list[CheckedRow]
) -> list[str]:
    """Print the comparison of each row with hccl_test; return the failures, those of ranks too."""
    from collector.comm.check import ratio_verdict
    from collector.comm.validation import compared, read_hccl_test

    if operation not in OPERATIONS or group_size is None:
        raise BadInput(
            "--hccl-test requires --op and --num-devices, which hccl_test does not print"
        )
    with file_errors(path):
        lines = read_small_file(path, MOST_TABLE_BYTES).decode(errors="replace").splitlines()
    test = read_hccl_test(lines, str(path))
    failed = [f"hccl_test: the result of {size} bytes is wrong" for size in test.failed_bytes]
    failed += [f"hccl_test: the result of rank {rank} is wrong" for rank in test.failed_ranks]
    say_lines(failed)
    for one in compared(test, operation, group_size, points):
        mark = ratio_verdict(one.ratio)
        say(f"{mark} {one.ratio:.2f} x hccl_test: {one.point}")
        if mark == "FAIL":
            failed.append(str(one.point))
    return failed


def _held_against_profile(
    path: Path, extents: tuple[int, ...], points: list[CheckedRow], tree: Path | None
) -> list[str]:
    """Print the comparison of each message of a profile; return the failures.

    If a `tree` is given, the time that the network adds is written into it.
    """
    from collector.comm.check import ratio_verdict
    from collector.comm.validation import compare_with_tree, in_network
    from jobs.planning.generated_sources import profiled_at

    # Both only order the rows: those of the message's own tier and dtype are preferred.
    messages = in_network(profiled_at(path, Grid(extents), "bfloat16"))
    found = [(message, compare_with_tree(message, points)) for message in messages]
    failed = []
    for message, one in found:
        if one is None:
            say(f"not compared: {message}; no rows around its size")
            continue
        mark, between = ratio_verdict(one.ratio), ""
        if not one.is_exact:
            sizes = f"{one.below.message_bytes} and {one.above.message_bytes}"
            between = f" (interpolated between {sizes} bytes)"
        if not one.is_own:
            between += f" (rows of {one.below.dtype}, tier {one.below.tier})"
        say(f"{mark} {one.ratio:.2f} x {message}; isolated {one.isolated_us:g} us{between}")
        if mark == "FAIL":
            failed.append(str(message))
    if tree is not None:
        _write_offsets(tree, [one for _, one in found if one is not None])
    return failed


def _write_offsets(tree: Path, found: list[ComparedMessage]) -> None:
    from collector.comm.comm_table import OFFSET, write_offsets
    from collector.comm.validation import offsets_by_key

    for operation in OPERATIONS.values():
        path = tree / operation.file
        offsets = offsets_by_key(operation.name, found)
        if path.exists():
            rows = counted(write_offsets(path, offsets), "row")
            say(f"{path}: {OFFSET} written for {rows}")


# The output: the plan, the results, and the lines fitted through them.

_LISTED, _SIZES_LISTED = 20, 8


def plan_lines(plan: BenchPlan) -> Iterator[str]:
    """Yield a line for each operation, group and mode, and one for the cost of all."""
    for _, group in groupby(
        plan.collectives,
        key=lambda one: (
            *(one.operation, one.group_size, one.tier, one.together),
            plan.mode_of(one),
        ),
    ):
        cases = list(group)
        one, groups = cases[0], plan.groups(cases[0])
        at_once = " at once" if one.together else ""
        first = ", ".join(map(str, groups[0][:4])) + (" ..." if len(groups[0]) > 4 else "")
        yield (
            f"{one.operation} over {one.group_size} ranks of tier {one.tier}: "
            f"{counted(len(groups), 'group')}{at_once}, ranks {first}; "
            f"{counted(len(cases), 'size')}, {one.message_bytes} to {cases[-1].message_bytes} "
            f"bytes, mode {plan.mode_of(one)}"
        )
    rounds = counted(plan.rounds, "round")
    yield (
        f"{counted(len(plan.collectives), 'case')}, {rounds}, {plan.budget_s:g} s for each case "
        f"and round: about {plan.expected_s:.0f} s on {plan.world} ranks, "
        f"{plan.expected_s * plan.world:.0f} s of device time"
    )


def profile_lines(found: Sequence[Profiled]) -> Iterator[str]:
    """Yield the collectives of a profile, longest first, and the share of their time that cases
    cover."""
    from collector.comm.profiled import share_in_cases

    for one in found:
        what = one.reason or f"{'about ' if one.is_derived else ''}{one.collective}"
        what += ", tier assumed" if one.tier_assumed else ""
        times = counted(one.count, "time")
        yield f"{one.kernel_type} {times}, {time_text(one.total_us)}: {what}"
    total_us = sum(one.total_us for one in found)
    cases = counted(sum(one.collective is not None for one in found), "case")
    share = percent(share_in_cases(found))
    yield f"{time_text(total_us)} of communication, {share} of it in {cases}"


def found_lines(found: BenchOutcome) -> Iterator[str]:
    """Yield what was left out, wrong results, jumps, fitted lines and the spread of rounds."""
    from collector.comm.check import point_of

    yield from left_out_lines("not measured", found.left_out)
    yield from left_out_lines("wrong", found.wrong)
    yield from (f"jump: {one.collective}: {one.jump}" for one in found.measured if one.jump)
    yield from fit_lines([point_of(one) for one in found.measured if not one.collective.together])
    if found.measured and len(found.measured[0].timings) > 1:
        yield (
            f"rounds differ from the median of their case by less than "
            f"{percent(found.round_p95)} in 95 % of the cases"
        )


def fit_lines(points: Iterable[CheckedRow]) -> Iterator[str]:
    """Yield alpha and beta of each operation, group size and tier, with the error of the fit."""
    from collector.comm.check import series_of

    for series in series_of(points):
        one, line = series.points[0], series.line
        name = f"{one.operation} over {one.group_size} ranks of tier {one.tier or '?'}"
        if line is None:
            yield f"{name}: {counted(len(series.points), 'size')}, too few for a fit"
            continue
        yield (
            f"{name}: {line.alpha_us:.1f} us + bytes / {decimal_text(line.bandwidth_gbps)} GB/s; "
            f"error {percent(line.typical, 0)} (median), {percent(line.worst, 0)} at "
            f"{line.worst_bytes} bytes"
        )


def change_line(change: FileChange) -> str:
    twice = f"; {counted(change.twice, 'key')} occurred more than once" if change.twice else ""
    return f"{change.path}: {counted(change.added, 'row')} added, {change.changed} changed{twice}"


def left_out_lines(what: str, cases: Sequence[LeftOut]) -> Iterator[str]:
    """Yield a line for the cases of each group and reason, up to a maximum of lines."""
    alike: dict[tuple[str, Collective], list[Collective]] = {}
    for one in cases:
        group = replace(one.collective, operation="", message_bytes=0)
        alike.setdefault((one.reason, group), []).append(one.collective)
    for (reason, _), found in list(alike.items())[:_LISTED]:
        yield f"{what}: {_together(found)}: {reason}"
    if rest := sum(map(len, list(alike.values())[_LISTED:])):
        yield f"{what}: {counted(rest, 'more case')}"


def _together(cases: Sequence[Collective]) -> str:
    """Return the cases of one group in a line: each size, or the range of many."""
    if len(cases) == 1:
        return str(cases[0])
    operations = ", ".join(dict.fromkeys(one.operation for one in cases))
    sizes = sorted({one.message_bytes for one in cases})
    recorded = ", ".join(map(str, sizes))
    if len(sizes) > _SIZES_LISTED:
        recorded = f"{counted(len(sizes), 'size')} from {sizes[0]} to {sizes[-1]}"
    one = cases[0]
    at_once = ", all groups at once" if one.together else ""
    where = f"over {one.group_size} ranks of tier {one.tier}{at_once}"
    return f"{operations} of {recorded} bytes of {one.dtype} {where} ({len(cases)} cases)"
