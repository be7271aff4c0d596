"""The condition of one NVIDIA GPU, as NVML tells it: the library of its driver, through the package
nvidia-ml-py, which need not be there.

What a device or a driver does not support is None; names and bits are those of the NVML API
reference of NVIDIA (R525 and R550: nvmlDeviceGetCurrentClocksThrottleReasons, since R535
nvmlDeviceGetCurrentClocksEventReasons, with the same bits).
"""

from collections.abc import Mapping
from typing import Any

from collector.condition import Condition, Held
from collector.host.own_processes import others_among

# NVML_CLOCK_SM and NVML_TEMPERATURE_GPU.
_SM, _GPU = 1, 0
# NVML_SUCCESS without a sample is raised by the package, NVML_ERROR_NOT_FOUND by the driver.
_NOBODY = (0, 6)
_REASONS: Mapping[int, Held] = {
    0x001: Held.IDLE,
    0x002: Held.SETTING,  # application clocks
    0x004: Held.POWER_CAP,
    0x008: Held.SLOWDOWN,
    0x010: Held.SETTING,  # sync boost
    0x020: Held.THERMAL,  # by software
    0x040: Held.THERMAL,  # by hardware
    0x080: Held.POWER_BRAKE,
    0x100: Held.SETTING,  # display
    0x200: Held.POWER_CAP,  # of the board
}
_KNOWN = sum(_REASONS)


class GpuCondition:
    """Reads the condition of the GPU of a handle; `nvml` is the module pynvml."""

    def __init__(self, nvml: Any, handle: Any):
        self._nvml = nvml
        self._handle = handle
        self._seen_us = 0  # until when it is known who computed, on the driver's clock

    def read(self) -> Condition:
        power_mw = self._ask("nvmlDeviceGetPowerUsage")
        return Condition(
            clock_mhz=_number(self._ask("nvmlDeviceGetClockInfo", _SM)),
            temperature_c=_number(self._ask("nvmlDeviceGetTemperature", _GPU)),
            power_w=None if power_mw is None else power_mw / 1000,
            held=self._held(),
            others=self._others(),
        )

    def _held(self) -> tuple[str, ...] | None:
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # of an older driver
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if bits is None else held_by(bits)

    def _others(self) -> int | None:
        """How many have computed since this was asked last; where nobody tells who did, how many
        have the device."""
        present = self._ask("nvmlDeviceGetComputeRunningProcesses")
        if present is None:
            return None
        found = others_among([process.pid for process in present])
        if not found:
            return None if found is None else 0
        at_work = self._at_work()
        return len(found if at_work is None else found & at_work)

    def _at_work(self) -> set[int] | None:
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, self._seen_us)
        except self._nvml.NVMLError as error:
            return set() if error.value in _NOBODY else None
        self._seen_us = max((sample.timeStamp for sample in samples), default=self._seen_us)
        return {sample.pid for sample in samples if sample.smUtil > 0}

    def _ask(self, name: str, *arguments: object) -> Any:
        """What a function of NVML answers; None where driver, device or package have it not."""
        function = getattr(self._nvml, name, None)
        if function is None:
            return None
        try:
            return function(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None


def open_gpu(uuid: str) -> GpuCondition | None:
    """The GPU of this UUID, as torch or nvidia-smi spells it; None where NVML is not to be had."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        name = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
        return GpuCondition(pynvml, pynvml.nvmlDeviceGetHandleByUUID(name))
    except pynvml.NVMLError:
        return None


def held_by(bits: int) -> tuple[str, ...]:
    """Why a clock is not higher, from the bits of NVML."""
    known = [reason for bit, reason in _REASONS.items() if bits & bit]
    return tuple(dict.fromkeys([*known, *([Held.OTHER] if bits & ~_KNOWN else [])]))


def _number(told: Any) -> float | None:
    return None if told is None else float(told)
