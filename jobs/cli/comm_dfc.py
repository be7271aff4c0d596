"""`opmeter comm dfc`: DispatchFFNCombine measured over the ranks of a group."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.counting import counted
from collector.errors import BadInput
from jobs.cli.rank_options import (
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
)
from jobs.cli.rank_runs import BY_CASE, asked_mode, check_backend, ended, run_ranks, say_buffsize
from jobs.cli.terminal import say

if TYPE_CHECKING:
    from collector.comm.gang import Rendezvous
    from collector.comm.moe.moe_measured import MoeFound
    from collector.comm.moe.moe_plan import MoePlan

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
    from collector.expert_call import ExpertCall, check

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
        for line in _found_lines(found):
            say(line)
        if database_path is not None:
            for path, change in write_measured(database_path, found.measured):
                say(f"{path}: {counted(change.added, 'row')} added, {change.updated} changed")
    return ended(failure, is_whole=not found.failed)


def _found_lines(found: MoeFound) -> Iterator[str]:
    for case, reason in found.failed:
        yield f"not measured: {case}: {reason}"
    for one in found.measured:
        yield (
            f"{one.case}: {one.mean_us:.1f} us on average ({one.backend}); drawn imbalance "
            f"{one.imbalance:.3f}, busiest rank {one.rank_imbalance:.2f} of the mean"
        )
