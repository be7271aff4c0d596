"""The measured peaks of a machine's processor, and the life of their file."""

import pytest

from collector.host.peaks_file import path_of_peaks, stored_peaks
from collector.host.stack import local_stack
from collector.model.measurement import Disturbance, Measurement, Outcome, Timing
from collector.model.peaks import MachinePeaks, peaks_to_bytes
from collector.model.stack import Stack
from collector.ops.references import addition, copying_kernel, product_kernel
from jobs.selftest.bench import SessionBench
from jobs.selftest.peaks import CASES, best_rates, check_peaks, keep_peaks
from jobs.selftest.timing import words_on_own_peaks
from tests.unit.collector.replay.replay_cases import PROVENANCE
from tests.unit.jobs.printed import missing, numbers

STACK = Stack("CPU_x_2t", "2.13.0+cpu", details=(("flags", "avx2"), ("threads", "2")))
QUIET, BUSY = Disturbance(20, 20), Disturbance(20, 2, 0.4)
SMALL = {
    "float32_flops_per_s": (product_kernel(64, "FLOAT"), product_kernel(128, "FLOAT")),
    "bfloat16_flops_per_s": (product_kernel(64, "DT_BF16"),),
    "cache_bytes_per_s": (addition(64, 1024),),
    "memory_bytes_per_s": (copying_kernel(256, 1024),),
}


def peaks(rate=1e12, stack=STACK):
    return MachinePeaks(stack, rate, rate, rate, rate, "now")


def answer(record, us, disturbance=QUIET):
    timing = Timing(us, us, us, us, us, us, us, 0.0)
    more = {"timing": timing, "disturbance": disturbance}
    return Measurement(record.case_id, record.kernel_type, Outcome.OK, "", PROVENANCE, **more)


def answers(us, **more):
    return [answer(record, us, **more) for alike in CASES.values() for record in alike]


@pytest.mark.fast
def test_peaks_are_those_of_the_fastest_undisturbed_launches():
    reported = best_rates(STACK, answers(1e4), "now")
    assert reported.float32_flops_per_s == reported.bfloat16_flops_per_s == 2 * 2048**3 / 1e-2
    assert reported.cache_bytes_per_s == 12 * 2**20 / 1e-2
    assert reported.memory_bytes_per_s == 512 * 2**20 / 1e-2
    assert best_rates(STACK, answers(1e4, disturbance=BUSY), "now") is None
    mixed = answers(1e4)
    mixed[1] = answer(CASES["float32_flops_per_s"][1], 1.0, BUSY)
    assert best_rates(STACK, mixed, "now").float32_flops_per_s == 2 * 1024**3 / 1e-2


@pytest.mark.fast
def test_large_cases_are_compared_with_the_measured_peaks():
    # A product of 1024 and a copy of 64 MiB, both at half of 1e12 a second.
    words = words_on_own_peaks(2 * 2 * 1024**3 / 1e6, 2 * 2 * 2**26 / 1e6, peaks(1e12))
    assert numbers(words) == ["50", "50"]
    assert numbers(words_on_own_peaks(1.0, 1.0, None)) == []


@pytest.mark.fast
def test_better_of_each_stored_rate_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("OPMETER_PEAKS", str(tmp_path / "peaks"))
    assert stored_peaks(STACK) is None
    assert keep_peaks(peaks(2e12)).endswith(str(path_of_peaks(STACK)))
    assert keep_peaks(peaks(1e12)).endswith(str(path_of_peaks(STACK)))
    assert stored_peaks(STACK) == peaks(2e12)
    assert stored_peaks(Stack("CPU_y_4t", "2.13.0+cpu")) is None


@pytest.mark.fast
@pytest.mark.parametrize(
    ("kept", "data"),
    [
        (b"{", "JSON"),
        (peaks_to_bytes(peaks()).replace(b"1000000000000.0", b"-1.0", 1), "-1.0"),
        (peaks_to_bytes(peaks()).replace(b"cache_bytes", b"caches"), "cache_bytes_per_s"),
        (peaks_to_bytes(peaks(stack=Stack("CPU_x_2t", "2.12.0"))), "details, torch"),
    ],
)
def test_peaks_file_that_is_damaged_or_of_another_stack_is_ignored_with_a_warning(
    tmp_path, monkeypatch, caplog, kept, data
):
    monkeypatch.setenv("OPMETER_PEAKS", str(tmp_path))
    path_of_peaks(STACK).write_bytes(kept)
    assert stored_peaks(STACK) is None
    [line] = caplog.messages
    assert missing(line, [data, "opmeter selftest cpu"]) == []
    keep_peaks(peaks())
    assert stored_peaks(STACK) == peaks()


@pytest.mark.fast
def test_unwritable_peaks_folder_is_reported(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPMETER_PEAKS", str(tmp_path / "file" / "peaks"))
    assert "OPMETER_PEAKS" in keep_peaks(peaks())


@pytest.mark.torch
def test_peaks_of_this_cpu_are_measured_unless_disturbed(tmp_path):
    bench = SessionBench("cpu", local_stack("cpu"), 0, tmp_path)
    reported = check_peaks(bench, SMALL)
    assert reported.ok, reported.found
    [session] = bench.done
    undisturbed = best_rates(bench.stack, session.results, "now", SMALL)
    assert reported.skipped == (undisturbed is None)
    if undisturbed is not None:
        assert "GFLOP/s" in reported.found
        # Far below what any CPU of this kind may reach, and above the slowest.
        assert 1e7 < undisturbed.float32_flops_per_s < 1e14
