"""Differences between devices when a case is replayed; everything else is shared.

`NpuDevice` imports torch_npu only when it is created.
"""

import ctypes
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from collector.codec.errors import BadInput
from collector.codec.text import GIB, MIB
from collector.host.cann import FAKE_MARK, KEYS_SHIM, RUNTIME_LIBRARY, is_loaded
from collector.host.cores import ThreadWaits
from collector.host.gpus import open_gpu
from collector.host.machine import this_cpu
from collector.host.npus import device_names, slice_problem
from collector.host.rate_limit import RateLimited
from collector.host.space import available_memory_bytes
from collector.host.stack import gpu_device
from collector.model.case import Case
from collector.model.measurement import Condition
from collector.model.stack import Runtime
from collector.model.vocabulary import FRACTAL_NZ, NC1HWC0
from collector.ops.spec import OpSpec
from collector.replay.calls import Calls, Launcher, NpuCalls, ReferenceCalls
from collector.replay.kineto import SENTINEL_OPERATOR, Event, kernel_events, operator_events
from collector.replay.repeats import Watcher
from collector.replay.spec import SessionSpec
from collector.replay.tensors import emulated_dtypes


class Device:
    """A device on which a session replays cases; by default plain torch, recorded by its own
    profiler."""

    backend: str  # cpu | cuda | npu
    name: str  # torch's name: cpu, cuda:0
    runtime = Runtime.REAL  # the outputs of a fake one are garbage
    emulated: frozenset[str] = frozenset()  # 16-bit dtypes that it computes in float32
    cache_bytes: int  # size of the last level; a flush writes more than that
    calls: Calls = ReferenceCalls()  # how it launches operators
    compiles = False  # whether the first launch of a kernel may take far longer than the next
    ticks = True  # whether a mark opens every launch, or only those after a flush
    mark_dtype = torch.uint8
    clock: "HostClock | None" = None  # times passes as a whole

    def synchronize(self) -> None:
        """Wait until everything launched has run."""

    def mark(self, tensor: Any) -> None:
        """Issue exactly one launch, whose shape identifies a mark; while the clock runs, none."""
        if self.clock is not None and self.clock.is_running:
            self.clock.mark(tensor)
        else:
            torch.bitwise_not(tensor)

    def cast(self, tensor: Any, format: str) -> Any:
        """Return the tensor in a slot's format."""
        return tensor

    def free_bytes(self) -> int | None:
        """Return the memory available to a case; None if unknown."""
        return available_memory_bytes()

    def release(self) -> None:
        """Release the memory that is cached for the next case."""

    def condition(self) -> Condition | None:
        """Return the condition of the device; None if it does not report one, or if the last
        reading is too recent."""
        return None

    def watcher(self) -> Watcher | None:
        """Return what reports launch by launch who else uses the device; None if nothing does."""
        return None


def emulated_by(device: Device, op: OpSpec) -> frozenset[str]:
    """Return the dtypes that an operator computes in float32 on a device: none if it only moves
    data."""
    return frozenset() if op.moves_data else device.emulated


def check_gpu(spec: SessionSpec, name: str) -> None:
    """Raise BadInput if a GPU of this name is not the device of the session's stack."""
    if spec.stack and gpu_device(name) != spec.stack.device:
        raise BadInput(
            f"cuda device {spec.device}: expected {spec.stack.device}, but torch reports {name!r}"
        )


class HostClock:
    """Launches that the host's clock times as a whole, and marks among them, which launch nothing.

    It is for what a profiler would make longer: a pass of a model calls many operators."""

    def __init__(self) -> None:
        self._noted: list[Event] | None = None

    @property
    def is_running(self) -> bool:
        return self._noted is not None

    def start(self) -> None:
        self._noted = []

    def stop(self) -> list[Event]:
        """Return the launches and marks since the start."""
        found, self._noted = self._noted or [], None
        return found

    def mark(self, tensor: Any) -> None:
        self._note(SENTINEL_OPERATOR, time.time_ns(), 0, tuple(tensor.shape))

    def timed(self, name: str, launch: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        began_ns, at_ns = time.time_ns(), time.perf_counter_ns()
        result = launch(*args, **kwargs)
        self._note(name, began_ns, time.perf_counter_ns() - at_ns)
        return result

    def _note(
        self, name: str, start_ns: int, took_ns: int, shape: tuple[int, ...] | None = None
    ) -> None:
        assert self._noted is not None, f"{name}: the clock is not running"
        if self._noted:  # events are in order of their start
            start_ns = max(start_ns, self._noted[-1].start_ns + 1)
        self._noted.append(Event(name, start_ns, took_ns, shape))


class _ClockedPasses(ReferenceCalls):
    """Launches in plain torch; passes are timed by a clock."""

    def __init__(self, clock: HostClock):
        self._clock = clock

    def of(self, op: OpSpec, case: Case) -> Launcher:
        launcher = super().of(op, case)
        if not op.is_pass:
            return launcher
        run = partial(self._clock.timed, case.kernel_type, launcher.run)
        return Launcher(launcher.build, run, launcher.library)


_CPU_CLOCK_KHZ = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")


class CpuDevice(Device):
    """All cores of a machine, or `threads` of them."""

    backend = "cpu"
    name = "cpu"
    recorded: str | None = None

    def __init__(self, threads: int):
        cpu = this_cpu()
        self.clock = clock = HostClock()
        self.calls = _ClockedPasses(clock)
        self._threads = threads or cpu.threads
        torch.set_num_threads(self._threads)
        self.emulated = emulated_dtypes(cpu.flags)
        self.cache_bytes = last_level_cache_bytes()
        zones = Path("/sys/class/thermal").glob("thermal_zone*")
        packages = [zone / "temp" for zone in zones if "pkg_temp" in (zone / "type").read_text()]
        self._temperature = packages[0] if packages else None

    def events(self, raw: Sequence[Any]) -> list[Event]:
        """Return what ran on the device, in its order, from the profiler's raw events."""
        return operator_events(raw)

    def release(self) -> None:
        libc = ctypes.CDLL(None)
        if hasattr(libc, "malloc_trim"):
            libc.malloc_trim(0)

    def condition(self) -> Condition | None:
        clock = _thousandths(_CPU_CLOCK_KHZ)
        temperature = _thousandths(self._temperature) if self._temperature else None
        if clock is temperature is None:
            return None
        return Condition(clock_mhz=clock, temperature_c=temperature)

    def watcher(self) -> Watcher | None:
        return ThreadWaits(threads=self._threads)


class Accelerator(Device):
    """A GPU or an NPU, by torch's index in torch's module of its kind."""

    def __init__(self, module: Any, index: int):
        if index >= module.device_count():
            raise BadInput(
                f"expected {self.backend} device {index}, but torch reports "
                f"{module.device_count()} devices"
            )
        self._module, self._index, self.name = module, index, f"{self.backend}:{index}"

    def synchronize(self) -> None:
        self._module.synchronize(self._index)

    def free_bytes(self) -> int | None:
        free, _ = self._module.mem_get_info(self._index)
        held = self._module.memory_reserved(self._index)
        return int(free + held - self._module.memory_allocated(self._index))

    def release(self) -> None:
        self._module.empty_cache()


class CudaDevice(Accelerator):
    """One GPU. Operators are recorded as well as kernels, since only operators have shapes."""

    backend = "cuda"
    recorded: str | None = "cuda"

    def __init__(self, index: int):
        super().__init__(torch.cuda, index)
        torch.cuda.set_device(index)
        properties = torch.cuda.get_device_properties(index)
        self.cache_bytes = properties.L2_cache_size
        gpu = open_gpu(str(getattr(properties, "uuid", "")))  # not every torch release has a uuid
        self._condition = RateLimited(gpu.read) if gpu else None

    def condition(self) -> Condition | None:
        """Return a reading, not at every call: a query takes about as long as a case."""
        return self._condition.read() if self._condition else None

    def events(self, raw: Sequence[Any]) -> list[Event]:
        return kernel_events(raw, torch.autograd.DeviceType.CUDA)


KinetoDevice = CpuDevice | CudaDevice  # devices that torch's own profiler records


def open_kineto_device(spec: SessionSpec) -> KinetoDevice:
    """Return the CPU or GPU of a session. Raises BadInput if it does not exist, or is another
    device."""
    if spec.backend == "cpu":
        return CpuDevice(spec.threads)
    if spec.backend == "cuda":
        device = CudaDevice(spec.device)
        check_gpu(spec, torch.cuda.get_device_name(spec.device))
        return device
    raise BadInput(f"backend: expected cpu, cuda or npu, got {spec.backend!r}")


def last_level_cache_bytes(caches: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Return the size of the largest cache that the kernel reports; 64 MiB if it reports none."""
    sizes = [_cache_bytes(path.read_text()) for path in caches.glob("index*/size")]
    return max(sizes, default=64 * MIB)


def _cache_bytes(text: str) -> int:
    """Return bytes for `491520K`."""
    number, unit = text.strip()[:-1], text.strip()[-1:]
    factors = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(number) * factors[unit] if unit in factors else int(text)


def _thousandths(path: Path) -> float | None:
    """Return the number of a sensor's file, divided by 1000; None if it cannot be read."""
    try:
        return int(path.read_text()) / 1000
    except (OSError, ValueError):
        return None


# One Ascend NPU as a device, through torch_npu.
#
# A process aborts without a message if torch_npu is imported with a CUDA build of torch: both
# register the same allocator keys. So this is checked before the import.

_ACL_FORMATS = {NC1HWC0: 3, FRACTAL_NZ: 29}  # acl/acl_base.h
# Used if torch_npu does not report the L2 size, or reports an impossible one: the size of the
# largest part, so that a flush is complete on every part.
_L2_BYTES = 192 * MIB


class NpuDevice(Accelerator):
    """One NPU, by torch's index. Launches are recorded by msprof from outside."""

    backend = "npu"
    compiles = True  # the first launch of a kernel: about 13 s were observed
    ticks = False
    mark_dtype = torch.float32

    def __init__(self, spec: SessionSpec):
        torch_npu = import_torch_npu()
        index = spec.device
        super().__init__(torch.npu, index)
        properties = torch.npu.get_device_properties(index)
        # Not every release reports the cores.
        cores = int(getattr(properties, "cube_core_num", 0)) or None
        memory_gb = properties.total_memory / GIB
        check_npu(spec, torch.npu.get_device_name(index), memory_gb, cores)
        self._format_cast = torch_npu.npu_format_cast
        torch.npu.set_device(index)
        # Otherwise a cast to a blocked format silently leaves the tensor unchanged.
        torch_npu.npu.config.allow_internal_format = True
        self.calls = NpuCalls(torch_npu)
        self.runtime = Runtime.FAKE if is_fake_runtime() else Runtime.REAL
        reported_bytes = int(getattr(properties, "L2_cache_size", 0))
        self.cache_bytes = reported_bytes if reported_bytes >= MIB else _L2_BYTES

    def cast(self, tensor: Any, format: str) -> Any:
        number = _ACL_FORMATS.get(format)
        return tensor if number is None else self._format_cast(tensor, number)

    def mark(self, tensor: Any) -> None:
        torch.neg(tensor)


def check_npu(
    spec: SessionSpec, soc: str, memory_gb: float | None = None, cube_cores: int | None = None
) -> None:
    """Raise BadInput if an NPU of this name, memory and cores is known not to be the device of
    the session's stack, or is a part of a chip."""
    if fault := slice_problem(soc, cube_cores):
        raise BadInput(f"npu device {spec.device}, as torch reports it: {fault}")
    names = device_names(soc, memory_gb, cube_cores)
    if spec.stack and names and spec.stack.device not in names:
        raise BadInput(
            f"npu device {spec.device}: expected {spec.stack.device}, but torch reports "
            f"{soc!r}, {' or '.join(names)}"
        )


def import_torch_npu() -> Any:
    """Import torch_npu; raise BadInput with a hint if it cannot be imported here."""
    cuda = torch.version.cuda
    if cuda is not None and not is_loaded(KEYS_SHIM):
        raise BadInput(
            f"this torch ({torch.__version__}) is a CUDA build, with which torch_npu aborts the "
            "process: install torch's CPU build, from https://download.pytorch.org/whl/cpu"
        )
    try:
        import torch_npu
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise BadInput(
            f"torch_npu cannot be imported: {reason}; pip install torch_npu of torch's version, "
            "and source /usr/local/Ascend/ascend-toolkit/set_env.sh"
        ) from error
    return torch_npu


def is_fake_runtime() -> bool:
    """Return whether the CANN in this process is the fake one of the tests, whose outputs are
    garbage.

    It is identified by a symbol of the loaded library: an environment variable could be left over.
    """
    return is_loaded(FAKE_MARK, RUNTIME_LIBRARY)
