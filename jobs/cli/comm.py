"""`opmeter comm`: collectives over the ranks of one or several machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput
from collector.codec.text import counted
from jobs.cli import comm_lines, ranks
from jobs.cli.terminal import say

if TYPE_CHECKING:
    from collector.comm.bench_plan import BenchPlan
    from collector.comm.check import CheckedRow
    from collector.comm.comm_table import FileChange
    from collector.comm.gang import Rendezvous
    from collector.comm.measured import BenchOutcome
    from collector.comm.profiled import Profiled
    from collector.comm.validation import ComparedMessage
    from collector.ranks.collective import Collective
    from collector.ranks.topology import Grid


_JUMP_FACTOR = 1.1
# Options that take words up to the next option, as in `tools/perf_data_collection` of msmodeling.
LISTS = ("--ops", "--grid-shape", "--num-devices", "--topology-tier", "--bytes-grid")


def comm_command(
    context: typer.Context,
    *,
    ops: Annotated[
        list[str] | None, typer.Option(help="operations to measure, such as all_reduce  [all]")
    ] = None,
    num_devices: Annotated[
        list[int] | None, typer.Option(help="group sizes, in ranks  [all ranks]")
    ] = None,
    grid_shape: Annotated[
        list[int] | None, typer.Option(help="ranks per tier, outermost first  [48 8 2]")
    ] = None,
    topology_tier: Annotated[
        list[int] | None,
        typer.Option(help="tiers of the groups, 0 the outermost  [that of the nearest ranks]"),
    ] = None,
    bytes_grid: Annotated[
        list[str] | None,
        typer.Option(help="message sizes in bytes, or full, quick or production  [full]"),
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option(min=1, help="largest message size in bytes  [none]")
    ] = None,
    profiling_path: Annotated[
        Path | None,
        typer.Option(help="profile whose messages give sizes and groups, instead of --bytes-grid"),
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
            help="size ratio within which jumps are located; 0 for no search  [1.1; gloo: 0]"
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="number of rounds over all cases")] = 3,
    budget_s: Annotated[float, typer.Option(help="seconds for each case in a round")] = 0.2,
    backend: ranks.BackendOption = "npu",
    nproc_per_node: ranks.GroupRanksOption = None,
    nnodes: ranks.NnodesOption = 1,
    node_rank: ranks.NodeRankOption = 0,
    master_addr: ranks.MasterAddrOption = "127.0.0.1",
    master_port: ranks.MasterPortOption = 0,
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
    from collector.comm.bench_plan import BenchPlan, chosen_sizes, collectives_of, measurable
    from collector.comm.gang import Rendezvous
    from collector.ranks.collective import OPERATIONS, dtype_named
    from collector.ranks.topology import Grid

    ranks.check_backend(backend)
    mode = ranks.requested_mode(bench_mode)
    operations = ops or list(OPERATIONS)
    if output_csv is not None and len(operations) != 1:
        raise BadInput("--output-csv requires --ops with exactly one operation")
    grid = Grid(tuple(grid_shape or (48, 8, 2)))
    required = dtype_named(dtype)
    from_profile = _profiled(profiling_path, grid, required)
    groups = num_devices or sorted({case.group_size for case in from_profile}) or [2]
    local = nproc_per_node or max(1, -(-max(groups) // nnodes))
    meeting = Rendezvous(local, nnodes, node_rank, master_addr, master_port)
    if profiling_path is None:
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
    for line in comm_lines.left_out_lines("not measured", left_out):
        say(line)
    if not cases:
        raise BadInput("no case to measure: all cases are left out")
    if jump_factor is None and backend != "cpu":  # there other processes cause most jumps
        jump_factor = _JUMP_FACTOR
    plan = BenchPlan(
        *(backend, grid, meeting.world, mode, rounds, budget_s, (5, 100), tuple(cases)),
        jump_factor=jump_factor or None,
    )
    if meeting.is_first:  # it writes the rows: check that before the measurement
        _check_status(plan, output_dir, output_csv)
    for line in comm_lines.plan_lines(plan):
        say(line)
    if not do_run:
        say("plan only; --do-run measures it")
        return 0
    return _run(plan, meeting, patience_s, output_dir, output_csv)


def profiled_at(path: Path, grid: Grid, dtype: str) -> tuple[Profiled, ...]:
    """Return the collectives that the runs at or below a path recorded."""
    from collector.comm.profiled import profiled_collectives
    from collector.profiles.transfers import find_transfers, read_transfers

    transfers = [one for folder in find_transfers(path) for one in read_transfers(folder)]
    return profiled_collectives(transfers, grid, dtype)


def _profiled(path: Path | None, grid: Grid, dtype: str) -> list[Collective]:
    """Return the cases of a profile, and print all its collectives."""
    if path is None:
        return []
    found = profiled_at(path, grid, dtype)
    for line in comm_lines.profile_lines(found):
        say(line)
    cases = [one.collective for one in found if one.collective is not None]
    return sorted(cases, key=lambda one: (one.operation, one.group_size, one.message_bytes))


def _check_status(plan: BenchPlan, output_dir: Path | None, output_csv: Path | None) -> None:
    from collector.comm.comm_table import check_file, check_folder

    if output_csv is not None:
        check_file(output_csv, plan)
    elif output_dir is not None:
        check_folder(output_dir, plan)


def _run(
    plan: BenchPlan,
    meeting: Rendezvous,
    patience_s: float,
    output_dir: Path | None,
    output_csv: Path | None,
) -> int:
    """Measure a plan and write the results, also those before a failure; return the exit code."""
    from collector.comm.gang import GangWork, run_gang
    from collector.comm.measured import bench_results
    from collector.comm.rank_files import read_results

    found, failure = ranks.run_ranks(
        lambda folder, tick: run_gang(
            GangWork(plan, patience_s=patience_s, tick=tick), meeting, folder
        ),
        len(plan.collectives) * plan.rounds,
        lambda folder: bench_results(plan, read_results(folder)),
    )
    if meeting.is_first:
        for line in comm_lines.found_lines(found):
            say(line)
        for change in _written(found, output_dir, output_csv):
            say(comm_lines.change_line(change))
    return ranks.ended(failure, is_whole=not found.wrong)


def _written(
    found: BenchOutcome, output_dir: Path | None, output_csv: Path | None
) -> list[FileChange]:
    from collector.comm.comm_table import write_file, write_measured

    if not found.measured:
        return []
    if output_csv is not None:
        return [write_file(output_csv, found.measured)]
    return write_measured(output_dir, found.measured) if output_dir is not None else []


# `opmeter comm validate`.


def validate_command(
    folder: Annotated[Path, typer.Argument(help="folder with hcom_*.csv files")],
    *,
    link_gbps: Annotated[
        float | None, typer.Option(help="bandwidth of a link, in GB/s (1e9 bytes)  [no check]")
    ] = None,
    hccl_test: Annotated[
        Path | None, typer.Option(help="output of CANN's hccl_test, to compare with")
    ] = None,
    op: Annotated[str | None, typer.Option(help="operation of --hccl-test")] = None,
    num_devices: Annotated[int | None, typer.Option(help="number of ranks of --hccl-test")] = None,
    profiling_path: Annotated[
        Path | None, typer.Option(help="profile of a real step, to compare with")
    ] = None,
    grid_shape: Annotated[
        list[int] | None,
        typer.Option(help="ranks per tier of --profiling-path, outermost first  [48 8 2]"),
    ] = None,
    write_offsets: Annotated[
        bool,
        typer.Option(
            "--write-offsets", help="write the difference to --profiling-path as column Offset(us)"
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
      opmeter comm validate hccl --profiling-path PROF_000001 --write-offsets
    """
    from collector.comm.check import points_of, problems, series_of, tier_problems
    from collector.comm.comm_table import read_comm_table
    from collector.ranks.collective import OPERATIONS

    points: list[CheckedRow] = []
    for operation in OPERATIONS.values():
        path = folder / operation.file
        if path.exists():
            points += points_of(operation.name, read_comm_table(path), str(path))
    if not points:
        raise BadInput("expected hcom_*.csv files with durations", path=folder)
    all_series = series_of(points)
    found = [line for series in all_series for line in problems(series, link_gbps)]
    found += tier_problems(all_series)
    for line in comm_lines.fit_lines(points):
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
        requested = "--write-offsets" if write_offsets else "--grid-shape"
        raise BadInput(f"{requested} requires --profiling-path")
    say(f"{counted(len(points), 'row')}, {counted(len(found), 'problem')}")
    return int(bool(found))


def _held_against(
    path: Path, operation: str | None, group_size: int | None, points: list[CheckedRow]
) -> list[str]:
    """Print the comparison of each row with hccl_test; return the failures, those of ranks too."""
    from collector.comm.check import verdict
    from collector.comm.validation import compared, read_hccl_test
    from collector.ranks.collective import OPERATIONS

    if operation not in OPERATIONS or group_size is None:
        raise BadInput(
            "--hccl-test requires --op and --num-devices, which hccl_test does not print"
        )
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
    path: Path, extents: tuple[int, ...], points: list[CheckedRow], tree: Path | None
) -> list[str]:
    """Print the comparison of each message of a profile; return the failures.

    If a `tree` is given, the time that the network adds is written into it.
    """
    from collector.comm.check import verdict
    from collector.comm.validation import compare_with_tree, in_network
    from collector.ranks.topology import Grid

    # Both only order the rows: those of the message's own tier and dtype are preferred.
    messages = in_network(profiled_at(path, Grid(extents), "bfloat16"))
    found = [(message, compare_with_tree(message, points)) for message in messages]
    failed = []
    for message, one in found:
        if one is None:
            say(f"not compared: {message}; no rows around its size")
            continue
        mark, between = verdict(one.ratio), ""
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
    from collector.ranks.collective import OPERATIONS

    for operation in OPERATIONS.values():
        path = tree / operation.file
        offsets = offsets_by_key(operation.name, found)
        if path.exists():
            rows = counted(write_offsets(path, offsets), "row")
            say(f"{path}: {OFFSET} written for {rows}")
