"""The stack of this machine, found without importing torch: that takes seconds and gigabytes."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

from collector.errors import BadInput
from collector.host.cpu import this_cpu
from collector.stack import Stack

# What a cpu session sets, so that page faults are not measured: part of the stack, since it
# changes numbers.
CPU_ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "1099511627776",
}


def local_stack(backend: str) -> Stack:
    """The stack that a session on this machine would run on.

    Raises BadInput, with the remedy, where torch or the device is missing.
    """
    torch = installed_torch()
    if torch is None:
        raise BadInput("torch is not installed: pip install 'opmeter[cpu]'")
    if backend == "cpu":
        return cpu_stack(torch)
    if backend == "cuda":
        return _cuda_stack(torch)
    raise BadInput(f"backend {backend!r} cannot be described here: cpu or cuda is wanted")


def cpu_stack(torch: str) -> Stack:
    """All cores of this machine with a version of torch."""
    cpu = this_cpu()
    allocator = " ".join(f"{name}={value}" for name, value in sorted(CPU_ALLOCATOR.items()))
    details = {
        "allocator": allocator,
        "flags": " ".join(cpu.flags),
        "threads": str(cpu.threads),
    }
    return Stack(device=cpu.device, torch=torch, details=tuple(sorted(details.items())))


def installed_torch() -> str | None:
    """torch's version with its local suffix (`2.13.0+cu130`), read from its own file."""
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


def gpu_count() -> int:
    """The NVIDIA GPUs of this machine. Raises BadInput where there is none."""
    return len(_gpus())


def _cuda_stack(torch: str) -> Stack:
    name, driver = _gpus()[0]
    device = re.sub(r"[^A-Za-z0-9.-]+", "_", name).strip("_")
    return Stack(device=f"CUDA_{device}", torch=torch, driver=driver)


def _gpus() -> list[tuple[str, str]]:
    """Name and driver of each GPU."""
    command = shutil.which("nvidia-smi")
    if command is None:
        raise BadInput("backend cuda: nvidia-smi is not on PATH, so no GPU can be named")
    query = [command, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    rows = [line.split(",") for line in answer.stdout.splitlines() if line.count(",") == 1]
    if not rows:
        raise BadInput(f"backend cuda: nvidia-smi names no GPU: {answer.stderr.strip()}")
    return [(name.strip(), driver.strip()) for name, driver in rows]
