"""What the ranks of a gang are started with: one bench for cases that can share a start.

Collectives share where ranks lie, mode and environment; calls of mixtures of experts share the
family of their kernels, besides their ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from collector.case import Case
from collector.collective_case import CollectiveCase, collective_case_of, is_collective
from collector.comm.bench_plan import BenchPlan, Mode
from collector.comm.gang import RANK, GangWork, StartRanks, Tick
from collector.comm.moe.benching import MOE_RANK
from collector.comm.moe.buffsize import buffsize_settings
from collector.comm.moe.moe_plan import MoeCase, MoePlan, modes_of
from collector.distribute_call import DISTRIBUTE_KERNELS
from collector.errors import BadInput
from collector.expert_call import imbalance_of
from collector.gang_case import ROUNDS, routed_call
from collector.plan import MeasureSettings
from collector.worker.gang_certificates import Groups

_SEED = 0  # of routings: the same in every session, so that a case means the same


class GangBench(Protocol):
    """A bench of cases, in an order; each with its groups of ranks, and what is known of it."""

    @property
    def groups(self) -> tuple[Groups, ...]: ...

    @property
    def facts(self) -> tuple[tuple[tuple[str, float], ...], ...]: ...

    def run(self, start: StartRanks, folder: Path, patience_s: float, tick: Tick) -> None:
        """Have the ranks measure in an empty folder. Raises GangFailed and BadInput."""


@dataclass(frozen=True, slots=True)
class CollectiveBench:
    plan: BenchPlan
    environment: Mapping[str, str]

    @property
    def groups(self) -> tuple[Groups, ...]:
        return tuple(self.plan.groups(case) for case in self.plan.collectives)

    @property
    def facts(self) -> tuple[tuple[tuple[str, float], ...], ...]:
        return tuple(() for _ in self.plan.collectives)

    def run(self, start: StartRanks, folder: Path, patience_s: float, tick: Tick) -> None:
        work = GangWork(self.plan, RANK, patience_s, tick, self.environment)
        start(work, self.plan.world, folder)


@dataclass(frozen=True, slots=True)
class ExpertBench:
    plan: MoePlan

    @property
    def groups(self) -> tuple[Groups, ...]:
        return tuple((tuple(range(self.plan.world)),) for _ in self.plan.cases)

    @property
    def facts(self) -> tuple[tuple[tuple[str, float], ...], ...]:
        """How uneven the loads are that were drawn: of experts, and of ranks; and whether a
        profiler's rows tell the times, or events, which hold the launch too."""
        drawn = ((case.routing(), case.call.ep_size) for case in self.plan.cases)
        by_kernels = ("timed_by_kernels", float(self.plan.mode is Mode.KERNEL))
        return tuple(
            (
                ("imbalance", one.imbalance),
                ("rank_imbalance", one.rank_imbalance(ranks)),
                by_kernels,
            )
            for one, ranks in drawn
        )

    def run(self, start: StartRanks, folder: Path, patience_s: float, tick: Tick) -> None:
        environment = buffsize_settings(self.plan.backend, self.plan.largest_buffsize_mb())
        work = GangWork(self.plan, MOE_RANK, patience_s, tick, environment)
        start(work, self.plan.world, folder)


def start_of(case: Case) -> tuple[object, ...]:
    """What cases of one start share."""
    if not is_collective(case.kernel_type):
        return ("distributed" if case.kernel_type in DISTRIBUTE_KERNELS else "fused",)
    told = collective_case_of(case)
    return (told.grid, told.mode, told.environment)


def bench_of(
    cases: Sequence[Case], backend: str, ranks: int, measure: MeasureSettings
) -> GangBench:
    """The bench of cases that share a start."""
    if is_collective(cases[0].kernel_type):
        told = [collective_case_of(case) for case in cases]
        return _of_collectives(told, backend, ranks, measure)
    routed = tuple(map(_routed, cases))
    budget_s, calls, mode = measure.budget_s / ROUNDS, calls_a_round(measure), modes_of(backend)[0]
    return ExpertBench(MoePlan(backend, ranks, ROUNDS, budget_s, routed, calls, mode))


def impossible(case: Case) -> str:
    """Why no routing can be what a case asks for; empty where one can."""
    if is_collective(case.kernel_type):
        return ""
    try:
        _routed(case).routing()
    except BadInput as error:
        return str(error)
    return ""


def _routed(case: Case) -> MoeCase:
    return MoeCase(routed_call(case), _SEED, imbalance_of(case))


def calls_a_round(measure: MeasureSettings) -> tuple[int, int]:
    """The fewest and the most calls of a case in one round, so that all rounds together have what
    the plan's settings say."""
    fewest = measure.repeat_count or measure.min_repeats
    return -(-fewest // ROUNDS), -(-measure.most_repeats // ROUNDS)


def _of_collectives(
    told: Sequence[CollectiveCase], backend: str, ranks: int, measure: MeasureSettings
) -> CollectiveBench:
    first = told[0]
    plan = BenchPlan(
        backend,
        first.grid,
        ranks,
        Mode(first.mode),
        ROUNDS,
        measure.budget_s / ROUNDS,
        calls_a_round(measure),
        tuple(one.collective for one in told),
    )
    return CollectiveBench(plan, dict(one.split("=", 1) for one in first.environment.split()))
