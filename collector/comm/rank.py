"""One rank of a bench: `python -m collector.comm.rank FOLDER`, started by torchrun.

FOLDER contains the plan. Each rank writes each step to its own journal before it begins it, so that
the watching process can find the rank that is late; rank 0 writes the results of all ranks for each
case.
"""

import datetime
import faulthandler
import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist

from collector.codec.errors import BadInput, HostFault
from collector.comm import rank_files
from collector.comm.bench_plan import BenchPlan
from collector.comm.measured import next_case, searched
from collector.comm.measuring_rank import MeasuringRank, peer_case
from collector.comm.rank_device import RankDevice, open_rank_device
from collector.comm.timed_calls import Gathered, TimedCalls
from collector.host.machine import this_node
from collector.host.network import tls_problem
from collector.host.processes import die_with_starter
from collector.model.stack import COLLECTIVE_LIBRARIES
from collector.ranks.collective import Collective
from collector.replay.process import this_process

DEADLINE_S = 300.0  # of one collective: after that the process group gives up
_MOST_OF_MEMORY = 0.5
_FIRST_ELEMENTS = 256
_COPIES = 3  # of a message: sent, received, and torch's intermediate copy


class RankJournal:
    """The journal of a rank; a line is written when the call returns."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = (folder / f"rank-{rank}.jsonl").open("a")

    def write(self, **what: object) -> None:
        print(json.dumps(what), file=self._file, flush=True)


def begin_rank(folder: Path, rank: int, step: str) -> RankJournal:
    """Return the journal of a rank that begins, with its first step. It ends with its starter, and
    writes its stacks on SIGUSR1."""
    die_with_starter()
    stacks = (folder / rank_files.stacks_name(rank)).open("w")
    faulthandler.register(signal.SIGUSR1, file=stacks)
    journal = RankJournal(folder, rank)
    journal.write(process=astuple(this_process()), step=step)
    return journal


class RankPlan(Protocol):
    """The plan of a rank, as far as joining the others requires it."""

    @property
    def backend(self) -> str: ...

    @property
    def world(self) -> int: ...

    @property
    def number(self) -> int:
        """Return a number that is equal for equal plans only."""


_Plan = TypeVar("_Plan", bound=RankPlan)


@dataclass(frozen=True, slots=True)
class Membership:
    """A rank that has joined the others. `control` is a group of all ranks, on the host."""

    rank: int
    journal: RankJournal
    device: RankDevice
    control: "dist.ProcessGroup"

    def memory_of_all(self) -> int:
        """Return the bytes that a case may use in each rank, by the rank that has the least."""
        own = self.device.free_bytes() * _MOST_OF_MEMORY
        least = torch.tensor([own], dtype=torch.float64)
        dist.all_reduce(least, dist.ReduceOp.MIN, group=self.control)
        return int(least[0])


@contextmanager
def join_ranks(folder: Path, kind: type[_Plan]) -> Iterator[tuple[_Plan, Membership]]:
    """Join the other ranks, and yield the plan of a folder and this rank's membership. All ranks
    must have the same plan; they leave together."""
    rank, world, local = (int(os.environ[n]) for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    journal = begin_rank(folder, rank, "joining the others")
    plan = rank_files.read_rank_plan(kind, (folder / rank_files.PLAN).read_text())
    device = open_rank_device(plan.backend, local)
    patience = datetime.timedelta(seconds=DEADLINE_S)
    dist.init_process_group(COLLECTIVE_LIBRARIES[plan.backend], timeout=patience)
    control = dist.new_group(backend="gloo", timeout=patience)
    try:
        journal.write(step="comparing plans")
        _check_alike(plan, world, control)
        if (folder / rank_files.TLS).exists():
            _check_tls((folder / rank_files.TLS).read_text(), world, control)
        journal.write(step=f"a first message over {COLLECTIVE_LIBRARIES[plan.backend]}")
        # A connection that fails is reported before a case gets the blame. The result is not
        # checked here; the first result of each case is.
        message = torch.ones(_FIRST_ELEMENTS, device=device.name)
        device.timed(lambda: dist.all_reduce(message))
        yield plan, Membership(rank, journal, device, control)
        journal.write(step="leaving")
        dist.barrier(group=control)
        journal.write(step="ended")
    finally:
        dist.destroy_process_group()


def write_results(folder: Path, seen: Iterable[tuple[int, int, Gathered]], rank: int) -> None:
    """Measure each case of each round; rank 0 writes the results of all ranks as soon as they are
    there."""
    results = (folder / rank_files.RESULTS).open("a") if rank == 0 else None
    for round_number, at, gathered in seen:
        if results is not None:
            line = {"round": round_number, "case": at, **asdict(gathered)}
            print(json.dumps(line), file=results, flush=True)


def main(folder: Path) -> None:
    with join_ranks(folder, BenchPlan) as (plan, member):
        write_results(folder, _seen(plan, member, folder), member.rank)


def _seen(plan: BenchPlan, member: Membership, folder: Path) -> Iterator[tuple[int, int, Gathered]]:
    member.journal.write(step="making groups")
    groups = {ranks: dist.new_group(list(ranks)) for ranks in plan.all_groups()}
    timed = TimedCalls(member.device, member.control)
    worker = MeasuringRank(plan, member.device, timed, groups)
    limit_bytes = member.memory_of_all()

    def measured(case: Collective, of_rounds: str) -> Gathered:
        member.journal.write(step=f"{case} ({of_rounds} of {plan.rounds})")
        peer = peer_case(plan, case)
        size_bytes = sum(
            one.input_bytes + one.output_bytes for one in (case, peer) if one is not None
        )
        if _COPIES * size_bytes > limit_bytes:
            with_peer = f" with the {peer.operation} before it" if peer is not None else ""
            return Gathered(
                (), f"{rank_files.TOO_LARGE} {limit_bytes >> 20} MiB of a rank{with_peer}"
            )
        return worker.measure(case)

    for round_number, at in turns(plan.rounds, len(plan.collectives)):
        case = plan.collectives[at]
        if at == 0 and round_number:  # clocks drift, and a bench may last for hours
            timed.renew_clock()
        yield round_number, at, measured(case, f"round {round_number + 1}")
    places = {case: at for at, case in enumerate(plan.collectives)}
    for case in _of_jumps(plan, member, folder):
        at = places.setdefault(case, len(places))
        extra = case if at >= len(plan.collectives) else None
        for number in range(plan.rounds):
            seen = measured(case, f"for a jump, round {number + 1}")
            yield plan.rounds + number, at, replace(seen, extra=extra)


def _of_jumps(plan: BenchPlan, member: Membership, folder: Path) -> Iterator[Collective]:
    """Return the sizes that locate jumps of time, each chosen by the results of the previous ones.
    Rank 0 chooses, because only rank 0 has the results of all ranks."""
    for one in searched(plan):
        requested = set[int]()
        while True:
            size = torch.zeros(1, dtype=torch.int64)
            if member.rank == 0 and (
                expected := next_case(plan, one, rank_files.read_rank_results(folder), requested)
            ):
                size[0] = expected.message_bytes
            dist.broadcast(size, 0, group=member.control)
            if not size[0]:
                break
            requested.add(int(size[0]))
            yield replace(one, message_bytes=int(size[0]))


def turns(rounds: int, cases: int) -> Iterator[tuple[int, int]]:
    """Return the cases round by round, so that slow changes fall between the rounds of a case."""
    return ((round_number, at) for round_number in range(rounds) for at in range(cases))


def _check_alike(plan: RankPlan, world: int, control: "dist.ProcessGroup") -> None:
    """Exchange a first small message among all ranks, and check that all have the same plan."""
    if world != plan.world:
        raise BadInput(f"expected {plan.world} ranks of the plan, got {world}")
    numbers = torch.tensor([plan.number, -plan.number], dtype=torch.float64)
    dist.all_reduce(numbers, dist.ReduceOp.MAX, group=control)
    if float(numbers[0]) != -float(numbers[1]):
        raise BadInput("the nodes were started with different options; use the same on every node")


def _check_tls(state: str, world: int, control: "dist.ProcessGroup") -> None:
    """Exchange the states of the TLS switches of all nodes, and check that ports would connect."""
    found: list[tuple[str, str]] = [("", "")] * world
    dist.all_gather_object(found, (this_node(), state), group=control)
    if problem := tls_problem(found):
        raise HostFault(problem)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
