"""What this machine's processor and memory are, read from the kernel's own files."""

import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from collector.host.cgroups import CGROUPS, MEMBERSHIP, group_folders, text_of

# The instruction sets that choose another kernel in torch or its libraries.
_FLAGS_THAT_MATTER = frozenset(
    {
        *("avx2", "fma", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"),
        *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16"),
        *("asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2"),
    }
)


@dataclass(frozen=True, slots=True)
class Cpu:
    """A processor as a device: all the cores this process may use, within its container's quota."""

    model: str
    threads: int
    flags: tuple[str, ...]

    @property
    def device(self) -> str:
        """`CPU_{model}_{threads}t`, in the letters a folder may have."""
        name = re.sub(r"\((R|TM|C)\)|\bCPU\b|@.*", " ", self.model, flags=re.IGNORECASE)
        name = re.sub(r"[^A-Za-z0-9.-]+", "_", name).strip("_") or "unknown"
        return f"CPU_{name}_{self.threads}t"


def this_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> Cpu:
    """The processor of this machine; what the kernel does not tell is left out."""
    fields = _first_processor(cpuinfo)
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return Cpu(
        model=_model(fields),
        threads=usable_threads(),
        flags=tuple(sorted(_FLAGS_THAT_MATTER.intersection(flags))),
    )


def usable_threads(membership: Path = MEMBERSHIP, cgroups: Path = CGROUPS) -> int:
    """The cores this process may run on, all at once and all the time: a container may see every
    core of its machine, and have time on one of them."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    # Whole cores alone: a thread beyond them would have every operator stopped in its middle.
    whole = (int(quota) for quota in _quotas(membership, cgroups))
    return max(1, min([cores, *whole]))


def _quotas(membership: Path, cgroups: Path) -> Iterator[float]:
    """How many cores' time each control group around this process has, where it is limited."""
    for version, folder in group_folders("cpu", membership, cgroups):
        if version == 2:
            allowed, _, period = text_of(folder / "cpu.max").strip().partition(" ")
        else:
            allowed = text_of(folder / "cpu.cfs_quota_us").strip()
            period = text_of(folder / "cpu.cfs_period_us").strip()
        if allowed.isdigit() and period.isdigit() and int(period):
            yield int(allowed) / int(period)


def _first_processor(cpuinfo: Path) -> dict[str, str]:
    try:
        text = cpuinfo.read_text()
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.split("\n\n", 1)[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def _model(fields: dict[str, str]) -> str:
    if fields.get("model name"):
        return fields["model name"]
    parts = (fields.get("CPU implementer", ""), fields.get("CPU part", ""))
    return "-".join(filter(None, (platform.machine(), *parts)))
