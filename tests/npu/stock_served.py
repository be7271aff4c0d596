"""`python -m tests.npu.stock_served [RELEASE...]`: writes anew what sessions of a serving stack
call, of the kernels that CANN and vLLM-Ascend both have (`stock_calls/*_served.txt`).

The wheels of a release as they are, its own headers and library of custom operators among them,
decide which function that is; its own extension makes the call. Environments as in
`stock_extension`: by hand. Read the difference before it is committed.
"""

import ctypes
import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

from tests.npu.fakecann.build import build, environment
from tests.npu.stock_extension import FOLDER, STACKS, installed

_ROOT = Path(__file__).parents[2]
_INSIDE, _ROWS = "--inside", "--rows"


def main(arguments: list[str]) -> int:
    """Record the releases named, or all."""
    if arguments[:1] == [_INSIDE]:
        return _record(arguments[1], Path(arguments[2]))
    if arguments[:1] == [_ROWS]:
        return _call_rows(Path(arguments[1]), Path(os.environ["FAKE_CANN_LOG"]))
    for release in arguments or STACKS:
        folder = installed(release)
        python = folder / "python" / "bin" / "python"
        inside = [python, "-m", "tests.npu.stock_served", _INSIDE, release, folder / "site"]
        subprocess.run(inside, cwd=_ROOT, check=True)
    return 0


def served_path(release: str) -> Path:
    return FOLDER / f"{release}_served.txt"


def _record(release: str, site: Path) -> int:
    """Run by the release's own Python: have the rows called in a process on the fake CANN."""
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            [sys.executable, "-m", "tests.npu.stock_served", _ROWS, str(site)],
            env=environment(build(site), log=Path(scratch) / "calls"),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    served_path(release).write_text("".join(f"{line.removeprefix('| ')}\n" for line in lines))
    print(f"{release}: {len(lines)} lines")
    return 0


def _call_rows(site: Path, log: Path) -> int:
    """Each fixture row of each kernel that both have: its text, whose function was chosen, and the
    calls of CANN's functions that this made."""
    import torch
    import torch_npu

    from collector.measurement import Library
    from collector.ops.registry import all_ops
    from collector.replay.calls import NoOperator, NpuCalls
    from collector.replay.tensors import CaseTensors
    from tests.fixtures.op_rows import rows_alone
    from tests.npu.fakecann.calls import read_calls
    from tests.npu.golden import headline, is_own
    from tests.npu.replay_rows import Host

    torch_npu.npu.config.allow_internal_format = True
    torch.npu.set_device(0)  # type: ignore[attr-defined]
    del os.environ["FAKE_CANN_LOG"]
    host = Host(torch, torch_npu, log)
    _stand_in(torch, site / "vllm_ascend")
    (opp,) = (site / "vllm_ascend" / "_cann_ops_custom" / "vendors").glob("*")
    calls = NpuCalls(torch_npu, {"ASCEND_CUSTOM_OPP_PATH": str(opp)})
    for op in all_ops():
        for row in rows_alone(op.kernel) if op.npu.served else ():
            print(f"| {headline(row.case)}")
            try:
                launcher = calls.of(op, row.case)
            except NoOperator as refused:
                print(f"|   refused: {refused}")
                continue
            if launcher.library is not Library.VLLM_ASCEND:
                print(f"|   of {launcher.library}")
                continue
            call = launcher.build(row.case, CaseTensors("npu:0", 7, frozenset(), host.cast))
            host.synchronize()
            offset = log.stat().st_size
            launcher.run(*call.args, **call.kwargs)
            host.synchronize()
            for made in read_calls(log, offset):
                print(f"|   {'' if is_own(op.kernel, made) else '+ '}{made.text}")
    sys.stdout.flush()
    os._exit(0)  # the fake's end is not of interest


def _stand_in(torch: Any, package: Path) -> None:
    """Load the extension as the package does, whose import wants vllm."""

    def enable() -> None:
        extension = next(package.glob("vllm_ascend_C*.so"))
        ctypes.CDLL(str(extension.with_name("libvllm_ascend_kernels.so")), ctypes.RTLD_GLOBAL)
        torch.ops.load_library(str(extension))

    parent, utils = types.ModuleType("vllm_ascend"), types.ModuleType("vllm_ascend.utils")
    parent.__path__ = [str(package)]
    utils.enable_custom_op = enable  # type: ignore[attr-defined]
    sys.modules |= {"vllm_ascend": parent, "vllm_ascend.utils": utils}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
