"""Checks of a machine with Ascend NPUs: what `opmeter doctor` says of them, and how to mend it."""

import os
import shutil
from collections.abc import Callable, Iterator

from collector.errors import BadInput, HostFault
from collector.host.cann import cann_version
from collector.host.custom_opp import custom_opp_problem, with_custom_opp
from collector.host.npus import board_of, check_health, cube_cores_of, list_npus
from collector.host.stack import installed_vllm
from collector.replay.msprof import find_msprof
from jobs.doctor.machine import Check

_SET_ENV = "source /usr/local/Ascend/ascend-toolkit/set_env.sh"


def is_npu_host() -> bool:
    """Whether this machine is meant to measure NPUs: it has their tool, or CANN."""
    return shutil.which("npu-smi") is not None or cann_version() is not None


def check_npus() -> Iterator[Check]:
    """Devices, driver, CANN, its profiler and the custom operators of vLLM-Ascend."""
    yield _told("npu", _devices, "mount npu-smi, dcmi and the driver's lib64 into the container")
    yield _told("health", _health, "npu-smi info -t health lists its faults; have it repaired")
    yield _told("driver", _driver, "install the driver and firmware of the NPUs")
    cann = cann_version()
    yield Check("cann", cann is not None, cann or "no version file of CANN was found", _SET_ENV)
    yield _told("msprof", lambda: str(find_msprof()), _SET_ENV)
    added = with_custom_opp(os.environ, installed_vllm())  # as sessions of a serving stack have it
    problem = custom_opp_problem({**os.environ, **added})
    is_wanted = bool(os.environ.get("ASCEND_CUSTOM_OPP_PATH"))
    # Only a few operators want it: its lack is told and is no failure, a wrong path is one.
    words = f"only some operators require it: {problem}" if problem else "found"
    yield Check("custom OPP", not (problem and is_wanted), words, "run these lines, or unset it")


def _devices() -> str:
    found = list_npus()
    cores = cube_cores_of(found[0])
    beside = f", {cores} cube cores" if cores else ""
    return f"{len(found)} x {found[0].name}, {found[0].memory_gb} GB each{beside}"


def _health() -> str:
    check_health()
    return ", ".join(sorted({npu.health for npu in list_npus()}))


def _driver() -> str:
    board = board_of(list_npus()[0])
    return f"{board.driver}, firmware {board.firmware or 'unknown'} ({board.soc})"


def _told(name: str, ask: Callable[[], str], fix: str) -> Check:
    try:
        return Check(name, True, ask())
    except (BadInput, HostFault) as error:
        return Check(name, False, str(error), fix)
