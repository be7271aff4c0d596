"""The results of a bench for each case: its rounds, groups and environment in one row."""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from statistics import median

from collector.comm.bench_plan import BenchPlan, LeftOut
from collector.comm.rank_files import CaseSeen, wrong_result
from collector.comm.timing import CollectiveTiming, collective_timing, p95, relative_spread
from collector.model.stack import COLLECTIVE_LIBRARIES
from collector.ranks.collective import NO_MATTER, SETTING_PREFIXES, Collective, whole_bytes

# Jumps of time between neighbouring sizes, where a library changes its protocol.
#
# No alpha + beta x bytes grows faster than its bytes, and none falls. So a pair of neighbours that
# does so beyond noise has a jump between them, which is bisected until the neighbours are close
# enough. Both ends are measured again first: a jump that is then gone was no property of a size.

NOISE = 0.2  # relative to the median, where the rounds do not show more
_MOST_SIZES = 64  # measured again or in between, in one series


@dataclass(frozen=True, slots=True)
class Timed:
    """The time of a size: the median of its rounds, and their largest relative distance from it."""

    duration_us: float
    spread: float = 0.0


Times = Mapping[int, Timed]  # by bytes


class JumpKind(StrEnum):
    """`LOCATED`: between sizes as close as requested. `WIDE`: confirmed, but the sizes are not that
    close. `NOT_REPRODUCIBLE`: gone when both ends were measured again."""

    LOCATED = "located"
    WIDE = "wide"
    NOT_REPRODUCIBLE = "not reproducible"


@dataclass(frozen=True, slots=True)
class Jump:
    """A jump; `ratio` is the larger size's time divided by the smaller one's, or the former ratio
    if the jump is gone."""

    lower_bytes: int
    upper_bytes: int
    ratio: float
    kind: JumpKind

    def __str__(self) -> str:
        return f"{self.kind}, x {self.ratio:.2f} from {self.lower_bytes} bytes"


def next_size(
    first: Times,
    again: Times,
    factor: float,
    whole_bytes: int,
    requested_sizes: Collection[int] = (),
) -> int | None:
    """Return the size to measure next, a multiple of `whole_bytes`; None if all jumps are known.

    `first` are the planned sizes, `again` the sizes that were measured for a jump, whose times take
    precedence. The ends of a jump come first, then the middle by ratio: with a `factor` of 1.1,
    neighbours that are a factor of 2 apart need three sizes between them. No size in
    `requested_sizes` is returned again: a size that gave no time would be requested for ever."""
    if max(len(again), len(requested_sizes)) >= _MOST_SIZES:
        return None
    for lower, upper in _jumping({**first, **again}):
        if missing := [size for size in (lower, upper) if size not in again]:
            size: int | None = missing[0]
        else:
            size = _middle(lower, upper, whole_bytes) if upper > lower * factor else None
        if size is not None and size not in requested_sizes:
            return size
    return None


def jumps_of(first: Times, again: Times, factor: float, whole_bytes: int) -> list[Jump]:
    """Return the jumps with their kinds, sorted by size."""
    current = {**first, **again}
    found = []
    for lower, upper in _jumping(current):
        is_close = upper <= lower * factor or _middle(lower, upper, whole_bytes) is None
        is_sure = lower in again and upper in again
        kind = JumpKind.LOCATED if is_close and is_sure else JumpKind.WIDE
        found.append(Jump(lower, upper, _ratio(current, lower, upper), kind))
    for lower, upper in _jumping(first):
        is_within = any(lower <= one.lower_bytes and one.upper_bytes <= upper for one in found)
        if lower in again and upper in again and not is_within:
            ratio = _ratio(first, lower, upper)
            found.append(Jump(lower, upper, ratio, JumpKind.NOT_REPRODUCIBLE))
    return sorted(found, key=lambda jump: jump.lower_bytes)


def _jumping(times: Times) -> Iterator[tuple[int, int]]:
    """Return neighbouring sizes between which the time falls, or grows more than the bytes."""
    for lower, upper in pairwise(sorted(times)):
        noise = max(NOISE, times[lower].spread, times[upper].spread)
        ratio = _ratio(times, lower, upper)
        if ratio > upper / lower * (1 + noise) or ratio < 1 - noise:
            yield lower, upper


def _ratio(times: Times, lower: int, upper: int) -> float:
    return times[upper].duration_us / times[lower].duration_us


def _middle(lower: int, upper: int, whole_bytes: int) -> int | None:
    """Return the geometric mean as whole messages; None if there is none between both."""
    middle = round((lower * upper) ** 0.5 / whole_bytes) * whole_bytes
    return middle if lower < middle < upper else None


def searched(plan: BenchPlan) -> list[Collective]:
    """Return one case of each series: cases that are measured alone and differ only in size.

    Sizes that are timed in different modes differ for that reason, and are not neighbours."""
    found: dict[tuple[Collective, str], Collective] = {}
    if plan.jump_factor is not None:
        for case in plan.collectives:
            if not case.together:
                found.setdefault(_series(plan, case), case)
    return list(found.values())


def next_case(
    plan: BenchPlan,
    one: Collective,
    seen: Iterable[CaseSeen],
    requested_sizes: Collection[int] = (),
) -> Collective | None:
    """Return the next case for the jumps of `one`'s series, excluding the sizes in
    `requested_sizes`."""
    if plan.jump_factor is None:
        return None
    size = next_size(*_times(plan, one, seen), plan.jump_factor, whole_bytes(one), requested_sizes)
    return None if size is None else replace(one, message_bytes=size)


def found_jumps(plan: BenchPlan, seen: Sequence[CaseSeen]) -> Iterator[tuple[Collective, Jump]]:
    """Return every jump, with the case of its larger size."""
    for one in searched(plan):
        assert plan.jump_factor is not None
        times = _times(plan, one, seen)
        for jump in jumps_of(*times, plan.jump_factor, whole_bytes(one)):
            yield replace(one, message_bytes=jump.upper_bytes), jump


def case_of(plan: BenchPlan, seen: CaseSeen) -> Collective:
    """Return the measured case: a case of the plan, or a size that the search for jumps added."""
    return seen.extra or plan.collectives[seen.case]


def _series(plan: BenchPlan, case: Collective) -> tuple[Collective, str]:
    return replace(case, message_bytes=0), plan.mode_of(case)


def _times(plan: BenchPlan, one: Collective, seen: Iterable[CaseSeen]) -> tuple[Times, Times]:
    """Return the times of a series' sizes in the planned rounds, and those in later rounds."""
    planned: dict[int, list[float]] = {}
    later: dict[int, list[float]] = {}
    for each in seen:
        case = case_of(plan, each)
        if each.left_out or each.wrong or _series(plan, case) != _series(plan, one):
            continue
        rounds = planned if each.round < plan.rounds else later
        duration_us = collective_timing(each.ranks).duration_us
        rounds.setdefault(case.message_bytes, []).append(duration_us)
    return _timed(planned), _timed(later)


def _timed(rounds: dict[int, list[float]]) -> Times:
    return {size: Timed(median(all_), relative_spread(all_)) for size, all_ in rounds.items()}


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured case. `jump` is set if its time differs from that of the next smaller size by more
    than the bytes explain. `timings` has the timing of each group, for each round. Durations are
    medians over the rounds of the groups' median; `slowest_us` is that of the slowest group."""

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
        """Return the largest relative distance of a round from the median; 0 for one round."""
        return relative_spread(self.rounds_us)

    @property
    def bandwidth_gbps(self) -> float:
        """Return message bytes divided by time, in 1e9 bytes a second."""
        return self.collective.message_bytes / self.duration_us / 1e3

    @property
    def bus_bandwidth_gbps(self) -> float:
        return self.collective.bus_bytes / self.duration_us / 1e3

    def all_groups(self) -> list[CollectiveTiming]:
        """Return every group of every round."""
        return [group for groups in self.timings for group in groups]


@dataclass(frozen=True, slots=True)
class BenchOutcome:
    """The outcome of a plan's cases; `wrong` lists those with a wrong result."""

    measured: tuple[Measured, ...]
    left_out: tuple[LeftOut, ...]
    wrong: tuple[LeftOut, ...]

    @property
    def round_p95(self) -> float:
        """Return the 95th percentile of the rounds' distances from their case's median."""
        return p95([one.spread for one in self.measured if len(one.timings) > 1])


def bench_results(
    plan: BenchPlan, seen: Iterable[CaseSeen], environment: Mapping[str, str] = os.environ
) -> BenchOutcome:
    """Return the cases of a plan from the results of rank 0, complete or not: a case counts from
    one round on."""
    seen = sorted(seen, key=lambda one: one.case)
    by_case: dict[Collective, list[CaseSeen]] = {}
    for one in seen:
        by_case.setdefault(case_of(plan, one), []).append(one)
    jumps = {case: str(jump) for case, jump in found_jumps(plan, seen)}
    settings = ";".join(collective_settings(environment))
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
    return BenchOutcome(tuple(measured), tuple(left_out), tuple(wrong))


def group_timings(
    groups: Sequence[tuple[int, ...]], seen: CaseSeen
) -> tuple[CollectiveTiming, ...]:
    """Return the timing of each group of a round."""
    by_rank = {one.rank: one for one in seen.ranks}
    return tuple(collective_timing([by_rank[rank] for rank in ranks]) for ranks in groups)


def collective_settings(environment: Mapping[str, str]) -> list[str]:
    """Return `NAME=value` of each variable that changes how a collective runs, by name."""
    found = (name for name in environment if name.startswith(SETTING_PREFIXES))
    names = sorted(name for name in found if not name.endswith(NO_MATTER))
    return [f"{name}={environment[name]}" for name in names]
