"""Checks of this machine and of a store, each with a fix."""

import importlib.metadata
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from collector.codec.errors import BadInput, HostFault, StoreError
from collector.codec.text import GIB
from collector.host.machine import available_memory_bytes, this_cpu
from collector.host.stack import installed_torch, local_stack
from collector.model.stack import BACKENDS
from collector.store import open_store
from collector.store.probe import probe_store

_LEAST_MEMORY_BYTES = 4 * GIB
_LEAST_DISK_BYTES = 2 * GIB


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
    if importlib.util.find_spec("torch_npu") is None:
        yield Check("torch_npu", True, "not installed; only the npu backend needs it")
    else:
        found = f"{importlib.metadata.version('torch_npu')} with torch {torch or ''}"
        fix = "torch_npu aborts with a CUDA build of torch: install the CPU build of torch"
        yield Check("torch_npu", "+cu" not in (torch or ""), found, fix)
    cpu = this_cpu()
    yield Check("processor", True, f"{cpu.device} ({' '.join(cpu.flags) or 'no flags known'})")
    free_bytes = available_memory_bytes()
    if free_bytes is None:
        yield Check("memory", True, "this system does not report it")
    else:
        fix = "close other programs, or lower limits.memory_gb in the campaign"
        found = f"{free_bytes / GIB:.1f} GiB available"
        yield Check("memory", free_bytes >= _LEAST_MEMORY_BYTES, found, fix)
    folder = Path(tempfile.gettempdir())
    free_bytes = shutil.disk_usage(folder).free
    fix = f"free space in {folder}, or set TMPDIR to a folder with more space"
    found = f"{free_bytes / GIB:.1f} GiB free in {folder}"
    yield Check("disk", free_bytes >= _LEAST_DISK_BYTES, found, fix)


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
    for backend in BACKENDS:
        try:
            yield f"{backend}: {local_stack(backend).version_path}"
        except (BadInput, HostFault) as error:
            yield f"{backend}: {error}"
