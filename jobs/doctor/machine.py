"""Checks of this machine and of a store, each with a fix."""

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from collector.codec.errors import BadInput, HostFault, StoreError
from collector.codec.text import GIB
from collector.host.cann import KEYS_SHIM, is_loaded
from collector.host.kernel_libraries import installed_version
from collector.host.machine import this_cpu
from collector.host.space import available_memory_bytes, free_bytes
from collector.host.stack import installed_torch, local_stack
from collector.model.plan import MOST_LAUNCHES
from collector.model.stack import PROFILED
from collector.replay.disk_space import most_launches
from collector.store import open_store
from collector.store.probe import probe_store

_LEAST_MEMORY_BYTES = 4 * GIB
_LEAST_DISK_BYTES = 4 * GIB  # twice the records of an NPU's session, and results


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check.

    `fix` is the action to take if it is not `ok`. A `skipped` check was not possible, and is no
    failure."""

    name: str
    ok: bool
    found: str
    fix: str = ""
    skipped: bool = False


def check_machine() -> Iterator[Check]:
    """Check Python, torch, memory, disk and the processor of this machine."""
    import collector

    version = ".".join(map(str, sys.version_info[:3]))
    yield Check("python", sys.version_info >= (3, 11), version, "install Python 3.11 or newer")
    here = Path(collector.__file__).parent
    fix = "another package named collector comes first: unset PYTHONPATH, or install opmeter last"
    yield Check("package", (here / "model" / "vocabulary.py").exists(), str(here), fix)
    torch = installed_torch()
    fix = "pip install 'opmeter[cpu]' (choose the CPU build on pytorch.org first)"
    yield Check("torch", torch is not None, torch or "not installed", fix)
    yield check_versions()
    cpu = this_cpu()
    yield Check("processor", True, f"{cpu.device} ({' '.join(cpu.flags) or 'no flags known'})")
    available = available_memory_bytes()
    if available is None:
        yield Check("memory", True, "this system does not report it")
    else:
        fix = "close other programs, or lower limits.memory_gb in the campaign"
        found = f"{available / GIB:.1f} GiB available"
        yield Check("memory", available >= _LEAST_MEMORY_BYTES, found, fix)
    yield _check_disk()


def check_versions() -> Check:
    """Check torch and torch_npu by their files: torch_npu aborts the process next to a CUDA build,
    and cannot be imported with the torch of another release."""
    torch, torch_npu = installed_torch() or "", installed_version("torch_npu", "torch-npu")
    if torch_npu is None:
        return Check("torch_npu", True, "not installed; only the npu backend needs it")
    found, release = f"{torch_npu} with torch {torch}", torch.partition("+")[0]
    if "+cu" in torch and not is_loaded(KEYS_SHIM):
        fix = "torch_npu aborts with a CUDA build of torch: install the CPU build of torch, "
        return Check("torch_npu", False, found, f"{fix}pip install torch=={release}+cpu")
    if torch and release.split(".")[:2] != torch_npu.split(".")[:2]:
        fix = f"pip install 'torch_npu=={release}.*', or the torch of torch_npu"
        return Check("torch_npu", False, f"{found}: expected the same release", fix)
    return Check("torch_npu", True, found)


def _check_disk() -> Check:
    """Check the space for the records of sessions. An NPU's are cut to the free space."""
    folder = Path(tempfile.gettempdir())
    free, launches = free_bytes(folder), most_launches(folder)
    found = f"{free / GIB:.1f} GiB free in {folder}"
    if launches < MOST_LAUNCHES:
        found += f": an NPU's session has {launches:,} launches there, not {MOST_LAUNCHES:,}"
    fix = f"free space in {folder}, or set TMPDIR to a folder with more space"
    return Check("disk", free >= _LEAST_DISK_BYTES, found, fix)


def check_store(url: str) -> Iterator[Check]:
    """Check whether a store is available, and whether it honours create-only writes."""
    try:
        result = probe_store(open_store(url))
    except BadInput as error:  # its message has the fix
        yield Check("store", False, str(error))
        return
    except StoreError as error:
        yield Check("store", False, str(error), "check the URL, the server and the credentials")
        return
    fix = "use another store, or merge with --single-writer from one place only"
    yield Check("store", result.create_only, result.message, fix)


def describe_stack() -> Iterator[str]:
    """Yield the stacks that this machine could measure on."""
    for backend in PROFILED:
        try:
            yield f"{backend}: {local_stack(backend).version_path}"
        except (BadInput, HostFault) as error:
            yield f"{backend}: {error}"
