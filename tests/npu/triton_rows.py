"""Record what the functions of a released vLLM-Ascend launch for the fixture rows of its Triton
kernels (`stock_calls/{release}_triton.txt`): `python -m tests.npu.triton_rows [RELEASE...]`.

They run in the environment of `opmeter model record`, where a launch of Triton is recorded with all
its arguments instead of compiled (`collector/engine/site/opmeter_hooks.py`). `tests/stacks`
compares the files with another recording.
"""

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from collector.engine.calls import Recorded, read_calls
from collector.engine.cells import cells_of
from collector.engine.engine_process import EngineSettings, engine_environment
from collector.engine.environments import RELEASES, install_serving
from collector.engine.kernels import kernel_of
from collector.model.case import Case
from collector.ops.registry import all_ops, find_operator
from collector.ops.spec import Need
from collector.quality.identity import identity_of
from tests.fixtures.op_rows import rows_alone
from tests.npu.golden import headline
from tests.npu.stock_extension import FOLDER

_INSIDE = "--inside"
_ROOT = Path(__file__).parents[2]


def main(arguments: list[str]) -> int:
    """Record the releases named, or all."""
    if arguments[:1] == [_INSIDE]:
        return _record(Path(arguments[1]))
    for release in arguments or RELEASES:
        triton_path(release).write_text(recorded_triton(release))
        print(triton_path(release))
    return 0


def triton_path(release: str) -> Path:
    return FOLDER / f"{release}_triton.txt"


def recorded_triton(release: str) -> str:
    """Return what the functions of an installed release launch now."""
    serving = install_serving(release)
    with tempfile.TemporaryDirectory() as scratch:
        out, log = Path(scratch) / "launches", Path(scratch) / "calls"
        env = dict(engine_environment(EngineSettings(release, ()), serving, log))
        env["PYTHONPATH"] = os.pathsep.join((env["PYTHONPATH"], str(_ROOT)))
        inside = [str(serving.python), "-m", "tests.npu.triton_rows", _INSIDE, str(out)]
        subprocess.run(inside, cwd=_ROOT, check=True, env=env, stdout=sys.stderr)
        return out.read_text()


def triton_kernels() -> list[str]:
    """Return the kernels that Python launches by Triton, with separate rows."""
    kernels = [op.kernel for op in all_ops() if Need.TRITON in op.npu.needs]
    return [kernel for kernel in kernels if rows_alone(kernel)]


def _record(out: Path) -> int:
    """Run by the release's own Python: launch every row once, and write the results."""
    import torch
    import torch_npu

    from collector.replay.calls import NpuCalls

    torch.npu.set_device(0)
    log = Path(os.environ.pop("FAKE_CANN_LOG"))
    calls = NpuCalls(torch_npu)
    blocks = [
        _block(partial(_launched, torch, calls, log), row.case)
        for kernel in triton_kernels()
        for row in rows_alone(kernel)
    ]
    out.write_text("\n".join(blocks))
    sys.stdout.flush()
    os._exit(0)


def _block(launched: Any, case: Case) -> str:
    try:
        found: list[Recorded] = launched(case)
    except Exception as error:  # any error of the release about the call is the result
        message = " ".join(str(error).split())
        return f"{headline(case)}\n  error: {type(error).__name__}: {message}\n"
    lines = [headline(case)]
    for call in found:
        is_own = kernel_of(call) == case.kernel_type
        lines.append(f"  {'' if is_own else '+ '}{call.text}{_differs(case, call) * is_own}")
    return "\n".join(lines) + "\n"


def _differs(case: Case, call: Recorded) -> str:
    """Return the difference of a profile of the call from the row."""
    identity = identity_of(case, cells_of(call))
    return f"  differs: {', '.join(map(str, identity.differences))}" if identity.differences else ""


def _launched(torch: Any, calls: Any, log: Path, case: Case) -> list[Recorded]:
    from collector.replay.cases import check_outputs
    from collector.replay.tensors import CaseTensors

    op = find_operator(case.kernel_type)
    assert op is not None
    op.check(case, "npu")
    launcher = calls.of(op, case)
    make = CaseTensors("npu:0", 7, frozenset(), lambda tensor, format: tensor)
    call = launcher.build(case, make)
    torch.npu.manual_seed(0)  # seeds and offsets of random numbers are arguments
    torch.npu.synchronize()
    offset = log.stat().st_size
    outputs = launcher.run(*call.args, **call.kwargs)
    torch.npu.synchronize()
    check_outputs(outputs, case, make.dtype)
    return read_calls(log, offset)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
