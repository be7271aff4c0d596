"""The sizes of a plan as series in which jumps are looked for, and what was seen of them."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median

from collector.collective import Collective, whole_bytes
from collector.comm.bench_plan import BenchPlan
from collector.comm.jumps import Jump, Timed, Times, jumps_of, next_size
from collector.comm.rank_files import CaseSeen
from collector.comm.timing import collective_timing, relative_spread


def searched(plan: BenchPlan) -> list[Collective]:
    """A case of each series: of what is measured alone, and is not told apart but by its size.

    Sizes that are timed in different ways differ for that reason, and are no neighbours.
    """
    found: dict[tuple[Collective, str], Collective] = {}
    if plan.jump_factor is not None:
        for case in plan.collectives:
            if not case.together:
                found.setdefault(_series(plan, case), case)
    return list(found.values())


def next_case(
    plan: BenchPlan, one: Collective, seen: Iterable[CaseSeen], asked: Collection[int] = ()
) -> Collective | None:
    """What is to be measured next for the jumps of `one`'s series, but for the sizes `asked`."""
    if plan.jump_factor is None:
        return None
    size = next_size(*_times(plan, one, seen), plan.jump_factor, whole_bytes(one), asked)
    return None if size is None else replace(one, message_bytes=size)


def found_jumps(plan: BenchPlan, seen: Sequence[CaseSeen]) -> Iterator[tuple[Collective, Jump]]:
    """Every jump, with the case of its larger size."""
    for one in searched(plan):
        assert plan.jump_factor is not None
        times = _times(plan, one, seen)
        for jump in jumps_of(*times, plan.jump_factor, whole_bytes(one)):
            yield replace(one, message_bytes=jump.upper_bytes), jump


def case_of(plan: BenchPlan, seen: CaseSeen) -> Collective:
    """What was measured: a case of the plan, or a size that was looked at beside them."""
    return seen.extra or plan.collectives[seen.case]


def _series(plan: BenchPlan, case: Collective) -> tuple[Collective, str]:
    return replace(case, message_bytes=0), plan.mode_of(case)


def _times(plan: BenchPlan, one: Collective, seen: Iterable[CaseSeen]) -> tuple[Times, Times]:
    """What the planned rounds say of a series' sizes, and what the rounds after them say."""
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
