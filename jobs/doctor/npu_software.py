"""Checks of the software of a machine with Ascend NPUs: CANN and its driver, msprof and its Python,
torch_npu, and other profilers.

Each check finds one cause. A check that cannot succeed because of a cause that another check has
found is skipped, and names that check.
"""

import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path

from collector.codec.errors import BadInput, HostFault
from collector.codec.text import MIB
from collector.host.cann import cann_version, names_cann, set_env_script
from collector.host.custom_operators import custom_opp_problem, with_custom_opp
from collector.host.npus import board_of, list_npus
from collector.host.operator_library import static_kernel_bytes, static_kernel_problem
from collector.host.processes import output_of
from collector.host.stack import installed_torch, installed_vllm
from collector.host.version_pairs import known_pairs
from collector.replay.msprof import find_msprof
from jobs.doctor.machine import Check

_SET_ENV = "source /usr/local/Ascend/ascend-toolkit/set_env.sh"
_DRIVER_LIBRARIES = ":".join(
    f"/usr/local/Ascend/driver/lib64{part}" for part in ("", "/common", "/driver")
)
_START_S = 60.0
_IMPORT_S = 180.0
_SHOWN = 300  # characters of a program's output, from its end
_PYTHON = (3, 7, 5)  # of msprof's scripts, by Huawei's profiling guide


def set_env_line() -> str:
    """Return the command that sets the environment of the CANN that is installed here."""
    script = set_env_script()
    return f"source {script}" if script else _SET_ENV


def check_cann() -> Check:
    version = cann_version()
    if version is None:
        fix = f"install CANN with its toolkit, or load it from its folder: {set_env_line()}"
        return Check("cann", False, "no version file of CANN was found", fix)
    words = f"{version}, but its set_env.sh was not sourced: ASCEND_HOME_PATH is not set"
    return Check("cann", names_cann(), version if names_cann() else words, set_env_line())


def check_driver() -> Check:
    """Check the driver, and whether it is new enough for CANN."""
    try:
        board = board_of(list_npus()[0])
    except (BadInput, HostFault) as error:
        return Check("driver", False, str(error), "install the driver and firmware of the NPUs")
    found = f"{board.driver}, firmware {board.firmware or 'unknown'} ({board.soc})"
    versions = {"driver": board.driver, "cann": cann_version() or ""}
    failing = [one for one in known_pairs(versions, ["analyse"]) if not one.works]
    if not failing:
        return Check("driver", True, found)
    words = f"{found}: CANN {cann_version()}: {failing[0].effect} ({failing[0].source})"
    return Check("driver", False, words, failing[0].remedy)


def check_msprof() -> Check:
    """Check that msprof is found and starts: it loads the driver before it prints its help."""
    try:
        msprof = find_msprof()
    except BadInput as error:
        return Check("msprof", False, str(error), set_env_line())
    output = output_of([str(msprof), "--help"], _START_S)
    fix = (
        "make the driver's libraries available: mount /usr/local/Ascend/driver, and "
        f"export LD_LIBRARY_PATH={_DRIVER_LIBRARIES}:$LD_LIBRARY_PATH"
    )
    started = "Usage" in output  # its status is no proof: releases differ
    return Check(
        "msprof", started, f"{msprof}" if started else f"{msprof}: {output[-_SHOWN:]}", fix
    )


def check_parsers() -> Check:
    """Check the Python of msprof's scripts: this one, which opmeter passes to it, and the first of
    PATH, which torch_npu's own profiler uses."""
    on_path = shutil.which("python3") or ""
    program = "import sqlite3, sys; print(*sys.version_info[:3])"
    for python in dict.fromkeys(filter(None, (sys.executable, on_path))):
        output = output_of([python, "-c", program], _START_S)
        version = tuple(int(part) for part in output.split() if part.isdigit())
        if len(version) != len(_PYTHON) or version < _PYTHON:
            words = f"{python} cannot run msprof's scripts: {output[-_SHOWN:]}"
            fix = "install opmeter with a Python that has sqlite3 (libsqlite3-dev before its build)"
            if python != sys.executable:
                fix = f"put this Python first: export PATH={Path(sys.executable).parent}:$PATH"
            return Check("sqlite3", False, words, fix)
    return Check("sqlite3", True, "in the Python of msprof's scripts")


def check_import() -> Check:
    """Import torch_npu in a separate process and count its devices."""
    if importlib.util.find_spec("torch_npu") is None:
        fix = f"pip install 'torch_npu=={(installed_torch() or '').partition('+')[0]}.*'"
        return Check("import", False, "torch_npu is not installed", fix)
    program = "import torch, torch_npu; print('devices:', torch.npu.device_count())"
    output = output_of([sys.executable, "-P", "-c", program], _IMPORT_S)
    count = re.search(r"devices: (\d+)$", output)
    fix = f"{set_env_line()}; if that does not help, install torch_npu of torch's release again"
    if count is None:
        return Check("import", False, f"torch_npu cannot be imported: {output[-_SHOWN:]}", fix)
    fix = "unset ASCEND_RT_VISIBLE_DEVICES, and read the log in ~/ascend/log"
    return Check("import", count[1] != "0", f"torch_npu sees {count[1]} devices", fix)


def check_profilers(proc: Path) -> Check:
    """Check that no other program profiles: one device has one profiling task at a time."""
    for status in proc.glob("[0-9]*/comm"):
        try:
            is_msprof = status.read_text().strip() == "msprof"
            command = status.with_name("cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if is_msprof and b"collector.replay.session" not in command:
            words = b" ".join(command).decode(errors="replace").strip()[:200]
            fix = f"wait until process {status.parent.name} has ended, or end it"
            return Check("profilers", False, f"process {status.parent.name} profiles: {words}", fix)
    if os.environ.get("PROFILING_MODE", "false") != "false":
        words = f"PROFILING_MODE={os.environ['PROFILING_MODE']} profiles every process"
        return Check("profilers", False, words, "unset PROFILING_MODE PROFILING_OPTIONS")
    return Check("profilers", True, "no other profiler runs here")


def check_custom_opp() -> Check:
    """Check the custom operators. Only some operators require them: their absence is no failure, a
    wrong path is one."""
    added = with_custom_opp(os.environ, installed_vllm())  # as in sessions of a serving stack
    problem = custom_opp_problem({**os.environ, **added})
    if problem and os.environ.get("ASCEND_CUSTOM_OPP_PATH"):
        cause, _, lines = problem.partition("; ")
        fix = "unset ASCEND_CUSTOM_OPP_PATH"
        if importlib.util.find_spec("vllm_ascend") is not None:
            fix = f"{lines}; without custom operators: {fix}"
        return Check("custom OPP", False, cause, fix)
    words = f"only some operators require it: {problem}" if problem else "found"
    return Check("custom OPP", True, words)


def check_static_kernels() -> Check:
    """Check whether kernels can be built for the shapes of a case. Only rows of OP State `static`
    require it: that they cannot is no failure."""
    if problem := static_kernel_problem():
        words = f"only rows of OP State static require them: {problem}"
        return Check("static kernels", True, words)
    size = -(-static_kernel_bytes() // MIB)
    return Check("static kernels", True, f"are built; a session copies {size} MiB of CANN")
