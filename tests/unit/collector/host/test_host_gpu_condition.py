"""Reading a GPU through NVML, with a library that behaves like its reference."""

import os
from types import SimpleNamespace

import pytest

from collector.host.gpus import GpuCondition, held_by
from collector.model.measurement import ClockLimit, Condition

pytestmark = pytest.mark.fast

OTHER = (1 << 22) + 1  # more than Linux gives to any process


class FakeNvml:
    """One GPU. A function without a given result is not supported; `samples` are pid, share of the
    cores and time; a call has the last time that it has seen."""

    class NVMLError(Exception):
        def __init__(self, value=3):  # not supported
            self.value = value

    def __init__(self, samples=None, pids=None, **answers):
        self.samples = samples
        self.requested_from = []
        self.answers = answers
        if pids is not None:
            listed = [SimpleNamespace(pid=pid, usedGpuMemory=1) for pid in pids]
            self.answers["nvmlDeviceGetComputeRunningProcesses"] = listed

    def __getattr__(self, name):
        if not name.startswith("nvmlDevice"):
            raise AttributeError(name)
        return lambda handle, *arguments: self._answer(name, *arguments)

    def nvmlDeviceGetProcessUtilization(self, handle, seen_us):
        self.requested_from.append(seen_us)
        if self.samples is None:
            raise self.NVMLError()
        found = [SimpleNamespace(pid=p, smUtil=u, timeStamp=t) for p, u, t in self.samples]
        if not (newer := [sample for sample in found if sample.timeStamp > seen_us]):
            raise self.NVMLError(6)  # not found
        return newer

    def _answer(self, name, *arguments):
        if name not in self.answers:
            raise self.NVMLError()
        return self.answers[name]


def read(nvml):
    return GpuCondition(nvml, "handle").read()


def test_gpu_condition_has_every_reported_value():
    nvml = FakeNvml(
        pids=[os.getpid()],
        nvmlDeviceGetClockInfo=1980,
        nvmlDeviceGetTemperature=61,
        nvmlDeviceGetPowerUsage=312_450,
        nvmlDeviceGetCurrentClocksEventReasons=0x44,
    )
    held = (ClockLimit.POWER_CAP, ClockLimit.THERMAL)
    assert read(nvml) == Condition(1980.0, None, 61.0, 312.45, None, held, 0)


def test_values_that_a_gpu_does_not_support_are_absent():
    assert read(FakeNvml()) == Condition()


def test_older_drivers_throttle_reasons_are_read():
    assert read(FakeNvml(nvmlDeviceGetCurrentClocksThrottleReasons=0x1)).held == (ClockLimit.IDLE,)


def test_throttle_bits_are_mapped_to_reasons_and_unknown_ones_to_other():
    assert held_by(0) == ()
    assert held_by(0x68) == (ClockLimit.SLOWDOWN, ClockLimit.THERMAL)
    assert held_by(0x112) == (ClockLimit.SETTING,)
    assert held_by(0x8000) == (ClockLimit.OTHER,)


def test_other_process_counts_if_it_computed_since_the_last_reading():
    nvml = FakeNvml(pids=[os.getpid(), OTHER], samples=[(OTHER, 40, 1000), (os.getpid(), 9, 1001)])
    gpu = GpuCondition(nvml, "handle")
    assert [gpu.read().others for _ in range(2)] == [1, 0]
    nvml.samples = [(OTHER, 0, 2000)]  # it existed, and did nothing
    assert gpu.read().others == 0
    assert nvml.requested_from == [0, 1001, 1001]


def test_other_process_counts_if_its_utilisation_is_unknown():
    assert read(FakeNvml(pids=[os.getpid(), OTHER])).others == 1


def test_processes_of_another_namespace_are_unknown():
    assert read(FakeNvml(pids=[OTHER])).others is None
