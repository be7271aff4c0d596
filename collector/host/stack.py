"""The stack of this machine, found without importing torch, which takes seconds and gigabytes."""

import importlib.util
import os
import re
from collections.abc import Sequence
from pathlib import Path

from collector.codec.errors import BadInput, HostFault, NoDevice
from collector.codec.text import did_you_mean
from collector.host.cann import cann_runtime, cann_version
from collector.host.event_devices import EventDevices, find_event_devices
from collector.host.gpus import Gpu, list_gpus
from collector.host.kernel_libraries import find_kernel_libraries, installed_version
from collector.host.machine import this_cpu
from collector.host.npus import Board, Npu, board_of, cube_cores_of, device_name, list_npus
from collector.model.stack import BACKEND_SYNONYMS, BACKENDS, EVENTS, Stack, runtime_details

# Settings of a cpu session that keep the kernel's memory allocation out of the timed launches: part
# of the stack, since they change durations. Memory stays in one heap, where adjacent free blocks
# merge at once. Otherwise the C library before 2.38 leaves a fragment next to each aligned block,
# finds a freed block too small for the same request, and takes new memory for every launch in some
# processes and for none in others: a product of 77 million numbers by one took 8 ms or 450.
_TUNABLES = {"mmap_max": 0, "mxfast": 0, "tcache_count": 0, "trim_threshold": 1 << 40}
CPU_ALLOCATOR = {
    "GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in _TUNABLES.items())
}


def local_stack(backend: str, requested_device: str | None = None) -> Stack:
    """Return the stack that a session on this machine would run on. An NPU may have several names;
    `requested_device` selects one.

    Raises BadInput, with the remedy, if torch or CANN is missing, NoDevice if there is no device,
    HostFault if it cannot be used."""
    torch = installed_torch()
    if torch is None:
        raise BadInput("torch is not installed: pip install 'opmeter[cpu]'")
    if backend == "cpu":
        return cpu_stack(torch)
    if backend == "cuda":
        return cuda_stack(torch, list_gpus())
    if backend == "npu":
        found = list_npus()
        cores = cube_cores_of(found[0])
        return npu_stack(torch, found, board_of(found[0]), cores, requested_device)
    if backend == EVENTS:
        return event_stack(torch, find_event_devices())
    hint = did_you_mean(backend, BACKENDS, BACKEND_SYNONYMS)
    raise BadInput(f"backend: expected one of {', '.join(BACKENDS)}, got {backend!r}{hint}")


def cpu_stack(torch: str) -> Stack:
    """Return the stack of all cores of this machine with a version of torch."""
    cpu = this_cpu()
    allocator = " ".join(f"{name}={value}" for name, value in sorted(CPU_ALLOCATOR.items()))
    details = {"allocator": allocator, "flags": " ".join(cpu.flags), "threads": str(cpu.threads)}
    return Stack(device=cpu.device, torch=torch, details=tuple(sorted(details.items())))


def installed_torch() -> str | None:
    """Return torch's version with its local suffix (`2.13.0+cu130`), read from its own file."""
    return _version_in_file("torch", r"^__version__\s*=\s*['\"]([^'\"]+)")


def _version_in_file(package: str, pattern: str) -> str | None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("version.py").read_text()
    except OSError:
        return None
    match = re.search(pattern, text, flags=re.MULTILINE)
    return match[1] if match else None


def gpu_device(name: str) -> str:
    """Return `CUDA_{name}`, in characters that a folder name may have: the device of a stack."""
    return "CUDA_" + re.sub(r"[^A-Za-z0-9.-]+", "_", name).strip("_")


def device_serial(backend: str, index: int) -> str | None:
    """Return the serial number of a device; a cpu has none, and a device of torch reports none.
    Raises HostFault if there is no such device."""
    if backend in ("cpu", EVENTS):
        return None
    found = list_npus() if backend == "npu" else list_gpus()
    if index >= len(found):
        raise HostFault(f"expected {backend} device {index}, but this process may use {len(found)}")
    device = found[index]
    return board_of(device).serial if isinstance(device, Npu) else device.uuid


def device_locks(backend: str) -> list[str]:
    """Return a lock name for each device that this process may use, from the device's own name: its
    index differs between processes."""
    if backend == "npu":
        return [f"npu{npu.physical}" for npu in list_npus()]
    if backend == EVENTS:
        found = find_event_devices()
        return [f"{found.kind}{index}" for index in range(found.count)]
    return [gpu.uuid for gpu in list_gpus()] if backend == "cuda" else [f"{backend}0"]


def check_devices(backend: str, count: int) -> None:
    """Raise NoDevice if this process may use fewer than `count` devices; a cpu has any number."""
    if backend == "cpu":
        return
    found = len(device_locks(backend))
    if found < count:
        raise NoDevice(
            f"backend {backend}: expected {count} devices, one for each rank of this node, got "
            f"{found}; reduce the number of ranks"
        )


def cuda_stack(torch: str, found: Sequence[Gpu]) -> Stack:
    """Return the stack of GPUs of one model. Raises HostFault if there are two models."""
    _check_one_model("GPU", {gpu.name for gpu in found}, "CUDA_VISIBLE_DEVICES")
    return Stack(device=gpu_device(found[0].name), torch=torch, driver=found[0].driver)


def event_stack(torch: str, found: EventDevices) -> Stack:
    """Return the stack of a device of torch that is timed by its events."""
    details = {"extensions": found.extensions, "timed_by": EVENTS, "torch_device": found.kind}
    return Stack(device=found.device, torch=torch, details=tuple(sorted(details.items())))


def _check_one_model(kind: str, models: set[str], variable: str) -> None:
    if len(models) > 1:
        found = ", ".join(sorted(models))
        raise HostFault(f"expected one model of {kind}, got {found}: choose with {variable}")


def npu_stack(
    torch: str,
    found: Sequence[Npu],
    board: Board,
    cube_cores: int | None,
    requested_device: str | None,
) -> Stack:
    """Return the stack of NPUs of one model; `board` and `cube_cores` are those of the first NPU.
    Raises HostFault for two models or a slice of one, BadInput if CANN, torch_npu or the device's
    name is unknown."""
    models = {f"{npu.name} with {npu.memory_gb} GB" for npu in found}
    _check_one_model("NPU", models, "ASCEND_RT_VISIBLE_DEVICES")
    torch_npu, cann = installed_version("torch_npu", "torch-npu"), cann_version()
    if torch_npu is None:
        raise BadInput("torch_npu is not installed: pip install torch_npu of torch's version")
    if cann is None:
        raise BadInput(
            "the version of CANN is unknown: source /usr/local/Ascend/ascend-toolkit/set_env.sh"
        )
    vllm = installed_vllm()
    details = (*runtime_details(cann_runtime()), *find_kernel_libraries(os.environ, vllm))
    return Stack(
        device=device_name(board.soc, found[0].memory_gb, cube_cores, requested_device),
        torch=torch,
        driver=board.driver,
        firmware=board.firmware,
        cann=cann,
        torch_npu=torch_npu,
        vllm=vllm,
        details=tuple(sorted(details)),
    )


def installed_vllm() -> str:
    """Return the version of vllm_ascend; empty if it is not installed."""
    return installed_version("vllm_ascend", "vllm-ascend") or ""
