"""The NVIDIA GPUs of this machine that a session would see, as `nvidia-smi` names them.

Sessions number GPUs as the PCI bus does (CUDA_ORDER), and so does nvidia-smi: an index means the
same GPU to both.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace

from collector.errors import HostFault

CUDA_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_FIELDS = "index,name,uuid,driver_version"
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """`index` is the number that a session gives it."""

    index: int
    name: str
    uuid: str
    driver: str


def list_gpus() -> tuple[Gpu, ...]:
    """The GPUs that this process may use. HostFault, with the remedy, where there is none."""
    found = visible(parse(_nvidia_smi()), os.environ.get(_VISIBLE))
    if not found:
        raise HostFault(f"backend cuda: {_VISIBLE}={os.environ.get(_VISIBLE)!r} leaves no GPU")
    return found


def parse(text: str) -> tuple[Gpu, ...]:
    """The GPUs in what `nvidia-smi --query-gpu` printed. Raises HostFault where it names none."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    found = [Gpu(int(row[0]), *row[1:]) for row in rows if len(row) == 4 and row[0].isdigit()]
    if not found:
        raise HostFault(f"backend cuda: nvidia-smi lists no GPU: {' '.join(text.split())[:300]}")
    return tuple(found)


def visible(found: Sequence[Gpu], variable: str | None) -> tuple[Gpu, ...]:
    """Those that CUDA_VISIBLE_DEVICES leaves, numbered anew. As CUDA does it: an entry is an index
    or the beginning of a UUID, and nothing after an entry that is neither is seen."""
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


def _nvidia_smi() -> str:
    command = shutil.which("nvidia-smi")
    if command is None:
        raise HostFault("backend cuda: nvidia-smi is not on PATH, so no GPU can be listed")
    query = [command, f"--query-gpu={_FIELDS}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(
            query, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise HostFault(
            f"backend cuda: nvidia-smi does not respond within {_PATIENCE_S:g} s: "
            "the driver or a GPU hangs"
        ) from error
    except OSError as error:
        raise HostFault(f"backend cuda: {command} cannot be run: {error.strerror}") from error
    return answer.stdout or answer.stderr
