"""What a bench found of each case: its rounds, its groups and its environment in one row."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from collector.collective import Collective
from collector.collective_case import SETTING_PREFIXES
from collector.comm.bench_plan import BenchPlan, LeftOut
from collector.comm.jump_search import case_of, found_jumps
from collector.comm.rank_files import CaseSeen, wrong_result
from collector.comm.timing import CollectiveTiming, collective_timing, p95, relative_spread
from collector.stack import COLLECTIVE_LIBRARIES


@dataclass(frozen=True, slots=True)
class Measured:
    """One case. `jump` says that its time differs from the next smaller size's by more than bytes
    explain. `timings`: of each round, each group's. Durations are medians over the rounds of
    the groups' median; `slowest_us` is that of the slowest group."""

    collective: Collective
    mode: str
    backend: str
    timings: tuple[tuple[CollectiveTiming, ...], ...]
    environment: str
    jump: str = ""

    @property
    def rounds_us(self) -> tuple[float, ...]:
        return tuple(median(group.duration_us for group in groups) for groups in self.timings)

    @property
    def duration_us(self) -> float:
        return median(self.rounds_us)

    @property
    def slowest_us(self) -> float:
        return median(max(group.duration_us for group in groups) for groups in self.timings)

    @property
    def spread(self) -> float:
        """How far a round lies from the median of rounds, at most; 0 of one round."""
        return relative_spread(self.rounds_us)

    @property
    def bandwidth_gbps(self) -> float:
        """Message bytes by time, in 1e9 bytes a second."""
        return self.collective.message_bytes / self.duration_us / 1e3

    @property
    def bus_bandwidth_gbps(self) -> float:
        return self.collective.bus_bytes / self.duration_us / 1e3

    def all_groups(self) -> list[CollectiveTiming]:
        """Every group of every round."""
        return [group for groups in self.timings for group in groups]


@dataclass(frozen=True, slots=True)
class Found:
    """What became of a plan's cases; `wrong` names those whose result was not what it must be."""

    measured: tuple[Measured, ...]
    left_out: tuple[LeftOut, ...]
    wrong: tuple[LeftOut, ...]

    @property
    def round_p95(self) -> float:
        """How far a round's median lies from its case's: what one in twenty exceeds."""
        return p95([one.spread for one in self.measured if len(one.timings) > 1])


def found_of(
    plan: BenchPlan, seen: Iterable[CaseSeen], environment: Mapping[str, str] = os.environ
) -> Found:
    """The cases of a plan from what rank 0 wrote, whole or not: a case counts from one round on."""
    seen = sorted(seen, key=lambda one: one.case)
    by_case: dict[Collective, list[CaseSeen]] = {}
    for one in seen:
        by_case.setdefault(case_of(plan, one), []).append(one)
    jumps = {case: str(jump) for case, jump in found_jumps(plan, seen)}
    settings = ";".join(settings_of(environment))
    measured, left_out, wrong = [], [], []
    for case, rounds in by_case.items():
        timed = [one for one in rounds if not one.left_out]
        if reason := wrong_result(rounds):
            wrong.append(LeftOut(case, reason))
        elif not timed:
            left_out.append(LeftOut(case, rounds[0].left_out))
        else:
            groups = plan.groups(case)
            timings = tuple(group_timings(groups, one) for one in timed)
            backend = COLLECTIVE_LIBRARIES[plan.backend]
            mode, jump = plan.mode_of(case), jumps.get(case, "")
            measured.append(Measured(case, mode, backend, timings, settings, jump))
    return Found(tuple(measured), tuple(left_out), tuple(wrong))


def group_timings(
    groups: Sequence[tuple[int, ...]], seen: CaseSeen
) -> tuple[CollectiveTiming, ...]:
    """What each group of a round took."""
    by_rank = {one.rank: one for one in seen.ranks}
    return tuple(collective_timing([by_rank[rank] for rank in ranks]) for ranks in groups)


def settings_of(environment: Mapping[str, str]) -> list[str]:
    """`NAME=value` of each variable that changes how a collective runs, by name."""
    names = sorted(name for name in environment if name.startswith(SETTING_PREFIXES))
    return [f"{name}={environment[name]}" for name in names]
