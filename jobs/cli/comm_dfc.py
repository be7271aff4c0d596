"""`opmeter comm dfc` and `probe-dfc`: DispatchFFNCombine over the ranks of a group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from itertools import product
from math import log2, prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput
from collector.codec.files import check_writable
from collector.codec.text import MIB, counted
from collector.ranks.experts import ExpertCall, check_expert_call
from collector.store.atomic import write_through
from jobs.cli import ranks
from jobs.cli.mappings import mapping_command
from jobs.cli.terminal import say, say_lines

if TYPE_CHECKING:
    from collector.comm.moe.moe_table import MoeFound
    from collector.comm.moe.probe_plan import Limit, ProbePlan, Try


DFC_LISTS = ("--imbalance", "--expert-loads")


def dfc_command(
    shape: ranks.ExpertOptions,
    nodes: ranks.NodesOptions,
    *,
    tokens: Annotated[
        list[int] | None,
        typer.Option(help="tokens of one rank  [default: rows of --database-path]"),
    ] = None,
    experts: Annotated[
        list[int] | None, typer.Option(help="number of experts of all ranks  [default: 256]")
    ] = None,
    top_k: Annotated[
        list[int] | None, typer.Option(help="number of experts of a token  [default: 8]")
    ] = None,
    imbalance: Annotated[
        list[float] | None,
        typer.Option(help="standard deviation of the experts' loads over their mean  [default: 0]"),
    ] = None,
    expert_loads: Annotated[
        list[int] | None,
        typer.Option(help="recorded load of each expert, instead of --imbalance"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="seed of the routing and the data")] = 0,
    database_path: Annotated[
        Path | None,
        typer.Option(help="version directory whose DispatchFFNCombine.csv is read and written"),
    ] = None,
    do_run: Annotated[
        bool, typer.Option("--do-run", help="measure, instead of printing the cases")
    ] = False,
    bench_mode: Annotated[
        str, typer.Option(help="timing mode: auto, event, or kernel on an NPU")
    ] = ranks.BY_CASE,
    rounds: Annotated[int, typer.Option(min=1, help="number of rounds over all cases")] = 3,
    budget_s: Annotated[float, typer.Option(help="seconds for each case in a round")] = 1.0,
    patience_s: ranks.PatienceOption = 120.0,
) -> int:
    """Measure DispatchFFNCombine over ranks.

    Without --do-run the command prints its cases and measures nothing. Without --tokens it takes
    the rows of the version directory with this number of ranks.

    \b
    Examples:
      opmeter comm dfc --ep-size 16 --tokens 8 32 --imbalance 0 0.9 --do-run
      opmeter comm dfc --ep-size 16 --database-path VERSION_DIR --do-run
    """
    from collector.comm.moe.benching import bench
    from collector.comm.moe.moe_plan import MoeCase, MoePlan, modes_of
    from collector.comm.moe.moe_table import check_mode, moe_found, read_cases, write_moe_measured
    from collector.comm.rank_files import read_rank_results
    from collector.host.stack import check_devices

    meeting, backend, ep_size = shape.meeting(nodes), shape.backend, shape.ep_size
    loads = tuple(expert_loads or ())
    if tokens:
        axes = product(tokens, experts or [256], top_k or [8], imbalance or [0.0])
        cases = []
        for m, e, k, requested in axes:
            sizes = (m, shape.hidden, shape.intermediate, e, k)
            call = ExpertCall(*sizes, ep_size, shape.weight_bits, shape.dtype)
            check_expert_call(call)
            cases.append(MoeCase(call, seed, requested, loads))
    elif database_path is not None:
        cases = read_cases(database_path, ep_size, seed)
    else:
        raise BadInput("expected --tokens, or --database-path with rows of this number of ranks")
    for case in cases:
        case.routing()  # refuses an impossible routing before any rank starts
    if not cases:
        raise BadInput(f"expected rows of {ep_size} ranks, got none", path=database_path)
    mode = ranks.requested_mode(bench_mode) or modes_of(backend)[0]
    plan = MoePlan(backend, ep_size, rounds, budget_s, tuple(cases), mode=mode)
    if database_path is not None:
        check_mode(database_path, mode)  # before the measurement
    for case in cases:
        say(str(case))
    if not do_run:
        say("plan only; --do-run measures it")
        return 0
    if meeting.is_first and database_path is not None:
        check_writable(database_path)
    check_devices(backend, meeting.nproc_per_node)
    ranks.say_buffsize(backend, plan.largest_buffsize_mb())
    found, failure = ranks.run_ranks(
        lambda folder, tick: bench(plan, meeting, folder, patience_s=patience_s, tick=tick),
        len(plan.cases) * plan.rounds,
        lambda folder: moe_found(plan, read_rank_results(folder)),
    )
    if meeting.is_first:  # write the results, also those before a failure
        say_lines(_comm_dfc_found_lines(found))
        if database_path is not None:
            for path, change in write_moe_measured(database_path, found.measured):
                say(f"{path}: {counted(change.added, 'row')} added, {change.updated} changed")
            mapping_command(database_path)
    return ranks.ended(failure, is_whole=not found.failed)


def _comm_dfc_found_lines(found: MoeFound) -> Iterator[str]:
    for case, reason in found.failed:
        yield f"not measured: {case}: {reason}"
    for one in found.measured:
        yield (
            f"{one.case}: mean {one.mean_us:.1f} us ({one.backend}); drawn imbalance "
            f"{one.imbalance:.3f}, busiest rank {one.rank_imbalance:.2f} times the mean load"
        )


# `opmeter comm probe-dfc`.

PROBE_LISTS = ("--tokens", "--experts", "--top-k")
_TOKENS = [1 << power for power in range(14)]  # to 8192
_EXPERTS, _TOP_K = [32, 64, 128, 256], [1, 2, 4, 6, 8]
_COLUMNS = (
    *("EP Size", "hidden", "intermediate", "weights"),
    *("experts", "top_k", "accepted_tokens", "refused_tokens"),
)


def probe_dfc_command(
    shape: ranks.ExpertOptions,
    nodes: ranks.NodesOptions,
    *,
    tokens: Annotated[
        list[int] | None, typer.Option(help="tokens of one rank  [default: powers of two to 8192]")
    ] = None,
    experts: Annotated[
        list[int] | None,
        typer.Option(help="number of experts of all ranks  [default: 32 64 128 256]"),
    ] = None,
    top_k: Annotated[
        list[int] | None, typer.Option(help="number of experts of a token  [default: 1 2 4 6 8]")
    ] = None,
    memory_limit_mb: Annotated[
        float | None,
        typer.Option(help="memory limit of a rank, in MiB  [default: half of the free memory]"),
    ] = None,
    decode: Annotated[
        bool, typer.Option("--decode", help="probe dispatch_gmm_combine_decode instead (npu)")
    ] = False,
    output_csv: Annotated[Path | None, typer.Option(help="CSV file for the limits")] = None,
    patience_s: Annotated[
        float, typer.Option(help="seconds for a rank's own part of a try")
    ] = 30.0,
) -> int:
    """Find the limits of DispatchFFNCombine by bisection.

    For each number of experts and top-k the command prints how many tokens are accepted, and the
    reason of each refusal.

    \b
    Examples:
      opmeter comm probe-dfc --ep-size 16 --output-csv limits.csv
      opmeter comm probe-dfc --backend cpu --ep-size 2 --tokens 8 16 32 \\
          --experts 2 4 --top-k 1 2
    """
    from collector.comm.moe import probe_plan
    from collector.comm.moe.benching import probe
    from collector.host.stack import check_devices

    meeting = shape.meeting(nodes)
    axes = (tokens or _TOKENS, experts or _EXPERTS, top_k or _TOP_K)
    plan = probe_plan.ProbePlan(
        *(shape.backend, shape.ep_size, shape.hidden, shape.intermediate),
        *(shape.weight_bits, shape.dtype),
        probe_plan.ProbeGrid(*(tuple(sorted(set(axis))) for axis in axes)),
        patience_s,
        None if memory_limit_mb is None else int(memory_limit_mb * MIB),
        operator=probe_plan.OPERATOR_OF_DECODE if decode else probe_plan.OPERATOR,
    )
    say_lines(_plan_lines(plan))
    if meeting.is_first and output_csv is not None:
        check_writable(output_csv.parent)
    check_devices(plan.backend, meeting.nproc_per_node)
    ranks.say_buffsize(plan.backend, plan.largest_buffsize_mb())
    tries, failure = ranks.run_ranks(
        lambda folder, tick: probe(plan, meeting, folder, tick),
        plan.region().open_points,
        probe_plan.read_tries,
    )
    if meeting.is_first:  # write the results, also those before a failure
        region = plan.region(tries)
        say_lines(_comm_probe_dfc_found_lines(plan, tries, region.limits(), region.open_points))
        if output_csv is not None:
            _write(output_csv, plan, region.limits())
            say(str(output_csv))
    return ranks.ended(failure)


def _plan_lines(plan: ProbePlan) -> Iterator[str]:
    open_points = plan.region().open_points
    if not open_points:
        raise BadInput(f"the grid has no valid call of {plan.world} ranks")
    points = prod(plan.grid.sizes)
    yield (
        f"{counted(open_points, 'point')} on {counted(plan.world, 'rank')}; at most "
        f"{counted(max(1, int(2 * log2(points))), 'try', 'tries')} if the limits are independent"
    )


def _comm_probe_dfc_found_lines(
    plan: ProbePlan, tries: list[Try], limits: list[Limit], open_points: int
) -> Iterator[str]:
    for one in tries:
        if not one.is_accepted:
            yield f"refused: {plan.call(one.point)}: {one.reason}"
    for limit in limits:
        yield f"experts {limit.experts}, top-k {limit.choices}: {_limit_text(limit)}"
    lost = [rank for one in tries for rank in one.restarted]
    restarted = f"; restarted ranks: {', '.join(map(str, lost))}" if lost else ""
    unknown = f"; {counted(open_points, 'point')} unknown" if open_points else ""
    yield f"{counted(len(tries), 'try', 'tries')}{restarted}{unknown}"


def _limit_text(limit: Limit) -> str:
    refused = "" if limit.refused is None else f"refused from {limit.refused} tokens on"
    if limit.accepted is None:
        return refused or "unknown"
    accepted = f"accepted up to {limit.accepted} tokens of a rank"
    return f"{accepted}; {refused}" if refused else accepted


def _write(path: Path, plan: ProbePlan, limits: list[Limit]) -> None:
    """Write a row for each number of experts and top-k. Raises BadInput if it cannot be written."""
    from collector.codec.table import table_bytes

    weights = f"INT{plan.weight_bits}" if plan.weight_bits < 16 else plan.dtype
    shape = [str(plan.world), str(plan.hidden), str(plan.intermediate), weights]
    rows = (
        [*shape, *("" if cell is None else str(cell) for cell in astuple(limit))]
        for limit in limits
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_through(path, table_bytes(_COLUMNS, rows))
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", path=path) from error
