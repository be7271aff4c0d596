"""Checks of a machine with Ascend NPUs for `opmeter doctor`, each with a fix."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from collector.codec.errors import BadInput, HostFault
from collector.codec.files import scratch_folder
from collector.host.cann import cann_version, custom_opp_problem, with_custom_opp
from collector.host.npus import board_of, check_health, cube_cores_of, list_npus
from collector.host.stack import device_locks, installed_vllm
from collector.model.plan import Limits
from collector.replay.check_session import Interference, concurrency_test
from collector.replay.lock import DeviceLock
from collector.replay.msprof import find_msprof
from jobs.doctor.machine import Check

_SET_ENV = "source /usr/local/Ascend/ascend-toolkit/set_env.sh"


def is_npu_host() -> bool:
    """Return whether this machine is meant to measure NPUs: it has npu-smi or CANN."""
    return shutil.which("npu-smi") is not None or cann_version() is not None


def check_npus() -> Iterator[Check]:
    """Check devices, driver, CANN, its profiler and the custom operators of vLLM-Ascend."""
    yield _check_of(
        "npu", _devices, "mount npu-smi, dcmi and the driver's lib64 into the container"
    )
    yield _check_of("health", _health, "npu-smi info -t health lists its faults; have it repaired")
    yield _check_of("driver", _driver, "install the driver and firmware of the NPUs")
    cann = cann_version()
    yield Check("cann", cann is not None, cann or "no version file of CANN was found", _SET_ENV)
    yield _check_of("msprof", lambda: str(find_msprof()), _SET_ENV)
    added = with_custom_opp(os.environ, installed_vllm())  # as in sessions of a serving stack
    problem = custom_opp_problem({**os.environ, **added})
    is_required = bool(os.environ.get("ASCEND_CUSTOM_OPP_PATH"))
    # Only a few operators require it: its absence is reported but no failure; a wrong path is one.
    words = f"only some operators require it: {problem}" if problem else "found"
    yield Check("custom OPP", not (problem and is_required), words, "run these lines, or unset it")


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


def _check_of(name: str, query: Callable[[], str], fix: str) -> Check:
    try:
        return Check(name, True, query())
    except (BadInput, HostFault) as error:
        return Check(name, False, str(error), fix)


# Whether this machine's devices may measure at the same time: a dozen reference cases, alone and
# then on all devices at once.

_TOLERATED = 0.03
_SHOWN = 3


def check_concurrency(backend: str) -> Iterator[Check]:
    """Measure how the devices slow each other down.

    Raises BadInput if there is only one, DeviceBusy if another process is measuring."""
    locks = device_locks(backend)
    if len(locks) < 2:
        raise BadInput(f"backend {backend}: this compares several devices of one machine, got one")
    with ExitStack() as held:
        for lock in locks:
            held.enter_context(DeviceLock(lock, "a concurrency test of devices"))
        folder = held.enter_context(scratch_folder(f"{backend}0"))
        found = concurrency_test(backend, range(len(locks)), folder, Limits())
    yield verdict(found, len(locks))


def verdict(found: list[Interference], devices: int) -> Check:
    """Return one check of all cases, which names the worst ones."""
    worst = ", ".join(f"{one.case} {one.slowdown:+.1%}" for one in found[:_SHOWN])
    fix = (
        f"measure on fewer devices at once: OPMETER_MEASURE_CONCURRENCY={max(1, devices // 2)}, or "
        "measure_concurrency of the site profile; then test again"
    )
    calm = not found or found[0].slowdown <= _TOLERATED
    return Check("together", calm, f"{devices} devices at once: {worst}", fix)
