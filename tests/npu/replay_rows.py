"""Launch fixture rows through the stock torch_npu on the fake NPU, twice each, and write what was
recorded: `python -m tests.npu.replay_rows OUT ROW...`.

With OPMETER_STOCK_SITE set, the folder of a stack's unpacked wheels, vLLM-Ascend's own extension
and custom operators are those of the wheel, and calls are chosen as sessions choose them.

A row is `{kernel}:{number}`. OUT gets a JSON line when a row begins and one when it ends, so that a
row that kills the process is known.
"""

import ctypes
import importlib.util
import json
import os
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from collector.codec.errors import OpmeterError
from collector.engine.calls import read_calls
from collector.host import imports
from collector.model.case import Case
from collector.model.vocabulary import FRACTAL_NZ, NC1HWC0
from collector.ops.registry import find_operator
from collector.ops.spec import OpSpec
from tests.fixtures.op_rows import rows_alone

_ACL_FORMATS = {NC1HWC0: 3, FRACTAL_NZ: 29}
_LAUNCHES = 2
_SCHEMAS = Path(__file__).parent / "vllm_ascend_schemas.py"
STOCK_SITE = "OPMETER_STOCK_SITE"


@dataclass(frozen=True, slots=True)
class Host:
    """The requirements of a launch in this process."""

    torch: Any
    torch_npu: Any
    log: Path

    def synchronize(self) -> None:
        self.torch.npu.synchronize()

    def cast(self, tensor: Any, format: str) -> Any:
        number = _ACL_FORMATS.get(format)
        return tensor if number is None else self.torch_npu.npu_format_cast(tensor, number)


def main(out: Path, rows: list[str]) -> None:
    host = open_host(Path(os.environ["FAKE_CANN_LOG"]))
    with out.open("a") as file:
        for row in rows:
            _write(file, {"row": row, "begins": True})
            _write(file, {"row": row, **_replay(host, row)})
    sys.stdout.flush()
    os._exit(0)  # the exit of the fake is irrelevant, and takes long


def open_host(log: Path) -> Host:
    with imports.permanent():
        import torch
        import torch_npu

    torch_npu.npu.config.allow_internal_format = True
    torch.npu.set_device(0)
    # Only the runtime, which has opened it, may write there.
    del os.environ["FAKE_CANN_LOG"]
    if STOCK_SITE in os.environ:
        _load_extension(torch, Path(os.environ[STOCK_SITE]) / "vllm_ascend")
    elif _SCHEMAS.exists():
        spec = importlib.util.spec_from_file_location("vllm_ascend_schemas", _SCHEMAS)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.register(torch)
    return Host(torch, torch_npu, log)


def _load_extension(torch: Any, package: Path) -> None:
    """Load the extension as the package does, whose import requires vllm."""

    def enable() -> None:
        extension = next(package.glob("vllm_ascend_C*.so"))
        ctypes.CDLL(str(extension.with_name("libvllm_ascend_kernels.so")), ctypes.RTLD_GLOBAL)
        torch.ops.load_library(str(extension))

    parent, utils = types.ModuleType("vllm_ascend"), types.ModuleType("vllm_ascend.utils")
    parent.__path__ = [str(package)]
    utils.enable_custom_op = enable  # type: ignore[attr-defined]
    sys.modules |= {"vllm_ascend": parent, "vllm_ascend.utils": utils}


def _launcher(host: Host, op: OpSpec, case: Case) -> Any:
    """Return the function that launches a case: the declared one, or with a stack's own wheels the
    one that a session would choose."""
    from collector.replay.calls import Launcher, NpuCalls, resolve

    if STOCK_SITE not in os.environ:
        api = resolve(op.call, {"torch": host.torch, "torch_npu": host.torch_npu})
        return Launcher(op.npu_call, partial(op.npu.run, api))
    vendors = Path(os.environ[STOCK_SITE]) / "vllm_ascend" / "_cann_ops_custom" / "vendors"
    (opp,) = vendors.glob("*")
    environment = {"ASCEND_CUSTOM_OPP_PATH": str(opp), "LD_LIBRARY_PATH": f"{opp}/op_api/lib"}
    return NpuCalls(host.torch_npu, environment).of(op, case)


def _replay(host: Host, row: str) -> dict[str, Any]:
    """Return the calls of each launch and the outputs, or the error."""
    kernel, _, number = row.partition(":")
    op, case = find_operator(kernel), rows_alone(kernel)[int(number)].case
    assert op is not None
    try:
        launches, outputs, library = _launched(host, op, case)
    except OpmeterError as error:
        return {"error": str(error)}
    except Exception as error:  # any error of torch_npu about the call is the result
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"}
    return {"error": "", "launches": launches, "outputs": outputs, "library": library}


def _launched(host: Host, op: OpSpec, case: Case) -> tuple[list[list[str]], list[Any], str]:
    from collector.replay.cases import check_outputs
    from collector.replay.tensors import CaseTensors

    op.check(case, "npu")
    make = CaseTensors("npu:0", 7, frozenset(), host.cast)
    launcher = _launcher(host, op, case)
    call = launcher.build(case, make)
    launches: list[list[str]] = []
    outputs = None
    for _ in range(_LAUNCHES):
        host.torch.npu.manual_seed(0)  # the state of random numbers is an argument
        host.synchronize()
        offset = host.log.stat().st_size
        outputs = launcher.run(*call.args, **call.kwargs)
        host.synchronize()
        launches.append([call.text for call in read_calls(host.log, offset)])
    check_outputs(outputs, case, make.dtype)
    described = [_described(host, tensor) for tensor in _leaves(outputs)]
    return launches, described, str(launcher.library)


def _leaves(outputs: Any) -> Iterator[Any]:
    if isinstance(outputs, (tuple, list)):
        for output in outputs:
            yield from _leaves(output)
    else:
        yield outputs


def _described(host: Host, tensor: Any) -> Any:
    if tensor is None:
        return None
    return [list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]


def _write(file: IO[str], line: dict[str, Any]) -> None:
    file.write(json.dumps(line) + "\n")
    file.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
