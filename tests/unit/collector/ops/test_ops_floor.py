"""The lower bound of a case: it refuses impossible durations, and no measured one."""

import csv
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.model.case import Case, case_from_cells
from collector.model.stack import Stack
from collector.model.vocabulary import BASE_CELLS
from collector.ops.floor import (
    MIN_KERNEL_US,
    MIN_US,
    described_devices,
    described_peaks,
    flops_per_s,
    lower_bound_us,
)
from collector.ops.registry import find_operator
from tests.fixtures.op_rows import all_rows
from tests.fixtures.row_checks import failing

pytestmark = pytest.mark.fast

A3 = Stack("ATLAS_800_A3_752T_128G_DIE", "2.9.0", cann="8.5")
A5 = Stack("ATLAS_850_486T_112G", "2.13.0", cann="9.1")
CPU = Stack("CPU_test_2t", "2.13.0", details=(("flags", "avx2 avx512f"), ("threads", "2")))
UNKNOWN = Stack("CUDA_NVIDIA_B900", "2.13.0")
STACKS = (A3, A5, CPU, UNKNOWN, None)
BF16 = "DT_BF16"
_VARIABLE = "OPMETER_TEST_TRUTH"


@pytest.fixture
def product(case_of):
    def make(m, n, k, dtype=BF16):
        return case_of("MatMulV3", f"{m},{k};{k},{n}", f"{dtype};{dtype}", f"{m},{n}", dtype)

    return make


def test_lower_bound_of_a_product_is_half_its_time_at_the_peak(product):
    # 2 * 4096^3 = 137,438,953,472 operations at 376 TFLOP/s are 365.5 us
    assert lower_bound_us(product(4096, 4096, 4096), A3) == pytest.approx(182.76, abs=0.01)
    # FLOAT may be computed in a format of fewer bits; INT8 is twice as fast
    assert lower_bound_us(product(4096, 4096, 4096, "FLOAT"), A3) == pytest.approx(182.76, abs=0.01)


@pytest.mark.parametrize("stack", STACKS)
def test_lower_bound_of_a_large_product_is_above_a_microsecond(product, stack):
    assert lower_bound_us(product(4096, 4096, 4096), stack) > 1.0


def test_lower_bound_of_large_copies_uses_memory_and_of_small_ones_the_cache(case_of):
    def add(rows):
        return case_of("Add", f"{rows},1024;{rows},1024", "FLOAT;FLOAT", f"{rows},1024", "FLOAT")

    # 3 * 2^20 * 4 bytes at four times 1638.4 GiB/s, halved
    assert lower_bound_us(add(1024), A3) == pytest.approx(0.894, abs=0.001)
    # 12 GiB less half a GiB at 1638.4 GiB/s, halved
    assert lower_bound_us(add(2**20), A3) == pytest.approx(3509.5, abs=0.1)


@pytest.mark.parametrize(
    ("dtypes", "rate"),
    [
        (f"{BF16};{BF16}", 432),
        ("INT8;INT8", 865),
        (f"{BF16};FLOAT8_E4M3FN", 865),
        ("HIFLOAT8;HIFLOAT8", 865),
        ("FLOAT4_E2M1;FLOAT4_E2M1", 1730),
        ("FLOAT8_E4M3FN;FLOAT4_E2M1", 1730),
        ("INT32;INT32", 1730),
    ],
)
def test_peak_rate_follows_from_the_dtypes(case_of, dtypes, rate):
    """INT32 may hold eight packed numbers of four bits."""
    case = case_of("Add", "64;64", dtypes, "64", BF16)
    assert flops_per_s(case, A5) == rate * 1e12


def test_undeclared_kernel_has_the_smallest_lower_bound(case_of):
    strange = case_of("NoSuchKernel", "4096,4096", "FLOAT", "4096,4096", "FLOAT")
    refused = case_of("Add", "3,4;5,6", "FLOAT;FLOAT", "7,8", "FLOAT")
    assert lower_bound_us(strange, A3) == lower_bound_us(refused, A3) == MIN_KERNEL_US
    empty = case_of("Add", "0,4;0,4", "FLOAT;FLOAT", "0,4", "FLOAT")
    assert lower_bound_us(empty, A3) == MIN_KERNEL_US
    assert lower_bound_us(empty, CPU) == lower_bound_us(empty, None) == MIN_US


def test_peak_of_a_cpu_grows_with_its_threads(product):
    case = product(4096, 4096, 4096)
    one, two = (
        lower_bound_us(case, Stack("CPU_x", "2", details=(("flags", "avx2"), ("threads", threads))))
        for threads in ("1", "2")
    )
    assert one == pytest.approx(2 * two)
    # 137,438,953,472 operations, 128 a cycle of 6 GHz and thread, halved
    assert one == pytest.approx(89_478.5, rel=1e-4)


@settings(max_examples=50)
@given(st.text(max_size=12), st.text(max_size=20))
def test_any_details_of_a_cpu_give_a_lower_bound(threads, flags):
    details = (("flags", flags), ("threads", threads))
    cells = dict(
        zip(BASE_CELLS, ("", "", "64,64", "FLOAT", "ND", "64,64", "FLOAT", "ND"), strict=True)
    )
    case = case_from_cells("Abs", cells)
    assert MIN_US <= lower_bound_us(case, Stack("CPU_x", "2", details=details)) < 1.0


@pytest.mark.thorough
def test_every_operator_has_a_lower_bound():
    def check(case):
        assert [
            us for stack in STACKS if not MIN_US <= (us := lower_bound_us(case, stack)) < 1e6
        ] == []

    assert failing([row.case for row in all_rows()], check, Case.describe) == []


def test_no_kernel_of_a_real_profile_is_below_its_lower_bound(real_profiles):
    # The devices of these profiles are not known: 910B class, of which this is the fastest.
    judged = 0
    for path in sorted(real_profiles.rglob("*.csv")):
        for case, duration_us in launches_of(path):
            floor = lower_bound_us(case, A3)
            assert duration_us >= floor, f"{path.name}: {case.describe()} {duration_us} < {floor}"
            judged += floor > MIN_KERNEL_US
    assert judged > 1900


def launches_of(path):
    """Return the cases and durations of a kernel_details or op_summary file; none for others."""
    with path.open(newline="", encoding="utf-8-sig") as lines:
        for row in csv.DictReader(lines):
            kernel = row.get("Type") or row.get("OP Type") or ""
            duration = row.get("Duration(us)") or row.get("Task Duration(us)")
            if find_operator(kernel) and duration and row.get("Input Shapes"):
                yield case_from_cells(kernel, row), float(duration)


def test_no_published_gpu_product_is_below_its_lower_bound(product):
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = os.environ.get(_VARIABLE)
    if not folder:
        pytest.skip(f"published measurements are not available: {_VARIABLE} names their folder")
    judged = refused = 0
    for path in sorted(Path(folder).rglob("*.parquet")):
        table = parquet.read_table(path, filters=[("gemm_dtype", "=", "bfloat16")])
        for row in table.to_pylist()[::10]:
            stack = Stack("CUDA_" + row["device"].replace(" ", "_"), "2.13.0")
            floor = lower_bound_us(product(row["m"], row["n"], row["k"]), stack)
            judged += floor > MIN_KERNEL_US
            refused += row["latency"] * 1e3 < floor
    assert judged > 20_000 and refused == 0


def test_every_described_device_has_a_source():
    assert [d for d in described_devices() if not described_peaks(d).source] == []


@pytest.mark.parametrize(
    ("device", "bfloat16", "memory_tb_per_s"),
    [
        ("ATLAS_800_A2_313T_64G", 294.9, 1.76),
        ("ATLAS_800_A3_752T_128G_DIE", 353.9, 1.76),
        ("ATLAS_350_425T_84G", 378, 1.54),
        ("ATLAS_850_486T_128G", 432, 1.76),
        ("CUDA_NVIDIA_A100-SXM4-80GB", 312, 2.039),
        ("CUDA_NVIDIA_A100-PCIE-40GB", 312, 1.555),
        ("CUDA_NVIDIA_L40S", 362, 0.864),
        ("CUDA_NVIDIA_H100_80GB_HBM3", 989.4, 3.35),
        ("CUDA_NVIDIA_H200", 989.4, 4.8),
        ("CUDA_NVIDIA_B200", 2250, 8.0),
    ],
)
def test_peaks_are_the_published_ones(device, bfloat16, memory_tb_per_s):
    peaks = described_peaks(device)
    assert peaks.tflops["bfloat16"] == bfloat16
    assert peaks.bytes_per_s / 1e12 == pytest.approx(memory_tb_per_s, rel=1e-3)
