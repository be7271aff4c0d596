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
    version = ".".join(map(str, sys.version_info[:3]))
    yield Check("python", sys.version_info >= (3, 11), version, "install Python 3.11 or newer")
    yield _check_import()
    yield _check_torch()
    yield _check_torch_npu()
    cpu = this_cpu()
    yield Check("processor", True, f"{cpu.device} ({' '.join(cpu.flags) or 'no flags known'})")
    yield _check_memory()
    yield _check_disk(Path(tempfile.gettempdir()))


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


def _check_import() -> Check:
    import collector

    here = Path(collector.__file__).parent
    fix = "another package named collector comes first: unset PYTHONPATH, or install opmeter last"
    return Check("package", (here / "model" / "vocabulary.py").exists(), str(here), fix)


def _check_torch() -> Check:
    version = installed_torch()
    fix = "pip install 'opmeter[cpu]' (choose the CPU build on pytorch.org first)"
    return Check("torch", version is not None, version or "not installed", fix)


def _check_torch_npu() -> Check:
    if importlib.util.find_spec("torch_npu") is None:
        return Check("torch_npu", True, "not installed; only the npu backend needs it")
    version = importlib.metadata.version("torch_npu")
    torch = installed_torch() or ""
    fix = "torch_npu aborts with a CUDA build of torch: install the CPU build of torch"
    return Check("torch_npu", "+cu" not in torch, f"{version} with torch {torch}", fix)


def _check_memory() -> Check:
    free_bytes = available_memory_bytes()
    if free_bytes is None:
        return Check("memory", True, "this system does not report it")
    fix = "close other programs, or lower limits.memory_gb in the campaign"
    found = f"{free_bytes / GIB:.1f} GiB available"
    return Check("memory", free_bytes >= _LEAST_MEMORY_BYTES, found, fix)


def _check_disk(folder: Path) -> Check:
    free_bytes = shutil.disk_usage(folder).free
    fix = f"free space in {folder}, or set TMPDIR to a folder with more space"
    found = f"{free_bytes / GIB:.1f} GiB free in {folder}"
    return Check("disk", free_bytes >= _LEAST_DISK_BYTES, found, fix)


def describe_stack() -> Iterator[str]:
    """Yield the stacks that this machine could measure on."""
    for backend in BACKENDS:
        try:
            yield f"{backend}: {local_stack(backend).version_path}"
        except (BadInput, HostFault) as error:
            yield f"{backend}: {error}"
