"""Jumps between sizes: located where they are, and nowhere else."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.codec.errors import BadInput
from collector.comm.bench_plan import BenchPlan, Mode
from collector.comm.measured import (
    Jump,
    JumpKind,
    Timed,
    bench_results,
    jumps_of,
    next_case,
    next_size,
    searched,
)
from collector.comm.rank_files import CaseSeen, read_rank_plan
from collector.comm.timing import RankTimes
from collector.ranks.collective import Collective
from collector.ranks.topology import Grid
from tests.unit.collector.naming import names, naming

GRID_BYTES = [128 << at for at in range(23)]


def bisected(time_of, sizes, factor=1.1, whole=2):
    """Return the sizes that the search requests until it ends, and its jumps."""
    first = {size: Timed(time_of(size)) for size in sizes}
    again = {}
    while (size := next_size(first, again, factor, whole)) is not None:
        assert size not in again, "a size is requested once"
        again[size] = Timed(time_of(size))
    return first, again, jumps_of(first, again, factor, whole)


@given(
    st.floats(1, 100),
    st.floats(1e-7, 1e-2),
    st.lists(st.floats(0.92, 1.08), min_size=len(GRID_BYTES), max_size=len(GRID_BYTES)),
)
def test_noise_on_a_line_is_not_a_jump(alpha, beta, noise):
    noisy = dict(zip(GRID_BYTES, noise, strict=True))
    _, again, jumps = bisected(lambda size: (alpha + beta * size) * noisy[size], GRID_BYTES)
    assert again == {}
    assert jumps == []


@given(
    st.floats(1, 100),
    st.floats(1e-7, 1e-2),
    st.integers(1 << 10, 128 << 20),
    st.one_of(st.floats(2.5, 9), st.floats(0.1, 0.39)),
    st.sampled_from([1.05, 1.1, 1.5]),
)
def test_a_change_of_protocol_is_located(alpha, beta, switch, by, factor):
    def time_of(size):
        return (alpha + beta * size) * (by if size >= switch else 1.0)

    _, again, jumps = bisected(time_of, GRID_BYTES, factor)
    assert [jump.kind for jump in jumps] == [JumpKind.LOCATED]
    (jump,) = jumps
    assert jump.lower_bytes < switch <= jump.upper_bytes
    assert jump.upper_bytes <= jump.lower_bytes * factor
    steps = {1.05: 4, 1.1: 3, 1.5: 1}[factor]  # log2 of log(2) / log(factor), and both ends
    assert len(again) <= steps + 2


def test_jump_that_disappears_on_remeasurement_is_reported_as_such():
    first = {1024: Timed(10.0), 2048: Timed(50.0), 4096: Timed(52.0)}
    assert next_size(first, {}, 1.1, 2) == 1024
    again = {1024: Timed(10.0), 2048: Timed(11.0)}
    assert next_size(first, {1024: Timed(10.0)}, 1.1, 2) == 2048
    kinds = {jump.lower_bytes: jump.kind for jump in jumps_of(first, again, 1.1, 2)}
    # 4096 was measured in the same slow minute: it is the next to be measured again.
    assert kinds == {1024: JumpKind.NOT_REPRODUCIBLE, 2048: JumpKind.WIDE}
    assert next_size(first, again, 1.1, 2) == 4096
    again[4096] = Timed(12.0)
    assert next_size(first, again, 1.1, 2) is None
    assert jumps_of(first, again, 1.1, 2) == [Jump(1024, 2048, 5.0, JumpKind.NOT_REPRODUCIBLE)]


def test_difference_within_the_spread_of_rounds_is_not_a_jump():
    quiet = {1024: Timed(10.0), 2048: Timed(30.0)}
    assert next_size(quiet, {}, 1.1, 2) == 1024
    loud = {1024: Timed(10.0), 2048: Timed(30.0, spread=0.6)}
    assert next_size(loud, {}, 1.1, 2) is None


def test_bisection_uses_only_messages_of_whole_parts():
    _, again, (jump,) = bisected(lambda size: 10.0 if size < 200 else 90.0, [128, 256], 1.01, 32)
    assert sorted(again) == [128, 192, 224, 256]
    assert (jump.lower_bytes, jump.upper_bytes, jump.kind) == (192, 224, JumpKind.LOCATED)


def test_bisection_of_random_durations_ends():
    _, again, _ = bisected(lambda size: 10.0 if size // 2 % 2 else 90.0, GRID_BYTES, 1.001)
    assert len(again) <= 64


def case(size, operation="all_reduce", together=False):
    return Collective(operation, size, "bfloat16", 2, 2, together)


def plan_of(*cases, factor=1.1, backend="cpu", mode=Mode.EVENT):
    return BenchPlan(backend, Grid((48, 8, 2)), 4, mode, 1, 0.1, (5, 9), cases, jump_factor=factor)


def seen(number, at, duration_us, extra=None):
    ranks = tuple(RankTimes(rank, (0.0,), (duration_us,)) for rank in (0, 1))
    return CaseSeen(number, at, ranks, "", (), extra)


def test_jump_search_groups_cases_that_differ_only_in_size():
    cases = [case(1024), case(2048), case(1024, together=True), case(1024, "all_gather")]
    assert searched(plan_of(*cases)) == [cases[0], cases[3]]
    assert searched(plan_of(*cases, factor=None)) == []
    by_size = [case(1 << 10, "all_gather"), case(1 << 20, "all_gather")]
    assert searched(plan_of(*by_size, backend="npu", mode=None)) == by_size


def test_bench_reports_a_jump_at_its_upper_end():
    plan = plan_of(case(1000), case(1100), case(1000, "all_gather"))
    one, every = case(1000), [seen(0, 0, 10.0), seen(0, 1, 90.0), seen(0, 2, 5.0)]
    assert next_case(plan, one, every) == case(1000)
    assert next_case(plan, one, every[:2]) == case(1000)
    every += [seen(1, 0, 10.0), seen(1, 1, 90.0)]
    assert next_case(plan, one, every) is None
    jumps = {
        measured.collective: measured.jump for measured in bench_results(plan, every, {}).measured
    }
    assert names(jumps[case(1100)], "located", "9.00", 1000)
    assert jumps[case(1000)] == jumps[case(1000, "all_gather")] == ""


def test_sizes_added_by_bisection_are_separate_rows():
    plan = plan_of(case(1024), case(2048))
    every = [seen(0, 0, 10.0), seen(0, 1, 90.0), seen(1, 0, 10.0), seen(1, 1, 90.0)]
    between = next_case(plan, case(1024), every)
    assert between == case(1448)
    every.append(seen(1, 2, 11.0, extra=between))
    found = {one.collective: one for one in bench_results(plan, every, {}).measured}
    assert found[between].duration_us == 11.0
    assert len(found[case(1024)].timings) == 2
    assert names(found[case(2048)].jump, "wide", 8.18, 1448)


@pytest.mark.parametrize("factor", [1.0, 0.5, float("inf"), float("nan")])
def test_a_factor_that_can_never_be_reached_is_refused(factor):
    with pytest.raises(BadInput, match=naming("jump factor", f"{factor:g}", 1)):
        plan_of(case(1024), factor=factor)


def test_plan_for_ranks_contains_the_jump_factor():
    plan = plan_of(case(1024))
    assert read_rank_plan(BenchPlan, plan.to_json()) == plan
    assert replace(plan, jump_factor=None).number != plan.number


def test_size_without_a_duration_is_requested_only_once():
    first = {1024: Timed(10.0, 0.0), 2048: Timed(11.0, 0.0), 4096: Timed(60.0, 0.0)}
    requested: set[int] = set()
    while (size := next_size(first, {}, 1.1, 2, requested)) is not None:
        assert size not in requested
        requested.add(size)
    assert requested == {2048}  # the other end is not needed without it
