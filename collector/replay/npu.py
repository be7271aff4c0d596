"""One Ascend NPU as a device, through torch_npu.

A process aborts, with no word to read, where torch_npu comes beside a CUDA build of torch: both
register the same allocator keys. So that is looked at before the import.
"""

import ctypes
import os
from typing import Any

import torch

from collector.condition import Condition
from collector.errors import BadInput
from collector.host.cann import FAKE_MARK, RUNTIME_LIBRARY
from collector.host.npu_condition import open_npu
from collector.host.npu_names import device_names, slice_of_a_chip
from collector.host.sparing import Sparing
from collector.replay.calls import Calls, NpuCalls
from collector.replay.repeats import Watcher
from collector.replay.spec import SessionSpec
from collector.stack import Runtime
from collector.units import GIB, MIB
from collector.vocabulary import FRACTAL_NZ, NC1HWC0

_ACL_FORMATS = {NC1HWC0: 3, FRACTAL_NZ: 29}  # acl/acl_base.h
_SHIM = "opmeter_keys_shim"  # and what keeps torch_npu and a CUDA build apart there
# Where torch_npu does not tell, or tells what no L2 is: that of the largest part, so that a flush
# is one everywhere.
_L2_BYTES = 192 * MIB


class NpuDevice:
    """One NPU, by the index that torch gives it. Launches are recorded by msprof from outside."""

    backend = "npu"
    emulated: frozenset[str] = frozenset()
    compiles = True  # the first launch of a kernel: about 13 s were seen
    ticks = False
    mark_dtype = torch.float32

    def __init__(self, spec: SessionSpec):
        torch_npu = import_torch_npu()
        index = spec.device
        if index >= torch.npu.device_count():
            raise BadInput(
                f"expected npu device {index}, but torch reports {torch.npu.device_count()} devices"
            )
        properties = torch.npu.get_device_properties(index)
        # Not every release tells the cores.
        cores = int(getattr(properties, "cube_core_num", 0)) or None
        memory_gb = properties.total_memory / GIB
        check_npu(spec, torch.npu.get_device_name(index), memory_gb, cores)
        self.name = f"npu:{index}"
        self._index = index
        self._format_cast = torch_npu.npu_format_cast
        torch.npu.set_device(index)
        # Otherwise a cast into blocks leaves the tensor as it is, and says nothing.
        torch_npu.npu.config.allow_internal_format = True
        self.calls: Calls = NpuCalls(torch_npu)
        self.runtime = Runtime.FAKE if is_fake_runtime() else Runtime.REAL
        told_bytes = int(getattr(properties, "L2_cache_size", 0))
        self.cache_bytes = told_bytes if told_bytes >= MIB else _L2_BYTES
        npu = open_npu(index)
        self._condition = Sparing(npu.read) if npu else None

    def synchronize(self) -> None:
        torch.npu.synchronize(self._index)

    def cast(self, tensor: Any, format: str) -> Any:
        number = _ACL_FORMATS.get(format)
        return tensor if number is None else self._format_cast(tensor, number)

    def mark(self, tensor: Any) -> None:
        torch.neg(tensor)

    def free_bytes(self) -> int | None:
        free, _ = torch.npu.mem_get_info(self._index)
        held = torch.npu.memory_reserved(self._index)
        return int(free + held - torch.npu.memory_allocated(self._index))

    def release(self) -> None:
        torch.npu.empty_cache()

    def condition(self) -> Condition | None:
        """Now and then: npu-smi takes about as long as a case."""
        return self._condition.read() if self._condition else None

    def watcher(self) -> Watcher | None:
        return None


def check_npu(
    spec: SessionSpec, soc: str, memory_gb: float | None = None, cube_cores: int | None = None
) -> None:
    """Raises BadInput where an NPU of this name, memory and cores is known, and not as the device
    that the results are for, or is a part of one."""
    if fault := slice_of_a_chip(soc, cube_cores):
        raise BadInput(f"npu device {spec.device}, as torch reports it: {fault}")
    names = device_names(soc, memory_gb, cube_cores)
    if spec.stack and names and spec.stack.device not in names:
        raise BadInput(
            f"npu device {spec.device}: expected {spec.stack.device}, but torch reports "
            f"{soc!r}, {' or '.join(names)}"
        )


def import_torch_npu() -> Any:
    """torch_npu, or BadInput with what to do where it cannot be imported here."""
    cuda = torch.version.cuda
    if cuda is not None and not _is_loaded(_SHIM):
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
    """Whether the CANN in this process is the one of the tests, whose outputs are garbage.

    Known by a symbol of the loaded library: an environment variable could be left behind.
    """
    return _is_loaded(FAKE_MARK, RUNTIME_LIBRARY)


def _is_loaded(symbol: str, library: str | None = None) -> bool:
    """Whether a library that this process has loaded (None: any global one) has a symbol."""
    try:
        found = ctypes.CDLL(library, mode=os.RTLD_LAZY | (os.RTLD_NOLOAD if library else 0))
    except OSError:
        return False
    return hasattr(found, symbol)
