"""The NVIDIA GPUs of this machine that a session would see, as `nvidia-smi` names them.

Sessions number GPUs in the order of the PCI bus (CUDA_ORDER), and so does nvidia-smi: an index
means the same GPU to both.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from collector.codec.errors import HostFault, NoDevice
from collector.host.processes import others_among, tool_output
from collector.model.measurement import ClockLimit, Condition

CUDA_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_FIELDS = "index,name,uuid,driver_version"


@dataclass(frozen=True, slots=True)
class Gpu:
    """An NVIDIA GPU. `index` is its number in a session."""

    index: int
    name: str
    uuid: str
    driver: str


def list_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that this process may use. Raises NoDevice, with the remedy, if there is
    none."""
    query = (f"--query-gpu={_FIELDS}", "--format=csv,noheader")
    listed = tool_output("cuda", "nvidia-smi", *query)
    found = visible_gpus(parse_nvidia_smi(listed), os.environ.get(_VISIBLE))
    if not found:
        raise NoDevice(f"backend cuda: {_VISIBLE}={os.environ.get(_VISIBLE)!r} leaves no GPU")
    return found


def parse_nvidia_smi(text: str) -> tuple[Gpu, ...]:
    """Parse the output of `nvidia-smi --query-gpu`. Raises NoDevice if it lists no GPU."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    found = [Gpu(int(row[0]), *row[1:]) for row in rows if len(row) == 4 and row[0].isdigit()]
    if not found:
        raise NoDevice(f"backend cuda: nvidia-smi lists no GPU: {' '.join(text.split())[:300]}")
    return tuple(found)


def visible_gpus(found: Sequence[Gpu], variable: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES selects, numbered again. As in CUDA, an entry is an
    index or the beginning of a UUID, and entries after an invalid one are ignored."""
    if variable is None:
        return tuple(found)
    chosen: list[Gpu] = []
    for entry in variable.split(","):
        gpu = _named(found, entry.strip())
        if gpu is None:
            break
        if gpu in chosen:
            raise HostFault(f"{_VISIBLE}={variable!r} names GPU {gpu.index} twice")
        chosen.append(gpu)
    return tuple(replace(gpu, index=index) for index, gpu in enumerate(chosen))


def _named(found: Sequence[Gpu], entry: str) -> Gpu | None:
    if entry.startswith("MIG"):
        raise HostFault(f"{_VISIBLE}: expected a whole GPU, got the part {entry!r}")
    if entry.isdigit():
        matching = [gpu for gpu in found if gpu.index == int(entry)]
    else:
        matching = [gpu for gpu in found if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
    return matching[0] if len(matching) == 1 else None


# The condition of one NVIDIA GPU, as NVML reports it: the library of its driver, through the
# optional package nvidia-ml-py.
#
# Values that a device or a driver does not support are None; names and bits are those of NVIDIA's
# NVML API reference (R525 and R550: nvmlDeviceGetCurrentClocksThrottleReasons, since R535
# nvmlDeviceGetCurrentClocksEventReasons, with the same bits).

# NVML_CLOCK_SM and NVML_TEMPERATURE_GPU.
_SM, _GPU = 1, 0
# The package raises NVML_SUCCESS without a sample, the driver raises NVML_ERROR_NOT_FOUND.
_NO_SAMPLES = (0, 6)
_REASONS: Mapping[int, ClockLimit] = {
    0x001: ClockLimit.IDLE,
    0x002: ClockLimit.SETTING,  # application clocks
    0x004: ClockLimit.POWER_CAP,
    0x008: ClockLimit.SLOWDOWN,
    0x010: ClockLimit.SETTING,  # sync boost
    0x020: ClockLimit.THERMAL,  # by software
    0x040: ClockLimit.THERMAL,  # by hardware
    0x080: ClockLimit.POWER_BRAKE,
    0x100: ClockLimit.SETTING,  # display
    0x200: ClockLimit.POWER_CAP,  # of the board
}
_KNOWN = sum(_REASONS)


class GpuCondition:
    """Reads the condition of the GPU of a handle; `nvml` is the module pynvml."""

    def __init__(self, nvml: Any, handle: Any):
        self._nvml = nvml
        self._handle = handle
        self._seen_us = 0  # end of the last utilization sample, on the driver's clock

    def read(self) -> Condition:
        clock_mhz = self._query("nvmlDeviceGetClockInfo", _SM)
        temperature_c = self._query("nvmlDeviceGetTemperature", _GPU)
        power_mw = self._query("nvmlDeviceGetPowerUsage")
        bits = self._query("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # name in older drivers
            bits = self._query("nvmlDeviceGetCurrentClocksThrottleReasons")
        return Condition(
            clock_mhz=None if clock_mhz is None else float(clock_mhz),
            temperature_c=None if temperature_c is None else float(temperature_c),
            power_w=None if power_mw is None else power_mw / 1000,
            held=None if bits is None else held_by(bits),
            others=self._others(),
        )

    def _others(self) -> int | None:
        """Return how many other processes have computed since the last call; if the driver does not
        report that, how many have the device open."""
        present = self._query("nvmlDeviceGetComputeRunningProcesses")
        if present is None:
            return None
        found = others_among([process.pid for process in present])
        if not found:
            return None if found is None else 0
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, self._seen_us)
        except self._nvml.NVMLError as error:
            return 0 if error.value in _NO_SAMPLES else len(found)
        self._seen_us = max((sample.timeStamp for sample in samples), default=self._seen_us)
        return len(found & {sample.pid for sample in samples if sample.smUtil > 0})

    def _query(self, name: str, *arguments: object) -> Any:
        """Call a function of NVML; None if driver, device or package do not support it."""
        function = getattr(self._nvml, name, None)
        if function is None:
            return None
        try:
            return function(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None


def open_gpu(uuid: str) -> GpuCondition | None:
    """Open the GPU of this UUID, in the spelling of torch or nvidia-smi; None if NVML is not
    available."""
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
    """Return why a clock is not higher, from the bits of NVML."""
    known = [reason for bit, reason in _REASONS.items() if bits & bit]
    return tuple(dict.fromkeys([*known, *([ClockLimit.OTHER] if bits & ~_KNOWN else [])]))
