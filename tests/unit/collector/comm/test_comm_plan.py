"""What is measured, decided before any rank starts."""

import pytest

from collector.codec.errors import BadInput
from collector.comm.bench_plan import (
    SIZE_GRIDS,
    BenchPlan,
    Mode,
    chosen_sizes,
    collectives_of,
    default_mode,
    measurable,
)
from collector.comm.rank_files import read_rank_plan
from collector.ranks.collective import (
    OPERATIONS,
    Collective,
    check_collective,
    dtype_named,
    key_cells,
)
from collector.ranks.topology import Grid
from tests.unit.collector.naming import names, naming

GRID = Grid((48, 8, 2))


def planned(operations, sizes, group_sizes, tiers=(), world=16, dtype="bfloat16"):
    return collectives_of(operations, sizes, dtype, group_sizes, tiers, grid=GRID, world=world)


def plan_of(cases, world=4):
    return BenchPlan("cpu", GRID, world, Mode.EVENT, 2, 0.1, (5, 20), tuple(cases))


def test_tier_with_several_groups_is_measured_alone_and_concurrently():
    cases, left_out = planned(["all_reduce"], [1024], [2, 16])
    assert not left_out
    assert [(case.group_size, case.tier, case.together) for case in cases] == [
        (2, 2, False),
        (2, 2, True),
        (16, 1, False),
    ]
    plan = plan_of(cases, world=16)
    assert [len(plan.groups(case)) for case in cases] == [1, 8, 1]
    assert len(plan.all_groups()) == 9


def test_cases_that_cannot_be_measured_are_excluded_with_a_reason():
    cases, left_out = planned(["all_to_all", "all_reduce"], [3, 32], [16, 32], tiers=[0, 1][:1])
    assert {(one.collective.group_size, one.collective.tier) for one in left_out} == {
        (16, 0),
        (32, 0),
    }
    for one in left_out:
        assert names(one.reason, f"{one.collective.group_size} ranks", "tier 0", "16 ranks")
    assert not cases
    # Of all requested sizes and tiers, no four ranks are in one package of two.
    cases, left_out = planned(["all_reduce"], [32], [2, 4], tiers=[1, 2])
    assert {(case.group_size, case.tier) for case in cases} == {(2, 1), (2, 2), (4, 1)}
    (one,) = left_out
    assert names(one.reason, "4 ranks", "tier 2", "16 ranks")
    cases, left_out = planned(["all_to_all", "all_reduce"], [3, 32, 40], [16])
    assert [(case.operation, case.message_bytes) for case in cases] == [
        ("all_to_all", 32),
        ("all_reduce", 32),
        ("all_reduce", 40),
    ]
    assert names(left_out[0].reason, "32 bytes")
    assert names(left_out[-1].reason, "2 bytes")


@pytest.mark.parametrize(
    ("operations", "sizes", "named"),
    [(["all_gathr"], [2], ("'all_gathr'", "all_gather")), (["broadcast"], [1], (1, 2))],
)
def test_invalid_option_is_refused_by_name(operations, sizes, named):
    with pytest.raises(BadInput, match=naming(*named)):
        planned(operations, [1024], sizes)


def test_tier_outside_of_the_grid_is_refused():
    with pytest.raises(BadInput, match=naming("tier", 3, "48 8 2", 2)):
        planned(["all_reduce"], [1024], [2], tiers=[3])


def test_every_rank_reads_the_written_plan():
    cases, _ = planned(list(OPERATIONS), [1024, 4096], [2, 4], world=4)
    plan = plan_of(cases)
    assert read_rank_plan(BenchPlan, plan.to_json()) == plan
    assert read_rank_plan(BenchPlan, plan.to_json()).number == plan.number
    assert plan_of(cases[:-1]).number != plan.number
    assert float(plan.number) == plan.number  # ranks compare it as a float64


@pytest.mark.parametrize(
    ("operation", "size", "backend", "mode"),
    [
        ("all_gather", 74 << 10, "npu", Mode.KERNEL),
        ("reduce_scatter", (1 << 20) - 2, "npu", Mode.KERNEL),
        ("all_gather", 1 << 20, "npu", Mode.ALTERNATING),
        ("reduce_scatter", 8 << 20, "npu", Mode.ALTERNATING),
        ("all_reduce", 128, "npu", Mode.ALTERNATING),
        ("all_reduce", 512 << 20, "npu", Mode.ALTERNATING),
        ("all_reduce", 128, "cuda", Mode.KERNEL),
        ("broadcast", 1 << 20, "cuda", Mode.EVENT),
        ("all_gather", 128, "cpu", Mode.EVENT),
    ],
)
def test_a_mode_is_chosen_by_operation_size_and_backend(operation, size, backend, mode):
    assert default_mode(operation, size, backend) is mode
    case = Collective(operation, size, "bfloat16", 2, 2)
    plan = BenchPlan(backend, GRID, 2, None, 2, 0.1, (5, 20), (case,))
    assert plan.mode_of(case) is mode
    assert read_rank_plan(BenchPlan, plan.to_json()) == plan
    requested = BenchPlan(backend, GRID, 2, Mode.EVENT, 2, 0.1, (5, 20), (case,))
    assert requested.mode_of(case) is Mode.EVENT


def test_gloo_has_no_kernel_to_time():
    case = Collective("all_reduce", 128, "bfloat16", 2, 2)
    with pytest.raises(BadInput, match=naming("mode", "kernel", "event", "alternating")):
        BenchPlan("cpu", GRID, 2, Mode.KERNEL, 2, 0.1, (5, 20), (case,))


@pytest.mark.parametrize(
    ("operation", "sent", "received", "crossing"),
    [
        ("all_reduce", 1, 1, 2 * 7 / 8),
        ("all_gather", 1, 8, 7),
        ("reduce_scatter", 8, 1, 7),
        ("all_to_all", 1, 1, 7 / 8),
        ("all_to_all_single", 1, 1, 7 / 8),
        ("broadcast", 1, 1, 1),
        ("send_recv", 1, 1, 1),
    ],
)
def test_bytes_are_counted_as_the_consumer_does(operation, sent, received, crossing):
    case = Collective(operation, 4096, "float32", 8, 1)
    assert case.input_bytes == 4096 * sent
    assert case.output_bytes == 4096 * received
    assert case.bus_bytes == 4096 * crossing
    assert case.elements == 1024


def test_message_that_is_not_a_whole_number_of_elements_is_refused():
    check_collective(Collective("all_reduce", 6, "bfloat16", 8, 1))
    with pytest.raises(BadInput, match=naming("7 bytes", "2 bytes")):
        check_collective(Collective("all_reduce", 7, "bfloat16", 8, 1))
    with pytest.raises(BadInput, match=naming("24 bytes", "8 ranks", "16 bytes")):
        check_collective(Collective("all_to_all", 24, "bfloat16", 8, 1))


def test_durations_of_msmodelings_worked_examples_are_reproduced():
    hidden = Collective("all_reduce", 144 * 5120 * 2, "bfloat16", 2, 2)
    assert list(key_cells(hidden).values()) == ["1474560", "2", "DT_BF16", "2"]
    huge = Collective("all_gather", 512 << 20, "bfloat16", 768, 0)
    assert huge.output_bytes == 384 << 30  # which no die can hold: a rank excludes it by its memory
    with pytest.raises(BadInput, match=naming("384 ranks", "768 bytes")):  # 768 bytes would be sent
        check_collective(Collective("all_to_all", 128, "bfloat16", 384, 0))
    production = SIZE_GRIDS["production"]
    assert len(production) == 36
    assert {19008, 41943040, 272, 3670016} <= set(production)
    assert SIZE_GRIDS["quick"] == (1024, 65536, 1048576, 16777216, 268435456)


def test_every_node_of_a_super_pod_gets_the_same_groups():
    sizes = (32, 64, 128, 256, 384, 512, 768)
    cases, left_out = planned(["all_reduce"], [1024], sizes, tiers=[0], world=64)
    assert sorted({case.group_size for case in cases}) == [32, 64]
    assert sorted({one.collective.group_size for one in left_out}) == [128, 256, 384, 512, 768]


def test_sizes_are_chosen_by_name_and_number():
    assert chosen_sizes(["quick", "100"], 70_000) == (100, 1024, 65536)
    assert chosen_sizes(["4096", "4096"]) == (4096,)
    assert SIZE_GRIDS["full"][0] == 128
    assert SIZE_GRIDS["full"][-1] == 512 << 20
    assert len(SIZE_GRIDS["full"]) == 23
    with pytest.raises(BadInput, match=naming("'huge'", *SIZE_GRIDS)):
        chosen_sizes(["huge"])
    with pytest.raises(BadInput, match="size"):
        chosen_sizes(["full"], 64)


@pytest.mark.parametrize("text", ["torch.bfloat16", "bfloat16", "DT_BF16"])
def test_a_dtype_has_three_spellings(text):
    assert dtype_named(text) == "bfloat16"


def test_unknown_dtype_is_refused():
    with pytest.raises(BadInput, match=naming("'float8'", "bfloat16")):
        dtype_named("float8")


def test_profiled_cases_with_more_ranks_than_the_world_are_excluded():
    grid = Grid((48, 8, 2))
    pair, wide = (
        Collective("all_reduce", 64, "bfloat16", size, 2 - (size > 2)) for size in (2, 16)
    )
    cases, left_out = measurable([pair, wide], grid=grid, world=8)
    assert cases == [pair]
    (one,) = left_out
    assert one.collective == wide and names(one.reason, "16 ranks", "tier 1", "8 ranks")
