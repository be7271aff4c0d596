"""`python -m collector.replay.resolved_calls`: report which declared calls this host has, from a
separate process, since torch_npu may terminate the process that imports it.

If the custom OPP of vLLM-Ascend has a function with the name of a CANN function, torch_npu uses the
custom one (it searches ASCEND_CUSTOM_OPP_PATH first). Both libraries are read as files, never
loaded; the names of their aclnn functions are compared.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from collector.codec.canonical import decode_object
from collector.codec.errors import BadInput, OpmeterError
from collector.host import imports
from collector.host.custom_operators import custom_opp_folders
from collector.ops.registry import all_ops
from collector.replay.custom_opp import functions_of_library, library_functions_of_opp
from collector.replay.process import session_environment

_LIMIT_S = 300.0
_MARKER = "resolved calls: "
_OWN = "lib64/libopapi.so"  # below ASCEND_HOME_PATH


@dataclass(frozen=True, slots=True)
class ResolvedCall:
    """A declared call. `lacks` is the reason why this host does not have it, empty if it does.
    `library` is the call's library: torch, torch_npu, or vllm-ascend, which not every host
    needs."""

    kernel: str
    call: str
    library: str
    lacks: str


@dataclass(frozen=True, slots=True)
class ResolvedCalls:
    """Every declared call, and the functions that two libraries have."""

    calls: tuple[ResolvedCall, ...]
    in_both: tuple[str, ...]


def resolve_calls() -> ResolvedCalls:
    """Resolve the calls in a separate process. Raises OpmeterError with its last output line if
    it reports nothing."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            env=session_environment("npu"),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OpmeterError(f"importing torch_npu takes more than {_LIMIT_S:g} s") from error
    lines = done.stdout.splitlines()
    output = next((line for line in reversed(lines) if line.startswith(_MARKER)), None)
    if output is None:
        words = (done.stderr.strip() or f"exit {done.returncode}").splitlines()[-1]
        raise OpmeterError(f"importing torch_npu: {words}")
    document = output.removeprefix(_MARKER).encode()
    return decode_object(ResolvedCalls, document, what="resolved calls", key=__name__)


def functions_in_both(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the aclnn functions that both CANN and a custom OPP have under one name."""
    folders = custom_opp_folders(environment)
    custom = {name for folder in folders for name in library_functions_of_opp(folder)}
    home = environment.get("ASCEND_HOME_PATH", "")
    return sorted(custom & functions_of_library(Path(home) / _OWN)) if custom and home else []


def _resolved() -> Iterator[ResolvedCall]:
    with imports.permanent():
        import torch

        from collector.replay.calls import NoOperator, resolve
        from collector.replay.devices import import_torch_npu

        torch_npu = import_torch_npu()
    roots = {"torch": torch, "torch_npu": torch_npu}

    for op in all_ops():
        lacks = ""
        try:
            resolve(op.call, roots)
        except NoOperator as error:
            lacks = str(error)
        yield ResolvedCall(op.kernel, op.call, op.library, lacks)


if __name__ == "__main__":
    try:
        found = ResolvedCalls(tuple(_resolved()), tuple(functions_in_both()))
    except BadInput as problem:
        sys.exit(str(problem))
    sys.stdout.write(f"{_MARKER}{json.dumps(asdict(found))}\n")
    sys.stdout.flush()
    os._exit(0)  # skips the driver's own cleanup
