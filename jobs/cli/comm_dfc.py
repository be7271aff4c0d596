"""`opmeter comm dfc`: DispatchFFNCombine measured over the ranks of a group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from itertools import product
from math import log2, prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput
from collector.codec.text import MIB, counted
from jobs.cli.ranks import (
    BY_CASE,
    EpSizeOption,
    ExpertBackendOption,
    HiddenOption,
    Int8Option,
    IntermediateOption,
    MasterAddrOption,
    MasterPortOption,
    NnodesOption,
    NodeRankOption,
    NprocPerNodeOption,
    PatienceOption,
    TokensDtypeOption,
    asked_mode,
    check_backend,
    ended,
    run_ranks,
    say_buffsize,
)
from jobs.cli.terminal import say

if TYPE_CHECKING:
    from collector.comm.gang import Rendezvous
    from collector.comm.moe.moe_plan import MoePlan
    from collector.comm.moe.moe_table import MoeFound
    from collector.comm.moe.probe_plan import Limit, ProbePlan, Try


DFC_LISTS = ("--imbalance", "--expert-loads")


def dfc_verb(
    *,
    ep_size: EpSizeOption = 16,
    tokens: Annotated[
        list[int] | None, typer.Option(help="of one rank  [rows of the database path]")
    ] = None,
    experts: Annotated[list[int] | None, typer.Option(help="of all ranks  [256]")] = None,
    top_k: Annotated[list[int] | None, typer.Option(help="experts of a token  [8]")] = None,
    hidden: HiddenOption = 7168,
    intermediate: IntermediateOption = 2048,
    int8: Int8Option = True,
    dtype: TokensDtypeOption = "DT_BF16",
    imbalance: Annotated[
        list[float] | None, typer.Option(help="deviation of experts' loads by their mean  [0]")
    ] = None,
    expert_loads: Annotated[
        list[int] | None, typer.Option(help="instead: what each expert got elsewhere")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="of routing and data")] = 0,
    database_path: Annotated[
        Path | None, typer.Option(help="write DispatchFFNCombine.csv of this version folder")
    ] = None,
    do_run: Annotated[bool, typer.Option("--do-run", help="measure; else say what would be")] = (
        False
    ),
    bench_mode: Annotated[str, typer.Option(help="auto, event or kernel (npu)")] = BY_CASE,
    rounds: Annotated[int, typer.Option(min=1, help="times that every case is measured")] = 3,
    budget_s: Annotated[float, typer.Option(help="seconds for a case in a round")] = 1.0,
    backend: ExpertBackendOption = "npu",
    nproc_per_node: NprocPerNodeOption = None,
    nnodes: NnodesOption = 1,
    node_rank: NodeRankOption = 0,
    master_addr: MasterAddrOption = "127.0.0.1",
    master_port: MasterPortOption = 0,
    patience_s: PatienceOption = 120.0,
) -> int:
    """Measure DispatchFFNCombine over ranks, balanced or not."""
    from collector.comm.gang import ranks_of
    from collector.comm.moe.moe_plan import MoeCase, MoePlan, modes_of
    from collector.comm.moe.moe_table import check_mode, read_cases
    from collector.ranks.experts import ExpertCall, check

    check_backend(backend)
    meeting = ranks_of(ep_size, nproc_per_node, nnodes, node_rank, master_addr, master_port)
    loads = tuple(expert_loads or ())
    if tokens:
        axes = product(tokens, experts or [256], top_k or [8], imbalance or [0.0])
        cases = []
        for m, e, k, asked in axes:
            call = ExpertCall(m, hidden, intermediate, e, k, ep_size, int8, dtype)
            check(call)
            cases.append(MoeCase(call, seed, asked, loads))
    elif database_path is not None:
        cases = read_cases(database_path, ep_size, seed)
    else:
        raise BadInput("expected --tokens, or a --database-path with rows for this number of ranks")
    for case in cases:
        case.routing()  # what none can be is refused before any rank starts
    if not cases:
        raise BadInput(f"no row of {ep_size} ranks is there to measure", path=database_path)
    mode = asked_mode(bench_mode) or modes_of(backend)[0]
    plan = MoePlan(backend, ep_size, rounds, budget_s, tuple(cases), mode=mode)
    if database_path is not None:
        check_mode(database_path, mode)  # what could not be written is not measured either
    for case in cases:
        say(str(case))
    if not do_run:
        say("nothing is measured without --do-run")
        return 0
    say_buffsize(backend, plan.largest_buffsize_mb())
    return _run(plan, meeting, patience_s, database_path)


def _run(plan: MoePlan, meeting: Rendezvous, patience_s: float, database_path: Path | None) -> int:
    """Measure; what was measured before a failure is kept."""
    from collector.comm.moe.benching import bench, found_in
    from collector.comm.moe.moe_table import write_measured

    found, failure = run_ranks(
        lambda folder, tick: bench(plan, meeting, folder, patience_s=patience_s, tick=tick),
        len(plan.cases) * plan.rounds,
        lambda folder: found_in(folder, plan),
    )
    if meeting.is_first:
        for line in _comm_dfc_found_lines(found):
            say(line)
        if database_path is not None:
            for path, change in write_measured(database_path, found.measured):
                say(f"{path}: {counted(change.added, 'row')} added, {change.updated} changed")
    return ended(failure, is_whole=not found.failed)


def _comm_dfc_found_lines(found: MoeFound) -> Iterator[str]:
    for case, reason in found.failed:
        yield f"not measured: {case}: {reason}"
    for one in found.measured:
        yield (
            f"{one.case}: {one.mean_us:.1f} us on average ({one.backend}); drawn imbalance "
            f"{one.imbalance:.3f}, busiest rank {one.rank_imbalance:.2f} of the mean"
        )


# `opmeter comm probe-dfc`: which calls of DispatchFFNCombine the ranks of a group accept.

PROBE_LISTS = ("--tokens", "--experts", "--top-k")
_TOKENS = [1 << power for power in range(14)]  # to 8192
_EXPERTS, _TOP_K = [32, 64, 128, 256], [1, 2, 4, 6, 8]
_COLUMNS = (
    *("EP Size", "hidden", "intermediate", "weights"),
    *("experts", "top_k", "accepted_tokens", "refused_tokens"),
)


def probe_dfc_verb(
    *,
    ep_size: EpSizeOption = 16,
    hidden: HiddenOption = 7168,
    intermediate: IntermediateOption = 2048,
    tokens: Annotated[
        list[int] | None, typer.Option(help="of one rank  [1 to 8192 by twos]")
    ] = None,
    experts: Annotated[list[int] | None, typer.Option(help="of all ranks  [32 to 256]")] = None,
    top_k: Annotated[list[int] | None, typer.Option(help="experts of a token  [1 to 8]")] = None,
    int8: Int8Option = True,
    dtype: TokensDtypeOption = "DT_BF16",
    memory_limit_mb: Annotated[
        float | None, typer.Option(help="what a rank may use  [half of what is free]")
    ] = None,
    decode: Annotated[
        bool, typer.Option("--decode", help="npu: dispatch_gmm_combine_decode instead")
    ] = False,
    output_csv: Annotated[Path | None, typer.Option(help="write the limits here")] = None,
    backend: ExpertBackendOption = "npu",
    nproc_per_node: NprocPerNodeOption = None,
    nnodes: NnodesOption = 1,
    node_rank: NodeRankOption = 0,
    master_addr: MasterAddrOption = "127.0.0.1",
    master_port: MasterPortOption = 0,
    patience_s: Annotated[float, typer.Option(help="for a rank's own part of a try")] = 30.0,
) -> int:
    """Find which tokens, experts and top-k DispatchFFNCombine accepts, by bisection."""
    from collector.comm.gang import ranks_of
    from collector.comm.moe.probe_plan import OPERATOR, OPERATOR_OF_DECODE, ProbeGrid, ProbePlan

    check_backend(backend)
    meeting = ranks_of(ep_size, nproc_per_node, nnodes, node_rank, master_addr, master_port)
    grid = ProbeGrid(
        *(
            tuple(sorted(set(axis)))
            for axis in (tokens or _TOKENS, experts or _EXPERTS, top_k or _TOP_K)
        )
    )
    plan = ProbePlan(
        backend,
        ep_size,
        hidden,
        intermediate,
        int8,
        dtype,
        grid,
        patience_s,
        None if memory_limit_mb is None else int(memory_limit_mb * MIB),
        operator=OPERATOR_OF_DECODE if decode else OPERATOR,
    )
    for line in _plan_lines(plan):
        say(line)
    say_buffsize(plan.backend, plan.largest_buffsize_mb())
    return _probed(plan, meeting, output_csv)


def _plan_lines(plan: ProbePlan) -> Iterator[str]:
    """What will be tried; BadInput where nothing can be."""
    open_points = plan.region().open_points
    if not open_points:
        raise BadInput(f"no point of the grid is a call of {plan.world} ranks")
    points = prod(plan.grid.sizes)
    yield (
        f"{counted(open_points, 'point')} with {counted(plan.world, 'rank')}; where limits do not "
        f"depend on each other, {counted(max(1, int(2 * log2(points))), 'try', 'tries')} find them"
    )


def _probed(plan: ProbePlan, meeting: Rendezvous, output_csv: Path | None) -> int:
    """Probe; what was found before a failure is said and written."""
    from collector.comm.moe.benching import probe, told
    from collector.comm.moe.probe_plan import read_tries

    tries, failure = run_ranks(
        lambda folder, tick: probe(plan, meeting, folder, tick),
        plan.region().open_points,
        read_tries,
    )
    if meeting.is_first:
        region = told(plan, tries)
        for line in _comm_probe_dfc_found_lines(plan, tries, region.limits(), region.open_points):
            say(line)
        if output_csv is not None:
            _write(output_csv, plan, region.limits())
            say(str(output_csv))
    return ended(failure)


def _comm_probe_dfc_found_lines(
    plan: ProbePlan, tries: list[Try], limits: list[Limit], open_points: int
) -> Iterator[str]:
    for one in tries:
        if not one.is_accepted:
            yield f"refused: {plan.call(one.point)}: {one.reason}"
    for limit in limits:
        yield f"experts {limit.experts}, top-k {limit.choices}: {_limit_text(limit)}"
    lost = [rank for one in tries for rank in one.restarted]
    restarted = f"; started anew: rank {', '.join(map(str, lost))}" if lost else ""
    unknown = f"; {counted(open_points, 'point')} not known" if open_points else ""
    yield f"{counted(len(tries), 'try', 'tries')}{restarted}{unknown}"


def _limit_text(limit: Limit) -> str:
    """How many tokens of a rank are accepted, as far as it is known."""
    refused = "" if limit.refused is None else f"refused from {limit.refused} on"
    if limit.accepted is None:
        return refused or "not known"
    accepted = f"up to {limit.accepted} tokens of a rank"
    return f"{accepted}; {refused}" if refused else accepted


def _write(path: Path, plan: ProbePlan, limits: list[Limit]) -> None:
    """A row for each number of experts and choices. BadInput where it cannot be written."""
    from collector.codec.table import table_bytes
    from collector.store.atomic import write_whole

    weights = "INT8" if plan.is_int8 else plan.dtype
    shape = [str(plan.world), str(plan.hidden), str(plan.intermediate), weights]
    rows = (
        [*shape, *("" if cell is None else str(cell) for cell in astuple(limit))]
        for limit in limits
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, table_bytes(_COLUMNS, rows))
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", path=path) from error
