"""What this machine's processor and memory are, read from the kernel's own files."""

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

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
    """A processor as a device: all the cores this process may use."""

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


def usable_threads() -> int:
    """The cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
