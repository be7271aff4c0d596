"""The expected duration of a case, against examples computed by hand."""

from dataclasses import replace

import pytest

from collector.model.case import case_from_cells
from collector.model.manifest import NO_USAGE, Usage
from collector.model.plan import CANARIES_FROM_S, WARM_UPS, MeasureSettings
from collector.model.stack import Stack
from collector.ops.registry import find_operator
from collector.ops.spec import OpSpec
from jobs.planning.forecast import (
    CASE_OVERHEAD_S,
    FLUSH_BYTES,
    Peaks,
    SessionCost,
    peaks_of,
    predict,
    session_cost,
    with_measured_rates,
    with_overheads,
)

pytestmark = pytest.mark.fast

PEAKS = Peaks(
    flops_per_s={"float32": 1e12, "bfloat16": 4e12},
    bytes_per_s=1e9,
    launch_s=1e-5,
    fill_bytes_per_s=1e9,
    session_start_s=5.0,
    gang_start_s=20.0,
)
# 1,000 x 1,000 in each of two inputs and one output.
CELLS = {
    "Input Shapes": '"1000,1000;1000,1000"',
    "Input Formats": "ND;ND",
    "Output Shapes": '"1000,1000"',
    "Output Formats": "ND",
}
FLOAT = case_from_cells(
    "MatMul", CELLS | {"Input Data Types": "FLOAT;FLOAT", "Output Data Types": "FLOAT"}
)
BF16 = case_from_cells(
    "MatMul", CELLS | {"Input Data Types": "DT_BF16;DT_BF16", "Output Data Types": "DT_BF16"}
)


def operator(flops: int) -> OpSpec:
    return OpSpec(
        "MatMul",
        "",
        signature="x, y -> z",
        reference=lambda torch, x, y: x @ y,
        flops=lambda case: flops,
    )


def test_rates_are_raised_to_what_was_measured() -> None:
    """A machine that did a product in 0.6 s has no estimate of 2 s for it."""
    product = operator(2 * 10**12)  # 2 s at 1 TFLOP/s
    assert predict(FLOAT, product, PEAKS, MeasureSettings(), None).launch_s > 2
    raised = with_measured_rates(PEAKS, [(FLOAT, product, 0.6e6), (FLOAT, product, 0.7e6)])
    again = predict(FLOAT, product, raised, MeasureSettings(), None).launch_s
    assert again == pytest.approx(0.6, rel=1e-3)
    assert raised.flops_of("bfloat16") / PEAKS.flops_of("bfloat16") == pytest.approx(2 / 0.6)
    assert raised.bytes_per_s == PEAKS.bytes_per_s  # 12 MB may come from a cache
    large = replace(operator(1), traffic=lambda case: 10**9)
    moved = with_measured_rates(PEAKS, [(FLOAT, large, 0.5e6), (FLOAT, operator(1), 3.0)])
    assert (moved.bytes_per_s, moved.launch_s) == (2e9, pytest.approx(3e-6))
    slow = with_measured_rates(PEAKS, [(FLOAT, product, 9e6)])
    assert slow == PEAKS == with_measured_rates(PEAKS, [])


def test_launch_takes_the_longer_of_computing_and_moving() -> None:
    # 12 MB over 1 GB/s are 12 ms; 2e9 operations over 1 TFLOP/s are 2 ms.
    moving = predict(FLOAT, operator(2 * 10**9), PEAKS, MeasureSettings(), None)
    assert moving.launch_s == pytest.approx(0.012 + 1e-5)
    # 2e11 operations are 200 ms in float32, and 50 ms in bfloat16.
    computing = predict(FLOAT, operator(2 * 10**11), PEAKS, MeasureSettings(), None)
    assert computing.launch_s == pytest.approx(0.2 + 1e-5)
    narrower = predict(BF16, operator(2 * 10**11), PEAKS, MeasureSettings(), None)
    assert narrower.launch_s == pytest.approx(0.05 + 1e-5)


def test_cost_of_a_case_has_launches_inputs_and_overhead() -> None:
    measured = predict(FLOAT, operator(1), PEAKS, MeasureSettings(budget_s=1.0), 50_000.0)
    assert measured.launch_s == pytest.approx(0.05)
    launches = 20 + WARM_UPS + 1  # pilot
    assert measured.total_s == pytest.approx(launches * 0.05 + 0.008 + CASE_OVERHEAD_S)


def test_fixed_repeats_need_no_pilot() -> None:
    fixed = predict(FLOAT, operator(1), PEAKS, MeasureSettings(repeat_count=10), 50_000.0)
    assert fixed.total_s == pytest.approx((10 + WARM_UPS) * 0.05 + 0.008 + CASE_OVERHEAD_S)


def test_launch_of_half_the_budget_has_one_warm_up_and_no_pilot() -> None:
    long = predict(FLOAT, operator(1), PEAKS, MeasureSettings(budget_s=0.2), 101_000.0)
    assert long.total_s == pytest.approx((1 + 3) * 0.101 + 0.008 + CASE_OVERHEAD_S)
    shorter = predict(FLOAT, operator(1), PEAKS, MeasureSettings(budget_s=0.2), 99_000.0)
    assert shorter.total_s == pytest.approx((3 + 1 + 3) * 0.099 + 0.008 + CASE_OVERHEAD_S)


def test_cold_cache_costs_a_flush_before_each_launch() -> None:
    settings = MeasureSettings(repeat_count=10, cache="cold")
    warm = predict(FLOAT, operator(1), PEAKS, MeasureSettings(repeat_count=10), 100.0)
    cold = predict(FLOAT, operator(1), PEAKS, settings, 100.0)
    flushes_s = (10 + WARM_UPS) * FLUSH_BYTES / 1e9
    assert cold.total_s - warm.total_s == pytest.approx(flushes_s)
    # Flushes count against the budget, too: 0.27 s each.
    few = predict(FLOAT, operator(1), PEAKS, MeasureSettings(cache="cold"), 100.0)
    assert few.total_s < (WARM_UPS + 1 + 4) * (FLUSH_BYTES / 1e9 + 1e-3)


def test_context_launches_are_launched_and_allocated_for_each_repeat() -> None:
    settings = MeasureSettings(repeat_count=10, cache="context")
    alone = predict(FLOAT, operator(1), PEAKS, settings, 100.0)
    other = operator(2 * 10**11)
    behind = predict(FLOAT, operator(1), PEAKS, settings, 100.0, [(FLOAT, other)] * 2)
    once = predict(FLOAT, other, PEAKS, settings, None)
    made_s = sum(slot.size_bytes for slot in FLOAT.inputs or ()) / PEAKS.fill_bytes_per_s
    more_s = 2 * ((10 + WARM_UPS) * once.launch_s + made_s)
    assert behind.launch_s == alone.launch_s
    assert behind.total_s - alone.total_s == pytest.approx(more_s)
    # They count against the budget, too.
    budget = MeasureSettings(budget_s=1.0, cache="context")
    few = predict(FLOAT, operator(1), PEAKS, budget, 100.0, [(FLOAT, other)] * 20)
    launches = 3 + 1  # with them, a launch takes half of the budget: one warm-up, and no pilot
    assert 20 * launches * once.launch_s < few.total_s < 20 * launches * once.launch_s + 1.0


def test_each_counter_group_is_a_separate_pass() -> None:
    both = MeasureSettings(aic_metrics=("PipeUtilization", "Memory"))
    one = predict(FLOAT, operator(1), PEAKS, MeasureSettings(), 100.0).total_s
    assert predict(FLOAT, operator(1), PEAKS, both, 100.0).total_s == pytest.approx(2 * one)


@pytest.mark.parametrize(("launch_s", "repeats"), [(0.0, 100), (1e-6, 100), (0.05, 20), (10.0, 3)])
def test_repeats_fill_the_budget_within_their_bounds(launch_s: float, repeats: int) -> None:
    assert MeasureSettings(budget_s=1.0).repeats_of(launch_s) == repeats
    assert MeasureSettings(repeat_count=7).repeats_of(launch_s) == 7


def test_known_device_has_its_published_peaks() -> None:
    peaks = peaks_of(Stack("ATLAS_800_A3_752T_128G_DIE", "2.9.0", cann="8.5"))
    assert peaks.flops_of("bfloat16") == pytest.approx(353.9e12 * 0.7)
    assert peaks.flops_of("int8") == pytest.approx(752e12 * 0.7)
    assert peaks.flops_of("int32") == peaks.flops_of("float32") == pytest.approx(99.5e12 * 0.7)
    assert peaks.bytes_per_s == pytest.approx(1.6 * 2**40 * 0.6)
    small = peaks_of(Stack("ATLAS_800_A2_280T_32G_PCIE", "2.9.0", cann="8.5"))
    assert small.bytes_per_s == pytest.approx(0.8 * 2**40 * 0.6)


def test_undescribed_device_has_the_peaks_of_a_slower_one() -> None:
    known = peaks_of(Stack("ATLAS_800_A2_280T_64G", "2.9.0", cann="8.5"))
    other = peaks_of(Stack("CUDA_Some_GPU", "2.13.0"))
    assert 0 < other.flops_of("float32") < known.flops_of("float32")
    assert 0 < other.bytes_per_s < known.bytes_per_s


def cpu(**details: str) -> Peaks:
    return peaks_of(Stack("CPU_x_8t", "2.13.0", details=tuple(sorted(details.items()))))


def test_peaks_of_a_cpu_follow_from_its_details() -> None:
    plain = cpu(threads="8", flags="avx2 fma", clock_mhz="2000")
    # 8 threads of 2 GHz with 16 operations a cycle, all of which are reached.
    assert plain.flops_of("float32") == pytest.approx(8 * 2e9 * 16)
    assert plain.flops_of("bfloat16") == plain.flops_of("float32")
    wide = cpu(threads="8", flags="avx2 avx512f avx512_bf16", clock_mhz="2000")
    assert wide.flops_of("float32") == pytest.approx(2 * plain.flops_of("float32"))
    assert wide.flops_of("bfloat16") == pytest.approx(2 * wide.flops_of("float32"))
    tiles = cpu(threads="8", flags="amx_bf16 avx512_bf16 avx512f", clock_mhz="2000")
    assert tiles.flops_of("bfloat16") > wide.flops_of("bfloat16")


def test_short_launches_on_a_cpu_cost_their_profile() -> None:
    peaks = cpu(threads="2", flags="avx512f", clock_mhz="2500")
    short = predict(FLOAT, operator(1), peaks, MeasureSettings(repeat_count=100), 5.0)
    launches = 100 + WARM_UPS
    # Inputs of 8 MB are written in 1.6 ms.
    expected_s = launches * (5e-6 + peaks.export_s) + peaks.case_s + 0.0016
    assert short.total_s == pytest.approx(expected_s) and peaks.export_s > 5e-6
    assert peaks.fill_bytes_per_s < peaks.bytes_per_s


def test_cpu_without_details_has_one_slow_thread() -> None:
    assert cpu().flops_of("float32") == pytest.approx(2.5e9 * 4)
    assert cpu(threads="many", clock_mhz="-1") == cpu()


def test_every_session_starts_and_long_ones_have_canaries() -> None:
    cost = SessionCost(5.0, 0.5)
    assert cost.of_sessions(10.0, 240.0) == 5.0
    assert cost.of_sessions(60.0, 240.0) == 5.5
    assert cost.of_sessions(500.0, 240.0) == 3 * 5.0 + 2 * 0.5  # the last one takes 20 s
    assert cost.of_sessions(120.0, 30.0) == 4 * 5.0  # all of them are short
    by_launches = replace(cost, most_cases=10)
    assert by_launches.of_sessions(10.0, 240.0, 45) == 5 * 5.0
    assert by_launches.of_sessions(500.0, 240.0, 40) == 4 * 5.0 + 4 * 0.5


def test_overheads_are_learned_from_sessions_of_the_stack() -> None:
    # Starts of 50 s, 40 ms of the host per case, exports of 5.5 s and 0.5 ms per launch.
    small = Usage(2e6, 0, 50 + 10 * 0.04 + 2 + 6, 50, 6, sessions=1, cases=10, launches=1000)
    large = Usage(9e6, 0, 50 + 90 * 0.04 + 9 + 10, 50, 10, sessions=1, cases=90, launches=9000)
    learned = with_overheads(PEAKS, [small, NO_USAGE, large])
    assert learned.session_start_s == pytest.approx(55.5)
    assert learned.case_s == pytest.approx(0.04)
    assert learned.export_s == pytest.approx(0.0005)
    alike = with_overheads(PEAKS, [small, small])  # which cannot be distinguished
    assert (alike.session_start_s, alike.export_s) == (50, 0.006)
    cold = replace(small, startup_s=150, wall_s=small.wall_s + 100)  # the first on its node
    assert with_overheads(PEAKS, [cold, small]).session_start_s == 50
    assert with_overheads(PEAKS, [NO_USAGE]) == PEAKS
    measure = MeasureSettings(repeat_count=10, aic_metrics=("PipeUtilization", "Memory"))
    once = predict(FLOAT, operator(1), learned, measure, 1000.0)
    launches = 10 + WARM_UPS
    assert once.total_s == pytest.approx(2 * (launches * 0.0015 + 0.008 + 0.04))
    cost = session_cost("npu", find_operator, learned, measure)
    assert cost.start_s == pytest.approx(2 * 55.5)
    assert cost.most_cases == 100_000 // 16


@pytest.mark.parametrize(
    ("device", "backend"),
    [("ATLAS_800_A3_752T_128G_DIE", "npu"), ("CUDA_NVIDIA_H100", "cuda"), ("CPU_x_2t", "cpu")],
)
def test_canaries_cost_a_hundredth_of_the_shortest_session_that_has_them(
    device: str, backend: str
) -> None:
    cost = session_cost(backend, find_operator, peaks_of(Stack(device, "2.9.0")), MeasureSettings())
    assert 0 < cost.canaries_s < CANARIES_FROM_S / 100
